//! Sharded keys: one allowance, split over several keys.
//!
//! A key that every request writes is served by one thread of one server. `placement: sharded(N)` splits the
//! allowance of each subject into N parts, each under a key of its own. In a cluster the keys are in different
//! cluster slots. A request is decided by one part. The parts take turns, so that they are used evenly. If a
//! part denies, the next part is asked, so an uneven load reaches all parts.
//!
//! # Bound
//! Part `i` has `limit / N` units, and one more if `i` is less than the remainder. A rate is divided by N. So the
//! sum of the parts is the whole: in each window, or from each burst and rate, all parts together never admit
//! more than the rule says. A limit of fewer than N units has as many parts as units.
//!
//! At most `MOST_CALLS` parts are asked with a call. A part whose denial is known answers without a call,
//! and does not count. So a request may be denied although a part that was not asked has units left. The next
//! request begins with another part: under a load above the limit, all parts are used up.
//!
//! A charge that counts denied requests counts a request once. So it counts nothing while there may be another part to
//! ask. If there is none after all, the same parts are asked again, and the denial is counted.
//!
//! # Figures in answers
//! `limit` is the whole. `remaining` is that of the part that decided: at least that much is left. A peek looks
//! at all parts, and returns the sum. The retry time of a denial is the first time at which one of the asked parts
//! admits the request. A request must fit into one part: a cost above `limit / N` never fits.

use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tollgate_core::{Admission, Charge, Denial, Enforcement, Key, Limit, OnDenied, Outcome, Time};
use tollgate_store::{Answer, Applied, Ask, Held, Immediate, NewHold, Reply, Store, StoreError};

/// How many parts of an allowance are asked with a call of the store, at most.
const MOST_CALLS: usize = 4;
/// The number of groups of keys. The keys of a group take turns together.
const GROUPS: usize = 256;

/// A store that splits the allowances of sharded charges over several keys.
#[derive(Debug)]
pub struct Sharded<S> {
    store: S,
    /// The part that the next request of a group of keys begins with.
    turns: Box<[AtomicUsize]>,
}

/// The charges of a request, each under the key of one part.
struct Parts<'a> {
    charges: SmallVec<[Charge<'a>; 6]>,
    /// The limits of the parts, for the charges that are sharded.
    limits: SmallVec<[Option<Limit>; 6]>,
    /// The current part of each charge.
    places: SmallVec<[usize; 6]>,
    /// Whether a charge counts denied requests.
    counts_denied: bool,
}

/// Returns how many parts the allowance of a charge has.
fn parts_of(charge: &Charge<'_>) -> usize {
    // A count that a ledger restores has one key.
    match (charge.shards, charge.recorded) {
        (0..2, _) | (_, Some(_)) => 1,
        (wanted, None) => {
            let parts = charge.limit.parts(u64::from(wanted));
            usize::try_from(parts).unwrap_or(1)
        }
    }
}

fn is_sharded(charge: &Charge<'_>) -> bool {
    parts_of(charge) > 1
}

/// Returns the key of part `place`. The first part has the key of the whole.
fn key_of(key: Key, place: usize) -> Key {
    // An odd factor, so each part has a key of its own.
    let factor = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835_u128;
    Key::from_bits(key.bits() ^ (place as u128).wrapping_mul(factor))
}

impl<'a> Parts<'a> {
    fn new(charges: &[Charge<'a>], turn: impl Fn(&Charge<'_>) -> usize) -> Parts<'a> {
        let mut parts = Parts {
            charges: charges.iter().copied().collect(),
            limits: charges.iter().map(|_| None).collect(),
            places: charges.iter().map(turn).collect(),
            counts_denied: charges.iter().any(Charge::sees_denied),
        };
        for index in 0..charges.len() {
            parts.place(index, parts.places[index]);
        }
        parts
    }

    /// Moves a charge to a part of its allowance.
    fn place(&mut self, index: usize, place: usize) {
        let charge = &self.charges[index];
        if !is_sharded(charge) {
            return;
        }
        let of = parts_of(charge);
        let place = place % of;
        self.limits[index] = Some(charge.limit.part(place as u64, of as u64));
        self.places[index] = place;
    }

    /// Returns the charges as the store gets them. If `is_trial`, a denial is not counted.
    fn asked(&self, is_trial: bool) -> SmallVec<[Charge<'_>; 6]> {
        let both = self.charges.iter().zip(&self.limits).zip(&self.places);
        let asked = both.map(|((charge, limit), place)| {
            let charge = match limit {
                None => *charge,
                Some(limit) => Charge {
                    key: key_of(charge.key, *place),
                    tag: charge.tag.group(*place as u64),
                    limit,
                    ..*charge
                },
            };
            let on_denied = if is_trial {
                OnDenied::Nothing
            } else {
                charge.on_denied
            };
            Charge {
                on_denied,
                ..charge
            }
        });
        asked.collect()
    }

    /// Returns whether a denial of the next parts is not counted, because it may not be the last. `tried` parts were
    /// asked before, with `calls` calls.
    fn is_trial(&self, tried: usize, calls: usize) -> bool {
        let parts = self.charges.iter().map(parts_of).max();
        self.counts_denied && calls + 1 < MOST_CALLS && Some(tried + 1) < parts
    }

    /// Moves the charges that deny to their next parts. Returns false if another part does not help: another
    /// charge denies too, or all parts of a charge were asked.
    fn turn(&mut self, outcomes: &[Outcome], tried: usize) -> bool {
        let mut turning: SmallVec<[usize; 2]> = SmallVec::new();
        for (index, (charge, outcome)) in self.charges.iter().zip(outcomes).enumerate() {
            let waits = matches!(outcome.admission, Admission::Denied(Denial::Until(_)));
            if !charge.enforces() || outcome.is_allowed() {
                continue;
            }
            if !waits || tried >= parts_of(charge) || self.limits[index].is_none() {
                return false;
            }
            turning.push(index);
        }
        for index in &turning {
            self.place(*index, self.places[*index] + 1);
        }
        !turning.is_empty()
    }

    /// Makes the outcomes describe whole allowances.
    fn tell(&self, applied: &mut Applied, earliest: Option<Time>) {
        let both = self.charges.iter().zip(&self.limits);
        for ((charge, limit), outcome) in both.zip(&mut applied.outcomes) {
            if limit.is_none() || !outcome.is_decided() {
                continue;
            }
            outcome.limit = charge.limit.capacity();
            if let (Admission::Denied(Denial::Until(at)), Some(earliest)) =
                (&mut outcome.admission, earliest)
            {
                *at = (*at).min(earliest);
            }
        }
    }
}

/// Returns the latest retry time of the charges that deny; `None` if none does, or waiting does not help.
fn retry_at(outcomes: &[Outcome], charges: &[Charge<'_>]) -> Option<Time> {
    let mut retry = None;
    for (outcome, charge) in outcomes.iter().zip(charges) {
        match outcome.admission {
            Admission::Denied(Denial::Until(at)) if charge.enforces() => {
                retry = retry.max(Some(at));
            }
            _ => {}
        }
    }
    retry
}

impl<S: Store> Sharded<S> {
    /// Splits the sharded allowances of `store`.
    pub fn new(store: S) -> Sharded<S> {
        // Instances begin with different parts.
        #[allow(clippy::cast_possible_truncation)]
        let first = crate::holds::random() as usize;
        Sharded {
            store,
            turns: (0..GROUPS)
                .map(|group| AtomicUsize::new(first.wrapping_add(group)))
                .collect(),
        }
    }

    /// Returns the part that a request begins with, and gives the next request another one.
    fn next_turn(&self, charge: &Charge<'_>) -> usize {
        match is_sharded(charge) {
            true => self.turn_of(charge).fetch_add(1, Ordering::Relaxed),
            false => 0,
        }
    }

    #[allow(clippy::cast_possible_truncation)] // Any bits of a key are spread evenly.
    fn turn_of(&self, charge: &Charge<'_>) -> &AtomicUsize {
        &self.turns[(charge.key.bits() >> 64) as usize % GROUPS]
    }

    /// Asks part after part, until one admits or none is left to ask.
    async fn apply_parts(&self, charges: &[Charge<'_>], ask: Ask) -> Result<Applied, StoreError> {
        let mut parts = Parts::new(charges, |charge| self.next_turn(charge));
        let (mut calls, mut tried, mut earliest) = (0, 0, None);
        let mut is_trial = parts.is_trial(0, 0);
        loop {
            let asked = parts.asked(is_trial);
            let answer = self.store.apply(&asked, ask);
            calls += usize::from(matches!(answer, Answer::Later(_)));
            let mut applied = answer.await?;
            drop(asked);
            tried += 1;
            if !applied.allowed {
                let retry = retry_at(&applied.outcomes, charges);
                earliest = match (earliest, retry) {
                    (Some(one), Some(other)) => Some(Time::min(one, other)),
                    (one, other) => one.or(other),
                };
                if calls < MOST_CALLS && parts.turn(&applied.outcomes, tried) {
                    is_trial = parts.is_trial(tried, calls);
                    continue;
                }
                if is_trial {
                    is_trial = false;
                    continue;
                }
            }
            let earliest = earliest.filter(|_| !applied.allowed);
            parts.tell(&mut applied, earliest);
            return Ok(applied);
        }
    }

    async fn hold_parts(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        let mut parts = Parts::new(charges, |charge| self.next_turn(charge));
        let mut is_trial = parts.is_trial(0, 0);
        for tried in 1.. {
            let asked = parts.asked(is_trial);
            let held = self.store.hold(&asked, units, new).await?;
            drop(asked);
            match held {
                Held::Denied {
                    applied,
                    ahead: None,
                } if tried < MOST_CALLS && parts.turn(&applied.outcomes, tried) => {
                    is_trial = parts.is_trial(tried, tried);
                }
                Held::Denied { .. } if is_trial => is_trial = false,
                Held::Denied { mut applied, ahead } => {
                    parts.tell(&mut applied, None);
                    return Ok(Held::Denied { applied, ahead });
                }
                Held::Taken {
                    mut applied,
                    record,
                } => {
                    parts.tell(&mut applied, None);
                    return Ok(Held::Taken { applied, record });
                }
                other => return Ok(other),
            }
        }
        Err(StoreError::Overloaded)
    }

    /// Looks at all parts of each charge. The outcome of a sharded charge has the sum of what its parts have
    /// left, and admits what one of its parts admits.
    async fn peek_parts(&self, charges: &[Charge<'_>], ask: Ask) -> Result<Applied, StoreError> {
        let others = charges.iter().filter(|it| !is_sharded(it)).copied();
        let others: Vec<Charge<'_>> = others.collect();
        let mut applied = self.store.peek(&others, ask).await?;
        let mut of_others = std::mem::take(&mut applied.outcomes).into_iter();
        let mut granted = applied.granted;
        if others.is_empty() {
            granted = ask.units();
        }
        let mut allowed = applied.allowed;
        for charge in charges {
            if !is_sharded(charge) {
                applied.outcomes.extend(of_others.next());
                continue;
            }
            let outcomes = self.all_parts(charge, ask).await?;
            applied.now = outcomes.0;
            let whole = summed(charge, &outcomes.1);
            if charge.enforces() {
                allowed &= whole.is_allowed();
            }
            let fits = outcomes
                .1
                .iter()
                .map(|it| it.remaining / charge.cost.max(1));
            granted = granted.min(fits.max().unwrap_or(0).max(1));
            applied.outcomes.push(whole);
        }
        applied.allowed = allowed;
        applied.granted = match (allowed, ask) {
            (false, _) => 0,
            (true, Ask::Exactly(units)) => units,
            (true, Ask::UpTo(_)) => granted,
        };
        Ok(applied)
    }

    /// Returns what each part of a charge answers, and the time of the store.
    async fn all_parts(
        &self,
        charge: &Charge<'_>,
        ask: Ask,
    ) -> Result<(Time, Vec<Outcome>), StoreError> {
        let of = parts_of(charge);
        let limits: Vec<Limit> = (0..of)
            .map(|place| charge.limit.part(place as u64, of as u64))
            .collect();
        let parts = limits.iter().enumerate().map(|(place, limit)| Charge {
            key: key_of(charge.key, place),
            tag: charge.tag.group(place as u64),
            limit,
            // Each part answers for itself.
            enforcement: Enforcement::Shadow,
            ..*charge
        });
        let parts: Vec<Charge<'_>> = parts.collect();
        let units = match ask {
            Ask::Exactly(units) => units,
            Ask::UpTo(units) => units.min(1),
        };
        let applied = self.store.peek(&parts, Ask::Exactly(units)).await?;
        Ok((applied.now, applied.outcomes.to_vec()))
    }
}

/// Returns the outcome of a whole allowance, from those of its parts.
fn summed(charge: &Charge<'_>, parts: &[Outcome]) -> Outcome {
    let wait = |it: &&Outcome| match it.admission {
        Admission::Allowed { .. } => (0, Time::default()),
        Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => (1, at),
        Admission::Denied(_) => (2, Time::default()),
    };
    let best = parts.iter().min_by_key(wait);
    Outcome {
        admission: best.map_or(Admission::Denied(Denial::Undecided), |it| it.admission),
        limit: charge.limit.capacity(),
        remaining: parts.iter().map(|it| it.remaining).sum(),
        reset_at: parts.iter().map(|it| it.reset_at).max().unwrap_or_default(),
    }
}

impl<S: Immediate> Immediate for Sharded<S> {}

impl<S: Store> Store for Sharded<S> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        match charges.iter().any(is_sharded) {
            false => self.store.apply(charges, ask),
            true => Answer::later(self.apply_parts(charges, ask)),
        }
    }

    fn apply_into<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        applied: &mut Applied,
    ) -> Option<Reply<'a, Applied>> {
        match charges.iter().any(is_sharded) {
            false => self.store.apply_into(charges, ask, applied),
            true => Some(self.apply(charges, ask)),
        }
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        match charges.iter().any(is_sharded) {
            false => self.store.peek(charges, ask),
            true => Answer::later(self.peek_parts(charges, ask)),
        }
    }

    /// Gives the units of a sharded charge back to the part with the least left. If that part has used fewer
    /// units, the rest stays taken.
    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        if !charges.iter().any(is_sharded) {
            return self.store.refund(charges, units, charged_at);
        }
        Answer::later(async move {
            let mut least: SmallVec<[usize; 6]> = SmallVec::new();
            for charge in charges {
                let (_, parts) = match is_sharded(charge) {
                    true => self.all_parts(charge, Ask::Exactly(0)).await?,
                    false => (Time::default(), Vec::new()),
                };
                let least_left = (0..parts.len()).min_by_key(|place| parts[*place].remaining);
                least.push(least_left.unwrap_or(0));
            }
            let mut parts = Parts::new(charges, |_| 0);
            for (index, place) in least.into_iter().enumerate() {
                parts.place(index, place);
            }
            let asked = parts.asked(false);
            let mut applied = self.store.refund(&asked, units, charged_at).await?;
            parts.tell(&mut applied, None);
            Ok(applied)
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        if !charges.iter().any(is_sharded) {
            return self.store.reset(charges);
        }
        Answer::later(async move {
            for charge in charges {
                let all = (0..parts_of(charge).max(1)).map(|place| match is_sharded(charge) {
                    false => *charge,
                    true => Charge {
                        key: key_of(charge.key, place),
                        tag: charge.tag.group(place as u64),
                        ..*charge
                    },
                });
                let all: Vec<Charge<'_>> = all.collect();
                self.store.reset(&all).await?;
            }
            Ok(())
        })
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        match charges.iter().any(is_sharded) {
            false => self.store.hold(charges, units, new),
            true => Answer::later(self.hold_parts(charges, units, new)),
        }
    }
}
