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

/// Which ids the entries have. It matters: the books keep an index of them, and a bare table keeps none.
#[derive(Clone, Copy)]
enum Ids {
    /// One after the other, as the engine gives them to uses: the random number of a process, and a counter.
    Uses,
    /// Anywhere, as postings under an idempotency key have them: hashes.
    Anywhere,
}

impl Ids {
    fn of(self, number: u128) -> EntryId {
        const RANDOM: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        EntryId(match self {
            Ids::Uses => RANDOM >> 64 << 64 | number,
            Ids::Anywhere => number.wrapping_mul(RANDOM),
        })
    }
}

pub(super) async fn measure(effort: &Effort) -> Result<Vec<Pair>, Box<dyn Error>> {
    let directory = std::env::temp_dir().join(format!("tollgate-ingest-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let postgres = Postgres::start();
    let mut pairs = Vec::new();
    for (number, (name, ids, bar)) in [
        ("SQLite", Ids::Uses, Bar::AtLeast(LEAST_OF_INGEST)),
        ("SQLite, ids anywhere", Ids::Anywhere, Bar::None),
        ("PostgreSQL", Ids::Uses, Bar::None),
        ("PostgreSQL, ids anywhere", Ids::Anywhere, Bar::None),
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
            let (books, bare) = (
                format!("books_{number}_{round}"),
                format!("bare_{number}_{round}"),
            );
            let database = match is_sqlite {
                true => Database::Sqlite(directory.join(books)),
                false => Database::Postgres(postgres.database(&books)),
            };
            let written = book(database, entries()).await?;
            let mut bare = match is_sqlite {
                true => Bare::sqlite(&directory.join(bare)).await?,
                false => Bare::postgres(&postgres.database(&bare)).await?,
            };
            let entries = entries();
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
            bar,
        });
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(pairs)
}

/// How fast the ledger takes entries, until they are in the database.
async fn book(database: Database, made: Vec<Entry>) -> Result<f64, Box<dyn Error>> {
    let entries = made.len();
    let options = Options {
        max_queued: entries + 1,
        ..Options::new(database)
    };
    let ledger = Ledger::open(options).await?;
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

/// An entry that is not merged with another: it has an idempotency key.
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
