//! The slots of concurrency limits in a shard. Holds take and free these slots.
//!
//! While the store is full, new subjects share slots as they share other states. They share these slots
//! until no client holds or waits for one of them. A subject that got its own state earlier would have its
//! slots twice.

use tollgate_core::concurrency::{Concurrency, Holder, State};
use tollgate_core::{Admission, Charge, Limiting, Outcome, Time};

use super::one_charge::{Look, Place};
use super::shard::Shard;
use super::table::Id;
use crate::contract::GRACE;

impl Shard {
    /// Returns the id of the slots of `charge`, and whether they are shared. The slots may not exist yet.
    fn slots_id(&mut self, charge: &Charge<'_>, now: Time) -> (Id, bool) {
        let (own, overflow) = (Id::of(charge.key), Id::of(charge.overflow));
        if self.others.slots.find(own).is_some() {
            return (own, false);
        }
        self.make_room(charge, now);
        let is_live = now < self.shared_until && self.others.slots.find(overflow).is_some();
        if is_live || self.is_full() {
            (overflow, true)
        } else {
            (own, false)
        }
    }

    /// Returns the slots of `charge`, if they exist. Also returns whether the charge uses shared slots.
    fn known_slots(
        &mut self,
        charge: &Charge<'_>,
        numbers: &Concurrency,
        now: Time,
    ) -> (Option<&State>, bool) {
        let (id, shared) = self.slots_id(charge, now);
        let table = &mut self.others.slots;
        let index = table.find(id);
        let state = index.and_then(|it| table.state(it, numbers, charge.carry_over, now));
        (state, shared)
    }

    /// Decides whether a slot is free for a client, which may have a ticket.
    pub(super) fn look_slot(
        &mut self,
        charge: &Charge<'_>,
        numbers: &Concurrency,
        ticket: Option<u128>,
        cost: u64,
        now: Time,
    ) -> Look {
        let fresh = State::default();
        let (state, shared) = self.known_slots(charge, numbers, now);
        Look {
            verdict: numbers.decide_for(state.unwrap_or(&fresh), ticket, cost, now),
            asked: cost,
            place: if shared { Place::Shared } else { Place::New },
        }
    }

    /// Changes the slots of `charge`, and creates them if needed.
    pub(super) fn change_slots<T>(
        &mut self,
        charge: &Charge<'_>,
        numbers: &Concurrency,
        now: Time,
        change: impl FnOnce(&mut State) -> T,
    ) -> Option<T> {
        let (id, shared) = self.slots_id(charge, now);
        let table = &mut self.others.slots;
        if table.find(id).is_none() {
            table.insert(id, numbers, State::default());
        }
        let index = table.find(id)?;
        table.state(index, numbers, charge.carry_over, now);
        let (changed, expires_at) = table.change(index, |state| {
            state.forget(now - GRACE);
            (change(state), numbers.expires_at(state))
        })?;
        if shared {
            self.shared_until = self.shared_until.max(expires_at);
            self.shared += 1;
        }
        Some(changed)
    }

    /// Changes the slots of `charge` that exist: its own slots, and the shared slots.
    pub(super) fn change_known_slots(&mut self, charge: &Charge<'_>, change: impl Fn(&mut State)) {
        for key in [charge.key, charge.overflow] {
            let table = &mut self.others.slots;
            if let Some(index) = table.find(Id::of(key)) {
                table.change(index, &change);
            }
        }
    }

    /// Returns whether `hold` still has its slot of `charge`. A reset removes slots.
    pub(super) fn has_slot(&mut self, charge: &Charge<'_>, hold: u128, expires_at: Time) -> bool {
        let table = &mut self.others.slots;
        [charge.key, charge.overflow].into_iter().any(|key| {
            let index = table.find(Id::of(key));
            let has = index.and_then(|it| table.change(it, |state| state.has(hold, expires_at)));
            has.unwrap_or(false)
        })
    }

    pub(super) fn renew_slot(&mut self, charge: &Charge<'_>, hold: u128, from: Time, to: Time) {
        self.change_known_slots(charge, |state| state.renew(hold, from, to));
        self.shared_until = self.shared_until.max(to);
    }

    /// Returns the outcome of `charge` with this `admission`.
    pub(super) fn slot_outcome(
        &mut self,
        charge: &Charge<'_>,
        numbers: &Concurrency,
        admission: Admission,
        ticket: Option<u128>,
        now: Time,
    ) -> Outcome {
        let fresh = State::default();
        let (state, _) = self.known_slots(charge, numbers, now);
        let state = state.unwrap_or(&fresh);
        Outcome {
            admission,
            limit: numbers.limit(),
            remaining: numbers.decide_for(state, ticket, 0, now).available,
            reset_at: numbers.expires_at(state).max(now),
        }
    }

    /// Returns up to `most` holders of slots of `charge`.
    pub(super) fn holders(
        &mut self,
        charge: &Charge<'_>,
        numbers: &Concurrency,
        most: usize,
        now: Time,
    ) -> Vec<Holder> {
        let (state, _) = self.known_slots(charge, numbers, now);
        state.map_or_else(Vec::new, |state| state.holders(now, most).collect())
    }
}
