//! Bounds the number of log lines per second, and counts the lines that were left out.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Span, Time};

/// How many seconds a time may lie before the current second. If it lies further back, the clock was
/// set back.
const MAX_LATE_SECONDS: u64 = 60;

/// The bits of the window for its count: enough for the largest bound of a config.
const COUNT_BITS: u32 = 16;

/// Counts the log lines of the current second.
pub(crate) struct Pace {
    per_second: AtomicU64,
    /// The current second, and the number of lines in it.
    window: AtomicU64,
    suppressed: AtomicU64,
}

impl Pace {
    pub(crate) fn new(per_second: u32) -> Pace {
        Pace {
            per_second: AtomicU64::new(bound(per_second)),
            window: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Sets another bound, which also holds for the current second.
    pub(crate) fn set(&self, per_second: u32) {
        self.per_second.store(bound(per_second), Ordering::Relaxed);
    }

    /// Returns whether logging is off.
    pub(crate) fn is_none(&self) -> bool {
        self.per_second.load(Ordering::Relaxed) == 0
    }

    /// Returns whether a line at `now` may be logged. If not, counts the line as suppressed.
    pub(crate) fn admits(&self, now: Time) -> bool {
        let second = now.as_micros() / Span::SECOND.as_micros();
        let per_second = self.per_second.load(Ordering::Relaxed);
        let next = |window: u64| {
            let (counted, count) = (window >> COUNT_BITS, window & ((1 << COUNT_BITS) - 1));
            if second > counted || counted - second > MAX_LATE_SECONDS {
                return Some(second << COUNT_BITS | 1);
            }
            (count < per_second).then_some(window + 1)
        };
        let order = Ordering::Relaxed;
        let is_due = self.window.fetch_update(order, order, next).is_ok();
        if !is_due {
            self.suppress();
        }
        is_due
    }

    /// Counts a line that is not logged.
    pub(crate) fn suppress(&self) {
        self.suppressed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of suppressed lines since the last call; `None` if there are none.
    pub(crate) fn take_suppressed(&self) -> Option<u64> {
        let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
        (suppressed > 0).then_some(suppressed)
    }
}

fn bound(per_second: u32) -> u64 {
    u64::from(per_second).min((1 << COUNT_BITS) - 1)
}

/// Returns the start of `text`, at most `bytes` long.
pub(crate) fn start(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000;

    fn at(millis: u64) -> Time {
        Time::from_micros(START * 1_000_000 + millis * 1_000)
    }

    fn due(pace: &Pace, times: &[u64]) -> Vec<bool> {
        times.iter().map(|it| pace.admits(at(*it))).collect()
    }

    #[test]
    fn each_second_has_its_own_bound() {
        let two = Pace::new(2);
        let times = [0, 0, 0, 999, 1000, 1999, 1999, 5000];
        let expected = [true, true, false, false, true, true, false, true];
        assert_eq!(due(&two, &times), expected);
        assert_eq!(two.take_suppressed(), Some(3));
        assert_eq!(two.take_suppressed(), None);
    }

    #[test]
    fn another_bound_holds_at_once_and_keeps_the_count() {
        let pace = Pace::new(1);
        assert_eq!(due(&pace, &[0, 0]), [true, false]);
        pace.set(3);
        assert_eq!(due(&pace, &[0, 0, 0]), [true, true, false]);
        pace.set(0);
        assert!(pace.is_none());
    }

    #[test]
    fn late_line_counts_in_the_current_second() {
        let two = Pace::new(2);
        assert_eq!(due(&two, &[1000, 999, 1000]), [true, true, false]);
    }

    #[test]
    fn clock_that_is_set_back_does_not_silence_the_log() {
        let one = Pace::new(1);
        assert_eq!(due(&one, &[3_600_000, 0, 0]), [true, true, false]);
    }

    #[test]
    fn largest_bound_of_a_config_fits() {
        let many = Pace::new(10_000);
        let logged = (0..20_000).filter(|_| many.admits(at(0))).count();
        assert_eq!(logged, 10_000);
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(start("abcé", 4), "abc");
        assert_eq!(start("abc", 8), "abc");
    }
}
