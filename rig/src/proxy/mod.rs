//! A TCP proxy on loopback that can delay, drop or reset connections to a server.
//!
//! One thread serves all connections, so a fault affects all of them at once. When [`Proxy::set`] returns,
//! the new fault is in force: bytes that it stops do not pass any more.

mod buffer;
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

/// A fault of the proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// No fault.
    None,
    /// All bytes arrive this much later, in both directions. Throughput is not reduced.
    Latency(Duration),
    /// All bytes are lost, in both directions; connections are accepted and stay open. When the fault ends,
    /// connections that lost bytes are reset.
    BlackHole,
    /// All connections are reset, new ones as well.
    Reset,
    /// New connections are refused. Open ones stay; to close them too, set [`Fault::Reset`] first.
    Refuse,
}

/// A proxy to a server, stopped when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    orders: Sender<Order>,
    /// A socket to the thread: a byte written here wakes the thread after an order.
    bell: UnixStream,
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to `address`, such as `127.0.0.1:20001`, without a fault.
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

    /// Returns the address of the proxy, such as `127.0.0.1:20002`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// Replaces the fault. The new fault is in force when this returns.
    pub fn set(&self, fault: Fault) {
        let (done, wait) = mpsc::channel();
        self.order(Order::Set(fault, done));
        wait.recv().expect("a running proxy");
    }

    /// Returns how many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn order(&self, order: Order) {
        // If the thread has died, the caller fails when it waits for the answer.
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
