//! Concurrency: so many at once.
//!
//! # Promise
//! At most `limit` slots are held at any instant. A slot is held until its holder gives it back, or until
//! its lease ends without having been renewed, and not a microsecond less.

use crate::ParamError;
use crate::param::check_span;
use crate::units::{Scale, Span};

/// The most slots that one subject may have.
pub const MAX_SLOTS: u64 = 100_000;

/// The numbers of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: u64,
    lease: u64,
}

/// `limit` slots, each held for `lease` unless renewed. A limit of 0 admits nobody.
///
/// # Errors
/// If a number is out of range.
pub fn new(limit: u64, lease: Span) -> Result<Concurrency, ParamError> {
    if limit > MAX_SLOTS {
        return Err(ParamError::too_large("limit", limit, MAX_SLOTS));
    }
    check_span("lease", lease)?;
    Ok(Concurrency {
        limit,
        lease: lease.as_micros(),
    })
}

impl Concurrency {
    pub(crate) fn scaled(&self, scale: Scale) -> Concurrency {
        Concurrency {
            limit: scale.amount(self.limit),
            ..*self
        }
    }

    /// The same with another limit.
    pub(crate) fn with_limit(&self, limit: u64) -> Result<Concurrency, ParamError> {
        new(limit, self.lease())
    }

    /// How many may hold a slot at once.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a slot is held unless it is renewed.
    #[must_use]
    pub fn lease(&self) -> Span {
        Span::from_micros(self.lease)
    }
}
