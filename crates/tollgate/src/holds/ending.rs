//! Ending and extending reservations and leases.

use std::sync::Arc;

use tollgate_core::{HoldId, Limit, Span, Time, Token};
use tollgate_rules::{Attributes, RequestLimits};
use tollgate_store::{
    Extended, HeldCharge, HoldRecord, HoldState, HoldStore, Purpose, Settle, Settled, StoreError,
};

use super::desk::Desk;
use super::{
    DEFAULT_TTL, Hold, HoldError, HoldName, Holders, LEAST_TTL, LeaseToken, MOST_TTL, within,
};
use crate::books::lost;

/// How many holders of one rule are listed at most.
const MOST_HOLDERS: usize = 1000;
/// How many holds whose time is over are ended at a time.
const SWEEP: usize = 64;

const OTHER_LEASE: HoldError = HoldError::OtherKind { is: "lease" };
const OTHER_RESERVATION: HoldError = HoldError::OtherKind { is: "reservation" };

impl<S: HoldStore> Desk<'_, S> {
    /// Ends a reservation with what was really used.
    pub(crate) async fn commit(&self, name: &HoldName, actual: u64) -> Result<Hold, HoldError> {
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
            _ => Err(HoldError::Ended(Box::new(Hold::of(&record)))),
        }
    }

    /// Gives back all that a reservation holds.
    pub(crate) async fn release(&self, name: &HoldName) -> Result<Hold, HoldError> {
        let HoldName::Held(id) = name else {
            return Ok(Hold {
                state: HoldState::Released,
                ..Hold::unheld(0, Time::default())
            });
        };
        let record = self.settle(*id, Settle::Release).await?;
        match record.state {
            HoldState::Released => Ok(Hold::of(&record)),
            _ => Err(HoldError::Ended(Box::new(Hold::of(&record)))),
        }
    }

    /// Ends it so, or says how it has ended before.
    async fn settle(&self, id: HoldId, how: Settle) -> Result<Arc<HoldRecord>, HoldError> {
        let mut settled = self.settle_restored(id, how).await?;
        if let Settled::Unknown = settled
            && let Some(books) = self.books
            && books.revive(self.store, id).await?
        {
            settled = self.settle_restored(id, how).await?;
        }
        match settled {
            Settled::Done(record) => {
                self.forget_denials(&record);
                self.note_end(&record).await?;
                Ok(record)
            }
            Settled::Already(record) => {
                // Whoever ended it may not have come to write it down.
                self.note_end(&record).await?;
                Ok(record)
            }
            Settled::Unknown => Err(HoldError::Unknown),
            // Nobody needs a token to end a reservation.
            Settled::NotYours => Err(OTHER_LEASE),
            Settled::NotYet(record) => Err(HoldError::Ended(Box::new(Hold::of(&record)))),
            Settled::Unrestored(_) => Err(lost().into()),
        }
    }

    /// As the store does it, with counts restored first.
    async fn settle_restored(&self, id: HoldId, how: Settle) -> Result<Settled, StoreError> {
        match self.books {
            Some(books) => books.settle(self.store, id, how).await,
            None => self.store.settle(id, how).await,
        }
    }

    /// What was refused may be admitted now that something was given back.
    fn forget_denials(&self, record: &HoldRecord) {
        if let Some(denials) = self.denials {
            let charges = record.charges.iter().map(HeldCharge::as_charge);
            denials.forget(&charges.collect::<Vec<_>>());
        }
    }

    /// Why who has a token may not do what it asks for.
    async fn not_yours(&self, id: HoldId) -> HoldError {
        match self.store.find_hold(id).await {
            Ok(Some(record)) if record.purpose == Purpose::Reservation => OTHER_RESERVATION,
            Ok(_) => HoldError::NotYours,
            Err(error) => error.into(),
        }
    }

    async fn note_end(&self, record: &HoldRecord) -> Result<(), HoldError> {
        let ledgered = record.charges.iter().map(|it| it.ledgered);
        if record.purpose == Purpose::Reservation
            && let Some(books) = self.books_of(ledgered)
        {
            books.note_ended(record, self.clock.now()).await?;
        }
        Ok(())
    }

    /// Keeps a reservation for so long from now.
    pub(crate) async fn extend(&self, name: &HoldName, ttl: Span) -> Result<Hold, HoldError> {
        self.prolong(name, ttl, None).await
    }

    /// Keeps a lease for so long from now.
    pub(crate) async fn renew(
        &self,
        name: &HoldName,
        token: LeaseToken,
        ttl: Option<Span>,
    ) -> Result<Hold, HoldError> {
        let ttl = match (ttl, name) {
            (Some(ttl), _) => ttl,
            (None, HoldName::Unheld) => DEFAULT_TTL,
            (None, HoldName::Held(id)) => {
                let record = self.store.find_hold(*id).await?;
                lease_of(&*record.ok_or(HoldError::Unknown)?)
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
        let mut extended = self.store.extend(*id, ttl, token).await?;
        if let Extended::Unknown = extended
            && let Some(books) = self.books
            && books.revive(self.store, *id).await?
        {
            extended = self.store.extend(*id, ttl, token).await?;
        }
        match extended {
            Extended::Done(record) => {
                let ledgered = record.charges.iter().map(|it| it.ledgered);
                if record.purpose == Purpose::Reservation
                    && let Some(books) = self.books_of(ledgered)
                {
                    books.note_extended(&record).await?;
                }
                Ok(Hold::of(&record))
            }
            Extended::Ended(record) | Extended::Lapsed(record) => {
                Err(HoldError::Ended(Box::new(Hold::of(&record))))
            }
            Extended::Unknown => Err(HoldError::Unknown),
            Extended::NotYours if token.is_none() => Err(OTHER_LEASE),
            Extended::NotYours => Err(self.not_yours(*id).await),
        }
    }

    /// How a reservation stands.
    pub(crate) async fn find(&self, name: &HoldName) -> Result<Hold, HoldError> {
        let HoldName::Held(id) = name else {
            return Ok(Hold::unheld(0, Time::default()));
        };
        let mut found = self.store.find_hold(*id).await?;
        if found.is_none()
            && let Some(books) = self.books
            && books.revive(self.store, *id).await?
        {
            found = self.store.find_hold(*id).await?;
        }
        match found {
            None => Err(HoldError::Unknown),
            Some(record) if record.purpose == Purpose::Lease => Err(OTHER_LEASE),
            Some(record) => Ok(Hold::of(&record)),
        }
    }

    /// Gives a lease back.
    pub(crate) async fn free(&self, name: &HoldName, token: LeaseToken) -> Result<Hold, HoldError> {
        let HoldName::Held(id) = name else {
            return Ok(Hold {
                state: HoldState::Released,
                ..Hold::unheld(1, Time::default())
            });
        };
        let token = Token::new(token.0);
        let how = Settle::ReleaseLease { token };
        match self.store.settle(*id, how).await? {
            Settled::Done(record) | Settled::Already(record) => Ok(Hold::of(&record)),
            Settled::Unknown => Err(HoldError::Unknown),
            Settled::NotYours | Settled::NotYet(_) => Err(self.not_yours(*id).await),
            Settled::Unrestored(_) => Err(lost().into()),
        }
    }

    /// Who holds slots of the concurrency rules of a request: by rule.
    pub(crate) async fn holders(
        &self,
        attributes: &Attributes<'_>,
    ) -> Result<Vec<Holders>, HoldError> {
        let request_limits = RequestLimits::default();
        let resolution = self.live.rules().resolve(attributes, &request_limits);
        let mut all = Vec::new();
        let charges = resolution.charges.iter();
        for charge in charges.filter(|it| matches!(it.limit, Limit::Concurrency(_))) {
            let holders = self.store.holders(charge, MOST_HOLDERS).await?;
            all.push(Holders {
                rule: charge.rule.to_owned(),
                limit: charge.limit.capacity(),
                holders,
            });
        }
        Ok(all)
    }

    /// Ends holds whose time is over, and says how many it could. What cannot be ended now does not keep
    /// others from it.
    pub(crate) async fn sweep(&self) -> Result<usize, HoldError> {
        let due = self.store.due_holds(SWEEP).await?;
        let (mut ended, mut failed) = (0, Vec::new());
        for id in due {
            match self.expire(id).await {
                Ok(()) => ended += 1,
                Err(error) => failed.push((id, error)),
            }
        }
        if let Some((id, error)) = failed.first() {
            let count = failed.len();
            tracing::warn!(%error, %id, count, "reservations or leases cannot be ended now");
        }
        Ok(ended)
    }

    async fn expire(&self, id: HoldId) -> Result<(), HoldError> {
        match self.settle_restored(id, Settle::Expire).await? {
            Settled::Done(record) => {
                self.forget_denials(&record);
                self.note_end(&record).await
            }
            Settled::Already(record) => self.note_end(&record).await,
            Settled::Unknown | Settled::NotYours | Settled::NotYet(_) => Ok(()),
            Settled::Unrestored(_) => Err(lost().into()),
        }
    }
}

/// How long a lease is held unless it says: as long as the shortest of its rules.
fn lease_of(record: &HoldRecord) -> Span {
    let leases = record.charges.iter().filter_map(|it| match &it.limit {
        Limit::Concurrency(concurrency) => Some(concurrency.lease()),
        _ => None,
    });
    leases.min().unwrap_or(DEFAULT_TTL)
}
