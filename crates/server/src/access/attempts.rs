//! Wrong tokens and passwords: counted, logged, answered slowly, and bounded.
//!
//! The right token never waits, even if strangers send wrong tokens from the same address. The answers to wrong
//! tokens wait for their turn. Each client gets [`BURST`] such answers at once, and then [`PER_SECOND`] a second. A
//! client is an IPv4 address or an IPv6 network of 64 bits.
//!
//! An answer waits for at most [`MAX_DELAY`]. While a client has no turn within that time, its tokens are not
//! compared at all, not even the right one: otherwise many guesses at once would cost no more than a few. Trusted
//! proxies carry the requests of many clients, so their tokens are always compared; their wrong ones wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tollgate_config::Subjects;

use crate::net::client_of;
use crate::outbound::Seldom;

/// How many wrong tokens of a client are answered at once.
pub(crate) const BURST: u64 = 10;
/// How many wrong tokens of a client are answered in a second after that.
pub(crate) const PER_SECOND: u64 = 5;
/// The longest time that an answer waits.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(10);

/// The time of one turn, in milliseconds.
const TURN: u64 = 1000 / PER_SECOND;
/// How far ahead the turns of a client may be taken, in milliseconds.
const WINDOW: u64 = BURST * TURN + MAX_DELAY.as_secs() * 1000;
/// How many clients with wrong tokens are known at a time. A client is forgotten when all of its turns are free.
/// Further clients share one queue, and their tokens are always compared.
const CLIENTS: usize = 16 * 1024;
/// The table is searched for clients to forget only if it has at least this many.
const FEW_CLIENTS: usize = 1024;

/// The client has too many wrong tokens in flight, so its further tokens are not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyWrong {
    /// When the client has a turn again.
    pub(crate) retry_after: Duration,
}

/// The wrong tokens of all clients of a door.
#[derive(Debug)]
pub(crate) struct Attempts {
    start: Instant,
    /// Has only the trusted proxies. All other fields have their defaults.
    trusted: Subjects,
    turns: Mutex<Turns>,
    /// Until this time, some client has no free turn (milliseconds since the start). Later requests need no lock.
    full_until: AtomicU64,
    count: AtomicU64,
    log: Seldom,
    log_full: Seldom,
}

#[derive(Debug, Default)]
struct Turns {
    /// For each client: when all of its turns are free again, in milliseconds since the start. `None` stands for
    /// all clients that are not known.
    free_at: HashMap<Option<IpAddr>, u64>,
    /// When the table may be searched again for clients to forget.
    next_look: u64,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts::new(&Subjects::default())
    }
}

impl Attempts {
    /// Counts the wrong tokens of all clients, with the trusted proxies of `subjects`.
    pub(crate) fn new(subjects: &Subjects) -> Attempts {
        let mut trusted = Subjects::default();
        trusted
            .trusted_proxies
            .clone_from(&subjects.trusted_proxies);
        Attempts {
            start: Instant::now(),
            trusted,
            turns: Mutex::default(),
            full_until: AtomicU64::new(0),
            count: AtomicU64::new(0),
            log: Seldom::default(),
            log_full: Seldom::default(),
        }
    }

    /// Returns how many wrong tokens there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Call this before a token of the client at `peer` is compared.
    ///
    /// # Errors
    /// If the client has so many wrong tokens in flight that no turn is free.
    pub(crate) fn may_try(&self, peer: Option<IpAddr>) -> Result<(), TooManyWrong> {
        let full_until = self.full_until.load(Ordering::Relaxed);
        if full_until == 0 {
            return Ok(());
        }
        let now = self.now();
        let Some(peer) = peer.filter(|peer| now < full_until && !self.is_trusted(*peer)) else {
            return Ok(());
        };
        let client = client_of(peer);
        let free_at = self.turns.lock().free_at.get(&Some(client)).copied();
        let full_until = free_at.unwrap_or(0).saturating_add(TURN);
        let Some(millis @ 1..) = full_until.checked_sub(now + WINDOW) else {
            return Ok(());
        };
        if let Some(unlogged) = self.log_full.due() {
            tracing::warn!(target: "tollgate::access", %client, unlogged, "too many wrong tokens: further ones are not compared");
        }
        let retry_after = Duration::from_millis(millis);
        Err(TooManyWrong { retry_after })
    }

    /// Waits until the client at `peer` may learn that its token is wrong.
    pub(crate) async fn wrong(&self, door: &'static str, peer: Option<IpAddr>, path: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(unlogged) = self.log.due() {
            let client = peer.map(client_of);
            let peer = client.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            tracing::warn!(target: "tollgate::access", door, peer, path, unlogged, "wrong token");
        }
        let delay = self.delay(peer);
        if delay > Duration::ZERO {
            sleep(delay).await;
        }
    }

    /// Takes the next turn of a client, and returns how long it has to wait.
    fn delay(&self, peer: Option<IpAddr>) -> Duration {
        let now = self.now();
        let mut turns = self.turns.lock();
        let client = peer.map(client_of).filter(|it| turns.has_room(*it, now));
        let free_at = turns.free_at.entry(client).or_default();
        *free_at = (*free_at).max(now) + TURN;
        if client.is_none() || peer.is_some_and(|peer| self.is_trusted(peer)) {
            // These turns are not bounded. So turns beyond the longest delay are not counted.
            *free_at = (*free_at).min(now + WINDOW);
        } else if *free_at + TURN > now + WINDOW {
            let full_until = *free_at + TURN - WINDOW;
            self.full_until.fetch_max(full_until, Ordering::Relaxed);
        }
        Duration::from_millis(free_at.saturating_sub(now + BURST * TURN))
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        self.trusted.is_trusted(peer.to_canonical())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX / 2)
    }
}

impl Turns {
    /// Returns whether the turns of `client` can be counted apart from those of others.
    fn has_room(&mut self, client: IpAddr, now: u64) -> bool {
        let known = self.free_at.len();
        if known < FEW_CLIENTS || self.free_at.contains_key(&Some(client)) {
            return true;
        }
        // In a flood of clients, not each of them may search the whole table.
        if now >= self.next_look {
            self.next_look = now + 1000;
            self.free_at.retain(|_, free_at| *free_at > now);
        }
        self.free_at.len() < CLIENTS
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
        let attempts = Attempts::default();
        let expected = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 400, 600];
        assert_eq!(delays(&attempts, 13), expected);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(delays(&attempts, 11), expected[..11]);
    }

    /// Guesses as often as `may_try` permits for `seconds`, and returns how many tokens were compared.
    async fn guess(attempts: &Attempts, peer: Option<IpAddr>, seconds: u64) -> u64 {
        let mut compared = 0;
        for _ in 0..seconds * 100 {
            for _ in 0..20 {
                if attempts.may_try(peer).is_ok() {
                    compared += 1;
                    assert!(attempts.delay(peer) <= MAX_DELAY);
                }
            }
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        compared
    }

    /// Takes all turns that are free.
    fn fill(attempts: &Attempts, peer: Option<IpAddr>) {
        while attempts.may_try(peer).is_ok() {
            attempts.delay(peer);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn flood_of_a_client_is_compared_no_faster_than_its_turns() {
        let attempts = Attempts::default();
        let compared = guess(&attempts, ANN, 60).await;
        let bound = BURST + PER_SECOND * (60 + MAX_DELAY.as_secs());
        assert!((bound - 2..=bound).contains(&compared), "{compared}");
        // Guesses from an IPv6 network are those of one client.
        let of_network = |last: u16| Some(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]));
        for last in 0..1000 {
            fill(&attempts, of_network(last));
        }
        let full = attempts.may_try(of_network(5000)).unwrap_err();
        assert!(full.retry_after <= Duration::from_millis(TURN), "{full:?}");
        tokio::time::advance(full.retry_after).await;
        assert_eq!(attempts.may_try(of_network(5000)), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn client_gets_its_turns_back_after_a_flood() {
        let attempts = Attempts::default();
        fill(&attempts, ANN);
        tokio::time::advance(Duration::from_millis(WINDOW)).await;
        assert_eq!(attempts.may_try(ANN), Ok(()));
        assert_eq!(delays(&attempts, 10), [0; 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_of_other_clients_and_of_trusted_proxies_are_compared_in_a_flood() {
        let config = "version: 1\nsubjects: { trusted_proxies: [192.0.2.7/32] }\nrules:\n\
                      - { id: api, algorithm: fixed-window, limit: 1, window: 1d }\n";
        let config = tollgate_config::parse("x.yaml", config, &|_| None).unwrap();
        let attempts = Attempts::new(&config.subjects);
        let proxy = Some(IpAddr::from([192, 0, 2, 7]));
        assert_eq!(guess(&attempts, proxy, 1).await, 2000);
        fill(&attempts, ANN);
        for other in [proxy, None, Some(IpAddr::from([192, 0, 2, 2]))] {
            assert_eq!(attempts.may_try(other), Ok(()));
        }
        let longest = (0..100).map(|_| attempts.delay(proxy)).max();
        assert_eq!(longest, Some(MAX_DELAY));
    }

    #[tokio::test(start_paused = true)]
    async fn table_of_clients_is_bounded_and_forgets_those_with_free_turns() {
        let attempts = Attempts::default();
        let peer = |number: u32| Some(IpAddr::from(number.to_be_bytes()));
        let known = || attempts.turns.lock().free_at.len();
        for number in 0..3 * u32::try_from(CLIENTS).unwrap() {
            attempts.delay(peer(number));
        }
        // All others share one queue.
        assert_eq!(known(), CLIENTS + 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        attempts.delay(peer(u32::MAX));
        assert_eq!(known(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn client_is_not_slowed_by_others() {
        let attempts = Attempts::default();
        delays(&attempts, 1000);
        let others = (2..=9).map(|last| attempts.delay(Some(IpAddr::from([192, 0, 2, last]))));
        assert_eq!(others.sum::<Duration>(), Duration::ZERO);
    }
}
