//! Sliding counter with a two-window estimate: the count of the current window, plus a share of the count
//! of the previous window. The share is the part of the previous window that lies less than `window` ago.
//!
//! # Promise
//! When a request is admitted, the estimate `current + previous × remaining share` is at most `limit`.
//! The estimate is exact if the traffic of the previous window was even. If all of that traffic came at
//! the end of the window, a span of one window can see almost `2 × limit`, but always less. The test
//! `the_worst_case_stays_below_twice_the_limit` shows this case. `cargo xtask bench accuracy` prints the
//! error on realistic traffic, compared with the exact log.
//!
//! A denial names the exact instant at which the estimate leaves room for the cost. If time goes
//! backwards, the later window stays in force.
//!
//! # When the numbers change
//! If the window stays the same, both counts stay, but each is cut to the new limit. If the window changes,
//! the current estimate, rounded up, becomes the count of the new current window. Under `proportional` each
//! count keeps its share. The current count and the sum of both counts are rounded up, so the estimate is
//! at most one above its share.
//! Proof: `tests/properties.rs`.

use crate::ParamError;
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict, difference};
use crate::param::{Inexact, ParamProblem, check_window};
use crate::units::{Scale, Span, Tick, Time};

/// The product of limit and window is below two to this power, so that sums of products are exact.
/// The message of `Inexact::Window` has this power.
const BITS: u32 = 52;

/// The numbers of a two-window counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TwoWindow {
    limit: u64,
    /// Ticks in a window.
    window: u64,
    tick: Tick,
}

/// The counts of the current window and of the window before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The number of the current window, counted from the epoch.
    number: u64,
    current: u64,
    previous: u64,
}

impl State {
    /// Returns the number of the current window, counted from the epoch, its count, and the count of the
    /// window before it.
    #[must_use]
    pub fn parts(self) -> (u64, u64, u64) {
        (self.number, self.current, self.previous)
    }
}

/// Returns a limit of `limit` in a span of `window`, estimated from two windows. A limit of 0 admits
/// nothing.
///
/// # Errors
/// If a number is out of range, or `limit × window` cannot be kept exactly.
pub fn new(limit: u64, window: Span) -> Result<TwoWindow, ParamError> {
    let micros = check_window(limit, window)?;
    [Tick::Micro, Tick::Milli]
        .into_iter()
        .filter(|tick| micros.is_multiple_of(tick.micros()))
        .map(|tick| TwoWindow {
            limit,
            window: micros / tick.micros(),
            tick,
        })
        .find(|it| u128::from(it.limit) * u128::from(it.window) < 1 << BITS)
        .ok_or_else(|| {
            ParamProblem::NotExact(format!("{limit} in {window}"), Inexact::Window).of("limit")
        })
}

impl TwoWindow {
    /// Scales the limit, but only as far as the result can be counted exactly.
    pub(crate) fn scaled(&self, scale: Scale) -> TwoWindow {
        let limit = scale.amount(self.limit).min(self.most());
        TwoWindow { limit, ..*self }
    }

    /// Returns the most that a window can count exactly.
    fn most(&self) -> u64 {
        ((1 << BITS) - 1) / self.window
    }

    /// Returns the limit, the ticks in a window, and the tick.
    #[must_use]
    pub fn parts(&self) -> (u64, u64, Tick) {
        (self.limit, self.window, self.tick)
    }

    /// Returns the state at `now`, and the ticks of the previous window that still count.
    fn current(&self, state: State, now: Time) -> (State, u64) {
        let tick = self.tick.of(now);
        let number = tick / self.window;
        if number < state.number {
            return (state, self.window);
        }
        let (current, previous) = match number - state.number {
            0 => (state.current, state.previous),
            1 => (0, state.current),
            _ => (0, 0),
        };
        let rolled = State {
            number,
            current,
            previous,
        };
        (rolled, self.window - tick % self.window)
    }

    fn estimate(&self, state: State, share: u64) -> u64 {
        state.current + (state.previous * share).div_ceil(self.window)
    }

    /// Returns the first tick of window `number` at which the share of `previous` is at most `room`. If there
    /// is none, returns the start of the next window.
    fn frees(&self, number: u64, previous: u64, room: u64) -> u64 {
        let share = (room * self.window)
            .checked_div(previous)
            .unwrap_or(self.window);
        (number + 1) * self.window - share.min(self.window)
    }

    /// Converts a state that was written under `from` to windows of this length. If the length differs from
    /// that of `from`, the current estimate becomes the count of the current window. The count may be above
    /// the limit.
    fn moved(&self, from: &TwoWindow, state: State, now: Time) -> State {
        if self.window() == from.window() {
            return state;
        }
        let (old, share) = from.current(state, now);
        // If the clock is before the newest window of the state, the new window is the one that contains the end of
        // that window.
        let behind = old.number > from.tick.of(now) / from.window;
        let end = (old.number + 1) * from.window().as_micros() - 1;
        let seen = if behind { Time::from_micros(end) } else { now };
        State {
            number: self.tick.of(seen) / self.window,
            current: from.estimate(old, share),
            previous: 0,
        }
    }
}

impl Limiting for TwoWindow {
    type State = State;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Span {
        self.tick.span(self.window)
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        let (state, share) = self.current(*state, now);
        let available = self.limit.saturating_sub(self.estimate(state, share));
        if cost > self.limit {
            return Verdict::denied(Denial::Never, available);
        }
        // A cost of 0 always fits.
        if cost == 0 || cost <= available && state.current + cost <= self.limit {
            return Verdict::allowed(available);
        }
        let tick = match self.limit.checked_sub(state.current + cost) {
            Some(room) => self.frees(state.number, state.previous, room),
            None => self.frees(state.number + 1, state.current, self.limit - cost),
        };
        Verdict::denied(Denial::Until(self.tick.start(tick)), available)
    }

    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        (*state, _) = self.current(*state, now);
        state.current += cost;
    }

    fn overdraw(&self, state: &mut State, cost: u64, most: u64, now: Time) -> u64 {
        let (current, share) = self.current(*state, now);
        let deepest = self.limit.saturating_add(most).min(self.most());
        let taken = cost.min(deepest.saturating_sub(self.estimate(current, share)));
        *state = current;
        state.current += taken;
        taken
    }

    fn level(&self, state: &State, now: Time) -> i64 {
        let (state, share) = self.current(*state, now);
        difference(self.limit, self.estimate(state, share))
    }

    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, now: Time) {
        (*state, _) = self.current(*state, now);
        let charged = self.tick.of(charged_at) / self.window;
        if charged >= state.number {
            state.current = state.current.saturating_sub(cost);
        } else if charged + 1 == state.number {
            state.previous = state.previous.saturating_sub(cost);
        }
    }

    fn expires_at(&self, state: &State) -> Time {
        let windows = match (state.current, state.previous) {
            (0, 0) => return Time::default(),
            (0, _) => 1,
            _ => 2,
        };
        self.tick.start((state.number + windows) * self.window)
    }

    fn keep(&self, from: &TwoWindow, state: &mut State, how: CarryOver, now: Time) {
        let moved = self.moved(from, *state, now);
        let (current, previous) = match how.change(from.limit, self.limit) {
            None => {
                // An overdrawn count stays overdrawn.
                let kept = |count: u64| count.min(self.limit + count.saturating_sub(from.limit));
                (kept(moved.current), kept(moved.previous))
            }
            Some(change) => {
                let current = change.share(moved.current);
                let previous = match current > self.most() {
                    // The part that is cut off the current count must not become part of the previous count.
                    true => change.share(moved.previous),
                    false => change.share(moved.current + moved.previous) - current,
                };
                (current, previous)
            }
        };
        *state = State {
            number: moved.number,
            current: current.min(self.most()),
            previous: previous.min(self.most()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_micros(micros)
    }

    fn admit_all(limit: &TwoWindow, state: &mut State, now: Time) -> u64 {
        let mut admitted = 0;
        while limit.decide(state, 1, now).is_allowed() {
            limit.charge(state, 1, now);
            admitted += 1;
        }
        admitted
    }

    #[test]
    fn the_previous_window_counts_by_the_share_that_remains() {
        let limit = new(100, Span::from_micros(1000)).unwrap();
        let mut state = State::default();
        limit.charge(&mut state, 80, at(5_500));
        assert_eq!(limit.decide(&state, 0, at(6_000)).available, 20);
        assert_eq!(limit.decide(&state, 0, at(6_250)).available, 40);
        assert_eq!(limit.decide(&state, 0, at(6_999)).available, 99);
    }

    #[test]
    fn the_worst_case_stays_below_twice_the_limit() {
        let limit = new(100, Span::from_micros(1000)).unwrap();
        let mut state = State::default();
        let mut admitted = admit_all(&limit, &mut state, at(5_999));
        for now in 6_000..6_999 {
            admitted += admit_all(&limit, &mut state, at(now));
        }
        assert!((190..200).contains(&admitted), "{admitted} in one window");
    }

    #[test]
    fn numbers_too_large_for_microseconds_tick_in_milliseconds_or_are_rejected() {
        assert_eq!(new(100_000, Span::DAY).unwrap().tick, Tick::Milli);
        assert_eq!(new(1 << 40, Span::DAY).unwrap_err().field, "limit");
    }
}
