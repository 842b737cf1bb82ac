//! Bounds around a store: a circuit breaker, a timeout, and a limit on calls in flight.
//!
//! Requests must not pile up at a store that is slow or down. While the breaker is open, a call costs
//! microseconds and fails with [`StoreError::BreakerOpen`]. If too many calls are in flight, a call
//! fails with [`StoreError::Overloaded`]. After the timeout, it fails with [`StoreError::Timeout`]. The
//! failure policies of the rules answer failed calls.
//!
//! Wrap a custom store with this module's [`Guarded`]. The Redis store does not need it. It has the
//! same bounds inside, with one breaker for each server, because the servers of a cluster fail one by
//! one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tollgate_core::concurrency::Holder;
use tollgate_core::{Balance, Charge, HoldId, Span, Time, Token};
use tollgate_store::{
    AllowanceLevel, Answer, Applied, Ask, Breaker, BreakerOptions, BreakerState, Extended, Held,
    HoldRecord, NewHold, Permit, Reply, Settle, Settled, Store, StoreError, Usage,
};

/// The bounds of a [`Guarded`] store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardOptions {
    /// How long an answer may take (default 50 ms).
    pub timeout: Duration,
    /// How many calls may wait for answers at the same time (default 10,000).
    pub max_in_flight: usize,
    /// When to stop calling the store, and when to try again.
    pub breaker: BreakerOptions,
}

impl Default for GuardOptions {
    fn default() -> GuardOptions {
        GuardOptions {
            timeout: Duration::from_millis(50),
            max_in_flight: 10_000,
            breaker: BreakerOptions::default(),
        }
    }
}

/// A store with a breaker, a timeout and a limit on calls in flight.
#[derive(Debug)]
pub struct Guarded<S> {
    store: S,
    options: GuardOptions,
    breaker: Breaker,
    in_flight: AtomicUsize,
}

/// A call in flight, until it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<S: Store> Guarded<S> {
    /// Wraps `store` with these bounds.
    pub fn new(store: S, options: GuardOptions) -> Guarded<S> {
        Guarded {
            store,
            options,
            breaker: Breaker::new(options.breaker),
            in_flight: AtomicUsize::new(0),
        }
    }

    /// Returns the wrapped store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the current state of the breaker.
    #[must_use]
    pub fn breaker_state(&self) -> BreakerState {
        self.breaker.state(Instant::now().into_std())
    }

    /// Makes a call within the bounds.
    fn guard<'a, T: Send + 'a>(&'a self, call: impl FnOnce() -> Reply<'a, T>) -> Reply<'a, T> {
        let Some(permit) = self.breaker.permit(Instant::now().into_std()) else {
            return Answer::Now(Err(StoreError::BreakerOpen));
        };
        if permit.is_first_probe() {
            let store = self.store.name();
            tracing::info!(
                store,
                "the circuit breaker is half open: a few calls try the store again"
            );
        }
        let place = Place(&self.in_flight);
        if place.0.fetch_add(1, Ordering::AcqRel) >= self.options.max_in_flight {
            return Answer::Now(Err(StoreError::Overloaded));
        }
        match call() {
            Answer::Now(answer) => {
                self.report(permit, &answer);
                Answer::Now(answer)
            }
            Answer::Later(later) => Answer::later(async move {
                let _place = place;
                let answer = timeout(self.options.timeout, later).await;
                let answer = answer.unwrap_or(Err(StoreError::Timeout));
                self.report(permit, &answer);
                answer
            }),
        }
    }

    /// Tells the breaker how a call ended, and logs when the breaker opens or closes. Some errors come
    /// from a healthy store.
    fn report<T>(&self, permit: Permit<'_>, answer: &Result<T, StoreError>) {
        let store = self.store.name();
        match answer {
            Ok(_)
            | Err(
                StoreError::Foreign(_)
                | StoreError::Script(_)
                | StoreError::Full
                | StoreError::TooManyHolds
                | StoreError::Unsupported(_),
            ) => {
                if permit.succeeded() {
                    tracing::info!(store, "the store is back: its circuit breaker is closed");
                }
            }
            Err(error) => {
                if permit.failed(Instant::now().into_std()) {
                    let retry_in = self.options.breaker.timeout_duration;
                    tracing::warn!(
                        store,
                        %error,
                        ?retry_in,
                        "the store fails: its circuit breaker is open, and failure policies decide"
                    );
                }
            }
        }
    }
}

impl<S: Store> Store for Guarded<S> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn is_local(&self) -> bool {
        // The breaker may answer with an error, instead of the store.
        false
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        self.guard(|| self.store.apply(charges, ask))
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        self.guard(|| self.store.peek(charges, ask))
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        self.guard(|| self.store.refund(charges, units, charged_at))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        self.guard(|| self.store.reset(charges))
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        self.guard(|| self.store.restore(charges, balances))
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        self.guard(|| self.store.adjust(charge, used, extra))
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        self.guard(|| self.store.report(charge, units))
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        self.guard(|| self.store.balance(charge))
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        self.guard(|| self.store.hold(charges, units, new))
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        self.guard(|| self.store.settle(id, how))
    }

    fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'_, Extended> {
        self.guard(|| self.store.extend(id, ttl, token))
    }

    fn find_hold(&self, id: HoldId) -> Reply<'_, Option<Arc<HoldRecord>>> {
        self.guard(|| self.store.find_hold(id))
    }

    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        self.guard(|| self.store.put_hold(record))
    }

    fn due_holds(&self, most: usize) -> Reply<'_, Vec<HoldId>> {
        self.guard(|| self.store.due_holds(most))
    }

    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        self.guard(|| self.store.holders(charge, most))
    }

    fn usage(&self) -> Reply<'_, Usage> {
        self.guard(|| self.store.usage())
    }
}
