//! Wrong tokens and passwords: counted, logged, and answered slowly.
//!
//! A token is compared before anything else, so a request with the right token is never slowed, even if
//! strangers send wrong tokens from the same address. Only the answers to wrong tokens wait for their
//! turn. Each client gets [`BURST`] such answers at once, and then [`PER_SECOND`] a second. A client is
//! an IPv4 address or an IPv6 network of 64 bits. The table of clients has a fixed size: clients that
//! share an entry share its turns.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::net::client_of;
use crate::outbound::Seldom;

/// How many wrong tokens of a client are answered at once.
pub(crate) const BURST: u64 = 10;
/// How many wrong tokens of a client are answered in a second after that.
pub(crate) const PER_SECOND: u64 = 5;
/// The longest time that an answer waits. If a client has so many wrong tokens in flight that their
/// turns take longer, the last of them wait only this long.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(10);

/// The time of one turn, in milliseconds.
const TURN: u64 = 1000 / PER_SECOND;
/// How many entries the table of clients has.
const CLIENTS: usize = 4096;

/// The wrong tokens of all clients of a door.
#[derive(Debug)]
pub(crate) struct Attempts {
    start: Instant,
    hasher: std::hash::RandomState,
    /// For each client: when all of its turns are free again, in milliseconds since the start.
    free_at: Box<[AtomicU64]>,
    count: AtomicU64,
    log: Seldom,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts::new()
    }
}

impl Attempts {
    pub(crate) fn new() -> Attempts {
        Attempts {
            start: Instant::now(),
            hasher: std::hash::RandomState::new(),
            free_at: (0..CLIENTS).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            log: Seldom::default(),
        }
    }

    /// Returns how many wrong tokens there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until the client at `peer` may learn that its token is wrong.
    pub(crate) async fn wrong(&self, door: &'static str, peer: Option<IpAddr>, path: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        // Without an address, all clients share the turns.
        let client = peer.map(client_of);
        if let Some(unlogged) = self.log.due() {
            let peer = client.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            tracing::warn!(target: "tollgate::access", door, peer, path, unlogged, "wrong token");
        }
        let delay = self.delay(client);
        if delay > Duration::ZERO {
            sleep(delay).await;
        }
    }

    /// Takes the next turn of a client, and returns how long it has to wait.
    fn delay(&self, client: Option<IpAddr>) -> Duration {
        let elapsed = self.start.elapsed().as_millis();
        let now = u64::try_from(elapsed).unwrap_or(u64::MAX);
        let at = usize::try_from(self.hasher.hash_one(client)).unwrap_or_default() % CLIENTS;
        let Some(free_at) = self.free_at.get(at) else {
            return Duration::ZERO;
        };
        let longest = u64::try_from(MAX_DELAY.as_millis()).unwrap_or(u64::MAX);
        // Turns beyond the longest delay are not counted. So after a flood has ended, its client is not
        // slowed for longer than that delay.
        let next = |free_at: u64| {
            free_at
                .max(now)
                .saturating_add(TURN)
                .min(now + BURST * TURN + longest)
        };
        let order = Ordering::Relaxed;
        let before = free_at.fetch_update(order, order, |it| Some(next(it)));
        let free_at = next(before.unwrap_or(0));
        Duration::from_millis(free_at.saturating_sub(now + BURST * TURN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));

    fn delays(attempts: &Attempts, count: usize) -> Vec<u64> {
        let delays = (0..count).map(|_| attempts.delay(ANN).as_millis());
        delays.map(|it| u64::try_from(it).unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_beyond_a_burst_take_turns() {
        let attempts = Attempts::new();
        let expected = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 400, 600];
        assert_eq!(delays(&attempts, 13), expected);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(delays(&attempts, 11), expected[..11]);
    }

    #[tokio::test(start_paused = true)]
    async fn flood_waits_no_longer_than_the_bound() {
        let attempts = Attempts::new();
        let last = delays(&attempts, 100_000).pop().unwrap();
        assert_eq!(u128::from(last), MAX_DELAY.as_millis());
        // After the longest delay and the time of a burst, the client has all of its turns again.
        tokio::time::advance(MAX_DELAY + Duration::from_millis(BURST * TURN)).await;
        assert_eq!(delays(&attempts, 10), [0; 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn client_is_not_slowed_by_others() {
        let attempts = Attempts::new();
        delays(&attempts, 1000);
        let others = (2..=9).map(|last| attempts.delay(Some(IpAddr::from([192, 0, 2, last]))));
        // Two of so few clients seldom share an entry of the table.
        assert!(others.filter(|it| *it == Duration::ZERO).count() >= 6);
    }
}
