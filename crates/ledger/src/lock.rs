//! The lock of a SQLite ledger: one server at a time.
//!
//! Two servers with counts in memory and one SQLite file would each admit the whole limit of a quota. So a
//! server locks a file beside the database, for as long as its writer runs. The system frees the lock when
//! the process ends, even after a crash.
//!
//! The database file itself is not locked: closing a second handle of that file would free the locks that
//! SQLite holds on it. The lock file stays when the lock is freed, because removing it could let two servers
//! lock two different files of the same name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::OpenError;
use crate::options::{Database, Options};
use crate::private_file;

/// How long to wait for a server that is about to end.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait between two attempts.
const RETRY: Duration = Duration::from_millis(20);

/// A lock that is freed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Locks the ledger. Returns `None` if several processes may use it.
    pub(crate) fn take(options: &Options) -> Result<Option<Lock>, OpenError> {
        let Database::Sqlite(path) = &options.database else {
            return Ok(None);
        };
        if !options.exclusive {
            return Ok(None);
        }
        let file = lock_file(path);
        let location = || options.database.location().into();
        let failed = |error: io::Error| OpenError::NotWritable {
            location: location(),
            reason: format!("cannot lock {}: {error}", file.display()).into(),
        };
        let mut writing = OpenOptions::new();
        writing.write(true).create(true).truncate(false);
        let opened = match private_file::open(&mut writing, &file) {
            // The directory is missing. The caller reports this with a better message.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        match opened.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: opened })),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
                location: location(),
                lock: file,
            }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Locks the ledger, and waits for a while if another server has the lock: that server may be about to
    /// end.
    pub(crate) async fn take_patiently(options: &Options) -> Result<Option<Lock>, OpenError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Lock::take(options) {
                Err(OpenError::InUse { .. }) if Instant::now() < until => sleep(RETRY).await,
                taken => return taken,
            }
        }
    }
}

/// Returns the file to lock for the database at `path`. Two names of one file have the same lock.
fn lock_file(path: &Path) -> PathBuf {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = path.into_os_string();
    name.push(".lock");
    name.into()
}
