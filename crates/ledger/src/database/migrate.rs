//! Brings the tables to the version of this program.
//!
//! All changes are one transaction under a lock. If several instances open a database at the same time,
//! one creates the tables and the others find them. A database of a later version is not changed.
//!
//! Waiting for the lock has the ordinary time limit. Changing tables has a much longer limit, because tables
//! may be large and an aborted change has to start over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::connection::{Connection, Dialect, is_locked, open_error, reason};
use super::value::Values;
use crate::error::OpenError;

/// The changes, in order. The first change creates version 1 in an empty database.
const SQLITE: &[&str] = &[
    include_str!("../../migrations/sqlite/0001_entries.sql"),
    include_str!("../../migrations/sqlite/0002_audit.sql"),
    include_str!("../../migrations/sqlite/0003_exports.sql"),
    include_str!("../../migrations/sqlite/0004_deployments.sql"),
];
const POSTGRES: &[&str] = &[
    include_str!("../../migrations/postgres/0001_entries.sql"),
    include_str!("../../migrations/postgres/0002_audit.sql"),
    include_str!("../../migrations/postgres/0003_exports.sql"),
    include_str!("../../migrations/postgres/0004_deployments.sql"),
];

/// How long changing the tables may take.
const CHANGE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Creates or changes the tables, if necessary. `limit` is the time limit for reading the version of the
/// tables.
pub(crate) async fn migrate(
    connection: &mut dyn Connection,
    location: &Arc<str>,
    limit: Duration,
) -> Result<(), OpenError> {
    let known = known_version(connection);
    let begin = begin_alone(connection);
    // While the transaction is open, no other process can change the tables.
    let beginning = async {
        connection.run(begin).await?;
        version(connection).await
    };
    let found = within(limit, location, beginning).await?;
    match found.unwrap_or(0) {
        version if version < known => {
            within(CHANGE_LIMIT, location, change(connection, found)).await
        }
        version => {
            within(limit, location, connection.run("ROLLBACK")).await?;
            if version == known {
                return Ok(());
            }
            Err(OpenError::NewerSchema {
                location: Arc::clone(location),
                found: version,
                known,
            })
        }
    }
}

/// Returns the statement that begins a transaction in which no other process can change tables or claim the
/// ledger.
pub(super) fn begin_alone(connection: &dyn Connection) -> &'static str {
    match connection.dialect() {
        Dialect::Sqlite => "BEGIN IMMEDIATE",
        // The number is "tollgate" in ASCII, so that no other program is likely to use the same lock.
        Dialect::Postgres => "BEGIN; SELECT pg_advisory_xact_lock(8390043843661231205)",
    }
}

async fn within<T>(
    limit: Duration,
    location: &Arc<str>,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, OpenError> {
    match timeout(limit, work).await {
        Ok(Ok(answer)) => Ok(answer),
        Err(_) => Err(OpenError::Unavailable {
            location: Arc::clone(location),
            reason: format!("its tables were not ready within {limit:?}").into(),
        }),
        Ok(Err(error)) => Err(match open_error(&error, location) {
            // The database was reached before. So the error is about the tables, unless the connection has
            // broken.
            OpenError::Unavailable { location, .. } if is_about_tables(&error) => {
                OpenError::Migration {
                    location,
                    reason: reason(&error),
                }
            }
            error => error,
        }),
    }
}

/// Returns the version of the tables, if there are any, and checks that the database can be written.
/// Changes nothing.
pub(crate) async fn inspect(
    connection: &mut dyn Connection,
    location: &Arc<str>,
) -> Result<Option<i64>, OpenError> {
    let known = known_version(connection);
    let failed = |error| open_error(&error, location);
    let found = version(connection).await.map_err(failed)?;
    if let Some(found) = found.filter(|found| *found > known) {
        return Err(OpenError::NewerSchema {
            location: Arc::clone(location),
            found,
            known,
        });
    }
    // Only a write shows whether a file is writable. PostgreSQL needs no probe: it reports missing rights
    // when tables are created.
    if connection.dialect() == Dialect::Sqlite {
        let probe = "BEGIN IMMEDIATE; CREATE TABLE tollgate_probe (probe); ROLLBACK";
        match connection.run(probe).await {
            // If another process holds the lock, that process can write the file.
            Err(error) if !is_locked(&error) => return Err(failed(error)),
            _ => {}
        }
    }
    Ok(found)
}

fn changes(connection: &dyn Connection) -> &'static [&'static str] {
    match connection.dialect() {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
    }
}

fn known_version(connection: &dyn Connection) -> i64 {
    i64::try_from(changes(connection).len()).unwrap_or(i64::MAX)
}

/// Returns the version of the tables, if there are any.
async fn version(connection: &mut dyn Connection) -> Result<Option<i64>, sqlx::Error> {
    let tables = match connection.dialect() {
        Dialect::Sqlite => "SELECT count(*) FROM sqlite_schema WHERE name = 'schema_version'",
        Dialect::Postgres => {
            "SELECT count(*) FROM pg_class WHERE oid = to_regclass('schema_version')"
        }
    };
    if number(connection, tables).await? == 0 {
        return Ok(None);
    }
    let latest = "SELECT CAST(coalesce(max(version), 0) AS BIGINT) FROM schema_version";
    number(connection, latest).await.map(Some)
}

/// Makes all changes since version `found`, and commits.
async fn change(connection: &mut dyn Connection, found: Option<i64>) -> Result<(), sqlx::Error> {
    if connection.dialect() == Dialect::Postgres {
        // The time limit of ordinary statements is too short for large tables.
        connection.run("SET LOCAL statement_timeout = 0").await?;
    }
    if found.is_none() {
        connection
            .run("CREATE TABLE schema_version (version BIGINT NOT NULL PRIMARY KEY)")
            .await?;
    }
    let done = usize::try_from(found.unwrap_or(0)).unwrap_or_default();
    for (version, change) in (1_i64..).zip(changes(connection)).skip(done) {
        connection.run(change).await?;
        let sql = "INSERT INTO schema_version (version) VALUES ($1)".into();
        let values = Values::Each(vec![version.into()]);
        connection.execute(sql, values).await?;
    }
    connection.run("COMMIT").await
}

async fn number(connection: &mut dyn Connection, sql: &'static str) -> Result<i64, sqlx::Error> {
    let rows = connection
        .fetch(sql.into(), Values::Each(Vec::new()))
        .await?;
    rows.first().ok_or(sqlx::Error::RowNotFound)?.int(0)
}

/// Whether the error is about the tables, and not about the connection, the disk, or a lock.
fn is_about_tables(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else {
        return false;
    };
    let code = error.code().unwrap_or_default();
    // SQLite: ERROR and CONSTRAINT. PostgreSQL: syntax and access rules, constraints.
    let is_sqlite = ["1", "19"].contains(&&*code);
    is_sqlite || code.starts_with("42") || code.starts_with("23")
}
