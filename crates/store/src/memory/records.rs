//! The records of holds in memory.
//!
//! Records are spread over parts, each under its own lock. A caller that locks both a part and shards of
//! states locks the part first, so that callers never deadlock.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::mem;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tollgate_core::{HoldId, Time};

use super::open_holds::OpenHolds;
use crate::contract::StoreError;
use crate::holds::{HeldCharge, HoldRecord, Purpose, RETAIN};

/// The most holds of a store.
const MAX_HOLDS: usize = 1_000_000;
const PARTS: usize = 16;
/// The most records that are forgotten for each new record.
const FORGET: usize = 4;
/// How many ended holds may stay in the list of expiries before they are removed.
const SLACK: usize = 64;

/// All records, in parts with a lock each.
pub(super) struct Records {
    parts: Box<[Mutex<Part>]>,
    /// How many open holds each subject has.
    pub(super) open: OpenHolds,
}

impl Records {
    /// Makes room for `max_keys` records, but for at most [`MAX_HOLDS`].
    pub(super) fn new(max_keys: usize) -> Records {
        let most = max_keys.min(MAX_HOLDS).div_ceil(PARTS).max(1);
        let part = |_| Part {
            most,
            ..Part::default()
        };
        let parts = (0..PARTS).map(part).map(Mutex::new).collect();
        Records {
            parts,
            open: OpenHolds::default(),
        }
    }

    /// Locks the part of the records that a hold belongs to.
    pub(super) fn lock(&self, id: HoldId) -> MutexGuard<'_, Part> {
        // Ids are random, so their low bits spread the records evenly.
        #[allow(clippy::cast_possible_truncation)]
        let place = id.bits() as usize % PARTS;
        self.parts[place].lock()
    }

    /// Returns up to `most` open holds that have expired, the earliest expiry first.
    pub(super) fn due(&self, now: Time, most: usize) -> Vec<HoldId> {
        let mut due = Vec::new();
        for part in &self.parts {
            part.lock().due(now, most, &mut due);
        }
        due.sort_unstable();
        // An id that was used again may be listed twice.
        due.dedup();
        due.truncate(most);
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Forgets the records of holds that ended long ago.
    pub(super) fn sweep(&self, now: Time) {
        for part in &self.parts {
            let mut part = part.lock();
            part.forget(usize::MAX, now);
            let (records, expiries) = (part.records.len(), part.expiries.len());
            if is_mostly_empty(records, part.records.capacity()) {
                part.records.shrink_to(records * 2);
            }
            if is_mostly_empty(expiries, part.expiries.capacity()) {
                part.expiries.shrink_to(expiries * 2);
            }
        }
        self.open.shrink();
    }

    /// Returns how many reservations and how many leases are open.
    pub(super) fn count_open(&self) -> (u64, u64) {
        let mut open = (0, 0);
        for part in &self.parts {
            let part = part.lock();
            open.0 += (part.open - part.open_leases) as u64;
            open.1 += part.open_leases as u64;
        }
        open
    }

    /// Returns about how many bytes the records occupy.
    pub(super) fn bytes(&self) -> usize {
        let parts = self.parts.iter().map(|part| {
            let part = part.lock();
            let places = part.records.capacity() * size_of::<(HoldId, Arc<HoldRecord>)>();
            let records = part.records.len() * size_of::<HoldRecord>();
            let expiries = part.expiries.capacity() * size_of::<Reverse<(Time, HoldId)>>();
            let ended = part.ended.len() * size_of::<(Time, HoldId)>();
            places + records + expiries + ended + part.charges * size_of::<HeldCharge>()
        });
        parts.sum::<usize>() + size_of_val(&*self.parts) + self.open.bytes()
    }
}

/// Returns whether a collection has lost most of its items, so that it should release memory.
pub(super) fn is_mostly_empty(len: usize, capacity: usize) -> bool {
    capacity > 64 && len < capacity / 8
}

/// A part of the records, under one lock.
#[derive(Default)]
pub(super) struct Part {
    most: usize,
    /// The number of charges in all records.
    charges: usize,
    records: HashMap<HoldId, Arc<HoldRecord>>,
    /// The number of open holds.
    open: usize,
    /// How many of the open holds are leases.
    open_leases: usize,
    /// The expiry of each open hold. An extended hold may have its old expiry here. Ended holds are removed
    /// later, many at once: most holds end long before they expire, and removing each alone would cost too
    /// much.
    expiries: BinaryHeap<Reverse<(Time, HoldId)>>,
    /// The ended holds, by the time at which they are forgotten.
    ended: BTreeSet<(Time, HoldId)>,
}

impl Part {
    pub(super) fn find(&self, id: HoldId) -> Option<&Arc<HoldRecord>> {
        self.records.get(&id)
    }

    /// Makes room for one more record. Forgets holds that ended long ago. If that is not enough, forgets
    /// the hold that ended first.
    pub(super) fn make_room(&mut self, now: Time) -> Result<(), StoreError> {
        self.forget(FORGET, now);
        if self.records.len() < self.most {
            return Ok(());
        }
        let (_, id) = self.ended.pop_first().ok_or(StoreError::TooManyHolds)?;
        self.remove(id);
        Ok(())
    }

    /// Adds a hold that is not known yet.
    pub(super) fn add(&mut self, record: Arc<HoldRecord>, now: Time) {
        self.charges += record.charges.len();
        let id = record.id;
        if record.is_open() {
            self.open += 1;
            self.open_leases += usize::from(record.purpose == Purpose::Lease);
            self.expiries.push(Reverse((record.expires_at, id)));
        } else {
            self.end(&record, now);
        }
        self.records.insert(id, record);
        if self.expiries.len() > 2 * self.open + SLACK {
            self.drop_ended_expiries();
        }
    }

    /// Changes an open hold, and returns its record.
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
            self.open_leases -= usize::from(record.purpose == Purpose::Lease);
            self.end(&record, now);
        }
        Some(record)
    }

    /// Removes the expiries of ended holds, and duplicates of ids that were used again.
    fn drop_ended_expiries(&mut self) {
        let expiries = mem::take(&mut self.expiries).into_iter();
        let open = |id: HoldId| self.records.get(&id).filter(|it| it.is_open());
        let live =
            expiries.filter_map(|Reverse((_, id))| Some(Reverse((open(id)?.expires_at, id))));
        let mut live: Vec<_> = live.collect();
        live.sort_unstable();
        live.dedup();
        self.expiries = live.into();
    }

    fn end(&mut self, record: &HoldRecord, now: Time) {
        self.ended.insert((kept_until(record, now), record.id));
    }

    /// Adds up to `most` open holds that have expired to `due`.
    fn due(&mut self, now: Time, most: usize, due: &mut Vec<(Time, HoldId)>) {
        let before = due.len();
        while due.len() - before < most
            && let Some(Reverse((at, id))) = self.expiries.peek().copied()
            && at <= now
        {
            self.expiries.pop();
            let record = self.records.get(&id).filter(|it| it.is_open());
            match record.map(|it| it.expires_at) {
                Some(until) if until > at => self.expiries.push(Reverse((until, id))),
                Some(until) => due.push((until, id)),
                None => {}
            }
        }
        // Expired holds stay in the list until they are settled.
        self.expiries
            .extend(due[before..].iter().copied().map(Reverse));
    }

    /// Forgets a hold that has ended at `now`.
    pub(super) fn forget_ended(&mut self, id: HoldId, now: Time) {
        if let Some(record) = self.records.get(&id) {
            let until = kept_until(record, now);
            self.ended.remove(&(until, id));
            self.remove(id);
        }
    }

    fn remove(&mut self, id: HoldId) {
        if let Some(record) = self.records.remove(&id) {
            self.charges -= record.charges.len();
        }
    }

    fn forget(&mut self, most: usize, now: Time) {
        for _ in 0..most {
            match self.ended.first().copied() {
                Some((at, id)) if at <= now => self.remove(id),
                _ => return,
            }
            self.ended.pop_first();
        }
    }
}

/// Returns when the record of a hold that ended at `now` is forgotten.
fn kept_until(record: &HoldRecord, now: Time) -> Time {
    // A ledger may list the hold as open until it expires: keep the record at least that long.
    now.max(record.expires_at) + RETAIN
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Span, Tag, Token};

    use super::*;
    use crate::holds::{NewHold, Settle};

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
            bound: None,
        };
        Arc::new(HoldRecord::new(&new, 1, 0, Vec::new(), now))
    }

    #[test]
    fn an_id_that_is_used_again_and_again_is_due_once() {
        let records = Records::new(1);
        let id = record(1, Time::default()).id;
        for second in 0..10_000 {
            let now = Time::default() + Span::from_secs(second);
            let mut part = records.lock(id);
            part.make_room(now).unwrap();
            part.add(record(1, now), now);
            assert!(part.expiries.len() <= SLACK + 2);
            if second < 9_999 {
                part.change(id, now, |it| it.end(Settle::Release));
            }
        }
        assert_eq!(records.due(Time::MAX, 10), [id]);
        assert_eq!(records.due(Time::MAX, 10), [id]);
    }

    #[test]
    fn open_holds_are_counted_by_purpose() {
        let (records, now) = (Records::new(100), Time::default());
        for id in 1..=5 {
            let mut added = HoldRecord::clone(&record(id, now));
            if id > 3 {
                added.purpose = Purpose::Lease;
            }
            records.lock(added.id).add(added.into(), now);
        }
        assert_eq!(records.count_open(), (3, 2));
        for id in [1, 5].map(|id| record(id, now).id) {
            let mut part = records.lock(id);
            part.change(id, now, |it| it.end(Settle::Release));
        }
        assert_eq!(records.count_open(), (2, 1));
    }

    #[test]
    fn an_extended_hold_is_due_later() {
        let records = Records::new(100);
        let (now, id) = (Time::default(), record(1, Time::default()).id);
        records.lock(id).add(record(1, now), now);
        let later = now + Span::HOUR;
        let extended = records.lock(id).change(id, now, |it| it.expires_at = later);
        assert!(extended.is_some());
        assert_eq!(records.due(now + Span::MINUTE, 10), []);
        assert_eq!(records.due(later, 10), [id]);
        let mut part = records.lock(id);
        part.change(id, now, |it| it.end(Settle::Expire));
        drop(part);
        assert_eq!(records.due(later, 10), []);
    }
}
