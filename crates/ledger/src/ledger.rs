//! The handle of the ledger.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;
use tollgate_core::Time;

use crate::database::{
    self, Balance, BalanceCursor, BalanceRow, EntryQuery, EntrySummary, HoldRow, PeriodBalance,
    Reader, Session, UsageQuery, UsageRow,
};
use crate::entry::{Entry, EntryId};
use crate::error::{Full, LedgerError, OpenError};
use crate::note::{Note, TrailQuery};
use crate::options::{Database, Options};
use crate::pending::{IsDue, Pending, UseOf};
use crate::status::{Status, StatusReport};
use crate::writer::{CLOSE_LIMIT, Shared, Writer};

/// How long a flush waits at most: the entries of a long outage take a while.
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
    /// The error is that of an invalid URL or a missing backend.
    reader: Result<Reader, OpenError>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.pending.lock().close();
        self.shared.is_closing.send_replace(true);
        self.shared.wake.notify_one();
    }
}

impl Ledger {
    /// Opens the ledger, creates its tables if need be, and starts the task that writes it, on the current Tokio
    /// runtime. Entries that an earlier process has left in a spill file are written first.
    ///
    /// # Errors
    /// If the database cannot be reached or used.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn open(options: Options) -> Result<Ledger, OpenError> {
        let options = Arc::new(options);
        let mut session = Session::new(Arc::clone(&options));
        session.open().await?;
        let ledger = Ledger::with(options, session);
        ledger.0.shared.report.written(0);
        Ok(ledger)
    }

    /// Opens the ledger without waiting for the database: the task keeps trying to connect, and spills entries
    /// meanwhile. [`Ledger::status`] has the current problem.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn start(options: Options) -> Ledger {
        let options = Arc::new(options);
        let session = Session::new(Arc::clone(&options));
        Ledger::with(options, session)
    }

    /// Checks whether the ledger could be opened, and returns the version of its tables, or `None` if there are
    /// none yet. Changes nothing.
    ///
    /// # Errors
    /// If the database cannot be reached or used.
    pub async fn inspect(options: &Options) -> Result<Option<i64>, OpenError> {
        database::inspect(options).await
    }

    fn with(options: Arc<Options>, session: Session) -> Ledger {
        let location: Arc<str> = options.database.location().into();
        let reader = database::readers(&options).map(|readers| Reader {
            readers,
            location: Arc::clone(&location),
            limit: options.write_timeout,
        });
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
        Ledger(Arc::new(Handle { shared, reader }))
    }

    /// Returns the database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.0.shared.options.database
    }

    /// Returns the time within which an entry is on disk.
    #[must_use]
    pub fn flush_interval(&self) -> Duration {
        self.0.shared.options.flush_interval
    }

    /// Accepts an entry, to be written within the flush interval; never waits. A use is merged into a waiting one
    /// that differs only in id, time, amount and count, unless it has an idempotency key.
    ///
    /// # Errors
    /// If the queue is full, or the entry is invalid. The entry was not accepted then.
    pub fn record(&self, entry: Entry) -> Result<(), Full> {
        let taken = self.0.shared.pending.lock().record(entry);
        self.wake_if(taken?);
        Ok(())
    }

    /// Accepts a use, as [`Ledger::record`] does. Merging it into a waiting one allocates nothing and does not call
    /// `id`.
    ///
    /// # Errors
    /// As [`Ledger::record`].
    pub fn record_use(
        &self,
        of: &UseOf<'_>,
        amount: i64,
        count: u32,
        at: Time,
        id: impl FnOnce() -> EntryId,
    ) -> Result<(), Full> {
        let mut pending = self.0.shared.pending.lock();
        let taken = pending.record_use(of, amount, count, at, id);
        drop(pending);
        self.wake_if(taken?);
        Ok(())
    }

    /// Writes entries, all or none; they are in the database when this returns. Calls that wait at the same time
    /// share a transaction. A caller that stops waiting does not cancel the write.
    ///
    /// # Errors
    /// If the write failed. Unless the error [is unknown](LedgerError::is_unknown), no entry was written, and none
    /// will be.
    pub async fn write(&self, entries: Vec<Entry>) -> Result<(), LedgerError> {
        self.write_new(entries).await.map(|_| ())
    }

    /// Writes entries, as [`Ledger::write`] does, and returns whether all of them were new. If several callers, in
    /// any process, write the same entry, exactly one gets `true`.
    ///
    /// # Errors
    /// As [`Ledger::write`].
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
        // Enough for the transaction before, connecting, and its own.
        let limit = options.write_timeout * 2 + options.connect_timeout;
        match timeout(limit, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.unknown("its writer task has ended")),
            Err(_) => Err(self.unknown("too many writes are queued before this one")),
        }
    }

    /// Waits until everything that was recorded before is in the database.
    ///
    /// # Errors
    /// If the database does not take it, or not in time. The entries still wait then.
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

    /// Returns the balance of a counter in the period that starts at `period_start`, including everything that
    /// this process has recorded. Entries of other processes are included after their flush interval. The same
    /// holds for all queries below.
    ///
    /// # Errors
    /// If the database does not take the pending entries, or does not answer. The same holds for all queries below.
    pub async fn balance(&self, key: u128, period_start: Time) -> Result<Balance, LedgerError> {
        self.reader().await?.balance(key, period_start).await
    }

    /// Returns the balances of a counter in its latest periods, the last first.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn history(&self, key: u128, most: usize) -> Result<Vec<PeriodBalance>, LedgerError> {
        self.reader().await?.history(key, most).await
    }

    /// Returns a summary of the entry with that id, if there is one.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn gist(&self, id: EntryId) -> Result<Option<EntrySummary>, LedgerError> {
        self.reader().await?.gist(id).await
    }

    /// Lists the reservations of a counter that expire after `since`, open or ended, the latest first. `after` is
    /// the expiry and id of the last row of the page before.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn holds_of(
        &self,
        key: u128,
        since: Time,
        after: Option<(Time, u128)>,
        most: usize,
    ) -> Result<Vec<HoldRow>, LedgerError> {
        self.reader().await?.holds_of(key, since, after, most).await
    }

    /// Returns how much of a counter is reserved by open reservations, in periods that end after `after`.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn reserved(&self, key: u128, after: Time) -> Result<i64, LedgerError> {
        self.reader().await?.reserved(key, after).await
    }

    /// Returns one reservation, with a row for each counter.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn hold(&self, id: u128) -> Result<Vec<HoldRow>, LedgerError> {
        self.reader().await?.hold(id).await
    }

    /// Lists open reservations that expired before `before`, the oldest first.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn overdue(
        &self,
        namespace: &str,
        before: Time,
        most: usize,
    ) -> Result<Vec<HoldRow>, LedgerError> {
        self.reader().await?.overdue(namespace, before, most).await
    }

    /// Lists usage, ordered by tenant, period, rule, action and counter.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, LedgerError> {
        self.reader().await?.usage(query).await
    }

    /// Lists all counters that have a period at `at`, page by page.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn balances(
        &self,
        namespace: &str,
        at: Time,
        after: Option<BalanceCursor>,
        most: usize,
    ) -> Result<Vec<BalanceRow>, LedgerError> {
        self.reader()
            .await?
            .balances(namespace, at, after, most)
            .await
    }

    /// Lists entries with their sequence numbers, in the order in which they were written, page by page.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn entries(&self, query: &EntryQuery) -> Result<Vec<(u64, Entry)>, LedgerError> {
        self.reader().await?.entries(query).await
    }

    /// Accepts a note of an administrative change, to be written within the flush interval; never waits.
    ///
    /// # Errors
    /// As [`Ledger::record`].
    pub fn audit(&self, note: Note) -> Result<(), Full> {
        let taken = self.0.shared.pending.lock().note(note);
        self.wake_if(taken?);
        Ok(())
    }

    /// Lists notes of all processes that share the database, the latest first.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn trail(&self, query: &TrailQuery) -> Result<Vec<Note>, LedgerError> {
        self.reader().await?.trail(query).await
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

    /// Accepts nothing more, writes the waiting entries, and spills those that the database does not take in
    /// time. Entries that neither takes are tried again for ten seconds.
    pub async fn close(&self) {
        let shared = &self.0.shared;
        shared.pending.lock().close();
        shared.is_closing.send_replace(true);
        shared.wake.notify_one();
        let options = &shared.options;
        let limit = CLOSE_LIMIT + options.write_timeout * 2 + options.connect_timeout;
        let mut has_ended = shared.has_ended.subscribe();
        // A writer that does not end in time is left alone.
        let _ = timeout(limit, has_ended.wait_for(|ended| *ended)).await;
        if let Ok(reader) = &self.0.reader {
            let _ = timeout(options.connect_timeout, reader.readers.close()).await;
        }
    }

    fn wake_if(&self, due: IsDue) {
        if due.0 {
            self.0.shared.wake.notify_one();
        }
    }

    /// Flushes, if there is anything to flush, and returns the reader.
    async fn reader(&self) -> Result<&Reader, LedgerError> {
        let shared = &self.0.shared;
        // In this order: the status shows entries as spilled before they leave memory.
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
        let reader = self.0.reader.as_ref();
        reader.map_err(|error| LedgerError::Open(error.clone()))
    }

    fn unknown(&self, reason: &str) -> LedgerError {
        LedgerError::Unknown {
            location: Arc::clone(&self.0.shared.location),
            reason: reason.into(),
        }
    }
}
