//! A TCP proxy on loopback that can make the way to a server slow, silent or broken.
//!
//! One thread serves all connections, so a fault is in force for all of them at once: after
//! [`Proxy::set`] no byte leaves the proxy that the new fault stops.

mod line;
mod pair;
mod relay;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::relay::{Ends, Order, Relay};
use crate::port::Port;

/// What is wrong with the way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Nothing.
    None,
    /// All bytes arrive this much later, in both directions. As many are under way as fit, so
    /// throughput stays.
    Latency(Duration),
    /// All bytes vanish, in both directions; connections are accepted and stay open. When the
    /// fault ends, connections that have lost something are reset.
    BlackHole,
    /// Connections are reset: the open ones now, new ones as they come.
    Reset,
    /// New connections are refused. Open ones stay: to end these too, set [`Fault::Reset`] first.
    Refuse,
}

/// A way to a server, stopped when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    orders: Sender<Order>,
    /// Takes a byte after each order, and wakes the thread up.
    bell: UnixStream,
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A way to `address`, as `127.0.0.1:20001`, with nothing wrong.
    ///
    /// # Panics
    ///
    /// When `address` is not an IP address and a port.
    pub fn to(address: &str) -> Proxy {
        let server = address.parse().expect("an IP address and a port");
        let port = Port::free();
        let (sender, orders) = mpsc::channel();
        let (bell, other_end) = UnixStream::pair().expect("a socket pair");
        let connections = Arc::new(AtomicUsize::new(0));
        let ends = Ends {
            orders,
            bell: other_end,
            connections: Arc::clone(&connections),
        };
        let relay = Relay::new(port.number(), server, ends);
        let thread = thread::Builder::new().name("proxy".to_owned());
        Proxy {
            port,
            orders: sender,
            bell,
            connections,
            thread: Some(thread.spawn(|| relay.run()).expect("a thread")),
        }
    }

    /// Where to connect to, as `127.0.0.1:20002`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// Replaces the fault. It is in force when this returns.
    pub fn set(&self, fault: Fault) {
        let (done, wait) = mpsc::channel();
        self.order(Order::Set(fault, done));
        wait.recv().expect("a running proxy");
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn order(&self, order: Order) {
        // A thread that is gone shows where its answer is awaited.
        let _ = self.orders.send(order);
        let _ = (&self.bell).write(&[0]);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
