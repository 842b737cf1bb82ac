//! One connection to either database, and a few more to read with.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgPool, SqlitePool};
use tokio::time::{sleep, timeout};

use super::value::{self, Row, Value};
use crate::error::{LedgerError, OpenError};
use crate::options::{self, Database, Options};

/// How long a file that others have locked is left alone.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// How many questions are asked at a time; others wait.
const READERS: u32 = 3;

/// Which of them it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To write.
    Write,
    /// To look at a database as it is: nothing is made, and the mode of a file stays.
    Look,
}

/// A connection to write with.
#[derive(Debug)]
pub(crate) enum Connection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Connection {
    /// Connects, within the time that may take.
    pub(crate) async fn open(options: &Options, purpose: Purpose) -> Result<Connection, OpenError> {
        let place: Arc<str> = options.database.place().into();
        let connecting = async {
            match &options.database {
                Database::Sqlite(path) => {
                    has_directory(path)?;
                    let file = match purpose {
                        Purpose::Write => sqlite(path, options),
                        Purpose::Look => as_it_is(path, options),
                    };
                    loop {
                        match file.connect().await {
                            // Of several who make a file at once, some are not told to wait.
                            Err(error) if is_locked(&error) => sleep(ASK_AGAIN).await,
                            Err(error) => return Err(refusal(&error, &place)),
                            Ok(connection) => return Ok(Connection::Sqlite(connection)),
                        }
                    }
                }
                Database::Postgres(url) => {
                    let connection = postgres(url)?.connect().await;
                    let mut connection = connection.map_err(|error| refusal(&error, &place))?;
                    let settings = AssertSqlSafe(settings(options));
                    let set = sqlx::raw_sql(settings).execute(&mut connection).await;
                    set.map_err(|error| refusal(&error, &place))?;
                    has_all_characters(&mut connection, &place).await?;
                    Ok(Connection::Postgres(connection))
                }
            }
        };
        let limit = options.connect_timeout;
        timeout(limit, connecting).await.unwrap_or_else(|_| {
            let reason = format!("no connection within {limit:?}").into();
            Err(OpenError::Unavailable {
                place: Arc::clone(&place),
                reason,
            })
        })
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Connection::Sqlite(_) => Dialect::Sqlite,
            Connection::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Statements without values, several at a time.
    pub(crate) async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Connection::Sqlite(it) => sqlx::raw_sql(sql).execute(it).await.map(drop),
            Connection::Postgres(it) => sqlx::raw_sql(sql).execute(it).await.map(drop),
        }
    }

    /// How many rows a statement has changed.
    pub(crate) async fn execute(
        &mut self,
        sql: &Arc<str>,
        values: Vec<Value>,
    ) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(Arc::clone(sql));
        match self {
            Connection::Sqlite(it) => {
                let query = sqlx::query_with(sql, value::sqlite(values)?);
                Ok(query.execute(it).await?.rows_affected())
            }
            Connection::Postgres(it) => {
                let query = sqlx::query_with(sql, value::postgres(values)?);
                Ok(query.execute(it).await?.rows_affected())
            }
        }
    }

    /// How many rows a statement for rows of `width` values has changed.
    pub(crate) async fn execute_rows(
        &mut self,
        sql: &Arc<str>,
        values: Vec<Value>,
        width: usize,
    ) -> Result<u64, sqlx::Error> {
        let sql = AssertSqlSafe(Arc::clone(sql));
        match self {
            Connection::Sqlite(it) => {
                let query = sqlx::query_with(sql, value::sqlite(values)?);
                Ok(query.execute(it).await?.rows_affected())
            }
            Connection::Postgres(it) => {
                let query = sqlx::query_with(sql, value::arrays(&values, width)?);
                Ok(query.execute(it).await?.rows_affected())
            }
        }
    }

    /// What a statement answers.
    pub(crate) async fn fetch(
        &mut self,
        sql: &Arc<str>,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let sql = AssertSqlSafe(Arc::clone(sql));
        match self {
            Connection::Sqlite(it) => {
                let query = sqlx::query_with(sql, value::sqlite(values)?);
                let rows = query.fetch_all(it).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
            Connection::Postgres(it) => {
                let query = sqlx::query_with(sql, value::postgres(values)?);
                let rows = query.fetch_all(it).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
        }
    }

    /// What a statement for rows of `width` values answers.
    pub(crate) async fn fetch_rows(
        &mut self,
        sql: &Arc<str>,
        values: Vec<Value>,
        width: usize,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let sql = AssertSqlSafe(Arc::clone(sql));
        match self {
            Connection::Sqlite(it) => {
                let query = sqlx::query_with(sql, value::sqlite(values)?);
                let rows = query.fetch_all(it).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
            Connection::Postgres(it) => {
                let query = sqlx::query_with(sql, value::arrays(&values, width)?);
                let rows = query.fetch_all(it).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
        }
    }

    /// Says good-bye.
    pub(crate) async fn close(self) {
        // Who does not answer is left.
        let _ = match self {
            Connection::Sqlite(it) => it.close().await,
            Connection::Postgres(it) => it.close().await,
        };
    }
}

/// Connections to read with, made when they are needed.
#[derive(Clone, Debug)]
pub(crate) enum Readers {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Readers {
    pub(crate) fn new(options: &Options) -> Result<Readers, OpenError> {
        Ok(match &options.database {
            Database::Sqlite(path) => {
                let pool = PoolOptions::new()
                    .max_connections(READERS)
                    .acquire_timeout(options.connect_timeout);
                let path = sqlite(path, options)
                    .create_if_missing(false)
                    .pragma("query_only", "on");
                Readers::Sqlite(pool.connect_lazy_with(path))
            }
            Database::Postgres(url) => {
                let settings: Arc<str> = settings(options).into();
                let pool = PoolOptions::new()
                    .max_connections(READERS)
                    .acquire_timeout(options.connect_timeout)
                    .after_connect(move |connection: &mut PgConnection, _| {
                        let settings = AssertSqlSafe(Arc::clone(&settings));
                        Box::pin(async move {
                            sqlx::raw_sql(settings).execute(connection).await.map(drop)
                        })
                    });
                Readers::Postgres(pool.connect_lazy_with(postgres(url)?))
            }
        })
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Readers::Sqlite(_) => Dialect::Sqlite,
            Readers::Postgres(_) => Dialect::Postgres,
        }
    }

    /// What a statement answers.
    pub(crate) async fn fetch(
        &self,
        sql: String,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let sql = AssertSqlSafe(sql);
        match self {
            Readers::Sqlite(pool) => {
                let query = sqlx::query_with(sql, value::sqlite(values)?);
                let rows = query.fetch_all(pool).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
            Readers::Postgres(pool) => {
                let query = sqlx::query_with(sql, value::postgres(values)?);
                let rows = query.fetch_all(pool).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Readers::Sqlite(pool) => pool.close().await,
            Readers::Postgres(pool) => pool.close().await,
        }
    }
}

fn sqlite(path: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // What was committed is there after a power cut, too.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(options.write_timeout)
        .disable_statement_logging()
}

/// The same, and nothing about it is changed.
fn as_it_is(path: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        // Less than the question may take, which is about those who have locked it, too.
        .busy_timeout(options.write_timeout / 2)
        .disable_statement_logging()
}

/// Whether the database keeps every text that an entry may have: one that it refused would be in the way of all
/// that come after it.
async fn has_all_characters(
    connection: &mut PgConnection,
    place: &Arc<str>,
) -> Result<(), OpenError> {
    let asked = sqlx::query_scalar("SELECT current_setting('server_encoding')");
    let encoding: String = asked
        .fetch_one(connection)
        .await
        .map_err(|error| refusal(&error, place))?;
    // The latter takes any bytes for text.
    if ["UTF8", "SQL_ASCII"].contains(&&*encoding) {
        return Ok(());
    }
    Err(OpenError::Encoding {
        place: Arc::clone(place),
        encoding: encoding.into(),
    })
}

fn postgres(url: &str) -> Result<PgConnectOptions, OpenError> {
    let options = options::parse(url).map_err(|reason| OpenError::Address {
        reason: reason.into(),
    })?;
    Ok(options
        .application_name("tollgate")
        .disable_statement_logging())
}

/// So that the server, too, gives up what we have given up, and nobody waits behind it.
fn settings(options: &Options) -> String {
    let limit = options.write_timeout.as_millis().max(1);
    format!(
        "SET statement_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit}; \
         SET synchronous_commit = on"
    )
}

pub(super) fn has_directory(path: &Path) -> Result<(), OpenError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => {
            Err(OpenError::MissingDirectory {
                directory: parent.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// Whether the connection was closed by the other side.
pub(crate) fn is_gone(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(said) => {
            // Told to go by the server, or by who is between.
            let code = said.code().unwrap_or_default();
            ["57P", "08", "25P03"].iter().any(|it| code.starts_with(it))
        }
        _ => false,
    }
}

/// Whether others have locked the file, for now.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    let number = code.and_then(|it| it.parse::<u32>().ok());
    // The lower byte of SQLite's codes is the cause: BUSY.
    number.is_some_and(|it| it & 0xff == 5)
}

/// What it means that the database could not be opened.
pub(crate) fn refusal(error: &sqlx::Error, place: &Arc<str>) -> OpenError {
    let (place, reason) = (Arc::clone(place), reason(error));
    let sqlx::Error::Database(said) = error else {
        return OpenError::Unavailable { place, reason };
    };
    let code = said.code().unwrap_or_default();
    let number: Option<u32> = code.parse().ok();
    let is_sqlite = said
        .try_downcast_ref::<sqlx::sqlite::SqliteError>()
        .is_some();
    match number {
        // The lower byte of SQLite's codes is the cause: READONLY, PERM, CANTOPEN, AUTH; NOTADB.
        Some(number) if is_sqlite => match number & 0xff {
            3 | 8 | 14 | 23 => OpenError::NotWritable { place, reason },
            26 => OpenError::NotADatabase { place },
            _ => OpenError::Unavailable { place, reason },
        },
        _ => match &*code {
            "25006" | "42501" => OpenError::NotWritable { place, reason },
            code if code.starts_with("28") || code == "3D000" => {
                OpenError::Refused { place, reason }
            }
            _ => OpenError::Unavailable { place, reason },
        },
    }
}

/// What it means that a question was not answered.
pub(crate) fn unanswered(error: &sqlx::Error, place: &Arc<str>) -> LedgerError {
    let (place, reason) = (Arc::clone(place), reason(error));
    match error {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            LedgerError::Damaged { place, reason }
        }
        _ => LedgerError::Unavailable { place, reason },
    }
}

pub(crate) fn reason(error: &sqlx::Error) -> Arc<str> {
    match error {
        sqlx::Error::Database(error) => match error.code() {
            Some(code) => format!("{} ({code})", error.message()).into(),
            None => error.message().into(),
        },
        sqlx::Error::Io(error) => error.to_string().into(),
        sqlx::Error::PoolTimedOut => "no connection in time".into(),
        error => error.to_string().into(),
    }
}
