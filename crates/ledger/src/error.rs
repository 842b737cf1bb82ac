//! What can go wrong with the books, by cause.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::entry::EntryError;

/// Why the books cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not one.
    #[error(
        "the address of the ledger is not right: {reason}; write postgres://user:password@host/database"
    )]
    Address {
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// The directory of the file is not there.
    #[error("the directory {} of the ledger is missing: make it", directory.display())]
    MissingDirectory {
        /// That directory.
        directory: PathBuf,
    },
    /// The file is something else.
    #[error("{place} is not a database of SQLite: name another file, or move it away")]
    NotADatabase {
        /// That file.
        place: Arc<str>,
    },
    /// It may not be written.
    #[error(
        "the ledger {place} cannot be written: {reason}; give the user that runs this the right to write the file and its directory"
    )]
    NotWritable {
        /// Which ledger.
        place: Arc<str>,
        /// What the database said.
        reason: Arc<str>,
    },
    /// Its tables are of a later program.
    #[error(
        "the ledger {place} has schema version {found} and this program knows {known}: run the newer program, or another ledger"
    )]
    NewerSchema {
        /// Which ledger.
        place: Arc<str>,
        /// The version there.
        found: i64,
        /// The latest version known here.
        known: i64,
    },
    /// Its database cannot keep every text.
    #[error(
        "the ledger {place} keeps texts as {encoding}, which has not all characters: make a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and name that"
    )]
    Encoding {
        /// Which ledger.
        place: Arc<str>,
        /// What PostgreSQL calls it.
        encoding: Arc<str>,
    },
    /// The server lets this user not in.
    #[error(
        "the ledger {place} refuses the user: {reason}; see to the user and the password of its address"
    )]
    Refused {
        /// Which ledger.
        place: Arc<str>,
        /// What the database said.
        reason: Arc<str>,
    },
    /// It does not answer, or cannot now.
    #[error("the ledger {place} cannot be reached: {reason}")]
    Unavailable {
        /// Which ledger.
        place: Arc<str>,
        /// What the system or the database said.
        reason: Arc<str>,
    },
    /// Its tables could not be made.
    #[error("the tables of the ledger {place} cannot be made: {reason}")]
    Migration {
        /// Which ledger.
        place: Arc<str>,
        /// What the database said.
        reason: Arc<str>,
    },
}

impl OpenError {
    /// Whether trying again later may help, with nothing changed here.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, OpenError::Unavailable { .. })
    }
}

/// Why something could not be written to the books, or read from them.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// An entry cannot be kept. Nothing was written.
    #[error("an entry of the ledger is not right: {0}")]
    Unfit(#[from] EntryError),
    /// Too many at once. Nothing was written.
    #[error("{entries} entries are too many for one write to the ledger: at most {most}")]
    TooMany {
        /// How many they were.
        entries: usize,
        /// How many may be.
        most: usize,
    },
    /// Too much waits already. Nothing was written.
    #[error(transparent)]
    Full(#[from] Full),
    /// The books cannot be opened. Nothing was written.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database does not do it now. Nothing was written.
    #[error("the ledger {place} does not answer: {reason}")]
    Unavailable {
        /// Which ledger.
        place: Arc<str>,
        /// What the system or the database said.
        reason: Arc<str>,
    },
    /// The database was asked to commit and has not confirmed: it may have been written, or not. Writing
    /// the same entries again is safe.
    #[error("the ledger {place} has not confirmed: {reason}; it may have been written")]
    Unknown {
        /// Which ledger.
        place: Arc<str>,
        /// What the system or the database said.
        reason: Arc<str>,
    },
    /// What waits was not written in time. It still waits.
    #[error("the ledger {place} is behind: entries still wait to be written")]
    Behind {
        /// Which ledger.
        place: Arc<str>,
    },
    /// A row is not as this program writes them.
    #[error("the ledger {place} has a row that is not right: {reason}")]
    Damaged {
        /// Which ledger.
        place: Arc<str>,
        /// What is wrong.
        reason: Arc<str>,
    },
}

impl LedgerError {
    /// Whether what was to be written may have been.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, LedgerError::Unknown { .. })
    }
}

/// Why an entry was not taken. What the caller was about to admit has to be refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// As many entries wait as may.
    #[error(
        "{max_queued} entries wait for the ledger, and no more may: see why it does not take them, and to the disk of its spill file"
    )]
    Queue {
        /// How many may wait.
        max_queued: usize,
    },
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
    /// The entry cannot be kept.
    #[error(transparent)]
    Unfit(#[from] EntryError),
}

/// Why the spill file did not take something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpillError {
    #[error("no spill file is named")]
    Nowhere,
    #[error("{most} bytes may wait in the spill file {}, and no more", path.display())]
    Full { path: PathBuf, most: u64 },
    #[error("cannot {act} the spill file {}: {error}", path.display())]
    Io {
        act: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error("{} spill files beside {} are in use", crate::spill::MOST_FILES, path.display())]
    TooMany { path: PathBuf },
}
