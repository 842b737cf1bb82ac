//! Reports, and what becomes of units that are taken back before or after their report.

use std::sync::Arc;

use tollgate_core::{Charge, Key, Span, Time};
use tollgate_store::{Clock, Store, StoreError};

use super::local::Local;
use super::table::Report;
use super::{Count, OwnedCharge, Shared, flush_of, run};

/// How often due reports are looked for. A report is sent up to this long before it is due, so that no unit waits
/// longer than `flush`.
pub(super) const TICK: Span = Span::from_millis(25);

impl<S: Store + 'static> Shared<S> {
    pub(super) fn start(self: &Arc<Self>, report: Option<Report>) {
        if let Some(report) = report {
            let shared = Arc::clone(self);
            run(async move { shared.send(report).await });
        }
    }

    pub(super) fn report_due(self: &Arc<Self>) {
        let (now, store_now) = (self.clock.now(), self.time.now());
        let is_due = |entry: &super::table::Entry| now + TICK >= entry.due_at;
        for report in self.table.take_reports(now, store_now, is_due) {
            self.start(Some(report));
        }
    }

    pub(super) async fn report_all(self: &Arc<Self>) {
        let (now, store_now) = (self.clock.now(), self.time.now());
        let reports = self.table.take_reports(now, store_now, |_| true);
        #[cfg(feature = "wait")]
        if tokio::runtime::Handle::try_current().is_ok() {
            // All at once, so that they share calls.
            let mut calls = tokio::task::JoinSet::new();
            for report in reports {
                let shared = Arc::clone(self);
                calls.spawn(async move { shared.send(report).await });
            }
            while calls.join_next().await.is_some() {}
            return;
        }
        for report in reports {
            self.send(report).await;
        }
    }

    /// Reports what async mode has admitted of keys that another mode decides by now.
    #[inline]
    pub(super) fn report_switched(self: &Arc<Self>, charges: &[Charge<'_>]) {
        if self.table.is_empty() {
            return;
        }
        for charge in charges {
            let report = self.take_report(charge);
            self.start(report);
            self.doubt(charge.key);
        }
    }

    /// Takes the units of a key that wait for a report, if there are any.
    pub(super) fn take_report(&self, charge: &Charge<'_>) -> Option<Report> {
        if self.table.is_empty() {
            return None;
        }
        let mut shard = self.table.shard(charge.key);
        let entry = shard.entry(charge.key).filter(|it| it.pending > 0)?;
        entry.take_report(self.clock.now(), self.time.now())
    }

    /// Lets the store decide a key until its level was read again.
    pub(super) fn doubt(&self, key: Key) {
        if let Some(entry) = self.table.shard(key).entry(key) {
            (entry.known_until, entry.due_at) = (Time::default(), Time::default());
        }
    }

    /// Sends a report, and takes over the level that the store answers.
    pub(super) async fn send(&self, report: Report) {
        // Read before the call: the level is at least as new.
        let sent_at = self.clock.now();
        let charge = report.charge.as_charge();
        let answer = self.store.report(&charge, report.units).await;
        self.counts.add(Count::Reports, 1);
        let now = self.clock.now();
        let mut shard = self.table.shard(charge.key);
        let entry = shard.entry(charge.key);
        let entry = entry.filter(|it| it.fence == report.fence);
        match &answer {
            Ok(Some(level)) => {
                self.time.set(level.now, now);
                self.counts.add(Count::ReportedUnits, report.units);
                self.counts.add(Count::ExcessUnits, level.excess);
            }
            Ok(None) => {}
            Err(StoreError::Timeout | StoreError::Disconnected(_)) => {
                self.counts.add(Count::UnconfirmedUnits, report.units);
            }
            // The store has not counted the units.
            Err(_) => {}
        }
        let Some(entry) = entry else {
            return;
        };
        entry.is_reporting = false;
        match answer {
            Ok(Some(level)) => {
                let own = entry.charge.as_ref();
                let is_same = own.is_some_and(|it| Arc::ptr_eq(it, &report.charge));
                let (copy, units) = (Local::charge(&charge), (report.units, entry.pending));
                if is_same && self.local.sync(&copy, &level, units, &mut entry.others) {
                    entry.known_until = sent_at + entry.flush + entry.flush;
                }
                entry.due_at = sent_at + entry.flush;
            }
            // A ledger has the usage, and restores it.
            Ok(None) => entry.known_until = Time::default(),
            Err(StoreError::Timeout | StoreError::Disconnected(_)) => {}
            Err(_) => entry.pending += report.units,
        }
    }

    /// Takes back units of a charge that were admitted at `charged_at`. If they were reported already, they are
    /// given back to the store.
    pub(super) fn take_back(self: &Arc<Self>, charge: &Charge<'_>, units: u64, charged_at: Time) {
        if self.take_pending(charge, units, charged_at) {
            return;
        }
        let Some(flush) = flush_of(charge) else {
            return;
        };
        let units = charge.cost.saturating_mul(units);
        let (shared, charge) = (Arc::clone(self), OwnedCharge::of(charge, flush));
        run(async move {
            let charge = charge.as_charge();
            let _ = shared.store.refund(&[charge], units, charged_at).await;
        });
    }

    /// Takes back units of a charge that were admitted at `charged_at`, here. Returns false if they were reported
    /// already.
    pub(super) fn take_pending(&self, charge: &Charge<'_>, units: u64, charged_at: Time) -> bool {
        let cost = charge.cost.saturating_mul(units);
        let mut shard = self.table.shard(charge.key);
        let Some(entry) = shard.entry(charge.key).filter(|it| it.charge.is_some()) else {
            return false;
        };
        let copy = Local::charge(charge);
        let is_pending = charged_at >= entry.taken_at && entry.pending >= cost;
        if is_pending {
            entry.pending -= cost;
            self.local.refund(&[copy], units, charged_at);
        } else {
            self.local.refund_reported(&copy, units, charged_at);
        }
        is_pending
    }

    /// Notes in the local copies what a hold has taken from the store.
    pub(super) fn note_held(&self, charges: &[Charge<'_>], units: u64) {
        if self.table.is_empty() {
            return;
        }
        for charge in charges.iter().filter(|it| flush_of(it).is_some()) {
            let mut shard = self.table.shard(charge.key);
            if let Some(entry) = shard.entry(charge.key) {
                let known = entry.others.as_deref();
                self.local.take(&Local::charge(charge), units, known);
            }
        }
    }
}
