//! The records of holds in this process's memory.
//!
//! They are spread over shelves, each under its own lock. Whoever wants a shelf and shards of states
//! locks the shelf first.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::mem;
use std::sync::Arc;

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
/// How many holds that have ended may be on the agenda before anybody looks for them.
const SLACK: usize = 64;

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
                open: 0,
                agenda: BinaryHeap::new(),
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
            shelf.lock().due(now, most, &mut due);
        }
        due.sort_unstable();
        // A name that was used again may be there twice.
        due.dedup();
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
            let (len, capacity) = (shelf.agenda.len(), shelf.agenda.capacity());
            if capacity > 64 && len < capacity / 8 {
                shelf.agenda.shrink_to(len * 2);
            }
        }
    }

    /// About how many bytes they occupy.
    pub(super) fn bytes(&self) -> usize {
        let shelves = self.shelves.iter().map(|shelf| {
            let shelf = shelf.lock();
            let places = shelf.records.capacity() * size_of::<(HoldId, Arc<HoldRecord>)>();
            let records = shelf.records.len() * size_of::<HoldRecord>();
            let agenda = shelf.agenda.capacity() * size_of::<Reverse<(Time, HoldId)>>();
            let ended = shelf.ended.len() * size_of::<(Time, HoldId)>();
            places + records + agenda + ended + shelf.charges * size_of::<HeldCharge>()
        });
        shelves.sum::<usize>() + size_of_val(&*self.shelves)
    }
}

/// A share of the records.
pub(super) struct Shelf {
    most: usize,
    /// How many charges the records have together.
    charges: usize,
    records: HashMap<HoldId, Arc<HoldRecord>>,
    /// How many of them are open.
    open: usize,
    /// When the time of each open one is over, or sooner. Who has ended since is found out later: most
    /// end long before their time, and taking them out one by one would cost more than all the rest.
    agenda: BinaryHeap<Reverse<(Time, HoldId)>>,
    /// Those that have ended, by when they are forgotten.
    ended: BTreeSet<(Time, HoldId)>,
}

impl Shelf {
    pub(super) fn find(&self, id: HoldId) -> Option<&Arc<HoldRecord>> {
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

    /// Notes a hold that is not there.
    pub(super) fn add(&mut self, record: Arc<HoldRecord>, now: Time) {
        self.charges += record.charges.len();
        let (id, until) = (record.id, record.expires_at);
        if record.is_open() {
            self.records.insert(id, record);
            self.open(id, until);
        } else {
            self.end(&record, now);
            self.records.insert(id, record);
        }
    }

    /// Changes an open hold, and says how it is then.
    pub(super) fn change(
        &mut self,
        id: HoldId,
        now: Time,
        change: impl FnOnce(&mut HoldRecord),
    ) -> Option<Arc<HoldRecord>> {
        let record = self.records.get_mut(&id)?;
        change(Arc::make_mut(record));
        let record = Arc::clone(record);
        if !record.is_open() {
            self.open -= 1;
            self.end(&record, now);
        }
        Some(record)
    }

    fn open(&mut self, id: HoldId, until: Time) {
        self.open += 1;
        self.agenda.push(Reverse((until, id)));
        if self.agenda.len() > 2 * self.open + SLACK {
            self.tidy();
        }
    }

    /// Takes off the agenda what has ended, and what is there twice because its name was used again.
    fn tidy(&mut self) {
        let agenda = mem::take(&mut self.agenda).into_iter();
        let open = |id: HoldId| self.records.get(&id).filter(|it| it.is_open());
        let live = agenda.filter_map(|Reverse((_, id))| Some(Reverse((open(id)?.expires_at, id))));
        let mut live: Vec<_> = live.collect();
        live.sort_unstable();
        live.dedup();
        self.agenda = live.into();
    }

    fn end(&mut self, record: &HoldRecord, now: Time) {
        // Until nobody can take it for open: what a ledger knows of it ends no sooner.
        let until = now.max(record.expires_at) + RETAIN;
        self.ended.insert((until, record.id));
    }

    /// Adds up to `most` open holds whose time is over.
    fn due(&mut self, now: Time, most: usize, due: &mut Vec<(Time, HoldId)>) {
        let before = due.len();
        while due.len() - before < most
            && let Some(Reverse((at, id))) = self.agenda.peek().copied()
            && at <= now
        {
            self.agenda.pop();
            let record = self.records.get(&id).filter(|it| it.is_open());
            match record.map(|it| it.expires_at) {
                Some(until) if until > at => self.agenda.push(Reverse((until, id))),
                Some(until) => due.push((until, id)),
                None => {}
            }
        }
        // They are due until somebody ends them.
        self.agenda
            .extend(due[before..].iter().copied().map(Reverse));
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

#[cfg(test)]
mod tests {
    use tollgate_core::{Span, Tag, Token};

    use super::*;
    use crate::holds::{NewHold, Purpose, Settle};

    fn record(id: u128, now: Time) -> Arc<HoldRecord> {
        let new = NewHold {
            id: HoldId::new(id, Tag::default()),
            ttl: Span::MINUTE,
            purpose: Purpose::Reservation,
            token: Token::NONE,
            owner: "",
            memo: "",
            idempotency_key: None,
            fingerprint: 0,
            wait: None,
        };
        Arc::new(HoldRecord::new(&new, 1, 0, Vec::new(), now))
    }

    #[test]
    fn a_name_that_is_used_again_and_again_is_on_the_agenda_a_few_times_and_due_once() {
        let records = Records::new(1);
        let id = record(1, Time::default()).id;
        for second in 0..10_000 {
            let now = Time::default() + Span::from_secs(second);
            let mut shelf = records.shelf(id);
            shelf.make_room(now).unwrap();
            shelf.add(record(1, now), now);
            assert!(shelf.agenda.len() <= SLACK + 2);
            if second < 9_999 {
                shelf.change(id, now, |it| it.end(Settle::Release));
            }
        }
        assert_eq!(records.due(Time::MAX, 10), [id]);
        assert_eq!(records.due(Time::MAX, 10), [id]);
    }

    #[test]
    fn what_lasts_longer_is_due_later() {
        let records = Records::new(100);
        let (now, id) = (Time::default(), record(1, Time::default()).id);
        records.shelf(id).add(record(1, now), now);
        let later = now + Span::HOUR;
        let extended = records
            .shelf(id)
            .change(id, now, |it| it.expires_at = later);
        assert!(extended.is_some());
        assert_eq!(records.due(now + Span::MINUTE, 10), []);
        assert_eq!(records.due(later, 10), [id]);
        records
            .shelf(id)
            .change(id, now, |it| it.end(Settle::Expire));
        assert_eq!(records.due(later, 10), []);
    }
}
