//! Holds in memory: decided as any request, and noted under the lock of their record.

use std::future::{Future, ready};

use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, HoldId, Limit, Span, Time, Token};

use super::fate::{Looks, all_allow};
use super::{Locked, MemoryStore};
use crate::clock::Clock;
use crate::contract::{Applied, StoreError};
use crate::holds::{
    Extended, Held, HeldCharge, HoldRecord, HoldStore, MAX_CHARGES, MAX_TTL, NewHold, Settle,
    Settled, Wait, taken_by,
};

impl<C: Clock> MemoryStore<C> {
    /// See [`HoldStore::hold`].
    ///
    /// # Errors
    /// If there are as many holds as there may be, or too many charges.
    pub fn hold(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        check_charges(charges)?;
        let mut shelf = self.records.shelf(new.id);
        if let Some(known) = shelf.find(new.id) {
            return Ok(if known.fingerprint == new.fingerprint {
                Held::Repeated(known.clone())
            } else {
                Held::Conflict(known.clone())
            });
        }
        let mut shards = self.lock(charges);
        let now = self.clock.now();
        shelf.make_room(now)?;
        let mut looks = Looks::new();
        shards.look(charges, units, now, &mut looks);
        let ticket = new.wait.map(|it| it.ticket);
        for (i, charge) in charges.iter().enumerate() {
            if let Limit::Concurrency(numbers) = charge.limit {
                let cost = charge.cost.saturating_mul(units);
                let shard = shards.of(charge.key);
                looks[i] = shard.look_slot(charge, numbers, ticket, cost, now);
            }
        }
        let allowed = all_allow(charges, &looks);
        let mut ahead = None;
        if let Some(wait) = new.wait {
            if allowed {
                shards.leave_queues(charges, wait.ticket);
            } else {
                ahead = shards.wait(charges, &looks, wait, now);
            }
        }
        let mut applied = Applied::default();
        applied.settle(now, allowed, units);
        let slots = allowed.then(|| {
            let expires_at = now + new.bounded_ttl();
            shards.slots(charges, &looks, units, new, expires_at, now)
        });
        for i in 0..charges.len() {
            let charge = &charges[i];
            let outcome = match charge.limit {
                Limit::Concurrency(numbers) => {
                    let shard = shards.of(charge.key);
                    let admission = looks[i].verdict.admission;
                    let costs = charge.cost.saturating_mul(units) > 0;
                    if let Some(holder) = &slots
                        && costs
                        && looks[i].verdict.is_allowed()
                    {
                        shard.take_slot(charge, numbers, holder.clone(), now);
                    }
                    shard.slot_outcome(charge, numbers, admission, ticket, now)
                }
                _ => shards.write(charges, &looks, i, units, allowed, now),
            };
            applied.outcomes.push(outcome);
        }
        drop(shards);
        let Some(holder) = slots else {
            return Ok(Held::Refused { applied, ahead });
        };
        let taken = charges.iter().zip(&looks).map(|(charge, look)| {
            let taken = taken_by(charge, units, look.verdict.is_allowed());
            HeldCharge::of(charge, taken)
        });
        let mut record = HoldRecord::new(new, units, holder.fence, taken.collect(), now);
        if !record.has_slots() {
            record.fence = 0;
        }
        shelf.put(record.clone(), now);
        Ok(Held::Taken { applied, record })
    }

    /// See [`HoldStore::settle`].
    pub fn settle(&self, id: HoldId, how: Settle) -> Settled {
        let mut shelf = self.records.shelf(id);
        let Some(record) = shelf.find(id) else {
            return Settled::Unknown;
        };
        if !record.may_settle(how) {
            return Settled::NotYours;
        }
        if !record.is_open() {
            return Settled::Already(record.clone());
        }
        let mut record = record.clone();
        let charges: Vec<Charge<'_>> = record.charges.iter().map(HeldCharge::as_charge).collect();
        let mut shards = self.lock(&charges);
        let now = self.clock.now();
        if how == Settle::Expire && now < record.expires_at {
            drop(shards);
            return Settled::NotYet(record);
        }
        let settled = charges.iter().zip(&record.charges).map(|(charge, held)| {
            let shard = shards.of(charge.key);
            if held.taken == 0 {
                return 0;
            }
            if held.is_slot() {
                shard.free_slot(charge, id.bits(), record.expires_at);
                return 0;
            }
            let due = record.due(held, how);
            if due <= held.taken {
                shard.give_back(charge, held.taken - due, record.charged_at, now);
                due
            } else {
                held.taken + shard.overdraw(charge, due - held.taken, now)
            }
        });
        let settled: Vec<u64> = settled.collect();
        drop(shards);
        for (held, taken) in record.charges.iter_mut().zip(settled) {
            held.taken = taken;
        }
        record.end(how);
        shelf.put(record.clone(), now);
        Settled::Done(record)
    }

    /// See [`HoldStore::extend`].
    pub fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Extended {
        let mut shelf = self.records.shelf(id);
        let Some(record) = shelf.find(id) else {
            return Extended::Unknown;
        };
        if !record.may_extend(token) {
            return Extended::NotYours;
        }
        if !record.is_open() {
            return Extended::Ended(record.clone());
        }
        let mut record = record.clone();
        let slots = record.charges.iter().filter(|it| it.is_slot());
        let slots = slots.filter(|it| it.taken > 0).map(HeldCharge::as_charge);
        let slots: Vec<Charge<'_>> = slots.collect();
        let mut shards = self.lock(&slots);
        let now = self.clock.now();
        if now >= record.expires_at && !slots.is_empty() {
            drop(shards);
            return Extended::Lapsed(record);
        }
        let (from, to) = (record.expires_at, now + ttl.min(MAX_TTL));
        let to = to.max(from);
        for charge in &slots {
            let shard = shards.of(charge.key);
            shard.renew_slot(charge, id.bits(), from, to);
        }
        drop(shards);
        record.expires_at = to;
        shelf.put(record.clone(), now);
        Extended::Done(record)
    }

    /// See [`HoldStore::find_hold`].
    pub fn find_hold(&self, id: HoldId) -> Option<HoldRecord> {
        self.records.shelf(id).find(id).cloned()
    }

    /// See [`HoldStore::put_hold`].
    ///
    /// # Errors
    /// If there are as many holds as there may be.
    pub fn put_hold(&self, record: &HoldRecord) -> Result<bool, StoreError> {
        let mut shelf = self.records.shelf(record.id);
        if shelf.find(record.id).is_some() {
            return Ok(false);
        }
        let now = self.clock.now();
        shelf.make_room(now)?;
        shelf.put(record.clone(), now);
        Ok(true)
    }

    /// See [`HoldStore::due_holds`]. Locks one shelf at a time.
    pub fn due_holds(&self, most: usize) -> Vec<HoldId> {
        self.records.due(self.clock.now(), most)
    }

    /// See [`HoldStore::holders`].
    pub fn holders(&self, charge: &Charge<'_>, most: usize) -> Vec<Holder> {
        let Limit::Concurrency(numbers) = charge.limit else {
            return Vec::new();
        };
        let mut shard = self.shards[self.shard_of(charge.key)].0.lock();
        let now = self.clock.now();
        shard.holders(charge, numbers, most, now)
    }
}

/// Refuses what no record could hold.
fn check_charges(charges: &[Charge<'_>]) -> Result<(), StoreError> {
    if charges.len() > MAX_CHARGES {
        let why = format!(
            "a hold has at most {MAX_CHARGES} charges, and this has {}",
            charges.len()
        );
        return Err(StoreError::Script(why.into()));
    }
    Ok(())
}

impl<C: Clock> Locked<'_, C> {
    fn leave_queues(&mut self, charges: &[Charge<'_>], ticket: u128) {
        for charge in charges {
            if matches!(charge.limit, Limit::Concurrency(_)) {
                self.of(charge.key).leave_queue(charge, ticket);
            }
        }
    }

    /// Gives a refused hold a place in the queue of each limit that refuses it, if nothing but slots is
    /// missing. How many are before it at most.
    fn wait(
        &mut self,
        charges: &[Charge<'_>],
        looks: &Looks,
        wait: Wait,
        now: Time,
    ) -> Option<u64> {
        let refusing = || {
            let all = charges.iter().zip(looks);
            all.filter(|(charge, look)| charge.enforces() && !look.verdict.is_allowed())
        };
        let mut longest = 0;
        if refusing().any(|(charge, _)| !matches!(charge.limit, Limit::Concurrency(_))) {
            return None;
        }
        for (charge, _) in refusing() {
            if let Limit::Concurrency(numbers) = charge.limit {
                let deadline = now + wait.patience.min(MAX_TTL);
                let shard = self.of(charge.key);
                let ahead = shard.wait_for_slot(charge, numbers, wait.ticket, deadline, now)?;
                longest = longest.max(ahead);
            }
        }
        Some(longest)
    }

    /// Who is to hold the slots of a hold that passes. Its fence is above those of all of them.
    fn slots(
        &mut self,
        charges: &[Charge<'_>],
        looks: &Looks,
        units: u64,
        new: &NewHold<'_>,
        expires_at: Time,
        now: Time,
    ) -> Holder {
        let mut fence = now.as_micros();
        for (charge, look) in charges.iter().zip(looks) {
            if let Limit::Concurrency(numbers) = charge.limit
                && look.verdict.is_allowed()
                && charge.cost.saturating_mul(units) > 0
            {
                fence = fence.max(self.of(charge.key).fence(charge, numbers, now));
            }
        }
        Holder {
            hold: new.id.bits(),
            owner: new.bounded_owner().into(),
            fence,
            expires_at,
        }
    }
}

impl<C: Clock> HoldStore for MemoryStore<C> {
    fn hold(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> impl Future<Output = Result<Held, StoreError>> + Send {
        ready(self.hold(charges, units, new))
    }

    fn settle(
        &self,
        id: HoldId,
        how: Settle,
    ) -> impl Future<Output = Result<Settled, StoreError>> + Send {
        ready(Ok(self.settle(id, how)))
    }

    fn extend(
        &self,
        id: HoldId,
        ttl: Span,
        token: Option<Token>,
    ) -> impl Future<Output = Result<Extended, StoreError>> + Send {
        ready(Ok(self.extend(id, ttl, token)))
    }

    fn find_hold(
        &self,
        id: HoldId,
    ) -> impl Future<Output = Result<Option<HoldRecord>, StoreError>> + Send {
        ready(Ok(self.find_hold(id)))
    }

    fn put_hold(
        &self,
        record: &HoldRecord,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        ready(self.put_hold(record))
    }

    fn due_holds(
        &self,
        most: usize,
    ) -> impl Future<Output = Result<Vec<HoldId>, StoreError>> + Send {
        ready(Ok(self.due_holds(most)))
    }

    fn holders(
        &self,
        charge: &Charge<'_>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Holder>, StoreError>> + Send {
        ready(Ok(self.holders(charge, most)))
    }
}
