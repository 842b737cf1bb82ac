//! Making reservations and leases.

use smallvec::SmallVec;
use tollgate_core::{Charge, Limit, Tag, Token};
use tollgate_rules::{Attributes, RequestLimits, Resolution};
use tollgate_store::{
    Ask, Held, HoldState, HoldStore, MAX_OWNER, NewHold, Purpose, Settle, StoreError, Wait,
};

use super::desk::{Desk, random};
use super::{
    Acquire, AcquireOutcome, DEFAULT_TTL, Hold, HoldError, LEAST_TTL, LeaseToken, MOST_TTL,
    Reserve, ReserveOutcome, key, short, within,
};
use crate::books::{ATTEMPTS, Books, is_unrestored, lost};
use crate::decision::Decision;
use crate::parties::{Parties, Party};
use crate::path::{conclude, is_refused};

impl<S: HoldStore> Desk<'_, S> {
    /// Takes an estimate from every rule of a request.
    pub(crate) async fn reserve(
        &self,
        attributes: &Attributes<'_>,
        wish: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        let ttl = within(
            "a time to live",
            wish.ttl.unwrap_or(DEFAULT_TTL),
            LEAST_TTL,
            MOST_TTL,
        )?;
        let key = wish.idempotency_key.map(key).transpose()?;
        let request_limits = RequestLimits::default();
        let mut resolution = Resolution::default();
        let rules = self.live.rules();
        rules.resolve_into(attributes, &request_limits, &mut resolution);
        if is_refused(&resolution) {
            let decision = self.look(&resolution, wish.units).await?;
            return Ok(ReserveOutcome::Denied(decision));
        }
        if resolution.charges.is_empty() {
            let decision = self.look(&resolution, wish.units).await?;
            let hold = Hold::unheld(wish.units, decision.decided_at());
            return Ok(ReserveOutcome::Held {
                hold,
                decision: Some(decision),
            });
        }
        let tags: SmallVec<[Tag; 8]> = resolution.charges.iter().map(|it| it.tag).collect();
        let tenant = attributes.get("tenant").unwrap_or_default();
        let books = self.books_of(resolution.charges.iter().map(|it| it.ledgered));
        let memo = books.map(|_| Books::memo(self.live, &resolution, Party::of(attributes)));
        let memo = memo.unwrap_or_default();
        let new = NewHold {
            id: self.names.name(&tags, tenant, key),
            ttl,
            purpose: Purpose::Reservation,
            token: Token::NONE,
            owner: "",
            memo: &memo,
            // A new name is nobody else's.
            fingerprint: key.map_or(0, |_| self.names.fingerprint(attributes, wish.units)),
            wait: None,
        };
        match self.hold(&resolution.charges, wish.units, &new).await? {
            Held::Taken { applied, record } => {
                if let Some(books) = books
                    && let Err(error) = books.note_reserved(&record, key).await
                {
                    self.store.settle(record.id, Settle::Release).await?;
                    return Err(error.into());
                }
                self.live
                    .notice(&resolution.charges, &applied, |_| Party::of(attributes));
                Ok(ReserveOutcome::Held {
                    hold: Hold::of(&record),
                    decision: Some(conclude(self.live.rules(), &resolution, &applied)),
                })
            }
            // Nothing is held any more: whoever goes on would do so for nothing.
            Held::Repeated(record)
                if matches!(record.state, HoldState::Released | HoldState::Expired) =>
            {
                Err(HoldError::Ended(Box::new(Hold::of(&record))))
            }
            Held::Repeated(record) => {
                // Whoever made it may not have come to note it.
                if let Some(books) = books
                    && record.is_open()
                {
                    books.note_reserved(&record, key).await?;
                }
                Ok(ReserveOutcome::Held {
                    hold: Hold::of(&record),
                    decision: None,
                })
            }
            Held::Denied { applied, .. } => {
                let decision = conclude(self.live.rules(), &resolution, &applied);
                Ok(ReserveOutcome::Denied(decision))
            }
            Held::Conflict(_) => Err(HoldError::Conflict),
        }
    }

    /// Takes a slot of every concurrency rule of a request, if they are free. Who waits names a ticket,
    /// and asks again with it: how many are before it, if it has a place in a queue.
    pub(crate) async fn acquire(
        &self,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
        wait: Option<Wait>,
    ) -> Result<(AcquireOutcome, Option<u64>), HoldError> {
        let owner = short("the owner", wish.owner, MAX_OWNER)?;
        let request_limits = RequestLimits::default();
        let mut resolution = Resolution::default();
        let rules = self.live.rules();
        rules.resolve_into(attributes, &request_limits, &mut resolution);
        if is_refused(&resolution) {
            let decision = self.look(&resolution, 1).await?;
            return Ok((AcquireOutcome::Denied(decision), None));
        }
        let leases = resolution.charges.iter().filter_map(|it| match it.limit {
            Limit::Concurrency(concurrency) => Some((it.tag, concurrency.lease())),
            _ => None,
        });
        let Some((tag, lease)) = leases.min_by_key(|(_, lease)| *lease) else {
            return Err(HoldError::NothingToLease);
        };
        let ttl = within(
            "a time to live",
            wish.ttl.unwrap_or(lease),
            LEAST_TTL,
            MOST_TTL,
        )?;
        let token = Token::new(random());
        let new = NewHold {
            id: self.names.name(&[tag], "", None),
            ttl,
            purpose: Purpose::Lease,
            token,
            owner,
            memo: "",
            fingerprint: 0,
            wait,
        };
        match self.hold(&resolution.charges, 1, &new).await? {
            Held::Taken { applied, record } => {
                if let Some(books) = self.books_of(resolution.charges.iter().map(|it| it.ledgered))
                {
                    let parties = Parties::One(attributes);
                    let noted = books
                        .note(self.store, self.live, &resolution, &applied, &parties)
                        .await;
                    if let Err(error) = noted {
                        self.store
                            .settle(record.id, Settle::ReleaseLease { token })
                            .await?;
                        return Err(error.into());
                    }
                }
                self.live
                    .notice(&resolution.charges, &applied, |_| Party::of(attributes));
                let granted = AcquireOutcome::Granted {
                    lease: Hold::of(&record),
                    token: LeaseToken(token.bits()),
                    decision: conclude(self.live.rules(), &resolution, &applied),
                };
                Ok((granted, None))
            }
            Held::Repeated(_) | Held::Conflict(_) => Err(HoldError::Conflict),
            Held::Denied { applied, ahead } => {
                let decision = conclude(self.live.rules(), &resolution, &applied);
                Ok((AcquireOutcome::Denied(decision), ahead))
            }
        }
    }

    /// Asks the store, with counts restored first.
    async fn hold(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, HoldError> {
        for _ in 0..ATTEMPTS {
            let held = self.store.hold(charges, units, new).await?;
            let applied = match &held {
                Held::Denied { applied, .. } if is_unrestored(applied) => applied,
                _ => return Ok(held),
            };
            let Some(books) = self.books else {
                return Err(lost().into());
            };
            books.restore(self.store, charges, applied).await?;
        }
        Err(lost().into())
    }

    /// The decision about a request that nothing is taken for.
    async fn look(&self, resolution: &Resolution<'_>, units: u64) -> Result<Decision, StoreError> {
        let charges = &resolution.charges;
        let ask = Ask::Exactly(units);
        let applied = match self.books_of(charges.iter().map(|it| it.ledgered)) {
            Some(books) => books.peek(self.store, charges, ask).await?,
            None => self.store.peek(charges, ask).await?,
        };
        Ok(conclude(self.live.rules(), resolution, &applied))
    }
}
