//! Types for time, spans and rates, all integers.
//!
//! Invariant: every value, and every [`Time`] plus the longest [`Span`], is below 2^53, so that sums are
//! exact in a double.

use std::fmt;
use std::ops::{Add, Sub};

use crate::ParamError;
use crate::param::{ParamProblem, check_amount, check_span};

/// The largest amount (limit, burst, cost) in a rule or request: 2^52 - 1.
pub const MAX_AMOUNT: u64 = (1 << 52) - 1;

/// All integers up to this one are exact in a double; above it, some are not.
pub(crate) const EXACT: u64 = 1 << 53;

/// An instant: microseconds since the Unix epoch, at most 2^52 (the year 2112).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The latest instant. Later instants saturate here.
    pub const MAX: Time = Time(1 << 52);

    /// Returns the instant `micros` microseconds after the epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Time {
        if micros > Time::MAX.0 {
            Time::MAX
        } else {
            Time(micros)
        }
    }

    /// Returns the microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the milliseconds since the epoch, rounded up: never earlier than the instant itself.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is not before this instant.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Time {
    type Output = Time;

    fn add(self, span: Span) -> Time {
        Time::from_micros(self.0.saturating_add(span.0))
    }
}

/// Instants before the epoch saturate at the epoch.
impl Sub<Span> for Time {
    type Output = Time;

    fn sub(self, span: Span) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// One second.
    pub const SECOND: Span = Span(1_000_000);
    /// One minute.
    pub const MINUTE: Span = Span(60_000_000);
    /// One hour.
    pub const HOUR: Span = Span(3_600_000_000);
    /// One day of 24 hours.
    pub const DAY: Span = Span(86_400_000_000);
    /// The longest period, window or refill time that a rule may have: 2^51 microseconds, or 71 years.
    pub const MAX: Span = Span(1 << 51);

    /// Returns a span of `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Span {
        Span(micros)
    }

    /// Returns a span of `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Span {
        Span(millis.saturating_mul(1000))
    }

    /// Returns a span of `secs` seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Span {
        Span(secs.saturating_mul(1_000_000))
    }

    /// Returns the microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the milliseconds, rounded up, so that a wait is never too short.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Returns the seconds, rounded up, so that a wait is never too short.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }
}

impl From<Span> for std::time::Duration {
    fn from(span: Span) -> std::time::Duration {
        std::time::Duration::from_micros(span.0)
    }
}

impl fmt::Display for Span {
    /// Writes the shortest exact form in the syntax of rules files: `10m`, `1500ms`, `7d`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (Span::DAY.0, "d"),
            (Span::HOUR.0, "h"),
            (Span::MINUTE.0, "m"),
            (Span::SECOND.0, "s"),
            (1000, "ms"),
            (1, "us"),
        ];
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let (size, name) = UNITS
            .into_iter()
            .find(|(size, _)| self.0.is_multiple_of(*size))
            .unwrap_or((1, "us"));
        write!(f, "{}{name}", self.0 / size)
    }
}

/// An amount per period, both above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    amount: u64,
    period: Span,
}

impl Rate {
    /// Returns a rate of `amount` per `period`.
    ///
    /// # Errors
    /// If the amount or the period is zero or out of range.
    pub fn new(amount: u64, period: Span) -> Result<Rate, ParamError> {
        if amount == 0 {
            return Err(ParamProblem::ZeroRate.of("rate"));
        }
        check_amount("rate", amount)?;
        check_span("rate", period)?;
        Ok(Rate { amount, period })
    }

    /// Returns the amount per period.
    #[must_use]
    pub const fn amount(self) -> u64 {
        self.amount
    }

    /// Returns the period.
    #[must_use]
    pub const fn period(self) -> Span {
        self.period
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = self.period.to_string();
        match period.strip_prefix('1') {
            Some(unit) if unit.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                write!(f, "{}/{unit}", self.amount)
            }
            _ => write!(f, "{}/{period}", self.amount),
        }
    }
}

/// A factor that limits are scaled by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    numerator: u32,
    denominator: u32,
}

impl Scale {
    /// Returns the factor `numerator / denominator`. A denominator of 0 is treated as 1.
    pub(crate) fn new(numerator: u32, denominator: u32) -> Scale {
        Scale {
            numerator,
            denominator: denominator.max(1),
        }
    }

    /// Scales `amount`, rounded down. The result is at most [`MAX_AMOUNT`], and at least 1 unless `amount` is
    /// 0.
    pub(crate) fn amount(self, amount: u64) -> u64 {
        let scaled = u128::from(amount) * u128::from(self.numerator) / u128::from(self.denominator);
        let scaled = u64::try_from(scaled).unwrap_or(MAX_AMOUNT);
        scaled.clamp(amount.min(1), MAX_AMOUNT)
    }

    /// Scales the time between two events, when their rate is scaled by this factor. The result is rounded
    /// up, and at least 1.
    pub(crate) fn time(self, time: u64) -> u64 {
        let time = u128::from(time) * u128::from(self.denominator);
        let time = time.div_ceil(u128::from(self.numerator.max(1)));
        u64::try_from(time).unwrap_or(u64::MAX).max(1)
    }
}

/// The resolution of time in which a limit computes.
///
/// A tick is a microsecond, or a millisecond if products of the numbers would exceed 2^53. A decision
/// depends on the tick that contains its instant, so promised instants are exact with either tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tick {
    /// One microsecond.
    Micro,
    /// One millisecond.
    Milli,
}

impl Tick {
    /// Returns the microseconds in a tick.
    #[must_use]
    pub const fn micros(self) -> u64 {
        match self {
            Tick::Micro => 1,
            Tick::Milli => 1000,
        }
    }

    /// Returns the number of the tick that contains `time`, counted from the epoch.
    #[must_use]
    pub const fn of(self, time: Time) -> u64 {
        match self {
            Tick::Micro => time.0,
            Tick::Milli => time.0 / 1000,
        }
    }

    /// Returns the first instant of tick number `tick`.
    #[must_use]
    pub const fn start(self, tick: u64) -> Time {
        match self {
            Tick::Micro => Time::from_micros(tick),
            Tick::Milli => Time::from_micros(tick.saturating_mul(1000)),
        }
    }

    /// Returns the span of `ticks` ticks.
    #[must_use]
    pub const fn span(self, ticks: u64) -> Span {
        Span::from_micros(ticks.saturating_mul(self.micros()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_print_in_the_syntax_of_the_rules_file() {
        let printed = [0, 7, 1500, 50_000, 90_000_000, 3_600_000_000]
            .map(|us| Span::from_micros(us).to_string());
        assert_eq!(printed, ["0s", "7us", "1500us", "50ms", "90s", "1h"]);
    }

    #[test]
    fn rates_print_in_the_syntax_of_the_rules_file() {
        let rate = |amount, period| Rate::new(amount, period).unwrap().to_string();
        assert_eq!(rate(100, Span::MINUTE), "100/m");
        assert_eq!(rate(5, Span::from_secs(600)), "5/10m");
        assert_eq!(rate(5, Span::from_secs(15)), "5/15s");
    }

    #[test]
    fn waits_round_up() {
        assert_eq!(Span::from_micros(1).as_secs_ceil(), 1);
        assert_eq!(Span::from_micros(1_000_001).as_millis_ceil(), 1001);
    }

    #[test]
    fn time_saturates_instead_of_wrapping() {
        assert_eq!(Time::MAX + Span::MAX, Time::MAX);
        assert_eq!(Time::from_micros(u64::MAX), Time::MAX);
        assert_eq!(Time::default().since(Time::MAX), Span::ZERO);
        assert_eq!(Time::default() - Span::MAX, Time::default());
    }

    #[test]
    fn a_milli_tick_starts_on_the_millisecond() {
        let t = Time::from_micros(1_234_567);
        assert_eq!(Tick::Milli.of(t), 1234);
        assert_eq!(Tick::Milli.start(1234), Time::from_micros(1_234_000));
    }
}
