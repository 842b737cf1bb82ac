//! Token bucket: a bucket of `capacity` tokens that `refill`s steadily.
//!
//! # Promise
//! In any span `t`, at most `capacity + refill × t` is taken; error bound 0. A drained bucket that
//! idles holds exactly what the time has refilled, never more than `capacity`; a clock that goes
//! backwards refills nothing, and no span refills twice. Idle state expires at the instant the
//! bucket is full.
//!
//! The level is kept as what is missing, in exact fractions of a token: see [`crate::meter`], which
//! does the arithmetic, and says what a change of numbers does to a bucket. A token bucket decides
//! as [`crate::gcra`] with the same numbers does, and a rule may move from one to the other without
//! losing its state. Proof: `tests/properties.rs`, `tests/long_run.rs`.

use crate::meter::Meter;
use crate::{ParamError, Rate};

/// A bucket of `capacity` tokens, refilled at `refill`. A capacity of 0 admits nothing.
///
/// # Errors
/// If the numbers cannot be counted exactly, or take longer than 71 years to refill.
pub fn new(capacity: u64, refill: Rate) -> Result<Meter, ParamError> {
    Meter::new(capacity, refill, "capacity", "refill")
}
