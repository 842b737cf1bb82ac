//! The task that writes entries to the database, or to the spill file while the database takes none.
//!
//! The task takes the pending entries twice in a flush interval, or sooner if a batch is full or a caller
//! waits. It writes entries batch by batch, in the order of recording: first those in the spill file, then
//! the backlog in memory, then the pending entries.
//!
//! * Every entry is on disk within a flush interval, in the database or in the spill file. If the database
//!   needs longer, everything in memory is appended to the spill file, including the batch that is being
//!   written. If the database stores that batch later, its lines in the file are skipped.
//! * After a failure the writer pauses, longer each time, and spills during the pause. Each failure halves
//!   the next batch and each success doubles it, so that even a slow database makes progress.
//! * A strict write that fails is reported to its caller at once, and not tried again. Only strict writes
//!   overtake entries in the spill file.
//! * Entries that neither the database nor the spill file takes stay in memory. Memory is bounded: when it is
//!   full, the ledger accepts no more.
//! * When the ledger closes, the writer continues until its memory is empty, within a time limit. Entries in
//!   the spill file are left for the next start.

use std::collections::{HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::select;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::database::Session;
use crate::entry::{Entry, EntryId, Note};
use crate::error::{Full, LedgerError, SpillError};
use crate::options::Options;
use crate::pending::{Pending, Queued, Reply};
use crate::spill::{Lines, Read, Spill, last_at};
use crate::status::StatusReport;

/// The first pause after a failure. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause. The writer notices within this time that the database is back.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The smallest batch after failures.
const LEAST_BATCH: usize = 16;
/// How long closing may take while neither the database nor the spill file takes the entries in memory.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// When the ledger closes, how long a running transaction may take before everything is spilled.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
/// How often to look for spill files that other processes have left.
const ADOPT_EVERY: Duration = Duration::from_secs(5);

/// The state that the writer shares with the handles of the ledger.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Arc<Options>,
    pub(crate) location: Arc<str>,
    pub(crate) pending: Mutex<Pending>,
    pub(crate) report: StatusReport,
    /// Wakes the writer: a caller waits, or a batch is full.
    pub(crate) wake: Notify,
    pub(crate) is_closing: watch::Sender<bool>,
    pub(crate) has_ended: watch::Sender<bool>,
}

#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    /// `None` while a transaction uses the session.
    session: Option<Session>,
    spill: Arc<Mutex<Spill>>,
    /// Items that were taken from the queue, and are neither written nor spilled yet.
    backlog: VecDeque<Queued>,
    /// Callers that wait until the spill file is written, each with the number of spilled entries that must
    /// be in the database first.
    flushes: VecDeque<(u64, Reply)>,
    /// When pending items were last taken.
    taken_at: Instant,
    /// The deadline by which the taken items must be on disk.
    save_by: Instant,
    pause: Option<Pause>,
    /// How many entries the next transaction writes.
    batch: usize,
    close_by: Option<Instant>,
    /// When to look for spill files of other processes.
    adopt_at: Instant,
    /// Whether the last batch had strict writes that overtook the spill.
    has_overtaken: bool,
}

/// A pause after a failure.
#[derive(Debug)]
struct Pause {
    until: Instant,
    length: Duration,
    error: LedgerError,
}

/// The content of one transaction: items of the backlog, or lines of the spill.
#[derive(Debug, Default)]
struct Batch {
    items: Vec<Queued>,
    read: Option<Read>,
}

impl Batch {
    fn entries(&self) -> Vec<&Entry> {
        let spilled = self.read.iter().flat_map(|read| &read.entries);
        spilled
            .chain(self.items.iter().flat_map(Queued::entries))
            .collect()
    }

    fn notes(&self) -> Vec<&Note> {
        let spilled = self.read.iter().flat_map(|read| &read.notes);
        spilled
            .chain(self.items.iter().filter_map(Queued::note))
            .collect()
    }
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, session: Session) -> Writer {
        let options = &shared.options;
        let spill = Spill::new(options.spill_file(), options.max_spill_bytes);
        Writer {
            batch: options.batch,
            session: Some(session),
            spill: Arc::new(Mutex::new(spill)),
            backlog: VecDeque::new(),
            flushes: VecDeque::new(),
            taken_at: Instant::now(),
            save_by: Instant::now(),
            pause: None,
            close_by: None,
            adopt_at: Instant::now() + ADOPT_EVERY,
            has_overtaken: false,
            shared,
        }
    }

    /// Runs until the ledger is closed. Then the remaining entries go into the spill.
    pub(crate) async fn run(mut self) {
        self.with_spill(Spill::adopt).await;
        loop {
            self.notice_closing();
            self.turn().await;
            if self.close_by.is_some() && (self.backlog.is_empty() || self.is_late()) {
                break;
            }
            // Wait for half of the interval. The other half is for writing.
            let due = self.taken_at + self.shared.options.flush_interval / 2;
            let until = self.pause.as_ref().map_or(due, |it| it.until.min(due));
            select! {
                () = self.shared.wake.notified() => {}
                () = sleep_until(until) => {}
            }
        }
        self.fail_waiting(&LedgerError::Full(Full::Closed));
        self.save(None).await;
        if !self.backlog.is_empty() {
            let entries: usize = self.backlog.iter().map(Queued::count).sum();
            let lost = self.spill.lock().lost + entries as u64;
            self.shared.report.dropped(lost);
            tracing::error!(place = %self.shared.location, entries, "entries could be neither written nor spilled, and are lost with this process");
        }
        if let Some(mut session) = self.session.take() {
            session.close().await;
            // The session has the lock of an exclusive ledger. Drop it here, so that the lock is free before
            // `close` returns.
            drop(session);
        }
        self.shared.has_ended.send_replace(true);
    }

    /// Writes everything that waits, or spills it during a pause.
    async fn turn(&mut self) {
        self.take();
        let pausing = self.pause.as_ref().filter(|it| it.until > Instant::now());
        if let Some(error) = pausing.map(|it| it.error.clone()) {
            self.fail_waiting(&error);
            self.save(None).await;
            return;
        }
        let is_time = self.adopt_at <= Instant::now() && self.is_connected();
        if is_time && self.spill.lock().is_empty() {
            // The spill file of this process is empty, so look for files of other processes.
            self.with_spill(Spill::adopt).await;
            self.adopt_at = Instant::now() + ADOPT_EVERY;
        }
        loop {
            self.notice_closing();
            if self.close_by.is_some() && !self.spill.lock().is_empty() {
                // Spill the entries in memory, except for strict ones. They would have to wait until all
                // spilled entries are written.
                self.save(None).await;
            }
            let batch = match self.next().await {
                Ok(Some(batch)) => batch,
                Ok(None) if self.is_connected() || self.close_by.is_some() => break,
                // Nothing to write: connect, so that the next write is fast.
                Ok(None) => Batch::default(),
                Err(error) => {
                    let error = LedgerError::Unavailable {
                        location: Arc::clone(&self.shared.location),
                        reason: error.to_string().into(),
                    };
                    self.fail(Batch::default(), false, error).await;
                    break;
                }
            };
            if !self.attempt(batch).await || self.is_late() {
                break;
            }
            if !self.spill.lock().is_empty() {
                // Draining the spill may take long. Strict writes that arrive meanwhile must not wait for
                // that.
                self.take();
            }
        }
        self.report(None);
    }

    /// Starts the time limit of closing, if the ledger is being closed. Called between transactions and
    /// during them.
    fn notice_closing(&mut self) {
        if self.close_by.is_none() && *self.shared.is_closing.borrow() {
            // These are the last items: the queue accepts nothing more.
            self.take();
            let now = Instant::now();
            self.close_by = Some(now + CLOSE_LIMIT);
            self.save_by = self.save_by.min(now + CLOSE_PATIENCE);
        }
    }

    fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_open)
    }

    /// Returns whether the time limit of closing is over.
    fn is_late(&self) -> bool {
        self.close_by.is_some_and(|by| by <= Instant::now())
    }

    fn take(&mut self) {
        if self.backlog.is_empty() {
            // `taken_at` is still the time of the previous take. All pending items are newer, so this deadline is
            // early enough for each of them.
            self.save_by = self.taken_at + self.shared.options.flush_interval;
        }
        self.taken_at = Instant::now();
        let taken = self.shared.pending.lock().take();
        self.backlog.extend(taken.into_iter().map(Queued::from));
    }

    /// Returns the next batch; `None` if there is nothing to write.
    async fn next(&mut self) -> Result<Option<Batch>, SpillError> {
        let most = self.batch;
        let mut batch = Batch::default();
        let is_behind = !self.spill.lock().is_empty();
        // Spill and strict writes take turns, so that neither blocks the other.
        let is_turn_of_spill = is_behind && self.has_overtaken && self.close_by.is_none();
        self.has_overtaken = false;
        let mut entries = 0;
        let mut others = VecDeque::new();
        while entries < most
            && !is_turn_of_spill
            && let Some(item) = self.backlog.pop_front()
        {
            if is_behind && !matches!(item, Queued::Strict(..)) {
                others.push_back(item);
                continue;
            }
            entries += item.count();
            batch.items.push(item);
        }
        others.append(&mut self.backlog);
        self.backlog = others;
        if !batch.items.is_empty() {
            self.has_overtaken = is_behind;
            return Ok(Some(batch));
        }
        // A ledger that closes leaves the spill for the next start, unless entries in memory have to wait for
        // the spill.
        let is_left = self.close_by.is_some() && self.backlog.is_empty();
        if !is_behind || is_left {
            return Ok(None);
        }
        let read = self.with_spill(move |spill| spill.read(most)).await;
        batch.read = read.transpose()?;
        Ok(Some(batch))
    }

    /// Writes a batch. Returns whether that succeeded.
    async fn attempt(&mut self, batch: Batch) -> bool {
        self.report(Some(&batch));
        let Some(mut session) = self.session.take() else {
            return false;
        };
        let (entries, notes) = (batch.entries(), batch.notes());
        let mut saved = None;
        let mut closing = self.shared.is_closing.subscribe();
        let result = {
            let mut work = pin!(session.write(&entries, &notes));
            loop {
                select! {
                    biased;
                    result = &mut work => break result,
                    () = sleep_until(self.save_by) => self.save(Some((&batch, &mut saved))).await,
                    // The time limit of closing starts now, because this transaction may take longer.
                    () = closed(&mut closing), if self.close_by.is_none() => self.notice_closing(),
                }
            }
        };
        self.session = Some(session);
        let is_written = result.is_ok();
        match result {
            Ok(present) => self.succeed(batch, saved, &present).await,
            Err(error) => self.fail(batch, saved.is_some(), error).await,
        }
        is_written
    }

    async fn succeed(&mut self, batch: Batch, saved: Option<Lines>, present: &[EntryId]) {
        let (entries, notes) = (batch.entries(), batch.notes());
        let written = entries.len() + notes.len();
        let last = last_at(entries.last().copied(), notes.last().copied());
        self.pause = None;
        self.batch = (self.batch * 2).min(self.shared.options.batch);
        if self.shared.report.written(written) {
            tracing::info!(place = %self.shared.location, "the ledger works again");
        }
        let Batch { items, read } = batch;
        if let Some(read) = read {
            self.with_spill(move |spill| spill.advance(&read)).await;
        } else {
            if let Some(lines) = saved {
                self.with_spill(move |spill| spill.pass(&lines, last)).await;
            }
            self.shared.pending.lock().forget(written);
        }
        // The status is updated before callers are answered, so that they see the new status.
        self.report(None);
        // If several entries have the same id, the first one was written.
        let mut seen: HashSet<EntryId> = present.iter().copied().collect();
        for item in items {
            match item {
                Queued::Strict(entries, reply) => {
                    let new = entries.iter().filter(|it| seen.insert(it.id)).count();
                    answer(reply, Ok(new == entries.len()));
                }
                Queued::One(entry) => {
                    seen.insert(entry.id);
                }
                Queued::Flush(reply) => answer(reply, Ok(true)),
                Queued::Note(_) => {}
            }
        }
        let drained = self.spill.lock().drained;
        while let Some((_, reply)) = self
            .flushes
            .pop_front_if(|(position, _)| *position <= drained)
        {
            answer(reply, Ok(true));
        }
    }

    async fn fail(&mut self, batch: Batch, is_saved: bool, error: LedgerError) {
        if self.shared.report.failed(&error) {
            tracing::warn!(place = %self.shared.location, %error, "cannot write to the ledger; entries wait in memory or in the spill file");
        }
        let length = match &self.pause {
            Some(pause) => (pause.length * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        let tried = batch.entries().len() + batch.notes().len();
        if tried > 0 {
            self.batch = (tried / 2).max(LEAST_BATCH).min(self.batch);
        }
        // The random part keeps instances that failed together from retrying together.
        let until = Instant::now() + length.mul_f64(0.5 + fastrand::f64() / 2.0);
        for item in batch.items.into_iter().rev() {
            match item {
                Queued::One(_) | Queued::Note(_) if is_saved => {
                    self.shared.pending.lock().forget(1);
                }
                Queued::Strict(entries, reply) => {
                    self.shared.pending.lock().forget(entries.len());
                    answer(reply, Err(error.clone()));
                }
                item => self.backlog.push_front(item),
            }
        }
        self.fail_waiting(&error);
        self.pause = Some(Pause {
            until,
            length,
            error,
        });
        self.save(None).await;
    }

    /// Reports the error to callers that wait for a flush, or for a strict write that was not tried.
    fn fail_waiting(&mut self, error: &LedgerError) {
        let error = match error {
            LedgerError::Unknown { location, reason } => LedgerError::Unavailable {
                location: Arc::clone(location),
                reason: Arc::clone(reason),
            },
            error => error.clone(),
        };
        let mut kept = VecDeque::with_capacity(self.backlog.len());
        for item in self.backlog.drain(..) {
            match item {
                Queued::Strict(entries, reply) => {
                    self.shared.pending.lock().forget(entries.len());
                    answer(reply, Err(error.clone()));
                }
                Queued::Flush(reply) => answer(reply, Err(error.clone())),
                Queued::One(_) | Queued::Note(_) => kept.push_back(item),
            }
        }
        self.backlog = kept;
        for (_, reply) in self.flushes.drain(..) {
            answer(reply, Err(error.clone()));
        }
    }

    /// Spills everything in memory: first the batch that is being written, then the backlog. A batch that was
    /// spilled already is skipped.
    async fn save(&mut self, running: Option<(&Batch, &mut Option<Lines>)>) {
        self.take();
        self.save_by = Instant::now() + self.shared.options.flush_interval;
        let mut batch = None;
        let mut error = None;
        if let Some((it, saved)) = running {
            batch = Some(it);
            let mut lines = Lines::default();
            it.items.iter().for_each(|item| lines.push(item));
            if saved.is_none() && lines.entries > 0 {
                match self.append(lines).await {
                    Ok(lines) => *saved = Some(lines),
                    Err(failed) => error = Some(failed),
                }
            }
        }
        let mut strict = VecDeque::new();
        while error.is_none() && !self.backlog.is_empty() {
            error = self.save_some(&mut strict).await.err();
        }
        strict.append(&mut self.backlog);
        self.backlog = strict;
        self.report(batch);
        // If no spill file is configured, report nothing here: the error of the database is enough.
        let error = error.filter(|error| !matches!(error, SpillError::Nowhere));
        let text: Option<Arc<str>> = error.map(|error| error.to_string().into());
        if self.shared.report.spill(text.clone())
            && let Some(error) = text
        {
            tracing::error!(%error, "cannot spill entries; they stay in memory");
        }
    }

    /// Spills a batch from the front of the backlog. Strict writes are not spilled, and move to `strict`.
    async fn save_some(&mut self, strict: &mut VecDeque<Queued>) -> Result<(), SpillError> {
        let (mut lines, mut items) = (Lines::default(), Vec::new());
        while lines.entries < self.shared.options.batch
            && let Some(item) = self.backlog.pop_front()
        {
            if let Queued::Strict(..) = item {
                strict.push_back(item);
                continue;
            }
            lines.push(&item);
            items.push(item);
        }
        let entries = lines.entries;
        if entries > 0
            && let Err(error) = self.append(lines).await
        {
            for item in items.into_iter().rev() {
                self.backlog.push_front(item);
            }
            return Err(error);
        }
        // The status is updated before the entries leave memory. So it always shows them in memory, in the
        // spill, or in both.
        self.report(None);
        self.shared.pending.lock().forget(entries);
        let position = self.spill.lock().appended;
        for item in items {
            if let Queued::Flush(reply) = item {
                self.flushes.push_back((position, reply));
            }
        }
        Ok(())
    }

    async fn append(&self, lines: Lines) -> Result<Lines, SpillError> {
        let appended = self.with_spill(move |spill| spill.append(&lines).map(|()| lines));
        appended.await.unwrap_or(Err(SpillError::Nowhere))
    }

    /// Runs `work` on the spill on a thread that may block. Returns `None` if the runtime is shutting down.
    async fn with_spill<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Spill) -> T + Send + 'static,
    ) -> Option<T> {
        let spill = Arc::clone(&self.spill);
        spawn_blocking(move || work(&mut spill.lock())).await.ok()
    }

    /// Updates the status: how far the database is behind.
    fn report(&self, batch: Option<&Batch>) {
        let spill = self.spill.lock();
        let items = batch.iter().flat_map(|batch| &batch.items);
        let mut items = items.chain(&self.backlog);
        let oldest = spill.oldest().or_else(|| items.find_map(Queued::at));
        let report = &self.shared.report;
        report.behind(spill.entries(), spill.bytes(), oldest);
        report.dropped(spill.lost);
    }
}

/// Waits until the ledger is closed.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // Cannot fail: the writer owns the sender.
    let _ = closing.wait_for(|it| *it).await;
}

fn answer(reply: Reply, result: Result<bool, LedgerError>) {
    // The caller may have stopped waiting.
    let _ = reply.send(result);
}
