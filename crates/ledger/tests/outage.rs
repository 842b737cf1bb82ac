//! The database goes away, hangs and comes back; the disk cannot be written. Nothing that was accepted is
//! lost, nothing is counted twice, and the order stays.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Span;
use tollgate_ledger::{Database, Entry, Full, Ledger, LedgerError};

use tollgate_rig::Postgres;

use self::common::{Books, all, grant, ids, own, period, range, second, until};

fn record(ledger: &Ledger, ids: std::ops::Range<u128>) {
    for id in ids {
        ledger.record(grant(id)).unwrap();
    }
}

/// A server of its own whose tables are made, for those who are in a hurry then.
async fn with_tables() -> (Arc<Postgres>, Books) {
    let (server, books) = own();
    books.open().await.close().await;
    (server, books)
}

/// Makes every entry take so many seconds, and nothing else.
fn slow_down(server: &Postgres, seconds: f64) {
    server.sql_in(
        "books",
        &format!(
            "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql \
             AS $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$; \
             CREATE OR REPLACE TRIGGER slow BEFORE INSERT ON entries \
             FOR EACH ROW EXECUTE FUNCTION slow();"
        ),
    );
}

/// Records until neither the spill file nor the memory takes more, and says how many it took.
async fn fill(ledger: &Ledger, max_queued: usize) -> u128 {
    let mut accepted = 0;
    until("it is full", async || {
        // Their times say which of two files that are left is the older.
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
async fn a_server_that_is_stopped_gets_everything_later_in_order() {
    let (server, mut books) = own();
    books.options.batch = 50;
    let ledger = books.open().await;
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
    let length = fs::metadata(books.spill()).unwrap().len();
    assert_eq!(status.spilled_bytes, length);
    let error = status.last_error.unwrap();
    assert!(error.contains("postgres://127.0.0.1"), "{error}");

    // Who needs the database is told at once, and what is refused is not written later.
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
    assert_eq!(fs::metadata(books.spill()).unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_again_and_again_loses_and_doubles_nothing() {
    let (server, mut books) = own();
    books.options.batch = 20;
    let ledger = books.open().await;
    let mut strict = Vec::new();
    for round in 0..4 {
        record(&ledger, round * 1000..round * 1000 + 300);
        // Some of these are on their way when it ends.
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
            Err(error) => assert!(!is_there, "{id} was refused: {error}"),
        }
    }
    let balance = ledger.balance(7, period(0).start).await.unwrap();
    assert_eq!(usize::try_from(balance.granted).unwrap(), found.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_too_slow_for_a_whole_batch_gets_less_of_it() {
    let (server, mut books) = with_tables().await;
    books.options.write_timeout = Duration::from_millis(500);
    let ledger = books.open().await;
    // 400 rows would take more than a second and a half.
    slow_down(&server, 0.004);
    record(&ledger, 0..400);
    until("all is written", async || {
        let count = server.sql_in("books", "SELECT count(*) FROM entries");
        count.trim() == "400"
    })
    .await;
    server.sql_in("books", "DROP TRIGGER slow ON entries");
    until("it is fast again", async || ledger.flush().await.is_ok()).await;
    assert_eq!(ids(&ledger).await, range(0..400));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_not_waited_for() {
    let (server, mut books) = own();
    books.options.write_timeout = Duration::from_secs(600);
    let ledger = books.open().await;
    record(&ledger, 0..10);
    ledger.flush().await.unwrap();
    server.pause();
    record(&ledger, 10..20);
    // The transaction hangs, and what it writes is on the disk within the flush interval.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_hangs_ends_in_time() {
    let (server, mut books) = with_tables().await;
    books.options.write_timeout = Duration::from_secs(1);
    let ledger = books.open().await;
    server.pause();
    let error = ledger.write(vec![grant(1)]).await.unwrap_err();
    // It was not asked to commit yet: so it is certain.
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    server.resume();
    until("it is back", async || ledger.flush().await.is_ok()).await;
    ledger.write(vec![grant(2)]).await.unwrap();
    assert_eq!(ids(&ledger).await, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_may_start_before_its_server() {
    let (server, books) = own();
    server.stop();
    let ledger = Ledger::start(books.options.clone());
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
async fn what_is_closed_during_an_outage_is_written_by_the_next() {
    let (server, books) = own();
    let ledger = books.open().await;
    server.stop();
    record(&ledger, 0..10);
    ledger.close().await;
    assert_eq!(ledger.status().spilled, 10);
    // Another one that is not closed: its last clone is dropped.
    let ledger = Ledger::start(books.options.clone());
    record(&ledger, 10..20);
    drop(ledger);
    let spilled = || {
        let files = [books.spill(), books.directory.path().join("spill.1")];
        let texts = files.map(|file| fs::read_to_string(file).unwrap_or_default());
        texts.concat().lines().count()
    };
    until("the second is spilled, too", async || spilled() == 20).await;
    server.start_again();
    let ledger = books.open().await;
    record(&ledger, 20..30);
    until("all are there", async || ids(&ledger).await.len() == 30).await;
    assert_eq!(ids(&ledger).await, range(0..30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_writes_do_not_wait_behind_a_spill() {
    let (server, mut books) = own();
    books.options.batch = 10;
    let ledger = books.open().await;
    // Half a minute for all of them.
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
    assert!(ledger.status().spilled > 0, "it has overtaken");
    server.sql_in("books", "DROP TRIGGER slow ON entries");
    ledger.flush().await.unwrap();
    let mut found = ids(&ledger).await;
    found.retain(|id| *id != 9999);
    assert_eq!(found, range(0..600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_disk_memory_is_the_bound_and_nothing_is_lost() {
    let (server, mut books) = own();
    // Nobody can make a file here, root included.
    books.options.spill = Some("/sys/kernel/spill".into());
    books.options.max_queued = 50;
    let ledger = books.open().await;
    server.stop();
    record(&ledger, 0..50);
    assert_eq!(
        ledger.record(grant(50)),
        Err(Full::Queue { max_queued: 50 })
    );
    until("the disk is told of", async || {
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
async fn a_full_spill_is_the_bound_too() {
    let (server, mut books) = own();
    books.options.max_spill_bytes = 10_000;
    books.options.max_queued = 50;
    books.options.batch = 10;
    let ledger = books.open().await;
    server.stop();
    let accepted = fill(&ledger, 50).await;
    let error = ledger.status().last_error.unwrap_or_default();
    assert!(error.contains("bytes may wait in it"), "{error}");
    assert!(accepted > 50, "{accepted}");
    assert!(fs::metadata(books.spill()).unwrap().len() <= 10_000);
    server.start_again();
    until("all is written", async || ledger.flush().await.is_ok()).await;
    assert_eq!(ids(&ledger).await, range(0..accepted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_somebody_has_locked_is_written_later() {
    let books = Books::sqlite();
    let Database::Sqlite(file) = &books.options.database else {
        unreachable!()
    };
    books.open().await.close().await;
    let mut options = books.options.clone();
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
async fn what_is_only_in_memory_is_tried_again_while_the_ledger_closes() {
    // A spill that is full, and one that is nowhere.
    for (spill, bytes) in [("spill", 10_000), ("missing/spill", 1 << 20)] {
        let (server, mut books) = own();
        books.options.spill = Some(books.directory.path().join(spill));
        books.options.max_spill_bytes = bytes;
        books.options.max_queued = 50;
        books.options.batch = 10;
        let ledger = books.open().await;
        server.stop();
        let accepted = fill(&ledger, 50).await;
        let closing = {
            let ledger = ledger.clone();
            tokio::spawn(async move { ledger.close().await })
        };
        server.start_again();
        closing.await.unwrap();
        assert_eq!(
            ids(&books.open().await).await,
            range(0..accepted),
            "{spill}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_behind_a_full_spill_is_not_lost_by_closing_while_that_is_drained() {
    let (server, mut books) = own();
    books.options.max_spill_bytes = 10_000;
    books.options.max_queued = 50;
    books.options.batch = 10;
    let ledger = books.open().await;
    slow_down(&server, 0.02);
    server.stop();
    let accepted = fill(&ledger, 50).await;
    let full = ledger.status().spilled;
    server.start_again();
    until("it is drained", async || ledger.status().spilled < full).await;
    ledger.close().await;
    assert_eq!(ids(&books.open().await).await, range(0..accepted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_does_not_wait_for_the_end_of_a_spill() {
    let (server, mut books) = own();
    books.options.flush_interval = Duration::from_secs(60);
    books.options.batch = 10;
    let ledger = books.open().await;
    // Half a minute for all of them.
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
    server.sql_in("books", "DROP TRIGGER slow ON entries");
    let ledger = books.open().await;
    until("all is written", async || ledger.flush().await.is_ok()).await;
    assert_eq!(ids(&ledger).await, range(0..610));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_recorded_is_on_a_disk_within_one_flush_interval() {
    let (server, mut books) = own();
    books.options.flush_interval = Duration::from_secs(4);
    books.options.write_timeout = Duration::from_secs(600);
    let ledger = books.open().await;
    // Just after it was written, and just before the server hangs: the next look is as far away as can be.
    ledger.flush().await.unwrap();
    server.pause();
    record(&ledger, 0..10);
    let saved = until("it is on the disk", async || ledger.status().spilled == 10);
    // Some time to spare, and far from two intervals.
    let saved = tokio::time::timeout(Duration::from_secs(6), saved).await;
    saved.unwrap();
    server.resume();
    ledger.flush().await.unwrap();
    assert_eq!(ids(&ledger).await, range(0..10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_process_leaves_is_written_by_one_that_runs() {
    let (server, books) = own();
    let (first, second) = (books.open().await, books.open().await);
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
    let left = fs::metadata(books.directory.path().join("spill.1")).unwrap();
    assert_eq!(left.len(), 0);
}

/// The ids of all entries, if the books can be asked.
async fn ids_if_any(ledger: &Ledger) -> Vec<u128> {
    let entries = all(ledger).await.unwrap_or_default();
    entries.iter().map(|entry| entry.id.0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_started_again_meanwhile_takes_a_strict_write() {
    let (server, books) = own();
    let ledger = books.open().await;
    for id in 0..3 {
        ledger.write(vec![grant(id)]).await.unwrap();
        server.start_again();
    }
    assert_eq!((ledger.status().failures, ledger.status().spilled), (0, 0));
    assert_eq!(ids(&ledger).await, range(0..3));
}
