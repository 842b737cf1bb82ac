//! Known denials: a denied request is denied locally until its retry time, for at most `denial_cache`.
//!
//! A denial is remembered only if no check can change it before the retry time. That is so if every
//! charge enforces, has nothing left, and denies until a known instant: there is nothing to take, and
//! nothing refills before that instant. So a remembered denial answers exactly as the store would, for
//! all charges of the request.
//!
//! As a [prefilter](Remembered::prefilter), the wrapper also remembers a denial by some charges of a request
//! while others allow it. A charge that has nothing left until an instant denies every request until then,
//! whatever the others say. So the denial with the longest wait is repeated until its retry time, and the
//! other charges are [undecided](Outcome::UNDECIDED): their figures change, and are left out. A denial never
//! answers a request that the store would have admitted. Nothing else can be denied without a call: as soon as a
//! charge may have a unit left, the store may admit the request.
//!
//! Other calls can still change such a state: a refund, a reset, a settled hold, a charge that counts
//! denied requests, or other numbers for the same key. A call through this wrapper ends the denial at
//! once. After a call of another instance, or of a wrapper below this one that gives unused units back, the denial
//! ends after `denial_cache` at the latest.
//!
//! The table has a fixed size. A new denial may replace an old one. A forgotten denial costs one more
//! call of the store, and never a wrong answer.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_core::{
    Admission, Algorithm, Balance, Charge, Denial, HoldId, Key, Outcome, Span, Time,
};
use tollgate_store::{
    AllowanceLevel, Answer, Applied, Ask, Clock, Held, HeldCharge, NewHold, Reply, Settle, Settled,
    Store,
};

/// How many denials are remembered at most.
const PLACES: usize = 16_384;
/// The number of groups of keys. Each group has a count of changes.
const GROUPS: usize = 4096;

/// A store whose denials are remembered.
pub struct Remembered<S> {
    store: S,
    longest: Span,
    clock: Arc<dyn Clock>,
    places: Box<[Mutex<Option<Box<Known>>>]>,
    /// For each group of keys, how often their states may have changed.
    changes: Box<[AtomicU64]>,
    /// For each group of keys: the last key that was asked about, and its numbers. The upper half is 32
    /// bits of the key. The lower half is 32 bits of a hash of the numbers.
    numbers: Box<[AtomicU64]>,
    answered: Arc<AtomicU64>,
    /// Whether denials by some charges of a request are remembered.
    is_prefilter: bool,
}

/// A remembered denial.
struct Known {
    /// A hash of the request: its keys and their numbers. The cost is always 1.
    request: u128,
    /// The charges that deny, with one bit for each. Only their keys matter.
    denying: u64,
    /// How often the keys of these charges had been changed when the store was asked for the denial.
    changes: u64,
    applied: Applied,
    /// When this instance asked the store, and when it has to ask again.
    asked_at: Time,
    until: Time,
}

impl<S> std::fmt::Debug for Remembered<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remembered")
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Remembered<S> {
    /// Remembers the denials of `store` for `longest` at most, by `clock`.
    pub fn new(store: S, longest: Span, clock: Arc<dyn Clock>) -> Remembered<S> {
        Remembered {
            store,
            longest,
            clock,
            places: (0..PLACES).map(|_| Mutex::new(None)).collect(),
            changes: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            numbers: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            answered: Arc::default(),
            is_prefilter: false,
        }
    }

    /// Also remembers a denial by some charges of a request while others allow it. The answer then leaves out
    /// the others.
    #[must_use]
    pub fn prefilter(self) -> Remembered<S> {
        Remembered {
            is_prefilter: true,
            ..self
        }
    }

    /// Returns the store whose denials are remembered.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the count of requests that were denied without a call to the store.
    #[must_use]
    pub fn answered(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.answered)
    }

    /// Returns the remembered denial of this request, if it still applies at `now`.
    fn known(&self, request: u128, charges: &[Charge<'_>], now: Time) -> Option<Applied> {
        let place = self.place(request).lock();
        let known = place.as_ref()?;
        // If the clock went back, no denial applies.
        let holds = known.asked_at <= now && now < known.until;
        if !holds || known.request != request {
            return None;
        }
        if self.changes_of(charges, known.denying) != known.changes {
            return None;
        }
        let mut applied = known.applied.clone();
        // The current time of the store, as this instance estimates it.
        applied.now = applied.now + now.since(known.asked_at);
        Some(applied)
    }

    /// Returns the charges whose denial no check can change before its end, and that end.
    fn lasting(&self, applied: &Applied) -> Option<(u64, Time)> {
        let spent = |outcome: &Outcome| match outcome.admission {
            Admission::Denied(Denial::Until(at)) if outcome.remaining == 0 => Some(at),
            _ => None,
        };
        let ends = || applied.outcomes.iter().map(spent);
        if ends().all(|end| end.is_some()) {
            return Some((ALL, ends().flatten().min()?));
        }
        if !self.is_prefilter || applied.outcomes.len() > 64 {
            return None;
        }
        let last = ends().flatten().max()?;
        let bits = ends().enumerate();
        let bits = bits.filter(|(_, end)| *end == Some(last));
        Some((bits.fold(0, |bits, (place, _)| bits | 1 << place), last))
    }

    /// Remembers a denial by the `denying` charges until `end`, by the clock of the store.
    fn learn(
        &self,
        (request, asked_at): (u128, Time),
        (denying, until): (u64, Time),
        changes: u64,
        applied: &Applied,
    ) {
        let mut told = applied.clone();
        for (place, outcome) in told.outcomes.iter_mut().enumerate() {
            if !is_among(denying, place) {
                *outcome = Outcome::UNDECIDED;
            }
        }
        let known = Known {
            request,
            denying,
            changes,
            applied: told,
            asked_at,
            // The time is counted from before the call, so that the denial does not last too long.
            until: asked_at + until.since(applied.now).min(self.longest),
        };
        *self.place(request).lock() = Some(Box::new(known));
    }

    fn place(&self, request: u128) -> &Mutex<Option<Box<Known>>> {
        &self.places[group(request, PLACES)]
    }

    /// Returns the sum of the changes of the keys of these charges. The counts only grow, so an equal sum
    /// means no change.
    fn changes_of(&self, charges: &[Charge<'_>], which: u64) -> u64 {
        let charges = charges.iter().enumerate();
        let charges = charges.filter(|(place, _)| is_among(which, *place));
        let counts = charges.map(|(_, it)| self.count_of(it.key));
        counts.fold(0, |sum, it| sum.wrapping_add(it.load(Ordering::Acquire)))
    }

    fn count_of(&self, key: Key) -> &AtomicU64 {
        &self.changes[group(key.bits(), GROUPS)]
    }

    /// Notes the numbers of a request. Returns whether they may differ from the last numbers for a key.
    /// If they differ, the store carries the state over, even if it denies the request.
    fn renumbers(&self, charges: &[Charge<'_>]) -> bool {
        let mut renumbers = false;
        for charge in charges {
            let mut hasher = DefaultHasher::new();
            charge.limit.hash(&mut hasher);
            #[allow(clippy::cast_possible_truncation)] // Half of the hash is enough.
            let key = charge.key.bits() as u64;
            let noted = key << 32 | hasher.finish() >> 32;
            let place = &self.numbers[group(charge.key.bits(), GROUPS)];
            renumbers |= place.swap(noted, Ordering::AcqRel) != noted;
        }
        renumbers
    }

    /// Ends all known denials of these keys, because their states may have changed.
    fn forget(&self, keys: impl Iterator<Item = Key>) {
        for key in keys {
            self.count_of(key).fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Returns by how much [`Remembered::changes_of`] of these charges grows when the keys of a request are
/// forgotten once.
fn counted_once(charges: &[Charge<'_>], which: u64) -> u64 {
    let groups = |it: &Charge<'_>| group(it.key.bits(), GROUPS);
    let same = |one| {
        charges
            .iter()
            .filter(|it| groups(it) == groups(one))
            .count()
    };
    let charges = charges.iter().enumerate();
    let counted = charges.filter(|(place, _)| is_among(which, *place));
    counted.map(|(_, it)| same(it) as u64).sum()
}

/// All charges of a request.
const ALL: u64 = u64::MAX;

/// Returns whether the charge at `place` is one of `which`.
fn is_among(which: u64, place: usize) -> bool {
    which == ALL || place < 64 && which >> place & 1 == 1
}

/// Returns the group of a key or a request. Keys are spread evenly, so the group can use any of their
/// bits.
#[allow(clippy::cast_possible_truncation)]
fn group(bits: u128, of: usize) -> usize {
    (bits >> 40) as usize % of
}

/// Returns the fingerprint of a request; `None` if its denials are not remembered.
fn request_of(charges: &[Charge<'_>], ask: Ask) -> Option<u128> {
    let mut keys = 0_u128;
    let mut numbers = DefaultHasher::new();
    for charge in charges {
        let counts_one = charge.cost == 1 && ask.units() == 1;
        // A request with a time of its own is decided at that time, which this instance does not know.
        let is_now = charge.at == Time::default();
        let is_plain = charge.enforces() && !charge.sees_denied() && is_now;
        // A slot may be given back at any time. A cost above 1 waits for more than the next unit.
        if !is_plain || !counts_one || charge.limit.algorithm() == Algorithm::Concurrency {
            return None;
        }
        keys = keys.rotate_left(1) ^ charge.key.bits();
        charge.limit.hash(&mut numbers);
    }
    let numbers = u128::from(numbers.finish());
    (!charges.is_empty()).then_some(keys ^ numbers ^ numbers << 64)
}

impl<S: tollgate_store::Immediate> tollgate_store::Immediate for Remembered<S> {}

impl<S: Store> Store for Remembered<S> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        let request = request_of(charges, ask);
        let at = self.clock.now();
        if let Some(request) = request
            && let Some(applied) = self.known(request, charges, at)
        {
            self.answered.fetch_add(1, Ordering::Relaxed);
            return Answer::Now(Ok(applied));
        }
        let renumbers = self.renumbers(charges);
        let counts = charges.iter().map(|it| self.count_of(it.key));
        let before: SmallVec<[u64; 6]> = counts.map(|it| it.load(Ordering::Acquire)).collect();
        self.store.apply(charges, ask).map(move |answer| {
            let is_denied = matches!(&answer, Ok(applied) if !applied.allowed);
            // A denial changes no state, if the numbers are the same and no charge counts denied
            // requests. After any other answer, the states may have changed.
            let changes = !is_denied || renumbers || charges.iter().any(Charge::sees_denied);
            if changes {
                self.forget(charges.iter().map(|it| it.key));
            }
            if let (Some(request), Ok(applied)) = (request, &answer)
                && is_denied
                && let Some(lasting) = self.lasting(applied)
            {
                let before = before.iter().enumerate();
                let before = before.filter(|(place, _)| is_among(lasting.0, *place));
                let mut count = before.fold(0_u64, |sum, (_, count)| sum.wrapping_add(*count));
                if changes {
                    count = count.wrapping_add(counted_once(charges, lasting.0));
                }
                if self.changes_of(charges, lasting.0) == count {
                    self.learn((request, at), lasting, count, applied);
                }
            }
            answer
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        self.store.peek(charges, ask)
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        let refunded = self.store.refund(charges, units, charged_at);
        refunded.map(move |answer| {
            self.forget(charges.iter().map(|it| it.key));
            answer
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        self.store.reset(charges).map(move |answer| {
            self.forget(charges.iter().map(|it| it.key));
            answer
        })
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        self.store.adjust(charge, used, extra).map(move |answer| {
            self.forget([charge.key].into_iter());
            answer
        })
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        self.store.report(charge, units).map(move |answer| {
            self.forget([charge.key].into_iter());
            answer
        })
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        self.store.hold(charges, units, new).map(move |answer| {
            self.forget(charges.iter().map(|it| it.key));
            answer
        })
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        self.store.settle(id, how).map(move |answer| {
            if let Ok(Settled::Done(record)) = &answer {
                let charges = record.charges.iter().map(HeldCharge::as_charge);
                self.forget(charges.map(|it| it.key));
            }
            answer
        })
    }
}
