//! The keys that this instance decides, or may soon decide, in shards with a lock each.
//!
//! Bounds: at most [`MOST_KEYS`] keys. A key beyond this bound is decided exactly. An idle key is forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tollgate_core::{Charge, Key, Span, Time};

use super::local::Others;
use crate::stores::background::{Hashed, OwnedCharge};

/// The most keys.
pub(super) const MOST_KEYS: usize = 1 << 17;
const SHARDS: usize = 64;
const MOST_PER_SHARD: usize = MOST_KEYS / SHARDS;

/// A key. Times are of the instance's own clock, unless a name says otherwise.
#[derive(Debug)]
pub(super) struct Entry {
    /// The charge of a report; `None` until the key was asked for twice within `flush`.
    pub(super) charge: Option<Arc<OwnedCharge>>,
    pub(super) flush: Span,
    /// Units admitted here that no report has taken.
    pub(super) pending: u64,
    /// Units that the store has taken for this instance since the last report left. The level in its answer may be older.
    pub(super) noted: u64,
    /// Grows with each event that makes levels wrong that were read before it.
    pub(super) doubts: u64,
    /// Tells the entry from later entries of the same key.
    pub(super) fence: u64,
    /// Whether a report is on its way.
    pub(super) is_reporting: bool,
    /// Whether the key was asked for since the last report.
    pub(super) is_asked: bool,
    pub(super) asked_at: Time,
    /// When the last report took the pending units, by the store's clock as seen here.
    pub(super) taken_at: Time,
    /// When the next report is due.
    pub(super) due_at: Time,
    /// Until when the last level that was read may decide requests.
    pub(super) known_until: Time,
    /// What is known about the use of other instances, if the limit is a sliding window.
    pub(super) others: Option<Box<Others>>,
}

impl Entry {
    /// Returns whether this instance may decide `charge` now.
    pub(super) fn is_ready(&self, charge: &Charge<'_>, flush: Span, now: Time) -> bool {
        now < self.known_until
            && self.flush == flush
            && self
                .charge
                .as_ref()
                .is_some_and(|it| *it.limit() == *charge.limit)
    }

    /// Takes the pending units for a report, if none is on its way.
    pub(super) fn take_report(&mut self, now: Time, store_now: Time) -> Option<Report> {
        let charge = self.charge.as_ref().filter(|_| !self.is_reporting)?;
        (self.is_reporting, self.is_asked) = (true, false);
        (self.due_at, self.taken_at) = (now + self.flush, store_now);
        self.noted = 0;
        Some(Report {
            charge: Arc::clone(charge),
            units: std::mem::take(&mut self.pending),
            fence: self.fence,
            doubts: self.doubts,
        })
    }

    /// Lets the store decide until a level is read that was asked for after now.
    pub(super) fn doubt(&mut self) {
        self.doubts += 1;
        (self.known_until, self.due_at) = (Time::default(), Time::default());
    }

    fn is_idle(&self, now: Time) -> bool {
        let is_quiet = now >= self.asked_at + self.flush + self.flush;
        self.pending == 0 && !self.is_reporting && is_quiet && now >= self.known_until
    }
}

/// A report to send.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) charge: Arc<OwnedCharge>,
    pub(super) units: u64,
    pub(super) fence: u64,
    pub(super) doubts: u64,
}

#[derive(Default)]
pub(super) struct Shard(HashMap<u128, Entry, Hashed>);

impl Shard {
    pub(super) fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        self.0.get_mut(&key.bits())
    }
}

/// A shard on its own cache lines, so that threads on other shards do not slow it down.
#[repr(align(128))]
#[derive(Default)]
struct Padded(Mutex<Shard>);

pub(super) struct Table {
    shards: Box<[Padded]>,
    keys: AtomicUsize,
    fences: AtomicU64,
}

/// The locked shards of a request's keys.
pub(super) struct Locked<'t>(SmallVec<[(usize, MutexGuard<'t, Shard>); 2]>);

impl Locked<'_> {
    pub(super) fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        let index = index_of(key);
        let shard = self.0.iter_mut().find(|(it, _)| *it == index)?;
        shard.1.entry(key)
    }
}

fn index_of(key: Key) -> usize {
    (key.bits() >> 96) as usize % SHARDS
}

impl Table {
    pub(super) fn new() -> Table {
        Table {
            shards: (0..SHARDS).map(|_| Padded::default()).collect(),
            keys: AtomicUsize::new(0),
            fences: AtomicU64::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.load(Ordering::Relaxed) == 0
    }

    /// Locks the shards of these keys, in ascending order, so that requests never deadlock.
    pub(super) fn lock(&self, keys: impl Iterator<Item = Key>) -> Locked<'_> {
        let mut indexes: SmallVec<[usize; 6]> = keys.map(index_of).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let shards = indexes.into_iter();
        Locked(shards.map(|it| (it, self.shards[it].0.lock())).collect())
    }

    pub(super) fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        self.shards[index_of(key)].0.lock()
    }

    /// Adds a key, unless there are too many.
    pub(super) fn add(&self, shard: &mut Shard, key: Key, flush: Span, now: Time) {
        if shard.0.len() >= MOST_PER_SHARD {
            return;
        }
        let entry = Entry {
            charge: None,
            flush,
            pending: 0,
            noted: 0,
            doubts: 0,
            fence: self.fences.fetch_add(1, Ordering::Relaxed),
            is_reporting: false,
            is_asked: true,
            asked_at: now,
            taken_at: Time::default(),
            due_at: Time::default(),
            known_until: Time::default(),
            others: None,
        };
        if shard.0.insert(key.bits(), entry).is_none() {
            self.keys.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets a key. Returns whether it was known.
    pub(super) fn forget(&self, key: Key) -> bool {
        let is_known = self.shard(key).0.remove(&key.bits()).is_some();
        self.keys
            .fetch_sub(usize::from(is_known), Ordering::Relaxed);
        is_known
    }

    /// Returns the reports of entries for which `is_due` is true, and forgets idle keys.
    pub(super) fn take_reports(
        &self,
        now: Time,
        store_now: Time,
        is_due: impl Fn(&Entry) -> bool,
    ) -> Vec<Report> {
        let mut reports = Vec::new();
        if self.is_empty() {
            return reports;
        }
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let before = shard.0.len();
            shard.0.retain(|_, entry| {
                if is_due(entry) {
                    reports.extend(entry.take_report(now, store_now));
                }
                !entry.is_idle(now)
            });
            self.keys
                .fetch_sub(before - shard.0.len(), Ordering::Relaxed);
        }
        reports
    }

    /// Returns how many keys are decided here at `now`, and how many units wait for a report.
    pub(super) fn outstanding(&self, now: Time) -> (u64, u64) {
        let (mut keys, mut units) = (0, 0);
        for shard in &self.shards {
            for entry in shard.0.lock().0.values() {
                keys += u64::from(now < entry.known_until);
                units += entry.pending;
            }
        }
        (keys, units)
    }
}
