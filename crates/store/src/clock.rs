//! Clocks: the machine's clock, a clock that tests set, and a stopwatch. No other file reads the machine's
//! clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Span, Time};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Time;
}

/// The machine's clock: wall time, read through the processor's cycle counter.
///
/// A `SystemClock` reads the wall clock once a second. In between it counts cycles, which is several
/// times cheaper. Once a second it corrects itself:
///
/// * If the wall clock is ahead, it follows at once.
/// * If the wall clock is behind, it follows by at most half a millisecond a second. So small corrections
///   of the host's clock do not make time go backwards noticeably.
/// * If the wall clock is more than a minute behind, it follows at once. Limits refill nothing until the
///   clock has caught up. But a clock that is wrong by an hour for weeks would be worse.
#[derive(Debug)]
pub struct SystemClock {
    cycles: quanta::Clock,
    start_cycles: u64,
    /// The wall time at the start in microseconds, including all corrections since then.
    start_micros: AtomicU64,
    /// The elapsed microseconds at which to read the wall clock again.
    next_look: AtomicU64,
}

const LOOK_EVERY: u64 = Span::SECOND.as_micros();
const STEP_BACK: u64 = 500;
const FAR_BACK: u64 = Span::MINUTE.as_micros();

impl SystemClock {
    /// Returns a clock set to the machine's wall time.
    #[must_use]
    pub fn new() -> SystemClock {
        let cycles = quanta::Clock::new();
        SystemClock {
            start_cycles: cycles.raw(),
            start_micros: AtomicU64::new(wall_micros()),
            cycles,
            next_look: AtomicU64::new(LOOK_EVERY),
        }
    }

    #[cold]
    fn look(&self, elapsed: u64, due: u64) {
        let (next, relaxed) = (elapsed + LOOK_EVERY, Ordering::Relaxed);
        let claim = self.next_look.compare_exchange(due, next, relaxed, relaxed);
        if claim.is_ok() {
            let wanted = wall_micros().saturating_sub(elapsed);
            let current = self.start_micros.load(relaxed);
            let start = match current.saturating_sub(wanted) {
                far if far > FAR_BACK => wanted,
                _ => wanted.max(current.saturating_sub(STEP_BACK)),
            };
            self.start_micros.store(start, relaxed);
        }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Time {
        let cycles = self.cycles.raw();
        let elapsed = self.cycles.delta_as_nanos(self.start_cycles, cycles) / 1000;
        let due = self.next_look.load(Ordering::Relaxed);
        if elapsed >= due {
            self.look(elapsed, due);
        }
        let start = self.start_micros.load(Ordering::Relaxed);
        Time::from_micros(start.saturating_add(elapsed))
    }
}

/// A clock that starts at zero, never goes back, and continues while the process is stopped. It has no relation to
/// the wall clock. Use it for spans that must not become longer when the wall clock is set.
#[derive(Clone, Debug)]
pub struct MonotonicClock {
    cycles: quanta::Clock,
    start_cycles: u64,
}

impl MonotonicClock {
    /// Returns a clock that shows zero.
    #[must_use]
    pub fn new() -> MonotonicClock {
        let cycles = quanta::Clock::new();
        MonotonicClock {
            start_cycles: cycles.raw(),
            cycles,
        }
    }
}

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Time {
        let nanos = self
            .cycles
            .delta_as_nanos(self.start_cycles, self.cycles.raw());
        Time::from_micros(nanos / 1000)
    }
}

/// Measures how long something takes, for a few nanoseconds a reading.
///
/// A [`Clock`] reads wall time, which may jump. A stopwatch reads the processor's cycle counter, which never goes
/// back.
#[derive(Clone, Debug)]
pub struct Stopwatch(quanta::Clock);

/// The start of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Started(u64);

impl Stopwatch {
    /// Returns a stopwatch.
    #[must_use]
    pub fn new() -> Stopwatch {
        Stopwatch(quanta::Clock::new())
    }

    /// Starts a measurement.
    #[inline]
    #[must_use]
    pub fn start(&self) -> Started {
        Started(self.0.raw())
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    #[must_use]
    pub fn nanos_since(&self, start: Started) -> u64 {
        self.0.delta_as_nanos(start.0, self.0.raw())
    }
}

impl Default for Stopwatch {
    fn default() -> Stopwatch {
        Stopwatch::new()
    }
}

#[allow(clippy::disallowed_methods)] // The only place that reads the wall clock.
fn wall_micros() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |it| u64::try_from(it.as_micros()).unwrap_or(u64::MAX))
}

/// A clock that stands still until it is set. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Returns a clock that shows `now`.
    #[must_use]
    pub fn at(now: Time) -> ManualClock {
        ManualClock(Arc::new(AtomicU64::new(now.as_micros())))
    }

    /// Sets the time to `now`, which may be earlier than the current time.
    pub fn set(&self, now: Time) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    /// Moves the time on by `span`.
    pub fn advance(&self, span: Span) {
        self.0.fetch_add(span.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_micros(self.0.load(Ordering::SeqCst))
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Time {
        (**self).now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_shows_wall_time() {
        let (clock, wall) = (SystemClock::new(), wall_micros());
        let shown = clock.now().as_micros();
        assert!(shown.abs_diff(wall) < 1_000_000, "{shown} and {wall}");
    }

    #[test]
    fn the_system_clock_follows_forwards_at_once_and_backwards_slowly() {
        const HOUR: u64 = Span::HOUR.as_micros();
        let (clock, wall) = (SystemClock::new(), wall_micros());
        let slightly_ahead = wall + 30_000_000;
        for (start, expected, tolerance) in [
            (wall - HOUR, wall, 1_000_000),
            (slightly_ahead, slightly_ahead - STEP_BACK, 0),
            (wall + HOUR, wall, 1_000_000),
        ] {
            clock.start_micros.store(start, Ordering::Relaxed);
            clock.look(10, clock.next_look.load(Ordering::Relaxed));
            let followed = clock.start_micros.load(Ordering::Relaxed);
            let error = followed.abs_diff(expected);
            assert!(error <= tolerance, "{followed} and {expected}");
        }
    }
}
