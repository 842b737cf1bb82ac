//! The errors of numbers that a limit cannot have.

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
    /// The longest block of a back-off (`max`), and its first block (`base`), which is longer.
    #[error("a `max` of {0} is shorter than the `base` of {1}")]
    ShortSpan(Span, Span),
    /// An amount, and the largest amount that is allowed.
    #[error("{0} is above the largest amount, {1}")]
    TooLarge(u64, u64),
    /// A count, and the range that is allowed.
    #[error("{0} is not between {min} and {max}", min = .1.start(), max = .1.end())]
    OutOfRange(u64, RangeInclusive<u64>),
    /// An amount and a time that cannot be counted exactly: see [`Inexact`].
    #[error("{0} cannot be counted exactly: {1}")]
    NotExact(String, Inexact),
    /// The numbers of a bucket. The bucket takes longer than [`Span::MAX`] to refill.
    #[error("{0} takes longer than 71 years to refill")]
    SlowRefill(String),
    /// The name of a time zone that the IANA database does not have.
    #[error("there is no time zone `{0}`")]
    UnknownZone(String),
    /// The unit of a period. The period cannot begin on the anchor.
    #[error("the `anchor` does not fit a period of {0}s")]
    ImpossibleAnchor(&'static str),
}

/// Which product is too large to be counted exactly, not even in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inexact {
    /// The capacity of a bucket, times the period of its rate in lowest terms.
    #[error(
        "the burst or capacity times the milliseconds of the rate's period is 2^53 or more, even with the \
         rate in lowest terms"
    )]
    Refill,
    /// The capacity of a fair bucket, times the period of its rate and the shares of its lanes in lowest terms.
    #[error(
        "the capacity times the milliseconds of the rate's period and the shares of the lanes is 2^53 or more, \
         even in lowest terms"
    )]
    Fair,
    /// The limit of a two-window counter, times its window. Sums of two products have to be exact.
    #[error("the limit times the milliseconds of the window is 2^52 or more")]
    Window,
}

impl ParamProblem {
    /// Makes the error that says which number has this problem: `field`.
    pub(crate) fn of(self, field: &'static str) -> ParamError {
        let problem = self;
        ParamError { field, problem }
    }
}

impl ParamError {
    /// Returns the remedy: how to fix the number.
    #[must_use]
    pub fn help(&self) -> String {
        let fixed = match &self.problem {
            ParamProblem::ZeroRate => {
                "to deny everything write a limit, capacity or burst of 0; \
                 to allow everything write `unlimited`"
            }
            ParamProblem::ZeroSpan => "write a span such as 1s, 10m or 24h",
            ParamProblem::LongSpan(_) => "write a shorter span, at most 26000d",
            ParamProblem::ShortSpan(_, base) => {
                return format!("write a `max` of {base} or longer, or a shorter `base`");
            }
            ParamProblem::TooLarge(_, max) => {
                return format!("write at most {max}, or `unlimited`");
            }
            ParamProblem::OutOfRange(_, range) => {
                return format!("write a number from {} to {}", range.start(), range.end());
            }
            ParamProblem::NotExact(_, Inexact::Refill) => {
                "write a rate that divides its period, such as 1000/s, a shorter period, or a \
                 smaller burst or capacity"
            }
            ParamProblem::NotExact(_, Inexact::Fair) => {
                "write a rate that divides its period, such as 1000/s, a smaller capacity, or shares of lanes in \
                 round numbers, such as 60% and 40%"
            }
            ParamProblem::NotExact(_, Inexact::Window) => {
                "write a smaller limit or a shorter window, or `buckets` instead of `estimate`"
            }
            ParamProblem::UnknownZone(_) => {
                "write a name of the IANA database, such as Europe/Berlin or UTC"
            }
            ParamProblem::ImpossibleAnchor("week") => "write a day of the week, such as monday",
            ParamProblem::ImpossibleAnchor("month") => "write a day of the month, from 1 to 31",
            ParamProblem::ImpossibleAnchor("year") => "write a month and a day, such as 04-01",
            ParamProblem::ImpossibleAnchor(_) => "remove `anchor`",
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
