//! Division by a number that stays the same: a multiplication and a shift.
//!
//! # Invariant
//! For every dividend below 2^53, the quotient is that of `/`. With `k` such that `2^k` is the largest power of two
//! that is not above the divisor `d`, the factor is `2^(63+k) / d`, rounded up. It exceeds the exact factor by less
//! than one. So a product with `n` exceeds the exact product by less than `n`, and `n < 2^53` is less than
//! `2^(63+k) / d`, which would be needed to reach the next quotient.

use crate::units::EXACT;

/// A divisor, prepared for dividends below 2^53.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    factor: u64,
    shift: u32,
}

impl Divisor {
    /// Prepares a divisor. A divisor of 0 counts as 1.
    pub(crate) fn new(divisor: u64) -> Divisor {
        let divisor = divisor.max(1);
        let shift = divisor.ilog2();
        let factor = (1_u128 << (63 + shift)).div_ceil(u128::from(divisor));
        Divisor {
            // `2^shift` is at most the divisor, so the factor is at most 2^63.
            factor: u64::try_from(factor).unwrap_or(u64::MAX),
            shift,
        }
    }

    /// Returns `dividend`, which is below 2^53, divided by the divisor and rounded down.
    #[inline]
    pub(crate) fn divide(self, dividend: u64) -> u64 {
        debug_assert!(dividend < EXACT);
        let product = u128::from(dividend << 1) * u128::from(self.factor);
        // The upper half of a product of two words is a word.
        #[allow(clippy::cast_possible_truncation)]
        let upper = (product >> 64) as u64;
        upper >> self.shift
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agrees(dividend: u64, divisor: u64) -> bool {
        Divisor::new(divisor).divide(dividend) == dividend / divisor
    }

    #[test]
    fn agrees_with_a_division_next_to_powers_of_two_and_multiples() {
        let near = |power: u32| [0, 1, 2].map(|by| ((1_u64 << power) + by).saturating_sub(1));
        let divisors = (0..53).flat_map(near).filter(|it| (1..EXACT).contains(it));
        for divisor in divisors.chain([3, 7, 10, 1000, 600_000, 1_000_000, 86_400_000_000]) {
            let most = (EXACT - 1) / divisor;
            for times in [0, 1, 2, most / 2, most - 1, most].map(|it| it.min(most)) {
                for dividend in [times * divisor, (times * divisor).saturating_sub(1)] {
                    assert!(agrees(dividend, divisor), "{dividend} / {divisor}");
                }
                let last = (times * divisor + (divisor - 1)).min(EXACT - 1);
                assert!(agrees(last, divisor), "{last} / {divisor}");
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_division(dividend in 0..EXACT, divisor in 1..EXACT, bits in 0..53_u32) {
            // Divisors of every size.
            let divisor = (divisor >> bits).max(1);
            prop_assert!(agrees(dividend, divisor), "{dividend} / {divisor}");
            let multiple = dividend / divisor * divisor;
            prop_assert!(agrees(multiple, divisor), "{multiple} / {divisor}");
            prop_assert!(agrees(multiple.saturating_sub(1), divisor), "{multiple} - 1 / {divisor}");
        }
    }
}
