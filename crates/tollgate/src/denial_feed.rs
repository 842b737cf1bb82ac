//! The feed of denials: a bounded queue from the path of a request to one reader, such as a journal.
//!
//! A request that is denied puts a [`DeniedRequest`] into the queue without waiting and without allocating. If the
//! queue is full, the denial is dropped and counted.
//!
//! A rule with `log_denials: all` sends every denial. Other rules send one denial of a subject in a second, and
//! up to a number of denials in a second altogether. So a client that is denied all the time does not push the
//! denials of others out of a journal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use tollgate_config::{LogDenials, Rule, RuleSet};
use tollgate_core::{Span, Time};

use crate::denial::DeniedRequest;
use crate::pace::Pace;

/// Sends denials to a reader, if there is one.
pub(crate) struct DenialFeed {
    queue: OnceLock<Queue>,
    /// Bounds the denials that no rule has made.
    without_rule: Pace,
    recent: RecentSubjects,
}

/// The subjects whose denials were sent in the current second, as far as they are known: each entry has a second
/// and a part of a hash. If two subjects fall into the same entry, each may be sent more than once.
struct RecentSubjects(Box<[AtomicU64]>);

/// How many subjects of a second are known at most.
const RECENT: usize = 4096;

struct Queue {
    sender: SyncSender<DeniedRequest>,
    dropped: Arc<AtomicU64>,
}

/// The reader's end of the feed.
#[derive(Debug)]
pub struct DenialReader {
    receiver: Receiver<DeniedRequest>,
    dropped: Arc<AtomicU64>,
}

/// How many denials each rule has sent in the current second. A reload keeps these counts.
pub(crate) struct DenialPaces(Box<[Arc<Pace>]>);

impl DenialFeed {
    /// Makes a feed without a reader. It sends up to `per_second` denials that no rule has made.
    pub(crate) fn new(per_second: u32) -> DenialFeed {
        DenialFeed {
            queue: OnceLock::new(),
            without_rule: Pace::new(per_second),
            recent: RecentSubjects((0..RECENT).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    /// Adds the reader, with a queue of `capacity` denials. `None` if there is a reader already.
    pub(crate) fn open(&self, capacity: usize) -> Option<DenialReader> {
        let (sender, receiver) = sync_channel(capacity.max(1));
        let dropped: Arc<AtomicU64> = Arc::default();
        let queue = Queue {
            sender,
            dropped: Arc::clone(&dropped),
        };
        self.queue.set(queue).ok()?;
        Some(DenialReader { receiver, dropped })
    }

    /// Returns whether there is a reader.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.queue.get().is_some()
    }

    /// Returns the pace of denials that no rule has made.
    pub(crate) fn without_rule(&self) -> &Pace {
        &self.without_rule
    }

    /// Returns whether to send a denial of `subject` now. If not, counts the denial as suppressed.
    pub(crate) fn wants(&self, now: Time, pace: &Pace, subject: u128) -> bool {
        if !self.is_open() || pace.is_none() {
            return false;
        }
        let (entry, value) = self.recent.entry(subject, now);
        if entry.load(Ordering::Relaxed) == value {
            pace.suppress();
            return false;
        }
        let is_wanted = pace.admits(now);
        if is_wanted {
            entry.store(value, Ordering::Relaxed);
        }
        is_wanted
    }

    /// Sends a denial. Drops and counts it if the queue is full.
    pub(crate) fn send(&self, mut denial: DeniedRequest, pace: &Pace) {
        let Some(queue) = self.queue.get() else {
            return;
        };
        denial.suppressed = pace.take_suppressed().unwrap_or(0);
        if queue.sender.try_send(denial).is_err() {
            queue.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl RecentSubjects {
    /// Returns the entry of a subject, and its value in this second.
    #[allow(clippy::cast_possible_truncation)] // Parts of the hash are enough.
    fn entry(&self, subject: u128, now: Time) -> (&AtomicU64, u64) {
        let second = now.as_micros() / Span::SECOND.as_micros();
        let part = u64::from((subject >> 64) as u32);
        (&self.0[subject as usize % RECENT], second << 32 | part)
    }
}

impl DenialReader {
    /// Returns the next denial; `None` if there is none at the moment.
    #[must_use]
    pub fn next(&self) -> Option<DeniedRequest> {
        self.receiver.try_recv().ok()
    }

    /// Returns the count of denials that found the queue full. The count continues to grow.
    #[must_use]
    pub fn dropped(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped)
    }
}

impl DenialPaces {
    pub(crate) fn new(rules: &RuleSet, per_second: u32) -> DenialPaces {
        let paces = rules.rules().iter();
        DenialPaces(paces.map(|_| Arc::new(Pace::new(per_second))).collect())
    }

    /// Makes the paces of the next config, with its bound. For each rule of it, `places` has the index of that rule
    /// in the current config, or `None` if the rule is new.
    pub(crate) fn followed_by(
        &self,
        places: impl Iterator<Item = Option<usize>>,
        per_second: u32,
    ) -> DenialPaces {
        let paces = places.map(|place| match place.and_then(|place| self.0.get(place)) {
            Some(known) => {
                known.set(per_second);
                Arc::clone(known)
            }
            None => Arc::new(Pace::new(per_second)),
        });
        DenialPaces(paces.collect())
    }

    /// Returns the pace of the rule at `index`.
    pub(crate) fn of(&self, index: usize) -> Option<&Pace> {
        self.0.get(index).map(|pace| &**pace)
    }
}

/// Returns whether every denial of a rule is logged and recorded.
pub(crate) fn logs_all(rule: &Rule) -> bool {
    rule.log_denials() == LogDenials::All
}
