//! The trail of who changed what: kept as safely as entries, found again, and no part of any sum.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use tollgate_ledger::{Database, EntryError, EntryId, Full, Ledger, MOST_RECORD, Note, TrailQuery};

use self::common::{Books, grant, ids, own, range, second, until};

on_both! {
    notes_are_found_the_latest_first
    the_same_note_is_kept_once
    who_what_and_since_choose
    books_are_looked_at_and_not_made
    books_of_before_get_a_trail
}

fn note(id: u64, what: &str, who: &str) -> Note {
    Note {
        id: EntryId(id.into()),
        at: second(id),
        namespace: "test".into(),
        who: who.into(),
        what: what.into(),
        text: format!("{{\"number\":{id}}}").into(),
    }
}

fn all() -> TrailQuery {
    TrailQuery {
        namespace: "test".into(),
        ..TrailQuery::default()
    }
}

async fn found(ledger: &Ledger, query: &TrailQuery) -> Vec<u128> {
    let notes = ledger.trail(query).await.unwrap();
    notes.iter().map(|note| note.id.0).collect()
}

async fn notes_are_found_the_latest_first(books: Books) {
    let ledger = books.open().await;
    for id in 1..=3 {
        ledger.audit(note(id, "reset", "ops")).unwrap();
        ledger.record(grant(id.into())).unwrap();
    }
    assert_eq!(
        ledger.trail(&all()).await.unwrap()[2],
        note(1, "reset", "ops")
    );
    assert_eq!(found(&ledger, &all()).await, [3, 2, 1]);
    let two = TrailQuery { most: 2, ..all() };
    assert_eq!(found(&ledger, &two).await, [3, 2]);
    // Another deployment of the same database sees none, and entries are none of it.
    let other = TrailQuery {
        namespace: "other".into(),
        ..all()
    };
    assert_eq!(found(&ledger, &other).await, range(0..0));
    assert_eq!(ids(&ledger).await, [1, 2, 3]);
    assert_eq!(ledger.status().written, 6);
}

async fn the_same_note_is_kept_once(books: Books) {
    let (one, other) = (books.open().await, books.open().await);
    for ledger in [&one, &other, &one] {
        ledger.audit(note(1, "reset", "ops")).unwrap();
        ledger.flush().await.unwrap();
    }
    other.audit(note(2, "reset", "ops")).unwrap();
    other.flush().await.unwrap();
    assert_eq!(found(&one, &all()).await, [2, 1], "of every process");
}

async fn who_what_and_since_choose(books: Books) {
    let ledger = books.open().await;
    for (id, what, who) in [
        (1, "config.reload", "file"),
        (2, "config", "ops"),
        (3, "configuration", "ops"),
        (4, "config.refused", "ops"),
    ] {
        ledger.audit(note(id, what, who)).unwrap();
    }
    let what = |what: &str| TrailQuery {
        what: Some(what.into()),
        ..all()
    };
    assert_eq!(found(&ledger, &what("config")).await, [4, 2, 1]);
    assert_eq!(found(&ledger, &what("config.reload")).await, [1]);
    assert_eq!(found(&ledger, &what("conf")).await, range(0..0));
    let query = TrailQuery {
        who: Some("ops".into()),
        ..what("config")
    };
    assert_eq!(found(&ledger, &query).await, [4, 2]);
    let query = TrailQuery {
        since: second(3),
        ..all()
    };
    assert_eq!(found(&ledger, &query).await, [4, 3]);
}

async fn books_are_looked_at_and_not_made(books: Books) {
    assert_eq!(Ledger::inspect(&books.options).await.unwrap(), None);
    assert_eq!(Ledger::inspect(&books.options).await.unwrap(), None);
    books.open().await.close().await;
    assert_eq!(Ledger::inspect(&books.options).await.unwrap(), Some(3));
}

async fn books_of_before_get_a_trail(books: Books) {
    let ledger = books.open().await;
    ledger.write(vec![grant(1)]).await.unwrap();
    ledger.close().await;
    // As they were when there was no trail.
    for sql in [
        "DROP TABLE audit",
        "DROP TABLE periods",
        "DELETE FROM schema_version WHERE version > 1",
    ] {
        match &books.options.database {
            Database::Sqlite(file) => {
                let file = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
                let pool = sqlx::SqlitePool::connect_with(file).await.unwrap();
                sqlx::query(sql).execute(&pool).await.unwrap();
                pool.close().await;
            }
            Database::Postgres(url) => {
                let pool = sqlx::PgPool::connect(url).await.unwrap();
                sqlx::query(sql).execute(&pool).await.unwrap();
                pool.close().await;
            }
        }
    }
    assert_eq!(Ledger::inspect(&books.options).await.unwrap(), Some(1));
    let ledger = books.open().await;
    ledger.audit(note(1, "reset", "ops")).unwrap();
    assert_eq!(found(&ledger, &all()).await, [1]);
    assert_eq!(ids(&ledger).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_are_spilled_and_written_later_like_entries() {
    let (server, books) = own();
    let ledger = books.open().await;
    server.stop();
    for id in 1..=20 {
        ledger.audit(note(id, "reset", "ops")).unwrap();
        ledger.record(grant(id.into())).unwrap();
    }
    until("all are spilled", async || ledger.status().spilled == 40).await;
    // The process ends, and another finds what it has left.
    ledger.close().await;
    drop(ledger);
    server.start_again();
    let ledger = Ledger::start(books.options.clone());
    until("all are written", async || {
        ledger.flush().await.is_ok() && ledger.status().spilled == 0
    })
    .await;
    assert_eq!(found(&ledger, &all()).await.len(), 20);
    assert_eq!(ids(&ledger).await, range(1..21));
}

#[tokio::test]
async fn what_cannot_be_kept_is_not_taken() {
    let mut books = Books::sqlite();
    books.options.max_queued = 2;
    books.options.flush_interval = std::time::Duration::from_secs(600);
    let ledger = books.open().await;
    let long = Note {
        text: "x".repeat(MOST_RECORD + 1).into(),
        ..note(1, "reset", "ops")
    };
    let error = ledger.audit(long).unwrap_err();
    assert!(
        matches!(
            error,
            Full::Unfit(EntryError::TooLong { field: "text", .. })
        ),
        "{error}"
    );
    for id in 1..=2 {
        ledger.audit(note(id, "reset", "ops")).unwrap();
    }
    let full = ledger.audit(note(3, "reset", "ops")).unwrap_err();
    assert_eq!(full, Full::Queue { max_queued: 2 });
    assert_eq!(
        ledger.status().lag(second(5)),
        Some(second(5).since(second(1)))
    );
    ledger.close().await;
    let closed = ledger.audit(note(4, "reset", "ops")).unwrap_err();
    assert_eq!(closed, Full::Closed);
    assert_eq!(found(&books.open().await, &all()).await, [2, 1]);
}
