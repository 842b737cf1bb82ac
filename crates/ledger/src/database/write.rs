//! Writes entries in one transaction: inserts them, and adds their amounts to the sums.
//!
//! Only new entries change the sums: an entry with an id that is in the ledger already is ignored. Usually
//! all entries are new, which the number of inserted rows shows. If some are not new, the transaction starts
//! over and asks which are. If an entry ends a reservation, the transaction asks at once, because several
//! processes may report the same end.
//!
//! Writing transactions exclude each other, in SQLite by design and in PostgreSQL by a lock. So sequence
//! numbers are in the order of commits, and a reader that continues from a number misses nothing. The last
//! number before a transaction and the last number after it also bound the numbers of its entries. The table
//! `periods` stores these bounds.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, LazyLock};

use tollgate_core::Time;

use super::connection::{Connection, Dialect};
use super::statements::{MOST_SUM, Statements, Table};
use super::value::{Value, Values};
use crate::entry::{Entry, EntryId, HoldNote, Kind, Note};

/// The progress of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Only `BEGIN` was sent.
    Beginning,
    /// Statements were sent. If the transaction fails now, nothing is in the database.
    Open,
    /// `COMMIT` was sent. If the transaction fails now, its outcome is unknown.
    Committing,
}

/// Writes those of `entries` and `notes` that are new, all of them or none. Returns the ids of the entries
/// that the database has already.
pub(super) async fn write(
    connection: &mut dyn Connection,
    statements: &mut Statements,
    (entries, notes): (&[&Entry], &[&Note]),
    stage: &mut Stage,
) -> Result<Vec<EntryId>, sqlx::Error> {
    let periods: BTreeSet<_> = entries
        .iter()
        .map(|entry| (&entry.namespace, entry.period.start))
        .collect();
    begin(connection).await?;
    *stage = Stage::Open;
    mark_periods(connection, statements, &periods).await?;
    let mut present = Vec::new();
    let is_quick = !entries.iter().any(|entry| entry.kind.ends_hold());
    if is_quick && all_new(connection, statements, entries).await? {
        sums(connection, statements, entries).await?;
    } else {
        if is_quick {
            connection.run("ROLLBACK").await?;
            begin(connection).await?;
            mark_periods(connection, statements, &periods).await?;
        }
        let new = only_new(connection, statements, entries).await?;
        sums(connection, statements, &new).await?;
        let new: HashSet<EntryId> = new.iter().map(|entry| entry.id).collect();
        let ids = entries.iter().map(|entry| entry.id);
        present.extend(ids.filter(|id| !new.contains(id)));
    }
    mark_periods(connection, statements, &periods).await?;
    let notes = notes.iter().map(|note| {
        vec![
            note.id.0.into(),
            note.at.into(),
            (&note.namespace).into(),
            (&note.who).into(),
            (&note.what).into(),
            (&note.text).into(),
        ]
    });
    upsert(connection, statements, Table::Audit, notes.collect()).await?;
    *stage = Stage::Committing;
    connection.run("COMMIT").await?;
    Ok(present)
}

async fn begin(connection: &mut dyn Connection) -> Result<(), sqlx::Error> {
    let begin = match connection.dialect() {
        Dialect::Sqlite => "BEGIN IMMEDIATE",
        Dialect::Postgres => "BEGIN; SELECT pg_advisory_xact_lock(8390043843661231206)",
    };
    connection.run(begin).await
}

/// Stores the last sequence number as the upper bound of these periods. For new periods, stores it as the
/// lower bound too.
async fn mark_periods(
    connection: &mut dyn Connection,
    statements: &mut Statements,
    periods: &BTreeSet<(&Arc<str>, Time)>,
) -> Result<(), sqlx::Error> {
    let rows = periods
        .iter()
        .map(|(namespace, start)| vec![(*namespace).into(), (*start).into()]);
    upsert(connection, statements, Table::Periods, rows.collect()).await
}

/// Inserts entries. Returns whether all of them were new.
async fn all_new(
    connection: &mut dyn Connection,
    statements: &mut Statements,
    entries: &[&Entry],
) -> Result<bool, sqlx::Error> {
    let mut left = entries;
    while !left.is_empty() {
        let (sql, size) = statements.of(Table::Entries, connection.dialect(), left.len());
        let (now, later) = left.split_at(size);
        let written = connection.execute(sql, values(now)).await?;
        if written != size as u64 {
            return Ok(false);
        }
        left = later;
    }
    Ok(true)
}

/// Inserts entries. Returns the entries that were new.
async fn only_new<'a>(
    connection: &mut dyn Connection,
    statements: &mut Statements,
    entries: &[&'a Entry],
) -> Result<Vec<&'a Entry>, sqlx::Error> {
    let mut new = Vec::new();
    let mut left = entries;
    while !left.is_empty() {
        let (sql, size) = statements.of(Table::EntriesReturning, connection.dialect(), left.len());
        let (now, later) = left.split_at(size);
        let rows = connection.fetch(sql, values(now)).await?;
        let ids: Result<HashSet<u128>, _> = rows.iter().map(|row| row.bits(0)).collect();
        let mut ids = ids?;
        // If two entries have the same id, the first one was inserted.
        new.extend(now.iter().filter(|entry| ids.remove(&entry.id.0)));
        left = later;
    }
    Ok(new)
}

/// The names of kinds, in order. Entries share these texts.
static KINDS: LazyLock<[Arc<str>; 6]> = LazyLock::new(|| Kind::ALL.map(|kind| kind.name().into()));

fn values(entries: &[&Entry]) -> Values {
    let width = Table::Entries.columns().len();
    let mut list = Vec::with_capacity(entries.len() * width);
    for entry in entries {
        let hold = entry.hold.as_ref();
        list.extend([
            entry.id.0.into(),
            entry.at.into(),
            (&entry.namespace).into(),
            (&entry.tenant).into(),
            (&entry.action).into(),
            (&entry.rule).into(),
            (&entry.allowance).into(),
            entry.key.into(),
            entry.period.start.into(),
            entry.period.end.into(),
            (&KINDS[entry.kind as usize]).into(),
            entry.amount.into(),
            entry.count.into(),
            Value::Bits(hold.map(|it| it.id)),
            hold.map_or(Value::Int(None), |it| it.tag.into()),
            hold.map_or(Value::Int(None), |it| it.expires_at.into()),
            hold.map_or(Value::Text(None), |it| (&it.record).into()),
            (&entry.who).into(),
            (&entry.why).into(),
            Value::Text(entry.idempotency_key.clone()),
        ]);
    }
    Values::Rows { list, width }
}

/// Adds the amounts of entries to the sums.
async fn sums(
    connection: &mut dyn Connection,
    statements: &mut Statements,
    entries: &[&Entry],
) -> Result<(), sqlx::Error> {
    let (mut balances, mut holds) = (BTreeMap::new(), BTreeMap::<_, Vec<Hold<'_>>>::new());
    for entry in entries {
        let row = (
            entry.key,
            entry.period.start,
            &entry.tenant,
            &entry.action,
            &entry.rule,
        );
        let sum = balances.entry(row).or_insert(Balance {
            of: entry,
            sums: [0; 5],
            last_at: Time::default(),
        });
        sum.add(entry);
        if let Some(note) = &entry.hold {
            let of_id = holds.entry((note.id, entry.key)).or_default();
            let last = of_id.last();
            if last.is_none_or(|it| it.may_be_followed_by(entry, note)) {
                of_id.push(Hold {
                    of: entry,
                    note,
                    reserved: 0,
                    expires_at: note.expires_at,
                    record: &note.record,
                    ended: None,
                    ended_amount: 0,
                });
            }
            if let Some(hold) = of_id.last_mut() {
                hold.add(entry, note);
            }
        }
    }
    let balances = balances.values().map(Balance::values).collect();
    upsert(connection, statements, Table::Balances, balances).await?;
    // A statement cannot change a row twice, and the order matters. So each round has at most one row per
    // reservation.
    for round in 0.. {
        let rows = holds.values().filter_map(|it| it.get(round));
        let rows: Vec<_> = rows.map(Hold::values).collect();
        if rows.is_empty() {
            break;
        }
        upsert(connection, statements, Table::Holds, rows).await?;
    }
    Ok(())
}

async fn upsert(
    connection: &mut dyn Connection,
    statements: &mut Statements,
    table: Table,
    mut rows: Vec<Vec<Value>>,
) -> Result<(), sqlx::Error> {
    while !rows.is_empty() {
        let (sql, size) = statements.of(table, connection.dialect(), rows.len());
        let values = Values::Rows {
            list: rows.drain(..size).flatten().collect(),
            width: table.columns().len(),
        };
        connection.execute(sql, values).await?;
    }
    Ok(())
}

/// The amounts to add to a row of `balances`.
struct Balance<'a> {
    of: &'a Entry,
    /// The columns `used`, `granted`, `corrections`, `requests` and `entries`.
    sums: [i128; 5],
    last_at: Time,
}

impl<'a> Balance<'a> {
    fn add(&mut self, entry: &'a Entry) {
        let amount = i128::from(entry.amount);
        let [used, granted, corrections] = match entry.kind {
            Kind::Grant => [0, amount, 0],
            Kind::Correction => [amount, 0, amount],
            Kind::Use | Kind::Reserve | Kind::Settle | Kind::Expiry => [amount, 0, 0],
        };
        let more = [used, granted, corrections, entry.count.into(), 1];
        for (sum, more) in self.sums.iter_mut().zip(more) {
            *sum += more;
        }
        self.last_at = self.last_at.max(entry.at);
        // The last entry determines the end of the period, as if the entries were written one by one.
        self.of = entry;
    }

    fn values(&self) -> Vec<Value> {
        let of = self.of;
        let mut values = vec![
            of.key.into(),
            of.period.start.into(),
            (&of.tenant).into(),
            (&of.action).into(),
            (&of.rule).into(),
            (&of.namespace).into(),
            (&of.allowance).into(),
            of.period.end.into(),
        ];
        values.extend(self.sums.map(|sum| bounded(sum).into()));
        values.push(self.last_at.into());
        values
    }
}

/// The changes of a row of `holds`.
struct Hold<'a> {
    of: &'a Entry,
    note: &'a HoldNote,
    reserved: i128,
    expires_at: Time,
    record: &'a Arc<str>,
    ended: Option<Kind>,
    ended_amount: i128,
}

impl<'a> Hold<'a> {
    /// Returns whether `entry` may begin another reservation with the same id. Only the database knows
    /// whether it does, because this reservation may have begun or ended in an earlier transaction.
    fn may_be_followed_by(&self, entry: &Entry, note: &HoldNote) -> bool {
        let lasts_longer = note.expires_at > self.expires_at;
        !entry.kind.ends_hold() && entry.amount != 0 && lasts_longer
    }

    fn add(&mut self, entry: &'a Entry, note: &'a HoldNote) {
        self.expires_at = self.expires_at.max(note.expires_at);
        let is_end = entry.kind.ends_hold() && self.ended.is_none() && !note.record.is_empty();
        if self.record.is_empty() || is_end {
            self.record = &note.record;
        }
        if entry.kind.ends_hold() {
            self.ended = self.ended.or(Some(entry.kind));
            self.ended_amount += i128::from(entry.amount);
        } else {
            self.reserved += i128::from(entry.amount);
        }
    }

    fn values(&self) -> Vec<Value> {
        let of = self.of;
        vec![
            self.note.id.into(),
            of.key.into(),
            (&of.namespace).into(),
            (&of.tenant).into(),
            (&of.action).into(),
            (&of.rule).into(),
            (&of.allowance).into(),
            of.period.start.into(),
            of.period.end.into(),
            self.note.tag.into(),
            bounded(self.reserved).into(),
            self.expires_at.into(),
            self.record.into(),
            Value::Text(self.ended.map(|kind| kind.name().into())),
            bounded(self.ended_amount).into(),
        ]
    }
}

fn bounded(sum: i128) -> i64 {
    let most = i128::from(MOST_SUM);
    i64::try_from(sum.clamp(-most, most)).unwrap_or(MOST_SUM)
}
