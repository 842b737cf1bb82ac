//! Several stores: each charge goes to the store that its rule names.
//!
//! The store in the memory of this instance (`local`) decides first. It answers at once, so a request that it
//! denies makes no call. Then the other stores decide one after the other: first the store that has recently denied
//! or failed most often, so that few units are taken in vain. Stores with equal counts are asked in the order of
//! the config. Each store decides its charges in one step, all or none. If a store denies, the
//! units that earlier stores took are given back, each at the time of its own decision. Stores after the one
//! that denies are not asked: their charges are [undecided](Outcome::UNDECIDED). If all charges of a request are
//! in one store, that store decides alone, without extra work here.
//!
//! # What a denied request changes
//! As in one store: nothing, except charges that count denied requests. Those of earlier stores stay charged.
//! Those of later stores are charged by a call of their own, so such a rule in another store makes a call for
//! each local denial. Back-offs count denials in their own store only. A candidate is compared in its own
//! store: it may be charged although a later store would have denied the request.
//!
//! # What can go wrong
//! Between two calls, other requests see the units of the first as taken. A store that fails is left out:
//! failure policies answer for its rules ([`Unanswered`](tollgate_store::Unanswered)), and the other stores answer for theirs. If giving
//! back fails, or the caller stops waiting, the units stay taken until they refill or expire, like those of
//! an admitted request. Nothing is given back twice, so no limit is ever exceeded.
//!
//! `parts.rs` splits a request by store, `decide.rs` decides it, and `holds.rs` has holds.

mod decide;
mod holds;
mod parts;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;
use tollgate_core::concurrency::Holder;
use tollgate_core::{Balance, Charge, HoldId, Outcome, Span, StoreId, Time, Token};
use tollgate_store::{
    AllowanceLevel, Answer, Applied, Ask, Extended, Guarantee, Held, HoldRecord, Immediate,
    NewHold, Outcomes, Reply, Settle, Settled, Store, StoreError, Usage,
};

use self::parts::{Part, Told, earliest, gather};
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
    /// How often the store has recently denied or failed: from 0 for never to `ALWAYS`.
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
        // No other store is asked. The outcomes move to the places of their charges.
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

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        self.at(charge.store, |store| store.report(charge, units))
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
}
