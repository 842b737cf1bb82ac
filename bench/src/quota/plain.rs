//! A plain insert: the same rows into one table, in transactions of the same size.

use std::error::Error;
use std::path::Path;

use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Postgres, QueryBuilder, Sqlite};
use tollgate_ledger::Entry;

use super::ingest::BATCH;

/// The rows of one statement.
const ROWS: usize = 1000;

pub(super) enum PlainTable {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

const TABLE: &str = "INSERT INTO plain (id, at, namespace, tenant, action, rule, allowance, key, \
    period_start, period_end, kind, amount, count, who, why, idempotency_key) ";

/// Pushes the rows of `$entries` onto the statement `$statement`.
macro_rules! push_rows {
    ($statement:expr, $entries:expr) => {
        $statement.push_values($entries, |mut row, entry: &Entry| {
            let micros =
                |time: tollgate_core::Time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
            row.push_bind(entry.id.0.to_be_bytes().to_vec())
                .push_bind(micros(entry.at))
                .push_bind(entry.namespace.to_string())
                .push_bind(entry.tenant.to_string())
                .push_bind(entry.action.to_string())
                .push_bind(entry.rule.to_string())
                .push_bind(entry.allowance.to_string())
                .push_bind(entry.key.to_be_bytes().to_vec())
                .push_bind(micros(entry.period.start))
                .push_bind(micros(entry.period.end))
                .push_bind(entry.kind.name())
                .push_bind(entry.amount)
                .push_bind(i64::from(entry.count))
                .push_bind(entry.who.to_string())
                .push_bind(entry.why.to_string())
                .push_bind(entry.idempotency_key.as_ref().map(ToString::to_string));
        })
    };
}

impl PlainTable {
    pub(super) async fn sqlite(file: &Path) -> Result<PlainTable, Box<dyn Error>> {
        let mut connection = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .connect()
            .await?;
        let table = "CREATE TABLE plain (seq INTEGER PRIMARY KEY, id BLOB NOT NULL, at INTEGER, namespace TEXT, \
             tenant TEXT, action TEXT, rule TEXT, allowance TEXT, key BLOB, period_start INTEGER, \
             period_end INTEGER, kind TEXT, amount INTEGER, count INTEGER, who TEXT, why TEXT, \
             idempotency_key TEXT) STRICT";
        sqlx::raw_sql(table).execute(&mut connection).await?;
        Ok(PlainTable::Sqlite(connection))
    }

    pub(super) async fn postgres(url: &str) -> Result<PlainTable, Box<dyn Error>> {
        let mut connection = PgConnection::connect(url).await?;
        let table = "CREATE TABLE plain (seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id BYTEA NOT NULL, \
             at BIGINT, namespace TEXT, tenant TEXT, action TEXT, rule TEXT, allowance TEXT, key BYTEA, \
             period_start BIGINT, period_end BIGINT, kind TEXT, amount BIGINT, count BIGINT, who TEXT, \
             why TEXT, idempotency_key TEXT)";
        sqlx::raw_sql(table).execute(&mut connection).await?;
        Ok(PlainTable::Postgres(connection))
    }

    pub(super) async fn insert(&mut self, entries: &[Entry]) -> Result<(), Box<dyn Error>> {
        for batch in entries.chunks(BATCH) {
            match self {
                PlainTable::Sqlite(connection) => {
                    let mut transaction = connection.begin().await?;
                    for rows in batch.chunks(ROWS) {
                        let mut statement = QueryBuilder::<Sqlite>::new(TABLE);
                        push_rows!(statement, rows);
                        statement.build().execute(&mut *transaction).await?;
                    }
                    transaction.commit().await?;
                }
                PlainTable::Postgres(connection) => {
                    let mut transaction = connection.begin().await?;
                    for rows in batch.chunks(ROWS) {
                        let mut statement = QueryBuilder::<Postgres>::new(TABLE);
                        push_rows!(statement, rows);
                        statement.build().execute(&mut *transaction).await?;
                    }
                    transaction.commit().await?;
                }
            }
        }
        Ok(())
    }
}
