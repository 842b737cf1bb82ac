//! SQLite: how to connect, and how values are bound.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteExecutor, SqliteJournalMode,
    SqliteSynchronous,
};
use sqlx::{Arguments as _, AssertSqlSafe, ConnectOptions as _, Connection as _, SqlitePool};
use tokio::time::sleep;

use super::connection::{
    Connection, Dialect, Purpose, READERS, Readers, Work, has_directory, is_locked, open_error,
};
use super::value::{Row, Value, Values};
use crate::error::OpenError;
use crate::options::Options;
use crate::private_file;

/// How long to wait before a locked file is tried again.
const RETRY_LOCKED: Duration = Duration::from_millis(10);

pub(super) async fn connect(
    path: &Path,
    options: &Options,
    purpose: Purpose,
) -> Result<Box<dyn Connection>, OpenError> {
    has_directory(path)?;
    // SQLite follows links. It gives its other files the mode of this one.
    let private = match purpose {
        Purpose::Write => private_file::create(path),
        Purpose::Inspect => private_file::reject_link(path),
    };
    private.map_err(|error| OpenError::NotWritable {
        location: options.database.location().into(),
        reason: error.to_string().into(),
    })?;
    let file = match purpose {
        Purpose::Write => writable(path, options),
        // The busy timeout is shorter than the limit of the whole inspection, so that there is time to report
        // a locked file.
        Purpose::Inspect => SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(false)
            .busy_timeout(options.write_timeout / 2)
            .disable_statement_logging(),
    };
    loop {
        match file.connect().await {
            // The busy timeout does not cover processes that create the same file at the same time.
            Err(error) if is_locked(&error) => sleep(RETRY_LOCKED).await,
            Err(error) => return Err(open_error(&error, &options.database.location().into())),
            Ok(connection) => return Ok(Box::new(connection)),
        }
    }
}

pub(super) fn readers(path: &Path, options: &Options) -> Arc<dyn Readers> {
    let pool = PoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(options.connect_timeout);
    let file = writable(path, options)
        .create_if_missing(false)
        .pragma("query_only", "on");
    let pool: SqlitePool = pool.connect_lazy_with(file);
    Arc::new(pool)
}

fn writable(path: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // With this setting, a commit survives a power cut.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(options.write_timeout)
        .disable_statement_logging()
}

impl Connection for SqliteConnection {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn run(&mut self, sql: &'static str) -> Work<'_, ()> {
        Box::pin(async move { sqlx::raw_sql(sql).execute(self).await.map(drop) })
    }

    fn execute(&mut self, sql: Arc<str>, values: Values) -> Work<'_, u64> {
        Box::pin(async move {
            let query = sqlx::query_with(AssertSqlSafe(sql), bind(values)?);
            Ok(query.execute(self).await?.rows_affected())
        })
    }

    fn fetch(&mut self, sql: Arc<str>, values: Values) -> Work<'_, Vec<Row>> {
        Box::pin(fetch(self, sql, values))
    }

    fn close(self: Box<Self>) -> Work<'static, ()> {
        Box::pin(async move { (*self).close().await })
    }
}

impl Readers for SqlitePool {
    fn fetch(&self, sql: Arc<str>, values: Vec<Value>) -> Work<'_, Vec<Row>> {
        Box::pin(fetch(self, sql, Values::Each(values)))
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.close())
    }
}

async fn fetch<'e>(
    executor: impl SqliteExecutor<'e>,
    sql: Arc<str>,
    values: Values,
) -> Result<Vec<Row>, sqlx::Error> {
    let query = sqlx::query_with(AssertSqlSafe(sql), bind(values)?);
    let rows = query.fetch_all(executor).await?;
    rows.iter().map(Row::read).collect()
}

fn bind(values: Values) -> Result<SqliteArguments, sqlx::Error> {
    let (Values::Each(list) | Values::Rows { list, .. }) = values;
    let mut arguments = SqliteArguments::default();
    arguments.reserve(list.len(), 0);
    for value in list {
        match value {
            Value::Int(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bits(value) => arguments.add(value.map(|it| it.to_be_bytes().to_vec())),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}
