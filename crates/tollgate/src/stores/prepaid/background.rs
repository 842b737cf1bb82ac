//! Calls that no request waits for: draws, and slices that go back to the store.

use std::sync::Arc;

use tollgate_core::Time;
use tollgate_store::{Ask, Store};

use super::Shared;
use super::counts::Count;
use super::slices::{Slice, StoreView};
use super::table::{Draw, Returned};
use crate::stores::background::{OwnedCharge, run};

impl<S: Store + 'static> Shared<S> {
    /// Sends a draw, and takes in its slice when the store answers.
    pub(super) fn draw(self: &Arc<Self>, draw: Draw) {
        let shared = Arc::clone(self);
        run(async move {
            // Read before the call: the slice ends this long after its draw at the latest.
            let sent_at = shared.clock.now();
            let charge = draw.charge.as_charge();
            let charges = std::slice::from_ref(&charge);
            let drawn = shared.store.apply(charges, Ask::UpTo(draw.units)).await;
            shared.counts.add(Count::Draws, 1);
            let now = shared.clock.now();
            let Ok(applied) = drawn else {
                // The store may have taken the units. They are lost until they refill.
                return shared.table.failed(&draw, now);
            };
            let Some(outcome) = applied.outcomes.first() else {
                return shared.table.failed(&draw, now);
            };
            let ends_in = draw.charge.limit().has_periods();
            let ends_in = ends_in.then(|| outcome.reset_at.since(applied.now));
            let longest = draw.charge.span;
            let taken = (applied.granted, applied.now, outcome.reset_at);
            let slice = Slice::new(taken, sent_at, longest, ends_in);
            shared.counts.add(Count::DrawnUnits, applied.granted);
            let view = StoreView::from(outcome);
            let back = shared.table.drawn(&draw, slice, view, now);
            shared.give_back(&draw.charge, &back);
        });
    }

    /// Gives slices back to the store. If a call fails, the units are lost until they refill.
    pub(super) fn give_back(self: &Arc<Self>, charge: &Arc<OwnedCharge>, slices: &[Slice]) {
        for slice in slices {
            self.give_back_at(charge, slice.units, slice.refund_at(charge.limit()));
        }
    }

    /// Gives units back to the store. What has come back by itself since `charged_at` is not given back.
    pub(super) fn give_back_at(
        self: &Arc<Self>,
        charge: &Arc<OwnedCharge>,
        units: u64,
        charged_at: Time,
    ) {
        let (shared, charge) = (Arc::clone(self), Arc::clone(charge));
        run(async move { shared.refund(&charge, units, charged_at).await });
    }

    /// Gives slices back to the store, and waits for it.
    pub(super) async fn give_all_back(&self, returned: Vec<Returned>) {
        for (charge, slices) in returned {
            for slice in slices {
                let charged_at = slice.refund_at(charge.limit());
                self.refund(&charge, slice.units, charged_at).await;
            }
        }
    }

    async fn refund(&self, charge: &OwnedCharge, units: u64, charged_at: Time) {
        if units == 0 {
            return;
        }
        let charge = charge.as_charge();
        let charges = std::slice::from_ref(&charge);
        let refunded = self.store.refund(charges, units, charged_at).await;
        let count = match refunded {
            Ok(_) => Count::ReturnedUnits,
            Err(_) => Count::LostUnits,
        };
        self.counts.add(count, units);
    }
}
