//! Opening the books: tables that are made once, and everything that can be wrong.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tollgate_ledger::{Database, Entry, Ledger, LedgerError, OpenError, Options};
use tollgate_rig::Postgres;

use self::common::{Books, all, grant, ids, period};

on_both! {
    books_that_are_there_are_opened_as_they_are
    many_may_open_empty_books_at_once
    books_of_a_newer_program_are_left_alone
    tables_that_are_not_ours_are_told
}

async fn run(books: &Books, sql: &'static str) -> Option<i64> {
    match &books.options.database {
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

async fn books_that_are_there_are_opened_as_they_are(books: Books) {
    for number in 0..3 {
        let ledger = books.open().await;
        ledger.write(vec![grant(number)]).await.unwrap();
        ledger.close().await;
    }
    let ledger = books.open().await;
    assert_eq!(ids(&ledger).await, [0, 1, 2]);
    let versions = "SELECT CAST(count(*) AS BIGINT) FROM schema_version";
    assert_eq!(run(&books, versions).await, Some(3));
}

async fn many_may_open_empty_books_at_once(books: Books) {
    let opening: Vec<_> = (0..6)
        .map(|_| tokio::spawn(Ledger::open(books.options.clone())))
        .collect();
    for (id, opened) in (0..).zip(opening) {
        let ledger = opened.await.unwrap().unwrap();
        ledger.write(vec![grant(id)]).await.unwrap();
    }
    assert_eq!(ids(&books.open().await).await.len(), 6);
}

async fn books_of_a_newer_program_are_left_alone(books: Books) {
    run(
        &books,
        "CREATE TABLE schema_version (version BIGINT NOT NULL PRIMARY KEY)",
    )
    .await;
    run(&books, "INSERT INTO schema_version VALUES (7)").await;
    let error = Ledger::open(books.options.clone()).await.unwrap_err();
    let location = books.options.database.location();
    assert_eq!(
        error.to_string(),
        format!(
            "the ledger {location} has schema version 7, and this program supports up to 3: run the \
             newer program, or use another ledger"
        )
    );
    assert!(!error.is_passing());

    // The same without waiting: strict writes say so, and the others wait on the disk.
    let ledger = Ledger::start(books.options.clone());
    ledger.record(grant(1)).unwrap();
    let error = ledger.write(vec![grant(2)]).await.unwrap_err();
    let newer = OpenError::NewerSchema {
        location: location.into(),
        found: 7,
        known: 3,
    };
    assert_eq!(error.to_string(), newer.to_string());
    assert!(!error.is_unknown());
    assert!(ledger.balance(7, period(0).start).await.is_err());
    let told = ledger.status().last_error.unwrap();
    assert_eq!(*told, newer.to_string());
    ledger.close().await;
    assert!(fs::metadata(books.spill()).unwrap().len() > 0);

    let tables = match &books.options.database {
        Database::Sqlite(_) => "SELECT count(*) FROM sqlite_schema WHERE name = 'entries'",
        Database::Postgres(_) => "SELECT count(*) FROM pg_class WHERE relname = 'entries'",
    };
    assert_eq!(run(&books, tables).await, Some(0));

    // An older program that is replaced by the newer one loses nothing.
    run(&books, "DROP TABLE schema_version").await;
    assert_eq!(ids(&books.open().await).await, [1]);
}

async fn tables_that_are_not_ours_are_told(books: Books) {
    run(&books, "CREATE TABLE entries (something TEXT)").await;
    let error = Ledger::open(books.options.clone()).await.unwrap_err();
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

async fn refusal(options: Options) -> OpenError {
    Ledger::open(options).await.unwrap_err()
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let directory = TempDir::new().unwrap();
    let missing = directory.path().join("missing");
    let error = refusal(sqlite(missing.join("books.db"))).await;
    assert_eq!(
        error.to_string(),
        format!(
            "the directory {} of the ledger does not exist: create it",
            missing.display()
        )
    );
}

#[tokio::test]
async fn a_file_that_is_something_else_is_left_alone() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("notes.txt");
    let text = "Not a database. ".repeat(1000);
    fs::write(&file, &text).unwrap();
    let error = refusal(sqlite(&file)).await;
    assert!(matches!(error, OpenError::NotADatabase { .. }), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn what_cannot_be_written_is_told() {
    // Nobody can make a file here, root included.
    let error = refusal(sqlite("/sys/kernel/books.db")).await;
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
    assert!(
        error.to_string().contains("/sys/kernel/books.db"),
        "{error}"
    );
    let directory = TempDir::new().unwrap();
    let error = refusal(sqlite(directory.path())).await;
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
}

#[tokio::test]
async fn an_address_that_is_none_is_told_without_its_password() {
    for url in ["books.example", "postgres://gate:secret@db:port/books"] {
        let error = refusal(postgres(url)).await;
        assert!(matches!(error, OpenError::Address { .. }), "{error}");
        assert!(
            !format!("{error} {error:?}").contains("secret"),
            "{error:?}"
        );
        assert!(!error.is_passing());
        let ledger = Ledger::start(postgres(url));
        let error = ledger.write(vec![grant(1)]).await.unwrap_err();
        assert!(matches!(error, LedgerError::Open(_)), "{error}");
        assert!(!format!("{error:?} {ledger:?}").contains("secret"));
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_may_come() {
    let server = Postgres::start();
    let url = server.url().replace("postgres@", "postgres:secret@");
    server.stop();
    let error = refusal(postgres(&url)).await;
    assert!(error.is_passing(), "{error}");
    assert!(
        !format!("{error} {error:?}").contains("secret"),
        "{error:?}"
    );
    let ledger = Ledger::start(postgres(&url));
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
async fn a_server_that_refuses_is_told() {
    let server = Postgres::start();
    let error = refusal(postgres(&server.url().replace("/postgres?", "/missing?"))).await;
    assert!(matches!(error, OpenError::Login { .. }), "{error}");
    let error = refusal(postgres(&server.url().replace("postgres@", "stranger@"))).await;
    assert!(matches!(error, OpenError::Login { .. }), "{error}");
    server.sql("CREATE ROLE reader LOGIN");
    let error = refusal(postgres(&server.url().replace("postgres@", "reader@"))).await;
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error}");
}

#[tokio::test]
async fn a_database_that_has_not_all_characters_is_told() {
    let server = Postgres::start();
    for (encoding, is_right) in [("LATIN1", false), ("SQL_ASCII", true), ("UTF8", true)] {
        server.sql(&format!(
            "CREATE DATABASE \"{encoding}\" ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        ));
        let options = postgres(&server.url().replace("/postgres?", &format!("/{encoding}?")));
        if is_right {
            let ledger = Ledger::open(options).await.unwrap();
            let text = Entry {
                tenant: "東京".into(),
                ..grant(1)
            };
            ledger.write(vec![text.clone()]).await.unwrap();
            assert_eq!(all(&ledger).await.unwrap(), [text], "{encoding}");
            continue;
        }
        let looked = Ledger::inspect(&options).await.unwrap_err();
        let error = refusal(options).await;
        assert_eq!(looked.to_string(), error.to_string());
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
async fn to_change_tables_may_take_longer_than_a_write() {
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

/// The files of a directory, and what they have.
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
async fn to_look_at_a_file_does_not_change_it() {
    // Of somebody else, of nobody, and ours.
    let (strange, empty) = (Books::sqlite(), Books::sqlite());
    run(&strange, "CREATE TABLE something (text TEXT)").await;
    fs::write(empty.directory.path().join("books.db"), "").unwrap();
    let ours = Books::sqlite();
    let ledger = ours.open().await;
    ledger.write(vec![grant(1)]).await.unwrap();
    ledger.close().await;
    for (books, version) in [(strange, None), (empty, None), (ours, Some(3))] {
        let before = files(&books.directory);
        let found = Ledger::inspect(&books.options).await.unwrap();
        assert_eq!(found, version);
        assert_eq!(files(&books.directory), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_does_not_wait_for_who_writes() {
    let books = Books::sqlite();
    books.open().await.close().await;
    let Database::Sqlite(file) = &books.options.database else {
        unreachable!()
    };
    let url = format!("sqlite://{}", file.display());
    let other = sqlx::SqlitePool::connect(&url).await.unwrap();
    let mut other = other.acquire().await.unwrap();
    let lock = sqlx::query("BEGIN IMMEDIATE");
    lock.execute(&mut *other).await.unwrap();
    assert_eq!(Ledger::inspect(&books.options).await.unwrap(), Some(3));
}
