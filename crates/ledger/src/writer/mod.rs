//! The task that brings entries into the database, or into the spill file while it cannot.
//!
//! It takes what is pending twice in a flush interval, or sooner if a batch is full or somebody waits, and
//! writes it batch by batch. The order is that of recording: what is in the spill file first, then the
//! backlog in memory, then what is pending.
//!
//! * What was recorded is on a disk within a flush interval, in the database or in the spill file: where the
//!   database needs longer, everything is appended to the file, what is on its way included. If that arrives
//!   after all, it is passed over there.
//! * After a failure it rests, a little longer each time, and spills meanwhile. What it tries then is half
//!   as much each time, and twice as much after each success: a database that is too slow for a whole batch
//!   still gets on.
//! * Whoever waits for a strict write is told at once that it failed, and that write is not tried again.
//!   Strict writes do not wait behind a spill: they are the only ones that overtake.
//! * What neither takes stays in memory, which is bounded: then nothing more is accepted.
//! * When the ledger closes, it goes on until nothing is in memory, for a while. What is in the spill file then
//!   is for the next start.

mod saving;

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
use crate::entry::{Entry, EntryId};
use crate::error::{LedgerError, SpillError};
use crate::note::Note;
use crate::options::Options;
use crate::pending::{Pending, Queued, Reply};
use crate::spill::{Lines, Read, Spill};
use crate::status::Told;

/// The first rest after a failure; each is twice as long as the one before.
const FIRST_REST: Duration = Duration::from_millis(50);
/// The longest: a database that is back is found within this time.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The fewest entries that are tried at once after failures.
const LEAST_BATCH: usize = 16;
/// How long closing goes on while something is in memory that neither the database nor the spill file takes.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// How long a transaction that is on its way then may take before everything is spilled.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
/// How often it is looked for what others have left in spill files.
const ADOPT_EVERY: Duration = Duration::from_secs(5);

/// What the writer shares with those who record.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Arc<Options>,
    pub(crate) location: Arc<str>,
    pub(crate) pending: Mutex<Pending>,
    pub(crate) told: Told,
    /// Somebody waits, or a batch is full.
    pub(crate) wake: Notify,
    pub(crate) is_closing: watch::Sender<bool>,
    /// Whether the writer has ended.
    pub(crate) has_ended: watch::Sender<bool>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    /// Elsewhere while it writes.
    session: Option<Session>,
    spill: Arc<Mutex<Spill>>,
    /// Taken, and neither written nor spilled.
    backlog: VecDeque<Queued>,
    /// Who waits until so many entries of the spill are in the database.
    marks: VecDeque<(u64, Reply)>,
    /// When what is pending was last taken.
    taken_at: Instant,
    /// When what was taken has to be on a disk.
    save_by: Instant,
    rest: Option<Rest>,
    /// How many entries are tried at once.
    batch: usize,
    close_by: Option<Instant>,
    /// When it is looked for what others have left.
    adopt_at: Instant,
    /// Whether strict writes have just overtaken the spill.
    has_overtaken: bool,
}

/// After a failure.
#[derive(Debug)]
struct Rest {
    until: Instant,
    length: Duration,
    error: LedgerError,
}

/// What one transaction writes: items of the backlog, or entries of the spill.
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

    /// The entries that are spilled if it takes long: nobody waits for them, and they are not there yet.
    fn lines(&self) -> Lines {
        let mut lines = Lines::default();
        for item in &self.items {
            match item {
                Queued::One(entry) => lines.push(entry),
                Queued::Note(note) => lines.push_note(note),
                Queued::BatchDecision(..) | Queued::Mark(_) => {}
            }
        }
        lines
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
            marks: VecDeque::new(),
            taken_at: Instant::now(),
            save_by: Instant::now(),
            rest: None,
            close_by: None,
            adopt_at: Instant::now() + ADOPT_EVERY,
            has_overtaken: false,
            shared,
        }
    }

    /// Works until the ledger is closed.
    pub(crate) async fn run(mut self) {
        self.with_spill(Spill::adopt).await;
        loop {
            self.notice_closing();
            self.turn().await;
            let is_done = self.backlog.is_empty() || self.is_late();
            if self.close_by.is_some() && is_done {
                self.end().await;
                return;
            }
            self.wait().await;
        }
    }

    /// Until there is something to do.
    async fn wait(&self) {
        // The other half of the interval is for writing.
        let due = self.taken_at + self.shared.options.flush_interval / 2;
        let rested = self.rest.as_ref().map(|rest| rest.until);
        let until = rested.map_or(due, |it| it.min(due));
        select! {
            () = self.shared.wake.notified() => {}
            () = sleep_until(until) => {}
        }
    }

    /// Writes what there is, or saves it.
    async fn turn(&mut self) {
        self.take();
        let resting = self.rest.as_ref().filter(|it| it.until > Instant::now());
        if let Some(error) = resting.map(|rest| rest.error.clone()) {
            self.refuse(&error);
            self.save(None).await;
            return;
        }
        self.adopt().await;
        loop {
            self.notice_closing();
            if self.close_by.is_some() && !self.spill.lock().is_empty() {
                // Behind the spill is the place of what is not strict, and usually there is room.
                self.save(None).await;
            }
            let batch = match self.next().await {
                Ok(Some(batch)) => batch,
                Ok(None) if self.is_connected() || self.close_by.is_some() => break,
                // Nothing to write: to connect is worth something.
                Ok(None) => Batch::default(),
                Err(error) => {
                    self.fail(Batch::default(), false, self.unavailable(&error))
                        .await;
                    break;
                }
            };
            if !self.attempt(batch).await || self.is_late() {
                break;
            }
            if !self.spill.lock().is_empty() {
                // That may take long, and strict writes do not wait for it.
                self.take();
            }
        }
        self.tell(None);
    }

    /// Closing is noticed between any two transactions, and during one: from then on, time is short.
    fn notice_closing(&mut self) {
        if self.close_by.is_none() && *self.shared.is_closing.borrow() {
            // All of it: nothing more is accepted.
            self.take();
            let now = Instant::now();
            self.close_by = Some(now + CLOSE_LIMIT);
            self.save_by = self.save_by.min(now + CLOSE_PATIENCE);
        }
    }

    /// Takes over what processes have left that have ended since the start, when there is nothing else to drain.
    async fn adopt(&mut self) {
        let is_time = self.adopt_at <= Instant::now() && self.is_connected();
        if is_time && self.spill.lock().is_empty() {
            self.with_spill(Spill::adopt).await;
            self.adopt_at = Instant::now() + ADOPT_EVERY;
        }
    }

    fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_open)
    }

    /// Whether closing has taken long enough.
    fn is_late(&self) -> bool {
        self.close_by.is_some_and(|by| by <= Instant::now())
    }

    fn take(&mut self) {
        if self.backlog.is_empty() {
            // All that comes now was recorded since the last time.
            self.save_by = self.taken_at + self.shared.options.flush_interval;
        }
        self.taken_at = Instant::now();
        let taken = self.shared.pending.lock().take();
        self.backlog.extend(taken.into_iter().map(Queued::from));
    }

    /// What is to be written next.
    async fn next(&mut self) -> Result<Option<Batch>, SpillError> {
        let most = self.batch;
        let mut batch = Batch::default();
        let is_behind = !self.spill.lock().is_empty();
        // By turns, so that neither waits for the end of the other.
        let is_turn_of_spill = is_behind && self.has_overtaken && self.close_by.is_none();
        self.has_overtaken = false;
        let mut entries = 0;
        let mut others = VecDeque::new();
        while entries < most
            && !is_turn_of_spill
            && let Some(item) = self.backlog.pop_front()
        {
            if is_behind && !matches!(item, Queued::BatchDecision(..)) {
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
        // When the ledger closes, the spill is for the next start, unless something waits behind it in memory.
        let is_left = self.close_by.is_some() && self.backlog.is_empty();
        if !is_behind || is_left {
            return Ok(None);
        }
        let read = self.with_spill(move |spill| spill.read(most)).await;
        batch.read = read.transpose()?;
        Ok(Some(batch))
    }

    /// Writes a batch. Whether it was written.
    async fn attempt(&mut self, batch: Batch) -> bool {
        self.tell(Some(&batch));
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
                    // Who closes does not wait for ever, and this may take longer.
                    () = closed(&mut closing), if self.close_by.is_none() => self.notice_closing(),
                }
            }
        };
        self.session = Some(session);
        match result {
            Ok(known) => {
                self.succeed(batch, saved, &known).await;
                true
            }
            Err(error) => {
                self.fail(batch, saved.is_some(), error).await;
                false
            }
        }
    }

    async fn succeed(&mut self, batch: Batch, saved: Option<Lines>, known: &[EntryId]) {
        let (entries, notes) = (batch.entries(), batch.notes());
        let written = entries.len() + notes.len();
        let last = entries.last().map(|it| it.at);
        let last = last.or_else(|| notes.last().map(|it| it.at));
        self.rest = None;
        self.batch = (self.batch * 2).min(self.shared.options.batch);
        if self.shared.told.written(written) {
            tracing::info!(place = %self.shared.location, "the ledger is written again");
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
        // Told before anybody is answered: who was answered sees it.
        self.tell(None);
        // Of several with the same id, the first was taken.
        let mut seen: HashSet<EntryId> = known.iter().copied().collect();
        for item in items {
            match item {
                Queued::BatchDecision(entries, reply) => {
                    let new = entries.iter().filter(|it| seen.insert(it.id)).count();
                    answer(reply, Ok(new == entries.len()));
                }
                Queued::One(entry) => {
                    seen.insert(entry.id);
                }
                Queued::Mark(reply) => answer(reply, Ok(true)),
                Queued::Note(_) => {}
            }
        }
        let drained = self.spill.lock().drained();
        while let Some((_, reply)) = self
            .marks
            .pop_front_if(|(position, _)| *position <= drained)
        {
            answer(reply, Ok(true));
        }
    }

    async fn fail(&mut self, batch: Batch, is_saved: bool, error: LedgerError) {
        if self.shared.told.failed(&error) {
            tracing::warn!(place = %self.shared.location, %error, "the ledger cannot be written; entries are kept");
        }
        let length = match &self.rest {
            Some(rest) => (rest.length * 2).min(LONGEST_REST),
            None => FIRST_REST,
        };
        let tried = batch.entries().len() + batch.notes().len();
        if tried > 0 {
            self.batch = (tried / 2).max(LEAST_BATCH).min(self.batch);
        }
        // Instances that failed together do not come back together.
        let until = Instant::now() + length.mul_f64(0.5 + fastrand::f64() / 2.0);
        for item in batch.items.into_iter().rev() {
            match item {
                Queued::One(_) | Queued::Note(_) if is_saved => {
                    self.shared.pending.lock().forget(1);
                }
                Queued::BatchDecision(entries, reply) => {
                    self.shared.pending.lock().forget(entries.len());
                    answer(reply, Err(error.clone()));
                }
                item => self.backlog.push_front(item),
            }
        }
        self.refuse(&error);
        self.rest = Some(Rest {
            until,
            length,
            error,
        });
        self.save(None).await;
    }

    /// Tells those who wait for something that was not tried.
    fn refuse(&mut self, error: &LedgerError) {
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
                Queued::BatchDecision(entries, reply) => {
                    self.shared.pending.lock().forget(entries.len());
                    answer(reply, Err(error.clone()));
                }
                Queued::Mark(reply) => answer(reply, Err(error.clone())),
                Queued::One(_) | Queued::Note(_) => kept.push_back(item),
            }
        }
        self.backlog = kept;
        for (_, reply) in self.marks.drain(..) {
            answer(reply, Err(error.clone()));
        }
    }

    /// Does something with the spill where it may block. `None` if the runtime ends.
    async fn with_spill<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Spill) -> T + Send + 'static,
    ) -> Option<T> {
        let spill = Arc::clone(&self.spill);
        spawn_blocking(move || act(&mut spill.lock())).await.ok()
    }

    /// Says how far behind the database is.
    fn tell(&self, batch: Option<&Batch>) {
        let spill = self.spill.lock();
        let items = batch.iter().flat_map(|batch| &batch.items);
        let mut items = items.chain(&self.backlog);
        let oldest = spill.oldest().or_else(|| items.find_map(Queued::at));
        let told = &self.shared.told;
        told.behind(spill.entries(), spill.bytes(), oldest);
    }

    fn unavailable(&self, error: &SpillError) -> LedgerError {
        LedgerError::Unavailable {
            location: Arc::clone(&self.shared.location),
            reason: error.to_string().into(),
        }
    }

    /// The ledger is closed: what is left goes into the spill.
    async fn end(mut self) {
        self.refuse(&LedgerError::Full(crate::error::Full::Closed));
        self.save(None).await;
        if !self.backlog.is_empty() {
            let entries = self.backlog.len();
            tracing::error!(place = %self.shared.location, entries, "entries could be neither written nor spilled, and end with this process");
        }
        if let Some(mut session) = self.session.take() {
            session.close().await;
        }
        self.shared.has_ended.send_replace(true);
    }
}

/// Until the ledger is closed.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // The sender is with us.
    let _ = closing.wait_for(|it| *it).await;
}

fn answer(reply: Reply, result: Result<bool, LedgerError>) {
    // Who does not wait any more need not be told.
    let _ = reply.send(result);
}
