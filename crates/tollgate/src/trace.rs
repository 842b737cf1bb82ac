//! Spans of store calls, for whoever traces decisions.
//!
//! A call has a span only within another one of the target [`TRACES`], which a door opens for a
//! decision that it has chosen to trace: the others cost a look at what is current, and if nobody
//! traces at all, not even that. A span tells which store, how many charges and how it ended; never
//! whose.

#[cfg(feature = "redis")]
use std::sync::Arc;

#[cfg(feature = "redis")]
use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, Time};
#[cfg(feature = "redis")]
use tollgate_core::{HoldId, Token};
use tollgate_store::{Applied, Ask, Balance, Clock, MemoryStore, Store, StoreError, Usage};
#[cfg(feature = "redis")]
use tollgate_store::{Extended, Held, HoldRecord, HoldStore, NewHold, Settle, Settled};
use tracing::field::Empty;
use tracing::{Level, Span};

/// The target of the spans of decisions and of store calls, for subscribers that treat them apart.
pub const TRACES: &str = "tollgate::traces";

/// A store whose calls have spans.
pub(crate) struct Traced<S>(pub(crate) S);

/// The span of a call.
struct Call(Span);

/// The span of a call of this name. The name has to be known when this is compiled.
macro_rules! call {
    ($name:literal, $store:expr, $charges:expr) => {
        match is_traced() {
            true => Call(tracing::info_span!(
                target: TRACES,
                $name,
                otel.kind = "client",
                store = $store,
                charges = $charges.len(),
                outcome = Empty,
                error.type = Empty,
                otel.status_code = Empty,
            )),
            false => Call(Span::none()),
        }
    };
}

/// What is asked about by name has no charges to count.
#[cfg(feature = "redis")]
const NONE: &[Charge<'_>] = &[];

/// Whether what happens now belongs to a decision that is traced.
#[inline]
fn is_traced() -> bool {
    tracing::span_enabled!(target: TRACES, Level::INFO) && is_within()
}

#[cold]
fn is_within() -> bool {
    let current = Span::current();
    current.metadata().is_some_and(|it| it.target() == TRACES)
}

impl Call {
    #[inline]
    fn decided(&self, allowed: bool) {
        if !self.0.is_disabled() {
            self.ended(if allowed { "allowed" } else { "refused" });
        }
    }

    #[inline]
    fn done(&self) {
        if !self.0.is_disabled() {
            self.ended("done");
        }
    }

    #[cold]
    fn ended(&self, outcome: &'static str) {
        self.0.record("outcome", outcome);
    }

    fn answered<T>(&self, answer: &Result<T, StoreError>) {
        match answer {
            Ok(_) => self.done(),
            Err(error) => self.failed(error),
        }
    }

    #[cold]
    fn failed(&self, error: &StoreError) {
        self.ended("error");
        self.0.record("error.type", error.kind());
        self.0.record("otel.status_code", "ERROR");
    }
}

impl<S: Store> Store for Traced<S> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    async fn apply(&self, charges: &[Charge<'_>], ask: Ask) -> Result<Applied, StoreError> {
        let call = call!("store.apply", self.0.name(), charges);
        let answer = self.0.apply(charges, ask).await;
        match &answer {
            Ok(applied) => call.decided(applied.allowed),
            Err(error) => call.failed(error),
        }
        answer
    }

    async fn peek(&self, charges: &[Charge<'_>], ask: Ask) -> Result<Applied, StoreError> {
        let call = call!("store.peek", self.0.name(), charges);
        let answer = self.0.peek(charges, ask).await;
        match &answer {
            Ok(applied) => call.decided(applied.allowed),
            Err(error) => call.failed(error),
        }
        answer
    }

    async fn refund(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        charged_at: Time,
    ) -> Result<Applied, StoreError> {
        let call = call!("store.refund", self.0.name(), charges);
        let answer = self.0.refund(charges, units, charged_at).await;
        call.answered(&answer);
        answer
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        let call = call!("store.reset", self.0.name(), charges);
        let answer = self.0.reset(charges).await;
        call.answered(&answer);
        answer
    }

    async fn restore(
        &self,
        charges: &[Charge<'_>],
        balances: &[Balance],
    ) -> Result<(), StoreError> {
        let call = call!("store.restore", self.0.name(), charges);
        let answer = self.0.restore(charges, balances).await;
        call.answered(&answer);
        answer
    }

    async fn adjust(
        &self,
        charge: &Charge<'_>,
        used: i64,
        extra: i64,
    ) -> Result<Option<Balance>, StoreError> {
        let call = call!("store.adjust", self.0.name(), [charge]);
        let answer = self.0.adjust(charge, used, extra).await;
        call.answered(&answer);
        answer
    }

    async fn balance(&self, charge: &Charge<'_>) -> Result<Option<Balance>, StoreError> {
        let call = call!("store.balance", self.0.name(), [charge]);
        let answer = self.0.balance(charge).await;
        call.answered(&answer);
        answer
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        self.0.usage().await
    }
}

#[cfg(feature = "redis")]
impl<S: HoldStore> HoldStore for Traced<S> {
    async fn hold(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        let call = call!("store.hold", self.0.name(), charges);
        let answer = self.0.hold(charges, units, new).await;
        match &answer {
            Ok(Held::Taken { .. } | Held::Repeated(_)) => call.decided(true),
            Ok(Held::Conflict(_) | Held::Denied { .. }) => call.decided(false),
            Err(error) => call.failed(error),
        }
        answer
    }

    async fn settle(&self, id: HoldId, how: Settle) -> Result<Settled, StoreError> {
        let call = call!("store.settle", self.0.name(), NONE);
        let answer = self.0.settle(id, how).await;
        match &answer {
            Ok(_) => call.done(),
            Err(error) => call.failed(error),
        }
        answer
    }

    async fn extend(
        &self,
        id: HoldId,
        ttl: tollgate_core::Span,
        token: Option<Token>,
    ) -> Result<Extended, StoreError> {
        let call = call!("store.extend", self.0.name(), NONE);
        let answer = self.0.extend(id, ttl, token).await;
        match &answer {
            Ok(_) => call.done(),
            Err(error) => call.failed(error),
        }
        answer
    }

    async fn find_hold(&self, id: HoldId) -> Result<Option<Arc<HoldRecord>>, StoreError> {
        self.0.find_hold(id).await
    }

    async fn put_hold(&self, record: &HoldRecord) -> Result<bool, StoreError> {
        self.0.put_hold(record).await
    }

    async fn due_holds(&self, most: usize) -> Result<Vec<HoldId>, StoreError> {
        self.0.due_holds(most).await
    }

    async fn holders(&self, charge: &Charge<'_>, most: usize) -> Result<Vec<Holder>, StoreError> {
        self.0.holders(charge, most).await
    }
}

/// The same of a store that is in this process, and answers at once.
impl<C: Clock> Traced<MemoryStore<C>> {
    #[inline]
    pub(crate) fn apply_into(&self, charges: &[Charge<'_>], ask: Ask, applied: &mut Applied) {
        let call = call!("store.apply", self.0.name(), charges);
        self.0.apply_into(charges, ask, applied);
        call.decided(applied.allowed);
    }

    pub(crate) fn apply(&self, charges: &[Charge<'_>], ask: Ask) -> Applied {
        let call = call!("store.apply", self.0.name(), charges);
        let applied = self.0.apply(charges, ask);
        call.decided(applied.allowed);
        applied
    }

    pub(crate) fn peek(&self, charges: &[Charge<'_>], ask: Ask) -> Applied {
        let call = call!("store.peek", self.0.name(), charges);
        let applied = self.0.peek(charges, ask);
        call.decided(applied.allowed);
        applied
    }

    pub(crate) fn refund(&self, charges: &[Charge<'_>], units: u64, charged_at: Time) -> Applied {
        let call = call!("store.refund", self.0.name(), charges);
        let applied = self.0.refund(charges, units, charged_at);
        call.done();
        applied
    }

    pub(crate) fn reset(&self, charges: &[Charge<'_>]) {
        let call = call!("store.reset", self.0.name(), charges);
        self.0.reset(charges);
        call.done();
    }
}
