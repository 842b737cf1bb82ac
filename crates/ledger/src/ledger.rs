//! The handle of the ledger.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;
use tollgate_core::Time;

use crate::database::{self, Query, Readers, Row, Session, query_error, readers};
use crate::entry::{Entry, EntryId, Note};
use crate::error::{Full, LedgerError, OpenError};
use crate::lock::Lock;
use crate::options::{Database, Options};
use crate::pending::{NewUse, Pending, UseOf};
use crate::status::{Status, StatusReport};
use crate::writer::{CLOSE_LIMIT, Shared, Writer};

/// How long a flush waits at most. Writing the entries of a long outage takes a while.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);

/// An open ledger. Cheap to clone; dropping the last clone closes it.
///
/// ```
/// # let runtime = tokio::runtime::Runtime::new()?;
/// # runtime.block_on(async {
/// use tollgate_core::Time;
/// use tollgate_ledger::{Database, EntryId, Ledger, Options, Period, UseOf};
///
/// let directory = tempfile::tempdir()?;
/// let file = directory.path().join("ledger.db");
/// let ledger = Ledger::open(Options::new(Database::Sqlite(file))).await?;
/// let july = Period { start: Time::from_micros(0), end: Time::from_micros(1_000_000) };
/// let search = UseOf {
///     namespace: "prod", tenant: "acme", action: "search", rule: "monthly", allowance: "monthly",
///     key: 7, period: july,
/// };
/// ledger.record_use(&search, 5, 1, Time::from_micros(10), || EntryId(1))?;
/// ledger.record_use(&search, 3, 1, Time::from_micros(20), || EntryId(2))?;
/// assert_eq!(ledger.balance(7, july.start).await?.used, 8);
/// ledger.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    /// The pool to read with, or an error if the URL is invalid or the backend is missing.
    readers: Result<Arc<dyn Readers>, OpenError>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.pending.lock().close();
        self.shared.is_closing.send_replace(true);
        self.shared.wake.notify_one();
    }
}

impl Ledger {
    /// Opens the ledger, creates its tables if necessary, and starts the writer task on the current
    /// Tokio runtime. Entries in the spill file of an earlier process are written first.
    ///
    /// # Errors
    /// If the database cannot be reached or used, or if it is [exclusive](Options::exclusive) and another
    /// process uses it.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn open(options: Options) -> Result<Ledger, OpenError> {
        let options = Arc::new(options);
        let lock = Lock::take_patiently(&options).await?;
        let mut session = Session::new(Arc::clone(&options), lock);
        session.open().await?;
        let ledger = Ledger::with(options, session);
        ledger.0.shared.report.written(0);
        Ok(ledger)
    }

    /// Opens the ledger without waiting for the database. The writer task keeps trying to connect, and
    /// spills entries until then. [`Ledger::status`] has the current problem.
    ///
    /// # Errors
    /// If the ledger is [exclusive](Options::exclusive), and another process uses it.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(options: Options) -> Result<Ledger, OpenError> {
        let options = Arc::new(options);
        let session = Session::new(Arc::clone(&options), Lock::take(&options)?);
        Ok(Ledger::with(options, session))
    }

    /// Checks whether the ledger could be opened. Returns the version of its tables, or `None` if there
    /// are none yet. Changes nothing.
    ///
    /// # Errors
    /// If the database cannot be reached or used.
    pub async fn inspect(options: &Options) -> Result<Option<i64>, OpenError> {
        database::inspect(options).await
    }

    fn with(options: Arc<Options>, session: Session) -> Ledger {
        let location: Arc<str> = options.database.location().into();
        let readers = readers(&options);
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending::new(options.max_queued, options.batch)),
            options,
            location,
            report: StatusReport::default(),
            wake: Notify::new(),
            is_closing: watch::Sender::new(false),
            has_ended: watch::Sender::new(false),
        });
        tokio::spawn(Writer::new(Arc::clone(&shared), session).run());
        Ledger(Arc::new(Handle { shared, readers }))
    }

    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.0.shared.options.database
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.shared.options
    }

    /// Returns the time within which an entry is on disk.
    #[must_use]
    pub fn flush_interval(&self) -> Duration {
        self.0.shared.options.flush_interval
    }

    /// Accepts an entry, to be written within the flush interval. Never waits. A use is merged into a
    /// waiting use that differs only in id, time, amount and count. A use with an idempotency key,
    /// `who` or `why` is not merged.
    ///
    /// # Errors
    /// If the queue is full, the ledger is closed, or the entry is invalid. After an error, the entry was not
    /// accepted.
    pub fn record(&self, entry: Entry) -> Result<(), Full> {
        self.accept(|pending| pending.record(entry))
    }

    /// Accepts a use, as [`Ledger::record`] does. If the use is merged into a waiting one, this
    /// allocates nothing and does not call `id`.
    ///
    /// # Errors
    /// The same as for [`Ledger::record`].
    pub fn record_use(
        &self,
        of: &UseOf<'_>,
        amount: i64,
        count: u32,
        at: Time,
        id: impl FnOnce() -> EntryId,
    ) -> Result<(), Full> {
        self.accept(|pending| pending.record_use(of, amount, count, at, id))
    }

    /// Accepts several uses, all or none, as [`Ledger::record_use`] accepts one.
    ///
    /// # Errors
    /// The same as for [`Ledger::record`]. After an error, no use was accepted.
    pub fn record_uses(
        &self,
        uses: &[NewUse<'_>],
        id: impl FnMut() -> EntryId,
    ) -> Result<(), Full> {
        self.accept(|pending| pending.record_uses(uses, id))
    }

    /// Writes entries, all or none. The entries are in the database when this returns. Calls that wait
    /// at the same time share a transaction. A caller that stops waiting does not cancel the write.
    ///
    /// # Errors
    /// If the write failed, or was not confirmed within [`Options::strict_wait`]. If the error [is
    /// unknown](LedgerError::is_unknown), the entries may have been written. Otherwise no entry was written,
    /// and none will be.
    pub async fn write(&self, entries: Vec<Entry>) -> Result<(), LedgerError> {
        self.write_new(entries).await.map(|_| ())
    }

    /// Writes entries, as [`Ledger::write`] does, and returns whether all of them were new. If several callers, in
    /// any process, write the same entry, exactly one gets `true`.
    ///
    /// # Errors
    /// The same as for [`Ledger::write`].
    pub async fn write_new(&self, entries: Vec<Entry>) -> Result<bool, LedgerError> {
        if entries.is_empty() {
            return Ok(true);
        }
        let options = &self.0.shared.options;
        if entries.len() > options.batch {
            return Err(LedgerError::TooMany {
                entries: entries.len(),
                most: options.batch,
            });
        }
        let (reply, answer) = oneshot::channel();
        let taken = self.0.shared.pending.lock().strict(entries, reply);
        taken.map_err(|full| match full {
            Full::Unfit(error) => LedgerError::Unfit(error),
            full => LedgerError::Full(full),
        })?;
        self.0.shared.wake.notify_one();
        let wait = options.strict_wait;
        match timeout(wait, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.unknown("its writer task has ended")),
            Err(_) => Err(self.unknown(&format!("the write was not confirmed within {wait:?}"))),
        }
    }

    /// Waits until everything that was recorded before this call is in the database.
    ///
    /// # Errors
    /// If the database does not take the entries in time. After an error, the entries are still queued.
    pub async fn flush(&self) -> Result<(), LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.0.shared.pending.lock().flush(reply);
        self.0.shared.wake.notify_one();
        match timeout(FLUSH_LIMIT, answer).await {
            Ok(Ok(result)) => result.map(|_| ()),
            Ok(Err(_)) => Err(LedgerError::Full(Full::Closed)),
            Err(_) => Err(LedgerError::Behind {
                location: Arc::clone(&self.0.shared.location),
            }),
        }
    }

    /// Accepts a note of an administrative change, to be written within the flush interval; never waits.
    ///
    /// # Errors
    /// The same as for [`Ledger::record`].
    pub fn audit(&self, note: Note) -> Result<(), Full> {
        self.accept(|pending| pending.note(note))
    }

    /// Calls `queue` to queue an item, and wakes the writer if `queue` returns true.
    fn accept(&self, queue: impl FnOnce(&mut Pending) -> Result<bool, Full>) -> Result<(), Full> {
        let is_due = queue(&mut self.0.shared.pending.lock())?;
        if is_due {
            self.0.shared.wake.notify_one();
        }
        Ok(())
    }

    /// Returns the current state.
    #[must_use]
    pub fn status(&self) -> Status {
        let pending = self.0.shared.pending.lock();
        let (queued, oldest) = (pending.queued(), pending.oldest());
        drop(pending);
        let status = self.0.shared.report.status();
        Status {
            queued,
            oldest: status.oldest.or(oldest),
            ..status
        }
    }

    /// Closes the ledger: accepts no more entries, and writes those that wait. Entries that the database does
    /// not take in time are spilled. If the spill file does not take them either, the writer tries again for
    /// ten seconds.
    pub async fn close(&self) {
        let shared = &self.0.shared;
        shared.pending.lock().close();
        shared.is_closing.send_replace(true);
        shared.wake.notify_one();
        let options = &shared.options;
        let limit = CLOSE_LIMIT + options.write_timeout * 2 + options.connect_timeout;
        let mut has_ended = shared.has_ended.subscribe();
        // If the writer does not end in time, do not wait for it.
        let _ = timeout(limit, has_ended.wait_for(|ended| *ended)).await;
        if let Ok(readers) = &self.0.readers {
            let _ = timeout(options.connect_timeout, readers.close()).await;
        }
    }

    /// Runs a query after all entries of this process are in the database.
    pub(crate) async fn fetch<T>(
        &self,
        query: Query,
        read: impl Fn(&Row) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, LedgerError> {
        let shared = &self.0.shared;
        // Read the queue before the status: the status shows entries as spilled before they leave the queue.
        let queued = shared.pending.lock().queued();
        if queued != 0 || !shared.report.is_unspilled() || shared.report.is_ready().is_err() {
            self.flush().await?;
        }
        if let Err(error) = shared.report.is_ready() {
            return Err(error.unwrap_or_else(|| LedgerError::Unavailable {
                location: Arc::clone(&shared.location),
                reason: "it was not reached since the start".into(),
            }));
        }
        self.read(query, read).await
    }

    /// Runs a query without waiting for entries of this process.
    pub(crate) async fn read<T>(
        &self,
        query: Query,
        read: impl Fn(&Row) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, LedgerError> {
        let (location, limit) = (&self.0.shared.location, self.0.shared.options.write_timeout);
        let readers = self.0.readers.as_ref().map_err(OpenError::clone)?;
        let answer = timeout(limit, readers.fetch(query.sql.into(), query.values)).await;
        let answer = answer.map_err(|_| LedgerError::Unavailable {
            location: Arc::clone(location),
            reason: format!("no answer within {limit:?}").into(),
        })?;
        let rows = answer.and_then(|rows| rows.iter().map(read).collect());
        rows.map_err(|error| query_error(&error, location))
    }

    fn unknown(&self, reason: &str) -> LedgerError {
        LedgerError::Unknown {
            location: Arc::clone(&self.0.shared.location),
            reason: reason.into(),
        }
    }
}
