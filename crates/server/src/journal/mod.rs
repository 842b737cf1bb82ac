//! The journal of denials: which requests were denied, when, by which rule and why.
//!
//! * The engine sends a denial into a bounded queue, without waiting: see [`tollgate::DenialReader`].
//! * One thread takes denials from the queue. It adds them to the `ring` in memory and, if the config names a
//!   directory, to the `segments` on disk. Both are bounded.
//! * [`Journal::find`] finds denials again, and [`Journal::follow`] returns new ones.
//!
//! `record` has the format, and `query` decides which records a reader wants. No record has a raw subject, only
//! hashes. Each instance has a journal of its own.

mod confirmed;
mod query;
mod record;
mod ring;
mod segments;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tollgate::{
    Clock, DenialReader, DeniedRequest, Engine, LimitSource, MonotonicClock, RuleSet, Span,
    SystemClock, Time,
};
use tollgate_config::{Denials, RequestSource};
use utoipa::ToSchema;

use self::confirmed::Confirmed;
pub use self::query::{Query, QueryError};
pub use self::record::RecordedDenial;
use self::record::encode;
use self::ring::Ring;
pub use self::segments::JournalError;
use self::segments::{Bounds, MAX_STEP, Segments};
use crate::outbound::Seldom;

/// How many denials may wait for the thread.
const QUEUE: usize = 8192;

/// How long the thread sleeps if there is no denial. No denial wakes it: that would cost the request a system
/// call.
const SLEEP: Duration = Duration::from_millis(25);

/// How long a query waits for the thread to record the denials that came before the query.
const CATCH_UP: Duration = Duration::from_millis(500);

/// How often old segments are removed while no denial comes.
const REMOVE_EVERY: Span = Span::from_secs(10);

/// The most concurrent queries, because each may read all files, one segment in memory at a time.
const SEARCHES: usize = 2;

/// The most readers that wait for the next denial. Further readers are answered at once.
const MAX_WAITING: usize = 64;

/// How often a waiting reader looks whether the server stops.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The count of [`Shared::empty`] after the thread has ended.
const STOPPED: u64 = u64::MAX;

/// The most descriptions of numbers that the thread remembers.
const MAX_SOURCES: usize = 1024;

/// A journal of denials.
pub struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// To wake the thread.
    writer: Thread,
    searches: Semaphore,
    waiting: Semaphore,
}

/// The state that the thread and readers share.
struct Shared {
    ring: Mutex<Ring>,
    directory: Option<PathBuf>,
    max_age: Span,
    /// The sequence number of the next record.
    next: watch::Sender<u64>,
    /// How often the thread has found the queue empty.
    empty: watch::Sender<u64>,
    stopping: AtomicBool,
    clock: SystemClock,
    counts: Counts,
    /// How many denials found the queue full.
    queue_full: Arc<AtomicU64>,
}

#[derive(Default)]
struct Counts {
    written: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    size: AtomicU64,
}

/// The journal in numbers, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalCounts {
    /// How many denials were recorded.
    pub written: u64,
    /// How many denials were lost because the queue was full.
    pub queue_full: u64,
    /// How many denials are not in a file because the system could not write them.
    pub disk_failed: u64,
    /// How many bytes were written to files.
    pub written_bytes: u64,
    /// How large the files are; `None` if the journal is in memory only.
    pub size: Option<u64>,
}

/// Recorded denials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = DenialsBody)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FoundDenials {
    /// The denials: the newest first, or with `after` the oldest first.
    pub denials: Vec<RecordedDenial>,
    /// Whether there may be more denials.
    pub is_cut: bool,
    /// To follow the journal, send this as `after`.
    pub next: u64,
    /// With `after`: how many denials were forgotten before they were read. Read more often to miss none.
    pub missed: u64,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("directory", &self.shared.directory)
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Starts the journal that the config of `engine` describes. An engine has at most one journal.
    ///
    /// # Errors
    /// If the directory cannot be used, or the thread cannot be started.
    pub fn start(engine: &Engine) -> Result<Journal, JournalError> {
        let denials = engine.active().config().telemetry.denials.clone();
        let reader = engine.read_denials(QUEUE).ok_or_else(|| {
            JournalError::Thread(io::Error::other("the engine has a journal already"))
        })?;
        Journal::of(&denials, reader)
    }

    fn of(denials: &Denials, reader: DenialReader) -> Result<Journal, JournalError> {
        let bounds = Bounds {
            max_size: denials.max_size,
            max_age: denials.max_age,
        };
        let directory = denials.directory.as_deref();
        let segments = directory.map(|it| Segments::open(it, bounds)).transpose()?;
        let next = segments.as_ref().map_or(1, Segments::next);
        let counts = Counts::default();
        let size = segments.as_ref().map_or(0, Segments::size);
        counts.size.store(size, Ordering::Relaxed);
        let shared = Arc::new(Shared {
            ring: Mutex::new(Ring::new(denials.recent, next)),
            directory: denials.directory.clone(),
            max_age: denials.max_age,
            next: watch::Sender::new(next),
            empty: watch::Sender::new(0),
            stopping: AtomicBool::new(false),
            clock: SystemClock::new(),
            counts,
            queue_full: reader.dropped(),
        });
        let writer = Writer {
            shared: Arc::clone(&shared),
            reader,
            segments,
            sources: Sources::default(),
            seldom: Seldom::default(),
        };
        let thread = std::thread::Builder::new().name("denials".to_owned());
        let thread = thread.spawn(move || writer.run());
        let thread = thread.map_err(JournalError::Thread)?;
        Ok(Journal {
            shared,
            writer: thread.thread().clone(),
            thread: Mutex::new(Some(thread)),
            searches: Semaphore::new(SEARCHES),
            waiting: Semaphore::new(MAX_WAITING),
        })
    }

    /// Records the denials that wait in the queue, and ends. Call this after the last request.
    pub async fn close(&self) {
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        self.shared.stopping.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        let joined = tokio::task::spawn_blocking(move || thread.join().is_ok());
        if !joined.await.unwrap_or(false) {
            tracing::error!("the thread of the journal of denials has panicked");
        }
    }

    /// Returns the journal in numbers.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        let counts = &self.shared.counts;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        JournalCounts {
            written: count(&counts.written),
            queue_full: count(&self.shared.queue_full),
            disk_failed: count(&counts.failed),
            written_bytes: count(&counts.bytes),
            size: self.shared.directory.as_ref().map(|_| count(&counts.size)),
        }
    }

    /// Returns the denials that `query` wants, the newest first: those in memory, and then those in files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub async fn find(&self, mut query: Query) -> io::Result<FoundDenials> {
        self.catch_up().await;
        // The semaphore is never closed.
        let _permit = self.searches.acquire().await;
        let shared = Arc::clone(&self.shared);
        let now = shared.clock.now();
        // A file may still have denials that are too old.
        let oldest = Time::from_micros(now.as_micros().saturating_sub(shared.max_age.as_micros()));
        if shared.directory.is_some() {
            query.since = Some(query.since.map_or(oldest, |since| since.max(oldest)));
        }
        let searching = tokio::task::spawn_blocking(move || shared.find(&query));
        searching.await.map_err(io::Error::other)?
    }

    /// Waits until the thread has recorded the denials that are in the queue now.
    async fn catch_up(&self) {
        let mut empty = self.shared.empty.subscribe();
        let seen = *empty.borrow();
        self.writer.unpark();
        // The thread may have looked at the queue just before a denial came, so it has to look twice. In a
        // flood, the queue may never be empty.
        let looked = empty.wait_for(|count| *count > seen + 1 || *count == STOPPED);
        let _ = tokio::time::timeout(CATCH_UP, looked).await;
    }

    /// Returns the denials in memory from `after` of the query on, the oldest first. If there is none, waits for
    /// one as long as the query says, or until `is_stopping`.
    pub async fn follow(&self, query: &Query, is_stopping: impl Fn() -> bool) -> FoundDenials {
        let permit = self.waiting.try_acquire().ok();
        let wait = permit.as_ref().map_or(Span::ZERO, |_| query.wait);
        let until = tokio::time::Instant::now() + Duration::from(wait);
        let mut changes = self.shared.next.subscribe();
        let mut from = query.after.unwrap_or(0);
        let mut missed = 0;
        loop {
            changes.mark_unchanged();
            let found = self.shared.ring.lock().follow(query, from, query.limit);
            missed += found.missed;
            from = found.next;
            let now = tokio::time::Instant::now();
            if !found.denials.is_empty() || now >= until || is_stopping() {
                return FoundDenials {
                    is_cut: found.denials.len() == query.limit,
                    denials: found.denials,
                    next: found.next,
                    missed,
                };
            }
            let look = (now + LOOK_EVERY).min(until);
            let _ = tokio::time::timeout_at(look, changes.changed()).await;
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
        }
    }
}

impl Shared {
    fn find(&self, query: &Query) -> io::Result<FoundDenials> {
        let (mut denials, oldest, next) = {
            let ring = self.ring.lock();
            (ring.find(query, query.limit), ring.oldest(), ring.next())
        };
        if let Some(directory) = &self.directory
            && denials.len() < query.limit
        {
            let rest = query.limit - denials.len();
            denials.extend(segments::find(directory, query, oldest, rest)?);
        }
        Ok(FoundDenials {
            is_cut: denials.len() == query.limit,
            denials,
            next,
            missed: 0,
        })
    }
}

/// The thread that records denials.
struct Writer {
    shared: Arc<Shared>,
    reader: DenialReader,
    segments: Option<Segments>,
    sources: Sources,
    seldom: Seldom,
}

/// Where the numbers of recent denials came from. In a flood, most denials have the same source.
#[derive(Default)]
struct Sources {
    /// The rules that the sources belong to.
    rules: Option<Arc<RuleSet>>,
    known: HashMap<SourceKey, Option<LimitSource>>,
}

/// A rule, a tenant, the plan that the request named, and how it brought numbers of its own.
type SourceKey = (
    Box<str>,
    Option<Box<str>>,
    Option<u16>,
    Option<RequestSource>,
);

impl Sources {
    fn of(&mut self, denial: &DeniedRequest) -> Option<Cow<'_, LimitSource>> {
        if denial.has_own_overrides() {
            return denial.source().map(Cow::Owned);
        }
        let rules = denial.rule_set();
        let is_same = |known: &Arc<RuleSet>| Arc::ptr_eq(known, rules);
        if !self.rules.as_ref().is_some_and(is_same) {
            self.rules = Some(Arc::clone(rules));
            self.known.clear();
        }
        if self.known.len() >= MAX_SOURCES {
            self.known.clear();
        }
        let tenant = denial.tenant().map(Into::into);
        let plan = denial.named_plan();
        let key = (denial.rule().into(), tenant, plan, denial.brought());
        let source = self.known.entry(key);
        let source = source.or_insert_with(|| denial.source());
        source.as_ref().map(Cow::Borrowed)
    }
}

impl Writer {
    fn run(mut self) {
        let mut records = Vec::with_capacity(MAX_STEP + record::MAX_RECORD);
        let elapsed = MonotonicClock::new();
        let mut confirmed = Confirmed::default();
        let mut removed_at = elapsed.now();
        loop {
            let is_stopping = self.shared.stopping.load(Ordering::Relaxed);
            let count = self.take(&mut records);
            let now = self.shared.clock.now();
            if count > 0 {
                self.write(&records, count, now);
                continue;
            }
            if is_stopping {
                self.shared.empty.send_replace(STOPPED);
                return;
            }
            self.shared.empty.send_modify(|count| *count += 1);
            if elapsed.now().since(removed_at) >= REMOVE_EVERY {
                removed_at = elapsed.now();
                let now = confirmed.time(now, removed_at);
                let removed = self.segments.as_mut().map(|it| it.remove_old(now));
                if let Some(Err(error)) = removed {
                    self.complain(&error);
                }
                self.show_size();
            }
            std::thread::park_timeout(SLEEP);
        }
    }

    /// Takes denials from the queue, up to the size of a step. Returns how many.
    fn take(&mut self, records: &mut Vec<u8>) -> u64 {
        records.clear();
        let mut seq = *self.shared.next.borrow();
        let first = seq;
        while records.len() < MAX_STEP
            && let Some(denial) = self.reader.next()
        {
            let source = self.sources.of(&denial);
            encode(&denial, source.as_deref(), seq, records);
            seq += 1;
        }
        seq - first
    }

    fn write(&mut self, records: &[u8], count: u64, now: Time) {
        let counts = &self.shared.counts;
        let written = self
            .segments
            .as_mut()
            .map(|it| it.append(records, count, now));
        match written {
            Some(Ok(())) => {
                counts
                    .bytes
                    .fetch_add(records.len() as u64, Ordering::Relaxed);
            }
            Some(Err(error)) => {
                counts.failed.fetch_add(count, Ordering::Relaxed);
                self.complain(&error);
            }
            None => {}
        }
        {
            let mut ring = self.shared.ring.lock();
            let mut rest = records;
            while let Some(head) = record::head(rest) {
                let (record, more) = rest.split_at(head.length);
                ring.push(record);
                rest = more;
            }
        }
        self.shared
            .counts
            .written
            .fetch_add(count, Ordering::Relaxed);
        self.shared.next.send_modify(|next| *next += count);
        self.show_size();
    }

    fn show_size(&self) {
        if let Some(segments) = &self.segments {
            let size = &self.shared.counts.size;
            size.store(segments.size(), Ordering::Relaxed);
        }
    }

    fn complain(&self, error: &io::Error) {
        if let Some(others) = self.seldom.due() {
            let directory = self.shared.directory.as_deref();
            let directory = directory.map(|it| it.display().to_string());
            tracing::error!(
                %error,
                others,
                directory,
                "the journal of denials cannot be written; denials are kept in memory only"
            );
        }
    }
}
