//! A circuit breaker. A failing server gets no requests for a while. So a decision takes microseconds
//! instead of a timeout. When the server recovers, it first gets a few probes, and then the full load.
//!
//! * **Closed**: all requests pass. The breaker opens after [`BreakerOptions::consecutive_failures`]
//!   failures in a row.
//! * **Open**: no request passes for [`BreakerOptions::timeout_duration`].
//! * **Half open**: [`BreakerOptions::half_open_max_requests`] probes pass. If all succeed, the breaker
//!   closes. If one fails, the breaker opens again for the whole [`BreakerOptions::timeout_duration`].
//!
//! When a connection breaks, many requests fail at once. Failures within [`BURST`] of the first failure
//! count as one, so that a single lost connection does not open the breaker.
//!
//! The breaker does not read a clock: callers pass `now`, which must be monotonic. A store with several
//! servers has one breaker for each server.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failures closer together than this count as one.
pub const BURST: Duration = Duration::from_millis(5);

/// When to stop asking a failing server, and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// How many failures in a row open the breaker.
    pub consecutive_failures: u32,
    /// How long the breaker stays open.
    pub timeout_duration: Duration,
    /// How many probes pass while the breaker is half open. All of them must succeed.
    pub half_open_max_requests: u32,
}

impl Default for BreakerOptions {
    fn default() -> BreakerOptions {
        BreakerOptions {
            consecutive_failures: 5,
            timeout_duration: Duration::from_secs(30),
            half_open_max_requests: 3,
        }
    }
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All requests pass.
    Closed,
    /// No request passes.
    Open,
    /// A few requests pass, to see whether the server is back.
    HalfOpen,
}

impl BreakerState {
    /// Returns the name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

/// The breaker of one server. See the [module](self).
#[derive(Debug)]
pub struct Breaker {
    options: BreakerOptions,
    /// Every request reads this flag. So a request needs no lock while the breaker is closed.
    is_closed: AtomicBool,
    failures: AtomicU32,
    rest: Mutex<Rest>,
}

/// The fields that only failures and probes read and write.
#[derive(Debug, Default)]
struct Rest {
    last_failure: Option<Instant>,
    /// The instant until which the breaker is open; `None` if probes may pass at once.
    open_until: Option<Instant>,
    probes: u32,
    succeeded_probes: u32,
    /// Whether a probe has passed since the breaker opened.
    is_probed: bool,
}

/// Allows one call to the server. Report the result with [`Permit::succeeded`] or [`Permit::failed`]. If a
/// permit is dropped without a report, another probe may take its place.
#[must_use]
#[derive(Debug)]
pub struct Permit<'b> {
    breaker: &'b Breaker,
    is_probe: bool,
    is_first_probe: bool,
    is_reported: bool,
}

impl Breaker {
    /// Returns a closed breaker.
    #[must_use]
    pub fn new(options: BreakerOptions) -> Breaker {
        Breaker {
            options,
            is_closed: AtomicBool::new(true),
            failures: AtomicU32::new(0),
            rest: Mutex::default(),
        }
    }

    /// Returns a permit if the server may be called now.
    pub fn permit(&self, now: Instant) -> Option<Permit<'_>> {
        let is_probe = !self.is_closed.load(Ordering::Acquire);
        let mut is_first_probe = false;
        if is_probe {
            let mut rest = self.rest.lock();
            let is_open = rest.open_until.is_some_and(|until| now < until);
            if is_open || rest.probes >= self.options.half_open_max_requests {
                return None;
            }
            rest.probes += 1;
            is_first_probe = !std::mem::replace(&mut rest.is_probed, true);
        }
        Some(Permit {
            breaker: self,
            is_probe,
            is_first_probe,
            is_reported: false,
        })
    }

    /// Returns the state at `now`.
    #[must_use]
    pub fn state(&self, now: Instant) -> BreakerState {
        if self.is_closed.load(Ordering::Acquire) {
            return BreakerState::Closed;
        }
        match self.rest.lock().open_until {
            Some(until) if now < until => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        }
    }

    /// Makes an open breaker half open. Call this when the server is probably back.
    pub fn retry_now(&self) {
        self.rest.lock().start_probing(None);
    }
}

impl Rest {
    fn start_probing(&mut self, open_until: Option<Instant>) {
        self.open_until = open_until;
        self.probes = 0;
        self.succeeded_probes = 0;
    }
}

impl Permit<'_> {
    /// Returns whether this call is the first one since the breaker opened: the breaker is half open now.
    #[must_use]
    pub fn is_first_probe(&self) -> bool {
        self.is_first_probe
    }

    /// Reports that the server answered. Returns whether this has closed the breaker.
    pub fn succeeded(mut self) -> bool {
        self.is_reported = true;
        let breaker = self.breaker;
        if self.is_probe {
            let mut rest = breaker.rest.lock();
            rest.succeeded_probes += 1;
            if rest.succeeded_probes >= breaker.options.half_open_max_requests {
                breaker.failures.store(0, Ordering::Release);
                return !breaker.is_closed.swap(true, Ordering::AcqRel);
            }
        } else if breaker.failures.load(Ordering::Relaxed) != 0 {
            breaker.failures.store(0, Ordering::Release);
        }
        false
    }

    /// Reports that the server did not answer. Returns whether this has opened the breaker.
    pub fn failed(mut self, now: Instant) -> bool {
        self.is_reported = true;
        let breaker = self.breaker;
        let mut rest = breaker.rest.lock();
        let is_closed = breaker.is_closed.load(Ordering::Acquire);
        let opens = if self.is_probe {
            !is_closed
        } else {
            let last = rest.last_failure;
            if last.is_some_and(|last| now.saturating_duration_since(last) < BURST) {
                return false;
            }
            rest.last_failure = Some(now);
            let failures = breaker.failures.fetch_add(1, Ordering::AcqRel) + 1;
            // A late failure of a request that passed before the breaker opened does not keep it open longer.
            failures >= breaker.options.consecutive_failures && is_closed
        };
        if !opens {
            return false;
        }
        // Of several probes that fail, the first opens the breaker.
        let was_open = !is_closed && rest.open_until.is_some_and(|until| now < until);
        rest.start_probing(Some(now + breaker.options.timeout_duration));
        rest.is_probed = false;
        breaker.is_closed.store(false, Ordering::Release);
        !was_open
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.is_probe && !self.is_reported {
            let mut rest = self.breaker.rest.lock();
            rest.probes = rest.probes.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_FOR: Duration = Duration::from_secs(30);

    /// A breaker under test, and the current time.
    struct Bench {
        breaker: Breaker,
        now: Instant,
    }

    impl Bench {
        /// Returns a breaker that opens after three failures, and closes after two successful probes.
        #[allow(
            clippy::disallowed_methods,
            reason = "any instant will do: only differences count"
        )]
        fn new() -> Bench {
            Bench {
                breaker: Breaker::new(BreakerOptions {
                    consecutive_failures: 3,
                    timeout_duration: OPEN_FOR,
                    half_open_max_requests: 2,
                }),
                now: Instant::now(),
            }
        }

        fn opened() -> Bench {
            let mut bench = Bench::new();
            bench.fail(3);
            bench
        }

        fn half_open() -> Bench {
            let mut bench = Bench::opened();
            bench.now += OPEN_FOR;
            bench
        }

        fn permit(&self) -> Option<Permit<'_>> {
            self.breaker.permit(self.now)
        }

        fn state(&self) -> BreakerState {
            self.breaker.state(self.now)
        }

        /// Fails `times` requests, with more than [`BURST`] between them, so that each failure counts.
        fn fail(&mut self, times: usize) {
            for _ in 0..times {
                self.now += BURST;
                self.permit().unwrap().failed(self.now);
            }
        }
    }

    #[test]
    fn consecutive_failures_open_it() {
        let mut bench = Bench::new();
        bench.fail(2);
        assert_eq!(bench.state(), BreakerState::Closed);
        bench.fail(1);
        assert_eq!(bench.state(), BreakerState::Open);
        assert!(bench.permit().is_none());
    }

    #[test]
    fn a_success_resets_the_failures() {
        let mut bench = Bench::new();
        bench.fail(2);
        bench.permit().unwrap().succeeded();
        bench.fail(2);
        assert_eq!(bench.state(), BreakerState::Closed);
        bench.fail(1);
        assert_eq!(bench.state(), BreakerState::Open);
    }

    #[test]
    fn failures_in_a_burst_count_as_one() {
        let bench = Bench::new();
        let permits: Vec<_> = (0..64).map(|_| bench.permit().unwrap()).collect();
        for permit in permits {
            permit.failed(bench.now);
        }
        assert_eq!(bench.state(), BreakerState::Closed);
    }

    #[test]
    fn probes_close_it_when_all_succeed() {
        let bench = Bench::half_open();
        assert_eq!(bench.state(), BreakerState::HalfOpen);
        let (one, two) = (bench.permit().unwrap(), bench.permit().unwrap());
        assert!(bench.permit().is_none(), "only two probes pass");
        one.succeeded();
        assert_eq!(bench.state(), BreakerState::HalfOpen);
        two.succeeded();
        assert_eq!(bench.state(), BreakerState::Closed);
    }

    #[test]
    fn a_failed_probe_opens_it_for_the_whole_time() {
        let mut bench = Bench::half_open();
        bench.permit().unwrap().failed(bench.now);
        bench.now += OPEN_FOR - Duration::from_secs(1);
        assert!(bench.permit().is_none());
        bench.now += Duration::from_secs(1);
        assert!(bench.permit().is_some());
    }

    #[test]
    fn each_transition_is_reported_once() {
        let mut bench = Bench::new();
        let mut opened = 0;
        let early: Vec<_> = (0..5)
            .filter_map(|_| bench.breaker.permit(bench.now))
            .collect();
        let mut now = bench.now;
        for permit in early {
            now += BURST;
            opened += u32::from(permit.failed(now));
        }
        assert_eq!(opened, 1);
        bench.now = now + OPEN_FOR;
        let (one, two) = (bench.permit().unwrap(), bench.permit().unwrap());
        assert!(one.is_first_probe() && !two.is_first_probe());
        // A retry does not make the breaker half open again.
        drop(one);
        bench.breaker.retry_now();
        let one = bench.permit().unwrap();
        assert!(!one.is_first_probe());
        assert!(!one.succeeded());
        assert!(two.succeeded(), "the second success closes it");
        assert!(!bench.permit().unwrap().succeeded());
    }

    #[test]
    fn failed_probes_are_reported_as_one_opening() {
        let bench = Bench::half_open();
        let (one, two) = (bench.permit().unwrap(), bench.permit().unwrap());
        assert!(one.failed(bench.now));
        assert!(!two.failed(bench.now), "the breaker is open already");
        assert_eq!(bench.state(), BreakerState::Open);
    }

    #[test]
    fn a_dropped_probe_makes_room_for_another() {
        let bench = Bench::half_open();
        drop((bench.permit(), bench.permit()));
        assert!(bench.permit().is_some());
    }

    #[test]
    fn failures_of_earlier_requests_do_not_prolong_it() {
        let mut bench = Bench::new();
        let (breaker, mut now) = (&bench.breaker, bench.now);
        let mut early: Vec<_> = (0..5).filter_map(|_| breaker.permit(now)).collect();
        for permit in early.drain(..3) {
            now += BURST;
            permit.failed(now);
        }
        for permit in early {
            permit.failed(now + Duration::from_secs(20));
        }
        bench.now = now + OPEN_FOR;
        assert_eq!(bench.state(), BreakerState::HalfOpen);
    }

    #[test]
    fn retry_now_lets_probes_pass_at_once_and_leaves_a_closed_breaker_closed() {
        for (bench, state) in [
            (Bench::opened(), BreakerState::HalfOpen),
            (Bench::new(), BreakerState::Closed),
        ] {
            bench.breaker.retry_now();
            assert_eq!(bench.state(), state);
            assert!(bench.permit().is_some());
        }
    }
}
