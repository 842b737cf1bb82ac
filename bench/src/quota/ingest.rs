//! The ledger against a bare insert of the same rows, on SQLite and on PostgreSQL.

use std::error::Error;
use std::time::Duration;

use tollgate_bench::table::{Bar, median};
use tollgate_core::Time;
use tollgate_ledger::{Database, Entry, EntryId, Kind, Ledger, Options, Period};
use tollgate_rig::Postgres;

use super::bare::Bare;
use super::{Effort, LEAST_OF_INGEST, Pair};
use crate::stopwatch::Stopwatch;

/// Rows of one transaction, here and there.
pub(super) const BATCH: usize = 5000;
/// Counters that the entries are of.
const KEYS: u128 = 1000;
/// A few rounds are enough for what takes this long.
const ROUNDS: usize = 5;

pub(super) async fn measure(effort: &Effort) -> Result<Vec<Pair>, Box<dyn Error>> {
    let directory = std::env::temp_dir().join(format!("tollgate-ingest-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let postgres = Postgres::start();
    let mut pairs = Vec::new();
    for name in ["SQLite", "PostgreSQL"] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=effort.rounds.min(ROUNDS) {
            let database = match name {
                "SQLite" => Database::Sqlite(directory.join(format!("books-{round}.db"))),
                _ => Database::Postgres(postgres.database(&format!("books_{round}"))),
            };
            let written = book(database, effort.entries).await?;
            let mut bare = match name {
                "SQLite" => Bare::sqlite(&directory.join(format!("bare-{round}.db"))).await?,
                _ => Bare::postgres(&postgres.database(&format!("bare_{round}"))).await?,
            };
            let entries: Vec<Entry> = (0..effort.entries as u128).map(entry).collect();
            let stopwatch = Stopwatch::start();
            bare.insert(&entries).await?;
            let inserted = thousands(effort.entries, stopwatch.elapsed());
            if round > 0 {
                ours.push(written);
                theirs.push(inserted);
            }
        }
        pairs.push(Pair {
            name,
            ours: median(ours),
            theirs: median(theirs),
            bar: match name {
                "SQLite" => Bar::AtLeast(LEAST_OF_INGEST),
                _ => Bar::None,
            },
        });
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(pairs)
}

/// How fast the ledger takes so many entries, until they are in the database.
async fn book(database: Database, entries: usize) -> Result<f64, Box<dyn Error>> {
    let options = Options {
        max_queued: entries + 1,
        ..Options::new(database)
    };
    let ledger = Ledger::open(options).await?;
    let made: Vec<Entry> = (0..entries as u128).map(entry).collect();
    let stopwatch = Stopwatch::start();
    let mut made = made.into_iter().peekable();
    while made.peek().is_some() {
        // Not all at once: what waits for longer than the flush interval is spilled, which is another matter.
        for entry in made.by_ref().take(BATCH) {
            ledger.record(entry)?;
        }
        ledger.flush().await?;
    }
    let speed = thousands(entries, stopwatch.elapsed());
    ledger.close().await;
    Ok(speed)
}

/// An entry that is not merged with another.
fn entry(number: u128) -> Entry {
    Entry {
        id: EntryId(number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)),
        at: Time::from_micros(1_700_000_000_000_000),
        namespace: "bench".into(),
        tenant: "acme".into(),
        action: "search".into(),
        rule: "monthly".into(),
        allowance: "monthly".into(),
        key: (number % KEYS).wrapping_mul(0xD134_2543_DE82_EF95_D134_2543_DE82_EF95),
        period: Period {
            start: Time::from_micros(1_699_000_000_000_000),
            end: Time::from_micros(1_702_000_000_000_000),
        },
        kind: Kind::Use,
        amount: 1,
        count: 1,
        hold: None,
        who: "".into(),
        why: "".into(),
        idempotency_key: Some(format!("request-{number}").into()),
    }
}

fn thousands(entries: usize, elapsed: Duration) -> f64 {
    entries as f64 / elapsed.as_secs_f64() / 1e3
}
