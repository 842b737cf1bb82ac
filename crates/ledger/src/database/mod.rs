//! The database: SQLite or PostgreSQL behind one set of statements.
//!
//! * `connection`: the interface to a database, and the meaning of its errors. `sqlite` and `postgres`
//!   implement it.
//! * `migrate`: the tables. `deployment`: how subjects are hashed.
//! * `write` adds entries, with the SQL of `statements`. `read` answers queries, in the types of `rows`.
//! * `value`: values of statements and rows.
//!
//! [`Session`] has the connection of the writer. Any error closes that connection, because its state is
//! unknown after an error.

mod connection;
mod deployment;
mod migrate;
#[cfg(feature = "postgres")]
mod postgres;
mod read;
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statements;
mod value;
mod write;

use std::sync::Arc;

use tokio::time::timeout;

use self::connection::{Connection, Purpose, connect, is_closed, reason};
pub(crate) use self::connection::{Readers, query_error, readers};
pub use self::deployment::{Claim, Texts};
pub(crate) use self::read::Query;
pub use self::rows::{
    Balance, BalanceCursor, BalanceRow, Ended, EntryQuery, EntrySummary, HoldRow, MOST_ROWS,
    PeriodBalance, TrailQuery, UsageCursor, UsageQuery, UsageRow,
};
use self::statements::Statements;
pub(crate) use self::value::Row;
use self::write::Stage;
use crate::entry::{Entry, EntryId, Note};
use crate::error::{LedgerError, OpenError};
use crate::lock::Lock;
use crate::options::{Database, Options};

/// Returns the version of the tables, or `None` if there are none. Changes nothing.
pub(crate) async fn inspect(options: &Options) -> Result<Option<i64>, OpenError> {
    options.database.is_supported()?;
    if let Database::Sqlite(path) = &options.database
        && !path.exists()
    {
        connection::has_directory(path)?;
        return Ok(None);
    }
    let location: Arc<str> = options.database.location().into();
    let mut connection = connect(options, Purpose::Inspect).await?;
    let limit = options.write_timeout;
    let inspecting = migrate::inspect(&mut *connection, &location);
    let found = timeout(limit, inspecting).await.unwrap_or_else(|_| {
        Err(OpenError::Unavailable {
            location,
            reason: format!("no answer within {limit:?}").into(),
        })
    });
    // If the server does not answer, do not wait for it.
    let _ = timeout(limit, connection.close()).await;
    found
}

/// The connection of the writer, if it is open.
#[derive(Debug)]
pub(crate) struct Session {
    options: Arc<Options>,
    location: Arc<str>,
    connection: Option<Box<dyn Connection>>,
    /// Held until the session is dropped.
    lock: Option<Lock>,
    statements: Statements,
}

impl Session {
    pub(crate) fn new(options: Arc<Options>, lock: Option<Lock>) -> Session {
        let location = options.database.location().into();
        Session {
            options,
            location,
            connection: None,
            lock,
            statements: Statements::default(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects and brings the tables up to date, if there is no connection.
    pub(crate) async fn open(&mut self) -> Result<(), OpenError> {
        if self.connection.is_none() {
            if self.lock.is_none() {
                // There may be no lock yet because the directory of the file was missing before.
                self.lock = Lock::take(&self.options)?;
            }
            let mut connection = connect(&self.options, Purpose::Write).await?;
            let limit = self.options.write_timeout;
            let migrated = migrate::migrate(&mut *connection, &self.location, limit).await;
            self.connection = Some(connection);
            if let Err(error) = migrated {
                // Closed before the error is reported: the process may end then, and SQLite would leave files.
                self.close().await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes those of `entries` and `notes` that are new, all of them or none. Returns the ids of the
    /// entries that the database has already.
    pub(crate) async fn write(
        &mut self,
        entries: &[&Entry],
        notes: &[&Note],
    ) -> Result<Vec<EntryId>, LedgerError> {
        let mut was_open = self.is_open();
        let limit = self.options.write_timeout;
        loop {
            self.open().await?;
            if entries.is_empty() && notes.is_empty() {
                return Ok(Vec::new());
            }
            // The connection is put back only after success. After an error, or if the caller stops waiting, its
            // state is unknown.
            let Some(mut connection) = self.connection.take() else {
                return Ok(Vec::new());
            };
            let mut stage = Stage::Beginning;
            let (lines, statements) = ((entries, notes), &mut self.statements);
            let writing = write::write(&mut *connection, statements, lines, &mut stage);
            let reason = match timeout(limit, writing).await {
                Ok(Ok(present)) => {
                    self.connection = Some(connection);
                    return Ok(present);
                }
                // The server was restarted, or a proxy has closed an idle connection. A new connection
                // may work.
                Ok(Err(error)) if was_open && stage == Stage::Beginning && is_closed(&error) => {
                    was_open = false;
                    continue;
                }
                Ok(Err(error)) => reason(&error),
                Err(_) => format!("not written within {limit:?}").into(),
            };
            let location = Arc::clone(&self.location);
            return Err(match stage {
                Stage::Beginning | Stage::Open => LedgerError::Unavailable { location, reason },
                Stage::Committing => LedgerError::Unknown { location, reason },
            });
        }
    }

    pub(crate) async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            // If the server does not answer, do not wait for it.
            let _ = timeout(self.options.connect_timeout, connection.close()).await;
        }
    }
}
