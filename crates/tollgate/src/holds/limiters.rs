//! Reservations and leases of limiters: what [`Desk`] does, counted and logged, with the rules' failure
//! policies where the store does not answer.

use futures_util::FutureExt;
use tollgate_core::Span;
use tollgate_rules::{Attributes, RequestLimits};
use tollgate_store::{Ask, Clock, HoldStore, MemoryStore, StoreError, Wait};

use super::{
    Acquire, AcquireOutcome, Desk, Hold, HoldError, HoldName, Holders, LeaseToken, PATIENCE,
    Reserve, ReserveOutcome,
};
use crate::active_config::ActiveConfig;
use crate::decision::Decision;
use crate::{Limiter, SharedLimiter};

impl<S: HoldStore, C: Clock> SharedLimiter<S, C> {
    fn desk<'a>(&'a self, live: &'a ActiveConfig) -> Desk<'a, impl HoldStore + 'a> {
        Desk {
            store: &self.store,
            live,
            names: self.current.names(),
            books: self.books.as_deref(),
            denials: self.denials.as_ref(),
            clock: &self.clock,
        }
    }

    /// Takes an estimate from every rule of a request, to be settled later.
    ///
    /// # Errors
    /// If the wish is out of bounds, or its idempotency key was used for something else.
    pub async fn reserve(
        &self,
        attributes: &Attributes<'_>,
        wish: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        self.reserve_under(&self.current.hold(), attributes, wish)
            .await
    }

    pub(crate) async fn reserve_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        wish: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        let reserving = match self.desk(live).reserve(attributes, wish).await {
            Err(HoldError::Store(error)) => {
                let decision = self.without_store(live, attributes, wish.units, &error);
                match decision.is_allowed() {
                    true => ReserveOutcome::Held {
                        hold: Hold::unheld(wish.units, decision.decided_at()),
                        decision: Some(decision),
                    },
                    false => ReserveOutcome::Denied(decision),
                }
            }
            reserving => reserving?,
        };
        if let Some(decision) = reserving.decision() {
            self.count(live, attributes, decision);
        }
        Ok(reserving)
    }

    /// Takes a slot of every concurrency rule of a request. Who waits names a ticket, and asks again with
    /// it; the limiter does not wait.
    ///
    /// # Errors
    /// If the wish is out of bounds, or no concurrency rule applies.
    pub async fn acquire(
        &self,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
        ticket: Option<u128>,
    ) -> Result<AcquireOutcome, HoldError> {
        let live = self.current.hold();
        let acquiring = self.acquire_under(&live, attributes, wish, ticket.map(patient));
        acquiring.await.map(|(acquiring, _)| acquiring)
    }

    pub(crate) async fn acquire_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
        wait: Option<Wait>,
    ) -> Result<(AcquireOutcome, Option<u64>), HoldError> {
        match self.desk(live).acquire(attributes, wish, wait).await {
            Err(HoldError::Store(error)) => {
                let decision = self.without_store(live, attributes, 1, &error);
                let acquiring = match decision.is_allowed() {
                    true => AcquireOutcome::Granted {
                        lease: Hold::unheld(1, decision.decided_at()),
                        token: LeaseToken(0),
                        decision,
                    },
                    false => AcquireOutcome::Denied(decision),
                };
                Ok((acquiring, None))
            }
            acquiring => acquiring,
        }
    }

    /// Counts and logs a decision that is final.
    pub(crate) fn count(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        decision: &Decision,
    ) {
        live.metrics().count(decision.entries(), None);
        if !decision.is_allowed() {
            self.log_refusal(decision, attributes, None);
        }
    }

    /// What the rules' policies say in the store's place.
    fn without_store(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        units: u64,
        error: &StoreError,
    ) -> Decision {
        let request_limits = RequestLimits::default();
        let resolution = live.rules().resolve(attributes, &request_limits);
        let told = self.fall_back(live, &resolution, Ask::Exactly(units), true, error);
        told.conclude(live.rules(), &resolution)
    }
}

/// What is done with a hold by its name is the same everywhere.
macro_rules! endings {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $answer:ty = $desk:ident;)*) => {
        impl<S: HoldStore, C: Clock> SharedLimiter<S, C> {
            $(
                $(#[$doc])*
                pub async fn $name(&self, $($argument: $kind),*) -> Result<$answer, HoldError> {
                    let live = self.current.hold();
                    self.desk(&live).$desk($($argument),*).await
                }
            )*
        }

        impl<C: Clock> Limiter<C> {
            $(
                $(#[$doc])*
                pub fn $name(&self, $($argument: $kind),*) -> Result<$answer, HoldError> {
                    let live = self.live();
                    at_once(self.desk(&live).$desk($($argument),*))
                }
            )*
        }
    };
}

endings! {
    /// Ends a reservation with what was really used.
    ///
    /// # Errors
    /// If there is none, or it has ended otherwise.
    commit(name: &HoldName, actual: u64) -> Hold = commit;
    /// Gives back all that a reservation holds.
    ///
    /// # Errors
    /// If there is none, or it was used.
    release(name: &HoldName) -> Hold = release;
    /// Keeps a reservation for so long from now.
    ///
    /// # Errors
    /// If there is none, or it has ended.
    extend(name: &HoldName, ttl: Span) -> Hold = extend;
    /// How a reservation stands.
    ///
    /// # Errors
    /// If there is none, or it is a lease.
    find_hold(name: &HoldName) -> Hold = find;
    /// Keeps a lease for so long from now: as long as its rules say, unless given.
    ///
    /// # Errors
    /// If there is none, it has ended, or the token is another's.
    renew(name: &HoldName, token: LeaseToken, ttl: Option<Span>) -> Hold = renew;
    /// Gives a lease back.
    ///
    /// # Errors
    /// If there is none, or the token is another's.
    free(name: &HoldName, token: LeaseToken) -> Hold = free;
    /// Who holds slots of the concurrency rules of a request, by rule.
    ///
    /// # Errors
    /// If the store cannot be asked.
    holders(attributes: &Attributes<'_>) -> Vec<Holders> = holders;
    /// Ends some of the reservations and leases whose time is over, and says how many it could end. To be
    /// called now and then.
    ///
    /// # Errors
    /// If the store, or the ledger, cannot be asked.
    sweep_holds() -> usize = sweep;
}

impl<C: Clock> Limiter<C> {
    fn desk<'a>(&'a self, live: &'a ActiveConfig) -> Desk<'a, MemoryStore<C>> {
        Desk {
            store: &self.store.0,
            live,
            names: self.current.names(),
            books: None,
            denials: None,
            clock: self.store.0.clock(),
        }
    }

    /// Takes an estimate from every rule of a request, to be settled later.
    ///
    /// ```
    /// # use tollgate::{Attributes, Limiter, Reserve, ReserveOutcome};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: tokens, per: [tenant], algorithm: quota, limit: 1000, period: month }]
    /// # ")?;
    /// let acme = Attributes::from([("tenant", "acme")]);
    /// let estimate = Reserve { units: 900, ..Reserve::default() };
    /// let ReserveOutcome::Held { hold, .. } = limiter.reserve(&acme, &estimate)? else { panic!() };
    /// assert!(!limiter.check(&acme).rule().unwrap().remaining().unwrap() > 100);
    /// limiter.commit(&hold.id, 120)?;
    /// assert_eq!(limiter.check(&acme).rule().unwrap().remaining(), Some(1000 - 120 - 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the wish is out of bounds, or its idempotency key was used for something else.
    pub fn reserve(
        &self,
        attributes: &Attributes<'_>,
        wish: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        self.reserve_under(&self.live(), attributes, wish)
    }

    pub(crate) fn reserve_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        wish: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        let reserving = at_once(self.desk(live).reserve(attributes, wish))?;
        if let Some(decision) = reserving.decision() {
            self.count(live, attributes, decision);
        }
        Ok(reserving)
    }

    /// Takes a slot of every concurrency rule of a request. Who waits names a ticket, and asks again with
    /// it; the limiter does not wait.
    ///
    /// # Errors
    /// If the wish is out of bounds, or no concurrency rule applies.
    pub fn acquire(
        &self,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
        ticket: Option<u128>,
    ) -> Result<AcquireOutcome, HoldError> {
        let wait = ticket.map(patient);
        let acquiring = self.acquire_under(&self.live(), attributes, wish, wait);
        acquiring.map(|(acquiring, _)| acquiring)
    }

    pub(crate) fn acquire_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
        wait: Option<Wait>,
    ) -> Result<(AcquireOutcome, Option<u64>), HoldError> {
        at_once(self.desk(live).acquire(attributes, wish, wait))
    }

    /// Counts and logs a decision that is final.
    pub(crate) fn count(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        decision: &Decision,
    ) {
        live.metrics().count(decision.entries(), None);
        if !decision.is_allowed() {
            self.log(decision, attributes);
        }
    }
}

/// Who asks again.
fn patient(ticket: u128) -> Wait {
    Wait {
        ticket,
        patience: PATIENCE,
    }
}

/// The answer of a store that is in this process, which never has to be waited for.
fn at_once<T>(asking: impl Future<Output = Result<T, HoldError>>) -> Result<T, HoldError> {
    let waits = || StoreError::Unavailable("the store in this process did not answer".into());
    asking.now_or_never().unwrap_or_else(|| Err(waits().into()))
}
