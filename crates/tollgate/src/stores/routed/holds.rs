//! Holds over several stores.
//!
//! Each store has a part of the hold: a hold of the charges there, under the id of the hold and of the part.
//! The part in the main store ([`HoldId::main`]) says whether the hold is open, and how it has ended. The
//! other parts follow it. A hold is made in the local store first, then in the main store, then in the
//! others. If one denies or fails, the parts so far are undone. A hold ends in the main store first.
//!
//! # What can go wrong
//! If this process dies between two calls, or a store fails while a hold ends, the part of that store ends
//! when it is due: as the main part has ended, or as expired if the main part is gone. A part in the memory of
//! another instance cannot be reached. It ends there when it is due, as the main part says.
//!
//! A fence is the largest of the parts. Leases over the same stores have growing fences. Keep the concurrency
//! rules that protect one resource in one store.

use std::collections::HashSet;
use std::sync::Arc;

use tollgate_core::{Charge, HoldId, HoldStores, Span, StoreId, Token};
use tollgate_store::{
    Applied, Extended, Guarantee, Held, HoldRecord, HoldState, NewHold, Purpose, Settle, Settled,
    StoreError,
};

use super::Routed;
use super::parts::{Part, Told, gather};

/// How long a part lasts after the main part was extended at another instance, until it is due again.
const FOLLOWS: Span = Span::MINUTE;

/// Returns the only store of a hold; `None` if the hold has several.
pub(super) fn is_alone(id: HoldId) -> Option<StoreId> {
    match id.stores() {
        HoldStores::One(store) => Some(store),
        HoldStores::Several { .. } => None,
    }
}

/// Returns the store of the part with this id.
pub(super) fn store_of(id: HoldId) -> StoreId {
    match id.stores() {
        HoldStores::One(store) | HoldStores::Several { part: store, .. } => store,
    }
}

/// Returns the id of the main part.
fn main_of(id: HoldId) -> HoldId {
    id.part_in(id.main())
}

/// Returns how the other parts end if the main part has ended as its record says.
fn follows(record: &HoldRecord) -> Settle {
    match (record.state, record.actual, record.purpose) {
        (HoldState::Consumed, Some(actual), _) => Settle::Commit { actual },
        (_, _, Purpose::Reservation) => Settle::Release,
        (_, _, Purpose::Lease) => Settle::ReleaseLease {
            token: record.token,
        },
    }
}

impl Routed {
    /// Makes a hold over several stores.
    pub(super) async fn hold_in_several(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        let id = match new.id.stores() {
            HoldStores::Several { .. } => main_of(new.id),
            HoldStores::One(_) => {
                let stores = HoldStores::of(charges.iter().map(|it| it.store));
                new.id.in_stores(stores)
            }
        };
        let main = id.main();
        let mut parts = self.remote_parts(charges);
        parts.push(Part::new(charges, StoreId::LOCAL));
        parts.retain(|it| !it.charges.is_empty());
        parts.sort_by_key(|it| (it.store != StoreId::LOCAL, it.store != main));
        // The parts that this call has made, and those that an earlier call has made.
        let (mut made, mut known) = (Vec::new(), Vec::new());
        let mut told: Vec<Told<'_>> = Vec::new();
        for place in 0..parts.len() {
            let part = &parts[place];
            let new = NewHold {
                id: id.part_in(part.store),
                // The main store counts the open holds of the subject.
                bound: new.bound.filter(|_| part.store == main),
                ..*new
            };
            let held = match self.find(part.store) {
                Ok(store) => store.hold(&part.charges, units, &new).await,
                Err(error) => Err(error),
            };
            match held {
                Ok(Held::Taken { applied, record }) => {
                    made.push(record);
                    told.push(Told {
                        part: part.clone(),
                        applied,
                    });
                }
                Ok(Held::Repeated(_)) if part.store == main => {
                    self.undo(&made).await;
                    let record = self.find_in_several(id).await?;
                    return record
                        .map(Held::Repeated)
                        .ok_or_else(|| StoreError::Unavailable("a hold has just ended".into()));
                }
                // An earlier call has made this part, and did not come further.
                Ok(Held::Repeated(record)) => known.push(record),
                Ok(Held::Denied { applied, ahead }) => {
                    self.undo(&made).await;
                    let now = applied.now;
                    let mut told = vec![Told {
                        part: part.clone(),
                        applied,
                    }];
                    for (other, part) in parts.iter().enumerate() {
                        if other != place {
                            told.extend(self.count_denied(part, units).await);
                        }
                    }
                    let applied = Applied {
                        now,
                        outcomes: gather(charges.len(), &told),
                        guarantee: Guarantee::Compensated,
                        ..Applied::default()
                    };
                    return Ok(Held::Denied { applied, ahead });
                }
                Ok(other) => {
                    self.undo(&made).await;
                    return Ok(other);
                }
                Err(error) => {
                    self.undo(&made).await;
                    return Err(error);
                }
            }
        }
        let Some(of_main) = made.iter().find(|it| it.id == id) else {
            return Err(StoreError::Unsupported("holds without charges"));
        };
        let others = made.iter().chain(&known).filter(|it| it.id != id);
        let (now, record) = (of_main.charged_at, merged(of_main, others.map(|it| &**it)));
        let applied = Applied {
            now,
            allowed: true,
            granted: units,
            outcomes: gather(charges.len(), &told),
            guarantee: Guarantee::Compensated,
            unanswered: None,
        };
        Ok(Held::Taken { applied, record })
    }

    /// Undoes the parts of a hold that was denied. A part that cannot be undone now ends when it is due.
    async fn undo(&self, made: &[Arc<HoldRecord>]) {
        for record in made.iter().rev() {
            let undone = match self.find(store_of(record.id)) {
                Ok(store) => store.settle(record.id, Settle::Undo).await,
                Err(error) => Err(error),
            };
            if let Err(error) = undone {
                let id = record.id;
                tracing::warn!(%id, %error, "cannot undo part of a denied hold; it ends when it is due");
            }
        }
    }

    /// Returns the stores that may have the other parts of a hold.
    fn others(&self, id: HoldId) -> impl Iterator<Item = (HoldId, &dyn tollgate_store::Store)> {
        let others = self.all().filter(move |(store, _)| *store != id.main());
        others.map(move |(it, store)| (id.part_in(it), store))
    }

    /// Ends a hold over several stores.
    pub(super) async fn settle_in_several(
        &self,
        id: HoldId,
        how: Settle,
    ) -> Result<Settled, StoreError> {
        let id = main_of(id);
        // A main store that the config does not name any more has lost the hold.
        let settled = match self.find(id.main()) {
            Ok(store) => store.settle(id, how).await?,
            Err(_) => Settled::Unknown,
        };
        let (record, is_done) = match settled {
            Settled::Done(record) => (record, true),
            Settled::Already(record) => (record, false),
            Settled::NotYet(record) => {
                // Another instance has extended the hold.
                let token = (record.purpose == Purpose::Lease).then_some(record.token);
                for (part, store) in self.others(id) {
                    self.tell(part, store.extend(part, FOLLOWS, token).await);
                }
                return Ok(Settled::NotYet(record));
            }
            Settled::Unknown if how == Settle::Expire => return self.expire_parts(id).await,
            other => return Ok(other),
        };
        let how = match how {
            Settle::Undo => Settle::Undo,
            _ => follows(&record),
        };
        let mut parts = Vec::new();
        for (part, store) in self.others(id) {
            match store.settle(part, how).await {
                Ok(Settled::Done(it) | Settled::Already(it)) => parts.push(it),
                other => self.tell(part, other),
            }
        }
        let record = merged(&record, parts.iter().map(|it| &**it));
        Ok(match is_done {
            true => Settled::Done(record),
            false => Settled::Already(record),
        })
    }

    /// Ends the expired parts of a hold whose main part is gone.
    async fn expire_parts(&self, id: HoldId) -> Result<Settled, StoreError> {
        let mut ended = Settled::Unknown;
        for (part, store) in self.others(id) {
            if let Settled::Done(record) = store.settle(part, Settle::Expire).await? {
                ended = Settled::Done(record);
            }
        }
        Ok(ended)
    }

    /// Logs that a part of a hold could not be changed now.
    fn tell<T>(&self, part: HoldId, answer: Result<T, StoreError>) {
        if let Err(error) = answer {
            tracing::debug!(%part, %error, "cannot change part of a hold now; it follows when it is due");
        }
    }

    /// Extends a hold over several stores. A part in the memory of another instance follows when it is due.
    pub(super) async fn extend_in_several(
        &self,
        id: HoldId,
        ttl: Span,
        token: Option<Token>,
    ) -> Result<Extended, StoreError> {
        let id = main_of(id);
        let extended = match self.find(id.main()) {
            Ok(store) => store.extend(id, ttl, token).await?,
            Err(_) => Extended::Unknown,
        };
        let Extended::Done(record) = extended else {
            return Ok(extended);
        };
        let (mut parts, mut lapsed) = (Vec::new(), false);
        for (part, store) in self.others(id) {
            match store.extend(part, ttl, token).await? {
                Extended::Done(it) => parts.push(it),
                Extended::Lapsed(it) => {
                    lapsed = true;
                    parts.push(it);
                }
                _ => {}
            }
        }
        let record = merged(&record, parts.iter().map(|it| &**it));
        Ok(match lapsed {
            true => Extended::Lapsed(record),
            false => Extended::Done(record),
        })
    }

    /// Returns the record of a hold over several stores. Parts that cannot be read now are left out.
    pub(super) async fn find_in_several(
        &self,
        id: HoldId,
    ) -> Result<Option<Arc<HoldRecord>>, StoreError> {
        let id = main_of(id);
        let Ok(store) = self.find(id.main()) else {
            return Ok(None);
        };
        let Some(record) = store.find_hold(id).await? else {
            return Ok(None);
        };
        let mut parts = Vec::new();
        for (part, store) in self.others(id) {
            parts.extend(store.find_hold(part).await.ok().flatten());
        }
        Ok(Some(merged(&record, parts.iter().map(|it| &**it))))
    }

    /// Lists the expired holds of all stores that answer, by the ids of their main parts.
    pub(super) async fn due_in_all(&self, most: usize) -> Result<Vec<HoldId>, StoreError> {
        let (mut due, mut seen, mut failure) = (Vec::new(), HashSet::new(), None);
        for (_, store) in self.all() {
            match store.due_holds(most).await {
                Ok(ids) => {
                    let ids = ids.into_iter().map(main_of);
                    due.extend(ids.filter(|id| seen.insert(*id)));
                }
                Err(error) => failure = Some(error),
            }
        }
        due.truncate(most);
        match failure.filter(|_| due.is_empty()) {
            Some(error) => Err(error),
            None => Ok(due),
        }
    }
}

/// Returns the record of a whole hold: that of the main part, with the charges of the other parts.
fn merged<'r>(main: &HoldRecord, parts: impl Iterator<Item = &'r HoldRecord>) -> Arc<HoldRecord> {
    let mut record = main.clone();
    for part in parts {
        record.fence = record.fence.max(part.fence);
        record.charges.extend_from_slice(&part.charges);
    }
    Arc::new(record)
}
