//! Adaptive concurrency: how many requests a service gets at the same time, found from its latency.
//!
//! A service that is saturated queues requests. Its throughput stays, and its latency grows with the number of
//! requests in flight. So the latency tells when more requests would only wait. This file watches the latency of
//! finished requests, and moves a limit on the requests in flight. Nothing here counts requests, waits or
//! denies: the caller does.
//!
//! # How it works
//! Requests that start within 100 ms make a window, or the next 32 requests if that takes longer. A window ends
//! three latencies later, so that its slow requests count as well. Then:
//!
//! * **Slow**: the mean latency is above the target. The limit shrinks in proportion, to `limit × target / latency`,
//!   but to 9/10 at most and 1/2 at least. If more than a tenth of the requests failed, it shrinks to 3/4.
//! * **Fast, and in use**: at least half of the limit was in flight. The limit grows by its square root. Before the
//!   first slow window, it doubles.
//! * Otherwise the limit stays.
//!
//! Only requests that started after the last change count, and only those that the limit would have admitted. The
//! latency of an earlier request says what the previous limit did: one queue would shrink the limit many times.
//!
//! A request that its client gives up counts if it was slow already: its latency would have been at least this long.
//! If more than a tenth of a window was given up, the window says nothing about the unloaded latency.
//!
//! The target is a span, or a multiple of the *unloaded latency*, but not below 10 ms. The unloaded latency is the
//! latency without a queue. While there is always a queue, it cannot be seen. So it is measured:
//!
//! * The first window gives the first value. A faster window moves it down by a quarter of the difference.
//! * **Probe**: while the limit is in use, and the latency is an eighth above the unloaded latency, the limit shrinks
//!   for one window every 15 s, so far that no request waits. The value moves half-way to the latency of that window.
//! * **A slower service**: if the limit was halved, or is `min`, and the latency did not fall by a quarter, then there
//!   is no queue. The service itself has become slower, and its latency is the new value.
//!
//! # Classes
//! Requests of less important classes may use less of the limit: see [`part`]. The first class sees a smaller limit
//! one window later ([`Adaptive::limit_of_the_first`]). So a shrink and a probe take room from the other classes
//! first.
//!
//! # Promise
//! The limit is always between `min` and `max`. In a window it shrinks at most to half, except for a probe, and grows
//! at most by its square root, except before the first slow window. A limit that is not in use does not grow. The
//! state is a few numbers, whatever the load. Time that goes backwards begins a new window.
//!
//! Under steady overload of a service with a queue, the latency stays near the target, because
//! `latency × throughput = requests in flight`. `tests/adaptive.rs` proves this on virtual time, and
//! `examples/shedding.rs` compares it with other algorithms.

use crate::ParamError;
use crate::param::{ParamProblem, check_span};
use crate::units::{Span, Time};

/// How long requests may start in a window.
const WINDOW: Span = Span::from_millis(100);
/// The requests that a window has at least.
const REQUESTS: u64 = 32;
/// How many latencies a window waits for its requests to end.
const PAUSE: u64 = 3;
/// The time between two probes.
const PROBE_EVERY: Span = Span::from_secs(15);
/// How long the first class may exceed a limit that has shrunk, or the latency if that is longer.
const OVERHANG: Span = Span::SECOND;
/// One request counts as at most this many targets, so that one very slow request is not a slow window.
const MOST_TARGETS: u64 = 4;
/// The largest limit.
pub const MAX_LIMIT: u64 = 1_000_000;
/// The most percent of the limit that the last class may not use. With more, requests of this class alone could not
/// fill half of the limit, and it would never grow for them.
pub const MAX_RESERVE: u64 = 50;
/// The least and the most percent of the unloaded latency that count as slow.
pub const TIMES: std::ops::RangeInclusive<u64> = 110..=1000;
/// A latency up to this one is not slow, whatever the unloaded latency is: it may be noise of this machine.
const NEVER_SLOW: u64 = 10_000;
/// The longest latency that counts. Longer ones count as this, so that sums stay exact.
const LONGEST: u64 = Span::HOUR.as_micros();

/// Which latency is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slow {
    /// Above this percentage of the unloaded latency, one of [`TIMES`], and above 10 ms.
    Percent(u64),
    /// Above this span.
    Above(Span),
}

/// The numbers of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// The least limit; at least 1.
    pub min: u64,
    /// The largest limit; at most [`MAX_LIMIT`].
    pub max: u64,
    /// The limit at the start, within `min` and `max`.
    pub start: u64,
    /// Which latency is slow.
    pub slow: Slow,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When it was sent to the service.
    pub started: Time,
    /// When the service answered.
    pub answered: Time,
    /// How many requests were in flight when it started, itself included.
    pub in_flight: u64,
    /// Whether the service failed to answer it, or said that it is overloaded.
    pub failed: bool,
    /// Whether the client gave up, so that the service would have answered later than `answered`.
    pub abandoned: bool,
}

/// A limit that follows the latency of a service.
#[derive(Clone, Debug)]
pub struct Adaptive {
    numbers: Numbers,
    limit: u64,
    /// The limit of the window before, without a probe.
    previous: u64,
    /// Requests that started earlier do not count.
    changed_at: Time,
    window: Window,
    /// The latency of the last window.
    latency: Option<u64>,
    /// The latency without a queue, in microseconds.
    unloaded: Option<u64>,
    /// Whether no window was slow so far.
    is_starting: bool,
    /// The latency of the last few windows.
    smooth: u64,
    /// Since when the limit shrinks.
    fall: Option<Fall>,
    /// The limit before the probe that runs.
    probed: Option<u64>,
    next_probe: Time,
}

/// A limit that has shrunk.
#[derive(Clone, Copy, Debug)]
struct Fall {
    /// The limit before.
    from: u64,
    /// The highest latency of a window since then.
    highest: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: u64,
    count: u64,
}

impl Mean {
    fn with(self, value: u64) -> Mean {
        Mean {
            sum: self.sum + value,
            count: self.count + 1,
        }
    }

    fn mean(self) -> u64 {
        self.sum / self.count.max(1)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// When the first request of the window started.
    began: Option<Time>,
    failed: u64,
    /// How many of `answered` were given up. Their latency is at least this one.
    abandoned: u64,
    /// The latencies of answered requests, in microseconds.
    answered: Mean,
    /// The most requests in flight.
    peak: u64,
}

impl Window {
    fn requests(&self) -> u64 {
        self.answered.count + self.failed
    }
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers {
            min: 5,
            max: 1000,
            start: 20,
            slow: Slow::Percent(200),
        }
    }
}

impl Numbers {
    /// Checks the numbers.
    ///
    /// # Errors
    /// If `min` is 0 or above `max`, `max` is too large, or the slow latency is out of range.
    pub fn checked(self) -> Result<Numbers, ParamError> {
        if !(1..=MAX_LIMIT).contains(&self.max) {
            return Err(ParamProblem::OutOfRange(self.max, 1..=MAX_LIMIT).of("max"));
        }
        if !(1..=self.max).contains(&self.min) {
            return Err(ParamProblem::OutOfRange(self.min, 1..=self.max).of("min"));
        }
        match self.slow {
            Slow::Percent(percent) if !TIMES.contains(&percent) => {
                Err(ParamProblem::OutOfRange(percent, TIMES).of("slow"))
            }
            Slow::Above(span) => check_span("slow", span).map(|_| self),
            Slow::Percent(_) => Ok(self),
        }
    }
}

/// Checks the percentage that the last class may not use: see [`part`].
///
/// # Errors
/// If it is above [`MAX_RESERVE`].
pub fn check_reserve(reserve: u64) -> Result<u64, ParamError> {
    match reserve {
        0..=MAX_RESERVE => Ok(reserve),
        _ => Err(ParamProblem::OutOfRange(reserve, 0..=MAX_RESERVE).of("reserve")),
    }
}

impl Adaptive {
    /// Returns a limit for a service that is not known yet.
    ///
    /// # Errors
    /// If the numbers are out of range: see [`Numbers::checked`].
    pub fn new(numbers: Numbers) -> Result<Adaptive, ParamError> {
        let numbers = numbers.checked()?;
        let limit = numbers.start.clamp(numbers.min, numbers.max);
        Ok(Adaptive {
            numbers,
            limit,
            previous: limit,
            changed_at: Time::default(),
            window: Window::default(),
            latency: None,
            unloaded: None,
            is_starting: true,
            smooth: 0,
            fall: None,
            probed: None,
            next_probe: Time::default(),
        })
    }

    /// Returns the numbers.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// Returns how many requests may be in flight.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how many requests may be in flight when the next one is of the first class. A probe does not
    /// shrink this limit, so a probe never denies these requests.
    #[must_use]
    pub fn limit_of_the_first(&self) -> u64 {
        self.limit.max(self.previous)
    }

    /// Returns the mean latency of the last window.
    #[must_use]
    pub fn latency(&self) -> Option<Span> {
        self.latency.map(Span::from_micros)
    }

    /// Returns the latency without a queue, as far as known.
    #[must_use]
    pub fn unloaded(&self) -> Option<Span> {
        self.unloaded.map(Span::from_micros)
    }

    /// Counts a request that has ended, and moves the limit if a window has ended with it. Returns whether the
    /// limit has moved.
    pub fn record(&mut self, ended: Ended) -> bool {
        let now = ended.answered;
        if now < self.changed_at {
            // The clock was set back: windows begin anew.
            self.begin(now);
            self.next_probe = now + PROBE_EVERY;
            return false;
        }
        if ended.started < self.changed_at {
            return false;
        }
        let latency = now.since(ended.started).as_micros();
        if ended.abandoned && self.target().is_none_or(|target| latency <= target) {
            return false;
        }
        if ended.in_flight > self.limit {
            // The first class exceeds the limit. That says nothing about the limit, so it ends soon.
            let patience = OVERHANG.max(Span::from_micros(self.latency.unwrap_or(0)));
            if now.since(self.changed_at) <= patience {
                return false;
            }
            if let Some(limit) = self.probed.take() {
                self.limit = limit;
                self.next_probe = now + PROBE_EVERY;
            }
            self.previous = self.limit;
            self.begin(now);
            return true;
        }
        let window = &mut self.window;
        let began = *window.began.get_or_insert(ended.started);
        let is_full = window.requests() >= REQUESTS;
        if !is_full || ended.started < began + WINDOW {
            window.peak = window.peak.max(ended.in_flight);
            if ended.failed {
                window.failed += 1;
            } else {
                let most = self
                    .unloaded
                    .map_or(LONGEST, |it| MOST_TARGETS * target(self.numbers.slow, it));
                window.answered = window.answered.with(latency.min(most).min(LONGEST));
                window.abandoned += u64::from(ended.abandoned);
            }
        }
        if window.requests() < REQUESTS {
            return false;
        }
        // Without this pause only the quickest requests of the window would count.
        let latency = self.latency.unwrap_or(0).max(window.answered.mean());
        if now < began + WINDOW + Span::from_micros(PAUSE * latency) {
            return false;
        }
        let before = (self.limit, self.limit_of_the_first());
        self.previous = self.probed.unwrap_or(self.limit);
        self.conclude(now);
        self.begin(now);
        before != (self.limit, self.limit_of_the_first())
    }

    fn begin(&mut self, now: Time) {
        self.window = Window::default();
        self.changed_at = now;
    }

    /// Moves the limit at the end of a window.
    fn conclude(&mut self, now: Time) {
        let window = self.window;
        let probed = self.probed.take();
        if window.failed * 10 > window.requests() {
            let limit = probed.unwrap_or(self.limit);
            self.is_starting = false;
            return self.set(limit * 3 / 4);
        }
        let latency = window.answered.mean();
        if window.abandoned * 10 > window.requests()
            && let Some(target) = self.target().filter(|target| latency > *target)
        {
            // The real latency is higher. So the window does not show whether the service itself has become slower.
            self.limit = probed.unwrap_or(self.limit);
            self.fall = None;
            self.latency = Some(latency);
            return self.shrink(target, latency);
        }
        let known = self.latency.map_or(latency, |_| self.smooth);
        self.smooth = (known * 3 + latency) / 4;
        self.latency = Some(latency);
        if let Some(limit) = probed {
            // Half of the old value stays, because a few requests are a rough measure.
            self.unloaded = self.unloaded.map(|known| known.midpoint(latency));
            self.next_probe = now + PROBE_EVERY;
            return self.set(limit);
        }
        let unloaded = match self.unloaded {
            None => {
                self.next_probe = now + PROBE_EVERY;
                latency
            }
            Some(known) if latency < known => known - (known - latency) / 4,
            Some(known) => known,
        };
        self.unloaded = Some(unloaded);
        let target = target(self.numbers.slow, unloaded);
        let is_slow = latency > target;
        let is_relative = matches!(self.numbers.slow, Slow::Percent(_));
        if is_relative && self.has_become_slower(latency, is_slow) {
            return;
        }
        if is_slow {
            return self.shrink(target, latency);
        }
        let is_used = window.peak * 2 >= self.limit;
        let may_queue = latency > unloaded + unloaded / 8 && latency * 2 > target;
        if is_relative && is_used && may_queue && now >= self.next_probe {
            self.probed = Some(self.limit);
            // By Little's law this many requests are being worked on; a quarter less, to be sure that none waits.
            let worked_on = window.peak * unloaded / latency;
            return self.set((worked_on * 3 / 4).min(self.limit));
        }
        if is_used {
            let more = match self.is_starting {
                true => self.limit,
                false => self.limit.isqrt().max(1),
            };
            self.set(self.limit + more);
        }
    }

    /// Compares the latency before and after the limit has shrunk. If it stays, there is no queue: the service itself
    /// has become slower. Returns whether that is so.
    fn has_become_slower(&mut self, latency: u64, is_slow: bool) -> bool {
        let Some(Fall { from, highest }) = self.fall else {
            if is_slow {
                self.fall = Some(Fall {
                    from: self.limit,
                    highest: latency,
                });
            }
            return false;
        };
        if !is_slow {
            // One fast window may be chance.
            if self.smooth * 4 <= highest * 3 || self.limit >= from {
                self.fall = None;
            }
            return false;
        }
        if self.limit * 2 > from && self.limit > self.numbers.min {
            let highest = highest.max(latency);
            self.fall = Some(Fall { from, highest });
            return false;
        }
        // Half of a queue would take half of the time.
        let is_slower = latency * 4 > highest * 3;
        self.fall = (!is_slower).then_some(Fall {
            from: self.limit,
            highest: latency,
        });
        if is_slower {
            self.unloaded = Some(latency);
        }
        is_slower
    }

    /// Shrinks the limit in proportion to the latency.
    fn shrink(&mut self, target: u64, latency: u64) {
        self.is_starting = false;
        let limit = self.limit * target / latency;
        self.set(limit.clamp(self.limit / 2, self.limit * 9 / 10));
    }

    /// Returns the latency above which a window is slow, as far as known.
    fn target(&self) -> Option<u64> {
        match (self.numbers.slow, self.unloaded) {
            (Slow::Percent(_), None) => None,
            (slow, unloaded) => Some(target(slow, unloaded.unwrap_or(0))),
        }
    }

    fn set(&mut self, limit: u64) {
        self.limit = limit.clamp(self.numbers.min, self.numbers.max);
    }
}

/// Returns the latency above which a window is slow, in microseconds.
fn target(slow: Slow, unloaded: u64) -> u64 {
    match slow {
        Slow::Percent(percent) => (unloaded.min(LONGEST) * percent / 100).max(NEVER_SLOW),
        Slow::Above(span) => span.as_micros().min(LONGEST),
    }
}

/// Returns how much of `limit` requests of a class may use. The first of `classes` classes may use all of it, the
/// last all but `reserve` percent, and those between lie evenly. Every class may use at least 1.
///
/// ```
/// use tollgate_core::adaptive::part;
/// let parts = [0, 1, 2].map(|class| part(100, class, 3, 30));
/// assert_eq!(parts, [100, 85, 70]);
/// assert_eq!(part(1, 2, 3, 30), 1);
/// ```
#[must_use]
pub fn part(limit: u64, class: usize, classes: usize, reserve: u64) -> u64 {
    let below = classes.saturating_sub(1).max(1) as u64;
    let class = (class as u64).min(below);
    let reserved = limit.min(MAX_LIMIT * 1000) * reserve.min(100) * class / (100 * below);
    (limit - reserved).max(1)
}
