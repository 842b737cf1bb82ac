//! The door to the books.

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
use crate::status::{Status, Told};
use crate::writer::{CLOSE_LIMIT, Shared, Writer};

/// How long a flush waits at most: a spill of an hour takes a while.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);

/// The books. Cheap to clone; the last clone that is dropped closes them.
///
/// ```
/// # let runtime = tokio::runtime::Runtime::new()?;
/// # runtime.block_on(async {
/// use tollgate_core::Time;
/// use tollgate_ledger::{Database, EntryId, Ledger, Options, Period, UseOf};
///
/// let directory = tempfile::tempdir()?;
/// let file = directory.path().join("books.db");
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
    /// Nobody can ask a database whose address is not right.
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
    /// Opens the books, makes their tables if need be, and starts the task that writes them, on the current
    /// runtime of tokio. What an earlier process has left in a spill file is written first.
    ///
    /// # Errors
    /// If the database cannot be reached or is not right.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn open(options: Options) -> Result<Ledger, OpenError> {
        let options = Arc::new(options);
        let mut session = Session::new(Arc::clone(&options));
        session.open().await?;
        let ledger = Ledger::with(options, session);
        ledger.0.shared.told.written(0);
        Ok(ledger)
    }

    /// The same without waiting for the database: it is tried again and again, and entries are spilled
    /// meanwhile. What is wrong is told by [`Ledger::status`].
    ///
    /// # Panics
    /// Outside of a runtime.
    #[must_use]
    pub fn start(options: Options) -> Ledger {
        let options = Arc::new(options);
        let session = Session::new(Arc::clone(&options));
        Ledger::with(options, session)
    }

    /// Looks whether the books could be opened, and says which version their tables have; `None` if there
    /// are none yet. Makes and changes nothing.
    ///
    /// # Errors
    /// If the database cannot be reached or is not right.
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
            told: Told::default(),
            wake: Notify::new(),
            is_closing: watch::Sender::new(false),
            has_ended: watch::Sender::new(false),
        });
        tokio::spawn(Writer::new(Arc::clone(&shared), session).run());
        Ledger(Arc::new(Handle { shared, reader }))
    }

    /// Where the books are.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.0.shared.options.database
    }

    /// How long an entry waits for others to be written together with it.
    #[must_use]
    pub fn flush_interval(&self) -> Duration {
        self.0.shared.options.flush_interval
    }

    /// Takes an entry, to be written within the flush interval; never waits. A use that agrees with one that
    /// waits in everything but id, time, amount and count, and has no idempotency key, is added to it.
    ///
    /// # Errors
    /// If as many wait as may, or the entry cannot be kept. It was not taken then.
    pub fn record(&self, entry: Entry) -> Result<(), Full> {
        let taken = self.0.shared.pending.lock().record(entry);
        self.due(taken?);
        Ok(())
    }

    /// The same for a use: nothing is allocated, and no id is made, if it is added to one that waits.
    ///
    /// # Errors
    /// As above.
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
        self.due(taken?);
        Ok(())
    }

    /// Writes entries, all or none; they are in the database when this returns. Writers that wait at the
    /// same time share a transaction. Once this was called, the entries are written even if nobody waits.
    ///
    /// # Errors
    /// If they cannot be; unless the error [is unknown](LedgerError::is_unknown), none was written, and none
    /// will be.
    pub async fn write(&self, entries: Vec<Entry>) -> Result<(), LedgerError> {
        self.write_new(entries).await.map(|_| ())
    }

    /// The same, and says whether all of them are new: of several who write the same entry, in whichever
    /// process, one is told so.
    ///
    /// # Errors
    /// As above.
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
        let taken = self.0.shared.pending.lock().together(entries, reply);
        taken.map_err(|full| match full {
            Full::Unfit(error) => LedgerError::Unfit(error),
            full => LedgerError::Full(full),
        })?;
        self.0.shared.wake.notify_one();
        // The transaction before, connecting, and its own.
        let limit = options.write_timeout * 2 + options.connect_timeout;
        match timeout(limit, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.unknown("its writer has ended")),
            Err(_) => Err(self.unknown("too many writes are before this one")),
        }
    }

    /// Waits until everything that was recorded before is in the database.
    ///
    /// # Errors
    /// If the database does not take it, or not in time. It is kept.
    pub async fn flush(&self) -> Result<(), LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.0.shared.pending.lock().mark(reply);
        self.0.shared.wake.notify_one();
        match timeout(FLUSH_LIMIT, answer).await {
            Ok(Ok(result)) => result.map(|_| ()),
            Ok(Err(_)) => Err(LedgerError::Full(Full::Closed)),
            Err(_) => Err(LedgerError::Behind {
                location: Arc::clone(&self.0.shared.location),
            }),
        }
    }

    /// What the books say of a counter in the period that starts then, with all that this process has
    /// recorded. What other processes have recorded is there after their flush interval.
    ///
    /// # Errors
    /// If the database does not take what is pending, or does not answer.
    pub async fn balance(&self, key: u128, period_start: Time) -> Result<Balance, LedgerError> {
        self.catch_up().await?;
        self.reader()?.balance(key, period_start).await
    }

    /// What the books say of a counter in its latest periods, the last first.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn history(&self, key: u128, most: usize) -> Result<Vec<PeriodBalance>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.history(key, most).await
    }

    /// What the entry of that id is about, if there is one in the books.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn gist(&self, id: EntryId) -> Result<Option<EntrySummary>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.gist(id).await
    }

    /// The reservations of a counter that hold until after `since`, open or ended, the latest first; page by
    /// page, each after the last of the one before, by its time and id. What this process has recorded is
    /// among them; so in all questions below.
    ///
    /// # Errors
    /// As [`Ledger::balance`]; so in all questions below.
    pub async fn holds_of(
        &self,
        key: u128,
        since: Time,
        after: Option<(Time, u128)>,
        most: usize,
    ) -> Result<Vec<HoldRow>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.holds_of(key, since, after, most).await
    }

    /// How much of a counter, in periods that end after `after`, is set aside by reservations that have not
    /// ended.
    ///
    /// # Errors
    /// As above.
    pub async fn reserved(&self, key: u128, after: Time) -> Result<i64, LedgerError> {
        self.catch_up().await?;
        self.reader()?.reserved(key, after).await
    }

    /// One reservation, a row for each counter.
    ///
    /// # Errors
    /// As above.
    pub async fn hold(&self, id: u128) -> Result<Vec<HoldRow>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.hold(id).await
    }

    /// Reservations that have not ended and held until before `before`, the oldest first.
    ///
    /// # Errors
    /// As above.
    pub async fn overdue(
        &self,
        namespace: &str,
        before: Time,
        most: usize,
    ) -> Result<Vec<HoldRow>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.overdue(namespace, before, most).await
    }

    /// What was used, by tenant, period, rule, action and counter, in this order.
    ///
    /// # Errors
    /// As above.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.usage(query).await
    }

    /// All counters that have a period at `at`, page by page.
    ///
    /// # Errors
    /// As above.
    pub async fn balances(
        &self,
        namespace: &str,
        at: Time,
        after: Option<BalanceCursor>,
        most: usize,
    ) -> Result<Vec<BalanceRow>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.balances(namespace, at, after, most).await
    }

    /// The entries themselves with their numbers, in the order in which they were written, page by page.
    ///
    /// # Errors
    /// As above.
    pub async fn entries(&self, query: &EntryQuery) -> Result<Vec<(u64, Entry)>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.entries(query).await
    }

    /// Takes a note of who changed what, to be written within the flush interval; never waits.
    ///
    /// # Errors
    /// As [`Ledger::record`].
    pub fn audit(&self, note: Note) -> Result<(), Full> {
        let taken = self.0.shared.pending.lock().note(note);
        self.due(taken?);
        Ok(())
    }

    /// Who changed what, the latest first, by all processes that share the database.
    ///
    /// # Errors
    /// As [`Ledger::balance`].
    pub async fn trail(&self, query: &TrailQuery) -> Result<Vec<Note>, LedgerError> {
        self.catch_up().await?;
        self.reader()?.trail(query).await
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> Status {
        let pending = self.0.shared.pending.lock();
        let (queued, oldest) = (pending.queued(), pending.oldest());
        drop(pending);
        let status = self.0.shared.told.status();
        Status {
            queued,
            oldest: status.oldest.or(oldest),
            ..status
        }
    }

    /// Takes nothing more, writes what waits, and spills what the database does not take in time. What neither
    /// takes is tried again for ten seconds.
    pub async fn close(&self) {
        let shared = &self.0.shared;
        shared.pending.lock().close();
        shared.is_closing.send_replace(true);
        shared.wake.notify_one();
        let options = &shared.options;
        let limit = CLOSE_LIMIT + options.write_timeout * 2 + options.connect_timeout;
        let mut has_ended = shared.has_ended.subscribe();
        // Who does not end in time is left.
        let _ = timeout(limit, has_ended.wait_for(|ended| *ended)).await;
        if let Ok(reader) = &self.0.reader {
            let _ = timeout(options.connect_timeout, reader.readers.close()).await;
        }
    }

    fn due(&self, due: IsDue) {
        if due.0 {
            self.0.shared.wake.notify_one();
        }
    }

    /// Flushes, if there is anything to flush.
    async fn catch_up(&self) -> Result<(), LedgerError> {
        let shared = &self.0.shared;
        // In this order: entries are told to be spilled before they leave the memory.
        let queued = shared.pending.lock().queued();
        if queued == 0 && shared.told.is_unspilled() && shared.told.is_ready().is_ok() {
            return Ok(());
        }
        self.flush().await
    }

    fn reader(&self) -> Result<&Reader, LedgerError> {
        if let Err(error) = self.0.shared.told.is_ready() {
            return Err(error.unwrap_or_else(|| LedgerError::Unavailable {
                location: Arc::clone(&self.0.shared.location),
                reason: "it was not reached yet".into(),
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
