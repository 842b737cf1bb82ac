//! The part of a server that one client may use.
//!
//! A client with many connections could take every place of a server, and hold it by reading slowly. So the
//! requests of one client have at most half of the places. A client is an IPv4 address, or an IPv6 network of 64
//! bits, as for the bound on connections. Trusted proxies carry the requests of many clients, and have no bound.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;

/// The open requests of each client at a server.
pub(super) struct Shares {
    most: usize,
    /// The clients that have open requests. There are at most as many as places.
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl Shares {
    /// Lets each client have half of `places`, but at least one.
    pub(super) fn of(places: usize) -> Shares {
        Shares {
            most: places.div_ceil(2),
            open: Mutex::default(),
        }
    }

    /// Counts a request of `client`. Returns whether it may have a place.
    pub(super) fn take(&self, client: IpAddr) -> bool {
        let mut open = self.open.lock();
        let count = open.entry(client).or_default();
        let may = *count < self.most;
        *count += usize::from(may);
        may
    }

    /// Ends a request of `client`.
    pub(super) fn give_back(&self, client: IpAddr) {
        let mut open = self.open.lock();
        if let Some(count) = open.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_half_and_ended_requests_are_forgotten() {
        let client = |number: u8| IpAddr::from([192, 0, 2, number]);
        for (places, most) in [(1, 1), (2, 1), (5, 3), (1000, 500)] {
            let shares = Shares::of(places);
            let taken = (0..places).filter(|_| shares.take(client(1))).count();
            assert_eq!(taken, most);
            assert!(shares.take(client(2)));
            shares.give_back(client(2));
            shares.give_back(client(1));
            assert!(shares.take(client(1)) && !shares.take(client(1)));
            for _ in 0..most {
                shares.give_back(client(1));
            }
            assert!(shares.open.lock().is_empty());
        }
    }
}
