//! Opening a ledger: tables are created once, and every problem has its error.

#![allow(clippy::unwrap_used)] // Helpers may panic, like tests.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tollgate_ledger::{Database, Entry, Ledger, LedgerError, OpenError, Options};
use tollgate_rig::Postgres;

use self::common::{Fixture, all, grant, ids, period};

on_both! {
    an_existing_ledger_is_opened_unchanged
    many_may_open_an_empty_ledger_at_once
    a_ledger_of_a_newer_program_is_left_alone
    tables_of_another_program_are_an_error
}

async fn run(fixture: &Fixture, sql: &'static str) -> Option<i64> {
    match &fixture.options.database {
        Database::Sqlite(file) => {
            let file = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
            let pool = sqlx::SqlitePool::connect_with(file.create_if_missing(true));
            let pool = pool.await.unwrap();
            let found = sqlx::query_scalar(sql).fetch_optional(&pool).await.unwrap();
            pool.close().await;
            found
        }
        Database::Postgres(url) => {
            let pool = sqlx::PgPool::connect(url).await.unwrap();
            let found = sqlx::query_scalar(sql).fetch_optional(&pool).await.unwrap();
            pool.close().await;
            found
        }
    }
}

async fn an_existing_ledger_is_opened_unchanged(fixture: Fixture) {
    for number in 0..3 {
        let ledger = fixture.open().await;
        ledger.write(vec![grant(number)]).await.unwrap();
        ledger.close().await;
    }
    let ledger = fixture.open().await;
    assert_eq!(ids(&ledger).await, [0, 1, 2]);
    let versions = "SELECT CAST(count(*) AS BIGINT) FROM schema_version";
    assert_eq!(run(&fixture, versions).await, Some(4));
}

async fn many_may_open_an_empty_ledger_at_once(fixture: Fixture) {
    let opening: Vec<_> = (0..6)
        .map(|_| tokio::spawn(Ledger::open(fixture.options.clone())))
        .collect();
    for (id, opened) in (0..).zip(opening) {
        let ledger = opened.await.unwrap().unwrap();
        ledger.write(vec![grant(id)]).await.unwrap();
    }
    assert_eq!(ids(&fixture.open().await).await.len(), 6);
}

async fn a_ledger_of_a_newer_program_is_left_alone(fixture: Fixture) {
    run(
        &fixture,
        "CREATE TABLE schema_version (version BIGINT NOT NULL PRIMARY KEY)",
    )
    .await;
    run(&fixture, "INSERT INTO schema_version VALUES (7)").await;
    let error = Ledger::open(fixture.options.clone()).await.unwrap_err();
    let location = fixture.options.database.location();
    assert_eq!(
        error.to_string(),
        format!(
            "the ledger {location} has schema version 7, and this program supports up to 4: run the \
             newer program, or use another ledger"
        )
    );
    assert!(!error.is_passing());

    // After a start that does not wait, strict writes fail and other entries wait on disk.
    let ledger = Ledger::start(fixture.options.clone()).unwrap();
    ledger.record(grant(1)).unwrap();
    let error = ledger.write(vec![grant(2)]).await.unwrap_err();
    let newer = OpenError::NewerSchema {
        location: location.into(),
        found: 7,
        known: 4,
    };
    assert_eq!(error.to_string(), newer.to_string());
    assert!(!error.is_unknown());
    assert!(ledger.balance(7, period(0).start).await.is_err());
    let told = ledger.status().last_error.unwrap();
    assert_eq!(*told, newer.to_string());
    ledger.close().await;
    assert!(fs::metadata(fixture.spill()).unwrap().len() > 0);

    let tables = match &fixture.options.database {
        Database::Sqlite(_) => "SELECT count(*) FROM sqlite_schema WHERE name = 'entries'",
        Database::Postgres(_) => "SELECT count(*) FROM pg_class WHERE relname = 'entries'",
    };
    assert_eq!(run(&fixture, tables).await, Some(0));

    // After the older program was updated, all entries are there.
    run(&fixture, "DROP TABLE schema_version").await;
    assert_eq!(ids(&fixture.open().await).await, [1]);
}

async fn tables_of_another_program_are_an_error(fixture: Fixture) {
    run(&fixture, "CREATE TABLE entries (something TEXT)").await;
    let error = Ledger::open(fixture.options.clone()).await.unwrap_err();
    assert!(matches!(error, OpenError::Migration { .. }), "{error}");
    assert!(!error.is_passing());
}

fn sqlite(path: impl AsRef<Path>) -> Options {
    Options::new(Database::Sqlite(path.as_ref().to_owned()))
}

fn postgres(url: &str) -> Options {
    let mut options = Options::new(Database::Postgres(url.to_owned()));
    options.connect_timeout = Duration::from_secs(10);
    options
}

async fn open_error(options: Options) -> OpenError {
    Ledger::open(options).await.unwrap_err()
}

#[tokio::test]
async fn an_exclusive_file_is_opened_once() {
    let fixture = Fixture::sqlite();
    let directory = fixture.directory.path();
    let exclusive = |name: &str| Options {
        exclusive: true,
        spill: Some(directory.join("other.spill")),
        ..sqlite(directory.join(name))
    };
    let first = Ledger::open(exclusive("ledger.db")).await.unwrap();
    let second = open_error(exclusive("ledger.db")).await;
    assert!(matches!(second, OpenError::InUse { .. }), "{second}");
    assert!(!second.is_passing());
    let place = directory.join("ledger.db").display().to_string();
    assert_eq!(
        second.to_string(),
        format!(
            "the ledger {place} is in use by another server, which has locked {place}.lock: stop that \
             server, or use a PostgreSQL ledger, which several servers can share"
        )
    );
    let unchecked = Ledger::start(exclusive("ledger.db")).unwrap_err();
    assert!(matches!(unchecked, OpenError::InUse { .. }), "{unchecked}");
    // Another name of the same file.
    std::os::unix::fs::symlink(directory.join("ledger.db"), directory.join("alias.db")).unwrap();
    let alias = open_error(exclusive("alias.db")).await;
    assert!(matches!(alias, OpenError::InUse { .. }), "{alias}");
    // The lock does not disturb SQLite: other processes can read, and the owner can write.
    let found = Ledger::inspect(&exclusive("ledger.db")).await.unwrap();
    assert!(found.is_some());
    first.write(vec![grant(1)]).await.unwrap();
    assert_eq!(ids(&fixture.open().await).await, [1]);
    first.close().await;
    let next = Ledger::open(exclusive("ledger.db")).await.unwrap();
    assert_eq!(ids(&next).await, [1]);
}

#[tokio::test]
async fn a_missing_directory_is_an_error() {
    let directory = TempDir::new().unwrap();
    let missing = directory.path().join("missing");
    let error = open_error(sqlite(missing.join("ledger.db"))).await;
    assert_eq!(
        error.to_string(),
        format!(
            "the directory {} of the ledger does not exist: create it",
            missing.display()
        )
    );
}

#[tokio::test]
async fn a_file_of_another_kind_is_left_alone() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("notes.txt");
    let text = "Not a database. ".repeat(1000);
    fs::write(&file, &text).unwrap();
    let error = open_error(sqlite(&file)).await;
    assert!(matches!(error, OpenError::NotADatabase { .. }), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn a_database_that_cannot_be_written_is_an_error() {
    // Not even root can create a file here.
    let error = open_error(sqlite("/sys/kernel/ledger.db")).await;
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
    assert!(
        error.to_string().contains("/sys/kernel/ledger.db"),
        "{error}"
    );
    let directory = TempDir::new().unwrap();
    let error = open_error(sqlite(directory.path())).await;
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
}

#[tokio::test]
async fn an_invalid_url_is_reported_without_its_password() {
    for url in ["ledger.example", "postgres://gate:secret@db:port/ledger"] {
        let error = open_error(postgres(url)).await;
        assert!(matches!(error, OpenError::Address { .. }), "{error}");
        assert!(
            !format!("{error} {error:?}").contains("secret"),
            "{error:?}"
        );
        assert!(!error.is_passing());
        let ledger = Ledger::start(postgres(url)).unwrap();
        let error = ledger.write(vec![grant(1)]).await.unwrap_err();
        assert!(matches!(error, LedgerError::Open(_)), "{error}");
        assert!(!format!("{error:?} {ledger:?}").contains("secret"));
    }
}

#[tokio::test]
async fn an_absent_server_is_a_passing_error() {
    let server = Postgres::start();
    let url = server.url().replace("postgres@", "postgres:secret@");
    server.stop();
    let error = open_error(postgres(&url)).await;
    assert!(error.is_passing(), "{error}");
    assert!(
        !format!("{error} {error:?}").contains("secret"),
        "{error:?}"
    );
    let ledger = Ledger::start(postgres(&url)).unwrap();
    let status = ledger.status();
    assert!(
        !format!("{ledger:?} {status:?}").contains("secret"),
        "{ledger:?}"
    );
    let port = server.port();
    let place = format!("the ledger postgres://127.0.0.1:{port}/postgres cannot be reached: ");
    assert!(error.to_string().starts_with(&place), "{error}");
}

#[tokio::test]
async fn a_rejected_login_is_an_error() {
    let server = Postgres::start();
    let error = open_error(postgres(&server.url().replace("/postgres?", "/missing?"))).await;
    assert!(matches!(error, OpenError::Login { .. }), "{error}");
    let error = open_error(postgres(&server.url().replace("postgres@", "stranger@"))).await;
    assert!(matches!(error, OpenError::Login { .. }), "{error}");
    server.sql("CREATE ROLE reader LOGIN");
    let error = open_error(postgres(&server.url().replace("postgres@", "reader@"))).await;
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
}

#[tokio::test]
async fn an_encoding_that_lacks_characters_is_an_error() {
    let server = Postgres::start();
    for (encoding, is_valid) in [("LATIN1", false), ("SQL_ASCII", true), ("UTF8", true)] {
        server.sql(&format!(
            "CREATE DATABASE \"{encoding}\" ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        ));
        let options = postgres(&server.url().replace("/postgres?", &format!("/{encoding}?")));
        if is_valid {
            let ledger = Ledger::open(options).await.unwrap();
            let text = Entry {
                tenant: "東京".into(),
                ..grant(1)
            };
            ledger.write(vec![text.clone()]).await.unwrap();
            assert_eq!(all(&ledger).await.unwrap(), [text], "{encoding}");
            continue;
        }
        let inspected = Ledger::inspect(&options).await.unwrap_err();
        let error = open_error(options).await;
        assert_eq!(inspected.to_string(), error.to_string());
        assert!(!error.is_passing());
        let place = format!("the ledger postgres://127.0.0.1:{}/LATIN1", server.port());
        assert_eq!(
            error.to_string(),
            format!(
                "{place} has the encoding LATIN1, which lacks some characters: create a \
                 database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and use that"
            )
        );
    }
}

#[tokio::test]
async fn changing_tables_may_take_longer_than_a_write() {
    let server = Postgres::start();
    server.sql(
        "CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql \
         AS $$ BEGIN PERFORM pg_sleep(4); END $$; \
         CREATE EVENT TRIGGER slow ON ddl_command_end WHEN TAG IN ('CREATE VIEW') \
         EXECUTE FUNCTION slow();",
    );
    let mut options = postgres(&server.url());
    options.write_timeout = Duration::from_secs(2);
    let ledger = Ledger::open(options).await.unwrap();
    ledger.write(vec![grant(1)]).await.unwrap();
    assert_eq!(ids(&ledger).await, [1]);
}

/// Returns the files of a directory and their contents.
fn files(directory: &TempDir) -> Vec<(OsString, Vec<u8>)> {
    let files = fs::read_dir(directory.path()).unwrap();
    let files = files.map(|file| {
        let file = file.unwrap();
        (file.file_name(), fs::read(file.path()).unwrap())
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

#[tokio::test]
async fn inspecting_a_file_does_not_change_it() {
    // Inspect a database of another program, an empty file, and a ledger.
    let (strange, empty) = (Fixture::sqlite(), Fixture::sqlite());
    run(&strange, "CREATE TABLE something (text TEXT)").await;
    fs::write(empty.directory.path().join("ledger.db"), "").unwrap();
    let ours = Fixture::sqlite();
    let ledger = ours.open().await;
    ledger.write(vec![grant(1)]).await.unwrap();
    ledger.close().await;
    for (fixture, version) in [(strange, None), (empty, None), (ours, Some(4))] {
        let before = files(&fixture.directory);
        let found = Ledger::inspect(&fixture.options).await.unwrap();
        assert_eq!(found, version);
        assert_eq!(files(&fixture.directory), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspecting_does_not_wait_for_writers() {
    let fixture = Fixture::sqlite();
    fixture.open().await.close().await;
    let Database::Sqlite(file) = &fixture.options.database else {
        unreachable!()
    };
    let url = format!("sqlite://{}", file.display());
    let other = sqlx::SqlitePool::connect(&url).await.unwrap();
    let mut other = other.acquire().await.unwrap();
    let lock = sqlx::query("BEGIN IMMEDIATE");
    lock.execute(&mut *other).await.unwrap();
    assert_eq!(Ledger::inspect(&fixture.options).await.unwrap(), Some(4));
}

#[tokio::test]
async fn sqlite_files_are_private_and_links_are_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("ledger.db");
    let ledger = Ledger::open(Options::new(Database::Sqlite(file.clone())))
        .await
        .unwrap();
    ledger.write(vec![grant(1)]).await.unwrap();
    let mut names = Vec::new();
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["ledger.db", "ledger.db-shm", "ledger.db-wal"]);
    ledger.close().await;

    let link = directory.path().join("link.db");
    symlink(&file, &link).unwrap();
    let opened = Ledger::open(Options::new(Database::Sqlite(link))).await;
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("symbolic link"), "{error}");

    let target = directory.path().join("target");
    symlink(&target, directory.path().join("ledger.db.lock")).unwrap();
    let locked = Options {
        exclusive: true,
        ..Options::new(Database::Sqlite(file))
    };
    let error = open_error(locked).await.to_string();
    assert!(error.contains("symbolic link"), "{error}");
    assert!(!target.exists());
}
