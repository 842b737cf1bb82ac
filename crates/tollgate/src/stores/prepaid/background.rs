//! Calls that no request waits for: draws, and slices that go back to the store.

use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::Time;
use tollgate_store::{Ask, Store};

use super::Shared;
use super::counts::Count;
use super::slices::{Slice, StoreView};
use super::table::{Draw, Returned};
use crate::stores::background::OwnedCharge;

/// A call that gives units back.
type Refund = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<S: Store + 'static> Shared<S> {
    /// Sends a draw, and takes in its slice when the store answers.
    pub(super) fn draw(self: &Arc<Self>, draw: Draw) {
        let shared = Arc::clone(self);
        self.calls.run(async move {
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
            let taken = (applied.granted, applied.now);
            let slice = Slice::new(taken, draw.charge.limit(), sent_at, longest, ends_in);
            shared.counts.add(Count::DrawnUnits, applied.granted);
            let view = StoreView::from(outcome);
            let back = shared.table.drawn(&draw, slice, view, now);
            shared.give_back(&back);
        });
    }

    /// Gives slices back to the store. If a call fails, the units are lost until they refill.
    pub(super) fn give_back(self: &Arc<Self>, returned: &Returned) {
        for refund in self.refunds(returned) {
            self.calls.run(refund);
        }
    }

    /// Returns the calls that give slices back.
    fn refunds(self: &Arc<Self>, returned: &Returned) -> SmallVec<[Refund; 2]> {
        let Returned {
            charge,
            slices,
            has_changed,
        } = returned;
        // The usage of a period does not depend on the numbers, so it can be given back under others. After other
        // changes, it is not known how much of it still counts.
        if *has_changed && !charge.limit().has_periods() {
            let lost = slices.iter().map(|it| it.units).sum();
            self.counts.add(Count::LostUnits, lost);
            return SmallVec::new();
        }
        let refund =
            |slice: &Slice| self.refund_at(Arc::clone(charge), slice.units, slice.refund_at);
        slices.iter().map(refund).collect()
    }

    /// Gives units back to the store. What has come back by itself since `charged_at` is not given back.
    pub(super) fn give_back_at(
        self: &Arc<Self>,
        charge: &Arc<OwnedCharge>,
        units: u64,
        charged_at: Time,
    ) {
        let refund = self.refund_at(Arc::clone(charge), units, charged_at);
        self.calls.run(refund);
    }

    /// Gives all slices back to the store, and waits until no draw and no refund is on its way.
    pub(super) async fn give_all_back(self: &Arc<Self>) {
        loop {
            let returned = self.table.end_all();
            let refunds = returned.iter().flat_map(|it| self.refunds(it));
            self.calls.run_all(refunds.collect::<Vec<_>>()).await;
            // A draw that was answered meanwhile is given back, unless a request has asked for the key again.
            if returned.is_empty() {
                return;
            }
        }
    }

    fn refund_at(self: &Arc<Self>, charge: Arc<OwnedCharge>, units: u64, at: Time) -> Refund {
        let shared = Arc::clone(self);
        Box::pin(async move { shared.refund(&charge, units, at).await })
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
