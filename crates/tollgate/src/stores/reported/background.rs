//! Reports, and what becomes of units that are taken back before or after their report.

use std::sync::Arc;

use tollgate_core::{Charge, Key, Span, Time};
use tollgate_store::{Clock, Store, StoreError};

use super::local::{Local, Since};
use super::table::{Entry, Report};
use super::{Count, OwnedCharge, Shared, flush_of};

/// How often due reports are looked for. A report is sent up to this long before it is due, so that no unit waits
/// longer than `flush`.
pub(super) const TICK: Span = Span::from_millis(25);

impl<S: Store + 'static> Shared<S> {
    pub(super) fn start(self: &Arc<Self>, report: Option<Report>) {
        if let Some(report) = report {
            let shared = Arc::clone(self);
            self.calls.run(async move { shared.send(report).await });
        }
    }

    pub(super) fn report_due(self: &Arc<Self>) {
        let (now, store_now) = (self.clock.now(), self.time.now());
        let is_due =
            |entry: &Entry| (entry.pending > 0 || entry.is_asked) && now + TICK >= entry.due_at;
        for report in self.table.take_reports(now, store_now, is_due) {
            self.start(Some(report));
        }
    }

    /// Reports everything that was admitted, and waits until no report is on its way. Units that the store does not
    /// count are tried once more.
    pub(super) async fn report_all(self: &Arc<Self>) {
        // The first round may find keys whose report is on its way. Their newer units are left for the next.
        for round in 0..3 {
            let (now, store_now) = (self.clock.now(), self.time.now());
            let is_left = |entry: &Entry| entry.pending > 0 || (round == 0 && entry.is_asked);
            let reports = self.table.take_reports(now, store_now, is_left);
            let calls = reports.into_iter().map(|report| {
                let shared = Arc::clone(self);
                async move { shared.send(report).await }
            });
            self.calls.run_all(calls).await;
        }
    }

    /// Reports what was admitted for a key, and waits until no report of the key is on its way.
    pub(super) async fn report_key(self: &Arc<Self>, key: Key) {
        let is_on_its_way = || {
            let mut shard = self.table.shard(key);
            shard.entry(key).is_some_and(|it| it.is_reporting)
        };
        self.calls.wait_until(|| !is_on_its_way()).await;
        self.start(self.take_report(key));
        self.calls.wait_until(|| !is_on_its_way()).await;
    }

    /// Reports what async mode has admitted for keys that have another mode now.
    #[inline]
    pub(super) fn report_switched(self: &Arc<Self>, charges: &[Charge<'_>]) {
        if self.table.is_empty() {
            return;
        }
        for charge in charges {
            let report = self.take_report(charge.key);
            self.start(report);
            self.doubt(charge.key);
        }
    }

    /// Takes the units of a key that wait for a report, if there are any.
    fn take_report(&self, key: Key) -> Option<Report> {
        let mut shard = self.table.shard(key);
        let entry = shard.entry(key).filter(|it| it.pending > 0)?;
        entry.take_report(self.clock.now(), self.time.now())
    }

    /// Returns whether this instance decides a key, or may soon decide it.
    pub(super) fn has(&self, key: Key) -> bool {
        !self.table.is_empty() && self.table.shard(key).entry(key).is_some()
    }

    /// Lets the store decide a key until its level is read again.
    pub(super) fn doubt(&self, key: Key) {
        if let Some(entry) = self.table.shard(key).entry(key) {
            entry.doubt();
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
                self.counts.add(Count::OverdrawnUnits, level.excess);
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
                let copy = Local::charge(&charge);
                let since = Since {
                    reported: report.units,
                    pending: entry.pending,
                    noted: entry.noted,
                };
                let is_known = is_same && self.local.sync(&copy, &level, since, &mut entry.others);
                // After a doubt, the next report is due at once, and its level decides.
                if entry.doubts == report.doubts {
                    entry.due_at = sent_at + entry.flush;
                    if is_known {
                        entry.known_until = sent_at + entry.flush + entry.flush;
                    }
                }
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
        self.calls.run(async move {
            let charge = charge.as_charge();
            let _ = shared.store.refund(&[charge], units, charged_at).await;
        });
    }

    /// Takes back units of a charge that were admitted at `charged_at`, in the local copy. Returns false if the units
    /// were reported already, so that the store counts them.
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
                self.note(entry, charge, units);
            }
        }
    }

    /// Notes in the local copy what the store has taken for this instance.
    pub(super) fn note(&self, entry: &mut Entry, charge: &Charge<'_>, units: u64) {
        let known = entry.others.as_deref();
        self.local.take(&Local::charge(charge), units, known);
        let units = charge.cost.saturating_mul(units);
        entry.noted = entry.noted.saturating_add(units);
    }
}
