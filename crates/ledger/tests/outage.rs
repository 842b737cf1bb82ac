//! The database stops, hangs and comes back, or the disk cannot be written. No accepted entry is lost or
//! counted twice, and the order of entries does not change.

#![allow(clippy::unwrap_used)] // Helpers may panic, like tests.

mod common;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Span;
use tollgate_ledger::{Database, Entry, Full, Ledger, LedgerError};

use tollgate_rig::Postgres;

use self::common::{Fixture, all, grant, ids, own, period, range, second, until};

fn record(ledger: &Ledger, ids: std::ops::Range<u128>) {
    for id in ids {
        ledger.record(grant(id)).unwrap();
    }
}

/// Returns a separate server whose tables exist, for tests that measure time.
async fn with_tables() -> (Arc<Postgres>, Fixture) {
    let (server, fixture) = own();
    fixture.open().await.close().await;
    (server, fixture)
}

/// Makes each insert of an entry take this many seconds.
fn slow_down(server: &Postgres, seconds: f64) {
    server.sql_in(
        "ledger",
        &format!(
            "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql \
             AS $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$; \
             CREATE OR REPLACE TRIGGER slow BEFORE INSERT ON entries \
             FOR EACH ROW EXECUTE FUNCTION slow();"
        ),
    );
}

/// Records entries until the spill file and memory are full. Returns how many entries were accepted.
async fn fill(ledger: &Ledger, max_queued: usize) -> u128 {
    let mut accepted = 0;
    until("it is full", async || {
        // The times show which of two spill files is older.
        let timed = |id| Entry {
            at: second(u64::try_from(id).unwrap()),
            ..grant(id)
        };
        while ledger.record(timed(accepted)).is_ok() {
            accepted += 1;
        }
        let error = ledger.status().last_error.unwrap_or_default();
        error.contains("spill file") && ledger.status().queued == max_queued
    })
    .await;
    accepted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_gets_all_entries_later_in_order() {
    let (server, mut fixture) = own();
    fixture.options.batch = 50;
    let ledger = fixture.open().await;
    record(&ledger, 0..100);
    ledger.flush().await.unwrap();
    assert!(ledger.status().is_connected);
    assert_eq!(ledger.status().lag(second(5)), None);

    server.stop();
    record(&ledger, 100..300);
    until("entries are spilled", async || {
        ledger.status().spilled == 200
    })
    .await;
    let status = ledger.status();
    assert!(!status.is_connected);
    assert_eq!((status.queued, status.dropped), (0, 0));
    assert!(status.failures > 0);
    assert_eq!(status.lag(second(5)), Some(Span::from_secs(4)));
    let length = fs::metadata(fixture.spill()).unwrap().len();
    assert_eq!(status.spilled_bytes, length);
    let error = status.last_error.unwrap();
    assert!(error.contains("postgres://127.0.0.1"), "{error}");

    // A strict write fails at once, and is not written later.
    let error = ledger.write(vec![grant(9000)]).await.unwrap_err();
    assert!(!error.is_unknown(), "{error}");
    assert!(ledger.flush().await.is_err());
    assert!(ledger.balance(7, period(0).start).await.is_err());

    record(&ledger, 300..400);
    until("more is spilled", async || ledger.status().spilled == 300).await;
    server.start_again();
    record(&ledger, 400..500);
    until("all is written", async || {
        ledger.flush().await.is_ok() && ledger.status().spilled == 0
    })
    .await;
    assert_eq!(ids(&ledger).await, range(0..500));
    let balance = ledger.balance(7, period(0).start).await.unwrap();
    assert_eq!(balance.granted, 500);
    let status = ledger.status();
    assert_eq!((status.lag(second(5)), status.last_error), (None, None));
    assert_eq!(fs::metadata(fixture.spill()).unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_crashes_of_the_server_lose_and_repeat_nothing() {
    let (server, mut fixture) = own();
    fixture.options.batch = 20;
    let ledger = fixture.open().await;
    let mut strict = Vec::new();
    for round in 0..4 {
        record(&ledger, round * 1000..round * 1000 + 300);
        // Some of these writes are running when the server is killed.
        let writers: Vec<_> = (0..10)
            .map(|number| {
                let (ledger, id) = (ledger.clone(), round * 1000 + 500 + number);
                tokio::spawn(async move { (id, ledger.write(vec![grant(id)]).await) })
            })
            .collect();
        server.kill();
        record(&ledger, round * 1000 + 300..round * 1000 + 400);
        for writer in writers {
            strict.push(writer.await.unwrap());
        }
        server.start_again();
    }
    until("all is written", async || ledger.flush().await.is_ok()).await;
    let found = ids(&ledger).await;
    let recorded: Vec<u128> = found.iter().copied().filter(|id| id % 1000 < 500).collect();
    let expected: Vec<u128> = (0..4).flat_map(|it| it * 1000..it * 1000 + 400).collect();
    assert_eq!(recorded, expected);
    for (id, result) in strict {
        let is_there = found.contains(&id);
        match result {
            Ok(()) => assert!(is_there, "{id} was confirmed"),
            Err(error) if error.is_unknown() => {}
            Err(error) => assert!(!is_there, "{id} failed: {error}"),
        }
    }
    let balance = ledger.balance(7, period(0).start).await.unwrap();
    assert_eq!(usize::try_from(balance.granted).unwrap(), found.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_gets_smaller_batches() {
    let (server, mut fixture) = with_tables().await;
    fixture.options.write_timeout = Duration::from_millis(500);
    let ledger = fixture.open().await;
    // 400 rows would take more than a second and a half.
    slow_down(&server, 0.004);
    record(&ledger, 0..400);
    until("all is written", async || {
        let count = server.sql_in("ledger", "SELECT count(*) FROM entries");
        count.trim() == "400"
    })
    .await;
    server.sql_in("ledger", "DROP TRIGGER slow ON entries");
    until("it is fast again", async || ledger.flush().await.is_ok()).await;
    assert_eq!(ids(&ledger).await, range(0..400));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_do_not_wait_for_a_hanging_server() {
    let (server, mut fixture) = own();
    fixture.options.write_timeout = Duration::from_secs(600);
    let ledger = fixture.open().await;
    record(&ledger, 0..10);
    ledger.flush().await.unwrap();
    server.pause();
    record(&ledger, 10..20);
    // The transaction hangs, and its entries are spilled within the flush interval.
    until("the first are spilled", async || {
        ledger.status().spilled == 10
    })
    .await;
    record(&ledger, 20..30);
    until("all are spilled", async || ledger.status().spilled == 20).await;
    server.resume();
    ledger.flush().await.unwrap();
    assert_eq!(ids(&ledger).await, range(0..30));
    assert_eq!((ledger.status().spilled, ledger.status().failures), (0, 0));
}

/// A caller waits for a strict write for at most `strict_wait`, and not until the transaction ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_write_waits_as_long_as_configured() {
    let (server, mut fixture) = with_tables().await;
    fixture.options.write_timeout = Duration::from_secs(600);
    fixture.options.strict_wait = Duration::from_millis(100);
    let ledger = fixture.open().await;
    server.pause();
    // The server answers nothing, and the transaction may take ten minutes.
    let error = ledger.write(vec![grant(1)]).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert!(error.to_string().contains("within 100ms"), "{error}");
    server.resume();
    // The write was not cancelled.
    ledger.flush().await.unwrap();
    assert_eq!(ids(&ledger).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_write_ends_in_time() {
    let (server, mut fixture) = with_tables().await;
    fixture.options.write_timeout = Duration::from_secs(1);
    let ledger = fixture.open().await;
    server.pause();
    let error = ledger.write(vec![grant(1)]).await.unwrap_err();
    // COMMIT was not sent yet, so the outcome is certain.
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    server.resume();
    until("it is back", async || ledger.flush().await.is_ok()).await;
    ledger.write(vec![grant(2)]).await.unwrap();
    assert_eq!(ids(&ledger).await, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_may_start_before_its_server() {
    let (server, fixture) = own();
    server.stop();
    let ledger = Ledger::start(fixture.options.clone()).unwrap();
    record(&ledger, 0..10);
    until("entries are spilled", async || {
        ledger.status().spilled == 10
    })
    .await;
    assert!(ledger.overdue("test", second(1), 1).await.is_err());
    server.start_again();
    until("it is there", async || ledger.flush().await.is_ok()).await;
    assert_eq!(ids(&ledger).await, range(0..10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_closed_ledger_are_written_by_the_next() {
    let (server, fixture) = own();
    let ledger = fixture.open().await;
    server.stop();
    record(&ledger, 0..10);
    ledger.close().await;
    assert_eq!(ledger.status().spilled, 10);
    // This ledger is not closed with `close`: its last clone is dropped.
    let ledger = Ledger::start(fixture.options.clone()).unwrap();
    record(&ledger, 10..20);
    drop(ledger);
    let spilled = || {
        let files = [fixture.spill(), fixture.directory.path().join("spill.1")];
        let texts = files.map(|file| fs::read_to_string(file).unwrap_or_default());
        texts.concat().lines().count()
    };
    until("the second is spilled, too", async || spilled() == 20).await;
    server.start_again();
    let ledger = fixture.open().await;
    record(&ledger, 20..30);
    until("all are there", async || ids(&ledger).await.len() == 30).await;
    assert_eq!(ids(&ledger).await, range(0..30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_writes_do_not_wait_behind_a_spill() {
    let (server, mut fixture) = own();
    fixture.options.batch = 10;
    let ledger = fixture.open().await;
    // To write all 600 entries takes half a minute.
    slow_down(&server, 0.05);
    server.stop();
    record(&ledger, 0..600);
    until("entries are spilled", async || {
        ledger.status().spilled == 600
    })
    .await;
    server.start_again();
    until("a strict write", async || {
        ledger.write(vec![grant(9999)]).await.is_ok()
    })
    .await;
    assert!(
        ledger.status().spilled > 0,
        "the strict write overtook the spill"
    );
    server.sql_in("ledger", "DROP TRIGGER slow ON entries");
    ledger.flush().await.unwrap();
    let mut found = ids(&ledger).await;
    found.retain(|id| *id != 9999);
    assert_eq!(found, range(0..600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spill_file_memory_is_the_bound() {
    let (server, mut fixture) = own();
    // Not even root can create a file here.
    fixture.options.spill = Some("/sys/kernel/spill".into());
    fixture.options.max_queued = 50;
    let ledger = fixture.open().await;
    server.stop();
    record(&ledger, 0..50);
    assert_eq!(
        ledger.record(grant(50)),
        Err(Full::Queue { max_queued: 50 })
    );
    until("the status shows the disk error", async || {
        let error = ledger.status().last_error;
        error.is_some_and(|it| it.contains("cannot open the spill file /sys/kernel/spill"))
    })
    .await;
    assert_eq!((ledger.status().queued, ledger.status().spilled), (50, 0));
    let error = ledger.write(vec![grant(51)]).await.unwrap_err();
    assert!(matches!(error, LedgerError::Full(_)), "{error}");
    server.start_again();
    until("all is written", async || ledger.flush().await.is_ok()).await;
    record(&ledger, 50..60);
    assert_eq!(ids(&ledger).await, range(0..60));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_spill_file_bounds_what_is_accepted() {
    let (server, mut fixture) = own();
    fixture.options.max_spill_bytes = 10_000;
    fixture.options.max_queued = 50;
    fixture.options.batch = 10;
    let ledger = fixture.open().await;
    server.stop();
    let accepted = fill(&ledger, 50).await;
    let error = ledger.status().last_error.unwrap_or_default();
    assert!(error.contains("bytes may wait in it"), "{error}");
    assert!(accepted > 50, "{accepted}");
    assert!(fs::metadata(fixture.spill()).unwrap().len() <= 10_000);
    server.start_again();
    until("all is written", async || ledger.flush().await.is_ok()).await;
    assert_eq!(ids(&ledger).await, range(0..accepted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_file_is_written_later() {
    let fixture = Fixture::sqlite();
    let Database::Sqlite(file) = &fixture.options.database else {
        unreachable!()
    };
    fixture.open().await.close().await;
    let mut options = fixture.options.clone();
    options.write_timeout = Duration::from_millis(500);
    let ledger = Ledger::open(options).await.unwrap();
    let url = format!("sqlite://{}", file.display());
    let other = sqlx::SqlitePool::connect(&url).await.unwrap();
    let mut other = other.acquire().await.unwrap();
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut *other)
        .await
        .unwrap();
    record(&ledger, 0..10);
    until("entries are spilled", async || {
        ledger.status().spilled == 10
    })
    .await;
    sqlx::query("COMMIT").execute(&mut *other).await.unwrap();
    until("all is written", async || ledger.flush().await.is_ok()).await;
    assert_eq!(ids(&ledger).await, range(0..10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_in_memory_are_retried_while_the_ledger_closes() {
    // The spill file is full, or its directory does not exist.
    for (spill, bytes) in [("spill", 10_000), ("missing/spill", 1 << 20)] {
        let (server, mut fixture) = own();
        fixture.options.spill = Some(fixture.directory.path().join(spill));
        fixture.options.max_spill_bytes = bytes;
        fixture.options.max_queued = 50;
        fixture.options.batch = 10;
        let ledger = fixture.open().await;
        server.stop();
        let accepted = fill(&ledger, 50).await;
        let closing = {
            let ledger = ledger.clone();
            tokio::spawn(async move { ledger.close().await })
        };
        server.start_again();
        closing.await.unwrap();
        assert_eq!(
            ids(&fixture.open().await).await,
            range(0..accepted),
            "{spill}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_while_a_full_spill_is_drained_loses_nothing() {
    let (server, mut fixture) = own();
    fixture.options.max_spill_bytes = 10_000;
    fixture.options.max_queued = 50;
    fixture.options.batch = 10;
    let ledger = fixture.open().await;
    slow_down(&server, 0.02);
    server.stop();
    let accepted = fill(&ledger, 50).await;
    let full = ledger.status().spilled;
    server.start_again();
    until("it is drained", async || ledger.status().spilled < full).await;
    ledger.close().await;
    assert_eq!(ids(&fixture.open().await).await, range(0..accepted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_does_not_wait_until_the_spill_is_drained() {
    let (server, mut fixture) = own();
    fixture.options.flush_interval = Duration::from_secs(60);
    fixture.options.batch = 10;
    let ledger = fixture.open().await;
    // To write all 600 entries takes half a minute.
    slow_down(&server, 0.05);
    server.stop();
    record(&ledger, 0..600);
    until("entries are spilled", async || {
        ledger.flush().await.is_err() && ledger.status().spilled == 600
    })
    .await;
    server.start_again();
    until("it is drained", async || ledger.status().spilled < 600).await;
    record(&ledger, 600..610);
    let closed = tokio::time::timeout(Duration::from_secs(15), ledger.close()).await;
    closed.unwrap();
    let status = ledger.status();
    assert_eq!(status.queued, 0, "{status:?}");
    assert!(status.spilled > 10, "{status:?}");
    server.sql_in("ledger", "DROP TRIGGER slow ON entries");
    let ledger = fixture.open().await;
    until("all is written", async || ledger.flush().await.is_ok()).await;
    assert_eq!(ids(&ledger).await, range(0..610));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_on_disk_within_one_flush_interval() {
    let (server, mut fixture) = own();
    fixture.options.flush_interval = Duration::from_secs(4);
    fixture.options.write_timeout = Duration::from_secs(600);
    let ledger = fixture.open().await;
    // Record right after a write, so that the next write is as far away as possible.
    ledger.flush().await.unwrap();
    server.pause();
    record(&ledger, 0..10);
    let saved = until("it is on the disk", async || ledger.status().spilled == 10);
    // The time limit is a little more than one interval, and far less than two.
    let saved = tokio::time::timeout(Duration::from_secs(6), saved).await;
    saved.unwrap();
    server.resume();
    ledger.flush().await.unwrap();
    assert_eq!(ids(&ledger).await, range(0..10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_process_writes_the_spill_file_of_an_ended_one() {
    let (server, fixture) = own();
    let (first, second) = (fixture.open().await, fixture.open().await);
    server.stop();
    record(&first, 0..10);
    until("it is spilled", async || first.status().spilled == 10).await;
    record(&second, 10..20);
    second.close().await;
    assert_eq!(second.status().spilled, 10);
    server.start_again();
    until("all is there", async || {
        ids_if_any(&first).await == range(0..20)
    })
    .await;
    let left = fs::metadata(fixture.directory.path().join("spill.1")).unwrap();
    assert_eq!(left.len(), 0);
}

/// Returns the ids of all entries, or none if the ledger cannot be read.
async fn ids_if_any(ledger: &Ledger) -> Vec<u128> {
    let entries = all(ledger).await.unwrap_or_default();
    entries.iter().map(|entry| entry.id.0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_write_survives_a_restart_of_the_server() {
    let (server, fixture) = own();
    let ledger = fixture.open().await;
    for id in 0..3 {
        ledger.write(vec![grant(id)]).await.unwrap();
        server.start_again();
    }
    assert_eq!((ledger.status().failures, ledger.status().spilled), (0, 0));
    assert_eq!(ids(&ledger).await, range(0..3));
}
