//! Spans of decisions, for a collector.
//!
//! A door opens a span for each decision that is chosen: if the request belongs to a trace
//! (`traceparent`), those that are sampled there; otherwise a share of them. The choice comes first, so
//! that the others cost next to nothing, and where nobody collects, all of them cost a look at a
//! constant. The engine's calls of its store are children of the span.
//!
//! A span tells the door, what was asked, the outcome and the rule that decides; never who asked.
//!
//! * `export`: where spans are sent, and how many.
//! * `client`: sending them over HTTP.
//! * `holds`: what is told of reservations and leases.

mod client;
mod export;
mod holds;

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tollgate::{
    BatchDecision, Decision, DemandError, Engine, RuleSet, Snapshot, StoreError, TRACES, Throttled,
};
use tracing::field::Empty;
use tracing::instrument::Instrument;
use tracing::{Level, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use self::export::Sampling;
pub use self::export::{Exporter, TraceError, export};

const TRACEPARENT: &str = "traceparent";

/// A version, 16 and 8 bytes in hexadecimal digits, and flags.
const MIN_LENGTH: usize = 55;

/// Which part of a trace a request is.
pub(crate) struct Origin {
    door: &'static str,
    /// None if it is not traced.
    parent: Option<Context>,
}

impl Origin {
    /// Of a request that came through `door` with these headers.
    #[inline]
    pub(crate) fn new(door: &'static str, headers: &HeaderMap) -> Origin {
        Origin {
            door,
            parent: is_on().then(|| parent(Some(headers))).flatten(),
        }
    }

    /// The same where requests cannot say which trace they belong to.
    #[inline]
    pub(crate) fn unknown(door: &'static str) -> Origin {
        Origin {
            door,
            parent: is_on().then(|| parent(None)).flatten(),
        }
    }

    /// What is answered by `rules`, within a span if it is traced.
    pub(crate) async fn trace<T: SpanOutcome>(
        &self,
        rules: &impl HasRules,
        operation: &'static str,
        asking: impl Future<Output = T>,
    ) -> T {
        let Some(parent) = &self.parent else {
            return asking.await;
        };
        let span = decision(self.door, operation, rules, parent);
        let told = Box::pin(asking.instrument(span.clone())).await;
        told.record_in(&span);
        told
    }
}

/// What `engine` answers at once, within a span if it is traced. An engine that does not answer at once
/// is asked again, so there is no span yet.
#[inline]
pub(crate) fn now<T: SpanOutcome>(
    door: &'static str,
    engine: &Engine,
    operation: &'static str,
    ask: impl FnOnce() -> T,
) -> T {
    if !is_on() || engine.is_shared() {
        return ask();
    }
    let Some(parent) = parent(None) else {
        return ask();
    };
    let span = decision(door, operation, engine, &parent);
    let told = span.in_scope(ask);
    told.record_in(&span);
    told
}

/// Whether anybody collects.
#[inline]
fn is_on() -> bool {
    tracing::span_enabled!(target: TRACES, Level::INFO)
}

/// What the span of a request is to be the child of, which may be nothing; none if it is not traced.
#[cold]
fn parent(headers: Option<&HeaderMap>) -> Option<Context> {
    let context = match headers {
        Some(headers) if headers.contains_key(TRACEPARENT) => {
            TraceContextPropagator::new().extract_with_context(&Context::new(), &Parent(headers))
        }
        _ => Context::new(),
    };
    let is_sampled = {
        let span = context.span();
        let given = span.span_context();
        match given.is_valid() {
            true => given.is_sampled(),
            false => tracing::dispatcher::get_default(|it| {
                // Whoever collects in another way samples in another way.
                it.downcast_ref::<Sampling>().is_none_or(Sampling::draw)
            }),
        }
    };
    is_sampled.then_some(context)
}

/// The one header that counts. What a `tracestate` holds is not known, and so not passed on.
struct Parent<'h>(&'h HeaderMap);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            // Shorter ones are read as if zeros were missing.
            TRACEPARENT => {
                let value = self.0.get(key)?.to_str().ok()?;
                (value.len() >= MIN_LENGTH).then_some(value)
            }
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

#[cold]
fn decision(
    door: &'static str,
    operation: &'static str,
    rules: &impl HasRules,
    parent: &Context,
) -> Span {
    let span = tracing::info_span!(
        target: TRACES,
        parent: None,
        "decision",
        otel.kind = "server",
        door,
        operation,
        config_version = rules.rule_set().version(),
        outcome = Empty,
        rule = Empty,
        rules = Empty,
        fallback = Empty,
        error.type = Empty,
        otel.status_code = Empty,
    );
    if parent.has_active_span() {
        // Fails where nobody wants OpenTelemetry, who then does not want parents either.
        let _ = span.set_parent(parent.clone());
    }
    span
}

/// Whoever has rules.
pub(crate) trait HasRules {
    /// Those that decide.
    fn rule_set(&self) -> Arc<RuleSet>;
}

impl HasRules for Engine {
    fn rule_set(&self) -> Arc<RuleSet> {
        self.rules()
    }
}

impl HasRules for Snapshot<'_> {
    fn rule_set(&self) -> Arc<RuleSet> {
        Arc::clone(self.live().rules())
    }
}

/// An answer that a span can tell.
pub(crate) trait SpanOutcome {
    /// Notes it in `span`.
    fn record_in(&self, span: &Span);
}

impl SpanOutcome for Decision {
    fn record_in(&self, span: &Span) {
        decided(span, self.is_allowed(), self.rules().len(), Some(self));
    }
}

impl SpanOutcome for BatchDecision {
    fn record_in(&self, span: &Span) {
        let rules = self.decisions().iter().map(|it| it.rules().len()).sum();
        decided(span, self.is_allowed(), rules, self.deciding());
    }
}

impl SpanOutcome for Throttled {
    fn record_in(&self, span: &Span) {
        decided(span, self.is_allowed(), 0, None);
        span.record("rule", "@throttle");
    }
}

impl SpanOutcome for StoreError {
    fn record_in(&self, span: &Span) {
        failed(span, self.kind());
    }
}

impl SpanOutcome for DemandError {
    fn record_in(&self, span: &Span) {
        match self {
            DemandError::Store(error) => error.record_in(span),
            DemandError::Numbers { .. } | DemandError::TooMany { .. } => {
                failed(span, "bad_request");
            }
        }
    }
}

impl<T: SpanOutcome, E: SpanOutcome> SpanOutcome for Result<T, E> {
    fn record_in(&self, span: &Span) {
        match self {
            Ok(told) => told.record_in(span),
            Err(error) => error.record_in(span),
        }
    }
}

/// Nothing is told where nobody answered.
impl<T: SpanOutcome> SpanOutcome for Option<T> {
    fn record_in(&self, span: &Span) {
        if let Some(told) = self {
            told.record_in(span);
        }
    }
}

fn decided(span: &Span, allowed: bool, rules: usize, deciding: Option<&Decision>) {
    span.record("outcome", if allowed { "allowed" } else { "refused" });
    span.record("rules", rules);
    if let Some(rule) = deciding.and_then(Decision::rule) {
        span.record("rule", rule.rule().id());
    }
    if let Some(policy) = deciding.and_then(Decision::fallback) {
        span.record("fallback", policy.name());
    }
}

fn failed(span: &Span, kind: &'static str) {
    span.record("outcome", "error");
    span.record("error.type", kind);
    span.record("otel.status_code", "ERROR");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent_of(traceparent: &str) -> Option<Context> {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, traceparent.parse().unwrap());
        headers.insert("tracestate", "user=ann".parse().unwrap());
        parent(Some(&headers))
    }

    #[test]
    fn a_trace_that_is_sampled_is_gone_on_with_and_another_is_not() {
        let sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = parent_of(sampled).unwrap();
        let span = context.span();
        let given = span.span_context();
        assert_eq!(given.span_id().to_string(), "b7ad6b7169203331");
        assert_eq!(given.trace_state().header(), "");
        assert!(parent_of(&sampled.replace("-01", "-00")).is_none());
    }

    #[test]
    fn what_is_no_parent_is_nobodys_child() {
        let zeros = format!("00-{}-{}-01", "0".repeat(32), "0".repeat(16));
        for wrong in ["", "00-1-2-01", "zz", &zeros, &"0".repeat(4096)] {
            let context = parent_of(wrong).unwrap();
            assert!(!context.has_active_span(), "{wrong}");
        }
    }
}
