//! How many connections one client may have at a listener.
//!
//! Without this bound, one client with idle connections takes all places of a door. A client is an IPv4
//! address, or an IPv6 network of 64 bits: a client with one IPv6 address usually has the whole
//! network. Trusted proxies carry the connections of many clients, so they have no bound of their own.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_config::{MAX_CONNECTIONS_PER_CLIENT, Subjects};

use crate::outbound::Seldom;

/// Counts the open connections of each client.
#[derive(Debug)]
pub(crate) struct Peers {
    max: usize,
    /// Only the trusted proxies of this value are set.
    trusted: Subjects,
    /// The clients that have connections. There are at most as many as connections.
    open: Mutex<HashMap<IpAddr, usize>>,
    refused: AtomicU64,
    log: Seldom,
}

/// One open connection. Dropping it lowers the count of its client. Connections of trusted proxies are not
/// counted.
#[derive(Debug)]
pub(crate) struct PeerPlace {
    peers: Arc<Peers>,
    /// `None` for a trusted proxy.
    client: Option<IpAddr>,
}

impl Default for Peers {
    fn default() -> Peers {
        Peers::new(MAX_CONNECTIONS_PER_CLIENT, &Subjects::default())
    }
}

impl Peers {
    /// Bounds each client to `max` connections, except the trusted proxies of `subjects`.
    pub(crate) fn new(max: usize, subjects: &Subjects) -> Peers {
        let mut trusted = Subjects::default();
        trusted
            .trusted_proxies
            .clone_from(&subjects.trusted_proxies);
        Peers {
            max,
            trusted,
            open: Mutex::default(),
            refused: AtomicU64::new(0),
            log: Seldom::default(),
        }
    }

    /// Admits a connection of `peer`; `None` if the client has too many.
    pub(crate) fn admit(self: &Arc<Peers>, peer: IpAddr) -> Option<PeerPlace> {
        let peers = Arc::clone(self);
        if self.trusted.is_trusted(peer.to_canonical()) {
            return Some(PeerPlace {
                peers,
                client: None,
            });
        }
        let client = client_of(peer);
        {
            let mut all = self.open.lock();
            let open = all.entry(client).or_default();
            if *open < self.max {
                *open += 1;
                let client = Some(client);
                return Some(PeerPlace { peers, client });
            }
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(unlogged) = self.log.due() {
            let max = self.max;
            tracing::warn!(%client, max, unlogged, "refused a connection: the client has too many; see server.max_connections_per_client");
        }
        None
    }

    /// Returns how many connections were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for PeerPlace {
    fn drop(&mut self) {
        let Some(client) = self.client else { return };
        let mut all = self.peers.open.lock();
        if let Some(open) = all.get_mut(&client) {
            *open -= 1;
            if *open == 0 {
                all.remove(&client);
            }
        }
    }
}

/// Returns the IPv4 address, or the first address of the IPv6 network.
pub(crate) fn client_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_client_has_its_own_bound() {
        let peers = Arc::new(Peers::new(2, &Subjects::default()));
        let first = peers.admit(address("192.0.2.1"));
        let second = peers.admit(address("::ffff:192.0.2.1"));
        assert!(first.is_some() && second.is_some());
        assert!(peers.admit(address("192.0.2.1")).is_none());
        assert!(peers.admit(address("192.0.2.2")).is_some());
        assert_eq!(peers.refused(), 1);
        drop(first);
        assert!(peers.admit(address("192.0.2.1")).is_some());
    }

    #[test]
    fn ipv6_network_is_one_client() {
        let peers = Arc::new(Peers::new(1, &Subjects::default()));
        let _first = peers.admit(address("2001:db8::1"));
        assert!(peers.admit(address("2001:db8::ffff:2")).is_none());
        assert!(peers.admit(address("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn trusted_proxy_has_no_bound() {
        let mut subjects = Subjects::default();
        subjects.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
        let peers = Arc::new(Peers::new(1, &subjects));
        let places = [0; 3].map(|_| peers.admit(address("10.1.2.3")));
        assert!(places.iter().all(Option::is_some));
    }

    #[test]
    fn clients_without_connections_are_forgotten() {
        let peers = Arc::new(Peers::new(1, &Subjects::default()));
        for last in 0..=255 {
            drop(peers.admit(IpAddr::from([192, 0, 2, last])));
        }
        assert!(peers.open.lock().is_empty());
    }
}
