//! The interface to a database, the choice of the backend, and the meaning of database errors.
//!
//! `sqlite` and `postgres` implement the two traits. Each is compiled only with the feature of the same
//! name.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::timeout;

#[cfg(feature = "postgres")]
use super::postgres;
#[cfg(feature = "sqlite")]
use super::sqlite;
use super::value::{Row, Value, Values};
use crate::error::{LedgerError, OpenError};
use crate::options::{Database, Options};

/// How many queries may run at the same time. Further queries wait.
pub(super) const READERS: u32 = 3;

/// Which SQL a database understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Write,
    /// To look at the database only: creates no file, and does not change the journal mode.
    Inspect,
}

/// A running statement.
pub(crate) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'a>>;

/// One connection, to write with.
pub(crate) trait Connection: fmt::Debug + Send + Sync {
    fn dialect(&self) -> Dialect;

    /// Runs one or more statements that have no values.
    fn run(&mut self, sql: &'static str) -> Work<'_, ()>;

    /// Runs a statement. Returns how many rows it has changed.
    fn execute(&mut self, sql: Arc<str>, values: Values) -> Work<'_, u64>;

    fn fetch(&mut self, sql: Arc<str>, values: Values) -> Work<'_, Vec<Row>>;

    fn close(self: Box<Self>) -> Work<'static, ()>;
}

/// A pool of connections to read with, opened when they are needed.
pub(crate) trait Readers: fmt::Debug + Send + Sync {
    fn fetch(&self, sql: Arc<str>, values: Vec<Value>) -> Work<'_, Vec<Row>>;

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Connects within `connect_timeout`.
#[cfg_attr(not(feature = "sqlite"), allow(unused_variables))]
pub(super) async fn connect(
    options: &Options,
    purpose: Purpose,
) -> Result<Box<dyn Connection>, OpenError> {
    let connecting = async {
        match &options.database {
            #[cfg(feature = "sqlite")]
            Database::Sqlite(path) => sqlite::connect(path, options, purpose).await,
            #[cfg(feature = "postgres")]
            Database::Postgres(url) => postgres::connect(url, options).await,
            #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
            database => Err(database.missing_feature()),
        }
    };
    let limit = options.connect_timeout;
    timeout(limit, connecting).await.unwrap_or_else(|_| {
        Err(OpenError::Unavailable {
            location: options.database.location().into(),
            reason: format!("no connection within {limit:?}").into(),
        })
    })
}

pub(crate) fn readers(options: &Options) -> Result<Arc<dyn Readers>, OpenError> {
    match &options.database {
        #[cfg(feature = "sqlite")]
        Database::Sqlite(path) => Ok(sqlite::readers(path, options)),
        #[cfg(feature = "postgres")]
        Database::Postgres(url) => postgres::readers(url, options),
        #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
        database => Err(database.missing_feature()),
    }
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

/// Returns whether the database, or a proxy in front of it, has closed the connection.
pub(crate) fn is_closed(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
        sqlx::Error::Database(error) => {
            // These codes mean that the session has ended.
            let code = error.code().unwrap_or_default();
            ["57P", "08", "25P03"].iter().any(|it| code.starts_with(it))
        }
        _ => false,
    }
}

/// Returns whether another process has locked the SQLite file.
pub(crate) fn is_locked(error: &sqlx::Error) -> bool {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    let number = code.and_then(|it| it.parse::<u32>().ok());
    // The low byte of a SQLite code is the cause: BUSY.
    number.is_some_and(|it| it & 0xff == 5)
}

/// Finds the cause of a failure to open a database.
pub(crate) fn open_error(error: &sqlx::Error, location: &Arc<str>) -> OpenError {
    let (location, reason) = (Arc::clone(location), reason(error));
    let sqlx::Error::Database(error) = error else {
        return OpenError::Unavailable { location, reason };
    };
    let code = error.code().unwrap_or_default();
    #[cfg(feature = "sqlite")]
    if error
        .try_downcast_ref::<sqlx::sqlite::SqliteError>()
        .is_some()
    {
        // The low byte of a SQLite code is the cause: READONLY, PERM, CANTOPEN, AUTH; NOTADB.
        return match code.parse::<u32>().unwrap_or_default() & 0xff {
            3 | 8 | 14 | 23 => OpenError::NotWritable { location, reason },
            26 => OpenError::NotADatabase { location },
            _ => OpenError::Unavailable { location, reason },
        };
    }
    match &*code {
        "25006" | "42501" => OpenError::NotWritable { location, reason },
        code if code.starts_with("28") || code == "3D000" => OpenError::Login { location, reason },
        _ => OpenError::Unavailable { location, reason },
    }
}

/// Finds the cause of a failed query.
pub(crate) fn query_error(error: &sqlx::Error, location: &Arc<str>) -> LedgerError {
    let (location, reason) = (Arc::clone(location), reason(error));
    match error {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            LedgerError::Damaged { location, reason }
        }
        _ => LedgerError::Unavailable { location, reason },
    }
}

pub(crate) fn reason(error: &sqlx::Error) -> Arc<str> {
    match error {
        sqlx::Error::Database(error) => match error.code() {
            Some(code) => format!("{} ({code})", error.message()).into(),
            None => error.message().into(),
        },
        sqlx::Error::Io(error) => error.to_string().into(),
        sqlx::Error::PoolTimedOut => "no free connection in time".into(),
        error => error.to_string().into(),
    }
}
