//! Fixed window: at most `limit` in each window of the clock.
//!
//! Windows are aligned to the epoch (`window: 1m` starts on the minute), so that all instances
//! agree on where a window ends.
//!
//! # Promise
//! At most `limit` is admitted in each aligned window; error bound 0. A span of one window that crosses an
//! edge can see up to `2 × limit`. This is the known weakness of the algorithm, shown by the test
//! `the_edge_admits_twice_the_limit`. Where this matters, use a sliding algorithm.
//! A denial names the start of the next window. If time goes backwards, the later window stays in
//! force until the clock has passed it.
//!
//! # When the numbers change
//! The usage of the current window is carried into the current window of the new length. A raised limit
//! acts at once. Under a lowered limit, the used amount still counts. A later refund of an earlier charge
//! reduces the usage of the new window, and never below 0. Under `proportional` the used share of the
//! limit is carried over, rounded up.
//! Proof: `tests/properties.rs`.

use crate::ParamError;
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict, difference};
use crate::param::check_window;
use crate::units::{MAX_AMOUNT, Scale, Span, Time};

/// The numbers of a fixed window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u64,
    window: u64,
}

/// The usage of one window, and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    ends_at: u64,
    used: u64,
}

impl State {
    /// Returns the end of the window in microseconds since the epoch, and the usage.
    #[must_use]
    pub fn parts(self) -> (u64, u64) {
        (self.ends_at, self.used)
    }
}

/// Returns a limit of `limit` in each `window`. A limit of 0 admits nothing.
///
/// # Errors
/// If a number is out of range.
pub fn new(limit: u64, window: Span) -> Result<FixedWindow, ParamError> {
    let window = check_window(limit, window)?;
    Ok(FixedWindow { limit, window })
}

impl FixedWindow {
    pub(crate) fn scaled(&self, scale: Scale) -> FixedWindow {
        let limit = scale.amount(self.limit);
        FixedWindow { limit, ..*self }
    }

    fn end(&self, now: Time) -> u64 {
        (now.as_micros() / self.window + 1) * self.window
    }

    /// Returns the state at `now`. If its window has ended, returns an empty state of the current window.
    fn current(&self, state: State, now: Time) -> State {
        let ends_at = self.end(now);
        if state.ends_at >= ends_at {
            state
        } else {
            State { ends_at, used: 0 }
        }
    }
}

impl Limiting for FixedWindow {
    type State = State;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Span {
        Span::from_micros(self.window)
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        let current = self.current(*state, now);
        let available = self.limit.saturating_sub(current.used);
        if cost > self.limit {
            Verdict::denied(Denial::Never, available)
        } else if current.used + cost <= self.limit {
            Verdict::allowed(available)
        } else {
            Verdict::denied(Denial::Until(Time::from_micros(current.ends_at)), available)
        }
    }

    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        *state = self.current(*state, now);
        state.used += cost;
    }

    fn overdraw(&self, state: &mut State, cost: u64, most: u64, now: Time) -> u64 {
        *state = self.current(*state, now);
        let deepest = self.limit + most.min(MAX_AMOUNT);
        let taken = cost.min(deepest.saturating_sub(state.used));
        state.used += taken;
        taken
    }

    fn level(&self, state: &State, now: Time) -> i64 {
        difference(self.limit, self.current(*state, now).used)
    }

    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, now: Time) {
        let current = self.current(*state, now);
        if charged_at.as_micros() + self.window >= current.ends_at {
            *state = State {
                used: current.used.saturating_sub(cost),
                ..current
            };
        }
    }

    fn expires_at(&self, state: &State) -> Time {
        Time::from_micros(if state.used == 0 { 0 } else { state.ends_at })
    }

    fn keep(&self, from: &FixedWindow, state: &mut State, how: CarryOver, now: Time) {
        if self.window != from.window {
            *state = from.current(*state, now);
            // If the clock is before the window of the state, act as if it stood at the end of that window.
            let end = Time::from_micros(state.ends_at - 1);
            let behind = state.ends_at > from.end(now);
            state.ends_at = self.end(if behind { end } else { now });
        }
        if let Some(change) = how.change(from.limit, self.limit) {
            state.used = change.share(state.used).min(self.limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_micros(micros)
    }

    #[test]
    fn the_edge_admits_twice_the_limit() {
        let limit = new(10, Span::SECOND).unwrap();
        let mut state = State::default();
        let mut admitted = 0;
        for now in [at(5_999_999), at(6_000_000)] {
            for _ in 0..20 {
                if limit.decide(&state, 1, now).is_allowed() {
                    limit.charge(&mut state, 1, now);
                    admitted += 1;
                }
            }
        }
        assert_eq!(admitted, 20, "twice the limit within one microsecond");
    }

    #[test]
    fn a_refund_from_an_earlier_window_gives_nothing_back() {
        let limit = new(10, Span::SECOND).unwrap();
        let mut state = State::default();
        limit.charge(&mut state, 4, at(1_500_000));
        limit.charge(&mut state, 4, at(2_500_000));
        limit.refund(&mut state, 4, at(1_500_000), at(2_600_000));
        assert_eq!(limit.decide(&state, 0, at(2_600_000)).available, 6);
        limit.refund(&mut state, 4, at(2_500_000), at(2_600_000));
        assert_eq!(limit.decide(&state, 0, at(2_600_000)).available, 10);
    }

    #[test]
    fn a_clock_that_steps_back_over_the_edge_opens_no_second_window() {
        let limit = new(1, Span::SECOND).unwrap();
        let mut state = State::default();
        limit.charge(&mut state, 1, at(2_000_000));
        let back = limit.decide(&state, 1, at(1_900_000));
        assert_eq!(back.retry_at(), Some(at(3_000_000)));
    }

    #[test]
    fn a_limit_raised_in_mid_window_acts_at_once() {
        let (small, large) = (new(2, Span::HOUR).unwrap(), new(5, Span::HOUR).unwrap());
        let mut state = State::default();
        small.charge(&mut state, 2, at(1_000));
        large.carry_over(&small, &mut state, CarryOver::Keep, at(2_000));
        assert_eq!(large.decide(&state, 1, at(2_000)).available, 3);
    }
}
