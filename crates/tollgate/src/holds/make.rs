//! Making reservations and leases.

use std::ops::Deref;

use smallvec::SmallVec;
use tollgate_config::{Attributes, RequestLimits, Resolution};
use tollgate_core::{HoldStores, Limit, Tag, Token};
use tollgate_store::{
    Ask, Held, HoldState, Immediate, MAX_OWNER, NewHold, OpenBound, Purpose, Store, StoreError,
    Wait,
};

use super::{
    Acquire, AcquireOutcome, DEFAULT_TTL, Hold, HoldError, HoldName, LEAST_TTL, LeaseToken,
    MOST_TTL, PATIENCE, Reserve, ReserveOutcome, ended, lease_for, random, ttl_for, valid_key,
    within,
};
use crate::active_config::ActiveConfig;
use crate::limiter::{Limiter, now};
use crate::reply::{Reply, is_denied};
use crate::snapshot::Snapshot;

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Takes an estimate from every rule of a request, to be settled later.
    ///
    /// # Errors
    /// If a setting is out of bounds, or the idempotency key was used for something else.
    pub async fn reserve(
        &self,
        attributes: &Attributes<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        let in_range = |ttl| within("a time to live", ttl, LEAST_TTL, MOST_TTL);
        let asked = reserve.ttl.map(in_range).transpose()?;
        let key = reserve.idempotency_key.map(valid_key).transpose()?;
        if let Some(block) = self.block_of(attributes) {
            let denied = self.deny_blocked(block, attributes);
            return Ok(ReserveOutcome::Denied(denied));
        }
        let limits = RequestLimits::default();
        let resolution = self.active.rules().resolve(attributes, &limits);
        let ask = Ask::Exactly(reserve.units);
        let unheld = is_denied(&resolution) || resolution.charges.is_empty();
        let (reply, held) = if unheld {
            (self.look(&resolution, ask).await, None)
        } else {
            let rules = self.active.rules().rules();
            let charges = resolution.charges.iter().filter(|it| it.enforces());
            let allowed = ttl_for(asked, charges.map(|it| (it.rule, it.limit)), rules);
            let tags: SmallVec<[Tag; 8]> = resolution.charges.iter().map(|it| it.tag).collect();
            let tenant = attributes.get("tenant").unwrap_or_default();
            let names = &self.active.keyed().names;
            let stores = HoldStores::of(resolution.charges.iter().map(|it| it.store));
            let id = names.name(&tags, tenant, key).in_stores(stores);
            let ttl = match allowed {
                // A repeated call gets its reservation, even if the rules now allow a shorter time only.
                Err(_) if key.is_some() && self.limiter.store.find_hold(id).await?.is_some() => {
                    asked.unwrap_or(DEFAULT_TTL)
                }
                allowed => allowed?,
            };
            let new = NewHold {
                id,
                ttl,
                purpose: Purpose::Reservation,
                token: Token::NONE,
                owner: "",
                memo: "",
                idempotency_key: key,
                // A new id cannot be a repeat, so it needs no fingerprint.
                fingerprint: key.map_or(0, |_| names.fingerprint(attributes, reserve.units)),
                wait: None,
                bound: self.bound(attributes, &resolution),
            };
            let charges = &resolution.charges;
            let held = self.limiter.store.hold(charges, reserve.units, &new);
            let (held, latency) = self.limiter.answered(held).await;
            let (answer, held) = match held {
                Ok(Held::Taken { applied, record }) => (Ok(applied), Some(record)),
                Ok(Held::Denied { applied, .. }) => (Ok(applied), None),
                Ok(Held::Repeated(record)) => match record.state {
                    // The earlier reservation has ended, so the client holds nothing.
                    HoldState::Released | HoldState::Expired => return Err(ended(&record)),
                    HoldState::Reserved | HoldState::Consumed => {
                        return Ok(ReserveOutcome::Held {
                            hold: Hold::of(&record),
                            decision: None,
                        });
                    }
                },
                Ok(Held::Conflict(_)) => return Err(HoldError::Conflict),
                Ok(Held::TooMany) => {
                    return Err(self.too_many(attributes, &resolution, new.bound));
                }
                Err(error @ StoreError::Unsupported(_)) => return Err(error.into()),
                Err(error) => (Err(error), None),
            };
            // Failure policies count a reservation of 0 units as 1 unit: otherwise it would be free.
            let ask = match &answer {
                Ok(_) => ask,
                Err(_) => Ask::Exactly(reserve.units.max(1)),
            };
            let reply = self.reply(answer, latency, &resolution, ask, true);
            (reply, held)
        };
        let decision = self.decide(&resolution, &reply);
        self.finish(attributes, &resolution, &reply, &decision);
        if !decision.is_allowed() {
            return Ok(ReserveOutcome::Denied(decision));
        }
        let hold = match held {
            Some(record) => Hold::of(&record),
            None => Hold::unheld(reserve.units, decision.decided_at()),
        };
        Ok(ReserveOutcome::Held {
            hold,
            decision: Some(decision),
        })
    }

    /// Takes a slot of every concurrency rule of a request, if all are free. Does not wait. A caller
    /// with its own waiting loop passes the same ticket in each call, to keep its position in the
    /// queue.
    ///
    /// # Errors
    /// If a setting is out of bounds, or no concurrency rule applies.
    pub async fn try_acquire(
        &self,
        attributes: &Attributes<'_>,
        acquire: &Acquire<'_>,
        ticket: Option<u128>,
    ) -> Result<AcquireOutcome, HoldError> {
        if let Some(block) = self.block_of(attributes) {
            let denied = self.deny_blocked(block, attributes);
            return Ok(AcquireOutcome::Denied(denied));
        }
        let limits = RequestLimits::default();
        let mut resolution = self.active.rules().resolve(attributes, &limits);
        self.adapt(&mut resolution, &limits);
        charge_units(&mut resolution, acquire);
        let wait = ticket.map(|ticket| Wait {
            ticket,
            patience: PATIENCE,
        });
        let attempt = self.attempt(attributes, &resolution, acquire, wait);
        Ok(self.acquired(attributes, &resolution, attempt.await?))
    }

    /// Returns the subject that a new hold belongs to, and the most open holds of that subject. The subject
    /// is the tenant. For a request without a tenant, it is the subject of the first rule that has one. The
    /// slots of a concurrency rule are added to the bound, so that the rule limits them, and not this bound.
    fn bound(&self, attributes: &Attributes<'_>, resolution: &Resolution<'_>) -> Option<OpenBound> {
        let subject = match attributes.get("tenant").unwrap_or_default() {
            "" => {
                let rules = self.active.rules().rules();
                let has_subject = |rule: &u32| !rules[*rule as usize].per().is_empty();
                let first = resolution.rules.iter().position(has_subject);
                resolution.charges.get(first.unwrap_or(0))?.subject()
            }
            tenant => self.active.keyed().names.tenant(tenant),
        };
        let slots = resolution.charges.iter().map(|it| match it.limit {
            Limit::Concurrency(_) if it.enforces() => it.limit.capacity(),
            _ => 0,
        });
        let most = self.active.config().subjects.max_open_holds;
        Some(OpenBound {
            subject: subject.bits(),
            most: slots.max().unwrap_or(0).saturating_add(most),
        })
    }

    /// Counts, logs and records a hold that was denied because its subject has too many.
    fn too_many(
        &self,
        attributes: &Attributes<'_>,
        resolution: &Resolution<'_>,
        bound: Option<OpenBound>,
    ) -> HoldError {
        let (limiter, most) = (self.limiter, bound.map_or(0, |it| it.most));
        let subject = bound.map_or(0, |it| it.subject);
        limiter
            .failures
            .too_many_of_subject(limiter.clock.now(), subject, most);
        let from = (&*self.active, self.origin);
        limiter.denied_hold(from, resolution, attributes, most);
        HoldError::TooManyOpen { most }
    }

    /// Asks for a lease once.
    pub(super) async fn attempt(
        &self,
        attributes: &Attributes<'_>,
        resolution: &Resolution<'_>,
        acquire: &Acquire<'_>,
        wait: Option<Wait>,
    ) -> Result<Attempt, HoldError> {
        if acquire.owner.len() > MAX_OWNER {
            let (what, most) = ("the owner", MAX_OWNER);
            return Err(HoldError::TooLong { what, most });
        }
        let ask = Ask::Exactly(1);
        if is_denied(resolution) {
            let reply = self.look(resolution, ask).await;
            return Ok(Attempt::denied(reply, None));
        }
        let leases = resolution.charges.iter().filter_map(|it| match it.limit {
            Limit::Concurrency(concurrency) => Some((it.tag, concurrency.lease())),
            _ => None,
        });
        let Some((tag, _)) = leases.min_by_key(|(_, lease)| *lease) else {
            return Err(HoldError::NothingToLease);
        };
        let rules = self.active.rules().rules();
        let charges = resolution.charges.iter();
        let charges = charges.map(|it| (it.rule, it.limit, it.enforces()));
        let ttl = lease_for(acquire.ttl, charges, rules)?;
        let token = Token::new(random());
        let names = &self.active.keyed().names;
        let stores = HoldStores::of(resolution.charges.iter().map(|it| it.store));
        let new = NewHold {
            id: names.name(&[tag], "", None).in_stores(stores),
            ttl,
            purpose: Purpose::Lease,
            token,
            owner: acquire.owner,
            memo: "",
            idempotency_key: None,
            fingerprint: 0,
            wait,
            bound: self.bound(attributes, resolution),
        };
        let note = |lease| acquire.asked.into_iter().for_each(|it| it.note(lease));
        note(Some((HoldName::Held(new.id), LeaseToken(token.bits()))));
        let held = self.limiter.store.hold(&resolution.charges, 1, &new);
        let (held, latency) = self.limiter.answered(held).await;
        if !matches!(
            held,
            Ok(Held::Taken { .. }) | Err(StoreError::Timeout | StoreError::Disconnected(_))
        ) {
            // The store has certainly granted nothing.
            note(None);
        }
        let reply = |applied| self.reply(applied, latency, resolution, ask, true);
        match held {
            Ok(Held::Taken { applied, record }) => Ok(Attempt {
                reply: reply(Ok(applied)),
                lease: Some((Hold::of(&record), LeaseToken(token.bits()))),
                ahead: None,
            }),
            Ok(Held::Denied { applied, ahead }) => Ok(Attempt::denied(reply(Ok(applied)), ahead)),
            Ok(Held::Repeated(_) | Held::Conflict(_)) => Err(HoldError::Conflict),
            Ok(Held::TooMany) => Err(self.too_many(attributes, resolution, new.bound)),
            Err(error @ StoreError::Unsupported(_)) => Err(error.into()),
            Err(error) => Ok(Attempt::denied(reply(Err(error)), None)),
        }
    }

    /// Turns the last attempt into an outcome, and counts it.
    pub(super) fn acquired(
        &self,
        attributes: &Attributes<'_>,
        resolution: &Resolution<'_>,
        attempt: Attempt,
    ) -> AcquireOutcome {
        let decision = self.decide(resolution, &attempt.reply);
        self.note_held(resolution, &attempt.reply.applied);
        self.finish(attributes, resolution, &attempt.reply, &decision);
        if !decision.is_allowed() {
            return AcquireOutcome::Denied(decision);
        }
        // Without a lease, a failure policy has admitted the request. It holds nothing.
        let unheld = || (Hold::unheld(1, decision.decided_at()), LeaseToken(0));
        let (lease, token) = attempt.lease.unwrap_or_else(unheld);
        AcquireOutcome::Granted {
            lease,
            token,
            decision,
        }
    }
}

/// Multiplies the costs of all charges but slots by the units of a lease. So the store takes the lease as one unit.
pub(super) fn charge_units(resolution: &mut Resolution<'_>, acquire: &Acquire<'_>) {
    let units = acquire.units.unwrap_or(1);
    for charge in &mut resolution.charges {
        if !matches!(charge.limit, Limit::Concurrency(_)) {
            charge.cost = charge.cost.saturating_mul(units);
        }
    }
}

/// The result of one request for a lease. The caller may ask again.
pub(super) struct Attempt {
    pub(super) reply: Reply,
    lease: Option<(Hold, LeaseToken)>,
    /// If the client waits in a queue: how many clients wait before it.
    #[cfg_attr(not(feature = "wait"), allow(dead_code))]
    // Only a caller that waits reads this field.
    pub(super) ahead: Option<u64>,
}

impl Attempt {
    fn denied(reply: Reply, ahead: Option<u64>) -> Attempt {
        Attempt {
            reply,
            lease: None,
            ahead,
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Takes an estimate from every rule of a request, to be settled later.
    ///
    /// # Errors
    /// If a setting is out of bounds, or the idempotency key was used for something else.
    pub async fn reserve(
        &self,
        attributes: &Attributes<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        self.once().reserve(attributes, reserve).await
    }

    /// Takes a slot of every concurrency rule, if they are free: see [`Snapshot::try_acquire`].
    ///
    /// # Errors
    /// The errors of [`Snapshot::try_acquire`].
    pub async fn try_acquire(
        &self,
        attributes: &Attributes<'_>,
        acquire: &Acquire<'_>,
        ticket: Option<u128>,
    ) -> Result<AcquireOutcome, HoldError> {
        self.once().try_acquire(attributes, acquire, ticket).await
    }
}

impl<S: Immediate> Limiter<S> {
    /// Like [`reserve`](Self::reserve), without a runtime.
    ///
    /// ```
    /// # use tollgate::{Attributes, Limiter, Reserve, ReserveOutcome};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: tokens, per: [tenant], algorithm: quota, limit: 1000, period: month }]
    /// # ")?;
    /// let acme = Attributes::from([("tenant", "acme")]);
    /// let estimate = Reserve { units: 900, ..Reserve::default() };
    /// let ReserveOutcome::Held { hold, .. } = limiter.reserve_now(&acme, &estimate)? else {
    ///     return Err("denied".into());
    /// };
    /// assert_eq!(limiter.check_now(&acme).rule().unwrap().remaining(), Some(1000 - 900 - 1));
    /// limiter.commit_now(&hold.id, 120)?;
    /// assert_eq!(limiter.check_now(&acme).rule().unwrap().remaining(), Some(1000 - 120 - 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn reserve_now(
        &self,
        attributes: &Attributes<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        now(self.reserve(attributes, reserve))
    }

    /// Like [`Snapshot::try_acquire`], without a runtime.
    ///
    /// # Errors
    /// The errors of [`Snapshot::try_acquire`].
    pub fn try_acquire_now(
        &self,
        attributes: &Attributes<'_>,
        acquire: &Acquire<'_>,
        ticket: Option<u128>,
    ) -> Result<AcquireOutcome, HoldError> {
        now(self.try_acquire(attributes, acquire, ticket))
    }
}
