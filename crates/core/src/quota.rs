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
//! # When time goes backwards
//! The period that was entered last stays in force until time has caught up with it.
//!
//! # When numbers change
//! What was used in the period stays used. In another calendar it counts in the period that is in force
//! there at the first check.

use crate::ParamError;
use crate::calendar::{Calendar, Period};
use crate::limiting::{Denial, Limiting, Verdict};
use crate::param::check_amount;
use crate::units::{Scale, Span, Time};

/// The numbers of a quota.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    grace: u64,
    rollover: u64,
    calendar: Calendar,
}

/// What one subject has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The end of the period, in microseconds since the epoch; 0 if there has been none.
    ends_at: u64,
    used: u64,
    /// What there is beside the limit in this period: carried over, or granted.
    extra: u64,
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
    })
}

impl Quota {
    pub(crate) fn scaled(&self, scale: Scale) -> Quota {
        let limit = scale.amount(self.limit);
        Quota {
            limit,
            grace: self.grace.min(scale.amount(self.grace)),
            rollover: self.rollover.min(limit),
            calendar: self.calendar.clone(),
        }
    }

    /// The same with another limit.
    pub(crate) fn with_limit(&self, limit: u64) -> Result<Quota, ParamError> {
        new(limit, self.grace, self.rollover, self.calendar.clone())
    }

    /// What may be used before it warns.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What may be used beyond that before it refuses.
    #[must_use]
    pub fn grace(&self) -> u64 {
        self.grace
    }

    /// The most that is carried over.
    #[must_use]
    pub fn rollover(&self) -> u64 {
        self.rollover
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

    /// The state as it stands at `now`.
    fn current(&self, state: State, now: Time) -> State {
        if now.as_micros() < state.ends_at {
            return state;
        }
        let period = self.period_at(now);
        let ended_at = Time::from_micros(state.ends_at);
        let extra = if self.rollover == 0 || state.ends_at == 0 {
            0
        } else if ended_at == period.start {
            self.carried(state)
        } else if period.start > Time::default() && ended_at == self.before(period).start {
            self.rollover
        } else {
            0
        };
        State {
            ends_at: period.end.as_micros(),
            used: 0,
            extra,
        }
    }

    fn before(&self, period: Period) -> Period {
        let last = period.start.as_micros().saturating_sub(1);
        self.period_at(Time::from_micros(last))
    }

    /// What is carried over from the period of `state` into the next.
    fn carried(&self, state: State) -> u64 {
        let left = (self.limit + state.extra).saturating_sub(state.used);
        left.min(self.rollover)
    }
}

impl Limiting for Quota {
    type State = State;

    fn capacity(&self) -> u64 {
        self.limit + self.grace
    }

    fn window(&self) -> Span {
        self.calendar.nominal()
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        let current = self.current(*state, now);
        let capacity = self.capacity() + current.extra;
        let available = capacity.saturating_sub(current.used);
        if current.used.saturating_add(cost) <= capacity {
            Verdict::allowed(available)
        } else if cost <= self.capacity() + self.carried(current) {
            Verdict::denied(Denial::Until(Time::from_micros(current.ends_at)), available)
        } else {
            Verdict::denied(Denial::Never, available)
        }
    }

    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        *state = self.current(*state, now);
        state.used += cost;
    }

    fn charge_denied(&self, state: &mut State, cost: u64, now: Time) {
        *state = self.current(*state, now);
        let most = self.capacity() + state.extra;
        state.used = state.used.max(state.used.saturating_add(cost).min(most));
    }

    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, now: Time) {
        let current = self.current(*state, now);
        let end = Time::from_micros(current.ends_at);
        if self.period_at(charged_at).end >= end {
            *state = State {
                used: current.used.saturating_sub(cost),
                ..current
            };
        }
    }

    fn expires_at(&self, state: &State) -> Time {
        let untouched = state.used == 0 && state.extra == 0;
        let ends_at = Time::from_micros(if untouched { 0 } else { state.ends_at });
        if self.rollover == 0 || untouched {
            return ends_at;
        }
        let next = self.period_at(ends_at).end;
        self.period_at(next).end
    }

    fn keep_used(&self, from: &Quota, state: &mut State, now: Time) {
        if self.calendar == from.calendar {
            return;
        }
        let current = from.current(*state, now);
        *state = State {
            ends_at: self.period_at(now).end.as_micros(),
            ..current
        };
    }

    fn keep_share(&self, from: &Quota, state: &mut State, now: Time) {
        self.keep_used(from, state, now);
        if let Some(change) = crate::carry_over::Change::new(from.limit, self.limit) {
            state.used = change.share(state.used).min(self.capacity() + state.extra);
        }
    }
}
