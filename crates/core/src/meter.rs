//! The meter: exact refill arithmetic, shared by token bucket, GCRA and leaky bucket.
//!
//! These three are one algorithm, described in three ways: as missing tokens, as a theoretical arrival time
//! in the future, and as water in a bucket. All of them need only one number: the instant at which the
//! allowance is full again. The meter keeps this instant (`full_at`) as a whole tick and a fraction.
//!
//! # Exactness
//! The rate is reduced to `n` tokens per `p` ticks, without a common divisor. A tick refills `n` units, and
//! a token is `p` units. The missing amount is a whole number of units, and `full_at` is a whole number of
//! `1/n` ticks. So nothing is ever rounded: after a million charges the state is the same as in real
//! arithmetic.
//!
//! The capacity in units has to stay below 2^53. If it does not with ticks of a microsecond, the meter uses
//! ticks of a millisecond. If it does not with ticks of a millisecond either, the numbers are rejected.
//!
//! # Invariant
//! In any span of time `t`, at most `capacity + rate × t` is admitted. After any idle time, at most
//! `capacity` is admitted at once. An overdrawn amount has to refill first. A clock that goes backwards
//! refills nothing: until the clock has caught up, the allowance does not grow.
//!
//! With ticks of a millisecond, the refill of a tick is available from its first microsecond on. So `t`
//! is rounded to whole ticks, and can be up to one tick longer.
//!
//! # Refunds
//! The time since a charge has already refilled a part of its cost. A refund does not give back this part
//! again, so the subject never gets more than without the charge. The price: if the meter has not been full
//! since the charge, a late refund gives back less than it could.
//!
//! # When the numbers change
//! The missing amount stays missing, up to the new capacity. It is rounded up to whole tokens, so at most
//! one token is lost. Under `proportional` the missing share stays missing, exact to the last unit.
//! From the first check after the change, the meter refills at the new rate.

use std::hash::{Hash, Hasher};

use crate::ParamError;
use crate::carry_over::CarryOver;
use crate::divisor::Divisor;
use crate::limiting::{Denial, Limiting, Verdict, difference};
use crate::param::{Inexact, ParamProblem, check_amount};
use crate::units::{EXACT, Rate, Scale, Span, Tick, Time};

/// The numbers of a meter: capacity and refill, reduced to integers.
#[derive(Clone, Debug)]
pub struct Meter {
    capacity: u64,
    /// The content of a full meter in units: `capacity × token`.
    full: u64,
    /// Units refilled per tick.
    per_tick: u32,
    /// Units in a token.
    token: u64,
    tick: Tick,
    /// How long an empty meter takes to refill. It is stored, because every answer needs it, and a division is
    /// slow.
    window: Span,
    /// Divides units by `token`, for the same reason.
    by_token: Divisor,
}

/// The other numbers follow from these.
impl PartialEq for Meter {
    #[inline]
    fn eq(&self, other: &Meter) -> bool {
        self.capacity == other.capacity
            && self.token == other.token
            && self.per_tick == other.per_tick
            && self.tick == other.tick
    }
}

impl Eq for Meter {}

impl Hash for Meter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// The instant at which the allowance is full again. Twelve bytes, so that a million states stay small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct State {
    /// The tick in which the allowance becomes full. After this tick, the meter is full.
    full_at: u64,
    /// The part of the tick `full_at` that has to pass, in `1/per_tick` ticks.
    fraction: u32,
}

impl State {
    /// Returns the state of an allowance that is full from the start of `tick` on.
    #[inline]
    const fn full_from(tick: u64) -> State {
        State {
            full_at: tick,
            fraction: 0,
        }
    }

    /// Returns the whole tick, and the fraction in `1/per_tick` of a tick.
    #[must_use]
    pub fn parts(self) -> (u64, u32) {
        (self.full_at, self.fraction)
    }
}

impl Meter {
    /// Returns a meter that holds `capacity` and refills at `rate`. The last two arguments are the names of
    /// these fields in errors.
    pub(crate) fn new(
        capacity: u64,
        rate: Rate,
        capacity_field: &'static str,
        rate_field: &'static str,
    ) -> Result<Meter, ParamError> {
        check_amount(capacity_field, capacity)?;
        let reduced = |tick: Tick| Meter::reduced(capacity, rate, tick);
        let meter = reduced(Tick::Micro).or_else(|| reduced(Tick::Milli));
        let inexact =
            || ParamProblem::NotExact(format!("{capacity} at a rate of {rate}"), Inexact::Refill);
        let slow = || ParamProblem::SlowRefill(format!("{capacity} at {rate}"));
        let meter = meter.ok_or_else(|| inexact().of(capacity_field))?;
        meter.in_time().ok_or_else(|| slow().of(rate_field))
    }

    /// Returns the meter that counts in this tick, or `None` if it cannot count exactly.
    pub(crate) fn reduced(capacity: u64, rate: Rate, tick: Tick) -> Option<Meter> {
        let micros = rate.period().as_micros();
        let divides = micros.is_multiple_of(tick.micros());
        let period = divides.then_some(micros / tick.micros())?;
        let divisor = gcd(rate.amount(), period);
        let per_tick = u32::try_from(rate.amount() / divisor).ok()?;
        Meter::exact(capacity, per_tick, period / divisor, tick)
    }

    /// Returns the meter with these numbers, or `None` if it cannot count exactly.
    fn exact(capacity: u64, per_tick: u32, token: u64, tick: Tick) -> Option<Meter> {
        let full = capacity.checked_mul(token).filter(|it| *it < EXACT)?;
        Some(Meter {
            capacity,
            full,
            per_tick,
            token,
            tick,
            window: tick.span(full.div_ceil(u64::from(per_tick))),
            by_token: Divisor::new(token),
        })
    }

    /// Returns the meter, or `None` if it does not refill within [`Span::MAX`].
    fn in_time(self) -> Option<Meter> {
        (self.window() <= Span::MAX).then_some(self)
    }

    /// Scales capacity and rate, as far as the result can be counted exactly.
    pub(crate) fn scaled(&self, scale: Scale) -> Meter {
        let token = scale.time(self.token).min(EXACT - 1);
        let divisor = gcd(token, self.rate());
        let token = token / divisor;
        let capacity = scale.amount(self.capacity).min((EXACT - 1) / token);
        let full = capacity * token;
        // `divisor` divides `per_tick`, so it fits.
        #[allow(clippy::cast_possible_truncation)]
        let per_tick = self.per_tick / divisor as u32;
        Meter {
            capacity,
            full,
            per_tick,
            token,
            tick: self.tick,
            window: self.tick.span(full.div_ceil(u64::from(per_tick))),
            by_token: Divisor::new(token),
        }
    }

    /// Returns into how many parts the meter can be split so that each part refills at an exact rate.
    pub(crate) fn most_parts(&self) -> u64 {
        (EXACT - 1) / self.token
    }

    /// Returns the meter with another capacity.
    pub(crate) fn with_capacity(&self, capacity: u64) -> Meter {
        let capacity = capacity.min((EXACT - 1) / self.token);
        Meter {
            capacity,
            full: capacity * self.token,
            ..self.clone()
        }
    }

    /// Returns the reduced numbers: capacity, units refilled per tick, units in a token, and the tick.
    #[must_use]
    pub fn parts(&self) -> (u64, u32, u64, Tick) {
        (self.capacity, self.per_tick, self.token, self.tick)
    }

    /// Returns the meter of these [parts](Self::parts).
    ///
    /// # Errors
    /// If the numbers cannot be counted exactly, or take longer than 71 years to refill.
    pub fn of_parts(
        capacity: u64,
        per_tick: u32,
        token: u64,
        tick: Tick,
    ) -> Result<Meter, ParamError> {
        check_amount("capacity", capacity)?;
        if per_tick == 0 || token == 0 {
            return Err(ParamProblem::ZeroRate.of("rate"));
        }
        let inexact = || ParamProblem::NotExact(format!("{capacity} of {token}"), Inexact::Refill);
        let slow = || ParamProblem::SlowRefill(format!("{capacity} at {per_tick} for {token}"));
        let meter = Meter::exact(capacity, per_tick, token, tick);
        let meter = meter.ok_or_else(|| inexact().of("capacity"))?;
        meter.in_time().ok_or_else(|| slow().of("rate"))
    }

    /// Returns how many whole tokens `units`, fewer than 2^53, are.
    #[inline]
    pub(crate) fn tokens(&self, units: u64) -> u64 {
        self.by_token.divide(units)
    }

    fn rate(&self) -> u64 {
        u64::from(self.per_tick)
    }

    /// Returns the missing units at `tick`. They can be more than a full meter holds, if the meter is
    /// overdrawn or the clock has gone back.
    #[inline]
    fn missing(&self, state: State, tick: u64) -> u64 {
        match state.full_at.checked_sub(tick) {
            None => 0,
            Some(ticks) if self.per_tick == 1 => ticks,
            Some(ticks) => ticks
                .saturating_mul(self.rate())
                .saturating_add(u64::from(state.fraction)),
        }
    }

    /// Returns the missing units at `tick`, but at most the units of a full meter.
    fn debt(&self, state: State, tick: u64) -> u64 {
        self.missing(state, tick).min(self.full)
    }

    /// Returns the most units that may be missing if up to `most` tokens may be overdrawn. Fewer tokens may
    /// be overdrawn if `most` tokens cannot be counted exactly, or do not refill within [`Span::MAX`].
    fn deepest(&self, most: u64) -> u64 {
        let in_time = (Span::MAX.as_micros() / self.tick.micros()).saturating_mul(self.rate());
        let room = in_time.min(EXACT - 1).saturating_sub(self.full);
        self.full + most.min(room / self.token) * self.token
    }

    /// Returns the state that misses `debt` units at `tick`.
    fn owing(&self, debt: u64, tick: u64) -> State {
        self.later(State::full_from(tick), debt)
    }

    /// Returns `state` with `units` more missing.
    #[inline]
    fn later(&self, state: State, units: u64) -> State {
        // Most rates reduce to one unit a tick, and the division is the slowest step here.
        if self.per_tick == 1 {
            return State::full_from(state.full_at + units);
        }
        let units = units + u64::from(state.fraction);
        State {
            full_at: state.full_at + units / self.rate(),
            // Below `per_tick`, which is a `u32`.
            #[allow(clippy::cast_possible_truncation)]
            fraction: (units % self.rate()) as u32,
        }
    }

    /// Returns the first tick at which at most `debt` units are missing.
    fn first_tick_owing_at_most(&self, state: State, debt: u64) -> u64 {
        let (full_at, fraction) = (state.full_at, u64::from(state.fraction));
        match fraction.checked_sub(debt) {
            Some(units) => full_at + units.div_ceil(self.rate()),
            None => full_at.saturating_sub((debt - fraction) / self.rate()),
        }
    }

    /// Returns the missing units at `now`, and `now`. If the meter is overdrawn or the clock went back, more
    /// than a full meter can be missing. In this case, returns the units of a full meter, and the instant at
    /// which only these units are missing.
    fn missing_when_seen(&self, state: State, now: Time) -> (u64, Time) {
        let seen = self.first_tick_owing_at_most(state, self.full);
        let seen = seen.max(self.tick.of(now));
        (self.debt(state, seen), self.tick.start(seen).max(now))
    }

    /// Returns the first microsecond at which nothing is missing. It may be later than [`Time::MAX`].
    pub(crate) fn full_at_micros(&self, state: State) -> u64 {
        let whole_ticks = state.full_at + u64::from(state.fraction > 0);
        whole_ticks.saturating_mul(self.tick.micros())
    }
}

impl Limiting for Meter {
    type State = State;

    #[inline]
    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn window(&self) -> Span {
        self.window
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        if let Some(available) = self.admits(state, cost, now) {
            return Verdict::allowed(available);
        }
        let missing = self.debt(*state, self.tick.of(now));
        let available = self.by_token.divide(self.full - missing);
        match self.capacity.checked_sub(cost) {
            None => Verdict::denied(Denial::Never, available),
            Some(left) => {
                let first = self.first_tick_owing_at_most(*state, left * self.token);
                Verdict::denied(Denial::Until(self.tick.start(first)), available)
            }
        }
    }

    #[inline(always)]
    fn admits(&self, state: &State, cost: u64, now: Time) -> Option<u64> {
        let missing = self.missing(*state, self.tick.of(now));
        let left = self.capacity.checked_sub(cost)?;
        (missing <= left * self.token).then(|| self.by_token.divide(self.full - missing))
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        let tick = self.tick.of(now);
        let from = match state.full_at < tick {
            true => State::full_from(tick),
            false => *state,
        };
        *state = self.later(from, cost * self.token);
    }

    fn overdraw(&self, state: &mut State, cost: u64, most: u64, now: Time) -> u64 {
        let tick = self.tick.of(now);
        let (missing, deepest) = (self.missing(*state, tick), self.deepest(most));
        if missing >= deepest {
            return 0;
        }
        let after = missing.saturating_add(cost.saturating_mul(self.token));
        let after = after.min(deepest);
        *state = self.owing(after, tick);
        (after - missing) / self.token
    }

    fn level(&self, state: &State, now: Time) -> i64 {
        // After a change to a much faster rate, the debt in the new units may be too large to be counted exactly.
        let missing = self.missing(*state, self.tick.of(now)).min(EXACT - 1);
        let token = i64::try_from(self.token).unwrap_or(i64::MAX);
        difference(self.full, missing).div_euclid(token)
    }

    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, now: Time) {
        let units = cost.min(self.capacity) * self.token;
        let ticks = self.tick.of(now).saturating_sub(self.tick.of(charged_at));
        let units = units.saturating_sub(ticks.saturating_mul(self.rate()));
        let fraction = u64::from(state.fraction);
        let back = units.saturating_sub(fraction).div_ceil(self.rate());
        *state = match state.full_at.checked_sub(back) {
            None => State::default(),
            Some(full_at) => {
                let left = back * self.rate() + fraction - units;
                self.owing(left, full_at)
            }
        };
    }

    #[inline]
    fn expires_at(&self, state: &State) -> Time {
        let whole_ticks = state.full_at + u64::from(state.fraction > 0);
        self.tick.start(whole_ticks)
    }

    fn keep(&self, from: &Meter, state: &mut State, how: CarryOver, now: Time) {
        let (missing, seen) = from.missing_when_seen(*state, now);
        let debt = match how.change(from.full, self.full) {
            Some(change) => change.share(missing),
            None => missing.div_ceil(from.token).min(self.capacity) * self.token,
        };
        *state = self.owing(debt, self.tick.of(seen));
    }
}

pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(capacity: u64, amount: u64, period: Span) -> Result<Meter, ParamError> {
        let rate = Rate::new(amount, period).unwrap();
        Meter::new(capacity, rate, "capacity", "rate")
    }

    fn meter(capacity: u64, amount: u64, period: Span) -> Meter {
        made(capacity, amount, period).unwrap()
    }

    #[test]
    fn a_state_is_twelve_bytes() {
        assert_eq!(size_of::<State>(), 12);
    }

    #[test]
    fn a_rate_is_reduced_by_its_common_divisor() {
        let m = meter(20, 100, Span::MINUTE);
        assert_eq!((m.per_tick, m.token, m.tick), (1, 600_000, Tick::Micro));
    }

    #[test]
    fn numbers_too_large_for_microseconds_tick_in_milliseconds() {
        let m = meter(1_000_000, 999_983, Span::DAY);
        assert_eq!(m.tick, Tick::Milli);
    }

    #[test]
    fn inexact_numbers_and_a_refill_of_centuries_are_rejected() {
        let inexact = made(1_000_000_000, 999_999_937, Span::DAY).unwrap_err();
        assert_eq!(inexact.field, "capacity");
        assert!(inexact.to_string().contains("2^53"), "{inexact}");
        let slow = made(100_000, 1, Span::DAY).unwrap_err();
        assert_eq!(slow.field, "rate");
    }

    #[test]
    fn a_third_of_a_tick_is_kept_and_not_rounded() {
        let m = meter(3, 3, Span::from_micros(10));
        let (mut state, start) = (State::default(), Time::from_micros(1000));
        for _ in 0..3 {
            m.charge(&mut state, 1, start);
        }
        assert_eq!(state.parts(), (1010, 0));
        // Tokens come back after 10/3, 20/3 and 10 microseconds. They are available from 4, 7 and 10 on.
        for (micros, expected) in [(3, 0), (4, 1), (6, 1), (7, 2), (9, 2), (10, 3)] {
            let now = start + Span::from_micros(micros);
            let available = m.decide(&state, 0, now).available;
            assert_eq!(available, expected, "after {micros}");
        }
    }

    #[test]
    fn a_refund_undoes_a_charge_to_the_last_unit() {
        let m = meter(10, 7, Span::from_micros(1000));
        let mut state = State::default();
        m.charge(&mut state, 3, Time::from_micros(500));
        let before = state;
        let at = Time::from_micros(600);
        m.charge(&mut state, 5, at);
        m.refund(&mut state, 5, at, at);
        assert_eq!(state, before);
    }

    #[test]
    fn a_refund_excludes_what_has_refilled_since() {
        let m = meter(10, 10, Span::SECOND);
        let start = Time::from_micros(5_000_000);
        let later = start + Span::SECOND;
        let mut state = State::default();
        m.charge(&mut state, 10, start);
        m.charge(&mut state, 10, later);
        m.refund(&mut state, 10, start, later);
        assert_eq!(m.decide(&state, 0, later).available, 0);
        let much_later = later + Span::from_millis(300);
        m.refund(&mut state, 10, later, much_later);
        assert_eq!(m.decide(&state, 0, much_later).available, 10);
    }

    #[test]
    fn a_faster_rate_acts_at_once_and_a_smaller_capacity_caps_the_debt() {
        let [slow, fast, small] =
            [(10, 1), (10, 10), (2, 10)].map(|(most, rate)| meter(most, rate, Span::SECOND));
        let now = Time::from_micros(50_000_000);
        let mut state = State::default();
        slow.charge(&mut state, 10, now);
        for (from, to) in [(&slow, &fast), (&fast, &small)] {
            to.carry_over(from, &mut state, CarryOver::Keep, now);
            let retry_at = to.decide(&state, 1, now).retry_at();
            assert_eq!(retry_at, Some(now + Span::from_millis(100)));
        }
    }
}
