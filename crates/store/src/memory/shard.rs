//! A shard has the states of a part of the keys, in one table per algorithm, under one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate_core::backoff::Backoff;
use tollgate_core::concurrency::Concurrency;
use tollgate_core::fair::Fair;
use tollgate_core::fixed_window::FixedWindow;
use tollgate_core::leaky_bucket::LeakyBucket;
use tollgate_core::meter::{self, Meter};
use tollgate_core::quota::Quota;
use tollgate_core::sliding_counter::SlidingCounter;
use tollgate_core::sliding_log::SlidingLog;
use tollgate_core::two_window::TwoWindow;
use tollgate_core::{
    Balance, CarryOver, Charge, Key, Limit, Limiting, MAX_AMOUNT, Outcome, Time, Verdict,
};

use super::one_charge::{
    AT_ONCE, Look, Place, RequestResult, UNLIMITED, Write, apply_own, charge_admitted, look_own,
    outcome_of, starting_state, unlimited_outcome, unrestored, write_at, write_new,
};
use super::table::{Id, Table};
use crate::contract::{AllowanceLevel, Outcomes};

/// How many buckets are searched for expired states when a new key comes.
const SWEEP: usize = 8;
/// How many buckets are searched for expired states when a new key comes and the shard is full.
const SWEEP_FULL: usize = 64;
/// The bytes outside a table that count as one key.
const BYTES_PER_KEY: usize = 64;

/// The states of a part of the keys.
pub(super) struct Shard {
    meters: Table<Meter>,
    /// The tables that few requests use. They are boxed to keep the shard small: the tables that most
    /// requests use have to fit into the first-level cache, for all shards together.
    pub(super) others: Box<Others>,
    max_keys: usize,
    /// The latest expiry of the shared states.
    pub(super) shared_until: Time,
    /// The number of decisions by a shared state.
    pub(super) shared: u64,
}

pub(super) struct Others {
    leaky: Table<LeakyBucket>,
    windows: Table<FixedWindow>,
    logs: Table<SlidingLog>,
    counters: Table<SlidingCounter>,
    pairs: Table<TwoWindow>,
    backoffs: Table<Backoff>,
    quotas: Table<Quota>,
    pub(super) slots: Table<Concurrency>,
    fair: Table<Fair>,
    /// The memory of fair buckets, in this shard as it was counted last, and in all shards.
    fair_counted: usize,
    fair_memory: Arc<FairMemory>,
}

/// The memory of all fair buckets of a store. One bucket may have many clients, and a shard has only a small
/// part of the keys. So this memory has a bound of its own, for the whole store.
#[derive(Debug)]
pub(super) struct FairMemory {
    used: AtomicUsize,
    most: usize,
}

impl FairMemory {
    /// Returns the bound of a store of `max_keys` states: as much as these states may have outside tables.
    pub(super) fn new(max_keys: usize) -> FairMemory {
        FairMemory {
            used: AtomicUsize::new(0),
            most: max_keys.saturating_mul(BYTES_PER_KEY),
        }
    }

    fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.most
    }
}

/// Runs `$body` with the table and the numbers of `$limit`, for any algorithm.
macro_rules! with_table {
    ($shard:expr, $limit:expr, |$table:ident, $numbers:ident| $body:expr, unlimited: $unlimited:expr) => {
        match $limit {
            Limit::Gcra($numbers) | Limit::TokenBucket($numbers) => {
                let $table = &mut $shard.meters;
                $body
            }
            Limit::LeakyBucket($numbers) => {
                let $table = &mut $shard.others.leaky;
                $body
            }
            Limit::FixedWindow($numbers) => {
                let $table = &mut $shard.others.windows;
                $body
            }
            Limit::SlidingLog($numbers) => {
                let $table = &mut $shard.others.logs;
                $body
            }
            Limit::SlidingCounter($numbers) => {
                let $table = &mut $shard.others.counters;
                $body
            }
            Limit::TwoWindow($numbers) => {
                let $table = &mut $shard.others.pairs;
                $body
            }
            Limit::Backoff($numbers) => {
                let $table = &mut $shard.others.backoffs;
                $body
            }
            Limit::Quota($numbers) => {
                let $table = &mut $shard.others.quotas;
                $body
            }
            Limit::Concurrency($numbers) => {
                let $table = &mut $shard.others.slots;
                $body
            }
            Limit::Fair($numbers) => {
                let $table = &mut $shard.others.fair;
                $body
            }
            Limit::Unlimited(_) => $unlimited,
        }
    };
}

impl Shard {
    pub(super) fn new(max_keys: usize, fair_memory: Arc<FairMemory>) -> Shard {
        Shard {
            meters: Table::new(),
            others: Box::new(Others {
                leaky: Table::new(),
                windows: Table::new(),
                logs: Table::new(),
                counters: Table::new(),
                pairs: Table::new(),
                backoffs: Table::new(),
                quotas: Table::new(),
                slots: Table::new(),
                fair: Table::new(),
                fair_counted: 0,
                fair_memory,
            }),
            max_keys,
            shared_until: Time::default(),
            shared: 0,
        }
    }

    /// Decides and writes a request with one charge. If the key has a state, this is one step. Adds the
    /// outcome, and returns whether the limit allows the request.
    #[inline]
    pub(super) fn apply_one(
        &mut self,
        charge: &Charge<'_>,
        cost: u64,
        now: Time,
        outcomes: &mut Outcomes,
    ) -> bool {
        // Most limits are GCRA or token buckets. These are decided inline, and other limits by a call.
        if let Limit::Gcra(meter) | Limit::TokenBucket(meter) = charge.limit {
            let id = Id::of(charge.key);
            let own = apply_own(&mut self.meters, meter, id, charge, cost, now, outcomes);
            if let Some(allowed) = own {
                return allowed;
            }
        }
        self.apply_one_of_others(charge, cost, now, outcomes)
    }

    /// Returns the state of a GCRA or token bucket, if it was written under these numbers.
    #[inline]
    pub(super) fn meter_state(&mut self, key: Key, meter: &Meter) -> Option<&mut meter::State> {
        self.meters.own(Id::of(key), meter)
    }

    /// Returns the index of the state of a GCRA or token bucket, and its available amount. Returns `None`
    /// unless the state admits `cost` without delay.
    #[inline]
    pub(super) fn meter_admits(
        &self,
        charge: &Charge<'_>,
        cost: u64,
        now: Time,
    ) -> Option<(usize, u64)> {
        let (Limit::Gcra(meter) | Limit::TokenBucket(meter)) = charge.limit else {
            return None;
        };
        let index = self.meters.find(Id::of(charge.key))?;
        let state = self.meters.state_in(index, meter)?;
        Some((index, meter.admits(state, cost, now)?))
    }

    /// Takes `cost` from the state of a GCRA or token bucket at `index`. The state must admit `cost`, and
    /// have `available` left.
    #[inline]
    pub(super) fn charge_meter(
        &mut self,
        charge: &Charge<'_>,
        (index, available): (usize, u64),
        cost: u64,
        now: Time,
        outcomes: &mut Outcomes,
    ) {
        if let Limit::Gcra(meter) | Limit::TokenBucket(meter) = charge.limit {
            self.meters.change(index, |state| {
                outcomes.push(charge_admitted(meter, state, available, cost, now));
            });
        }
    }

    #[inline(never)]
    fn apply_one_of_others(
        &mut self,
        charge: &Charge<'_>,
        cost: u64,
        now: Time,
        outcomes: &mut Outcomes,
    ) -> bool {
        let id = Id::of(charge.key);
        if let Limit::Fair(fair) = charge.limit
            && let Some(outcome) = self.take_fairly(fair, id, cost, now)
        {
            outcomes.push(outcome);
            return true;
        }
        let own = with_table!(self, charge.limit, |table, numbers| apply_own(
            table, numbers, id, charge, cost, now, outcomes
        ), unlimited: None);
        own.unwrap_or_else(|| {
            let look = self.look(charge, cost, now);
            let write = Write::of(
                charge,
                &look.verdict,
                RequestResult::alone(charge, &look.verdict),
            );
            outcomes.push(self.write(charge, &look, cost, write, now));
            self.tidy(charge, &look, now);
            look.verdict.is_allowed()
        })
    }

    /// Takes `cost` from a fair bucket for a client that the bucket knows, and returns the outcome. Returns `None`,
    /// and changes nothing, if the request is denied, or if the memory of the bucket may grow or has to be bounded.
    fn take_fairly(&mut self, fair: &Fair, id: Id, cost: u64, now: Time) -> Option<Outcome> {
        if self.is_full() || self.others.fair_memory.is_full() {
            return None;
        }
        let state = self.others.fair.own(id, fair)?;
        let remaining = fair.take_as_known(state, cost, now)?;
        Some(Outcome {
            admission: AT_ONCE,
            limit: fair.capacity(),
            remaining,
            reset_at: fair.resets_at(state).max(now),
        })
    }

    /// Decides `cost` for `charge`. Takes nothing.
    pub(super) fn look(&mut self, charge: &Charge<'_>, cost: u64, now: Time) -> Look {
        let own = with_table!(self, charge.limit, |table, numbers| look_own(
            table, numbers, charge, cost, now
        ), unlimited: return UNLIMITED);
        own.unwrap_or_else(|| self.look_new(charge, cost, now))
    }

    /// Decides `cost` for a key without a state.
    #[cold]
    fn look_new(&mut self, charge: &Charge<'_>, cost: u64, now: Time) -> Look {
        if charge.needs_state() {
            return unrestored(cost);
        }
        if let Limit::Backoff(numbers) = charge.limit {
            // A back-off never uses a shared state, which would block subjects for the denials of others.
            // Most subjects are never denied, so no room is made for a state here.
            return Look {
                verdict: numbers.decide(&Default::default(), cost, now),
                asked: cost,
                place: Place::New,
            };
        }
        // A request that has looked at a state must find it again. So expired states are forgotten here
        // only if there is no room. Otherwise they are forgotten after the request.
        if self.is_full_for(charge.limit) {
            self.forget_expired(SWEEP_FULL, now);
        }
        let place = if self.is_full_for(charge.limit) {
            Place::Shared
        } else {
            Place::New
        };
        let shared_is_live = now < self.shared_until;
        with_table!(self, charge.limit, |table, numbers| {
            let state = starting_state(table, numbers, charge, shared_is_live, now);
            Look { verdict: numbers.decide(&state, cost, now), asked: cost, place }
        }, unlimited: UNLIMITED)
    }

    /// Forgets some expired states after a request for a new key.
    pub(super) fn tidy(&mut self, charge: &Charge<'_>, look: &Look, now: Time) {
        if let Place::New = look.place
            && !charge.limit.is_companion()
        {
            with_table!(self, charge.limit, |table, _numbers| table.forget_expired(SWEEP, now),
                unlimited: ());
        }
    }

    /// Forgets some expired states before a new key is inserted.
    pub(super) fn make_room(&mut self, charge: &Charge<'_>, now: Time) {
        if self.is_full() {
            self.forget_expired(SWEEP_FULL, now);
        } else {
            with_table!(self, charge.limit, |table, _numbers| table.forget_expired(SWEEP, now),
                unlimited: ());
        }
    }

    /// Returns whether there is room for the state of a back-off. Without room, strikes are not counted,
    /// but the watched limit still acts.
    fn has_room_for(&mut self, charge: &Charge<'_>, now: Time) -> bool {
        if self.others.backoffs.find(Id::of(charge.key)).is_some() {
            return true;
        }
        self.make_room(charge, now);
        !self.is_full()
    }

    /// Writes `charge`, and returns its outcome.
    pub(super) fn write(
        &mut self,
        charge: &Charge<'_>,
        look: &Look,
        cost: u64,
        write: Write,
        now: Time,
    ) -> Outcome {
        let is_lost = charge.limit.is_companion()
            && write == Write::ChargeDenied
            && !self.has_room_for(charge, now);
        let write = if cost == 0 || is_lost {
            Write::Nothing
        } else {
            write
        };
        let shared_is_live = now < self.shared_until;
        let grows = matches!(charge.limit, Limit::SlidingLog(_) | Limit::Fair(_));
        let is_full = grows && self.is_full_for(charge.limit);
        let (own, overflow) = (Id::of(charge.key), Id::of(charge.overflow));
        let (outcome, expires_at) = with_table!(self, charge.limit, |table, numbers| {
            match look.place {
                Place::Own(index) => write_at(table, numbers, index, own, look, cost, write, is_full, now),
                // An earlier charge of the request may have inserted the same key.
                Place::New => match table.find(own) {
                    Some(index) => {
                        write_at(table, numbers, index, own, look, cost, write, is_full, now)
                    }
                    None => {
                        let state = starting_state(table, numbers, charge, shared_is_live, now);
                        write_new(table, numbers, own, state, look, cost, write, now)
                    }
                },
                Place::Shared => match table.find(overflow) {
                    Some(index) => {
                        table.state(index, numbers, charge.carry_over, now);
                        write_at(table, numbers, index, overflow, look, cost, write, is_full, now)
                    }
                    None => {
                        let state = Default::default();
                        write_new(table, numbers, overflow, state, look, cost, write, now)
                    }
                },
            }
        }, unlimited: return unlimited_outcome(now));
        if let Limit::Fair(_) = charge.limit {
            self.count_fair_memory();
        }
        if let Place::Shared = look.place {
            self.shared_until = self.shared_until.max(expires_at);
            self.shared += 1;
        }
        outcome
    }

    /// Returns the outcome of `charge`, and changes nothing.
    pub(super) fn peek(&mut self, charge: &Charge<'_>, cost: u64, now: Time) -> Outcome {
        let is_full = self.is_full_for(charge.limit);
        let shared_is_live = now < self.shared_until;
        with_table!(self, charge.limit, |table, numbers| {
            let state = match table.find(Id::of(charge.key)) {
                Some(index) => {
                    let read = table.read(index, numbers, charge.carry_over, now);
                    read.unwrap_or_default()
                }
                None if charge.needs_state() => {
                    let none = Default::default();
                    return outcome_of(numbers, &none, Verdict::unrestored(), 0, now).0;
                }
                None => starting_state(table, numbers, charge, shared_is_live || is_full, now),
            };
            let verdict = numbers.decide(&state, cost, now);
            outcome_of(numbers, &state, verdict, 0, now).0
        }, unlimited: unlimited_outcome(now))
    }

    /// Gives back a `cost` that `charge` took at `charged_at`. If the numbers of the limit have changed, the
    /// state stays in its present numbers, so that nothing is carried over twice. If the change has reset the
    /// state, nothing is given back.
    pub(super) fn refund(&mut self, charge: &Charge<'_>, cost: u64, charged_at: Time, now: Time) {
        with_table!(self, charge.limit, |table, numbers| {
            if table.has_expired_under_others(Id::of(charge.key), numbers, now) {
                return;
            }
            table.change_as_written(Id::of(charge.key), numbers, now, |own, state| {
                if own == numbers || charge.carry_over != CarryOver::Reset {
                    own.refund(state, cost, charged_at, now);
                }
            });
        }, unlimited: ());
    }

    /// Returns whether the limit of `charge` is a quota that has a state.
    pub(super) fn has_quota(&self, charge: &Charge<'_>) -> bool {
        self.others.quotas.find(Id::of(charge.key)).is_some()
    }

    /// Takes as much of `cost` as the overdraft of `charge` allows, and returns the amount taken. Uses the
    /// present numbers of the state, as [`refund`](Self::refund) does. If there is no state, uses the
    /// numbers of the charge.
    pub(super) fn overdraw(&mut self, charge: &Charge<'_>, cost: u64, now: Time) -> u64 {
        if let Some((taken, _)) = self.overdraw_at(charge.key, charge, cost, now) {
            return taken;
        }
        if matches!(charge.limit, Limit::Unlimited(_)) {
            return cost;
        }
        self.make_room(charge, now);
        let is_full = self.is_full();
        if is_full
            && let Some((taken, expires_at)) = self.overdraw_at(charge.overflow, charge, cost, now)
        {
            self.shared_until = self.shared_until.max(expires_at);
            return taken;
        }
        let shared_is_live = now < self.shared_until;
        let key = Id::of(if is_full { charge.overflow } else { charge.key });
        let (taken, expires_at) = with_table!(self, charge.limit, |table, numbers| {
            let mut state = starting_state(table, numbers, charge, shared_is_live, now);
            let taken = numbers.overdraw(&mut state, cost, charge.overdraft, now);
            let expires_at = numbers.expires_at(&state);
            table.insert(key, numbers, state);
            (taken, expires_at)
        }, unlimited: return cost);
        if is_full {
            self.shared_until = self.shared_until.max(expires_at);
        }
        taken
    }

    /// Takes `cost`, even if the limit does not allow it. The state stays in its present numbers, and the level is
    /// that of a copy in the numbers of `charge`. Returns `None` if the limit has no amount, or its usage has to be
    /// restored first.
    pub(super) fn report(
        &mut self,
        charge: &Charge<'_>,
        cost: u64,
        now: Time,
    ) -> Option<AllowanceLevel> {
        let (before, _) = self.level(charge, now)?;
        if cost > 0 {
            let deep = Charge {
                overdraft: MAX_AMOUNT,
                ..*charge
            };
            self.overdraw(&deep, cost, now);
        }
        let (left, reset_at) = self.level(charge, now)?;
        Some(AllowanceLevel::after(cost, before, left, now, reset_at))
    }

    /// Returns the level of `charge`, and when its whole allowance is back.
    fn level(&mut self, charge: &Charge<'_>, now: Time) -> Option<(i64, Time)> {
        if !charge.limit.has_amount() {
            return None;
        }
        let shared_is_live = now < self.shared_until || self.is_full();
        with_table!(self, charge.limit, |table, numbers| {
            let own = table.find(Id::of(charge.key));
            let own = own.and_then(|index| table.read(index, numbers, charge.carry_over, now));
            let state = match own {
                Some(state) => state,
                None if charge.needs_state() => return None,
                None => starting_state(table, numbers, charge, shared_is_live, now),
            };
            Some((numbers.level(&state, now), numbers.resets_at(&state).max(now)))
        }, unlimited: None)
    }

    /// Overdraws the state of `key`, if it exists. Returns the amount taken, and the expiry of the state.
    fn overdraw_at(
        &mut self,
        key: Key,
        charge: &Charge<'_>,
        cost: u64,
        now: Time,
    ) -> Option<(u64, Time)> {
        with_table!(self, charge.limit, |table, numbers| {
            table.change_as_written(Id::of(key), numbers, now, |own, state| {
                let taken = own.overdraw(state, cost, charge.overdraft, now);
                (taken, own.expires_at(state))
            })
        }, unlimited: None)
    }

    /// Writes `balance` as the state of `charge`, if its limit is a quota without a state. Returns false if
    /// there is no room.
    pub(super) fn restore(&mut self, charge: &Charge<'_>, balance: Balance, now: Time) -> bool {
        let (Limit::Quota(quota), id) = (charge.limit, Id::of(charge.key)) else {
            return true;
        };
        if self.has_quota(charge) {
            return true;
        }
        self.make_room(charge, now);
        if self.is_full() {
            return false;
        }
        let state = quota.restored(balance, now);
        self.others.quotas.insert(id, quota, state);
        true
    }

    /// Adds to the balance of `charge`, if its limit is a quota that has a state.
    pub(super) fn adjust(
        &mut self,
        charge: &Charge<'_>,
        (used, extra): (i64, i64),
        now: Time,
    ) -> Option<Balance> {
        let Limit::Quota(quota) = charge.limit else {
            return None;
        };
        let quotas = &mut self.others.quotas;
        let index = quotas.find(Id::of(charge.key))?;
        quotas.state(index, quota, charge.carry_over, now)?;
        quotas.change(index, |state| quota.adjust(state, used, extra, now))
    }

    /// Returns the balance of `charge`, if its limit is a quota that has a state.
    pub(super) fn balance(&self, charge: &Charge<'_>, now: Time) -> Option<Balance> {
        let Limit::Quota(quota) = charge.limit else {
            return None;
        };
        let quotas = &self.others.quotas;
        let index = quotas.find(Id::of(charge.key))?;
        let state = quotas.read(index, quota, charge.carry_over, now)?;
        Some(quota.balance(&state, now))
    }

    /// Forgets the state of `charge`.
    pub(super) fn reset(&mut self, charge: &Charge<'_>) {
        with_table!(self, charge.limit, |table, _numbers| table.remove(Id::of(charge.key)),
            unlimited: ());
    }

    /// Returns the state of `charge` as text.
    pub(super) fn dump(&mut self, charge: &Charge<'_>) -> Option<String> {
        with_table!(self, charge.limit, |table, _numbers| table.dump(Id::of(charge.key)),
            unlimited: None)
    }

    /// Forgets expired states in the next `steps` buckets of every table. Frees the memory of tables that are
    /// mostly empty.
    pub(super) fn sweep(&mut self, steps: usize, now: Time) {
        self.forget_expired(steps, now);
        self.meters.shrink();
        self.others.leaky.shrink();
        self.others.windows.shrink();
        self.others.logs.shrink();
        self.others.counters.shrink();
        self.others.pairs.shrink();
        self.others.backoffs.shrink();
        self.others.quotas.shrink();
        self.others.slots.shrink();
        self.others.fair.shrink();
    }

    fn forget_expired(&mut self, steps: usize, now: Time) {
        self.meters.forget_expired(steps, now);
        self.others.leaky.forget_expired(steps, now);
        self.others.windows.forget_expired(steps, now);
        self.others.logs.forget_expired(steps, now);
        self.others.counters.forget_expired(steps, now);
        self.others.pairs.forget_expired(steps, now);
        self.others.backoffs.forget_expired(steps, now);
        self.others.quotas.forget_expired(steps, now);
        self.others.slots.forget_expired(steps, now);
        self.others.fair.forget_expired(steps, now);
        self.count_fair_memory();
    }

    pub(super) fn keys(&self) -> usize {
        self.meters.len()
            + self.others.leaky.len()
            + self.others.windows.len()
            + self.others.logs.len()
            + self.others.counters.len()
            + self.others.pairs.len()
            + self.others.backoffs.len()
            + self.others.quotas.len()
            + self.others.slots.len()
            + self.others.fair.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.meters.bytes()
            + self.others.leaky.bytes()
            + self.others.windows.bytes()
            + self.others.logs.bytes()
            + self.others.counters.bytes()
            + self.others.pairs.bytes()
            + self.others.backoffs.bytes()
            + self.others.quotas.bytes()
            + self.others.slots.bytes()
            + self.others.fair.bytes()
            + size_of::<Others>()
    }

    /// Returns whether there is no room for one more key of `limit`.
    fn is_full_for(&self, limit: &Limit) -> bool {
        let is_fair = matches!(limit, Limit::Fair(_));
        self.is_full() || (is_fair && self.others.fair_memory.is_full())
    }

    /// Adds the memory of fair buckets that was taken or freed to that of all shards.
    fn count_fair_memory(&mut self) {
        let others = &mut *self.others;
        let (before, now) = (others.fair_counted, others.fair.heap());
        if before != now {
            let used = &others.fair_memory.used;
            used.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            others.fair_counted = now;
        }
    }

    /// Returns whether there is no room for one more key. Bytes outside the tables count as keys.
    pub(super) fn is_full(&self) -> bool {
        let others = &self.others;
        let heap = others.logs.heap() + others.counters.heap() + others.slots.heap();
        self.keys() + heap / BYTES_PER_KEY >= self.max_keys
    }
}
