//! Reservations in the ledger.
//!
//! A reservation has two entries in the ledger. The first has the reserved amount. The last has the
//! difference between the used and the reserved amount. So their sum is the usage. The ids of both
//! entries are computed from the reservation and the counter. If an entry is recorded again, even by
//! another process, it is stored once.

use std::borrow::Cow;

use futures_util::TryFutureExt as _;
use tollgate_core::{Charge, HoldId, Recorded, Span, Tag, Time};
use tollgate_ledger::{Entry, EntryId, HoldNote, HoldRow, Kind};
use tollgate_store::{
    HeldCharge, HoldRecord, HoldState, Purpose, Settle, Settled, Store, StoreError,
};

use super::entries::{RecordedCharge, is_strict, period_of, recorded_charges, signed, writable};
use super::posting::PostError;
use super::{LedgerSync, derived_id, unavailable};
use crate::accounts::Accounts;

/// How long after its expiry the ledger ends a reservation that no store has ended.
const OVERDUE: Span = Span::MINUTE;
/// How many overdue reservations are ended at a time.
const SWEEP: usize = 64;

/// The labels that the ledger needs when a reservation ends. The store keeps them with the reservation.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Memo<'a> {
    #[serde(borrow, rename = "t")]
    tenant: Cow<'a, str>,
    #[serde(borrow, rename = "a")]
    action: Cow<'a, str>,
    /// The rules of the recorded charges, in order.
    #[serde(borrow, rename = "r")]
    rules: Vec<Cow<'a, str>>,
    #[serde(rename = "s", default)]
    strict: bool,
}

/// Computes the id of the first or the last entry of a reservation, at the counter of a charge. `place`
/// distinguishes charges of the same counter. `charged_at` distinguishes reservations that use the same
/// id one after the other.
fn id_of(record: &HoldRecord, key: u128, place: usize, kind: Kind) -> EntryId {
    let EntryId(hash) = derived_id(&[
        b"reservation",
        &record.id.bits().to_le_bytes(),
        &key.to_le_bytes(),
        &record.charged_at.as_micros().to_le_bytes(),
        &(place as u64).to_le_bytes(),
        &[u8::from(kind.ends_hold())],
    ]);
    // The time comes first, so that ids of about the same time are next to each other. An index of
    // scattered ids is several times slower to write.
    let time = u128::from(record.charged_at.as_micros());
    EntryId(time << 64 | hash >> 64)
}

/// Returns the reservation in its initial state.
fn as_made(record: &HoldRecord) -> HoldRecord {
    let mut made = record.clone();
    made.state = HoldState::Reserved;
    made.actual = None;
    let charges = made.charges.iter_mut();
    for charge in charges.filter(|it| it.as_charge().needs_state()) {
        charge.taken = charge.cost.saturating_mul(record.units);
    }
    made
}

impl LedgerSync {
    /// Makes the memo that the store keeps with a reservation.
    pub(super) fn memo(charges: &[Charge<'_>]) -> String {
        let first = recorded_charges(charges).next().map(|line| line.labels);
        let Recorded { tenant, action, .. } = first.unwrap_or_default();
        let memo = Memo {
            tenant: writable(tenant),
            action: writable(action),
            rules: recorded_charges(charges)
                .map(|it| it.labels.rule.into())
                .collect(),
            strict: is_strict(charges),
        };
        serde_json::to_string(&memo).unwrap_or_default()
    }

    /// Records the reserved amounts.
    pub(super) async fn record_reserved(
        &self,
        record: &HoldRecord,
        idempotency_key: Option<&str>,
    ) -> Result<(), StoreError> {
        let (entries, strict) = self.beginnings(record, idempotency_key);
        self.write(entries, strict).await
    }

    /// Makes the first entries of a reservation. Also returns whether to wait until they are written.
    fn beginnings(&self, record: &HoldRecord, key: Option<&str>) -> (Vec<Entry>, bool) {
        let made = as_made(record);
        let text = made.to_text();
        let note = |entry: Entry, charge: &HeldCharge, place: usize| Entry {
            id: id_of(record, entry.key, place, Kind::Reserve),
            kind: Kind::Reserve,
            at: record.charged_at,
            period: period_of(&charge.limit, record.charged_at),
            amount: signed(charge.taken),
            hold: Some(hold_note(record, &text)),
            idempotency_key: key.map(Into::into),
            ..entry
        };
        self.entries_of(&made, record.charged_at, note)
    }

    /// Records that a reservation was extended.
    pub(super) async fn record_extended(&self, record: &HoldRecord) -> Result<(), StoreError> {
        if record.purpose != Purpose::Reservation {
            return Ok(());
        }
        let note = |entry: Entry, charge: &HeldCharge, _| Entry {
            kind: Kind::Reserve,
            period: period_of(&charge.limit, record.charged_at),
            count: 0,
            hold: Some(hold_note(record, "")),
            ..entry
        };
        let (entries, strict) = self.entries_of(record, record.charged_at, note);
        self.write(entries, strict).await
    }

    /// Records how a reservation has ended, and also how it began. The process that made the
    /// reservation may have ended before the beginning was recorded. An end without a beginning would
    /// give back units that were never taken.
    pub(super) async fn record_end(&self, record: &HoldRecord) -> Result<(), StoreError> {
        if record.purpose != Purpose::Reservation || !record.charges.iter().any(|it| it.ledgered) {
            return Ok(());
        }
        let now = self.clock.now();
        let (kind, why) = match record.state {
            HoldState::Consumed | HoldState::Reserved => (Kind::Settle, ""),
            HoldState::Released => (Kind::Settle, "released"),
            HoldState::Expired => (Kind::Expiry, ""),
        };
        // The entry contains the final record, because the sums alone are not enough: an overrun may
        // have been charged only in part.
        let text = record.to_text();
        let note = |entry: Entry, charge: &HeldCharge, place: usize| {
            let reserved = signed(charge.cost.saturating_mul(record.units));
            let amount = signed(charge.taken) - reserved;
            // An amount that is given back belongs to the period it was taken from. An overrun belongs
            // to the current period.
            let of = if amount <= 0 { record.charged_at } else { now };
            Entry {
                id: id_of(record, entry.key, place, kind),
                kind,
                amount,
                count: 0,
                period: period_of(&charge.limit, of),
                hold: Some(hold_note(record, &text)),
                why: why.into(),
                ..entry
            }
        };
        let (mut entries, strict) = self.beginnings(record, None);
        entries.extend(self.entries_of(record, now, note).0);
        self.write(entries, strict).await
    }

    /// Makes an entry for each recorded charge of a reservation. Also returns whether to wait until the
    /// entries are written.
    fn entries_of(
        &self,
        record: &HoldRecord,
        at: Time,
        note: impl Fn(Entry, &HeldCharge, usize) -> Entry,
    ) -> (Vec<Entry>, bool) {
        let memo: Memo<'_> = serde_json::from_str(&record.memo).unwrap_or_default();
        let charges = record.charges.iter();
        let kept = charges.filter(|it| it.as_charge().needs_state());
        let entries = kept.enumerate().map(|(place, charge)| {
            let held = charge.as_charge();
            let line = RecordedCharge {
                charge: &held,
                labels: Recorded {
                    rule: memo.rules.get(place).map_or(&*charge.rule, |rule| rule),
                    tenant: &memo.tenant,
                    action: &memo.action,
                    strict: memo.strict,
                },
                place,
            };
            note(self.entry(&line, at), charge, place)
        });
        (entries.collect(), memo.strict)
    }

    /// Puts back a reservation that the store has lost, if the ledger has it. Returns whether the
    /// ledger has it.
    pub(super) async fn revive(&self, store: &dyn Store, id: HoldId) -> Result<bool, StoreError> {
        let rows = self.ledger.hold(id.bits()).map_err(unavailable);
        let rows = self.in_time(rows).await?;
        let mut found = false;
        // A crash may have recorded the end at some counters only. Those counters know how the
        // reservation ended.
        let (ended, open): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.ended.is_some());
        for row in ended.into_iter().chain(open) {
            // Another store may have a part of the same reservation.
            if let Some(record) = record_of(row).filter(|it| it.id == id) {
                store.put_hold(&record).await?;
                found = true;
            }
        }
        Ok(found)
    }

    async fn end_overdue(
        &self,
        store: &dyn Store,
        row: &HoldRow,
        now: Time,
    ) -> Result<(), StoreError> {
        // The record knows the stores of the reservation.
        let id = HoldRecord::from_text(&row.record).map(|it| it.id);
        let id = id.unwrap_or(HoldId::new(row.hold, Tag::new(row.tag)));
        if let Settled::Unknown = store.settle(id, Settle::Expire).await? {
            if !self.revive(store, id).await? {
                return self.end_unreadable(row, now).await;
            }
            store.settle(id, Settle::Expire).await?;
        }
        Ok(())
    }

    /// Ends a reservation in the ledger that cannot be put back, because only an extension of it was
    /// recorded.
    async fn end_unreadable(&self, row: &HoldRow, now: Time) -> Result<(), StoreError> {
        let entry = Entry {
            id: derived_id(&[
                b"lost reservation",
                &row.hold.to_le_bytes(),
                &row.key.to_le_bytes(),
                &row.period.start.as_micros().to_le_bytes(),
            ]),
            at: now,
            namespace: row.namespace.clone(),
            tenant: row.tenant.clone(),
            action: row.action.clone(),
            rule: row.rule.clone(),
            allowance: row.allowance.clone(),
            key: row.key,
            period: row.period,
            kind: Kind::Expiry,
            amount: -row.reserved,
            hold: Some(HoldNote {
                id: row.hold,
                tag: row.tag,
                expires_at: row.expires_at,
                record: "".into(),
            }),
            why: "the record of the reservation is lost".into(),
            ..Entry::default()
        };
        self.write(vec![entry], false).await
    }
}

impl<S: Store> Accounts<'_, S> {
    /// Ends overdue reservations that only the ledger knows, and returns how many. Either the store has
    /// lost them, or the process that ended them did not record the end. Call this every few seconds.
    ///
    /// # Errors
    /// If the ledger does not answer.
    pub async fn sweep(&self) -> Result<usize, PostError> {
        let (sync, store) = (self.sync, self.limiter.store());
        let now = sync.clock.now();
        let before = Time::from_micros(now.as_micros().saturating_sub(OVERDUE.as_micros()));
        let rows = sync.ledger.overdue(&sync.namespace, before, SWEEP).await;
        let rows = rows.map_err(unavailable)?;
        for row in &rows {
            if let Err(error) = sync.end_overdue(store, row, now).await {
                let hold = format_args!("{:032x}", row.hold);
                tracing::warn!(%error, %hold, "failed to end an overdue reservation; will retry");
            }
        }
        Ok(rows.len())
    }
}

/// Returns the reservation of a row in its current state, if the ledger has its whole record.
pub(super) fn record_of(row: &HoldRow) -> Option<HoldRecord> {
    let Ok(mut record) = HoldRecord::from_text(&row.record) else {
        let hold = format_args!("{:032x}", row.hold);
        tracing::warn!(%hold, "the ledger has a reservation that cannot be read");
        return None;
    };
    record.expires_at = row.expires_at;
    if row.ended.is_some() && record.is_open() {
        // The end was recorded without a record: see `end_unreadable`.
        record.end(Settle::Expire);
    }
    Some(record)
}

fn hold_note(record: &HoldRecord, text: &str) -> HoldNote {
    HoldNote {
        id: record.id.bits(),
        tag: record.id.tag().number(),
        expires_at: record.expires_at,
        record: text.into(),
    }
}
