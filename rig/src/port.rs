//! Ports for servers, each held by one process at a time.
//!
//! The ports and their cluster bus ports are below the range for outgoing connections. So no connection takes
//! the port of a server while the server is down.

use std::env;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

const FIRST: u16 = 20_000;
const LAST: u16 = 22_767;
/// A cluster node also listens on the port this far above its own.
const BUS_OFFSET: u16 = 10_000;
const ATTEMPTS: usize = 1_000;

/// A port, and the lock that keeps other processes from choosing it.
#[derive(Debug)]
pub struct Port {
    number: u16,
    lock: File,
}

impl Port {
    /// Locks a random free port.
    ///
    /// # Panics
    ///
    /// When no port is free.
    pub fn free() -> Port {
        (0..ATTEMPTS)
            .find_map(|_| Port::take(fastrand::u16(FIRST..=LAST)))
            .unwrap_or_else(|| panic!("no free port between {FIRST} and {LAST}"))
    }

    /// Locks the port with this number, which must be free.
    pub(crate) fn exactly(number: u16) -> Port {
        Port::take(number).unwrap_or_else(|| panic!("port {number} is in use"))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Returns host and port, such as `127.0.0.1:20001`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }

    fn take(number: u16) -> Option<Port> {
        let lock = lock(number)?;
        let free = is_free(number) && number.checked_add(BUS_OFFSET).is_none_or(is_free);
        free.then_some(Port { number, lock })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that is starting may have inherited it.
        let _ = self.lock.unlock();
    }
}

fn lock(number: u16) -> Option<File> {
    let directory = env::temp_dir().join("tollgate-rig-ports");
    fs::create_dir_all(&directory)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", directory.display()));
    let file = File::create(directory.join(number.to_string())).ok()?;
    file.try_lock().ok()?;
    Some(file)
}

/// Returns whether no process listens on the port. The check binds without listening: a child process that is
/// starting may inherit a listening socket, and would keep the port busy a little longer.
fn is_free(number: u16) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("a socket");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
    socket.bind(&address.into()).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn port_is_handed_out_once() {
        let port = Port::free();
        assert!(Port::take(port.number()).is_none());
        let number = port.number();
        drop(port);
        assert!(Port::take(number).is_some());
    }

    #[test]
    fn port_with_a_listener_is_not_handed_out() {
        let port = Port::free();
        let number = port.number();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        drop(port);
        assert!(Port::take(number).is_none());
    }

    #[test]
    fn port_with_a_busy_bus_port_is_not_handed_out() {
        let port = Port::free();
        let number = port.number();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number + BUS_OFFSET)).unwrap();
        drop(port);
        assert!(Port::take(number).is_none());
    }
}
