//! Brings the tables to the version that this program knows, whoever comes first.
//!
//! All of it is one transaction under a lock: of several instances that open a database at once, one makes
//! the tables and the others find them made. A database of a later version is left as it is.
//!
//! Who waits for the lock does so as long as for anything else. To change tables may take longer: they may be
//! large, and what is given up is begun again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::connection::{Connection, Dialect, is_locked, reason, refusal};
use crate::error::OpenError;

/// The changes, in order: the first makes version 1 of nothing.
const SQLITE: &[&str] = &[
    include_str!("../../migrations/sqlite/0001_books.sql"),
    include_str!("../../migrations/sqlite/0002_audit.sql"),
    include_str!("../../migrations/sqlite/0003_exports.sql"),
];
const POSTGRES: &[&str] = &[
    include_str!("../../migrations/postgres/0001_books.sql"),
    include_str!("../../migrations/postgres/0002_audit.sql"),
    include_str!("../../migrations/postgres/0003_exports.sql"),
];

/// How long it may take to change tables.
const MOST_CHANGING: Duration = Duration::from_secs(30 * 60);

/// Makes the tables, or changes them, if need be. Finding out may take as long as `limit`.
pub(crate) async fn migrate(
    connection: &mut Connection,
    place: &Arc<str>,
    limit: Duration,
) -> Result<(), OpenError> {
    let known = i64::try_from(changes(connection).len()).unwrap_or(i64::MAX);
    let found = within(limit, place, begin(connection)).await?;
    match found.unwrap_or(0) {
        version if version < known => within(MOST_CHANGING, place, change(connection, found)).await,
        version => {
            within(limit, place, connection.run("ROLLBACK")).await?;
            if version == known {
                return Ok(());
            }
            Err(OpenError::NewerSchema {
                place: Arc::clone(place),
                found: version,
                known,
            })
        }
    }
}

/// What the database says in time, or what it means that it does not.
async fn within<T>(
    limit: Duration,
    place: &Arc<str>,
    asked: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, OpenError> {
    match timeout(limit, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Err(_) => Err(OpenError::Unavailable {
            place: Arc::clone(place),
            reason: format!("its tables were not ready within {limit:?}").into(),
        }),
        Ok(Err(error)) => Err(match refusal(&error, place) {
            // It was reached: what it says is about the tables, unless it went away meanwhile.
            OpenError::Unavailable { place, .. } if is_about_tables(&error) => {
                OpenError::Migration {
                    place,
                    reason: reason(&error),
                }
            }
            error => error,
        }),
    }
}

/// The version of the tables that are there, if there are any, in a database that can be written. Changes
/// nothing.
pub(crate) async fn look(
    connection: &mut Connection,
    place: &Arc<str>,
) -> Result<Option<i64>, OpenError> {
    let known = i64::try_from(changes(connection).len()).unwrap_or(i64::MAX);
    match version(connection).await {
        Ok(Some(found)) if found > known => Err(OpenError::NewerSchema {
            place: Arc::clone(place),
            found,
            known,
        }),
        Ok(found) => match try_to_write(connection).await {
            Err(error) if !is_locked(&error) => Err(refusal(&error, place)),
            // Who has locked it can write it.
            _ => Ok(found),
        },
        Err(error) => Err(refusal(&error, place)),
    }
}

/// Makes a table and takes it back: only that tells that a file can be written.
async fn try_to_write(connection: &mut Connection) -> Result<(), sqlx::Error> {
    match connection.dialect() {
        Dialect::Sqlite => {
            let probe = "BEGIN IMMEDIATE; CREATE TABLE tollgate_probe (probe); ROLLBACK";
            connection.run(probe).await
        }
        // Rights are told when tables are made.
        Dialect::Postgres => Ok(()),
    }
}

fn changes(connection: &Connection) -> &'static [&'static str] {
    match connection.dialect() {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
    }
}

/// The version of the tables, if there are any.
async fn version(connection: &mut Connection) -> Result<Option<i64>, sqlx::Error> {
    let look = match connection.dialect() {
        Dialect::Sqlite => "SELECT count(*) FROM sqlite_schema WHERE name = 'schema_version'",
        Dialect::Postgres => {
            "SELECT count(*) FROM pg_class WHERE oid = to_regclass('schema_version')"
        }
    };
    if number(connection, look).await? == 0 {
        return Ok(None);
    }
    let latest = "SELECT CAST(coalesce(max(version), 0) AS BIGINT) FROM schema_version";
    number(connection, latest).await.map(Some)
}

/// Begins a transaction that excludes others who change tables. The version of the tables, if there are any.
async fn begin(connection: &mut Connection) -> Result<Option<i64>, sqlx::Error> {
    let begin = match connection.dialect() {
        Dialect::Sqlite => "BEGIN IMMEDIATE",
        // A number that nobody else is likely to lock: "tollgate".
        Dialect::Postgres => "BEGIN; SELECT pg_advisory_xact_lock(8390043843661231205)",
    };
    connection.run(begin).await?;
    version(connection).await
}

/// Makes all changes since the version that was found, and commits.
async fn change(connection: &mut Connection, found: Option<i64>) -> Result<(), sqlx::Error> {
    if connection.dialect() == Dialect::Postgres {
        // That of other transactions is too short for tables that are large.
        connection.run("SET LOCAL statement_timeout = 0").await?;
    }
    if found.is_none() {
        connection
            .run("CREATE TABLE schema_version (version BIGINT NOT NULL PRIMARY KEY)")
            .await?;
    }
    let done = usize::try_from(found.unwrap_or(0)).unwrap_or_default();
    let changes = changes(connection);
    for (version, change) in (1_i64..).zip(changes).skip(done) {
        connection.run(change).await?;
        let note = "INSERT INTO schema_version (version) VALUES ($1)".into();
        connection.execute(&note, vec![version.into()]).await?;
    }
    connection.run("COMMIT").await
}

async fn number(connection: &mut Connection, sql: &'static str) -> Result<i64, sqlx::Error> {
    let rows = connection.fetch(&sql.into(), Vec::new()).await?;
    rows.first().ok_or(sqlx::Error::RowNotFound)?.int(0)
}

/// Whether the error is not about the connection, the disk, or a lock.
fn is_about_tables(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(said) = error else {
        return false;
    };
    let code = said.code().unwrap_or_default();
    // SQLite's ERROR and CONSTRAINT; of PostgreSQL: syntax and access, constraints.
    let is_sqlite = ["1", "19"].contains(&&*code);
    is_sqlite || code.starts_with("42") || code.starts_with("23")
}
