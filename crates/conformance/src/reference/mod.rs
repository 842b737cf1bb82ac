//! The reference store implements the contract in the most obvious way, with one lock and plain maps.
//!
//! This store calls the algorithms directly, and has no bound on keys. It forgets a state as soon as the
//! contract allows: [`GRACE`] after its expiry, or at once if nothing is used. Holds are in
//! `reference/holds.rs`.

mod holds;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tollgate_core::backoff::Backoff;
use tollgate_core::concurrency::{Concurrency, Holder};
use tollgate_core::fair::Fair;
use tollgate_core::fixed_window::FixedWindow;
use tollgate_core::leaky_bucket::LeakyBucket;
use tollgate_core::meter::Meter;
use tollgate_core::quota::{self, Quota};
use tollgate_core::sliding_counter::SlidingCounter;
use tollgate_core::sliding_log::SlidingLog;
use tollgate_core::two_window::TwoWindow;
use tollgate_core::{
    Admission, Balance, CarryOver, Charge, Enforcement, HoldId, Key, Limit, Limiting, MAX_AMOUNT,
    OnDenied, Outcome, Span, Time, Token, Verdict,
};
use tollgate_store::{
    AllowanceLevel, Answer, Applied, Ask, Clock, Extended, GRACE, Held, HoldRecord, NewHold, Reply,
    Settle, Settled, Store,
};

/// A store to compare other stores with.
#[derive(Debug)]
pub struct ReferenceStore<C> {
    clock: C,
    states: Mutex<States>,
    records: Mutex<BTreeMap<HoldId, HoldRecord>>,
}

impl<C: Clock> ReferenceStore<C> {
    /// Returns an empty store on `clock`.
    pub fn new(clock: C) -> ReferenceStore<C> {
        ReferenceStore {
            clock,
            states: Mutex::default(),
            records: Mutex::default(),
        }
    }

    /// Returns the clock of the store.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns whether the contract requires a state for `charge` at this instant.
    pub fn keeps(&self, charge: &Charge<'_>) -> bool {
        self.current().1.has(charge)
    }

    /// Returns the time, and the states that are not expired.
    fn current(&self) -> (Time, MutexGuard<'_, States>) {
        let (now, mut states) = (self.clock.now(), self.states.lock());
        states.forget_expired(now);
        (now, states)
    }

    /// Returns the time, and a copy of the states that are not expired.
    fn copy(&self) -> (Time, States) {
        let (now, mut states) = (self.clock.now(), self.states.lock().clone());
        states.forget_expired(now);
        (now, states)
    }
}

fn applied(now: Time, allowed: bool, units: u64, outcomes: Vec<Outcome>) -> Applied {
    Applied {
        now,
        allowed,
        granted: if allowed { units } else { 0 },
        outcomes: outcomes.into(),
        ..Applied::default()
    }
}

/// Returns the cost of `units` units: the sum over charge `i` and the earlier charges of the same key.
fn asked(charges: &[Charge<'_>], i: usize, units: u64) -> u64 {
    let mut sum: u64 = 0;
    for charge in &charges[..=i] {
        if charge.key == charges[i].key {
            sum = sum.saturating_add(charge.cost);
        }
    }
    sum.saturating_mul(units)
}

fn all_allow(charges: &[Charge<'_>], verdicts: &[Verdict]) -> bool {
    let mut both = charges.iter().zip(verdicts);
    both.all(|(charge, verdict)| !charge.enforces() || verdict.is_allowed())
}

/// Returns whether every enforcing charge allows the request. Ignores the charge at index `place`, and the
/// charges that watch it.
fn all_allow_but(charges: &[Charge<'_>], verdicts: &[Verdict], place: u8) -> bool {
    (0..charges.len()).all(|i| {
        i == usize::from(place)
            || charges[i].on_denied == OnDenied::Strike(place)
            || !charges[i].enforces()
            || verdicts[i].is_allowed()
    })
}

/// The states of one algorithm, each with the numbers that it was written under.
type Kept<A> = HashMap<Key, (A, <A as Limiting>::State)>;

#[derive(Clone, Debug, Default)]
struct States {
    fixed_windows: Kept<FixedWindow>,
    sliding_logs: Kept<SlidingLog>,
    sliding_counters: Kept<SlidingCounter>,
    two_windows: Kept<TwoWindow>,
    meters: Kept<Meter>,
    leaky_buckets: Kept<LeakyBucket>,
    backoffs: Kept<Backoff>,
    quotas: Kept<Quota>,
    slots: Kept<Concurrency>,
    fair: Kept<Fair>,
}

/// Runs `$body` with the numbers of `$limit` and the states of its algorithm.
macro_rules! with_kept {
    ($states:ident, $limit:expr, |$numbers:ident, $kept:ident| $body:expr, unlimited: $unlimited:expr) => {
        match $limit {
            Limit::FixedWindow($numbers) => {
                let $kept = &mut $states.fixed_windows;
                $body
            }
            Limit::SlidingLog($numbers) => {
                let $kept = &mut $states.sliding_logs;
                $body
            }
            Limit::SlidingCounter($numbers) => {
                let $kept = &mut $states.sliding_counters;
                $body
            }
            Limit::TwoWindow($numbers) => {
                let $kept = &mut $states.two_windows;
                $body
            }
            Limit::TokenBucket($numbers) | Limit::Gcra($numbers) => {
                let $kept = &mut $states.meters;
                $body
            }
            Limit::LeakyBucket($numbers) => {
                let $kept = &mut $states.leaky_buckets;
                $body
            }
            Limit::Backoff($numbers) => {
                let $kept = &mut $states.backoffs;
                $body
            }
            Limit::Quota($numbers) => {
                let $kept = &mut $states.quotas;
                $body
            }
            Limit::Concurrency($numbers) => {
                let $kept = &mut $states.slots;
                $body
            }
            Limit::Fair($numbers) => {
                let $kept = &mut $states.fair;
                $body
            }
            Limit::Unlimited(_) => $unlimited,
        }
    };
}

impl States {
    fn has(&mut self, charge: &Charge<'_>) -> bool {
        with_kept!(self, charge.limit, |_numbers, kept| kept.contains_key(&charge.key),
            unlimited: false)
    }

    /// Converts states that were written under other numbers to the numbers of their charge.
    fn carry_over(&mut self, charges: &[Charge<'_>], now: Time) {
        for charge in charges {
            with_kept!(self, charge.limit, |numbers, kept| {
                if let Some((from, state)) = kept.get_mut(&charge.key)
                    && from != numbers
                {
                    numbers.carry_over(from, state, charge.carry_over, now);
                    *from = numbers.clone();
                }
            }, unlimited: ());
        }
    }

    /// Returns the units to decide, and the verdict of each charge. With `Ask::UpTo`, the units are the most
    /// that every enforcing charge allows. If not even one unit fits, they are one.
    fn settle(&mut self, charges: &[Charge<'_>], ask: Ask, now: Time) -> (u64, Vec<Verdict>) {
        let (mut fits, mut asked) = match ask {
            Ask::Exactly(units) => (units, units),
            Ask::UpTo(most) => (most.min(1), most),
        };
        // A charge that allows some units also allows fewer units. So use a binary search.
        while fits < asked {
            let tried = asked - (asked - fits) / 2;
            if all_allow(charges, &self.decide_all(charges, tried, now)) {
                fits = tried;
            } else {
                asked = tried - 1;
            }
        }
        (fits, self.decide_all(charges, fits, now))
    }

    /// Returns the decision. Changes states only by carrying them over.
    fn peek(&mut self, charges: &[Charge<'_>], ask: Ask, now: Time) -> Applied {
        self.carry_over(charges, now);
        let (units, verdicts) = self.settle(charges, ask, now);
        let allowed = all_allow(charges, &verdicts);
        let both = charges.iter().zip(&verdicts);
        let outcomes = both.map(|(charge, verdict)| self.outcome(charge, verdict.admission, now));
        applied(now, allowed, units, outcomes.collect())
    }

    fn decide_all(&mut self, charges: &[Charge<'_>], units: u64, now: Time) -> Vec<Verdict> {
        (0..charges.len())
            .map(|i| self.decide(&charges[i], asked(charges, i, units), now))
            .collect()
    }

    fn decide(&mut self, charge: &Charge<'_>, cost: u64, now: Time) -> Verdict {
        with_kept!(self, charge.limit, |numbers, kept| {
            match kept.get(&charge.key) {
                None if charge.needs_state() => Verdict::unrestored(),
                Some((_, state)) => numbers.decide(state, cost, now),
                None => numbers.decide(&Default::default(), cost, now),
            }
        }, unlimited: Verdict {
            admission: Admission::Allowed { delay: Span::ZERO },
            available: Outcome::UNLIMITED,
        })
    }

    /// Writes charge `i` of a request for `units`. `allowed` says whether the request passes.
    fn write(
        &mut self,
        charges: &[Charge<'_>],
        verdicts: &[Verdict],
        i: usize,
        units: u64,
        allowed: bool,
        now: Time,
    ) -> Outcome {
        // Change nothing: the caller repeats the request after a restore.
        let mut both = charges.iter().zip(verdicts);
        let unrestored = both.any(|(charge, verdict)| charge.enforces() && verdict.is_unrestored());
        let charge = &charges[i];
        let cost = charge.cost.saturating_mul(units);
        let mut verdict = verdicts[i];
        let denies = |it: &Verdict| !it.is_allowed() && !it.is_unrestored();
        let denied = |place: usize| verdicts.get(place).is_some_and(denies);
        let counts_denied = match charge.on_denied {
            _ if matches!(charge.limit, Limit::Concurrency(_)) => false,
            OnDenied::Nothing => false,
            OnDenied::Charge | OnDenied::Note => denied(i),
            OnDenied::Strike(place) => denied(i) || denied(place.into()),
        };
        let passes = match charge.enforcement {
            Enforcement::Instead(place) if usize::from(place) < charges.len() => {
                all_allow_but(charges, verdicts, place)
            }
            _ => allowed,
        };
        if cost > 0 && !unrestored && !verdict.is_unrestored() && counts_denied {
            match charge.on_denied {
                OnDenied::Note => self.note_denied(charge, cost, now),
                _ => {
                    self.overdraw(charge, cost, 0, now);
                }
            }
            // A charge that allowed the request must not report a denial.
            if !allowed || !charge.enforces() {
                verdict = self.decide(charge, asked(charges, i, units), now);
                if charge.on_denied == OnDenied::Note {
                    verdict = verdict.after_denial(now);
                }
            }
        } else if cost > 0
            && !unrestored
            && verdict.is_allowed()
            && (passes || charge.on_denied == OnDenied::Charge)
        {
            self.charge(charge, cost, now);
        }
        self.outcome(charge, verdict.admission, now)
    }

    fn charge(&mut self, charge: &Charge<'_>, cost: u64, now: Time) {
        with_kept!(self, charge.limit, |numbers, kept| {
            let fresh = || (numbers.clone(), Default::default());
            let (_, state) = kept.entry(charge.key).or_insert_with(fresh);
            numbers.charge(state, cost, now);
        }, unlimited: ());
    }

    fn note_denied(&mut self, charge: &Charge<'_>, cost: u64, now: Time) {
        with_kept!(self, charge.limit, |numbers, kept| {
            let fresh = || (numbers.clone(), Default::default());
            let (_, state) = kept.entry(charge.key).or_insert_with(fresh);
            numbers.note_denied(state, cost, now);
        }, unlimited: ());
    }

    /// Overdraws in the present numbers of the state, because a settle carries nothing over.
    fn overdraw(&mut self, charge: &Charge<'_>, cost: u64, most: u64, now: Time) -> u64 {
        with_kept!(self, charge.limit, |numbers, kept| {
            let fresh = || (numbers.clone(), Default::default());
            let (own, state) = kept.entry(charge.key).or_insert_with(fresh);
            if own != numbers && own.expires_for(state, numbers) <= now {
                // An expired state with other numbers is the same as a missing state. An expired state with
                // these numbers is not: if the clock has stepped back, the state may have seen a later
                // instant.
                numbers.carry_over(own, state, CarryOver::Reset, now);
                *own = numbers.clone();
            }
            own.asked_by(numbers).overdraw(state, cost, most, now)
        }, unlimited: cost)
    }

    /// Returns the level; `None` if the limit has no amount, or its usage has to be restored first.
    fn level(&mut self, charge: &Charge<'_>, now: Time) -> Option<i64> {
        if !charge.limit.has_amount() {
            return None;
        }
        with_kept!(self, charge.limit, |numbers, kept| {
            match kept.get(&charge.key) {
                None if charge.needs_state() => None,
                Some((_, state)) => Some(numbers.level(state, now)),
                None => Some(numbers.level(&Default::default(), now)),
            }
        }, unlimited: None)
    }

    /// Refunds in the present numbers of the state. Usage that a change of numbers has reset is not given
    /// back.
    fn refund(&mut self, charge: &Charge<'_>, cost: u64, charged_at: Time, now: Time) {
        with_kept!(self, charge.limit, |numbers, kept| {
            if let Some((own, state)) = kept.get_mut(&charge.key)
                && (own == numbers
                    || charge.carry_over != CarryOver::Reset
                        && own.expires_for(state, numbers) > now)
            {
                own.asked_by(numbers).refund(state, cost, charged_at, now);
            }
        }, unlimited: ());
    }

    /// Returns the quota of `charge`, and its state after carrying it over. Returns `None` if the limit is
    /// not a quota, or has no state.
    fn quota<'c>(
        &mut self,
        charge: &Charge<'c>,
        now: Time,
    ) -> Option<(&'c Quota, &mut quota::State)> {
        let Limit::Quota(quota) = charge.limit else {
            return None;
        };
        self.carry_over(&[*charge], now);
        let (_, state) = self.quotas.get_mut(&charge.key)?;
        Some((quota, state))
    }

    /// Returns the outcome of `charge` with this `admission`.
    fn outcome(&mut self, charge: &Charge<'_>, admission: Admission, now: Time) -> Outcome {
        let resets_at = with_kept!(self, charge.limit, |numbers, kept| {
            kept.get(&charge.key).map(|(_, state)| numbers.resets_at(state))
        }, unlimited: None);
        Outcome {
            admission,
            limit: charge.limit.capacity(),
            remaining: self.decide(charge, 0, now).available,
            reset_at: resets_at.unwrap_or(now).max(now),
        }
    }

    fn forget_expired(&mut self, now: Time) {
        fn forget<A: Limiting>(kept: &mut Kept<A>, now: Time) {
            kept.retain(|_, (numbers, state)| {
                let expires_at = numbers.expires_at(state);
                expires_at > Time::default() && expires_at + GRACE > now
            });
        }
        forget(&mut self.fixed_windows, now);
        forget(&mut self.sliding_logs, now);
        forget(&mut self.sliding_counters, now);
        forget(&mut self.two_windows, now);
        forget(&mut self.meters, now);
        forget(&mut self.leaky_buckets, now);
        forget(&mut self.backoffs, now);
        forget(&mut self.quotas, now);
        forget(&mut self.slots, now);
        forget(&mut self.fair, now);
    }
}

impl<C: Clock> Store for ReferenceStore<C> {
    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        let (now, mut states) = self.current();
        states.carry_over(charges, now);
        let (units, verdicts) = states.settle(charges, ask, now);
        let allowed = all_allow(charges, &verdicts);
        let outcomes = (0..charges.len())
            .map(|i| states.write(charges, &verdicts, i, units, allowed, now))
            .collect();
        Answer::Now(Ok(applied(now, allowed, units, outcomes)))
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        let (now, mut states) = self.copy();
        Answer::Now(Ok(states.peek(charges, ask, now)))
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        let (now, mut states) = self.current();
        for charge in charges {
            let cost = charge.cost.saturating_mul(units);
            states.refund(charge, cost, charged_at, now);
        }
        let applied = states.clone().peek(charges, Ask::Exactly(0), now);
        Answer::Now(Ok(applied))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        let mut states = self.states.lock();
        for charge in charges {
            with_kept!(states, charge.limit, |_numbers, kept| {
                kept.remove(&charge.key);
            }, unlimited: ());
        }
        Answer::Now(Ok(()))
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        let (now, mut states) = self.current();
        for (charge, balance) in charges.iter().zip(balances) {
            if let Limit::Quota(quota) = charge.limit {
                let restored = || (quota.clone(), quota.restored(*balance, now));
                states.quotas.entry(charge.key).or_insert_with(restored);
            }
        }
        Answer::Now(Ok(()))
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        let (now, mut states) = self.current();
        let balance = states.quota(charge, now);
        let balance = balance.map(|(quota, state)| quota.adjust(state, used, extra, now));
        Answer::Now(Ok(balance))
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        let (now, mut states) = self.current();
        let reported = charge.cost.saturating_mul(units);
        let carried_over = |states: &States| {
            let mut copy = states.clone();
            copy.carry_over(&[*charge], now);
            copy
        };
        let Some(before) = carried_over(&states).level(charge, now) else {
            return Answer::Now(Ok(None));
        };
        if reported > 0 {
            states.overdraw(charge, reported, MAX_AMOUNT, now);
        }
        let mut copy = carried_over(&states);
        let left = copy.level(charge, now).unwrap_or_default();
        let admission = Admission::Allowed { delay: Span::ZERO };
        let reset_at = copy.outcome(charge, admission, now).reset_at;
        let level = AllowanceLevel::after(reported, before, left, now, reset_at);
        Answer::Now(Ok(Some(level)))
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        let (now, mut states) = self.copy();
        let balance = states.quota(charge, now);
        Answer::Now(Ok(balance.map(|(quota, state)| quota.balance(state, now))))
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        Answer::Now(Ok(self.hold(charges, units, new)))
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        Answer::Now(Ok(self.settle(id, how)))
    }

    fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'_, Extended> {
        Answer::Now(Ok(self.extend(id, ttl, token)))
    }

    fn find_hold(&self, id: HoldId) -> Reply<'_, Option<Arc<HoldRecord>>> {
        Answer::Now(Ok(self.records.lock().get(&id).cloned().map(Arc::new)))
    }

    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        let mut records = self.records.lock();
        let is_new = !records.contains_key(&record.id);
        records.entry(record.id).or_insert_with(|| record.clone());
        Answer::Now(Ok(is_new))
    }

    fn due_holds(&self, most: usize) -> Reply<'_, Vec<HoldId>> {
        let (records, now) = (self.records.lock(), self.clock.now());
        let is_due = |it: &&HoldRecord| it.is_open() && it.expires_at <= now;
        let mut due: Vec<_> = records.values().filter(is_due).collect();
        due.sort_by_key(|it| (it.expires_at, it.id));
        Answer::Now(Ok(due.into_iter().take(most).map(|it| it.id).collect()))
    }

    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        let (now, mut states) = (self.clock.now(), self.states.lock());
        let holders = states.slots(charge).map(|it| it.holders(now, most));
        Answer::Now(Ok(holders.into_iter().flatten().collect()))
    }
}
