//! What happens to a state when the numbers of its limit change.
//!
//! Each algorithm converts its state in its own file. This file has the code that several algorithms
//! share. If the old or the new capacity is 0, there is no share to keep: [`CarryOver::Proportional`] does
//! the same as [`CarryOver::Keep`]. An unlimited rule does not read or write a state. When such a rule gets
//! a limit again, it finds its old state, unless the state has expired.

/// What happens to a subject's state when the numbers of its limit change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CarryOver {
    /// The used amount stays used, as far as the new numbers can hold it.
    #[default]
    Keep,
    /// The used share of the allowance stays used, rounded up to whole units.
    Proportional,
    /// The state is dropped, as if the subject had never been seen.
    Reset,
}

impl CarryOver {
    /// All variants.
    pub const ALL: [CarryOver; 3] = [CarryOver::Keep, CarryOver::Proportional, CarryOver::Reset];

    /// Returns the name in rules files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CarryOver::Keep => "keep",
            CarryOver::Proportional => "proportional",
            CarryOver::Reset => "reset",
        }
    }

    /// Returns the change of capacity by which used amounts are scaled. Returns `None` if used amounts stay
    /// as they are.
    pub(crate) fn change(self, from: u64, to: u64) -> Option<Change> {
        let scales = self == CarryOver::Proportional && from > 0 && to > 0;
        scales.then_some(Change { from, to })
    }
}

/// A change of capacity. Neither capacity is 0.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    from: u64,
    to: u64,
}

impl Change {
    /// Scales `used` from the capacity `from` to the capacity `to`, rounded up. An overdrawn amount stays
    /// overdrawn.
    pub(crate) fn share(self, used: u64) -> u64 {
        let share = (u128::from(used) * u128::from(self.to)).div_ceil(u128::from(self.from));
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Scales `amounts`, which come newest first. Each running sum is scaled and rounded up once. So the sum
    /// stays right when the oldest amounts leave the window. The sum is at most `to`.
    pub(crate) fn scale<'a>(self, amounts: impl Iterator<Item = &'a mut u64>) {
        let (mut before, mut after) = (0, 0);
        for amount in amounts {
            before += *amount;
            let share = self.share(before).min(self.to);
            *amount = share - after;
            after = share;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_AMOUNT;

    #[test]
    fn a_share_is_rounded_up_and_exact_for_the_largest_amounts() {
        const LARGE: u64 = MAX_AMOUNT - 1;
        for (used, from, to, share) in [
            (5, 10, 3, 2),
            (10, 10, 3, 3),
            (0, 10, 3, 0),
            (1, MAX_AMOUNT, 1, 1),
            (LARGE, MAX_AMOUNT, LARGE, LARGE),
        ] {
            assert_eq!(Change { from, to }.share(used), share);
        }
    }

    #[test]
    fn without_a_capacity_there_are_no_shares() {
        for (from, to) in [(0, 1), (1, 0)] {
            assert!(CarryOver::Proportional.change(from, to).is_none());
        }
    }

    #[test]
    fn every_running_sum_keeps_its_share() {
        let mut amounts = [1, 1, 1, 4, 1];
        Change { from: 10, to: 5 }.scale(amounts.iter_mut());
        // The running sums 1, 2, 3, 7 and 8 become 1, 1, 2, 4 and 4.
        assert_eq!(amounts, [1, 0, 1, 2, 0]);
    }
}
