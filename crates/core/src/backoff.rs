//! Back-off: a subject that keeps asking after denials is blocked for longer and longer.
//!
//! A back-off counts denials, not costs. A back-off watches another charge of the same request
//! ([`OnDenied::Strike`](crate::OnDenied::Strike)). A denial by the watched charge is a strike. The first
//! `after` strikes are free. The next strike blocks the subject for `base`. Each further strike blocks it
//! `factor` times as long, up to `max`.
//!
//! A block denies every request with a cost above 0. A denial by the block is not a strike, but adds
//! `penalty` to the block. The state is forgotten when the block has ended and `forget` has passed without
//! a denial.
//!
//! # Promise
//! A block ends at most `max` after the last denial that changed the state. A denial names the exact
//! microsecond at which the block ends. Only a denial lengthens a block. Only a change of the numbers or a
//! reset shortens a block. A request during a block changes the state only if there is a penalty.
//!
//! If time goes backwards, a block ends at the same instant as before. A penalty never moves the end
//! beyond `max` from the current time.
//!
//! # What it reports
//! The capacity is `after`, the number of free denials. The available amount is the number of free
//! denials left; 0 during a block. A request takes nothing from a back-off.
//!
//! # When the numbers change
//! Strikes stay, and a block is cut to the new `max`. Under `proportional` the used share of the free
//! denials stays used. Strikes above the number of free denials are not scaled.
//! Proof: `tests/backoff.rs`.

use crate::ParamError;
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict};
use crate::param::{ParamProblem, check_span};
use crate::units::{Span, Time};

/// The largest factor from one block to the next.
pub const MAX_FACTOR: u32 = 100;

/// How blocks grow, and when strikes are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The number of free denials.
    pub after: u32,
    /// The length of the first block.
    pub base: Span,
    /// How many times longer each further block is: 1 to [`MAX_FACTOR`].
    pub factor: u32,
    /// The longest block.
    pub max: Span,
    /// Strikes are forgotten after this time without a denial.
    pub forget: Span,
    /// The time that a request during a block adds to the block. It may be zero.
    pub penalty: Span,
}

/// The numbers of a back-off.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    schedule: Schedule,
}

/// The recent strikes of one subject, and its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    blocked_until: u64,
    last_denial: u64,
    strikes: u32,
}

impl State {
    /// Returns the strikes, the end of the block, and the last denial. Both instants are in microseconds
    /// since the epoch.
    #[must_use]
    pub fn parts(self) -> (u32, u64, u64) {
        (self.strikes, self.blocked_until, self.last_denial)
    }
}

/// Returns a back-off that blocks as `schedule` says.
///
/// # Errors
/// If a span is zero or too long, `max` is shorter than `base`, or the factor is out of range.
pub fn new(schedule: Schedule) -> Result<Backoff, ParamError> {
    check_span("base", schedule.base)?;
    check_span("max", schedule.max)?;
    check_span("forget", schedule.forget)?;
    if schedule.penalty > Span::ZERO {
        check_span("penalty", schedule.penalty)?;
    }
    if schedule.max < schedule.base {
        return Err(ParamProblem::ShortSpan(schedule.max, schedule.base).of("max"));
    }
    if !(1..=MAX_FACTOR).contains(&schedule.factor) {
        let range = 1..=MAX_FACTOR.into();
        return Err(ParamProblem::OutOfRange(schedule.factor.into(), range).of("factor"));
    }
    Ok(Backoff { schedule })
}

impl Backoff {
    /// Returns the schedule of the blocks.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    fn max(&self) -> u64 {
        self.schedule.max.as_micros()
    }

    /// Returns the length in microseconds of a block that follows `before` earlier blocks.
    fn block(&self, before: u32) -> u64 {
        let (base, factor) = (self.schedule.base.as_micros(), self.schedule.factor);
        let growth = u64::from(factor).saturating_pow(before);
        base.saturating_mul(growth).min(self.max())
    }

    /// Returns the instant at which a state is forgotten, in microseconds since the epoch.
    fn forgotten_at(&self, state: State) -> u64 {
        if state.strikes == 0 {
            return 0;
        }
        let forgotten = state.last_denial + self.schedule.forget.as_micros();
        forgotten.max(state.blocked_until)
    }

    /// Returns the state at `now`: an empty state if `state` has been forgotten by then.
    fn current(&self, state: State, now: Time) -> State {
        if self.forgotten_at(state) > now.as_micros() {
            state
        } else {
            State::default()
        }
    }
}

impl Limiting for Backoff {
    type State = State;

    fn capacity(&self) -> u64 {
        self.schedule.after.into()
    }

    fn window(&self) -> Span {
        self.schedule.forget
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        let state = self.current(*state, now);
        if now.as_micros() >= state.blocked_until {
            return Verdict::allowed(self.schedule.after.saturating_sub(state.strikes).into());
        }
        if cost == 0 {
            return Verdict::allowed(0);
        }
        Verdict::denied(Denial::Until(Time::from_micros(state.blocked_until)), 0)
    }

    /// Always returns `None`. After a `Some`, a store would take the cost, but a back-off takes nothing.
    fn admits(&self, _state: &State, _cost: u64, _now: Time) -> Option<u64> {
        None
    }

    /// Does nothing: only denials count.
    fn charge(&self, _state: &mut State, _cost: u64, _now: Time) {}

    /// Counts a strike, or adds the penalty to a block. Takes nothing.
    fn overdraw(&self, state: &mut State, _cost: u64, _most: u64, now: Time) -> u64 {
        let mut current = self.current(*state, now);
        let micros = now.as_micros();
        if micros < current.blocked_until {
            let penalty = self.schedule.penalty.as_micros();
            if penalty == 0 {
                return 0;
            }
            let longer = (current.blocked_until + penalty).min(micros + self.max());
            current.blocked_until = current.blocked_until.max(longer);
        } else {
            current.strikes = current.strikes.saturating_add(1);
            if let Some(over) = current.strikes.checked_sub(self.schedule.after)
                && over > 0
            {
                current.blocked_until = micros + self.block(over - 1);
            }
        }
        current.last_denial = current.last_denial.max(micros);
        *state = current;
        0
    }

    /// A back-off has no amount.
    fn level(&self, _state: &State, _now: Time) -> i64 {
        0
    }

    /// Does nothing: a refunded request was not denied.
    fn refund(&self, _state: &mut State, _cost: u64, _charged_at: Time, _now: Time) {}

    fn expires_at(&self, state: &State) -> Time {
        Time::from_micros(self.forgotten_at(*state))
    }

    fn keep(&self, from: &Backoff, state: &mut State, how: CarryOver, now: Time) {
        *state = from.current(*state, now);
        if let Some(change) = how.change(from.capacity(), self.capacity()) {
            let free = state.strikes.min(from.schedule.after);
            let share = u32::try_from(change.share(free.into())).unwrap_or(u32::MAX);
            state.strikes = share.saturating_add(state.strikes - free);
        }
        let latest = state.last_denial.max(now.as_micros()) + self.max();
        state.blocked_until = state.blocked_until.min(latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        after: 2,
        base: Span::from_secs(1),
        factor: 3,
        max: Span::from_secs(20),
        forget: Span::from_secs(60),
        penalty: Span::ZERO,
    };

    fn at(secs: u64) -> Time {
        Time::from_micros(1_000_000_000) + Span::from_secs(secs)
    }

    #[test]
    fn each_block_is_longer_up_to_the_longest() {
        let backoff = new(SCHEDULE).unwrap();
        let (mut state, mut now, mut blocks) = (State::default(), at(0), Vec::new());
        for _ in 0..7 {
            backoff.overdraw(&mut state, 1, 0, now);
            let until = backoff.decide(&state, 1, now).retry_at().unwrap_or(now);
            blocks.push(until.since(now).as_micros() / 1_000_000);
            now = until;
        }
        assert_eq!(blocks, [0, 0, 1, 3, 9, 20, 20]);
    }

    #[test]
    fn senseless_schedules_are_rejected() {
        type Change = fn(&mut Schedule);
        const TOO_LONG: Span = Span::from_micros(Span::MAX.as_micros() + 1);
        let wrong: [(&str, Change); 6] = [
            ("base", |it| it.base = Span::ZERO),
            ("forget", |it| it.forget = Span::ZERO),
            ("max", |it| it.max = Span::from_millis(999)),
            ("factor", |it| it.factor = 0),
            ("factor", |it| it.factor = 101),
            ("penalty", |it| it.penalty = TOO_LONG),
        ];
        for (field, change) in wrong {
            let mut schedule = SCHEDULE;
            change(&mut schedule);
            assert_eq!(new(schedule).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_change_keeps_strikes_or_their_share_and_cuts_blocks() {
        let old = new(SCHEDULE).unwrap();
        let new_ = new(Schedule {
            after: 5,
            max: Span::from_secs(4),
            ..SCHEDULE
        })
        .unwrap();
        let mut blocked = State::default();
        for secs in [0, 0, 0, 1, 4] {
            old.overdraw(&mut blocked, 1, 0, at(secs));
        }
        assert_eq!(blocked.parts().0, 5);
        for (how, strikes) in [(CarryOver::Keep, 5), (CarryOver::Proportional, 8)] {
            let mut state = blocked;
            new_.carry_over(&old, &mut state, how, at(5));
            assert_eq!(state.parts().0, strikes, "{how:?}");
            assert_eq!(new_.decide(&state, 1, at(5)).retry_at(), Some(at(9)));
        }
        let mut state = State::default();
        old.overdraw(&mut state, 1, 0, at(0));
        new_.carry_over(&old, &mut state, CarryOver::Proportional, at(0));
        let available = new_.decide(&state, 1, at(0)).available;
        assert_eq!(available, 2, "a half of five, rounded up");
    }
}
