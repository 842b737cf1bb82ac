//! A wall clock that does not believe a jump ahead at once.
//!
//! Files are removed by their age. If the clock of a machine jumps ahead by years and is corrected a minute later, no
//! file may be gone. So a jump counts only after the clock has stayed ahead for [`CONFIRM_AFTER`], measured by a clock
//! that nobody sets.

use tollgate::{Span, Time};

/// A step ahead that is believed at once, such as a correction.
const SMALL: Span = Span::MINUTE;
/// How long a larger step has to last.
const CONFIRM_AFTER: Span = Span::HOUR;

/// The wall clock's time, as far as it is confirmed.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    /// The wall time at the start of the monotonic clock, as far as it is confirmed.
    start: Option<Time>,
    /// Since when the wall clock is ahead, by the monotonic clock.
    ahead_since: Option<Time>,
}

impl Confirmed {
    /// Returns the confirmed time. `wall` is the wall clock's time, and `elapsed` that of a monotonic clock.
    pub(super) fn time(&mut self, wall: Time, elapsed: Time) -> Time {
        let start = Time::from_micros(wall.as_micros().saturating_sub(elapsed.as_micros()));
        let known = *self.start.get_or_insert(start);
        if start > known + SMALL {
            let since = *self.ahead_since.get_or_insert(elapsed);
            if elapsed.since(since) < CONFIRM_AFTER {
                return known + elapsed.since(Time::from_micros(0));
            }
        }
        self.start = Some(start);
        self.ahead_since = None;
        wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Time = Time::from_micros(1_700_000_000_000_000);
    const YEAR: Span = Span::from_secs(365 * 86_400);

    fn minutes(minutes: u64) -> Span {
        Span::from_secs(60 * minutes)
    }

    fn elapsed(span: Span) -> Time {
        Time::from_micros(span.as_micros())
    }

    #[test]
    fn jump_ahead_counts_only_after_it_has_lasted() {
        let mut confirmed = Confirmed::default();
        let mut at = |minute: u64, jump: Span| {
            confirmed.time(WALL + minutes(minute) + jump, elapsed(minutes(minute)))
        };
        assert_eq!(at(0, Span::ZERO), WALL);
        assert_eq!(at(1, Span::ZERO), WALL + minutes(1));
        // A jump that is corrected.
        assert_eq!(at(2, YEAR), WALL + minutes(2));
        assert_eq!(at(50, YEAR), WALL + minutes(50));
        assert_eq!(at(55, Span::SECOND), WALL + minutes(55) + Span::SECOND);
        // A jump that lasts.
        assert_eq!(at(70, YEAR), WALL + minutes(70) + Span::SECOND);
        assert_eq!(at(129, YEAR), WALL + minutes(129) + Span::SECOND);
        assert_eq!(at(130, YEAR), WALL + minutes(130) + YEAR);
        assert_eq!(at(131, YEAR), WALL + minutes(131) + YEAR);
        // The clock is believed at once if it goes back.
        assert_eq!(at(132, Span::ZERO), WALL + minutes(132));
    }
}
