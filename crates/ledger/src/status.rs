//! How the ledger is.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::{Span, Time};

use crate::error::LedgerError;

/// How the ledger is at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Entries that wait in memory.
    pub queued: usize,
    /// Entries that wait in spill files.
    pub spilled: u64,
    /// What these take up.
    pub spilled_bytes: u64,
    /// When the oldest entry was recorded that is not in the database, or before that; `None` if all are.
    pub oldest: Option<Time>,
    /// Entries written to the database since the start, those included that were there already.
    pub written: u64,
    /// Transactions that failed since the start.
    pub failures: u64,
    /// Entries that were accepted and lost: always 0.
    pub dropped: u64,
    /// What is wrong, if something is.
    pub last_error: Option<Arc<str>>,
    /// Whether the last attempt to reach the database has.
    pub is_connected: bool,
}

impl Status {
    /// How far the database is behind, at `now`.
    #[must_use]
    pub fn lag(&self, now: Time) -> Option<Span> {
        self.oldest.map(|oldest| now.since(oldest))
    }
}

/// What the writer tells about itself.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    status: Status,
    /// What the database said last, if that was no.
    database: Option<LedgerError>,
    /// What the spill file said last, if that was no.
    spill: Option<Arc<str>>,
    /// Whether the database was reached since the start.
    is_ready: bool,
    /// Whether it is known what earlier processes have left.
    has_looked: bool,
}

impl Told {
    pub(crate) fn status(&self) -> Status {
        let inner = self.0.lock();
        let texts = [
            inner.database.as_ref().map(ToString::to_string),
            inner.spill.as_ref().map(ToString::to_string),
        ];
        let texts: Vec<String> = texts.into_iter().flatten().collect();
        Status {
            last_error: (!texts.is_empty()).then(|| texts.join("; ").into()),
            ..inner.status.clone()
        }
    }

    /// What is behind: in spill files, and since when.
    pub(crate) fn behind(&self, spilled: u64, bytes: u64, oldest: Option<Time>) {
        let mut inner = self.0.lock();
        inner.has_looked = true;
        let status = &mut inner.status;
        (status.spilled, status.spilled_bytes) = (spilled, bytes);
        status.oldest = oldest;
    }

    /// Whether nothing is in spill files.
    pub(crate) fn is_unspilled(&self) -> bool {
        let inner = self.0.lock();
        inner.has_looked && inner.status.spilled == 0
    }

    /// The database has taken so many. Whether it had not before.
    pub(crate) fn written(&self, entries: usize) -> bool {
        let mut inner = self.0.lock();
        inner.is_ready = true;
        inner.status.written += entries as u64;
        inner.status.is_connected = true;
        inner.database.take().is_some()
    }

    /// The database has not. Whether it said something else before.
    pub(crate) fn failed(&self, error: &LedgerError) -> bool {
        let mut inner = self.0.lock();
        inner.status.failures += 1;
        inner.status.is_connected = false;
        let before = inner.database.replace(error.clone());
        before.is_none_or(|before| before.to_string() != error.to_string())
    }

    /// What the spill file says. Whether that is news.
    pub(crate) fn spill(&self, error: Option<Arc<str>>) -> bool {
        let mut inner = self.0.lock();
        let is_news = inner.spill != error;
        inner.spill = error;
        is_news
    }

    /// Whether the database was ever reached; if not, why.
    pub(crate) fn is_ready(&self) -> Result<(), Option<LedgerError>> {
        let inner = self.0.lock();
        match inner.is_ready {
            true => Ok(()),
            false => Err(inner.database.clone()),
        }
    }
}
