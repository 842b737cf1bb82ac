//! Quota: an amount per calendar period.
//!
//! # Promise
//! In each period of its [calendar](crate::calendar), a quota admits at most `limit + grace`, plus the
//! amounts that were granted or carried over from the period before. Above `limit` it admits and warns.
//! Above `limit + grace` it denies until the next period begins.
//!
//! The unused amount of a period is carried over into the next period, at most `rollover`. An amount that
//! the next period does not use is carried over again, at most `rollover` in sum. A subject that has used
//! nothing for two whole periods counts as new, and carries nothing over.
//!
//! A state lasts to the end of its period, even if nothing was used. With a rollover, it lasts to the end
//! of the second period after its own. So a missing state always means unknown usage, never zero usage.
//!
//! # When time goes backwards
//! The latest period stays in force until time has caught up with it.
//!
//! # When the numbers change
//! Under `keep` the usage of the period stays. Under `proportional` the used share of the limit stays used.
//! A reset gives the whole limit, and drops the amounts that were carried over or granted.
//!
//! After a change of the calendar, the usage of a period that has not ended counts in the period of the
//! first check. The unused amount of an ended period is computed with the old numbers, and at most the new
//! `rollover` is carried over.
//!
//! A closed quota admits nothing, whatever was granted, and keeps its counts.
//! Proof: `tests/quotas.rs`.

use crate::ParamError;
use crate::calendar::{Calendar, Period};
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict, difference};
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

/// The usage of one subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The start of the period, in microseconds since the epoch. The state counts charges from this instant
    /// on. After a change of the calendar, it is the start of the period in which the state was made.
    starts_at: u64,
    /// The end of the period, in microseconds since the epoch; 0 for a subject never seen.
    ends_at: u64,
    used: u64,
    /// The amount beyond the limit in this period: carried over, or granted.
    extra: u64,
}

impl State {
    /// Returns the instant from which charges are counted, the end of the period, the usage, and the amount
    /// beyond the limit. Both instants are in microseconds since the epoch.
    #[must_use]
    pub fn parts(self) -> (u64, u64, u64, u64) {
        (self.starts_at, self.ends_at, self.used, self.extra)
    }
}

/// The usage of one subject in a period, to be recorded outside the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// The end of the period; the epoch if there is no period.
    pub ends_at: Time,
    /// The usage, which may be above the limit.
    pub used: u64,
    /// The amount beyond the limit: carried over, or granted.
    pub extra: u64,
}

/// Returns a quota of `limit` in each period of `calendar`, and `grace` more with a warning. At most
/// `rollover` of the unused amount is carried into the next period.
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
            ..self.clone()
        }
    }

    /// Returns the same quota, closed: it admits nothing.
    #[must_use]
    pub fn closed(&self) -> Quota {
        Quota {
            is_closed: true,
            ..self.clone()
        }
    }

    /// Returns whether the quota is closed. A closed quota admits nothing.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the same quota with another limit.
    pub(crate) fn with_limit(&self, limit: u64) -> Result<Quota, ParamError> {
        new(limit, self.grace, self.rollover, self.calendar.clone())
    }

    /// Returns the amount above which the quota warns; 0 if it is closed.
    #[must_use]
    pub fn limit(&self) -> u64 {
        if self.is_closed { 0 } else { self.limit }
    }

    /// Returns the amount above the limit that the quota still admits; 0 if it is closed.
    #[must_use]
    pub fn grace(&self) -> u64 {
        if self.is_closed { 0 } else { self.grace }
    }

    /// Returns the most that is carried over.
    #[must_use]
    pub fn rollover(&self) -> u64 {
        self.rollover
    }

    /// Returns limit, grace and rollover, even of a closed quota.
    #[must_use]
    pub fn numbers(&self) -> [u64; 3] {
        [self.limit, self.grace, self.rollover]
    }

    /// Returns the calendar.
    #[must_use]
    pub fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    /// Returns the period in force at `now`.
    #[must_use]
    pub fn period_at(&self, now: Time) -> Period {
        self.calendar.period_at(now)
    }

    /// Makes a state from a recorded `balance`. A balance of an earlier period is carried over into the
    /// period of `now`.
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

    /// Returns the balance of a state at `now`.
    #[must_use]
    pub fn balance(&self, state: &State, now: Time) -> Balance {
        let state = self.current(*state, now);
        Balance {
            ends_at: Time::from_micros(state.ends_at),
            used: state.used,
            extra: state.extra,
        }
    }

    /// Adds `used` to the usage of the period in force, and `extra` to the amount beyond the limit. Neither
    /// sum falls below 0. Returns the new balance.
    pub fn adjust(&self, state: &mut State, used: i64, extra: i64, now: Time) -> Balance {
        *state = self.current(*state, now);
        state.used = state.used.saturating_add_signed(used).min(EXACT - 1);
        state.extra = state.extra.saturating_add_signed(extra).min(MAX_AMOUNT);
        self.balance(state, now)
    }

    /// Returns the state at `now`. A state of an ended period is moved into the period of `now`.
    #[inline]
    fn current(&self, state: State, now: Time) -> State {
        match now.as_micros() < state.ends_at {
            true => state,
            false => self.rolled(self, state, now),
        }
    }

    /// Moves a state of an ended period into the period of `now`. `by` are the numbers under which the period
    /// ended.
    #[cold]
    fn rolled(&self, by: &Quota, state: State, now: Time) -> State {
        let around = self.calendar.around(now);
        let [two_before, before, ..] = around.starts.map(Time::as_micros);
        // Do not compare boundaries for equality: the rules of the time zone may have changed since.
        let extra = if state.ends_at > before {
            by.carried(state)
        } else if state.ends_at > two_before {
            // The period between the state's period and the current period was unused.
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

    /// Returns the amount that is carried from the period of `state` into the next.
    fn carried(&self, state: State) -> u64 {
        let left = (self.limit + state.extra).saturating_sub(state.used);
        left.min(self.rollover)
    }

    /// Returns when a `cost` that is denied at `now` would be admitted, if nothing is charged until then. A
    /// denied request writes nothing, so `state` is the stored state, which may be of an earlier period.
    #[cold]
    fn admitted_at(&self, state: State, cost: u64, now: Time) -> Option<Time> {
        if self.is_closed || cost > self.capacity() + self.rollover {
            return None;
        }
        if now.as_micros() < state.ends_at {
            return Some(match cost <= self.capacity() + self.carried(state) {
                true => Time::from_micros(state.ends_at),
                false => self.unused_until(Time::from_micros(state.ends_at)),
            });
        }
        let [_, before, start, end, next_end, _] = self.calendar.around(now).starts;
        let ended_at = Time::from_micros(state.ends_at);
        if ended_at <= before {
            // An older state is forgotten when the next period begins, and carries nothing over.
            return None;
        }
        // The cost is admitted after one whole unused period. This is the current period, unless the period
        // of the state ended in it (after a change of the calendar). In that case it is the next period.
        Some(if ended_at > start { next_end } else { end })
    }

    /// Returns the end of the first whole period after `ended_at`. If this period is unused, the whole rollover is
    /// carried over at its end.
    #[must_use]
    pub fn unused_until(&self, ended_at: Time) -> Time {
        let period = self.period_at(ended_at);
        match period.start < ended_at {
            // `ended_at` is of another calendar.
            true => self.period_at(period.end).end,
            false => period.end,
        }
    }
}

impl Limiting for Quota {
    type State = State;

    /// Returns the most that a new subject can use in a period, without amounts carried over or granted.
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
        let admitted_at = self.admitted_at(*state, cost, now);
        Verdict::denied(admitted_at.map_or(Denial::Never, Denial::Until), available)
    }

    #[inline]
    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        *state = self.current(*state, now);
        state.used += cost;
    }

    fn overdraw(&self, state: &mut State, cost: u64, most: u64, now: Time) -> u64 {
        *state = self.current(*state, now);
        let deepest = self.limit + self.grace + state.extra + most.min(MAX_AMOUNT);
        let taken = cost.min(deepest.min(EXACT - 1).saturating_sub(state.used));
        state.used += taken;
        taken
    }

    fn level(&self, state: &State, now: Time) -> i64 {
        let current = self.current(*state, now);
        let extra = if self.is_closed { 0 } else { current.extra };
        difference(self.capacity() + extra, current.used)
    }

    /// Subtracts `cost` from the usage. If the period has ended, the refund becomes part of the unused amount
    /// that is carried over.
    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, _now: Time) {
        if charged_at.as_micros() >= state.starts_at {
            state.used = state.used.saturating_sub(cost);
        }
    }

    /// A caller with another calendar does not know the periods after the present one, so it does not know how long an
    /// amount may be carried over.
    fn expires_for(&self, state: &State, asks: &Quota) -> Time {
        match self.calendar == asks.calendar {
            true => self.expires_at(state),
            false => Time::from_micros(state.ends_at),
        }
    }

    fn expires_at(&self, state: &State) -> Time {
        if self.rollover == 0 || state.ends_at == 0 {
            return Time::from_micros(state.ends_at);
        }
        let ended_at = Time::from_micros(state.ends_at);
        self.period_at(self.unused_until(ended_at)).end
    }

    #[inline]
    fn resets_at(&self, state: &State) -> Time {
        Time::from_micros(if state.used == 0 { 0 } else { state.ends_at })
    }

    fn carry_over(&self, from: &Quota, state: &mut State, how: CarryOver, now: Time) {
        match how {
            // Do not write an empty state, which would mean unknown usage.
            CarryOver::Reset => *state = self.restored(Balance::default(), now),
            CarryOver::Keep | CarryOver::Proportional => self.keep(from, state, how, now),
        }
    }

    fn keep(&self, from: &Quota, state: &mut State, how: CarryOver, now: Time) {
        if now.as_micros() < state.ends_at {
            if self.calendar != from.calendar {
                state.ends_at = self.period_at(now).end.as_micros();
            }
        } else if state.ends_at > 0 {
            *state = self.rolled(from, *state, now);
        }
        if let Some(change) = how.change(from.limit, self.limit) {
            let most = self.limit + self.grace + state.extra;
            state.used = change.share(state.used).min(most);
        }
    }
}
