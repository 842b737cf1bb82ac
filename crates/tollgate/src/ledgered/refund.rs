//! How much a refund gives back of recorded usage: exactly the amount that the ledger then records.
//!
//! A refund gives back nothing of an earlier period. It never gives back more than was used, all charges of
//! a counter together, without reserved amounts: their reservations will settle them.

use tollgate_core::{Charge, Key, MAX_AMOUNT, Time};

use super::entries::period_of;

/// The amounts that a refund gives back.
pub(super) struct Refund<'r> {
    /// The charges of the request, each with all that it gives back as its cost.
    pub(super) charges: Vec<Charge<'r>>,
    /// How much each counter may still give back.
    left: Vec<(Key, u64)>,
    charged_at: Time,
}

impl<'r> Refund<'r> {
    pub(super) fn new(
        charges: &[Charge<'r>],
        units: u64,
        charged_at: Time,
        now: Time,
    ) -> Refund<'r> {
        let charges = charges.iter().map(|charge| Charge {
            cost: charge.cost.saturating_mul(units).min(MAX_AMOUNT),
            ..*charge
        });
        Refund {
            charges: charges.collect(),
            left: Vec::new(),
            charged_at: charged_at.min(now),
        }
    }

    /// Whether the bound of the counter of a charge is known.
    pub(super) fn knows(&self, charge: &Charge<'_>) -> bool {
        self.left.iter().any(|(key, _)| *key == charge.key)
    }

    /// Sets how much the counter of a charge may give back.
    pub(super) fn may_give(&mut self, charge: &Charge<'_>, amount: u64) {
        self.left.push((charge.key, amount));
    }

    /// Cuts the amount of the charge at `place` to the amount that its counter may give back.
    pub(super) fn give(&mut self, place: usize) {
        let charge = &mut self.charges[place];
        let left = self.left.iter_mut().find(|(key, _)| *key == charge.key);
        let Some((_, left)) = left else {
            charge.cost = 0;
            return;
        };
        charge.cost = charge.cost.min(*left);
        *left -= charge.cost;
    }

    /// How much the charge at `place` gives back at `now`.
    pub(super) fn given(&self, place: usize, now: Time) -> u64 {
        let Charge { limit, cost, .. } = self.charges[place];
        match period_of(limit, self.charged_at) == period_of(limit, now) {
            true => cost,
            false => 0,
        }
    }
}
