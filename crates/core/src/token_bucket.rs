//! Token bucket: a bucket of `capacity` tokens that `refill`s steadily.
//!
//! # Promise
//! In any span `t`, at most `capacity + refill × t` is taken; error bound 0. An empty bucket refills
//! exactly as time passes, and never beyond `capacity`. A clock that goes backwards refills nothing, and
//! no span refills twice. A state expires at the instant at which the bucket is full.
//!
//! [`crate::meter`] does the arithmetic, in exact fractions of a token. Its docs describe changes of the
//! numbers. A token bucket and [`crate::gcra`] with the same numbers make the same decisions. A rule may
//! change from one to the other without losing its state.
//! Proof: `tests/properties.rs`, `tests/long_run.rs`.

use crate::meter::Meter;
use crate::{ParamError, Rate};

/// Returns a bucket of `capacity` tokens, refilled at `refill`. A capacity of 0 admits nothing.
///
/// # Errors
/// If the numbers cannot be counted exactly, or take longer than 71 years to refill.
pub fn new(capacity: u64, refill: Rate) -> Result<Meter, ParamError> {
    Meter::new(capacity, refill, "capacity", "refill")
}
