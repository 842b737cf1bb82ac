//! The table of all keys that have slices, in shards with a lock each.
//!
//! Bounds: at most [`MOST_KEYS`] keys have slices, and at most four times as many keys have a count of their
//! demand. A key beyond these bounds is decided exactly. An idle key is forgotten by [`Table::sweep`].

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::{Charge, Key, Mode, Outcome, Span, Time};

use super::slices::{Demand, GiveBack, Slice, Slices, StoreView, Use};
use crate::stores::background::{Hashed, OwnedCharge};

/// The most keys with slices.
pub(super) const MOST_KEYS: usize = 1 << 17;
const SHARDS: usize = 64;
const MOST_PER_SHARD: usize = MOST_KEYS / SHARDS;
const MOST_DEMANDS: usize = 4 * MOST_PER_SHARD;
/// How many shards a sweep searches for idle counts of demand.
const SWEPT_SHARDS: usize = 8;

/// A draw to send to the store.
#[derive(Debug)]
pub(super) struct Draw {
    pub(super) charge: Arc<OwnedCharge>,
    pub(super) units: u64,
    pub(super) fence: u64,
}

/// Slices to give back to the store, with their charge.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) charge: Arc<OwnedCharge>,
    pub(super) slices: GiveBack,
    /// Whether the slices were drawn under other numbers than those of the charge.
    pub(super) has_changed: bool,
}

/// A key with slices.
struct Entry {
    charge: Arc<OwnedCharge>,
    slices: Slices,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<u128, Entry, Hashed>,
    demands: HashMap<u128, Demand, Hashed>,
}

/// A shard on its own cache lines, so that threads on other shards do not slow it down.
#[repr(align(128))]
#[derive(Default)]
struct Padded(Mutex<Shard>);

pub(super) struct Table {
    shards: Box<[Padded]>,
    /// The shard that the next sweep begins with.
    next: Mutex<usize>,
}

impl Table {
    pub(super) fn new() -> Table {
        Table {
            shards: (0..SHARDS).map(|_| Padded::default()).collect(),
            next: Mutex::new(0),
        }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[(key.bits() >> 96) as usize % SHARDS].0
    }

    /// Uses units of a slice for `charge`, if a slice has them and is [for](Entry::is_for) the charge. Returns
    /// the outcome, and a draw that is due.
    #[inline]
    pub(super) fn spend(
        &self,
        charge: &Charge<'_>,
        units: u64,
        instances: u64,
        now: Time,
    ) -> Option<(Use, Outcome, Option<Draw>)> {
        let mut shard = self.shard(charge.key).lock();
        let entry = shard.entries.get_mut(&charge.key.bits())?;
        if !entry.is_for(charge) {
            return None;
        }
        let used = entry.slices.spend(units, now)?;
        let outcome = entry.slices.outcome(now);
        let draw = entry.due_draw(units, instances, now);
        Some((used, outcome, draw))
    }

    /// Returns the outcome that a use of `units` would have, without using them.
    pub(super) fn look(
        &self,
        charge: &Charge<'_>,
        units: u64,
        now: Time,
    ) -> Option<(Time, Outcome)> {
        let mut shard = self.shard(charge.key).lock();
        let entry = shard.entries.get_mut(&charge.key.bits())?;
        if !entry.is_for(charge) {
            return None;
        }
        let used = entry.slices.spend(units, now)?;
        entry.slices.put_back(&used);
        Some((used.drawn_at, entry.slices.outcome(now)))
    }

    /// Puts units back into their slice. Returns false if they have to be given back to the store.
    pub(super) fn put_back(&self, key: Key, used: &Use) -> bool {
        let mut shard = self.shard(key).lock();
        let entry = shard.entries.get_mut(&key.bits());
        entry.is_some_and(|entry| entry.slices.put_back(used))
    }

    /// Notes the answer of the store to a request for `units` of `charge`. Returns a draw that is due, and
    /// slices that have ended because they are not [for](Entry::is_for) the charge.
    pub(super) fn learn(
        &self,
        charge: &Charge<'_>,
        slice: Span,
        units: u64,
        outcome: &Outcome,
        instances: u64,
        now: Time,
    ) -> (Option<Draw>, Option<Returned>) {
        let view = StoreView::from(outcome);
        let key = charge.key.bits();
        let mut shard = self.shard(charge.key).lock();
        let shard = &mut *shard;
        if let Some(entry) = shard.entries.get_mut(&key) {
            let mut back = None;
            if !entry.is_for(charge) {
                let slices = entry.slices.end_all();
                let has_changed = *entry.charge.limit() != *charge.limit;
                entry.charge = Arc::new(OwnedCharge::of(charge, slice));
                back = Some(Returned {
                    charge: Arc::clone(&entry.charge),
                    slices,
                    has_changed,
                });
            }
            entry.slices.view = view;
            return (entry.due_draw(units, instances, now), back);
        }
        let tracked = shard.demands.contains_key(&key);
        if !tracked && shard.demands.len() >= MOST_DEMANDS {
            return (None, None);
        }
        let demand = shard.demands.entry(key).or_default();
        let asked = demand.count(units, slice, now);
        if asked < super::slices::LEAST_DEMAND || shard.entries.len() >= MOST_PER_SHARD {
            return (None, None);
        }
        let demand = shard.demands.remove(&key).unwrap_or_default();
        let mut entry = Entry {
            charge: Arc::new(OwnedCharge::of(charge, slice)),
            slices: Slices::new(view, demand),
        };
        let draw = entry.due_draw(0, instances, now);
        shard.entries.insert(key, entry);
        (draw, None)
    }

    /// Takes in the slice of a draw. Returns slices to give back.
    pub(super) fn drawn(&self, draw: &Draw, slice: Slice, view: StoreView, now: Time) -> Returned {
        let key = draw.charge.key();
        let mut shard = self.shard(key).lock();
        let (mut charge, mut has_changed) = (&draw.charge, false);
        let slices = match shard.entries.get_mut(&key.bits()) {
            Some(entry) if Arc::ptr_eq(&entry.charge, charge) => {
                entry.slices.drawn(slice, view, draw.fence, now)
            }
            // The numbers, or the time of a slice, have changed since the draw was sent.
            Some(entry) => {
                has_changed = *entry.charge.limit() != *charge.limit();
                charge = &entry.charge;
                entry.slices.drawn_under_others(slice, draw.fence)
            }
            // The instance is closing.
            None => GiveBack::from_iter([slice]),
        };
        Returned {
            charge: Arc::clone(charge),
            slices,
            has_changed,
        }
    }

    /// Notes that a draw has failed.
    pub(super) fn failed(&self, draw: &Draw, now: Time) {
        let key = draw.charge.key();
        if let Some(entry) = self.shard(key).lock().entries.get_mut(&key.bits()) {
            entry.slices.failed(draw.charge.span, now);
        }
    }

    /// Ends the slices of a key, and those of draws on their way. The units are not given back, because the
    /// state of the key has been forgotten.
    pub(super) fn fence(&self, key: Key) {
        if let Some(entry) = self.shard(key).lock().entries.get_mut(&key.bits()) {
            entry.slices.forget();
        }
    }

    /// Notes that used units of a key may have come back to the store by a call of a client.
    pub(super) fn forget_used(&self, key: Key) {
        if let Some(entry) = self.shard(key).lock().entries.get_mut(&key.bits()) {
            entry.slices.forget_used();
        }
    }

    /// Returns the slices that have ended with units left, and forgets idle keys.
    pub(super) fn sweep(&self, now: Time) -> Vec<Returned> {
        let mut back = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            shard.entries.retain(|_, entry| {
                let slices = entry.slices.ended(now);
                if !slices.is_empty() {
                    back.push(Returned {
                        charge: Arc::clone(&entry.charge),
                        slices,
                        has_changed: false,
                    });
                }
                !entry.slices.is_idle(now)
            });
        }
        let mut next = self.next.lock();
        for _ in 0..SWEPT_SHARDS {
            let mut shard = self.shards[*next % SHARDS].0.lock();
            shard.demands.retain(|_, it| !it.is_idle(now));
            *next = (*next + 1) % SHARDS;
        }
        back
    }

    /// Ends all slices, and returns the units that are left.
    pub(super) fn end_all(&self) -> Vec<Returned> {
        let mut back = Vec::new();
        for shard in &self.shards {
            for (_, mut entry) in shard.0.lock().entries.drain() {
                let slices = entry.slices.end_all();
                if !slices.is_empty() {
                    back.push(Returned {
                        charge: entry.charge,
                        slices,
                        has_changed: false,
                    });
                }
            }
        }
        back
    }

    /// Returns how many keys have slices, and how many units can be used at `now`.
    pub(super) fn outstanding(&self, now: Time) -> (u64, u64) {
        let (mut keys, mut units) = (0, 0);
        for shard in &self.shards {
            let shard = shard.0.lock();
            for entry in shard.entries.values() {
                let usable = entry.slices.usable(now);
                keys += u64::from(usable > 0);
                units += usable;
            }
        }
        (keys, units)
    }
}

impl Entry {
    /// Returns whether the slices were drawn under the numbers of `charge`, and for as long as it says.
    #[inline]
    fn is_for(&self, charge: &Charge<'_>) -> bool {
        let slice = self.charge.span;
        charge.mode == Mode::Leased { slice } && *self.charge.limit() == *charge.limit
    }

    #[inline]
    fn due_draw(&mut self, units: u64, instances: u64, now: Time) -> Option<Draw> {
        let slice = self.charge.span;
        let (units, fence) = self.slices.due_draw(units, slice, instances, now)?;
        Some(Draw {
            charge: Arc::clone(&self.charge),
            units,
            fence,
        })
    }
}
