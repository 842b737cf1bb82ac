//! Brings the tables to the version that this program knows, whoever comes first.
//!
//! All of it is one transaction under a lock: of several instances that open a database at once, one makes
//! the tables and the others find them made. A database of a later version is left as it is.

use std::sync::Arc;

use super::connection::{Connection, Dialect, reason, refusal};
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

/// Makes the tables, or changes them, if need be.
pub(crate) async fn migrate(
    connection: &mut Connection,
    place: &Arc<str>,
) -> Result<(), OpenError> {
    let changed = change(connection).await;
    match changed {
        Ok(None) => Ok(()),
        Ok(Some((found, known))) => Err(OpenError::NewerSchema {
            place: Arc::clone(place),
            found,
            known,
        }),
        Err(error) => Err(match refusal(&error, place) {
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

/// The version of the tables that are there, if there are any. Changes nothing.
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
        Ok(found) => Ok(found),
        Err(error) => Err(refusal(&error, place)),
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

/// The version that was found and the one that is known, if the former is later.
async fn change(connection: &mut Connection) -> Result<Option<(i64, i64)>, sqlx::Error> {
    let begin = match connection.dialect() {
        Dialect::Sqlite => "BEGIN IMMEDIATE",
        // A number that nobody else is likely to lock: "tollgate".
        Dialect::Postgres => "BEGIN; SELECT pg_advisory_xact_lock(8390043843661231205)",
    };
    connection.run(begin).await?;
    let version = version(connection).await?;
    let (found, changes) = (version.unwrap_or(0), changes(connection));
    let known = i64::try_from(changes.len()).unwrap_or(i64::MAX);
    if found >= known {
        connection.run("ROLLBACK").await?;
        return Ok((found > known).then_some((found, known)));
    }
    if version.is_none() {
        connection
            .run("CREATE TABLE schema_version (version BIGINT NOT NULL PRIMARY KEY)")
            .await?;
    }
    let done = usize::try_from(found).unwrap_or_default();
    for (version, change) in (1_i64..).zip(changes).skip(done) {
        connection.run(change).await?;
        let note = "INSERT INTO schema_version (version) VALUES ($1)".into();
        connection.execute(&note, vec![version.into()]).await?;
    }
    connection.run("COMMIT").await?;
    Ok(None)
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
