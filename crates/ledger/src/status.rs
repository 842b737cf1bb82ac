//! The state of the ledger, for operators and metrics.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::{Span, Time};

use crate::error::LedgerError;

/// The state of the ledger at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Entries that wait in memory.
    pub queued: usize,
    /// Entries that wait in spill files.
    pub spilled: u64,
    /// The size of the entries in spill files.
    pub spilled_bytes: u64,
    /// A time at or before that of the oldest entry that is not in the database yet; `None` if there is no
    /// such entry.
    pub oldest: Option<Time>,
    /// Entries written to the database since the start, including entries that the database had already.
    pub written: u64,
    /// Transactions that failed since the start.
    pub failures: u64,
    /// Accepted entries that were lost since the start: because another program truncated the spill file,
    /// or because neither the database nor the spill file took them before the ledger was closed.
    pub dropped: u64,
    /// The current problem of the database or of the spill file, if there is one.
    pub last_error: Option<Arc<str>>,
    /// Whether the last attempt to reach the database succeeded.
    pub is_connected: bool,
}

impl Status {
    /// Returns how far the database is behind at `now`.
    #[must_use]
    pub fn lag(&self, now: Time) -> Option<Span> {
        self.oldest.map(|oldest| now.since(oldest))
    }
}

/// The status as the writer reports it.
#[derive(Debug, Default)]
pub(crate) struct StatusReport(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    status: Status,
    /// The last error of the database; `None` once the database works again.
    database: Option<LedgerError>,
    /// The last error of the spill file; `None` once the file works again.
    spill: Option<Arc<str>>,
    /// Whether the database was reached since the start.
    is_ready: bool,
    /// Whether this process has looked for spill files of earlier processes.
    has_searched: bool,
}

impl StatusReport {
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

    /// Reports the total number of entries that were lost.
    pub(crate) fn dropped(&self, entries: u64) {
        self.0.lock().status.dropped = entries;
    }

    /// Reports how much waits in spill files, and when the oldest waiting entry was recorded.
    pub(crate) fn behind(&self, spilled: u64, bytes: u64, oldest: Option<Time>) {
        let mut inner = self.0.lock();
        inner.has_searched = true;
        let status = &mut inner.status;
        (status.spilled, status.spilled_bytes) = (spilled, bytes);
        status.oldest = oldest;
    }

    /// Whether all spill files are known to be empty.
    pub(crate) fn is_unspilled(&self) -> bool {
        let inner = self.0.lock();
        inner.has_searched && inner.status.spilled == 0
    }

    /// Reports that the database has stored `entries` entries. Returns whether the previous write had failed.
    pub(crate) fn written(&self, entries: usize) -> bool {
        let mut inner = self.0.lock();
        inner.is_ready = true;
        inner.status.written += entries as u64;
        inner.status.is_connected = true;
        inner.database.take().is_some()
    }

    /// Reports that the database failed. Returns whether the error differs from the last one.
    pub(crate) fn failed(&self, error: &LedgerError) -> bool {
        let mut inner = self.0.lock();
        inner.status.failures += 1;
        inner.status.is_connected = false;
        let before = inner.database.replace(error.clone());
        before.is_none_or(|before| before.to_string() != error.to_string())
    }

    /// Reports the error of the spill file, or that the file works. Returns whether the error has
    /// changed.
    pub(crate) fn spill(&self, error: Option<Arc<str>>) -> bool {
        let mut inner = self.0.lock();
        let is_news = inner.spill != error;
        inner.spill = error;
        is_news
    }

    /// Succeeds if the database was reached since the start. If not, returns the last error.
    pub(crate) fn is_ready(&self) -> Result<(), Option<LedgerError>> {
        let inner = self.0.lock();
        match inner.is_ready {
            true => Ok(()),
            false => Err(inner.database.clone()),
        }
    }
}
