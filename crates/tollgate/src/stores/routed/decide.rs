//! Decides a request over several stores: asks one store after the other, and gives back what was taken if
//! one of them denies.

use smallvec::SmallVec;
use tollgate_core::{Charge, StoreId};
use tollgate_store::{Answer, Applied, Ask, Guarantee, Reply, Store, StoreError, Unanswered};

use super::Routed;
use super::parts::{Part, Told, earliest, gather};
use crate::limiter::now;

impl Routed {
    /// Decides a request over several stores. `local` is the answer of the local store, if it was asked.
    pub(super) async fn apply_remote<'a>(
        &self,
        charges: &[Charge<'a>],
        mut ask: Ask,
        local: Option<Told<'a>>,
    ) -> Result<Applied, StoreError> {
        let denied_units = units_when_denied(ask);
        if let (Some(local), Ask::UpTo(_)) = (&local, ask) {
            ask = Ask::UpTo(local.applied.granted);
        }
        let parts = self.remote_parts(charges);
        let mut told: Vec<Told<'a>> = local.into_iter().collect();
        let mut failure: Option<StoreError> = None;
        let mut parts = parts.into_iter();
        while let Some(part) = parts.next() {
            let answer = match self.find(part.store) {
                Ok(store) => store.apply(&part.charges, ask).await,
                Err(error) => Err(error),
            };
            self.note(part.store, !matches!(&answer, Ok(it) if it.allowed));
            match answer {
                Ok(applied) if applied.allowed => {
                    if let Ask::UpTo(_) = ask {
                        ask = Ask::UpTo(applied.granted);
                    }
                    told.push(Told { part, applied });
                }
                Ok(applied) => {
                    let denier = Told { part, applied };
                    let later = parts.collect();
                    let count = charges.len();
                    return Ok(self.deny(count, told, denier, later, denied_units).await);
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        if let (Some(error), true) = (&failure, told.is_empty()) {
            return Err(error.clone());
        }
        let granted = match ask {
            Ask::Exactly(units) | Ask::UpTo(units) => units,
        };
        // An earlier store may have granted more units than the last.
        for it in &mut told {
            let more = it.applied.granted.saturating_sub(granted);
            let all = [false, true].map(|counts| it.part.taken(&it.applied.outcomes, counts));
            let all: SmallVec<[usize; 6]> = all.into_iter().flatten().collect();
            self.give_back(it, &all, more).await;
        }
        let taken = told.iter().map(|it| (it.part.store, it.applied.now));
        let unanswered = failure.map(|error| {
            Box::new(Unanswered {
                error,
                taken: taken.collect(),
            })
        });
        Ok(Applied {
            // The earliest time, so that a refund later on does not give back units that have refilled since.
            now: earliest(&told),
            allowed: true,
            granted,
            outcomes: gather(charges.len(), &told),
            guarantee: Guarantee::Compensated,
            unanswered,
        })
    }

    /// Decides a request for up to some units. Asks each store for no more units than the store with the fewest
    /// has, so that few units are taken and given back.
    pub(super) async fn apply_up_to<'a>(
        &self,
        charges: &[Charge<'a>],
        most: u64,
        local: Part<'a>,
    ) -> Result<Applied, StoreError> {
        let mut parts = self.remote_parts(charges);
        parts.push(local);
        let mut fewest = most;
        for peeked in self.peek_parts(&parts, Ask::UpTo(most)).await {
            fewest = peeked.map_or(fewest, |it| fewest.min(it.granted.max(1)));
        }
        let (ask, local) = (Ask::UpTo(fewest), parts.pop());
        let Some(part) = local.filter(|it| !it.charges.is_empty()) else {
            return self.apply_remote(charges, ask, None).await;
        };
        let mut applied = Applied::default();
        self.local_apply(&part, ask, &mut applied)?;
        self.after_local(charges, ask, Told { part, applied }).await
    }

    /// Finishes a request that `denier` denies. Gives back the units of `earlier` stores, except where denied
    /// requests are charged. Charges them in `later` stores where denied requests are charged.
    async fn deny<'a>(
        &self,
        charges: usize,
        earlier: Vec<Told<'a>>,
        denier: Told<'a>,
        later: Vec<Part<'a>>,
        units: u64,
    ) -> Applied {
        let now = denier.applied.now;
        let mut told = earlier;
        for it in &mut told {
            let granted = it.applied.granted;
            let beyond = granted.saturating_sub(units);
            for (counts, back) in [(false, granted), (true, beyond)] {
                let taken = it.part.taken(&it.applied.outcomes, counts);
                self.give_back(it, &taken, back).await;
            }
        }
        told.push(denier);
        for part in later {
            told.extend(self.count_denied(&part, units).await);
        }
        Applied {
            now,
            outcomes: gather(charges, &told),
            guarantee: Guarantee::Compensated,
            ..Applied::default()
        }
    }

    /// Charges a denied request where denied requests are charged. The request is denied in any case, so an error
    /// is ignored.
    pub(super) async fn count_denied<'a>(&self, part: &Part<'a>, units: u64) -> Option<Told<'a>> {
        let part = part.counting();
        if part.charges.is_empty() {
            return None;
        }
        let store = self.find(part.store).ok()?;
        let applied = store.apply(&part.charges, Ask::Exactly(units)).await.ok()?;
        Some(Told { part, applied })
    }

    /// Gives back `units` of the charges at `places`, at the time when they were taken. Updates the figures.
    async fn give_back(&self, told: &mut Told<'_>, places: &[usize], units: u64) {
        if units == 0 || places.is_empty() {
            return;
        }
        let charges = places.iter().map(|place| told.part.charges[*place]);
        let charges: SmallVec<[Charge<'_>; 6]> = charges.collect();
        let refunded = match self.find(told.part.store) {
            Ok(store) => store.refund(&charges, units, told.applied.now).await,
            Err(error) => Err(error),
        };
        match refunded {
            Ok(refunded) => {
                for (place, after) in places.iter().zip(&refunded.outcomes) {
                    let outcome = &mut told.applied.outcomes[*place];
                    (outcome.remaining, outcome.reset_at) = (after.remaining, after.reset_at);
                }
            }
            // The refund may have been made, so it must not be repeated.
            Err(error) => {
                tracing::warn!(%error, "the units of a denied request stay taken until they refill or expire");
            }
        }
    }

    /// Asks all stores at the same time for their answers without taking anything.
    async fn peek_parts<'a>(
        &self,
        parts: &[Part<'a>],
        ask: Ask,
    ) -> Vec<Result<Applied, StoreError>> {
        let peeks = parts.iter().map(|part| match self.find(part.store) {
            Ok(store) => store.peek(&part.charges, ask),
            Err(error) => Answer::Now(Err(error)),
        });
        together(peeks).await
    }

    pub(super) async fn peek_all(
        &self,
        charges: &[Charge<'_>],
        ask: Ask,
    ) -> Result<Applied, StoreError> {
        let mut parts = self.remote_parts(charges);
        let local = Part::new(charges, StoreId::LOCAL);
        if !local.charges.is_empty() {
            parts.insert(0, local);
        }
        let mut answers = self.peek_parts(&parts, ask).await;
        let granted = |answers: &[Result<Applied, StoreError>]| {
            let granted = answers.iter().flatten().map(|it| it.granted);
            granted.min().unwrap_or_default()
        };
        let mut units = granted(&answers);
        // All answers must be about the same number of units.
        if let Ask::UpTo(_) = ask
            && answers.iter().flatten().any(|it| it.granted != units)
        {
            units = units.max(1);
            answers = self.peek_parts(&parts, Ask::Exactly(units)).await;
            units = granted(&answers);
        }
        let (mut told, mut failure) = (Vec::new(), None);
        for (part, answer) in parts.into_iter().zip(answers) {
            match answer {
                Ok(applied) => told.push(Told { part, applied }),
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        if let (Some(error), true) = (&failure, told.is_empty()) {
            return Err(error.clone());
        }
        let denier = told.iter().find(|it| !it.applied.allowed);
        let allowed = denier.is_none();
        Ok(Applied {
            now: denier.map_or_else(|| earliest(&told), |it| it.applied.now),
            allowed,
            granted: if allowed { units } else { 0 },
            outcomes: gather(charges.len(), &told),
            guarantee: Guarantee::Compensated,
            // If a store denies, the answer of the failed store does not matter.
            unanswered: failure.filter(|_| allowed).map(|error| {
                Box::new(Unanswered {
                    error,
                    taken: SmallVec::new(),
                })
            }),
        })
    }

    /// Makes the same call at every store of a request, at the same time. Fails if one store fails, although the
    /// others have done their part.
    pub(super) async fn in_all<'a, T: Send>(
        &self,
        charges: &[Charge<'a>],
        call: impl for<'c> Fn(&'c dyn Store, &'c Part<'a>) -> Reply<'c, T>,
    ) -> Result<(Vec<Part<'a>>, Vec<T>), StoreError> {
        let mut parts = self.remote_parts(charges);
        parts.insert(0, Part::new(charges, StoreId::LOCAL));
        parts.retain(|it| !it.charges.is_empty());
        let calls = parts.iter().map(|part| match self.find(part.store) {
            Ok(store) => call(store, part),
            Err(error) => Answer::Now(Err(error)),
        });
        let answers: Result<Vec<T>, StoreError> = together(calls).await.into_iter().collect();
        Ok((parts, answers?))
    }

    /// Returns whether the local store allows one unit.
    pub(super) fn allows_one(&self, local: &Part<'_>) -> bool {
        let one = Ask::Exactly(1);
        local.charges.is_empty()
            || now(self.local.peek(&local.charges, one).into_future()).is_ok_and(|it| it.allowed)
    }

    /// Goes on after the answer of the local store.
    pub(super) async fn after_local<'a>(
        &self,
        charges: &[Charge<'a>],
        ask: Ask,
        local: Told<'a>,
    ) -> Result<Applied, StoreError> {
        if local.applied.allowed {
            return self.apply_remote(charges, ask, Some(local)).await;
        }
        let (later, units) = (self.remote_parts(charges), units_when_denied(ask));
        Ok(self
            .deny(charges.len(), Vec::new(), local, later, units)
            .await)
    }
}

/// Waits for all answers at the same time.
async fn together<'a, T: Send + 'a>(answers: impl Iterator<Item = Answer<'a, T>>) -> Vec<T> {
    let none = Answer::Now(Vec::new());
    let all = answers.fold(none, |all: Answer<'a, Vec<T>>, one| {
        all.and(one).map(|(mut all, one)| {
            all.push(one);
            all
        })
    });
    all.await
}

/// Returns the units that a denied request counts for, where denied requests are charged: one, if it asks for
/// up to some units.
fn units_when_denied(ask: Ask) -> u64 {
    match ask {
        Ask::Exactly(units) => units,
        Ask::UpTo(units) => units.min(1),
    }
}
