//! Quota: so much in each calendar period.
//!
//! # Promise
//! Admits at most `limit + grace`, and what was carried over from the period before, in each period of
//! its [calendar](crate::calendar). Above `limit` it admits and warns; above `limit + grace` it
//! refuses until the next period begins.
//!
//! What was left of a period is carried into the next, at most `rollover` of it; that, too, is carried
//! on while it lasts, within the same bound. A subject that has used nothing for two whole periods is
//! a new one, and starts without.
//!
//! A state, once there is one, lasts to the end of its period, or of the two after it where something may
//! be carried over, even if nothing is used: who keeps books elsewhere can tell a subject that has used
//! nothing from one of which nothing is known.
//!
//! # When time goes backwards
//! The period that was entered last stays in force until time has caught up with it.
//!
//! # When numbers change
//! What was used in the period stays used, or its share of the limit. In another calendar it counts in the
//! period that is in force there at the first check, if its own has not ended by then. What is carried over
//! from a period that has ended goes by the numbers it was left under, within the new bound. A reset gives
//! the whole limit, and takes what was carried over or granted.
//!
//! A quota that is closed admits nothing, whatever was granted, and keeps its counts as they are.
//! Proof: `tests/quotas.rs`.

use crate::ParamError;
use crate::calendar::{Calendar, Period};
use crate::carry_over::{CarryOver, Change};
use crate::limiting::{Denial, Limiting, Verdict};
use crate::param::check_amount;
use crate::units::{EXACT, MAX_AMOUNT, Scale, Span, Time};

/// The numbers of a quota.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    grace: u64,
    rollover: u64,
    calendar: Calendar,
    is_closed: bool,
}

/// What one subject has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// From when on what was charged is in it, in microseconds since the epoch: the start of its period, or
    /// of the one it began as if the calendar has changed since.
    starts_at: u64,
    /// The end of the period, in microseconds since the epoch; 0 if there has been none.
    ends_at: u64,
    used: u64,
    /// What there is beside the limit in this period: carried over, or granted.
    extra: u64,
}

impl State {
    /// From when on what was charged is in it, and the end of its period, in microseconds since the epoch;
    /// what was used in it, and what there is beside the limit.
    #[must_use]
    pub fn parts(self) -> (u64, u64, u64, u64) {
        (self.starts_at, self.ends_at, self.used, self.extra)
    }
}

/// What one subject has used, for those who keep books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// The end of the period that the numbers are of; the epoch if they are of none.
    pub ends_at: Time,
    /// What was used in it. May be above the limit.
    pub used: u64,
    /// What there is beside the limit: carried over, or granted.
    pub extra: u64,
}

/// `limit` in each period of `calendar`, and `grace` more with a warning. At most `rollover` of what is
/// left of a period is carried into the next.
///
/// # Errors
/// If a number is out of range.
pub fn new(limit: u64, grace: u64, rollover: u64, calendar: Calendar) -> Result<Quota, ParamError> {
    check_amount("limit", limit)?;
    check_amount("grace", grace)?;
    check_amount("carry_over", rollover)?;
    check_amount("grace", limit + grace + rollover)?;
    Ok(Quota {
        limit,
        grace,
        rollover: rollover.min(limit),
        calendar,
        is_closed: false,
    })
}

impl Quota {
    pub(crate) fn scaled(&self, scale: Scale) -> Quota {
        let grace = self.grace.min(scale.amount(self.grace));
        let rollover = self.rollover.min(scale.amount(self.rollover));
        let limit = scale.amount(self.limit).min(MAX_AMOUNT - grace - rollover);
        Quota {
            limit,
            grace,
            rollover: rollover.min(limit),
            calendar: self.calendar.clone(),
            is_closed: self.is_closed,
        }
    }

    /// The same, admitting nothing.
    #[must_use]
    pub fn closed(&self) -> Quota {
        Quota {
            is_closed: true,
            ..self.clone()
        }
    }

    /// Whether it admits nothing.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The same with another limit.
    pub(crate) fn with_limit(&self, limit: u64) -> Result<Quota, ParamError> {
        new(limit, self.grace, self.rollover, self.calendar.clone())
    }

    /// What may be used before it warns: nothing if it is closed.
    #[must_use]
    pub fn limit(&self) -> u64 {
        if self.is_closed { 0 } else { self.limit }
    }

    /// What may be used beyond that before it refuses.
    #[must_use]
    pub fn grace(&self) -> u64 {
        if self.is_closed { 0 } else { self.grace }
    }

    /// The most that is carried over.
    #[must_use]
    pub fn rollover(&self) -> u64 {
        self.rollover
    }

    /// Limit, grace, and the most that is carried over, whether it is closed or not.
    #[must_use]
    pub fn numbers(&self) -> [u64; 3] {
        [self.limit, self.grace, self.rollover]
    }

    /// What limit and grace amount to, whether it is closed or not.
    fn whole(&self) -> u64 {
        self.limit + self.grace
    }

    /// Its periods.
    #[must_use]
    pub fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    /// The period in force at `now`.
    #[must_use]
    pub fn period_at(&self, now: Time) -> Period {
        self.calendar.period_at(now)
    }

    /// The state that `balance` is at `now`. What is of an earlier period is rolled forward.
    #[must_use]
    pub fn restored(&self, balance: Balance, now: Time) -> State {
        let ends_at = balance.ends_at.as_micros();
        let last = Time::from_micros(ends_at.saturating_sub(1));
        let state = State {
            starts_at: self.period_at(last).start.as_micros(),
            ends_at,
            used: balance.used.min(EXACT - 1),
            extra: balance.extra.min(MAX_AMOUNT),
        };
        self.current(state, now)
    }

    /// What a state amounts to at `now`.
    #[must_use]
    pub fn balance(&self, state: &State, now: Time) -> Balance {
        let state = self.current(*state, now);
        Balance {
            ends_at: Time::from_micros(state.ends_at),
            used: state.used,
            extra: state.extra,
        }
    }

    /// Adds to what is used in the period in force, and to what there is beside the limit. Neither goes
    /// below nothing.
    pub fn adjust(&self, state: &mut State, used: i64, extra: i64, now: Time) -> Balance {
        *state = self.current(*state, now);
        state.used = state.used.saturating_add_signed(used).min(EXACT - 1);
        state.extra = state.extra.saturating_add_signed(extra).min(MAX_AMOUNT);
        self.balance(state, now)
    }

    /// The state as it stands at `now`.
    #[inline]
    fn current(&self, state: State, now: Time) -> State {
        if now.as_micros() < state.ends_at {
            return state;
        }
        self.rolled(self, state, now)
    }

    /// A state whose period has ended under the numbers of `by`, in the period of `now`.
    #[cold]
    fn rolled(&self, by: &Quota, state: State, now: Time) -> State {
        let around = self.calendar.around(now);
        let [two_before, before, ..] = around.starts.map(Time::as_micros);
        // Ranges, as a time zone may have been given other rules meanwhile.
        let extra = if state.ends_at > before {
            by.carried(state)
        } else if state.ends_at > two_before {
            // Nothing was used in the period between.
            by.rollover
        } else {
            0
        };
        let period = around.period();
        State {
            starts_at: period.start.as_micros(),
            ends_at: period.end.as_micros(),
            used: 0,
            extra: extra.min(self.rollover),
        }
    }

    /// What is carried over from the period of `state` into the next.
    fn carried(&self, state: State) -> u64 {
        let left = (self.limit + state.extra).saturating_sub(state.used);
        left.min(self.rollover)
    }

    /// When `cost`, which is refused at `now`, would be admitted if nothing happened until then. A refused
    /// request writes nothing, so that goes by the state as it is kept.
    #[cold]
    fn admitted_at(&self, state: State, cost: u64, now: Time) -> Option<Time> {
        if self.is_closed {
            return None;
        }
        if now.as_micros() < state.ends_at {
            return if cost <= self.capacity() + self.carried(state) {
                Some(Time::from_micros(state.ends_at))
            } else {
                // After a period in which nothing is used.
                (cost <= self.capacity() + self.rollover).then(|| self.next(state).end)
            };
        }
        let [_, before, start, end, next_end, _] = self.calendar.around(now).starts;
        let ended_at = Time::from_micros(state.ends_at);
        if cost > self.capacity() + self.rollover || ended_at <= before {
            // What is older is forgotten by the next period.
            return None;
        }
        // After this period, if nothing is used in it; after the next if the state's own has ended in
        // this one, by another calendar.
        Some(if ended_at > start { next_end } else { end })
    }

    /// The first period that begins when the one of `state` has ended: that may have been one of another
    /// calendar.
    fn next(&self, state: State) -> Period {
        let ended_at = Time::from_micros(state.ends_at);
        let period = self.period_at(ended_at);
        if period.start < ended_at {
            return self.period_at(period.end);
        }
        period
    }
}

impl Limiting for Quota {
    type State = State;

    /// The most that a subject never seen can use in a period: what is carried over or granted comes on
    /// top.
    fn capacity(&self) -> u64 {
        self.limit() + self.grace()
    }

    fn window(&self) -> Span {
        self.calendar.nominal()
    }

    #[inline]
    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        let current = self.current(*state, now);
        let extra = if self.is_closed { 0 } else { current.extra };
        let available = (self.capacity() + extra).saturating_sub(current.used);
        if cost <= available {
            return Verdict::allowed(available);
        }
        let denial = match self.admitted_at(*state, cost, now) {
            Some(at) => Denial::Until(at),
            None => Denial::Never,
        };
        Verdict::denied(denial, available)
    }

    #[inline]
    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        *state = self.current(*state, now);
        state.used += cost;
    }

    fn overdraw(&self, state: &mut State, cost: u64, most: u64, now: Time) -> u64 {
        *state = self.current(*state, now);
        let deepest = (self.whole() + state.extra + most.min(MAX_AMOUNT)).min(EXACT - 1);
        let taken = cost.min(deepest.saturating_sub(state.used));
        state.used += taken;
        taken
    }

    /// What is given back to a period that has ended is carried over with what was left of it.
    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, _now: Time) {
        if charged_at.as_micros() >= state.starts_at {
            state.used = state.used.saturating_sub(cost);
        }
    }

    fn expires_at(&self, state: &State) -> Time {
        if self.rollover == 0 || state.ends_at == 0 {
            return Time::from_micros(state.ends_at);
        }
        self.period_at(self.next(*state).end).end
    }

    #[inline]
    fn resets_at(&self, state: &State) -> Time {
        Time::from_micros(if state.used == 0 { 0 } else { state.ends_at })
    }

    fn carry_over(&self, from: &Quota, state: &mut State, how: CarryOver, now: Time) {
        match how {
            CarryOver::Keep => self.keep_used(from, state, now),
            CarryOver::Proportional => self.keep_share(from, state, now),
            // A state all the same: something is known of the subject.
            CarryOver::Reset => *state = self.restored(Balance::default(), now),
        }
    }

    fn keep_used(&self, from: &Quota, state: &mut State, now: Time) {
        if now.as_micros() < state.ends_at {
            if self.calendar != from.calendar {
                state.ends_at = self.period_at(now).end.as_micros();
            }
        } else if state.ends_at > 0 {
            *state = self.rolled(from, *state, now);
        }
    }

    fn keep_share(&self, from: &Quota, state: &mut State, now: Time) {
        self.keep_used(from, state, now);
        if let Some(change) = Change::new(from.limit, self.limit) {
            let most = self.whole() + state.extra;
            state.used = change.share(state.used).min(most);
        }
    }
}
