//! Holds of the reference store. Records are never forgotten.

use std::sync::Arc;

use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, HoldId, Limit, Span, Time, Token, Verdict};

use super::{ReferenceStore, States, all_allow, asked};
use tollgate_store::{
    Applied, Clock, Extended, Guarantee, Held, HeldCharge, HoldRecord, NewHold, Settle, Settled,
    StoreError, Wait,
};

impl States {
    /// Returns the slots of `charge`, if it is of a concurrency limit.
    fn slots(&mut self, charge: &Charge<'_>) -> Option<&mut tollgate_core::concurrency::State> {
        let Limit::Concurrency(numbers) = charge.limit else {
            return None;
        };
        let fresh = || (numbers.clone(), Default::default());
        let (_, state) = self.slots.entry(charge.key).or_insert_with(fresh);
        Some(state)
    }

    fn decide_for(
        &mut self,
        charge: &Charge<'_>,
        ticket: Option<u128>,
        cost: u64,
        now: Time,
    ) -> Verdict {
        if let Limit::Concurrency(numbers) = charge.limit
            && let Some(state) = self.slots(charge)
        {
            return numbers.decide_for(state, ticket, cost, now);
        }
        self.decide(charge, cost, now)
    }

    /// Adds a place to the queue of each limit that a slot is needed of, if nothing else denies. Returns the
    /// most clients before it.
    fn wait(
        &mut self,
        charges: &[Charge<'_>],
        verdicts: &[Verdict],
        units: u64,
        wait: Wait,
        now: Time,
    ) -> Option<u64> {
        for (charge, verdict) in charges.iter().zip(verdicts) {
            if charge.enforces() && !verdict.is_allowed() {
                self.slots(charge)?;
            }
        }
        if wait.patience == Span::ZERO {
            return None;
        }
        let mut longest = 0;
        for charge in charges.iter().filter(|it| it.enforces()) {
            if let Some(slots) = self.slots(charge).filter(|_| charge.cost * units > 0) {
                longest = longest.max(slots.wait(wait.ticket, now + wait.patience, now)?);
            }
        }
        Some(longest)
    }
}

/// The hold methods of [`Store`](crate::Store).
impl<C: Clock> ReferenceStore<C> {
    pub(super) fn hold(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        let mut records = self.records.lock();
        if let Some(known) = records.get(&new.id) {
            return Ok(match known.fingerprint == new.fingerprint {
                true => Held::Repeated(known.clone().into()),
                false => Held::Conflict(known.clone().into()),
            });
        }
        let now = self.clock.now();
        let mut states = self.states.lock();
        states.forget_expired(now);
        states.carry_over(charges, now);
        let ticket = new.wait.map(|it| it.ticket);
        let verdicts: Vec<Verdict> = (0..charges.len())
            .map(|i| states.decide_for(&charges[i], ticket, asked(charges, i, units), now))
            .collect();
        let allowed = all_allow(charges, &verdicts);
        let mut ahead = None;
        if let Some(wait) = new.wait {
            if !allowed {
                ahead = states.wait(charges, &verdicts, units, wait, now);
            }
            for charge in charges.iter().filter(|_| ahead.is_none()) {
                if let Some(slots) = states.slots(charge) {
                    slots.leave(wait.ticket);
                }
            }
        }
        let holds = |i: usize| allowed && verdicts[i].is_allowed() && charges[i].cost * units > 0;
        let mut fence = 0;
        for (i, charge) in charges.iter().enumerate() {
            if let Some(slots) = states.slots(charge).filter(|_| holds(i)) {
                fence = fence.max(slots.fence(now));
            }
        }
        let (mut outcomes, mut taken) = (Vec::new(), Vec::new());
        for (i, charge) in charges.iter().enumerate() {
            let mut outcome = states.write(charges, &verdicts, i, units, allowed, now);
            if let Some(slots) = states.slots(charge) {
                if holds(i) {
                    slots.take(Holder {
                        hold: new.id.bits(),
                        owner: new.bounded_owner().into(),
                        fence,
                        expires_at: now + new.ttl,
                    });
                }
                outcome = states.outcome(charge, verdicts[i].admission, now);
                outcome.remaining = states.decide_for(charge, ticket, 0, now).available;
            }
            outcomes.push(outcome);
            taken.push(match charge.limit {
                _ if !holds(i) => 0,
                Limit::Concurrency(_) => 1,
                Limit::Backoff(_) => 0,
                _ => charge.cost * units,
            });
        }
        let applied = Applied {
            now,
            allowed,
            granted: if allowed { units } else { 0 },
            outcomes: outcomes.into(),
            guarantee: Guarantee::Atomic,
        };
        if !allowed {
            return Ok(Held::Denied { applied, ahead });
        }
        let charges = charges.iter().zip(taken);
        let charges = charges.map(|(charge, taken)| HeldCharge::of(charge, taken));
        let record = HoldRecord::new(new, units, fence, charges.collect(), now);
        records.insert(new.id, record.clone());
        let record = Arc::new(record);
        Ok(Held::Taken { applied, record })
    }

    pub(super) fn settle(&self, id: HoldId, how: Settle) -> Result<Settled, StoreError> {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&id) else {
            return Ok(Settled::Unknown);
        };
        let now = self.clock.now();
        if !record.may_settle(how) {
            return Ok(Settled::NotYours);
        }
        if !record.is_open() {
            return Ok(Settled::Already(record.clone().into()));
        }
        if how == Settle::Expire && now < record.expires_at {
            return Ok(Settled::NotYet(record.clone().into()));
        }
        let mut states = self.states.lock();
        states.forget_expired(now);
        let unrestored = |held: &HeldCharge| {
            let charge = held.as_charge();
            let changes = record.settles(held) && record.due(held, how) != held.taken;
            changes && charge.needs_state() && !states.has(&charge)
        };
        if record.charges.iter().any(unrestored) {
            return Ok(Settled::Unrestored(record.clone().into()));
        }
        let (before, expires_at, charged_at) =
            (record.clone(), record.expires_at, record.charged_at);
        for held in record.charges.iter_mut().filter(|it| before.settles(it)) {
            let due = before.due(held, how);
            let HeldCharge { taken, .. } = *held;
            let charge = held.as_charge();
            held.taken = if let Some(slots) = states.slots(&charge) {
                slots.free(id.bits(), expires_at);
                0
            } else if due <= taken {
                states.refund(&charge, taken - due, charged_at, now);
                due
            } else {
                taken + states.overdraw(&charge, due - taken, charge.overdraft, now)
            };
        }
        record.end(how);
        Ok(Settled::Done(record.clone().into()))
    }

    pub(super) fn extend(
        &self,
        id: HoldId,
        ttl: Span,
        token: Option<Token>,
    ) -> Result<Extended, StoreError> {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&id) else {
            return Ok(Extended::Unknown);
        };
        let now = self.clock.now();
        if !record.may_extend(token) {
            return Ok(Extended::NotYours);
        }
        if !record.is_open() {
            return Ok(Extended::Ended(record.clone().into()));
        }
        if record.has_slots() && now >= record.expires_at {
            return Ok(Extended::Lapsed(record.clone().into()));
        }
        let (from, to) = (record.expires_at, record.expires_at.max(now + ttl));
        let mut states = self.states.lock();
        for held in record.charges.iter().filter(|it| it.taken > 0) {
            if let Some(slots) = states.slots(&held.as_charge())
                && !slots.has(id.bits(), from)
            {
                return Ok(Extended::Lapsed(record.clone().into()));
            }
        }
        for held in record.charges.iter().filter(|it| it.taken > 0) {
            if let Some(slots) = states.slots(&held.as_charge()) {
                slots.renew(id.bits(), from, to);
            }
        }
        record.expires_at = to;
        Ok(Extended::Done(record.clone().into()))
    }

    pub(super) fn find_hold(&self, id: HoldId) -> Result<Option<Arc<HoldRecord>>, StoreError> {
        Ok(self.records.lock().get(&id).cloned().map(Arc::new))
    }

    pub(super) fn put_hold(&self, record: &HoldRecord) -> Result<bool, StoreError> {
        let mut records = self.records.lock();
        let is_new = !records.contains_key(&record.id);
        if is_new {
            records.insert(record.id, record.clone());
        }
        Ok(is_new)
    }

    pub(super) fn due_holds(&self, most: usize) -> Result<Vec<HoldId>, StoreError> {
        let (records, now) = (self.records.lock(), self.clock.now());
        let is_due = |it: &&HoldRecord| it.is_open() && it.expires_at <= now;
        let mut due: Vec<_> = records.values().filter(is_due).collect();
        due.sort_by_key(|it| (it.expires_at, it.id));
        Ok(due.into_iter().take(most).map(|it| it.id).collect())
    }

    pub(super) fn holders(
        &self,
        charge: &Charge<'_>,
        most: usize,
    ) -> Result<Vec<Holder>, StoreError> {
        let now = self.clock.now();
        let mut states = self.states.lock();
        let holders = states.slots(charge).map(|it| it.holders(now, most));
        Ok(holders.into_iter().flatten().collect())
    }
}
