//! The records of holds in this process's memory.
//!
//! They are spread over shelves, each under its own lock. Whoever wants a shelf and shards of states
//! locks the shelf first.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tollgate_core::{HoldId, Time};

use crate::contract::StoreError;
use crate::holds::{HeldCharge, HoldRecord, RETAIN};

/// The most holds of a store.
const MAX_HOLDS: usize = 1_000_000;
const SHELVES: usize = 16;
/// How many records are forgotten when another comes.
const FORGET: usize = 4;

/// All records.
pub(super) struct Records {
    shelves: Box<[Mutex<Shelf>]>,
}

impl Records {
    /// Room for as many as there may be keys, within a bound.
    pub(super) fn new(max_keys: usize) -> Records {
        let most = max_keys.min(MAX_HOLDS).div_ceil(SHELVES).max(1);
        let shelf = || {
            Mutex::new(Shelf {
                most,
                charges: 0,
                records: HashMap::new(),
                open: BTreeSet::new(),
                ended: BTreeSet::new(),
            })
        };
        Records {
            shelves: (0..SHELVES).map(|_| shelf()).collect(),
        }
    }

    /// The shelf of a hold, locked.
    pub(super) fn shelf(&self, id: HoldId) -> MutexGuard<'_, Shelf> {
        // Ids are random.
        #[allow(clippy::cast_possible_truncation)]
        let place = id.bits() as usize % SHELVES;
        self.shelves[place].lock()
    }

    /// Up to `most` open holds whose time is over, the longest over first.
    pub(super) fn due(&self, now: Time, most: usize) -> Vec<HoldId> {
        let mut due = Vec::new();
        for shelf in &self.shelves {
            let shelf = shelf.lock();
            let over = shelf.open.iter().take_while(|(ends_at, _)| *ends_at <= now);
            due.extend(over.take(most).copied());
        }
        due.sort_unstable();
        due.truncate(most);
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Forgets the records of holds that have ended long ago.
    pub(super) fn sweep(&self, now: Time) {
        for shelf in &self.shelves {
            let mut shelf = shelf.lock();
            shelf.forget(usize::MAX, now);
            let (len, capacity) = (shelf.records.len(), shelf.records.capacity());
            if capacity > 64 && len < capacity / 8 {
                shelf.records.shrink_to(len * 2);
            }
        }
    }

    /// About how many bytes they occupy.
    pub(super) fn bytes(&self) -> usize {
        let shelves = self.shelves.iter().map(|shelf| {
            let shelf = shelf.lock();
            let entries = shelf.records.capacity() * size_of::<(HoldId, HoldRecord)>();
            let places = shelf.records.len() * 2 * size_of::<(Time, HoldId)>();
            entries + places + shelf.charges * size_of::<HeldCharge>()
        });
        shelves.sum::<usize>() + size_of_val(&*self.shelves)
    }
}

/// A share of the records.
pub(super) struct Shelf {
    most: usize,
    /// How many charges the records have together.
    charges: usize,
    records: HashMap<HoldId, HoldRecord>,
    /// The open ones, by the end of their time.
    open: BTreeSet<(Time, HoldId)>,
    /// The others, by when they are forgotten.
    ended: BTreeSet<(Time, HoldId)>,
}

impl Shelf {
    pub(super) fn find(&self, id: HoldId) -> Option<&HoldRecord> {
        self.records.get(&id)
    }

    /// Makes room for one more: by what has ended long ago, and if that is not enough by what has ended
    /// at all.
    pub(super) fn make_room(&mut self, now: Time) -> Result<(), StoreError> {
        self.forget(FORGET, now);
        if self.records.len() < self.most {
            return Ok(());
        }
        let (_, id) = self.ended.pop_first().ok_or(StoreError::TooManyHolds)?;
        self.remove(id);
        Ok(())
    }

    /// Puts a record there, in the place of what was noted of the same hold.
    pub(super) fn put(&mut self, record: HoldRecord, now: Time) {
        if let Some(old) = self.records.get(&record.id) {
            self.open.remove(&(old.expires_at, old.id));
            self.remove(record.id);
        }
        if record.is_open() {
            self.open.insert((record.expires_at, record.id));
        } else {
            // Until nobody can take it for open: what a ledger knows of it ends no sooner.
            let until = now.max(record.expires_at) + RETAIN;
            self.ended.insert((until, record.id));
        }
        self.charges += record.charges.len();
        self.records.insert(record.id, record);
    }

    fn remove(&mut self, id: HoldId) {
        if let Some(record) = self.records.remove(&id) {
            self.charges -= record.charges.len();
        }
    }

    fn forget(&mut self, most: usize, now: Time) {
        for _ in 0..most {
            match self.ended.first() {
                Some((at, id)) if *at <= now => {
                    let id = *id;
                    self.ended.pop_first();
                    self.remove(id);
                }
                _ => return,
            }
        }
    }
}
