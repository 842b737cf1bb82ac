//! Spans of store calls, for decisions that are traced.
//!
//! A call has a span only within another span of the target [`TRACES`], which a door opens for a decision
//! that it has chosen to trace. Any other call costs one look at the current span, and not even that if
//! nobody traces. A span says which store, how many charges, and how the call ended. It never says whose
//! charges they are.

use tollgate_core::{Charge, HoldId, Time, Token};
use tollgate_store::{
    Applied, Ask, Balance, Extended, Held, Immediate, NewHold, Reply, Settle, Settled, Store,
};
use tracing::field::Empty;
use tracing::{Level, Span};

/// The target of the spans of decisions and of store calls, for subscribers that treat them apart.
pub const TRACES: &str = "tollgate::traces";

/// A store whose calls have spans.
#[derive(Clone, Debug, Default)]
pub struct Traced<S>(pub S);

/// Runs a store call within a span of this name. The name has to be known when this is compiled.
macro_rules! traced {
    ($name:literal, $store:expr, $charges:expr, $call:expr, $outcome:expr) => {
        if is_traced() {
            let span = tracing::info_span!(
                target: TRACES,
                $name,
                otel.kind = "client",
                store = $store,
                charges = $charges,
                outcome = Empty,
                error.type = Empty,
                otel.status_code = Empty,
            );
            record(span, $call, $outcome)
        } else {
            $call
        }
    };
}

/// Whether the current work belongs to a decision that is traced.
#[inline]
fn is_traced() -> bool {
    tracing::span_enabled!(target: TRACES, Level::INFO) && is_within()
}

#[cold]
fn is_within() -> bool {
    let current = Span::current();
    current.metadata().is_some_and(|it| it.target() == TRACES)
}

/// Records how a call has ended, when it has.
#[cold]
fn record<'a, T: Send + 'a>(
    span: Span,
    answer: Reply<'a, T>,
    outcome: fn(&T) -> &'static str,
) -> Reply<'a, T> {
    answer.map(move |answer| {
        match &answer {
            Ok(value) => {
                span.record("outcome", outcome(value));
            }
            Err(error) => {
                span.record("outcome", "error");
                span.record("error.type", error.kind());
                span.record("otel.status_code", "ERROR");
            }
        }
        answer
    })
}

fn decided(applied: &Applied) -> &'static str {
    if applied.allowed {
        "allowed"
    } else {
        "refused"
    }
}

fn done<T>(_: &T) -> &'static str {
    "done"
}

impl<S: Immediate> Immediate for Traced<S> {}

impl<S: Store> Store for Traced<S> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.0)
    }

    #[inline]
    fn is_local(&self) -> bool {
        self.0.is_local()
    }

    #[inline]
    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        let (store, count) = (&self.0, charges.len());
        let call = || store.apply(charges, ask);
        traced!("store.apply", store.name(), count, call(), decided)
    }

    #[inline]
    fn apply_into<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        applied: &mut Applied,
    ) -> Option<Reply<'a, Applied>> {
        match is_traced() {
            true => Some(self.apply(charges, ask)),
            false => self.0.apply_into(charges, ask, applied),
        }
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        let (store, count) = (&self.0, charges.len());
        let call = || store.peek(charges, ask);
        traced!("store.peek", store.name(), count, call(), decided)
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        let (store, count) = (&self.0, charges.len());
        let call = || store.refund(charges, units, charged_at);
        traced!("store.refund", store.name(), count, call(), done)
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        let (store, count) = (&self.0, charges.len());
        traced!(
            "store.reset",
            store.name(),
            count,
            store.reset(charges),
            done
        )
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        let (store, count) = (&self.0, charges.len());
        let call = || store.restore(charges, balances);
        traced!("store.restore", store.name(), count, call(), done)
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        let store = &self.0;
        let call = || store.adjust(charge, used, extra);
        traced!("store.adjust", store.name(), 1, call(), done)
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        let store = &self.0;
        traced!(
            "store.balance",
            store.name(),
            1,
            store.balance(charge),
            done
        )
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        let held = |held: &Held| match held {
            Held::Taken { .. } | Held::Repeated(_) => "allowed",
            Held::Conflict(_) | Held::Denied { .. } => "refused",
        };
        let (store, count) = (&self.0, charges.len());
        let call = || store.hold(charges, units, new);
        traced!("store.hold", store.name(), count, call(), held)
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        let store = &self.0;
        traced!("store.settle", store.name(), 0, store.settle(id, how), done)
    }

    fn extend(
        &self,
        id: HoldId,
        ttl: tollgate_core::Span,
        token: Option<Token>,
    ) -> Reply<'_, Extended> {
        let store = &self.0;
        let call = || store.extend(id, ttl, token);
        traced!("store.extend", store.name(), 0, call(), done)
    }
}
