//! Why the numbers of a limit are rejected.

use std::fmt;

use crate::units::{MAX_AMOUNT, Span};

/// A number that a limit cannot have. `field` is its name in rules files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// A rate of zero would never refill.
    #[error("a rate of 0 never refills, so it would block for ever after the first burst")]
    ZeroRate {
        /// The name in rules files.
        field: &'static str,
    },
    /// A span of zero.
    #[error("a span of time must be longer than 0")]
    ZeroSpan {
        /// The name in rules files.
        field: &'static str,
    },
    /// A span beyond [`Span::MAX`].
    #[error("a span of {span} is longer than 71 years")]
    LongSpan {
        /// The name in rules files.
        field: &'static str,
        /// The rejected value.
        span: Span,
    },
    /// A span shorter than its minimum.
    #[error("a span of {span} is shorter than {least}")]
    ShortSpan {
        /// The name in rules files.
        field: &'static str,
        /// The rejected value.
        span: Span,
        /// The minimum.
        least: Span,
    },
    /// An amount above its maximum.
    #[error("{value} is above the largest amount, {max}")]
    TooLarge {
        /// The name in rules files.
        field: &'static str,
        /// The rejected value.
        value: u64,
        /// The maximum.
        max: u64,
    },
    /// A count outside its range.
    #[error("{value} is not between {min} and {max}")]
    OutOfRange {
        /// The name in rules files.
        field: &'static str,
        /// The rejected value.
        value: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// Numbers whose product cannot be kept exactly below 2^53, even in milliseconds.
    #[error("{what} cannot be counted exactly: the product of the numbers exceeds 2^53")]
    NotExact {
        /// The name in rules files.
        field: &'static str,
        /// The numbers, in words.
        what: String,
    },
    /// A bucket that takes longer than [`Span::MAX`] to refill.
    #[error("{what} takes longer than 71 years to refill")]
    SlowRefill {
        /// The name in rules files.
        field: &'static str,
        /// The numbers, in words.
        what: String,
    },
    /// A time zone that is not in the database.
    #[error("there is no time zone `{name}`")]
    UnknownZone {
        /// The name in rules files.
        field: &'static str,
        /// The rejected value.
        name: String,
    },
    /// A day on which no such period can begin.
    #[error("no {unit} begins on that day")]
    ImpossibleAnchor {
        /// The name in rules files.
        field: &'static str,
        /// The unit of the period.
        unit: &'static str,
    },
}

impl ParamError {
    pub(crate) fn too_large(field: &'static str, value: u64, max: u64) -> ParamError {
        ParamError::TooLarge { field, value, max }
    }

    /// Returns the name of the wrong number in rules files.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            ParamError::ZeroRate { field }
            | ParamError::ZeroSpan { field }
            | ParamError::LongSpan { field, .. }
            | ParamError::ShortSpan { field, .. }
            | ParamError::TooLarge { field, .. }
            | ParamError::OutOfRange { field, .. }
            | ParamError::NotExact { field, .. }
            | ParamError::SlowRefill { field, .. }
            | ParamError::UnknownZone { field, .. }
            | ParamError::ImpossibleAnchor { field, .. } => field,
        }
    }

    /// Returns the remedy.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            ParamError::ZeroRate { .. } => {
                "to deny everything write a limit, capacity or burst of 0; \
                 to allow everything write `unlimited`"
                    .to_owned()
            }
            ParamError::ZeroSpan { .. } => "write a span such as 1s, 10m or 24h".to_owned(),
            ParamError::LongSpan { .. } => "write a shorter span, at most 26000d".to_owned(),
            ParamError::ShortSpan { least, .. } => format!("write {least} or a longer span"),
            ParamError::TooLarge { max, .. } => format!("write at most {max}, or `unlimited`"),
            ParamError::OutOfRange { min, max, .. } => {
                format!("write a number from {min} to {max}")
            }
            ParamError::NotExact { .. } => {
                "use rounder numbers (a rate that divides its period), a shorter period, \
                 or a smaller limit"
                    .to_owned()
            }
            ParamError::UnknownZone { .. } => {
                "write a name of the IANA database, such as Europe/Berlin or UTC".to_owned()
            }
            ParamError::ImpossibleAnchor { unit, .. } => match *unit {
                "week" => "write a day of the week, such as monday".to_owned(),
                "month" => "write a day of the month, from 1 to 31".to_owned(),
                "year" => "write a month and a day, such as 04-01".to_owned(),
                _ => "leave `anchor` out: hours and days have none".to_owned(),
            },
            ParamError::SlowRefill { .. } => "use a faster rate or a smaller capacity".to_owned(),
        }
    }
}

pub(crate) fn check_amount(field: &'static str, value: u64) -> Result<u64, ParamError> {
    if value > MAX_AMOUNT {
        return Err(ParamError::too_large(field, value, MAX_AMOUNT));
    }
    Ok(value)
}

pub(crate) fn check_span(field: &'static str, span: Span) -> Result<Span, ParamError> {
    if span == Span::ZERO {
        return Err(ParamError::ZeroSpan { field });
    }
    if span > Span::MAX {
        return Err(ParamError::LongSpan { field, span });
    }
    Ok(span)
}

pub(crate) fn not_exact(field: &'static str, what: fmt::Arguments<'_>) -> ParamError {
    ParamError::NotExact {
        field,
        what: what.to_string(),
    }
}
