//! Holds in memory. The store decides a hold like any request, and records it while it has the lock of the
//! record.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::concurrency::{Holder, State};
use tollgate_core::{Charge, HoldId, Limit, Span, Time, Token};

use super::MemoryStore;
use super::all_charges::{Looks, all_allow};
use super::locked::Locked;
use crate::clock::Clock;
use crate::contract::{Applied, StoreError};
use crate::holds::{
    Extended, Held, HeldCharge, HoldRecord, MAX_CHARGES, MAX_TTL, NewHold, Settle, Settled, Wait,
    taken_by,
};

impl<C: Clock> MemoryStore<C> {
    /// See [`Store::hold`](crate::Store::hold).
    ///
    /// # Errors
    /// If the store is full of open holds, or the hold has too many charges.
    pub fn hold(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        if charges.len() > MAX_CHARGES {
            let count = charges.len();
            let why = format!("a hold has at most {MAX_CHARGES} charges, and this one has {count}");
            return Err(StoreError::Script(why.into()));
        }
        let mut records = self.records.lock(new.id);
        if let Some(known) = records.find(new.id) {
            let known = Arc::clone(known);
            return Ok(if known.fingerprint == new.fingerprint {
                Held::Repeated(known)
            } else {
                Held::Conflict(known)
            });
        }
        let mut shards = self.lock(charges);
        let now = self.clock.now();
        records.make_room(now)?;
        if new.bound.is_some_and(|it| !self.records.open.take(it)) {
            return Ok(Held::TooMany);
        }
        // A hold of 0 units is decided like a hold of 1 unit, and takes nothing.
        let asked = units.max(1);
        let mut looks = Looks::new();
        shards.look(charges, asked, now, &mut looks);
        let ticket = new.wait.map(|it| it.ticket);
        for (i, charge) in charges.iter().enumerate() {
            if let Limit::Concurrency(numbers) = charge.limit {
                let cost = charge.cost.saturating_mul(asked);
                let shard = shards.of(charge.key);
                looks[i] = shard.look_slot(charge, numbers, ticket, cost, now);
            }
        }
        let allowed = all_allow(charges, &looks);
        let mut ahead = None;
        if let Some(wait) = new.wait {
            if !allowed {
                ahead = shards.wait(charges, &looks, units, wait, now);
            }
            if ahead.is_none() {
                for charge in charges {
                    let shard = shards.of(charge.key);
                    shard.change_known_slots(charge, |slots| slots.leave(wait.ticket));
                }
            }
        }
        let mut applied = Applied::default();
        applied.settle(now, allowed, units);
        let expires_at = now + new.bounded_ttl();
        let slots = allowed
            .then(|| shards.slots(charges, &looks, units, new, expires_at, now))
            .flatten();
        for i in 0..charges.len() {
            let charge = &charges[i];
            let outcome = match charge.limit {
                Limit::Concurrency(numbers) => {
                    let shard = shards.of(charge.key);
                    let verdict = looks[i].verdict;
                    if let Some(holder) = &slots
                        && taken_by(charge, units, verdict.is_allowed()) > 0
                    {
                        let take = |slots: &mut State| slots.take(holder.clone());
                        shard.change_slots(charge, numbers, now, take);
                    }
                    shard.slot_outcome(charge, numbers, verdict.admission, ticket, now)
                }
                _ => shards.write(charges, &looks, i, units, allowed, now),
            };
            applied.outcomes.push(outcome);
        }
        shards.tidy(charges, &looks, now);
        drop(shards);
        if !allowed {
            if let Some(bound) = new.bound {
                self.records.open.remove(bound.subject);
            }
            return Ok(Held::Denied { applied, ahead });
        }
        let taken = charges.iter().zip(&looks).map(|(charge, look)| {
            let taken = taken_by(charge, units, look.verdict.is_allowed());
            HeldCharge::of(charge, taken)
        });
        let fence = slots.map_or(0, |it| it.fence);
        let record = Arc::new(HoldRecord::new(new, units, fence, taken.collect(), now));
        records.add(Arc::clone(&record), now);
        Ok(Held::Taken { applied, record })
    }

    /// See [`Store::settle`](crate::Store::settle).
    pub fn settle(&self, id: HoldId, how: Settle) -> Settled {
        let mut records = self.records.lock(id);
        let Some(record) = records.find(id) else {
            return Settled::Unknown;
        };
        if !record.may_settle(how) {
            return Settled::NotYours;
        }
        if !record.is_open() {
            return Settled::Already(Arc::clone(record));
        }
        let charges = record.charges.iter().map(HeldCharge::as_charge);
        let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
        let mut shards = self.lock(&charges);
        let now = self.clock.now();
        if how == Settle::Expire && now < record.expires_at {
            return Settled::NotYet(Arc::clone(record));
        }
        let mut all = charges.iter().zip(&record.charges);
        // Undoing a hold leaves a missing state as it is.
        if how != Settle::Undo
            && all.any(|(charge, held)| {
                let changes = record.settles(held) && record.due(held, how) != held.taken;
                changes && charge.needs_state() && !shards.of(charge.key).has_quota(charge)
            })
        {
            return Settled::Unrestored(Arc::clone(record));
        }
        let settled = charges.iter().zip(&record.charges).map(|(charge, held)| {
            let shard = shards.of(charge.key);
            if !record.settles(held) {
                return 0;
            }
            if held.is_slot() {
                let free = |slots: &mut State| slots.free(id.bits(), record.expires_at);
                shard.change_known_slots(charge, free);
                return 0;
            }
            let due = record.due(held, how);
            if due <= held.taken {
                shard.refund(charge, held.taken - due, record.charged_at, now);
                due
            } else {
                held.taken + shard.overdraw(charge, due - held.taken, now)
            }
        });
        let settled: SmallVec<[u64; 4]> = settled.collect();
        drop((shards, charges));
        let ended = records.change(id, now, |record| {
            for (held, taken) in record.charges.iter_mut().zip(settled) {
                held.taken = taken;
            }
            record.end(how);
        });
        if how == Settle::Undo {
            records.forget_ended(id, now);
        }
        if let Some(subject) = ended.as_ref().and_then(|it| it.subject) {
            self.records.open.remove(subject);
        }
        ended.map_or(Settled::Unknown, Settled::Done)
    }

    /// See [`Store::extend`](crate::Store::extend).
    pub fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Extended {
        let mut records = self.records.lock(id);
        let Some(record) = records.find(id) else {
            return Extended::Unknown;
        };
        if !record.may_extend(token) {
            return Extended::NotYours;
        }
        if !record.is_open() {
            return Extended::Ended(Arc::clone(record));
        }
        let slots = record.charges.iter().filter(|it| it.is_slot());
        let slots = slots.filter(|it| it.taken > 0).map(HeldCharge::as_charge);
        let slots: Vec<Charge<'_>> = slots.collect();
        let mut shards = self.lock(&slots);
        let now = self.clock.now();
        if now >= record.expires_at && !slots.is_empty() {
            return Extended::Lapsed(Arc::clone(record));
        }
        let from = record.expires_at;
        for charge in &slots {
            if !shards.of(charge.key).has_slot(charge, id.bits(), from) {
                return Extended::Lapsed(Arc::clone(record));
            }
        }
        let to = from.max(now + ttl.min(MAX_TTL));
        for charge in &slots {
            let shard = shards.of(charge.key);
            shard.renew_slot(charge, id.bits(), from, to);
        }
        drop((shards, slots));
        let longer = records.change(id, now, |record| record.expires_at = to);
        longer.map_or(Extended::Unknown, Extended::Done)
    }

    /// See [`Store::find_hold`](crate::Store::find_hold).
    pub fn find_hold(&self, id: HoldId) -> Option<Arc<HoldRecord>> {
        self.records.lock(id).find(id).cloned()
    }

    /// See [`Store::put_hold`](crate::Store::put_hold).
    ///
    /// # Errors
    /// If the store is full of open holds.
    pub fn put_hold(&self, record: &HoldRecord) -> Result<bool, StoreError> {
        let mut records = self.records.lock(record.id);
        if records.find(record.id).is_some() {
            return Ok(false);
        }
        let now = self.clock.now();
        records.make_room(now)?;
        if let Some(subject) = record.subject.filter(|_| record.is_open()) {
            self.records.open.add(subject);
        }
        records.add(Arc::new(record.clone()), now);
        Ok(true)
    }

    /// See [`Store::due_holds`](crate::Store::due_holds). Locks only a part of the records at a time.
    pub fn due_holds(&self, most: usize) -> Vec<HoldId> {
        self.records.due(self.clock.now(), most)
    }

    /// See [`Store::holders`](crate::Store::holders).
    pub fn holders(&self, charge: &Charge<'_>, most: usize) -> Vec<Holder> {
        let Limit::Concurrency(numbers) = charge.limit else {
            return Vec::new();
        };
        let mut shard = self.shards[self.shard_of(charge.key)].0.lock();
        let now = self.clock.now();
        shard.holders(charge, numbers, most, now)
    }
}

impl<C: Clock> Locked<'_, C> {
    /// Gives a denied hold a place in the queue of each slot that it needs, if nothing but slots is missing.
    /// Returns how many clients are before it in the longest queue.
    fn wait(
        &mut self,
        charges: &[Charge<'_>],
        looks: &Looks,
        units: u64,
        wait: Wait,
        now: Time,
    ) -> Option<u64> {
        let mut all = charges.iter().zip(looks);
        let lacks_more = all.any(|(charge, look)| {
            let denies = charge.enforces() && !look.verdict.is_allowed();
            denies && !matches!(charge.limit, Limit::Concurrency(_))
        });
        if lacks_more || wait.patience == Span::ZERO {
            return None;
        }
        let mut longest = 0;
        for charge in charges.iter().filter(|it| it.enforces()) {
            if let Limit::Concurrency(numbers) = charge.limit
                && charge.cost.saturating_mul(units) > 0
            {
                let deadline = now + wait.patience.min(MAX_TTL);
                let join = |slots: &mut State| slots.wait(wait.ticket, deadline, now);
                let shard = self.of(charge.key);
                longest = longest.max(shard.change_slots(charge, numbers, now, join)??);
            }
        }
        Some(longest)
    }

    /// Returns the holder to write into the slots of an allowed hold, if the hold takes slots. The
    /// holder's fence is above all earlier fences of these slots.
    fn slots(
        &mut self,
        charges: &[Charge<'_>],
        looks: &Looks,
        units: u64,
        new: &NewHold<'_>,
        expires_at: Time,
        now: Time,
    ) -> Option<Holder> {
        let mut fence = None;
        for (charge, look) in charges.iter().zip(looks) {
            if let Limit::Concurrency(numbers) = charge.limit
                && taken_by(charge, units, look.verdict.is_allowed()) > 0
            {
                let next = |slots: &mut State| slots.fence(now);
                let shard = self.of(charge.key);
                fence = fence.max(shard.change_slots(charge, numbers, now, next));
            }
        }
        Some(Holder {
            hold: new.id.bits(),
            owner: new.bounded_owner().into(),
            fence: fence?,
            expires_at,
        })
    }
}
