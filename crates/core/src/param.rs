//! Why the numbers of a limit are rejected.

use std::ops::RangeInclusive;

use crate::units::{MAX_AMOUNT, Span};

/// A number that a limit cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ParamError {
    /// The name of the number in rules files.
    pub field: &'static str,
    /// The problem with the number.
    pub problem: ParamProblem,
}

/// A problem with a number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamProblem {
    /// A rate of zero would never refill.
    #[error("a rate of 0 never refills, so it would block for ever after the first burst")]
    ZeroRate,
    /// A span of zero.
    #[error("a span of time must be longer than 0")]
    ZeroSpan,
    /// A span beyond [`Span::MAX`].
    #[error("a span of {0} is longer than 71 years")]
    LongSpan(Span),
    /// A span, and the minimum that it falls short of.
    #[error("a span of {0} is shorter than {1}")]
    ShortSpan(Span, Span),
    /// An amount, and the maximum that it exceeds.
    #[error("{0} is above the largest amount, {1}")]
    TooLarge(u64, u64),
    /// A count, and the range that it is not in.
    #[error("{0} is not between {min} and {max}", min = .1.start(), max = .1.end())]
    OutOfRange(u64, RangeInclusive<u64>),
    /// Numbers whose product cannot be kept exactly below 2^53, even in milliseconds.
    #[error("{0} cannot be counted exactly: the product of the numbers exceeds 2^53")]
    NotExact(String),
    /// Numbers of a bucket that takes longer than [`Span::MAX`] to refill.
    #[error("{0} takes longer than 71 years to refill")]
    SlowRefill(String),
    /// A time zone that is not in the database.
    #[error("there is no time zone `{0}`")]
    UnknownZone(String),
    /// The unit of a period that cannot begin on the day of its anchor.
    #[error("no {0} begins on that day")]
    ImpossibleAnchor(&'static str),
}

impl ParamProblem {
    /// Returns the error of this problem with the number `field`.
    pub(crate) fn of(self, field: &'static str) -> ParamError {
        let problem = self;
        ParamError { field, problem }
    }
}

impl ParamError {
    /// Returns the help text: how to fix the number.
    #[must_use]
    pub fn help(&self) -> String {
        let fixed = match &self.problem {
            ParamProblem::ZeroRate => {
                "to deny everything write a limit, capacity or burst of 0; \
                 to allow everything write `unlimited`"
            }
            ParamProblem::ZeroSpan => "write a span such as 1s, 10m or 24h",
            ParamProblem::LongSpan(_) => "write a shorter span, at most 26000d",
            ParamProblem::ShortSpan(_, min) => return format!("write {min} or a longer span"),
            ParamProblem::TooLarge(_, max) => {
                return format!("write at most {max}, or `unlimited`");
            }
            ParamProblem::OutOfRange(_, range) => {
                return format!("write a number from {} to {}", range.start(), range.end());
            }
            ParamProblem::NotExact(_) => {
                "use rounder numbers (a rate that divides its period), a shorter period, \
                 or a smaller limit"
            }
            ParamProblem::UnknownZone(_) => {
                "write a name of the IANA database, such as Europe/Berlin or UTC"
            }
            ParamProblem::ImpossibleAnchor("week") => "write a day of the week, such as monday",
            ParamProblem::ImpossibleAnchor("month") => "write a day of the month, from 1 to 31",
            ParamProblem::ImpossibleAnchor("year") => "write a month and a day, such as 04-01",
            ParamProblem::ImpossibleAnchor(_) => "leave `anchor` out: hours and days have none",
            ParamProblem::SlowRefill(_) => "use a faster rate or a smaller capacity",
        };
        fixed.to_owned()
    }
}

pub(crate) fn check_amount(field: &'static str, value: u64) -> Result<(), ParamError> {
    match value {
        0..=MAX_AMOUNT => Ok(()),
        _ => Err(ParamProblem::TooLarge(value, MAX_AMOUNT).of(field)),
    }
}

/// Checks a limit and its window, and returns the microseconds in the window.
pub(crate) fn check_window(limit: u64, window: Span) -> Result<u64, ParamError> {
    check_amount("limit", limit)?;
    check_span("window", window)?;
    Ok(window.as_micros())
}

pub(crate) fn check_span(field: &'static str, span: Span) -> Result<(), ParamError> {
    match span {
        Span::ZERO => Err(ParamProblem::ZeroSpan.of(field)),
        span if span > Span::MAX => Err(ParamProblem::LongSpan(span).of(field)),
        _ => Ok(()),
    }
}
