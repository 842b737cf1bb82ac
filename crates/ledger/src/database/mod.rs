//! The database: SQLite or PostgreSQL behind one set of statements.
//!
//! * `connection`: how to connect to either, what their errors mean.
//! * `migrate`: the tables.
//! * `text`, `write`: entries into the books. `read`, `export`, `rows`: everything that is asked.
//! * `value`: what goes in and comes out.
//!
//! [`Session`] is the writer's connection, which is replaced after any error: nothing is sent on a
//! connection whose state is not known.

mod connection;
mod export;
mod migrate;
mod read;
mod rows;
mod text;
mod value;
mod write;

use std::sync::Arc;

use tokio::time::timeout;

pub(crate) use self::connection::Readers;
use self::connection::{Connection, Purpose, is_gone, reason};
pub(crate) use self::read::Reader;
pub use self::rows::{
    Balance, BalanceCursor, BalanceRow, Ended, EntryQuery, EntrySummary, HoldRow, MOST_ROWS,
    PeriodBalance, UsageCursor, UsageQuery, UsageRow,
};
use self::text::Texts;
use self::write::Stage;
use crate::entry::{Entry, EntryId};
use crate::error::{LedgerError, OpenError};
use crate::note::Note;
use crate::options::{Database, Options};

/// The version of the tables of a database, if it has any. Makes and changes nothing.
pub(crate) async fn inspect(options: &Options) -> Result<Option<i64>, OpenError> {
    if let Database::Sqlite(path) = &options.database
        && !path.exists()
    {
        connection::has_directory(path)?;
        return Ok(None);
    }
    let place: Arc<str> = options.database.place().into();
    let mut connection = Connection::open(options, Purpose::Look).await?;
    let limit = options.write_timeout;
    let looking = migrate::look(&mut connection, &place);
    let found = timeout(limit, looking).await.unwrap_or_else(|_| {
        Err(OpenError::Unavailable {
            place,
            reason: format!("no answer within {limit:?}").into(),
        })
    });
    // Who does not answer is left.
    let _ = timeout(limit, connection.close()).await;
    found
}

/// The connection to write with, if there is one.
#[derive(Debug)]
pub(crate) struct Session {
    options: Arc<Options>,
    place: Arc<str>,
    connection: Option<Connection>,
    texts: Texts,
}

impl Session {
    pub(crate) fn new(options: Arc<Options>) -> Session {
        let place = options.database.place().into();
        Session {
            options,
            place,
            connection: None,
            texts: Texts::default(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects and sees to the tables, if there is no connection.
    pub(crate) async fn open(&mut self) -> Result<(), OpenError> {
        if self.connection.is_none() {
            let mut connection = Connection::open(&self.options, Purpose::Write).await?;
            let limit = self.options.write_timeout;
            migrate::migrate(&mut connection, &self.place, limit).await?;
            self.connection = Some(connection);
        }
        Ok(())
    }

    /// Writes all of `entries` and `notes` that are not in the books, or nothing. Answers the ids of entries
    /// that were there.
    pub(crate) async fn write(
        &mut self,
        entries: &[&Entry],
        notes: &[&Note],
    ) -> Result<Vec<EntryId>, LedgerError> {
        let mut was_open = self.is_open();
        let limit = self.options.write_timeout;
        let lines = (entries, notes);
        loop {
            self.open().await?;
            if entries.is_empty() && notes.is_empty() {
                return Ok(Vec::new());
            }
            // Not put back unless all went well, nor when this is not waited for any more.
            let Some(mut connection) = self.connection.take() else {
                return Ok(Vec::new());
            };
            let mut stage = Stage::Beginning;
            let writing = write::write(&mut connection, &mut self.texts, lines, &mut stage);
            let reason = match timeout(limit, writing).await {
                Ok(Ok(known)) => {
                    self.connection = Some(connection);
                    return Ok(known);
                }
                // The server was started again, or somebody between us has let go: that is no reason to refuse
                // what it would take.
                Ok(Err(error)) if was_open && stage == Stage::Beginning && is_gone(&error) => {
                    was_open = false;
                    continue;
                }
                Ok(Err(error)) => reason(&error),
                Err(_) => format!("not written within {limit:?}").into(),
            };
            let place = Arc::clone(&self.place);
            return Err(match stage {
                Stage::Beginning | Stage::Open => LedgerError::Unavailable { place, reason },
                Stage::Committing => LedgerError::Unknown { place, reason },
            });
        }
    }

    /// Says good-bye.
    pub(crate) async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            let limit = self.options.connect_timeout;
            // Who does not answer is left.
            let _ = timeout(limit, connection.close()).await;
        }
    }
}
