//! The thread of the proxy. The thread waits for sockets, for orders, and for the time of delayed bytes.

use std::io::{self, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::SockRef;

use super::Fault;
use super::pair::{self, Pair};
use crate::stopwatch::Stopwatch;

const CONNECT_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Order {
    /// Replaces the fault, then confirms.
    Set(Fault, Sender<()>),
    Stop,
}

/// The ends of channels that the thread gets from the proxy.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) orders: Receiver<Order>,
    /// Receives a byte after each order.
    pub(super) bell: UnixStream,
    pub(super) connections: Arc<AtomicUsize>,
}

#[derive(Debug)]
pub(super) struct Relay {
    port: u16,
    server: SocketAddr,
    ends: Ends,
    fault: Fault,
    /// `None` while the proxy refuses connections.
    listener: Option<TcpListener>,
    pairs: Vec<Pair>,
    clock: Stopwatch,
}

impl Relay {
    pub(super) fn new(port: u16, server: SocketAddr, ends: Ends) -> Relay {
        ends.bell.set_nonblocking(true).expect("a socket");
        Relay {
            port,
            server,
            ends,
            fault: Fault::None,
            listener: Some(listen(port)),
            pairs: Vec::new(),
            clock: Stopwatch::start(),
        }
    }

    pub(super) fn run(mut self) {
        loop {
            self.sleep();
            // Bytes that arrived before an order are handled under the old fault.
            self.accept();
            self.relay();
            match self.order() {
                Some(Order::Set(fault, done)) => {
                    self.set(fault);
                    let _ = done.send(());
                }
                Some(Order::Stop) => return,
                None => {}
            }
        }
    }

    fn order(&self) -> Option<Order> {
        (&self.ends.bell).read_exact(&mut [0]).ok()?;
        self.ends.orders.try_recv().ok()
    }

    /// Waits until there is something to do.
    fn sleep(&mut self) {
        let now = self.clock.elapsed();
        let mut wake = None;
        let mut sockets = vec![PollFd::new(&self.ends.bell, PollFlags::IN)];
        if let Some(listener) = &self.listener {
            sockets.push(PollFd::new(listener, PollFlags::IN));
        }
        for interest in self.pairs.iter().flat_map(Pair::interests) {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, interest.read);
            match interest.write {
                Some(due) if due > now => wake = Some(wake.map_or(due, |it| due.min(it))),
                Some(_) => flags |= PollFlags::OUT,
                None => {}
            }
            // Leave out sockets without flags: a closed one would wake the thread again and again.
            if !flags.is_empty() {
                sockets.push(PollFd::new(interest.socket, flags));
            }
        }
        let pause = wake.map(|due| timespec(due - now));
        match poll(&mut sockets, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        loop {
            let client = match listener.accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => panic!("accept: {error}"),
            };
            self.ends.connections.fetch_add(1, Ordering::Relaxed);
            match self.fault {
                Fault::Reset => pair::reset(client),
                Fault::BlackHole => self.pairs.push(Pair::in_black_hole(client)),
                Fault::None | Fault::Latency(_) | Fault::Refuse => {
                    match TcpStream::connect_timeout(&self.server, CONNECT_LIMIT) {
                        Ok(server) => self.pairs.push(Pair::new(client, server)),
                        // Without the proxy, the client would get an error now. A reset comes closest to it.
                        Err(_) => pair::reset(client),
                    }
                }
            }
        }
    }

    fn set(&mut self, fault: Fault) {
        if self.fault == Fault::BlackHole && fault != Fault::BlackHole {
            let lossy = self.pairs.extract_if(.., |pair| pair.is_lossy());
            lossy.for_each(Pair::reset);
        }
        self.fault = fault;
        match fault {
            Fault::None | Fault::Latency(_) => {}
            Fault::BlackHole => self.pairs.iter_mut().for_each(Pair::discard_queued),
            Fault::Reset => self.pairs.drain(..).for_each(Pair::reset),
            Fault::Refuse => self.listener.take().iter().for_each(close),
        }
        if fault != Fault::Refuse && self.listener.is_none() {
            self.listener = Some(listen(self.port));
        }
    }

    fn relay(&mut self) {
        let now = self.clock.elapsed();
        let due = match self.fault {
            Fault::Latency(latency) => now + latency,
            _ => now,
        };
        for mut pair in std::mem::take(&mut self.pairs) {
            let goes_on = match self.fault {
                Fault::BlackHole => Ok(pair.discard_input()),
                _ => pair.relay(now, due),
            };
            match goes_on {
                Ok(true) => self.pairs.push(pair),
                Ok(false) => {}
                Err(_) => pair.reset(),
            }
        }
    }
}

fn listen(port: u16) -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("our port");
    listener.set_nonblocking(true).expect("a listener");
    listener
}

/// Stops listening at once, even if a starting child process has inherited the socket.
fn close(listener: &TcpListener) {
    let closed = SockRef::from(listener).shutdown(Shutdown::Both);
    closed.expect("a listener to close");
}

fn timespec(pause: Duration) -> Timespec {
    Timespec::try_from(pause).expect("a short pause")
}
