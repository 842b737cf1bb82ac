//! Closes a listener without losing a client that has just connected.
//!
//! The system completes handshakes by itself, and queues the connections for the server. When a
//! listener closes, the system resets the connections in its queue, and those whose handshake is under
//! way. Their clients may have sent a request already. So new clients are held back first: the system
//! ignores their SYN packets, and they try again a second later, when nothing listens any more. The
//! server goes on accepting while the last handshakes complete, empties the queue, and closes.

use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::time::Duration;

use socket2::{SockFilter, SockRef};
use tokio::net::TcpListener;

/// How long handshakes that are under way may take: longer than a round trip within a data center.
pub(super) const LAST_HANDSHAKES: Duration = Duration::from_millis(10);

/// A program for the system that drops SYN packets: the first packets of new connections. In the flags of a
/// TCP header, SYN is 0x02 and ACK is 0x10.
const DROP_SYN: [SockFilter; 5] = [
    // Load the flags: byte 13 of the TCP header.
    SockFilter::new(0x30, 0, 0, 13),
    SockFilter::new(0x54, 0, 0, 0x12),
    // SYN without ACK: go on. Otherwise skip one line.
    SockFilter::new(0x15, 0, 1, 0x02),
    SockFilter::new(0x06, 0, 0, 0),
    SockFilter::new(0x06, 0, 0, u32::MAX),
];

/// Lets no new client connect. Handshakes that are under way can complete.
pub(super) fn hold_back(listener: &TcpListener) {
    if let Err(error) = SockRef::from(listener).attach_filter(&DROP_SYN) {
        // A client that connects in the next milliseconds may be reset.
        tracing::debug!(%error, "cannot hold back new connections");
    }
}

/// Closes the listener. Returns the connections that were in its queue.
pub(super) fn close(listener: TcpListener) -> Vec<(StdStream, SocketAddr)> {
    // Tokio's `accept` can miss a connection that it was not told of yet.
    let accept_all = |listener: StdListener| {
        let accept = || listener.accept().ok();
        std::iter::from_fn(accept).collect()
    };
    listener.into_std().map(accept_all).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn queued_clients_are_accepted_and_new_ones_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |limit| StdStream::connect_timeout(&address, limit);
        let queued: Vec<_> = (0..3)
            .map(|_| connect(Duration::from_secs(10)).unwrap())
            .collect();
        hold_back(&listener);
        let held_back = connect(Duration::from_millis(300)).unwrap_err();
        assert_eq!(held_back.kind(), ErrorKind::TimedOut);
        let patient = tokio::task::spawn_blocking(move || {
            StdStream::connect_timeout(&address, Duration::from_secs(30))
        });
        let accepted = close(listener);
        let peers: Vec<_> = accepted.iter().map(|(_, peer)| *peer).collect();
        let clients: Vec<_> = queued.iter().map(|it| it.local_addr().unwrap()).collect();
        assert_eq!(peers, clients);
        let refused = patient.await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
