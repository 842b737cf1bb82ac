//! Brings the tables to the version that this program knows, whoever comes first.
//!
//! All of it is one transaction under a lock: of several instances that open a database at once, one makes
//! the tables and the others find them made. A database of a later version is left as it is.

use std::sync::Arc;

use super::connection::{Connection, Dialect, reason, refusal};
use crate::error::OpenError;

/// The changes, in order: the first makes version 1 of nothing.
const SQLITE: &[&str] = &[include_str!("../../migrations/sqlite/0001_books.sql")];
const POSTGRES: &[&str] = &[include_str!("../../migrations/postgres/0001_books.sql")];

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

/// The version that was found and the one that is known, if the former is later.
async fn change(connection: &mut Connection) -> Result<Option<(i64, i64)>, sqlx::Error> {
    let (begin, changes, look) = match connection.dialect() {
        Dialect::Sqlite => (
            "BEGIN IMMEDIATE",
            SQLITE,
            "SELECT count(*) FROM sqlite_schema WHERE name = 'schema_version'",
        ),
        Dialect::Postgres => (
            // A number that nobody else is likely to lock: "tollgate".
            "BEGIN; SELECT pg_advisory_xact_lock(8390043843661231205)",
            POSTGRES,
            "SELECT count(*) FROM pg_class WHERE oid = to_regclass('schema_version')",
        ),
    };
    connection.run(begin).await?;
    let is_there = number(connection, look).await? > 0;
    let found = match is_there {
        true => {
            let latest = "SELECT CAST(coalesce(max(version), 0) AS BIGINT) FROM schema_version";
            number(connection, latest).await?
        }
        false => 0,
    };
    let known = i64::try_from(changes.len()).unwrap_or(i64::MAX);
    if found >= known {
        connection.run("ROLLBACK").await?;
        return Ok((found > known).then_some((found, known)));
    }
    if !is_there {
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
