//! Conversions of numbers for plots and random arrivals, where rounding does no harm.

/// Returns the whole part of a number; 0 if it is negative or not a number.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and negative numbers become 0"
)]
pub(crate) fn floor(number: f64) -> u64 {
    number as u64
}

/// Returns `part` of `whole` as a number from 0 to 1; 0 if `whole` is 0.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
