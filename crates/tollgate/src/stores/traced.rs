//! Spans of store calls, for decisions that are traced.
//!
//! A call has a span only within another span of the target [`TRACES`]. A door opens that span for a
//! decision that it has chosen to trace. Any other call only reads the current span. If no subscriber
//! wants traces, it does not even read that. A span has the store, the number of charges, and the
//! outcome of the call. It never has the subject.

use tollgate_core::{Charge, HoldId, Time, Token};
use tollgate_store::{
    AllowanceLevel, Applied, Ask, Balance, Extended, Held, Immediate, NewHold, Reply, Settle,
    Settled, Store,
};
use tracing::field::Empty;
use tracing::{Level, Span};

/// The target of the spans of decisions and of store calls, for filters of subscribers.
pub const TRACES: &str = "tollgate::traces";

/// A store whose calls have spans.
#[derive(Clone, Debug, Default)]
pub struct Traced<S>(pub S);

/// Runs a store call within a span of this name. The name must be a literal.
macro_rules! traced {
    ($name:literal, $traced:expr, $charges:expr, $call:expr, $outcome:expr) => {
        if is_traced() {
            let span = tracing::info_span!(
                target: TRACES,
                $name,
                otel.kind = "client",
                store = $traced.0.name(),
                charges = $charges,
                outcome = Empty,
                error.type = Empty,
                otel.status_code = Empty,
            );
            record(span, $call(), $outcome)
        } else {
            $call()
        }
    };
}

/// Returns whether the current work belongs to a decision that is traced.
#[inline]
fn is_traced() -> bool {
    tracing::span_enabled!(target: TRACES, Level::INFO) && is_within()
}

#[cold]
fn is_within() -> bool {
    let current = Span::current();
    current.metadata().is_some_and(|it| it.target() == TRACES)
}

/// Records the outcome of a call when the call ends.
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
    match applied.allowed {
        true => "allowed",
        false => "refused",
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
        let call = || self.0.apply(charges, ask);
        traced!("store.apply", self, charges.len(), call, decided)
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
        let call = || self.0.peek(charges, ask);
        traced!("store.peek", self, charges.len(), call, decided)
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        let call = || self.0.refund(charges, units, charged_at);
        traced!("store.refund", self, charges.len(), call, done)
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        let call = || self.0.reset(charges);
        traced!("store.reset", self, charges.len(), call, done)
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        let call = || self.0.restore(charges, balances);
        traced!("store.restore", self, charges.len(), call, done)
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        let call = || self.0.adjust(charge, used, extra);
        traced!("store.adjust", self, 1, call, done)
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        let call = || self.0.report(charge, units);
        traced!("store.report", self, 1, call, done)
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        let call = || self.0.balance(charge);
        traced!("store.balance", self, 1, call, done)
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        let held = |held: &Held| match held {
            Held::Taken { .. } | Held::Repeated(_) => "allowed",
            Held::Conflict(_) | Held::Denied { .. } | Held::TooMany => "refused",
        };
        let call = || self.0.hold(charges, units, new);
        traced!("store.hold", self, charges.len(), call, held)
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        let call = || self.0.settle(id, how);
        traced!("store.settle", self, 0, call, done)
    }

    fn extend(
        &self,
        id: HoldId,
        ttl: tollgate_core::Span,
        token: Option<Token>,
    ) -> Reply<'_, Extended> {
        let call = || self.0.extend(id, ttl, token);
        traced!("store.extend", self, 0, call, done)
    }
}
