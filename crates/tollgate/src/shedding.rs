//! Sheds requests to a service that is saturated: counts the requests in flight, and denies those that would only
//! wait.
//!
//! The limit is [`algorithms::adaptive`](tollgate_core::adaptive). Here are the clock, the count and the classes.
//! The gateway has a [`Shedder`] for each upstream, and the Tower layer one for each service.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::adaptive::{Adaptive, Ended, Numbers, check_reserve, part};
use tollgate_core::{ParamError, Span, Time};
use tollgate_store::{Clock, MonotonicClock};

/// A request is told that the service is nearly saturated if it uses this percentage of what its class may use.
pub(crate) const NEARLY: u64 = 80;

/// Admits requests to one service, up to a limit that follows the latency of the service.
///
/// ```
/// use tollgate::{Shedder, algorithms::adaptive::Numbers};
///
/// // Three classes, the most important first. The last one may use 70% of the limit.
/// let shedder = Shedder::new(Numbers { start: 10, ..Numbers::default() }, 3, 30)?;
/// let low: Vec<_> = (0..7).map(|_| shedder.try_start(2).unwrap()).collect();
/// assert!(shedder.try_start(2).is_err());
/// let high = shedder.try_start(0).unwrap();
/// high.answered(false);
/// assert_eq!(shedder.in_flight(), 7);
/// # Ok::<(), tollgate::ParamError>(())
/// ```
pub struct Shedder {
    adaptive: Mutex<Adaptive>,
    clock: Box<dyn Clock>,
    in_flight: AtomicU64,
    /// The limits of `adaptive`, to be read without the lock.
    limit: AtomicU64,
    limit_of_the_first: AtomicU64,
    reserve: u64,
    /// How many requests of each class were denied.
    denied: Box<[AtomicU64]>,
    degraded: AtomicU64,
}

/// A request in flight. It counts until it is dropped. A request that is dropped before it was answered has been given
/// up by its client: if that took longer than a slow answer, the limit shrinks as for a slow answer.
#[derive(Debug)]
#[must_use = "a request counts only while this exists"]
pub struct InFlight {
    shedder: Arc<Shedder>,
    started: Time,
    in_flight: u64,
    is_degraded: bool,
    has_ended: bool,
}

/// A request was denied, because the service is saturated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the service is saturated, and this request would only wait; try again later")]
pub struct Saturated {
    /// When to try again: about when the requests in flight have been answered.
    pub retry_after: Span,
}

impl fmt::Debug for Shedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shedder")
            .field("limit", &self.limit())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Shedder {
    /// Makes a shedder for requests of this many classes. The last class may not use `reserve` percent of the limit, at
    /// most 50; the first may use all of it. The bounds of the classes between are spaced evenly.
    ///
    /// # Errors
    /// If the numbers or the reserve are out of range.
    pub fn new(numbers: Numbers, classes: usize, reserve: u64) -> Result<Arc<Shedder>, ParamError> {
        Shedder::with_clock(numbers, classes, reserve, MonotonicClock::new())
    }

    /// Like [`new`](Self::new), with another clock. The clock must not be set back.
    ///
    /// # Errors
    /// If the numbers or the reserve are out of range.
    pub fn with_clock(
        numbers: Numbers,
        classes: usize,
        reserve: u64,
        clock: impl Clock + 'static,
    ) -> Result<Arc<Shedder>, ParamError> {
        let adaptive = Adaptive::new(numbers)?;
        let reserve = check_reserve(reserve)?;
        Ok(Arc::new(Shedder {
            clock: Box::new(clock),
            in_flight: AtomicU64::new(0),
            limit: AtomicU64::new(adaptive.limit()),
            limit_of_the_first: AtomicU64::new(adaptive.limit_of_the_first()),
            adaptive: Mutex::new(adaptive),
            reserve,
            denied: (0..classes.max(1)).map(|_| AtomicU64::new(0)).collect(),
            degraded: AtomicU64::new(0),
        }))
    }

    /// Admits a request of this class, 0 for the most important one, if that much is not in flight yet.
    ///
    /// # Errors
    /// If the request would only wait.
    pub fn try_start(self: &Arc<Shedder>, class: usize) -> Result<InFlight, Saturated> {
        let class = class.min(self.denied.len() - 1);
        let may = self.may_use(class);
        let order = Ordering::Relaxed;
        let one_more = |in_flight: u64| (in_flight < may).then_some(in_flight + 1);
        let Ok(before) = self.in_flight.fetch_update(order, order, one_more) else {
            self.denied[class].fetch_add(1, order);
            let latency = self.adaptive.lock().latency();
            let retry_after = latency.unwrap_or(Span::SECOND).max(Span::SECOND);
            return Err(Saturated { retry_after });
        };
        let is_degraded = (before + 1) * 100 > may * NEARLY;
        if is_degraded {
            self.degraded.fetch_add(1, order);
        }
        Ok(InFlight {
            shedder: Arc::clone(self),
            started: self.clock.now(),
            in_flight: before + 1,
            is_degraded,
            has_ended: false,
        })
    }

    /// Returns whether a request of this class would be admitted now. Nothing is counted.
    #[must_use]
    pub fn has_room(&self, class: usize) -> bool {
        self.in_flight() < self.may_use(class.min(self.denied.len() - 1))
    }

    /// Returns how many requests may be in flight when the next one is of this class.
    fn may_use(&self, class: usize) -> u64 {
        match (class, self.denied.len()) {
            // The other classes are denied first. If there are none, a probe has to deny these.
            (0, 2..) => self.limit_of_the_first.load(Ordering::Relaxed),
            (_, classes) => part(self.limit(), class, classes, self.reserve),
        }
    }

    /// Returns how many requests may be in flight.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns how many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the mean latency of the last window, and the latency without load, as far as they are known.
    #[must_use]
    pub fn latencies(&self) -> (Option<Span>, Option<Span>) {
        let adaptive = self.adaptive.lock();
        (adaptive.latency(), adaptive.unloaded())
    }

    /// Returns how many requests of each class were denied.
    pub fn denied(&self) -> impl Iterator<Item = u64> {
        self.denied.iter().map(|it| it.load(Ordering::Relaxed))
    }

    /// Returns how many requests were admitted when nearly all of their part was used.
    #[must_use]
    pub fn degraded(&self) -> u64 {
        self.degraded.load(Ordering::Relaxed)
    }
}

impl InFlight {
    /// Returns whether nearly all of what this request may use is in use. A service that is told so can give a
    /// cheaper answer.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// Ends a request that the service has answered, or failed to answer.
    pub fn answered(mut self, failed: bool) {
        self.end(self.started, failed, false);
    }

    /// Ends a request whose last part was sent this long ago. The time before does not count: the client, and not
    /// the service, may have been slow.
    pub fn answered_after(mut self, span: Span, failed: bool) {
        self.end(self.sent(span), failed, false);
    }

    /// Ends a request that its client has given up, and whose last part was sent this long ago. Dropping the request
    /// does the same if all of it was sent at the start.
    pub fn given_up_after(mut self, span: Span) {
        self.end(self.sent(span), false, true);
    }

    /// Ends a request that says nothing about the service, such as one that was never sent.
    pub fn cancel(mut self) {
        self.has_ended = true;
    }

    /// Returns when the last part of the request was sent.
    fn sent(&self, ago: Span) -> Time {
        (self.shedder.clock.now() - ago).max(self.started)
    }

    fn end(&mut self, started: Time, failed: bool, abandoned: bool) {
        self.has_ended = true;
        let shedder = &self.shedder;
        let ended = Ended {
            started,
            answered: shedder.clock.now(),
            in_flight: self.in_flight,
            failed,
            abandoned,
        };
        let mut adaptive = shedder.adaptive.lock();
        if adaptive.record(ended) {
            let order = Ordering::Relaxed;
            shedder.limit.store(adaptive.limit(), order);
            let first = adaptive.limit_of_the_first();
            shedder.limit_of_the_first.store(first, order);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(self.started, false, true);
        }
        self.shedder.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_store::ManualClock;

    use super::*;

    fn shedder(start: u64, classes: usize) -> (Arc<Shedder>, ManualClock) {
        let clock = ManualClock::at(Time::from_micros(1_000_000));
        let numbers = Numbers {
            start,
            ..Numbers::default()
        };
        let shedder = Shedder::with_clock(numbers, classes, 30, clock.clone());
        (shedder.unwrap(), clock)
    }

    /// Passes requests at this concurrency and latency, until the limit moves or some time has passed.
    fn pass(shedder: &Arc<Shedder>, clock: &ManualClock, at_once: usize, latency: Span) {
        let before = shedder.limit();
        for _ in 0..100 {
            let started: Vec<_> = (0..at_once).map(|_| shedder.try_start(0)).collect();
            clock.advance(latency);
            for request in started.into_iter().flatten() {
                request.answered(false);
            }
            if shedder.limit() != before {
                return;
            }
        }
    }

    #[test]
    fn least_important_requests_are_denied_first() {
        let (shedder, _) = shedder(10, 3);
        let mut held = Vec::new();
        let mut admitted = [0; 3];
        for class in [2, 1, 0] {
            while let Ok(request) = shedder.try_start(class) {
                held.push(request);
                admitted[class] += 1;
            }
        }
        assert_eq!(admitted, [1, 2, 7]);
        assert_eq!(shedder.denied().collect::<Vec<_>>(), [1, 1, 1]);
        held.truncate(7);
        assert!(shedder.try_start(2).is_err());
        assert!(shedder.try_start(1).is_ok());
    }

    #[test]
    fn request_near_the_limit_of_its_class_is_told() {
        let (shedder, _) = shedder(100, 2);
        // The second class may use 70.
        let held: Vec<_> = (0..70).map(|_| shedder.try_start(1).unwrap()).collect();
        assert!(held[..56].iter().all(|it| !it.is_degraded()));
        assert!(held[56..].iter().all(InFlight::is_degraded));
        assert_eq!(shedder.degraded(), 14);
        let (one, two) = (shedder.try_start(0).unwrap(), shedder.try_start(0).unwrap());
        assert!(!one.is_degraded() && !two.is_degraded());
    }

    #[test]
    fn limit_follows_the_latency() {
        let (shedder, clock) = shedder(20, 1);
        pass(&shedder, &clock, 20, Span::from_millis(50));
        assert_eq!(shedder.limit(), 40);
        pass(&shedder, &clock, 40, Span::from_millis(200));
        assert_eq!(shedder.limit(), 20);
        assert_eq!(shedder.in_flight(), 0);
        let (latency, unloaded) = shedder.latencies();
        assert_eq!(latency, Some(Span::from_millis(200)));
        assert_eq!(unloaded, Some(Span::from_millis(50)));
    }

    #[test]
    fn retry_time_is_the_latency_and_at_least_a_second() {
        let (shedder, clock) = shedder(1, 1);
        let refused = |shedder: &Arc<Shedder>| {
            let held: Vec<_> = std::iter::from_fn(|| shedder.try_start(0).ok()).collect();
            let retry = shedder.try_start(0).unwrap_err().retry_after;
            drop(held);
            retry
        };
        assert_eq!(refused(&shedder), Span::SECOND);
        pass(&shedder, &clock, 5, Span::from_millis(2_500));
        assert_eq!(refused(&shedder), Span::from_millis(2_500));
    }

    #[test]
    fn time_of_a_slow_client_does_not_count() {
        let (shedder, clock) = shedder(5, 1);
        for _ in 0..40 {
            let request = shedder.try_start(0).unwrap();
            clock.advance(Span::from_secs(3));
            request.answered_after(Span::from_millis(20), false);
        }
        let (latency, _) = shedder.latencies();
        assert_eq!(latency, Some(Span::from_millis(20)));
    }

    #[test]
    fn request_that_is_dropped_counts_no_more_and_teaches_nothing() {
        let (shedder, _) = shedder(5, 1);
        for _ in 0..1000 {
            drop(shedder.try_start(0).unwrap());
        }
        assert_eq!((shedder.in_flight(), shedder.limit()), (0, 5));
        assert_eq!(shedder.latencies(), (None, None));
    }

    #[test]
    fn requests_that_clients_give_up_shrink_the_limit() {
        let (shedder, clock) = shedder(20, 1);
        pass(&shedder, &clock, 20, Span::from_millis(50));
        assert_eq!(shedder.limit(), 40);
        for _ in 0..4 {
            let started: Vec<_> = (0..40).map(|_| shedder.try_start(0)).collect();
            clock.advance(Span::from_secs(2));
            drop(started);
        }
        assert!(shedder.limit() <= 20, "{}", shedder.limit());
        assert_eq!(shedder.in_flight(), 0);
        let (_, unloaded) = shedder.latencies();
        assert_eq!(unloaded, Some(Span::from_millis(50)));
        // Neither a slow client nor a request that was never sent counts.
        let before = shedder.limit();
        for _ in 0..200 {
            let (slow, unsent) = (shedder.try_start(0).unwrap(), shedder.try_start(0).unwrap());
            clock.advance(Span::from_secs(2));
            slow.given_up_after(Span::from_millis(10));
            unsent.cancel();
        }
        assert_eq!(shedder.limit(), before);
    }

    #[test]
    fn reserve_of_more_than_half_is_rejected() {
        assert!(Shedder::new(Numbers::default(), 2, 50).is_ok());
        let wrong = Shedder::new(Numbers::default(), 2, 51).unwrap_err();
        assert_eq!(wrong.field, "reserve");
    }

    #[test]
    fn threads_never_exceed_the_limit() {
        let numbers = Numbers {
            min: 7,
            max: 7,
            ..Numbers::default()
        };
        let shedder = Shedder::new(numbers, 1, 30).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if let Ok(request) = shedder.try_start(0) {
                            assert!(shedder.in_flight() <= 7);
                            request.answered(false);
                        }
                    }
                });
            }
        });
        assert_eq!(shedder.in_flight(), 0);
    }
}
