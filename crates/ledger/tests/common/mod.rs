//! Ledgers in both databases, and entries for them.

#![allow(clippy::panic, clippy::unwrap_used, dead_code)] // Helpers may panic, like tests. No test uses all of them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tempfile::TempDir;
use tollgate_core::Time;
use tollgate_ledger::{
    Database, Entry, EntryId, EntryQuery, HoldNote, Kind, Ledger, LedgerError, Options, Period,
};
use tollgate_rig::Postgres;

/// One server for all tests that run at the same time. It stops when the last of these tests ends.
static SERVER: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
static DATABASES: AtomicU64 = AtomicU64::new(0);

/// A separate database, and how to open it.
pub(crate) struct Fixture {
    pub(crate) options: Options,
    pub(crate) directory: TempDir,
    pub(crate) server: Option<Arc<Postgres>>,
}

impl Fixture {
    /// Returns a database in a file.
    pub(crate) fn sqlite() -> Fixture {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("ledger.db");
        Fixture {
            options: quick(Database::Sqlite(file)),
            directory,
            server: None,
        }
    }

    /// Returns a database on the server that all tests share.
    pub(crate) fn postgres() -> Fixture {
        let mut shared = SERVER.lock().unwrap();
        let server = shared
            .upgrade()
            .unwrap_or_else(|| Arc::new(Postgres::start()));
        *shared = Arc::downgrade(&server);
        drop(shared);
        let number = DATABASES.fetch_add(1, Ordering::Relaxed);
        Fixture::of(&server, &format!("ledger{number}"))
    }

    /// Returns a database on this server.
    pub(crate) fn of(server: &Arc<Postgres>, name: &str) -> Fixture {
        let directory = TempDir::new().unwrap();
        let mut options = quick(Database::Postgres(server.database(name)));
        options.spill = Some(directory.path().join("spill"));
        Fixture {
            options,
            directory,
            server: Some(Arc::clone(server)),
        }
    }

    /// Opens the ledger.
    pub(crate) async fn open(&self) -> Ledger {
        Ledger::open(self.options.clone()).await.unwrap()
    }

    /// Removes a database from its server, for tests that create many databases. A file is removed with its
    /// directory anyway.
    pub(crate) fn remove(self) {
        if let (Some(server), Database::Postgres(url)) = (&self.server, &self.options.database) {
            let name = url.rsplit('/').next().unwrap().split('?').next().unwrap();
            server.sql(&format!("DROP DATABASE \"{name}\" WITH (FORCE)"));
        }
    }

    /// Returns the spill file.
    pub(crate) fn spill(&self) -> PathBuf {
        self.options.spill_file().unwrap()
    }
}

/// Returns options with a short flush interval.
fn quick(database: Database) -> Options {
    let mut options = Options::new(database);
    options.flush_interval = Duration::from_millis(20);
    options
}

/// Returns a time in seconds after the epoch.
pub(crate) fn second(seconds: u64) -> Time {
    Time::from_micros(seconds * 1_000_000)
}

/// Returns the period with this number; each is 100 seconds long.
pub(crate) fn period(number: u64) -> Period {
    Period {
        start: second(number * 100),
        end: second(number * 100 + 100),
    }
}

/// Returns a use: the tenant `acme` uses 1 unit of counter 7, in the first period.
pub(crate) fn entry(id: u128) -> Entry {
    Entry {
        id: EntryId(id),
        at: second(1),
        namespace: "test".into(),
        tenant: "acme".into(),
        action: "search".into(),
        rule: "monthly".into(),
        allowance: "monthly".into(),
        key: 7,
        period: period(0),
        kind: Kind::Use,
        amount: 1,
        count: 1,
        hold: None,
        who: "".into(),
        why: "".into(),
        idempotency_key: None,
    }
}

/// Returns a grant: an entry that is never merged with another.
pub(crate) fn grant(id: u128) -> Entry {
    Entry {
        kind: Kind::Grant,
        ..entry(id)
    }
}

/// Returns an entry about a reservation.
pub(crate) fn of_hold(id: u128, kind: Kind, amount: i64, hold: u128, expires_at: Time) -> Entry {
    Entry {
        kind,
        amount,
        hold: Some(HoldNote {
            id: hold,
            tag: 3,
            expires_at,
            record: match kind {
                Kind::Reserve => "a record".into(),
                _ => "".into(),
            },
        }),
        ..entry(id)
    }
}

/// Returns a query for all entries of the namespace `test`.
pub(crate) fn everything() -> EntryQuery {
    EntryQuery {
        namespace: "test".into(),
        to: Time::MAX,
        ..EntryQuery::default()
    }
}

/// Returns all entries in order.
pub(crate) async fn all(ledger: &Ledger) -> Result<Vec<Entry>, LedgerError> {
    let (mut query, mut entries) = (everything(), Vec::new());
    loop {
        let page = ledger.entries(&query).await?;
        let Some((last, _)) = page.last() else {
            return Ok(entries);
        };
        query.after = *last;
        entries.extend(page.into_iter().map(|(_, entry)| entry));
    }
}

/// Returns the ids of all entries in order.
pub(crate) async fn ids(ledger: &Ledger) -> Vec<u128> {
    let entries = all(ledger).await.unwrap();
    entries.iter().map(|entry| entry.id.0).collect()
}

/// Polls until `look` returns true.
pub(crate) async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(60);
    let waited = tokio::time::timeout(limit, waiting).await;
    waited.unwrap_or_else(|_| panic!("timed out waiting until {what}"));
}

/// Starts a separate server, which a test can stop, and returns a database on it.
pub(crate) fn own() -> (Arc<Postgres>, Fixture) {
    let server = Arc::new(Postgres::start());
    let fixture = Fixture::of(&server, "ledger");
    (server, fixture)
}

/// Returns the ids of a range as a list.
pub(crate) fn range(ids: std::ops::Range<u128>) -> Vec<u128> {
    ids.collect()
}

/// Runs each test on SQLite and on PostgreSQL.
#[macro_export]
macro_rules! on_both {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::common::Fixture::sqlite()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::common::Fixture::postgres()).await;
            })*
        }
    };
}
