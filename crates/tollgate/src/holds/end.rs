//! Ending, extending and finding reservations and leases, by their id.

use std::ops::Deref;
use std::sync::Arc;

use tollgate_config::{Attributes, RequestLimits};
use tollgate_core::{Enforcement, HoldId, Limit, Span, Time, Token};
use tollgate_store::{
    Extended, HoldRecord, HoldState, Immediate, Purpose, Settle, Settled, Store, StoreError,
};

use super::{
    DEFAULT_TTL, Hold, HoldError, HoldName, Holders, LEAST_TTL, LeaseToken, MOST_TTL, ended,
    lease_for, ttl_for, within,
};
use crate::active_config::ActiveConfig;
use crate::limiter::{Limiter, now};
use crate::snapshot::Snapshot;

/// The most holders of one rule that are listed.
const MOST_HOLDERS: usize = 1000;
/// The most expired holds that one sweep ends.
const SWEEP: usize = 64;

const OTHER_LEASE: HoldError = HoldError::OtherKind { is: "lease" };
const OTHER_RESERVATION: HoldError = HoldError::OtherKind { is: "reservation" };

impl<S: Store> Limiter<S> {
    /// Ends a reservation with the units that were really used. If fewer units were used than reserved,
    /// the difference is given back. If more were used, the rules charge the difference up to their
    /// overdrafts.
    ///
    /// # Errors
    /// If there is no such reservation, or it has ended in another way.
    pub async fn commit(&self, name: &HoldName, actual: u64) -> Result<Hold, HoldError> {
        let HoldName::Held(id) = name else {
            return Ok(Hold {
                state: HoldState::Consumed,
                actual: Some(actual),
                ..Hold::unheld(actual, Time::default())
            });
        };
        let record = self.settle(*id, Settle::Commit { actual }).await?;
        match record.actual {
            Some(used) if used == actual => Ok(Hold::of(&record)),
            _ => Err(ended(&record)),
        }
    }

    /// Ends a reservation, and gives all its units back.
    ///
    /// # Errors
    /// If there is no such reservation, or it was used.
    pub async fn release(&self, name: &HoldName) -> Result<Hold, HoldError> {
        let HoldName::Held(id) = name else {
            return Ok(Hold {
                state: HoldState::Released,
                ..Hold::unheld(0, Time::default())
            });
        };
        let record = self.settle(*id, Settle::Release).await?;
        match record.state {
            HoldState::Released => Ok(Hold::of(&record)),
            _ => Err(ended(&record)),
        }
    }

    /// Ends a reservation. Returns its record, even if the reservation ended before.
    async fn settle(&self, id: HoldId, how: Settle) -> Result<Arc<HoldRecord>, HoldError> {
        match self.store.settle(id, how).await? {
            Settled::Done(record) | Settled::Already(record) => Ok(record),
            Settled::Unknown => Err(HoldError::Unknown),
            // Ending a reservation needs no token.
            Settled::NotYours => Err(OTHER_LEASE),
            Settled::NotYet(record) => Err(ended(&record)),
            Settled::Unrestored(_) => Err(unrestored().into()),
        }
    }

    /// Keeps a reservation until `ttl` from now.
    ///
    /// # Errors
    /// If there is no such reservation, or it has ended.
    pub async fn extend(&self, name: &HoldName, ttl: Span) -> Result<Hold, HoldError> {
        if let HoldName::Held(id) = name
            && let Some(record) = self.store.find_hold(*id).await?
            && record.purpose == Purpose::Reservation
            && record.is_open()
        {
            let charges = record.charges.iter();
            let charges = charges.filter(|it| it.enforcement == Enforcement::Enforce);
            let charges = charges.map(|it| (&*it.rule, &it.limit));
            let active = self.once();
            ttl_for(Some(ttl), charges, active.active.rules().rules())?;
        }
        self.prolong(name, ttl, None).await
    }

    /// Keeps a lease until `ttl` from now. The default is the shortest `lease` of its rules.
    ///
    /// # Errors
    /// If there is no such lease, if it has ended, if `ttl` is longer than a rule allows, or if the token
    /// belongs to another lease.
    pub async fn renew(
        &self,
        name: &HoldName,
        token: LeaseToken,
        ttl: Option<Span>,
    ) -> Result<Hold, HoldError> {
        let ttl = match name {
            HoldName::Unheld => ttl.unwrap_or(DEFAULT_TTL),
            HoldName::Held(id) => {
                let record = self.store.find_hold(*id).await?;
                let record = record.ok_or(HoldError::Unknown)?;
                // The store rejects other callers. Only the owner learns how long a lease may be.
                let asked = ttl.filter(|_| record.may_extend(Some(Token::new(token.0))));
                let charges = record.charges.iter().map(|it| {
                    let enforces = it.enforcement == Enforcement::Enforce;
                    (&*it.rule, &it.limit, enforces)
                });
                let active = self.once();
                lease_for(asked, charges, active.active.rules().rules())?
            }
        };
        self.prolong(name, ttl, Some(Token::new(token.0))).await
    }

    async fn prolong(
        &self,
        name: &HoldName,
        ttl: Span,
        token: Option<Token>,
    ) -> Result<Hold, HoldError> {
        let ttl = within("a time to live", ttl, LEAST_TTL, MOST_TTL)?;
        let HoldName::Held(id) = name else {
            return Ok(Hold::unheld(0, Time::default()));
        };
        match self.store.extend(*id, ttl, token).await? {
            Extended::Done(record) => Ok(Hold::of(&record)),
            Extended::Ended(record) => Err(ended(&record)),
            // The slots are gone, even if no sweep has ended the hold yet.
            Extended::Lapsed(record) => Err(HoldError::Ended(Box::new(Hold {
                state: HoldState::Expired,
                ..Hold::of(&record)
            }))),
            Extended::Unknown => Err(HoldError::Unknown),
            Extended::NotYours if token.is_none() => Err(OTHER_LEASE),
            Extended::NotYours => Err(self.not_yours(*id).await),
        }
    }

    /// Returns the state of a reservation.
    ///
    /// # Errors
    /// If there is no such reservation, or it is a lease.
    pub async fn find_hold(&self, name: &HoldName) -> Result<Hold, HoldError> {
        let HoldName::Held(id) = name else {
            return Ok(Hold::unheld(0, Time::default()));
        };
        match self.store.find_hold(*id).await? {
            None => Err(HoldError::Unknown),
            Some(record) if record.purpose == Purpose::Lease => Err(OTHER_LEASE),
            Some(record) => Ok(Hold::of(&record)),
        }
    }

    /// Gives a lease back.
    ///
    /// # Errors
    /// If there is no such lease, or the token belongs to another lease.
    pub async fn free(&self, name: &HoldName, token: LeaseToken) -> Result<Hold, HoldError> {
        let HoldName::Held(id) = name else {
            return Ok(Hold {
                state: HoldState::Released,
                ..Hold::unheld(1, Time::default())
            });
        };
        let token = Token::new(token.0);
        let release = Settle::ReleaseLease { token };
        match self.store.settle(*id, release).await? {
            Settled::Done(record) | Settled::Already(record) => Ok(Hold::of(&record)),
            Settled::Unknown => Err(HoldError::Unknown),
            Settled::NotYours | Settled::NotYet(_) => Err(self.not_yours(*id).await),
            Settled::Unrestored(_) => Err(unrestored().into()),
        }
    }

    /// Returns the error for a call with the wrong token. The error is another one if the id names a
    /// reservation.
    async fn not_yours(&self, id: HoldId) -> HoldError {
        match self.store.find_hold(id).await {
            Ok(Some(record)) if record.purpose == Purpose::Reservation => OTHER_RESERVATION,
            Ok(_) => HoldError::NotYours,
            Err(error) => error.into(),
        }
    }

    /// Ends some of the expired reservations and leases, and returns how many. If one of them fails to
    /// end, the other ones still end. Call this about once a second.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn sweep_holds(&self) -> Result<usize, HoldError> {
        let due = self.store.due_holds(SWEEP).await?;
        let (mut ended, mut failed) = (0, Vec::new());
        for id in due {
            match self.store.settle(id, Settle::Expire).await {
                Ok(Settled::Unrestored(_)) => failed.push((id, unrestored())),
                Ok(_) => ended += 1,
                Err(error) => failed.push((id, error)),
            }
        }
        if let Some((id, error)) = failed.first() {
            let count = failed.len();
            tracing::warn!(%error, %id, count, "failed to end reservations or leases; they are tried again");
        }
        Ok(ended)
    }

    /// Lists the holders of slots of the concurrency rules of a request, by rule.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn holders(&self, attributes: &Attributes<'_>) -> Result<Vec<Holders>, HoldError> {
        self.once().holders(attributes).await
    }
}

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Lists the holders of slots of the concurrency rules of a request, by rule.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn holders(&self, attributes: &Attributes<'_>) -> Result<Vec<Holders>, HoldError> {
        let limits = RequestLimits::default();
        let resolution = self.active.rules().resolve(attributes, &limits);
        let mut all = Vec::new();
        let charges = resolution.charges.iter();
        for charge in charges.filter(|it| matches!(it.limit, Limit::Concurrency(_))) {
            let holders = self.limiter.store.holders(charge, MOST_HOLDERS).await?;
            all.push(Holders {
                rule: charge.rule.to_owned(),
                limit: charge.limit.capacity(),
                holders,
            });
        }
        Ok(all)
    }
}

impl<S: Immediate> Limiter<S> {
    /// Like [`commit`](Self::commit), without a runtime.
    ///
    /// # Errors
    /// The errors of [`commit`](Self::commit).
    pub fn commit_now(&self, name: &HoldName, actual: u64) -> Result<Hold, HoldError> {
        now(self.commit(name, actual))
    }

    /// Like [`release`](Self::release), without a runtime.
    ///
    /// # Errors
    /// The errors of [`release`](Self::release).
    pub fn release_now(&self, name: &HoldName) -> Result<Hold, HoldError> {
        now(self.release(name))
    }

    /// Like [`extend`](Self::extend), without a runtime.
    ///
    /// # Errors
    /// The errors of [`extend`](Self::extend).
    pub fn extend_now(&self, name: &HoldName, ttl: Span) -> Result<Hold, HoldError> {
        now(self.extend(name, ttl))
    }

    /// Like [`find_hold`](Self::find_hold), without a runtime.
    ///
    /// # Errors
    /// The errors of [`find_hold`](Self::find_hold).
    pub fn find_hold_now(&self, name: &HoldName) -> Result<Hold, HoldError> {
        now(self.find_hold(name))
    }

    /// Like [`renew`](Self::renew), without a runtime.
    ///
    /// # Errors
    /// The errors of [`renew`](Self::renew).
    pub fn renew_now(
        &self,
        name: &HoldName,
        token: LeaseToken,
        ttl: Option<Span>,
    ) -> Result<Hold, HoldError> {
        now(self.renew(name, token, ttl))
    }

    /// Like [`free`](Self::free), without a runtime.
    ///
    /// # Errors
    /// The errors of [`free`](Self::free).
    pub fn free_now(&self, name: &HoldName, token: LeaseToken) -> Result<Hold, HoldError> {
        now(self.free(name, token))
    }

    /// Like [`holders`](Self::holders), without a runtime.
    ///
    /// # Errors
    /// The errors of [`holders`](Self::holders).
    pub fn holders_now(&self, attributes: &Attributes<'_>) -> Result<Vec<Holders>, HoldError> {
        now(self.holders(attributes))
    }

    /// Like [`sweep_holds`](Self::sweep_holds), without a runtime.
    ///
    /// # Errors
    /// The errors of [`sweep_holds`](Self::sweep_holds).
    pub fn sweep_holds_now(&self) -> Result<usize, HoldError> {
        now(self.sweep_holds())
    }
}

/// Returns the error for a count that has to be restored. A store with a ledger restores it. So only a
/// store without a ledger causes this error.
fn unrestored() -> StoreError {
    StoreError::Unavailable("the usage of a quota has to be restored first".into())
}
