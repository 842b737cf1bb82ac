//! The errors of the ledger, by cause.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::entry::EntryError;

/// Why a ledger cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// This build does not have the backend.
    #[error(
        "this build has no ledger in {}: build it with the feature `ledger-{feature}`",
        if *feature == "sqlite" { "SQLite" } else { "PostgreSQL" }
    )]
    MissingFeature {
        /// The feature of this crate: `sqlite` or `postgres`. In the library `tollgate` it is called
        /// `ledger-sqlite` or `ledger-postgres`.
        feature: &'static str,
    },
    /// The URL cannot be parsed.
    #[error(
        "the URL of the ledger is invalid: {reason}; write postgres://user:password@host/database"
    )]
    Address {
        /// The problem.
        reason: Arc<str>,
    },
    /// The directory of the file does not exist.
    #[error("the directory {} of the ledger does not exist: create it", directory.display())]
    MissingDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// The file is not a SQLite database.
    #[error("{location} is not a SQLite database: choose another file, or move this one away")]
    NotADatabase {
        /// The file.
        location: Arc<str>,
    },
    /// The database is read-only for this user.
    #[error(
        "the ledger {location} cannot be written: {reason}; allow the user of this process to write the file and its directory"
    )]
    NotWritable {
        /// The database.
        location: Arc<str>,
        /// The message of the database.
        reason: Arc<str>,
    },
    /// Another server uses the SQLite file.
    #[error(
        "the ledger {location} is in use by another server, which has locked {}: stop that server, or use a PostgreSQL ledger, which several servers can share",
        lock.display()
    )]
    InUse {
        /// The file.
        location: Arc<str>,
        /// The file that the other server has locked.
        lock: PathBuf,
    },
    /// A later version of this program has created the tables.
    #[error(
        "the ledger {location} has schema version {found}, and this program supports up to {known}: run the newer program, or use another ledger"
    )]
    NewerSchema {
        /// The database.
        location: Arc<str>,
        /// The version of the ledger's tables.
        found: i64,
        /// The latest version that this program supports.
        known: i64,
    },
    /// The encoding of the database lacks some characters.
    #[error(
        "the ledger {location} has the encoding {encoding}, which lacks some characters: create a database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and use that"
    )]
    Encoding {
        /// The database.
        location: Arc<str>,
        /// PostgreSQL's name of the encoding.
        encoding: Arc<str>,
    },
    /// The server rejects the login.
    #[error(
        "the ledger {location} rejects the login: {reason}; check user, password and database in its URL"
    )]
    Login {
        /// The database.
        location: Arc<str>,
        /// The message of the database.
        reason: Arc<str>,
    },
    /// The database does not answer, or is not ready.
    #[error("the ledger {location} cannot be reached: {reason}")]
    Unavailable {
        /// The database.
        location: Arc<str>,
        /// The message of the system or the database.
        reason: Arc<str>,
    },
    /// The tables could not be created or changed.
    #[error("the tables of the ledger {location} cannot be created or changed: {reason}")]
    Migration {
        /// The database.
        location: Arc<str>,
        /// The message of the database.
        reason: Arc<str>,
    },
}

impl OpenError {
    /// Whether a later attempt may succeed without any change to this program or its config.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, OpenError::Unavailable { .. })
    }
}

/// Why the ledger could not be written or read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// An entry is invalid. Nothing was written.
    #[error("invalid ledger entry: {0}")]
    Unfit(#[from] EntryError),
    /// Too many entries for one transaction. Nothing was written.
    #[error("{entries} entries are too many for one write to the ledger: at most {most}")]
    TooMany {
        /// The number of entries.
        entries: usize,
        /// The maximum.
        most: usize,
    },
    /// The queue is full. Nothing was written.
    #[error(transparent)]
    Full(#[from] Full),
    /// The ledger cannot be opened. Nothing was written.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database failed before the commit. Nothing was written.
    #[error("the ledger {location} is unavailable: {reason}")]
    Unavailable {
        /// The database.
        location: Arc<str>,
        /// The message of the system or the database.
        reason: Arc<str>,
    },
    /// The database has not confirmed the commit: the entries may have been written, or not. Writing the
    /// same entries again is safe.
    #[error("the ledger {location} has not confirmed a write: {reason}; the entries may be in it")]
    Unknown {
        /// The database.
        location: Arc<str>,
        /// The message of the system or the database.
        reason: Arc<str>,
    },
    /// A flush did not finish in time. The entries are still queued.
    #[error("the ledger {location} is behind: entries still wait to be written")]
    Behind {
        /// The database.
        location: Arc<str>,
    },
    /// A row has a value that this program never writes.
    #[error("the ledger {location} has a damaged row: {reason}")]
    Damaged {
        /// The database.
        location: Arc<str>,
        /// The problem.
        reason: Arc<str>,
    },
}

impl LedgerError {
    /// Whether the entries may have been written despite the error.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, LedgerError::Unknown { .. })
    }
}

/// Why an entry was not accepted. The caller must deny the request that the entry is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The queue has the maximum number of entries.
    #[error(
        "{max_queued} entries already wait for the ledger, which is the maximum: check the database, and the disk of the spill file"
    )]
    Queue {
        /// How many may wait.
        max_queued: usize,
    },
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
    /// The entry is invalid.
    #[error(transparent)]
    Unfit(#[from] EntryError),
}

/// Why lines could not be added to the spill file, or read from it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpillError {
    #[error("no spill file is configured")]
    Nowhere,
    #[error(
        "the spill file {} is full: at most {most} bytes may wait in it; repair the database, or raise `max_spill`",
        path.display()
    )]
    Full { path: PathBuf, most: u64 },
    #[error("cannot {action} the spill file {}: {error}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    #[error(
        "all {} spill files beside {} are in use: name another file as `spill`",
        crate::spill::MOST_FILES,
        path.display()
    )]
    TooMany { path: PathBuf },
}

impl SpillError {
    pub(crate) fn io(action: &'static str, path: &Path, error: io::Error) -> SpillError {
        SpillError::Io {
            action,
            path: path.to_owned(),
            error,
        }
    }
}
