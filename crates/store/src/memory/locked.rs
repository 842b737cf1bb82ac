//! The locked shards of one request, and what a request does in them.

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tollgate_core::meter::Meter;
use tollgate_core::{Charge, Key, Limit, Limiting, Outcome, Time};

use super::MemoryStore;
use super::all_charges::{Looks, is_unrestored, result_for, weight};
use super::one_charge::{Look, Write, charge_admitted};
use super::shard::Shard;
use crate::clock::Clock;
use crate::contract::{Applied, Outcomes};

/// The locked shards of one request.
pub(super) struct Locked<'s, C> {
    store: &'s MemoryStore<C>,
    /// The locked shards in ascending order, each with its index. Most requests lock one or two, so a search
    /// finds a shard fastest.
    shards: SmallVec<[(usize, MutexGuard<'s, Shard>); 6]>,
}

/// A charge that its state admits: the place of its shard among the locked ones, the place of the state in
/// the shard, the available amount, and the cost.
struct Admitted {
    shard: usize,
    state: usize,
    available: u64,
    cost: u64,
}

impl<C> Drop for Locked<'_, C> {
    /// Unlocks the shards in descending order. When the next request gets the first lock, the other shards
    /// are already free. So it does not keep the first lock while it waits for the second.
    fn drop(&mut self) {
        while self.shards.pop().is_some() {}
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Decides and writes the most common request with two charges: see [`Locked::charge_meters`]. The keys are in
    /// two shards. For any other request, changes nothing and returns false.
    ///
    /// Both states are looked up before either is used. So the processor waits for both at the same time.
    #[inline]
    pub(super) fn charge_two_meters(
        &self,
        charges: [&Charge<'_>; 2],
        units: u64,
        applied: &mut Applied,
    ) -> bool {
        let [Some(first), Some(second)] = charges.map(|charge| meter_of(charge.limit)) else {
            return false;
        };
        let shards = charges.map(|charge| self.shard_of(charge.key));
        let costs = charges.map(|charge| charge.cost.saturating_mul(units));
        if shards[0] == shards[1] || costs.contains(&0) {
            return false;
        }
        // Locked in ascending order and unlocked in descending order, as everywhere.
        let is_ascending = shards[0] < shards[1];
        let mut low = self.shards[shards[0].min(shards[1])].0.lock();
        let mut high = self.shards[shards[0].max(shards[1])].0.lock();
        let now = self.clock.now();
        if now >= Time::MAX {
            return false;
        }
        let (one, other) = match is_ascending {
            true => (&mut *low, &mut *high),
            false => (&mut *high, &mut *low),
        };
        let one = one.meter_state(charges[0].key, first);
        let other = other.meter_state(charges[1].key, second);
        if let (Some(one), Some(other)) = (one, other)
            && let Some(of_one) = first.admits(one, costs[0], now)
            && let Some(of_other) = second.admits(other, costs[1], now)
        {
            applied.outcomes.extend_from_slice(&[
                charge_admitted(first, one, of_one, costs[0], now),
                charge_admitted(second, other, of_other, costs[1], now),
            ]);
            applied.settle(now, true, units);
            return true;
        }
        false
    }

    /// Locks the shards of `charges`, in ascending order.
    #[inline]
    pub(super) fn lock(&self, charges: &[Charge<'_>]) -> Locked<'_, C> {
        let mut wanted: u64 = 0;
        for charge in charges {
            wanted |= 1 << self.shard_of(charge.key);
        }
        let mut shards = SmallVec::new();
        while wanted != 0 {
            let index = wanted.trailing_zeros() as usize;
            shards.push((index, self.shards[index].0.lock()));
            wanted &= wanted - 1;
        }
        Locked {
            store: self,
            shards,
        }
    }
}

/// Returns the numbers of a GCRA or token bucket.
#[inline]
fn meter_of(limit: &Limit) -> Option<&Meter> {
    match limit {
        Limit::Gcra(meter) | Limit::TokenBucket(meter) => Some(meter),
        _ => None,
    }
}

impl<C: Clock> Locked<'_, C> {
    /// Returns the place of the shard of `key` among the locked ones.
    #[inline]
    fn place_of(&self, key: Key) -> usize {
        let index = self.store.shard_of(key);
        let place = self.shards.iter().position(|(it, _)| *it == index);
        // The shards of all charges are locked.
        place.unwrap_or_default()
    }

    #[inline]
    pub(super) fn of(&mut self, key: Key) -> &mut Shard {
        let place = self.place_of(key);
        &mut self.shards[place].1
    }

    /// Decides and writes the most common request with several charges: each charge is of a token bucket or
    /// GCRA with a state, and admits the request without delay. For any other request, changes nothing and
    /// returns false.
    #[inline]
    pub(super) fn charge_meters(
        &mut self,
        charges: &[Charge<'_>],
        units: u64,
        now: Time,
        outcomes: &mut Outcomes,
    ) -> bool {
        let mut all: SmallVec<[Admitted; 6]> = SmallVec::new();
        for (i, charge) in charges.iter().enumerate() {
            let cost = charge.cost.saturating_mul(units);
            let is_repeated = charges[..i].iter().any(|it| it.key == charge.key);
            if cost == 0 || is_repeated {
                return false;
            }
            let shard = self.place_of(charge.key);
            match self.shards[shard].1.meter_admits(charge, cost, now) {
                Some((state, available)) => all.push(Admitted {
                    shard,
                    state,
                    available,
                    cost,
                }),
                None => return false,
            }
        }
        for (charge, it) in charges.iter().zip(&all) {
            let shard = &mut self.shards[it.shard].1;
            shard.charge_meter(charge, (it.state, it.available), it.cost, now, outcomes);
        }
        true
    }

    pub(super) fn look(
        &mut self,
        charges: &[Charge<'_>],
        units: u64,
        now: Time,
        looks: &mut Looks,
    ) {
        looks.clear();
        for (i, charge) in charges.iter().enumerate() {
            let cost = weight(charges, i).saturating_mul(units);
            let mut look = self.of(charge.key).look(charge, cost, now);
            if look.is_shared() {
                let others = self.drawn_by_others(charges, looks, i);
                if others > 0 {
                    let cost = cost.saturating_add(others.saturating_mul(units));
                    look = self.of(charge.key).look(charge, cost, now);
                }
            }
            looks.push(look);
        }
    }

    /// Writes charge `i` of a request for `units`. `allowed` says whether the request passes.
    pub(super) fn write(
        &mut self,
        charges: &[Charge<'_>],
        looks: &[Look],
        i: usize,
        units: u64,
        allowed: bool,
        now: Time,
    ) -> Outcome {
        let (charge, look) = (&charges[i], &looks[i]);
        let cost = charge.cost.saturating_mul(units);
        let shard = self.of(charge.key);
        let result = result_for(charges, looks, charge, allowed);
        let write = match !allowed && is_unrestored(charges, looks) {
            // Write nothing: the caller restores the state and asks again.
            true => Write::Nothing,
            false => Write::of(charge, &look.verdict, result),
        };
        let mut outcome = shard.write(charge, look, cost, write, now);
        if allowed && charge.enforces() {
            // A charge that allowed the request must not report a denial. For example, a back-off that
            // counts a strike for the denial of a shadow blocks only the next request.
            outcome.admission = look.verdict.admission;
        }
        if look.asked != cost {
            // Earlier charges of the same key may have taken something since the verdict.
            outcome.remaining = shard.peek(charge, 0, now).remaining;
        }
        outcome
    }

    /// Forgets some expired states after a request with new keys.
    pub(super) fn tidy(&mut self, charges: &[Charge<'_>], looks: &[Look], now: Time) {
        for (charge, look) in charges.iter().zip(looks) {
            self.of(charge.key).tidy(charge, look, now);
        }
    }

    /// Returns the cost of one unit that other new subjects take from the shared state of charge `i`.
    /// Counts the charges before charge `i`.
    fn drawn_by_others(&self, charges: &[Charge<'_>], looks: &[Look], i: usize) -> u64 {
        let stranger = &charges[i];
        let shard = self.store.shard_of(stranger.key);
        let others = charges.iter().zip(looks).filter(|(other, look)| {
            look.is_shared()
                && other.key != stranger.key
                && other.overflow == stranger.overflow
                && self.store.shard_of(other.key) == shard
        });
        others.fold(0, |sum: u64, (other, _)| sum.saturating_add(other.cost))
    }
}
