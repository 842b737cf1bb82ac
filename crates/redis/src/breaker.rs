//! The circuit breaker: a failing server is not asked for a while, so that decisions cost
//! microseconds and not timeouts, and a recovering one is not overrun.
//!
//! A connection that breaks takes many requests with it. Failures that come together are one: it takes
//! several, one after the other, to open the breaker.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::options::BreakerOptions;

/// How far apart two failures have to be to count as two.
const TOGETHER: Duration = Duration::from_millis(5);

/// What a breaker does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All pass.
    Closed,
    /// None passes.
    Open,
    /// A few pass, to see whether the server is back.
    HalfOpen,
}

impl BreakerState {
    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Breaker {
    options: BreakerOptions,
    /// Whether requests pass without further ado.
    closed: AtomicBool,
    failures: AtomicU32,
    created: Instant,
    /// When the last failure was counted, in microseconds since `created`, and one more.
    failed_at: AtomicU64,
    broken: Mutex<Broken>,
}

/// The breaker while it is not closed.
#[derive(Debug)]
struct Broken {
    /// When the next probes may pass.
    until: Option<Instant>,
    /// Probes that have passed since, and those of them that have succeeded.
    passed: u32,
    succeeded: u32,
}

/// The right to ask the server once. To be told how that went.
#[must_use]
#[derive(Debug)]
pub(crate) struct Pass<'b> {
    breaker: &'b Breaker,
    probe: bool,
    told: bool,
}

impl Breaker {
    pub(crate) fn new(options: BreakerOptions) -> Breaker {
        Breaker {
            options,
            closed: AtomicBool::new(true),
            failures: AtomicU32::new(0),
            created: Instant::now(),
            failed_at: AtomicU64::new(0),
            broken: Mutex::new(Broken {
                until: None,
                passed: 0,
                succeeded: 0,
            }),
        }
    }

    /// Whether the server may be asked now.
    pub(crate) fn pass(&self) -> Option<Pass<'_>> {
        let probe = !self.closed.load(Ordering::Acquire);
        if probe && !self.admit_probe() {
            return None;
        }
        Some(Pass {
            breaker: self,
            probe,
            told: false,
        })
    }

    fn admit_probe(&self) -> bool {
        let mut broken = self.broken.lock();
        if broken.until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        if broken.passed >= self.options.half_open_max_requests {
            return false;
        }
        broken.passed += 1;
        true
    }

    pub(crate) fn state(&self) -> BreakerState {
        if self.closed.load(Ordering::Acquire) {
            return BreakerState::Closed;
        }
        match self.broken.lock().until {
            Some(until) if Instant::now() < until => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        }
    }

    /// Lets probes pass now: something has changed.
    pub(crate) fn retry_now(&self) {
        let mut broken = self.broken.lock();
        broken.until = None;
        broken.passed = 0;
        broken.succeeded = 0;
    }

    fn open(&self, broken: &mut Broken) {
        broken.until = Some(Instant::now() + self.options.timeout_duration);
        broken.passed = 0;
        broken.succeeded = 0;
        self.closed.store(false, Ordering::Release);
    }

    fn failed(&self, probe: bool) {
        if probe {
            let mut broken = self.broken.lock();
            if !self.closed.load(Ordering::Acquire) {
                self.open(&mut broken);
            }
        } else if self.is_another_failure()
            && self.failures.fetch_add(1, Ordering::AcqRel) + 1 >= self.options.consecutive_failures
        {
            let mut broken = self.broken.lock();
            // Those that had passed before it opened do not open it again.
            if self.closed.load(Ordering::Acquire) {
                self.open(&mut broken);
            }
        }
    }

    /// Whether the last failure is long enough ago for this one to count.
    fn is_another_failure(&self) -> bool {
        let now = self.created.elapsed().as_micros();
        let now = u64::try_from(now).unwrap_or(u64::MAX).saturating_add(1);
        let last = self.failed_at.load(Ordering::Acquire);
        let apart = last == 0 || u128::from(now.saturating_sub(last)) >= TOGETHER.as_micros();
        // Of several at once, one is the first.
        apart
            && self
                .failed_at
                .compare_exchange(last, now, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    fn succeeded(&self, probe: bool) {
        if !probe {
            if self.failures.load(Ordering::Relaxed) != 0 {
                self.failures.store(0, Ordering::Release);
            }
            return;
        }
        let mut broken = self.broken.lock();
        broken.succeeded += 1;
        if broken.succeeded >= self.options.half_open_max_requests {
            self.failures.store(0, Ordering::Release);
            self.closed.store(true, Ordering::Release);
        }
    }
}

impl Pass<'_> {
    /// The server answered.
    pub(crate) fn succeeded(mut self) {
        self.told = true;
        self.breaker.succeeded(self.probe);
    }

    /// It did not.
    pub(crate) fn failed(mut self) {
        self.told = true;
        self.breaker.failed(self.probe);
    }
}

impl Drop for Pass<'_> {
    /// A probe that nobody waited for says nothing: another may take its place.
    fn drop(&mut self) {
        if self.probe && !self.told {
            let mut broken = self.breaker.broken.lock();
            broken.passed = broken.passed.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(BreakerOptions {
            consecutive_failures: 3,
            timeout_duration: Duration::from_secs(30),
            half_open_max_requests: 2,
        })
    }

    async fn fail(breaker: &Breaker, times: usize) {
        for _ in 0..times {
            breaker.pass().unwrap().failed();
            tokio::time::advance(TOGETHER).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_that_come_together_are_one() {
        let breaker = breaker();
        let passes: Vec<_> = (0..64).map(|_| breaker.pass().unwrap()).collect();
        passes.into_iter().for_each(Pass::failed);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_a_success_between_does_not() {
        let breaker = breaker();
        fail(&breaker, 2).await;
        breaker.pass().unwrap().succeeded();
        fail(&breaker, 2).await;
        assert_eq!(breaker.state(), BreakerState::Closed);
        fail(&breaker, 1).await;
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(breaker.pass().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn after_its_time_a_few_probes_pass_and_close_it_when_all_succeed() {
        let breaker = breaker();
        fail(&breaker, 3).await;
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        let (one, two) = (breaker.pass().unwrap(), breaker.pass().unwrap());
        assert!(breaker.pass().is_none(), "a third may not pass");
        one.succeeded();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        two.succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_probe_opens_it_again_for_the_whole_time() {
        let breaker = breaker();
        fail(&breaker, 3).await;
        tokio::time::advance(Duration::from_secs(30)).await;
        breaker.pass().unwrap().failed();
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(breaker.pass().is_none());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(breaker.pass().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_was_given_up_makes_room_for_another() {
        let breaker = breaker();
        fail(&breaker, 3).await;
        tokio::time::advance(Duration::from_secs(30)).await;
        drop((breaker.pass(), breaker.pass()));
        assert!(breaker.pass().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_requests_that_passed_earlier_do_not_prolong_it() {
        let breaker = breaker();
        let early: Vec<_> = (0..5).map(|_| breaker.pass().unwrap()).collect();
        let mut early = early.into_iter();
        for pass in early.by_ref().take(3) {
            pass.failed();
            tokio::time::advance(TOGETHER).await;
        }
        tokio::time::advance(Duration::from_secs(20)).await;
        early.for_each(Pass::failed);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }
}
