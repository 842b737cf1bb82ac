//! Holds of the reference store. Records are never forgotten.

use std::sync::Arc;

use tollgate_core::concurrency::{Holder, State};
use tollgate_core::{Charge, HoldId, Limit, Span, Time, Token, Verdict};

use super::{ReferenceStore, States, all_allow, applied, asked};
use tollgate_store::{
    Clock, Extended, Held, HeldCharge, HoldRecord, NewHold, OpenBound, Settle, Settled, Wait,
};

impl States {
    /// Returns the slots of `charge`, if its limit is a concurrency limit.
    pub(super) fn slots(&mut self, charge: &Charge<'_>) -> Option<&mut State> {
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

    /// Gives the hold a place in the queue of each slot that it needs, if nothing but slots is missing. Returns
    /// how many clients are before it in the longest queue.
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

impl<C: Clock> ReferenceStore<C> {
    pub(super) fn hold(&self, charges: &[Charge<'_>], units: u64, new: &NewHold<'_>) -> Held {
        let mut records = self.records.lock();
        if let Some(known) = records.get(&new.id) {
            return match known.fingerprint == new.fingerprint {
                true => Held::Repeated(known.clone().into()),
                false => Held::Conflict(known.clone().into()),
            };
        }
        let is_full = |bound: OpenBound| {
            let of_subject = |it: &&HoldRecord| it.is_open() && it.subject == Some(bound.subject);
            records.values().filter(of_subject).count() as u64 >= bound.most
        };
        if new.bound.is_some_and(is_full) {
            return Held::TooMany;
        }
        let (now, mut states) = self.current();
        states.carry_over(charges, now);
        let ticket = new.wait.map(|it| it.ticket);
        let verdicts: Vec<Verdict> = (0..charges.len())
            .map(|i| states.decide_for(&charges[i], ticket, asked(charges, i, units.max(1)), now))
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
        let applied = applied(now, allowed, units, outcomes);
        if !allowed {
            return Held::Denied { applied, ahead };
        }
        let charges = charges.iter().zip(taken);
        let charges = charges.map(|(charge, taken)| HeldCharge::of(charge, taken));
        let record = HoldRecord::new(new, units, fence, charges.collect(), now);
        records.insert(new.id, record.clone());
        let record = Arc::new(record);
        Held::Taken { applied, record }
    }

    pub(super) fn settle(&self, id: HoldId, how: Settle) -> Settled {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&id) else {
            return Settled::Unknown;
        };
        let (now, mut states) = self.current();
        if !record.may_settle(how) {
            return Settled::NotYours;
        }
        if !record.is_open() {
            return Settled::Already(record.clone().into());
        }
        if how == Settle::Expire && now < record.expires_at {
            return Settled::NotYet(record.clone().into());
        }
        let unrestored = |held: &HeldCharge| {
            let charge = held.as_charge();
            let changes = record.settles(held) && record.due(held, how) != held.taken;
            changes && charge.needs_state() && !states.has(&charge)
        };
        if how != Settle::Undo && record.charges.iter().any(unrestored) {
            return Settled::Unrestored(record.clone().into());
        }
        let before = record.clone();
        for held in record.charges.iter_mut().filter(|it| before.settles(it)) {
            let (due, taken, charge) = (before.due(held, how), held.taken, held.as_charge());
            held.taken = if let Some(slots) = states.slots(&charge) {
                slots.free(id.bits(), before.expires_at);
                0
            } else if due <= taken {
                states.refund(&charge, taken - due, before.charged_at, now);
                due
            } else {
                taken + states.overdraw(&charge, due - taken, charge.overdraft, now)
            };
        }
        record.end(how);
        let record = Arc::new(record.clone());
        if how == Settle::Undo {
            records.remove(&id);
        }
        Settled::Done(record)
    }

    pub(super) fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Extended {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&id) else {
            return Extended::Unknown;
        };
        if !record.may_extend(token) {
            return Extended::NotYours;
        }
        if !record.is_open() {
            return Extended::Ended(record.clone().into());
        }
        let (now, mut states) = (self.clock.now(), self.states.lock());
        let (from, to) = (record.expires_at, record.expires_at.max(now + ttl));
        let mut lapsed = record.has_slots() && now >= from;
        for held in record.charges.iter().filter(|it| it.taken > 0) {
            let slots = states.slots(&held.as_charge());
            lapsed |= slots.is_some_and(|slots| !slots.has(id.bits(), from));
        }
        if lapsed {
            return Extended::Lapsed(record.clone().into());
        }
        for held in record.charges.iter().filter(|it| it.taken > 0) {
            if let Some(slots) = states.slots(&held.as_charge()) {
                slots.renew(id.bits(), from, to);
            }
        }
        record.expires_at = to;
        Extended::Done(record.clone().into())
    }
}
