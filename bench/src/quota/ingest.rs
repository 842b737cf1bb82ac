//! The ledger against a plain insert of the same rows, on SQLite and on PostgreSQL.

use std::error::Error;
use std::time::Duration;

use tollgate_bench::table::{Bar, median};
use tollgate_core::Time;
use tollgate_ledger::{Database, Entry, EntryId, Kind, Ledger, Options, Period};
use tollgate_rig::{Postgres, Stopwatch};

use super::plain::PlainTable;
use super::{Effort, LEAST_OF_INGEST, Pair};

/// The rows of one transaction, on both sides.
pub(super) const BATCH: usize = 5000;
/// The number of counters.
const KEYS: u128 = 1000;
/// The number of rounds: few, because each takes long.
const ROUNDS: usize = 5;

/// The ids of the entries. The ids matter because the ledger has an index of ids, and the plain table has
/// none.
#[derive(Clone, Copy)]
enum Ids {
    /// Consecutive ids, as usage has: a random number of the process, and a counter.
    Consecutive,
    /// Random ids, as postings with an idempotency key have: their ids are hashes.
    Random,
}

impl Ids {
    fn of(self, number: u128) -> EntryId {
        const RANDOM: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        EntryId(match self {
            Ids::Consecutive => RANDOM >> 64 << 64 | number,
            Ids::Random => number.wrapping_mul(RANDOM),
        })
    }
}

pub(super) async fn measure(effort: &Effort) -> Result<Vec<Pair>, Box<dyn Error>> {
    let directory = std::env::temp_dir().join(format!("tollgate-ingest-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let postgres = Postgres::start();
    let mut pairs = Vec::new();
    for (number, (name, ids, bar)) in [
        ("SQLite", Ids::Consecutive, Bar::AtLeast(LEAST_OF_INGEST)),
        ("SQLite, random ids", Ids::Random, Bar::None),
        ("PostgreSQL", Ids::Consecutive, Bar::None),
        ("PostgreSQL, random ids", Ids::Random, Bar::None),
    ]
    .into_iter()
    .enumerate()
    {
        let is_sqlite = name.starts_with("SQLite");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=effort.rounds.min(ROUNDS) {
            let entries = || -> Vec<Entry> {
                let numbers = 0..effort.entries as u128;
                numbers.map(|it| entry(ids.of(it), it)).collect()
            };
            let (ledger_name, plain_name) = (
                format!("ledger_{number}_{round}"),
                format!("plain_{number}_{round}"),
            );
            let database = match is_sqlite {
                true => Database::Sqlite(directory.join(ledger_name)),
                false => Database::Postgres(postgres.database(&ledger_name)),
            };
            let written = write(database, entries()).await?;
            let mut table = match is_sqlite {
                true => PlainTable::sqlite(&directory.join(plain_name)).await?,
                false => PlainTable::postgres(&postgres.database(&plain_name)).await?,
            };
            let entries = entries();
            let stopwatch = Stopwatch::start();
            table.insert(&entries).await?;
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
            bar,
        });
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(pairs)
}

/// Measures how fast the ledger writes entries to the database.
async fn write(database: Database, made: Vec<Entry>) -> Result<f64, Box<dyn Error>> {
    let entries = made.len();
    let options = Options {
        max_queued: entries + 1,
        ..Options::new(database)
    };
    let ledger = Ledger::open(options).await?;
    let stopwatch = Stopwatch::start();
    let mut made = made.into_iter().peekable();
    while made.peek().is_some() {
        // Record in batches: entries that wait longer than the flush interval would go to the spill file.
        for entry in made.by_ref().take(BATCH) {
            ledger.record(entry)?;
        }
        ledger.flush().await?;
    }
    let speed = thousands(entries, stopwatch.elapsed());
    ledger.close().await;
    Ok(speed)
}

/// Returns an entry with an idempotency key, so the ledger does not merge it with others.
fn entry(id: EntryId, number: u128) -> Entry {
    Entry {
        id,
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
