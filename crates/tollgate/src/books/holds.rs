//! Reservations in the books.
//!
//! A reservation is noted as what it takes, and its end as the difference to what was used: the sum is
//! what was used. Both have ids that follow from the reservation and the counter, so that whoever notes
//! them again, or in another process, notes them once.

use std::borrow::Cow;

use tollgate_core::{HoldId, Span, Tag, Time};
use tollgate_ledger::{Entry, EntryId, HoldNote, HoldRow, Kind};
use tollgate_rules::{Durability, Resolution};
use tollgate_store::{HeldCharge, HoldRecord, HoldState, HoldStore, Settle, Settled, StoreError};

use super::entries::{Line, is_strict, lines, period_of, signed};
use super::{Books, derived_id, unavailable};
use crate::active_config::ActiveConfig;
use crate::parties::Party;

/// How long after its time a reservation is ended by what the books say, if no store has done it.
const OVERDUE: Span = Span::MINUTE;
/// How many of those are ended at a time.
const SWEEP: usize = 64;

/// What the books want to know when a reservation ends: kept with it.
#[derive(serde::Serialize, serde::Deserialize)]
struct Memo<'a> {
    #[serde(borrow, rename = "t")]
    tenant: Cow<'a, str>,
    #[serde(borrow, rename = "a")]
    action: Cow<'a, str>,
    /// The rules of the charges that are kept in the books, in order.
    #[serde(borrow, rename = "r")]
    rules: Vec<Cow<'a, str>>,
    #[serde(rename = "s", default)]
    strict: bool,
}

/// The id of the entry that a reservation begins with, or ends with, at the counter of a charge. `place`
/// tells charges of one counter apart. A name that is used again, once it was forgotten, is another
/// reservation.
fn id_of(record: &HoldRecord, key: u128, place: usize, kind: Kind) -> EntryId {
    let EntryId(hash) = derived_id(&[
        b"reservation",
        &record.id.bits().to_le_bytes(),
        &key.to_le_bytes(),
        &record.charged_at.as_micros().to_le_bytes(),
        &(place as u64).to_le_bytes(),
        &[u8::from(kind.ends_hold())],
    ]);
    // Those of about the same time are next to each other: an index of ids anywhere is several times as
    // dear to write.
    let time = u128::from(record.charged_at.as_micros());
    EntryId(time << 64 | hash >> 64)
}

/// A reservation as it was made, however it stands now.
fn as_made(record: &HoldRecord) -> HoldRecord {
    let mut made = record.clone();
    made.state = HoldState::Reserved;
    made.actual = None;
    for charge in made
        .charges
        .iter_mut()
        .filter(|it| it.as_charge().needs_state())
    {
        charge.taken = charge.cost.saturating_mul(record.units);
    }
    made
}

impl Books {
    /// What is to be kept with a reservation.
    pub(crate) fn memo(
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        party: Party<'_>,
    ) -> String {
        let memo = Memo {
            tenant: party.tenant,
            action: party.action,
            rules: lines(live, resolution).map(|it| it.rule.into()).collect(),
            strict: is_strict(lines(live, resolution)),
        };
        serde_json::to_string(&memo).unwrap_or_default()
    }

    /// Notes what was reserved.
    pub(crate) async fn note_reserved(
        &self,
        record: &HoldRecord,
        idempotency_key: Option<&str>,
    ) -> Result<(), StoreError> {
        let (entries, strict) = self.beginnings(record, idempotency_key);
        self.write(entries, strict).await
    }

    /// The entries that a reservation begins with.
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

    /// Notes that a reservation is held for longer.
    pub(crate) async fn note_extended(&self, record: &HoldRecord) -> Result<(), StoreError> {
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

    /// Notes how a reservation has ended, at `now` or before; and how it has begun, as whoever made it may
    /// not have come to note it: an end without a beginning would give back what was never taken.
    pub(crate) async fn note_ended(
        &self,
        record: &HoldRecord,
        now: Time,
    ) -> Result<(), StoreError> {
        let (kind, why) = match record.state {
            HoldState::Consumed | HoldState::Reserved => (Kind::Settle, ""),
            HoldState::Released => (Kind::Settle, "released"),
            HoldState::Expired => (Kind::Expiry, ""),
        };
        // Kept as it has ended: what the sums say is not what was said, where nothing was used or an
        // overrun was cut.
        let text = record.to_text();
        let note = |entry: Entry, charge: &HeldCharge, place: usize| {
            let reserved = signed(charge.cost.saturating_mul(record.units));
            let amount = signed(charge.taken) - reserved;
            // What comes back belongs to the period it was taken from; an overrun is taken now.
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

    /// An entry for each charge of a reservation that is kept in the books, and whether to wait for them.
    fn entries_of(
        &self,
        record: &HoldRecord,
        at: Time,
        note: impl Fn(Entry, &HeldCharge, usize) -> Entry,
    ) -> (Vec<Entry>, bool) {
        let memo: Memo<'_> = serde_json::from_str(&record.memo).unwrap_or(Memo {
            tenant: "".into(),
            action: "".into(),
            rules: Vec::new(),
            strict: false,
        });
        let kept = record
            .charges
            .iter()
            .filter(|it| it.as_charge().needs_state());
        let entries = kept.enumerate().map(|(place, charge)| {
            let held = charge.as_charge();
            let line = Line {
                charge: &held,
                rule: memo.rules.get(place).map_or(&*charge.rule, |rule| rule),
                durability: Durability::Async,
                place,
            };
            let party = Party {
                tenant: memo.tenant.clone(),
                action: memo.action.clone(),
            };
            note(self.entry(&line, &party, at), charge, place)
        });
        (entries.collect(), memo.strict)
    }

    /// Puts a reservation back that the store has lost and the books know. Whether there was one.
    pub(crate) async fn revive<S: HoldStore>(
        &self,
        store: &S,
        id: HoldId,
    ) -> Result<bool, StoreError> {
        let rows = async {
            let rows = self.ledger.hold(id.bits()).await;
            rows.map_err(|error| unavailable(&error))
        };
        let rows = self.in_time(rows).await?;
        let mut found = false;
        // Where a crash has cut its end short, the counters that have it know how it ended.
        let (ended, open): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.ended.is_some());
        for row in ended.into_iter().chain(open) {
            found |= self.put_hold(store, row).await?;
        }
        Ok(found)
    }

    /// Puts a reservation where there is none of its name. Whether the books have it whole.
    async fn put_hold<S: HoldStore>(&self, store: &S, row: &HoldRow) -> Result<bool, StoreError> {
        let Some(record) = record_of(row) else {
            return Ok(false);
        };
        store.put_hold(&record).await?;
        Ok(true)
    }

    /// Ends reservations that should have ended a while ago: their store has lost them, or whoever ended
    /// them did not come to note it. Says how many there were.
    pub(crate) async fn sweep<S: HoldStore>(
        &self,
        store: &S,
        now: Time,
    ) -> Result<usize, StoreError> {
        let before = Time::from_micros(now.as_micros().saturating_sub(OVERDUE.as_micros()));
        let rows = self.ledger.overdue(&self.namespace, before, SWEEP).await;
        let rows = rows.map_err(|error| unavailable(&error))?;
        for row in &rows {
            if let Err(error) = self.end_overdue(store, row, now).await {
                tracing::warn!(%error, hold = %format_args!("{:032x}", row.hold), "a reservation of the ledger cannot be ended now");
            }
        }
        Ok(rows.len())
    }

    async fn end_overdue<S: HoldStore>(
        &self,
        store: &S,
        row: &HoldRow,
        now: Time,
    ) -> Result<(), StoreError> {
        let id = HoldId::new(row.hold, Tag::new(row.tag));
        let mut settled = self.settle(store, id, Settle::Expire).await?;
        if let Settled::Unknown = settled {
            if !self.revive(store, id).await? {
                return self.end_unreadable(row, now).await;
            }
            settled = self.settle(store, id, Settle::Expire).await?;
        }
        match settled {
            Settled::Done(record) | Settled::Already(record) => self.note_ended(&record, now).await,
            _ => Ok(()),
        }
    }

    /// Ends a reservation in the books that nobody can put back: of which only an extension was noted.
    async fn end_unreadable(&self, row: &HoldRow, now: Time) -> Result<(), StoreError> {
        let id = derived_id(&[
            b"lost reservation",
            &row.hold.to_le_bytes(),
            &row.key.to_le_bytes(),
            &row.period.start.as_micros().to_le_bytes(),
        ]);
        let entry = Entry {
            id,
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
            count: 0,
            hold: Some(HoldNote {
                id: row.hold,
                tag: row.tag,
                expires_at: row.expires_at,
                record: "".into(),
            }),
            who: "".into(),
            why: "its record is lost".into(),
            idempotency_key: None,
        };
        self.write(vec![entry], false).await
    }
}

/// The reservation of a row as it stands, if the books have it whole.
pub(super) fn record_of(row: &HoldRow) -> Option<HoldRecord> {
    let Ok(mut record) = HoldRecord::from_text(&row.record) else {
        tracing::warn!(hold = %format_args!("{:032x}", row.hold), "the ledger has a reservation that cannot be read");
        return None;
    };
    record.expires_at = row.expires_at;
    if row.ended.is_some() && record.is_open() {
        // Its end was noted without its record: see `end_unreadable`.
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
