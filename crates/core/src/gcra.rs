//! GCRA: admits `rate` sustained and `burst` at once, and keeps one timestamp per subject.
//!
//! The generic cell rate algorithm keeps the theoretical arrival time of the next conforming
//! request, and denies requests that come too far ahead of it. GCRA is the default for distributed
//! limits because its state is the smallest.
//!
//! # Promise
//! In any span `t`, at most `burst + rate × t` is admitted; error bound 0. After any idle time, at most
//! `burst` is admitted at once. A denial names the exact microsecond at which the request would be
//! admitted.
//!
//! The long-run rate is exactly `rate`: nothing drifts, not even at 7 an hour or 333 a second. There is one
//! exception: a burst of 1 with an interval that is not a whole number of microseconds. In this case a
//! client that always asks at the promised microsecond gets slightly less than `rate`. Each token arrives
//! within a microsecond, and the state cannot store the rest of that microsecond.
//!
//! [`crate::meter`] does the arithmetic. Its docs describe the lifetime of a state, and changes of the
//! numbers.
//! Proof: `tests/properties.rs`, `tests/long_run.rs`.

use crate::meter::Meter;
use crate::{ParamError, Rate};

/// Returns a limit of `rate` sustained, with bursts of up to `burst`. A burst of 0 admits nothing.
///
/// # Errors
/// If the numbers cannot be counted exactly, or take longer than 71 years to refill.
pub fn new(rate: Rate, burst: u64) -> Result<Meter, ParamError> {
    Meter::new(burst, rate, "burst", "rate")
}
