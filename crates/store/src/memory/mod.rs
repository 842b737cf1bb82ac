//! The memory store keeps the states of one process.
//!
//! Keys are spread over shards, each under its own lock. A request locks the shards of its charges in
//! ascending order, reads all states, and writes all or none. So requests never deadlock, and no request
//! sees a half-written request. A request for known keys allocates no memory.
//!
//! # Bounds
//! The store keeps at most `max_keys` states. Heap memory of states, such as the entries of a sliding log,
//! counts as keys too: 64 bytes are one key. Expired states are forgotten a few at a time, when new keys
//! come and by [`MemoryStore::sweep`]. A state that has not expired is never dropped to make room.
//!
//! When the store is full, new subjects of a rule share one state per rule and shard. If such a subject
//! later gets its own state, this state starts as a copy of the shared state. So a subject gains nothing by
//! being new.
//!
//! Fair buckets have their own bound: 64 bytes times `max_keys`. At this bound, new clients of a bucket share a
//! mark. Holds have their own bound too: `max_keys`, at most a million.
//!
//! # The end of time
//! Instants are exact up to [`Time::MAX`], in the year 2112. A clock at or beyond this instant is wrong, and
//! would stand still. The store then decides nothing: each call is an error, admits nothing and changes
//! nothing.

mod all_charges;
mod holds;
mod locked;
mod one_charge;
mod open_holds;
mod records;
mod shard;
mod slots;
mod table;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::concurrency::Holder;
use tollgate_core::{Admission, Balance, Charge, Denial, HoldId, Key, Outcome, Span, Time, Token};

use self::all_charges::{Looks, all_allow, available_units, units_within, weight};
use self::records::Records;
use self::shard::{FairMemory, Shard};
use crate::answer::Answer;
use crate::clock::{Clock, SystemClock};
use crate::contract::{
    AllowanceLevel, Applied, Ask, Immediate, Outcomes, Reply, Store, StoreError, Usage,
};
use crate::holds::{Extended, Held, HoldRecord, NewHold, Settle, Settled};

/// A request marks its shards in a `u64`, with one bit for each shard.
const MAX_SHARDS: usize = 64;
/// How many buckets of each table [`Store::sweep`] searches. There are few, so that no request waits long.
const SWEEP: usize = 64;
/// The least keys of a shard. Smaller shards would fill unevenly.
const MIN_KEYS_PER_SHARD: usize = 1024;

/// The store in the memory of this process.
///
/// ```
/// use tollgate_core::{Charge, Key, Limit, Rate, Span};
/// use tollgate_store::{Ask, MemoryStore};
///
/// let store = MemoryStore::new(1_000_000);
/// let limit = Limit::gcra(Rate::new(1, Span::MINUTE)?, 1)?;
/// let charge = Charge {
///     rule: "search",
///     ..Charge::new(Key::from_bits(7), &limit)
/// };
/// assert!(store.apply(&[charge], Ask::Exactly(1)).allowed);
/// assert!(!store.apply(&[charge], Ask::Exactly(1)).allowed);
/// # Ok::<(), tollgate_core::ParamError>(())
/// ```
pub struct MemoryStore<C = SystemClock> {
    clock: C,
    shards: Box<[Padded]>,
    /// One less than the number of shards, which is a power of two.
    mask: usize,
    records: Records,
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = self.shards.len();
        f.debug_struct("MemoryStore")
            .field("shards", &shards)
            .finish_non_exhaustive()
    }
}

/// A shard on its own cache lines, so that threads on other shards do not slow it down.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

impl MemoryStore {
    /// Returns a store of at most `max_keys` states on the machine's clock.
    #[must_use]
    pub fn new(max_keys: usize) -> MemoryStore {
        MemoryStore::with_clock(max_keys, SystemClock::new())
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Returns a store of at most `max_keys` states on `clock`.
    #[must_use]
    pub fn with_clock(max_keys: usize, clock: C) -> MemoryStore<C> {
        let wanted = (max_keys / MIN_KEYS_PER_SHARD).clamp(1, MAX_SHARDS);
        let shards = 1 << wanted.ilog2();
        let records = Records::new(max_keys);
        let fair_memory = Arc::new(FairMemory::new(max_keys));
        let max_keys = max_keys.div_ceil(shards);
        MemoryStore {
            clock,
            shards: (0..shards)
                .map(|_| Padded(Mutex::new(Shard::new(max_keys, Arc::clone(&fair_memory)))))
                .collect(),
            mask: shards - 1,
            records,
        }
    }

    /// Returns the clock of the store.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// See [`Store::apply`].
    #[inline]
    pub fn apply(&self, charges: &[Charge<'_>], ask: Ask) -> Applied {
        let mut applied = Applied::default();
        self.apply_into(charges, ask, &mut applied);
        applied
    }

    /// Does the same as `apply`, but overwrites `applied` with the decision. This saves copies of a large
    /// value. Benchmarks show the difference.
    #[inline]
    pub fn apply_into(&self, charges: &[Charge<'_>], ask: Ask, applied: &mut Applied) {
        applied.outcomes.clear();
        match (charges, ask) {
            ([charge], Ask::Exactly(units)) => self.apply_one(charge, units, applied),
            ([first, second], Ask::Exactly(units))
                if self.charge_two_meters([first, second], units, applied) => {}
            _ => self.apply_all(charges, ask, applied),
        }
    }

    /// Decides a request with one charge. This is the most common request, and needs no bookkeeping for
    /// several charges.
    #[inline]
    fn apply_one(&self, charge: &Charge<'_>, units: u64, applied: &mut Applied) {
        let cost = charge.cost.saturating_mul(units);
        let mut shard = self.shards[self.shard_of(charge.key)].0.lock();
        // Read the clock under the lock, so that later writes have later times.
        let now = self.clock.now();
        if now >= Time::MAX {
            return at_end_of_time(std::slice::from_ref(charge), now, applied);
        }
        let allowed = shard.apply_one(charge, cost, now, &mut applied.outcomes);
        drop(shard);
        applied.settle(now, allowed || !charge.enforces(), units);
    }

    #[inline(never)]
    fn apply_all(&self, charges: &[Charge<'_>], ask: Ask, applied: &mut Applied) {
        let mut shards = self.lock(charges);
        let now = self.clock.now();
        if now >= Time::MAX {
            return at_end_of_time(charges, now, applied);
        }
        let mut units = ask.units();
        if shards.charge_meters(charges, units, now, &mut applied.outcomes) {
            return applied.settle(now, true, units);
        }
        let mut looks = Looks::new();
        shards.look(charges, units, now, &mut looks);
        if let Ask::UpTo(most) = ask
            && !all_allow(charges, &looks)
        {
            units = available_units(charges, &looks, most).max(1).min(most);
            shards.look(charges, units, now, &mut looks);
            // A request can be denied for a reason other than its cost, such as a back-off. Then the answer is that for
            // a single unit.
            if units > 1 && !all_allow(charges, &looks) {
                units = 1;
                shards.look(charges, units, now, &mut looks);
            }
        }
        let allowed = all_allow(charges, &looks);
        applied.settle(now, allowed, units);
        for i in 0..charges.len() {
            let outcome = shards.write(charges, &looks, i, units, allowed, now);
            applied.outcomes.push(outcome);
        }
        shards.tidy(charges, &looks, now);
    }

    /// See [`Store::peek`].
    pub fn peek(&self, charges: &[Charge<'_>], ask: Ask) -> Applied {
        let mut shards = self.lock(charges);
        let now = self.clock.now();
        let mut applied = Applied::default();
        if now >= Time::MAX {
            at_end_of_time(charges, now, &mut applied);
            return applied;
        }
        let mut look = |units: u64| -> Outcomes {
            let weighed = charges.iter().enumerate().map(|(i, charge)| {
                let cost = weight(charges, i).saturating_mul(units);
                shards.of(charge.key).peek(charge, cost, now)
            });
            weighed.collect()
        };
        let allow = |outcomes: &Outcomes| {
            let mut both = charges.iter().zip(outcomes);
            both.all(|(charge, outcome)| !charge.enforces() || outcome.is_allowed())
        };
        let mut units = ask.units();
        let mut outcomes = look(units);
        if let Ask::UpTo(most) = ask
            && !allow(&outcomes)
        {
            let available = outcomes.iter().map(|outcome| outcome.remaining);
            units = units_within(charges, available, most).max(1).min(most);
            outcomes = look(units);
            if units > 1 && !allow(&outcomes) {
                units = 1;
                outcomes = look(units);
            }
        }
        applied.settle(now, allow(&outcomes), units);
        applied.outcomes = outcomes;
        applied
    }

    /// See [`Store::refund`].
    pub fn refund(&self, charges: &[Charge<'_>], units: u64, charged_at: Time) -> Applied {
        let mut shards = self.lock(charges);
        let now = self.clock.now();
        for charge in charges {
            let cost = charge.cost.saturating_mul(units);
            shards.of(charge.key).refund(charge, cost, charged_at, now);
        }
        drop(shards);
        self.peek(charges, Ask::Exactly(0))
    }

    /// See [`Store::reset`].
    pub fn reset(&self, charges: &[Charge<'_>]) {
        let mut shards = self.lock(charges);
        for charge in charges {
            shards.of(charge.key).reset(charge);
        }
    }

    /// See [`Store::restore`].
    ///
    /// # Errors
    /// If there is no room for a state. The charges after this one are not restored either.
    pub fn restore(&self, charges: &[Charge<'_>], balances: &[Balance]) -> Result<(), StoreError> {
        let mut shards = self.lock(charges);
        let now = self.clock.now();
        for (charge, balance) in charges.iter().zip(balances) {
            if !shards.of(charge.key).restore(charge, *balance, now) {
                let full =
                    "the memory store is full, so usage cannot be restored: raise `max_keys`";
                return Err(StoreError::Unavailable(full.into()));
            }
        }
        Ok(())
    }

    /// See [`Store::adjust`].
    pub fn adjust(&self, charge: &Charge<'_>, used: i64, extra: i64) -> Option<Balance> {
        let mut shard = self.shards[self.shard_of(charge.key)].0.lock();
        let now = self.clock.now();
        shard.adjust(charge, (used, extra), now)
    }

    /// See [`Store::report`].
    pub fn report(&self, charge: &Charge<'_>, units: u64) -> Option<AllowanceLevel> {
        let mut shard = self.shards[self.shard_of(charge.key)].0.lock();
        let now = self.clock.now();
        let cost = charge.cost.saturating_mul(units);
        shard.report(charge, cost, now)
    }

    /// Returns whether a new key would get a state of its own.
    pub fn has_room(&self, key: Key) -> bool {
        !self.shards[self.shard_of(key)].0.lock().is_full()
    }

    /// See [`Store::balance`].
    pub fn balance(&self, charge: &Charge<'_>) -> Option<Balance> {
        let shard = self.shards[self.shard_of(charge.key)].0.lock();
        let now = self.clock.now();
        shard.balance(charge, now)
    }

    /// Returns the state of each charge as text, for inspection.
    pub fn dump(&self, charges: &[Charge<'_>]) -> Vec<Option<String>> {
        let mut shards = self.lock(charges);
        let states = charges.iter().map(|it| shards.of(it.key).dump(it));
        states.collect()
    }

    /// See [`Store::usage`]. Locks one shard at a time.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for shard in &self.shards {
            let shard = shard.0.lock();
            usage.keys += shard.keys() as u64;
            usage.bytes += shard.bytes() as u64;
            usage.shared += shard.shared;
        }
        (usage.reservations, usage.leases) = self.records.count_open();
        usage.bytes += (self.shards.len() * size_of::<Padded>() + self.records.bytes()) as u64;
        usage
    }

    /// Forgets expired states in the next `steps` buckets of each table, one shard at a time. Frees the
    /// memory of tables that are mostly empty. Call this from time to time. Decisions do not depend on it.
    pub fn sweep(&self, steps: usize) {
        let now = self.clock.now();
        for shard in &self.shards {
            shard.0.lock().sweep(steps, now);
        }
        self.records.sweep(now);
    }

    /// Fails if the clock is at the end of time.
    fn check_clock(&self) -> Result<(), StoreError> {
        match self.clock.now() < Time::MAX {
            true => Ok(()),
            false => Err(end_of_time()),
        }
    }

    /// Returns the index of the shard of `key`. It comes from the 32 bits of the key that tables do not
    /// store.
    #[inline]
    fn shard_of(&self, key: Key) -> usize {
        (key.bits() >> 96) as usize & self.mask
    }
}

/// Returns the error for a clock that is at the largest time that states can contain.
#[cold]
fn end_of_time() -> StoreError {
    let why = "the clock of this machine shows the year 2112 or a later one: set the clock";
    StoreError::Unavailable(why.into())
}

/// Denies a request at the end of time.
#[cold]
fn at_end_of_time(charges: &[Charge<'_>], now: Time, applied: &mut Applied) {
    applied.settle(now, false, 0);
    applied.outcomes = charges
        .iter()
        .map(|it| Outcome {
            admission: Admission::Denied(Denial::Never),
            limit: it.limit.capacity(),
            remaining: 0,
            reset_at: now,
        })
        .collect();
}

/// Returns the answer to a request, or the error of a clock at the end of time.
fn in_time(applied: Applied) -> Result<Applied, StoreError> {
    match applied.now < Time::MAX {
        true => Ok(applied),
        false => Err(end_of_time()),
    }
}

impl<C: Clock> Immediate for MemoryStore<C> {}

impl<C: Clock> Store for MemoryStore<C> {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn is_local(&self) -> bool {
        true
    }

    #[inline]
    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::Now(in_time(self.apply(charges, ask)))
    }

    #[inline]
    fn apply_into<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        applied: &mut Applied,
    ) -> Option<Reply<'a, Applied>> {
        self.apply_into(charges, ask, applied);
        (applied.now >= Time::MAX).then(|| Answer::Now(Err(end_of_time())))
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::Now(in_time(self.peek(charges, ask)))
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        let refund = |()| self.refund(charges, units, charged_at);
        Answer::Now(self.check_clock().map(refund))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        self.reset(charges);
        Answer::Now(Ok(()))
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        let restore = |()| self.restore(charges, balances);
        Answer::Now(self.check_clock().and_then(restore))
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        let adjust = |()| self.adjust(charge, used, extra);
        Answer::Now(self.check_clock().map(adjust))
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        let report = |()| self.report(charge, units);
        Answer::Now(self.check_clock().map(report))
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        Answer::Now(self.check_clock().map(|()| self.balance(charge)))
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        let hold = |()| self.hold(charges, units, new);
        Answer::Now(self.check_clock().and_then(hold))
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        Answer::Now(self.check_clock().map(|()| self.settle(id, how)))
    }

    fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'_, Extended> {
        Answer::Now(self.check_clock().map(|()| self.extend(id, ttl, token)))
    }

    fn find_hold(&self, id: HoldId) -> Reply<'_, Option<Arc<HoldRecord>>> {
        Answer::Now(Ok(self.find_hold(id)))
    }

    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        Answer::Now(self.put_hold(record))
    }

    fn due_holds(&self, most: usize) -> Reply<'_, Vec<HoldId>> {
        Answer::Now(Ok(self.due_holds(most)))
    }

    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        Answer::Now(Ok(self.holders(charge, most)))
    }

    fn usage(&self) -> Reply<'_, Usage> {
        Answer::Now(Ok(self.usage()))
    }

    fn sweep(&self) {
        self.sweep(SWEEP);
    }
}
