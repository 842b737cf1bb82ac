//! What becomes of a state when the numbers of its limit change.
//!
//! Each algorithm says in its own file how a state is re-expressed; what they have in common is
//! here. To and from a capacity of 0, which has no shares, [`CarryOver::Proportional`] does as
//! [`CarryOver::Keep`] does. A limit without a bound neither reads nor writes a state: what was used
//! before is carried over from the numbers it was written under, if it has not expired by then.

/// What becomes of a subject's state when the numbers of its limit change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CarryOver {
    /// What is used stays used, as far as the new numbers can hold it.
    #[default]
    Keep,
    /// The share of the allowance that is used stays used, rounded up to whole units.
    Proportional,
    /// As if the subject had never been seen.
    Reset,
}

impl CarryOver {
    /// All of them.
    pub const ALL: [CarryOver; 3] = [CarryOver::Keep, CarryOver::Proportional, CarryOver::Reset];

    /// The name in rules files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CarryOver::Keep => "keep",
            CarryOver::Proportional => "proportional",
            CarryOver::Reset => "reset",
        }
    }
}

/// A change of capacity, neither of which is 0.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    from: u64,
    to: u64,
}

impl Change {
    /// None if one of them is 0: that has no shares.
    pub(crate) fn new(from: u64, to: u64) -> Option<Change> {
        (from > 0 && to > 0).then_some(Change { from, to })
    }

    /// The same share of `to` as `used` is of `from`, rounded up. More than all stays more than all.
    pub(crate) fn share(self, used: u64) -> u64 {
        let share = (u128::from(used) * u128::from(self.to)).div_ceil(u128::from(self.from));
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Scales `amounts`, which come newest first: the share of all from any of them on is rounded up
    /// once, so that whichever have left, what is left is what its share says. BatchDecision at most `to`.
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
        let share = |used, from, to| Change::new(from, to).unwrap().share(used);
        assert_eq!(share(5, 10, 3), 2);
        assert_eq!(share(10, 10, 3), 3);
        assert_eq!(share(0, 10, 3), 0);
        assert_eq!(share(1, MAX_AMOUNT, 1), 1);
        assert_eq!(
            share(MAX_AMOUNT - 1, MAX_AMOUNT, MAX_AMOUNT - 1),
            MAX_AMOUNT - 1
        );
        assert!(Change::new(0, 1).is_none() && Change::new(1, 0).is_none());
    }

    #[test]
    fn what_is_left_is_its_share_whichever_have_left() {
        let mut amounts = [1, 1, 1, 4, 1];
        Change::new(10, 5).unwrap().scale(amounts.iter_mut());
        // Of 1, 2, 3, 7 and 8: 1, 1, 2, 4 and 4.
        assert_eq!(amounts, [1, 0, 1, 2, 0]);
    }
}
