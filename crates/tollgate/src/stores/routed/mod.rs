//! Several stores: each charge goes to the store that its rule names.
//!
//! The store in the memory of this instance (`local`) decides first. It answers at once, so a request that it
//! denies makes no call. Then the other stores decide one after the other: first the store that has denied or
//! failed most often of late, so that few units are taken in vain. Stores that are equal in this keep the
//! order of the config. Each store decides its charges in one step, all or none. If a store denies, the
//! units that earlier stores took are given back, each at the time of its own decision. Stores after the one
//! that denies are not asked: their charges are [undecided](Outcome::UNDECIDED). A request whose charges are
//! all in one store is that store's alone, and costs nothing here.
//!
//! # What a denied request changes
//! As in one store: nothing, except charges that count denied requests. Those of earlier stores stay charged.
//! Those of later stores are charged by a call of their own, so such a rule in another store makes a call for
//! each local denial. Back-offs count denials in their own store only. A candidate is compared in its own
//! store: it may be charged although a later store would have denied the request.
//!
//! # What can go wrong
//! Between two calls, other requests see the units of the first as taken. A store that fails is left out:
//! failure policies answer for its rules ([`Unanswered`]), and the other stores answer for theirs. If giving
//! back fails, or the caller stops waiting, the units stay taken until they refill or expire, like those of
//! an admitted request. Nothing is given back twice, so no limit is ever exceeded.
//!
//! Holds are in `holds.rs`.

mod holds;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;
use tollgate_core::concurrency::Holder;
use tollgate_core::{
    Balance, Charge, Enforcement, HoldId, OnDenied, Outcome, Span, StoreId, Time, Token,
};
use tollgate_store::{
    Answer, Applied, Ask, Extended, Guarantee, Held, HoldRecord, Immediate, NewHold, Outcomes,
    Reply, Settle, Settled, Store, StoreError, Unanswered, Usage,
};

use crate::limiter::now;

/// Sends each charge to one of several stores.
pub struct Routed {
    local: Arc<dyn Immediate>,
    /// The other stores, in the order of the config.
    routes: Vec<Route>,
}

/// A store that is not the local one.
struct Route {
    id: StoreId,
    store: Arc<dyn Store>,
    /// How often the store has denied or failed of late: from 0 for never to `ALWAYS`.
    denials: AtomicU32,
}

/// The value of [`Route::denials`] of a store that always denies.
const ALWAYS: u32 = 1 << 16;
/// One of this many answers makes a new value of [`Route::denials`].
const OF_LATE: u32 = 32;

impl Route {
    /// Notes whether the store has denied or failed.
    fn note(&self, denied: bool) {
        // Notes of requests at the same time may overwrite each other. The value is an estimate anyway.
        let was = self.denials.load(Ordering::Relaxed);
        let now = was - was / OF_LATE + if denied { ALWAYS / OF_LATE } else { 0 };
        self.denials.store(now.min(ALWAYS), Ordering::Relaxed);
    }
}

impl fmt::Debug for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stores: Vec<StoreId> = self.routes.iter().map(|it| it.id).collect();
        f.debug_struct("Routed")
            .field("stores", &stores)
            .finish_non_exhaustive()
    }
}

/// The charges of a request in one store.
#[derive(Clone)]
struct Part<'a> {
    store: StoreId,
    /// The indexes of the charges in the request.
    indexes: SmallVec<[u8; 6]>,
    charges: SmallVec<[Charge<'a>; 6]>,
}

impl<'a> Part<'a> {
    /// Returns the charges of `store`. Their indexes of other charges are adapted, and removed if the other
    /// charge is in another store.
    fn new(charges: &[Charge<'a>], store: StoreId) -> Part<'a> {
        let mut part = Part {
            store,
            indexes: SmallVec::new(),
            charges: SmallVec::new(),
        };
        for (index, charge) in (0..=u8::MAX).zip(charges) {
            if charge.store == store {
                part.indexes.push(index);
                part.charges.push(*charge);
            }
        }
        let indexes = &part.indexes;
        // A request has at most 255 charges. A place that does not exist is the last one.
        let place = |of: u8| indexes.iter().position(|it| *it == of);
        let place = |of: u8| place(of).and_then(|it| u8::try_from(it).ok());
        for charge in &mut part.charges {
            if let Enforcement::Instead(of) = charge.enforcement {
                charge.enforcement = place(of).map_or(Enforcement::Shadow, Enforcement::Instead);
            }
            if let OnDenied::Strike(of) = charge.on_denied {
                charge.on_denied = OnDenied::Strike(place(of).unwrap_or(u8::MAX));
            }
        }
        part
    }

    /// Writes the outcomes of this part to their places.
    fn spread(&self, told: &[Outcome], outcomes: &mut [Outcome]) {
        for (index, outcome) in self.indexes.iter().zip(told) {
            if let Some(place) = outcomes.get_mut(usize::from(*index)) {
                *place = *outcome;
            }
        }
    }

    /// Returns the places of the charges that took units, and count denied requests or not.
    fn taken(&self, outcomes: &[Outcome], counts_denied: bool) -> SmallVec<[usize; 6]> {
        let charges = self.charges.iter().zip(outcomes).enumerate();
        let taken = charges.filter(|(_, (charge, outcome))| {
            // A shadow that would have denied has taken nothing.
            let took = charge.limit.has_amount() && outcome.is_allowed();
            took && charge.counts_denied() == counts_denied
        });
        taken.map(|(place, _)| place).collect()
    }

    /// Returns the charges that count denied requests.
    fn counting(&self) -> Part<'a> {
        let both = self.indexes.iter().zip(&self.charges);
        let counting = both.filter(|(_, charge)| charge.counts_denied());
        let (indexes, charges) = counting.map(|(index, charge)| (*index, *charge)).unzip();
        Part {
            store: self.store,
            indexes,
            charges,
        }
    }
}

/// A part, and the answer of its store.
struct Told<'a> {
    part: Part<'a>,
    applied: Applied,
}

/// The stores of a request.
enum Stores {
    /// All charges are in this store.
    One(StoreId),
    Several,
}

impl Routed {
    /// Returns a store that sends charges to `local`, the store in the memory of this instance, and all other
    /// charges to `default`. To add stores, call [`with`](Self::with).
    pub fn new(local: Arc<dyn Immediate>, default: Arc<dyn Store>) -> Routed {
        let routed = Routed {
            local,
            routes: Vec::new(),
        };
        routed.with(StoreId::DEFAULT, default)
    }

    /// Adds the store of charges with this id.
    #[must_use]
    pub fn with(mut self, id: StoreId, store: Arc<dyn Store>) -> Routed {
        self.routes.push(Route {
            id,
            store,
            denials: AtomicU32::new(0),
        });
        self
    }

    /// Returns the store with this id.
    fn find(&self, id: StoreId) -> Result<&dyn Store, StoreError> {
        if id == StoreId::LOCAL {
            return Ok(&*self.local);
        }
        let route = self.routes.iter().find(|it| it.id == id);
        route.map(|it| &*it.store).ok_or_else(|| {
            StoreError::Unavailable(
                "this instance has not opened the store of a rule: restart it".into(),
            )
        })
    }

    /// Returns all stores, the local one first.
    fn all(&self) -> impl Iterator<Item = (StoreId, &dyn Store)> {
        let local: (StoreId, &dyn Store) = (StoreId::LOCAL, &*self.local);
        let others = self.routes.iter().map(|it| (it.id, &*it.store));
        std::iter::once(local).chain(others)
    }

    /// Notes whether a store has denied or failed.
    fn note(&self, id: StoreId, denied: bool) {
        if let Some(route) = self.routes.iter().find(|it| it.id == id) {
            route.note(denied);
        }
    }

    #[inline]
    fn stores_of(charges: &[Charge<'_>]) -> Stores {
        let first = charges.first().map_or(StoreId::DEFAULT, |it| it.store);
        match charges.iter().all(|it| it.store == first) {
            true => Stores::One(first),
            false => Stores::Several,
        }
    }

    /// Returns the parts of a request that are not local, in the order in which their stores are asked.
    fn remote_parts<'a>(&self, charges: &[Charge<'a>]) -> Vec<Part<'a>> {
        let mut ids: SmallVec<[StoreId; 4]> = SmallVec::new();
        for charge in charges {
            if charge.store != StoreId::LOCAL && !ids.contains(&charge.store) {
                ids.push(charge.store);
            }
        }
        let place = |id: &StoreId| self.routes.iter().position(|it| it.id == *id);
        ids.sort_by_cached_key(|id| match place(id) {
            Some(place) => {
                let denials = self.routes[place].denials.load(Ordering::Relaxed);
                // Small differences change from request to request, and are not worth another order.
                (ALWAYS - denials.min(ALWAYS)) / (ALWAYS / 16) * 1024
                    + u32::try_from(place).unwrap_or(0)
            }
            // A store that is not open fails at once.
            None => 0,
        });
        ids.iter().map(|id| Part::new(charges, *id)).collect()
    }

    /// Returns the answer of the local store, which is there at once.
    fn local_apply(
        &self,
        part: &Part<'_>,
        ask: Ask,
        applied: &mut Applied,
    ) -> Result<(), StoreError> {
        match self.local.apply_into(&part.charges, ask, applied) {
            None => Ok(()),
            Some(answer) => {
                *applied = now(answer.into_future())?;
                Ok(())
            }
        }
    }

    /// Decides a request over several stores. `local` is the answer of the local store, if it was asked.
    async fn apply_remote<'a>(
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
    async fn apply_up_to<'a>(
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

    /// Charges a denied request where denied requests are charged. It is denied in any case, so an error is
    /// not told.
    async fn count_denied<'a>(&self, part: &Part<'a>, units: u64) -> Option<Told<'a>> {
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

    async fn peek_all(&self, charges: &[Charge<'_>], ask: Ask) -> Result<Applied, StoreError> {
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
            // If a store denies, nobody has to answer for the store that failed.
            unanswered: failure.filter(|_| allowed).map(|error| {
                Box::new(Unanswered {
                    error,
                    taken: SmallVec::new(),
                })
            }),
        })
    }

    /// Makes the same call at every store of a request, at the same time. Fails if one of them fails; the
    /// others have done it all the same.
    async fn in_all<'a, T: Send>(
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

fn earliest(told: &[Told<'_>]) -> Time {
    let times = told.iter().map(|it| it.applied.now);
    times.min().unwrap_or_default()
}

/// Returns the outcomes of a request with this many charges, in their order.
fn gather(charges: usize, told: &[Told<'_>]) -> Outcomes {
    let mut outcomes: Outcomes = std::iter::repeat_n(Outcome::UNDECIDED, charges).collect();
    for it in told {
        it.part.spread(&it.applied.outcomes, &mut outcomes);
    }
    outcomes
}

impl Store for Routed {
    /// Returns the name of the default store.
    fn name(&self) -> &'static str {
        self.routes.first().map_or("other", |it| it.store.name())
    }

    fn records_usage(&self) -> bool {
        self.all().any(|(_, store)| store.records_usage())
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        let mut applied = Applied::default();
        match self.apply_into(charges, ask, &mut applied) {
            None => Answer::Now(Ok(applied)),
            Some(answer) => answer,
        }
    }

    #[inline]
    fn apply_into<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        applied: &mut Applied,
    ) -> Option<Reply<'a, Applied>> {
        if let Stores::One(id) = Self::stores_of(charges) {
            return match self.find(id) {
                Ok(store) => store.apply_into(charges, ask, applied),
                Err(error) => Some(Answer::Now(Err(error))),
            };
        }
        let local = Part::new(charges, StoreId::LOCAL);
        if let Ask::UpTo(most @ 2..) = ask
            && self.allows_one(&local)
        {
            return Some(Answer::later(self.apply_up_to(charges, most, local)));
        }
        if local.charges.is_empty() {
            return Some(Answer::later(self.apply_remote(charges, ask, None)));
        }
        if let Err(error) = self.local_apply(&local, ask, applied) {
            return Some(Answer::Now(Err(error)));
        }
        let counts = |it: &Charge<'_>| it.store != StoreId::LOCAL && it.counts_denied();
        if applied.allowed || charges.iter().any(counts) {
            let applied = std::mem::take(applied);
            let local = Told {
                part: local,
                applied,
            };
            return Some(Answer::later(self.after_local(charges, ask, local)));
        }
        // Nobody else is asked. The outcomes move to their places.
        let mut outcomes: Outcomes = SmallVec::new();
        outcomes.resize(charges.len(), Outcome::UNDECIDED);
        local.spread(&applied.outcomes, &mut outcomes);
        applied.outcomes = outcomes;
        None
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        match Self::stores_of(charges) {
            Stores::One(id) => self.at(id, |store| store.peek(charges, ask)),
            Stores::Several => Answer::later(self.peek_all(charges, ask)),
        }
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        if let Stores::One(id) = Self::stores_of(charges) {
            return self.at(id, |store| store.refund(charges, units, charged_at));
        }
        Answer::later(async move {
            let (parts, answers) = self
                .in_all(charges, |store, part| {
                    store.refund(&part.charges, units, charged_at)
                })
                .await?;
            let told = parts.into_iter().zip(answers);
            let told: Vec<Told<'_>> = told.map(|(part, applied)| Told { part, applied }).collect();
            Ok(Applied {
                now: earliest(&told),
                allowed: true,
                outcomes: gather(charges.len(), &told),
                guarantee: Guarantee::Compensated,
                ..Applied::default()
            })
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        if let Stores::One(id) = Self::stores_of(charges) {
            return self.at(id, |store| store.reset(charges));
        }
        Answer::later(async move {
            let reset = self.in_all(charges, |store, part| store.reset(&part.charges));
            reset.await.map(|_| ())
        })
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        if let Stores::One(id) = Self::stores_of(charges) {
            return self.at(id, |store| store.restore(charges, balances));
        }
        Answer::later(async move {
            for (charge, balance) in charges.iter().zip(balances) {
                let (charge, balance) =
                    (std::slice::from_ref(charge), std::slice::from_ref(balance));
                self.find(charge[0].store)?.restore(charge, balance).await?;
            }
            Ok(())
        })
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        self.at(charge.store, |store| store.adjust(charge, used, extra))
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        self.at(charge.store, |store| store.balance(charge))
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        match Self::stores_of(charges) {
            Stores::One(id) => self.at(id, |store| store.hold(charges, units, new)),
            Stores::Several => Answer::later(self.hold_in_several(charges, units, new)),
        }
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        match holds::is_alone(id) {
            Some(store) => self.at(store, |store| store.settle(id, how)),
            None => Answer::later(self.settle_in_several(id, how)),
        }
    }

    fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'_, Extended> {
        match holds::is_alone(id) {
            Some(store) => self.at(store, |store| store.extend(id, ttl, token)),
            None => Answer::later(self.extend_in_several(id, ttl, token)),
        }
    }

    fn find_hold(&self, id: HoldId) -> Reply<'_, Option<Arc<HoldRecord>>> {
        match holds::is_alone(id) {
            Some(store) => self.at(store, |store| store.find_hold(id)),
            None => Answer::later(self.find_in_several(id)),
        }
    }

    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        self.at(holds::store_of(record.id), |store| store.put_hold(record))
    }

    fn due_holds(&self, most: usize) -> Reply<'_, Vec<HoldId>> {
        Answer::later(self.due_in_all(most))
    }

    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        self.at(charge.store, |store| store.holders(charge, most))
    }

    /// Returns the sum over all stores.
    fn usage(&self) -> Reply<'_, Usage> {
        Answer::later(async move {
            let mut sum = Usage::default();
            for (_, store) in self.all() {
                let usage = store.usage().await?;
                sum.keys += usage.keys;
                sum.bytes += usage.bytes;
                sum.shared += usage.shared;
                sum.reservations += usage.reservations;
                sum.leases += usage.leases;
            }
            Ok(sum)
        })
    }

    fn sweep(&self) {
        for (_, store) in self.all() {
            store.sweep();
        }
    }
}

impl Routed {
    /// Calls the store with this id.
    fn at<'a, T>(
        &'a self,
        id: StoreId,
        call: impl FnOnce(&'a dyn Store) -> Reply<'a, T>,
    ) -> Reply<'a, T> {
        match self.find(id) {
            Ok(store) => call(store),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    /// Returns whether the local store allows one unit.
    fn allows_one(&self, local: &Part<'_>) -> bool {
        let one = Ask::Exactly(1);
        local.charges.is_empty()
            || now(self.local.peek(&local.charges, one).into_future()).is_ok_and(|it| it.allowed)
    }

    /// Goes on after the answer of the local store.
    async fn after_local<'a>(
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

/// Returns the units that a denied request counts for, where denied requests are charged: one, if it asks for
/// up to some units.
fn units_when_denied(ask: Ask) -> u64 {
    match ask {
        Ask::Exactly(units) => units,
        Ask::UpTo(units) => units.min(1),
    }
}
