//! Notes of administrative changes: stored as safely as entries, found again, and not part of any sum.

#![allow(clippy::unwrap_used)] // Helpers may panic, like tests.

mod common;

use tollgate_ledger::{Database, EntryError, EntryId, Full, Ledger, MOST_RECORD, Note, TrailQuery};

use self::common::{Fixture, grant, ids, own, range, second, until};

on_both! {
    notes_are_listed_latest_first
    a_repeated_note_is_stored_once
    notes_are_filtered_by_who_what_and_since
    inspecting_creates_nothing
    a_ledger_without_notes_is_migrated
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

async fn notes_are_listed_latest_first(fixture: Fixture) {
    let ledger = fixture.open().await;
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
    // Another namespace of the same database has no notes, and entries are not notes.
    let other = TrailQuery {
        namespace: "other".into(),
        ..all()
    };
    assert_eq!(found(&ledger, &other).await, range(0..0));
    assert_eq!(ids(&ledger).await, [1, 2, 3]);
    assert_eq!(ledger.status().written, 6);
}

async fn a_repeated_note_is_stored_once(fixture: Fixture) {
    let (one, other) = (fixture.open().await, fixture.open().await);
    for ledger in [&one, &other, &one] {
        ledger.audit(note(1, "reset", "ops")).unwrap();
        ledger.flush().await.unwrap();
    }
    other.audit(note(2, "reset", "ops")).unwrap();
    other.flush().await.unwrap();
    assert_eq!(found(&one, &all()).await, [2, 1], "of both processes");
}

async fn notes_are_filtered_by_who_what_and_since(fixture: Fixture) {
    let ledger = fixture.open().await;
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

async fn inspecting_creates_nothing(fixture: Fixture) {
    assert_eq!(Ledger::inspect(&fixture.options).await.unwrap(), None);
    assert_eq!(Ledger::inspect(&fixture.options).await.unwrap(), None);
    fixture.open().await.close().await;
    assert_eq!(Ledger::inspect(&fixture.options).await.unwrap(), Some(4));
}

async fn a_ledger_without_notes_is_migrated(fixture: Fixture) {
    let ledger = fixture.open().await;
    ledger.write(vec![grant(1)]).await.unwrap();
    ledger.close().await;
    // Make the tables those of the version before notes existed.
    for sql in [
        "DROP TABLE audit",
        "DROP TABLE periods",
        "DROP TABLE deployments",
        "DELETE FROM schema_version WHERE version > 1",
    ] {
        match &fixture.options.database {
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
    assert_eq!(Ledger::inspect(&fixture.options).await.unwrap(), Some(1));
    let ledger = fixture.open().await;
    ledger.audit(note(1, "reset", "ops")).unwrap();
    assert_eq!(found(&ledger, &all()).await, [1]);
    assert_eq!(ids(&ledger).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_are_spilled_and_written_later() {
    let (server, fixture) = own();
    let ledger = fixture.open().await;
    server.stop();
    for id in 1..=20 {
        ledger.audit(note(id, "reset", "ops")).unwrap();
        ledger.record(grant(id.into())).unwrap();
    }
    until("all are spilled", async || ledger.status().spilled == 40).await;
    // The process ends, and another finds its spill file.
    ledger.close().await;
    drop(ledger);
    server.start_again();
    let ledger = Ledger::start(fixture.options.clone()).unwrap();
    until("all are written", async || {
        ledger.flush().await.is_ok() && ledger.status().spilled == 0
    })
    .await;
    assert_eq!(found(&ledger, &all()).await.len(), 20);
    assert_eq!(ids(&ledger).await, range(1..21));
}

#[tokio::test]
async fn invalid_notes_are_rejected() {
    let mut fixture = Fixture::sqlite();
    fixture.options.max_queued = 2;
    fixture.options.flush_interval = std::time::Duration::from_secs(600);
    let ledger = fixture.open().await;
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
    assert_eq!(found(&fixture.open().await, &all()).await, [2, 1]);
}
