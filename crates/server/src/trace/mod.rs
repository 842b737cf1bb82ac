//! Spans of decisions, for a collector.
//!
//! A door opens a span for each sampled decision. If the request belongs to a trace (`traceparent`),
//! the trace says whether to sample the decision. Otherwise a configured share of decisions is sampled.
//! The door samples before it opens a span, so that the other decisions cost almost nothing. Without a
//! collector, a decision only reads one cached flag. The engine's store calls are children of the span.
//!
//! A span has the door, the operation, the outcome and the deciding rule, but never the client, its
//! tenant or the id of a hold.
//!
//! `export` queues spans and sends them.

mod export;

use std::ops::Deref;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tollgate::{
    AcquireOutcome, ActiveConfig, BatchDecision, Decision, DemandError, Engine, Hold, HoldError,
    RequestOrigin, ReserveOutcome, RuleSet, Snapshot, Store, StoreError, TRACES, Throttled,
};
use tracing::field::Empty;
use tracing::instrument::Instrument;
use tracing::{Level, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use self::export::Sampling;
pub use self::export::{Exporter, TraceError, export};

const TRACEPARENT: &str = "traceparent";

/// The length of the shortest `traceparent`: a version, 16 and 8 bytes in hexadecimal digits, and
/// flags.
const MIN_LENGTH: usize = 55;

/// Where a request came from, and the trace that it belongs to.
pub(crate) struct Origin {
    request: RequestOrigin,
    /// `None` if the request is not sampled.
    parent: Option<Context>,
}

impl Origin {
    /// Returns the origin of a request that came through `door` with these headers.
    #[inline]
    pub(crate) fn new(door: &'static str, headers: &HeaderMap) -> Origin {
        let parent = is_on().then(|| parent(Some(headers))).flatten();
        let trace = trace_id(headers);
        let request = RequestOrigin { door, trace };
        Origin { request, parent }
    }

    /// Returns the origin of a request whose protocol cannot name a trace.
    #[inline]
    pub(crate) fn unknown(door: &'static str) -> Origin {
        let parent = is_on().then(|| parent(None)).flatten();
        let request = RequestOrigin { door, trace: None };
        Origin { request, parent }
    }

    /// Returns the origin of a request that a door passes on, and the span of the request if it is sampled.
    /// The span of the decision is a child of it.
    pub(crate) fn passed_on(
        door: &'static str,
        headers: &HeaderMap,
    ) -> (Origin, Option<RequestSpan>) {
        let mut origin = Origin::new(door, headers);
        let Some(parent) = origin.parent.take() else {
            return (origin, None);
        };
        let span = RequestSpan::new(door, &parent);
        origin.parent = Some(span.0.context());
        (origin, Some(span))
    }

    /// Returns the door and the trace, for the record of a denial.
    pub(crate) fn request(&self) -> RequestOrigin {
        self.request
    }

    /// Awaits `asking`, within a span if the request is sampled. The span shows the config version of `rules`.
    pub(crate) async fn trace<T: SpanOutcome>(
        &self,
        rules: &impl HasRules,
        operation: &'static str,
        asking: impl Future<Output = T>,
    ) -> T {
        let Some(parent) = &self.parent else {
            return asking.await;
        };
        let span = decision(self.request.door, operation, rules, parent);
        let answer = Box::pin(asking.instrument(span.clone())).await;
        answer.record_in(&span);
        answer
    }
}

/// The span of a request that a door passes on. It ends when it is dropped.
pub(crate) struct RequestSpan(Span);

impl RequestSpan {
    #[cold]
    fn new(door: &'static str, parent: &Context) -> RequestSpan {
        let span = tracing::info_span!(
            target: TRACES,
            parent: None,
            "request",
            otel.kind = "server",
            door,
            upstream = Empty,
            http.response.status_code = Empty,
            otel.status_code = Empty,
        );
        if parent.has_active_span() {
            let _ = span.set_parent(parent.clone());
        }
        RequestSpan(span)
    }

    /// Makes the receiver of a request with these headers continue the trace here.
    pub(crate) fn continue_in(&self, headers: &mut HeaderMap) {
        TraceContextPropagator::new().inject_context(&self.0.context(), &mut Next(headers));
    }

    /// Notes the upstream and the status of the answer.
    pub(crate) fn answered(&self, upstream: Option<&str>, status: StatusCode) {
        if let Some(upstream) = upstream {
            self.0.record("upstream", upstream);
        }
        self.0.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            self.0.record("otel.status_code", "ERROR");
        }
    }
}

/// Writes `traceparent`. The client's `tracestate` stays as it is.
struct Next<'h>(&'h mut HeaderMap);

impl Injector for Next<'_> {
    fn set(&mut self, key: &str, value: String) {
        if key == TRACEPARENT
            && let Ok(value) = HeaderValue::try_from(value)
        {
            self.0.insert(HeaderName::from_static(TRACEPARENT), value);
        }
    }
}

/// Runs `ask`, within a span if the request is sampled. Opens no span if the store may answer later:
/// then the caller asks again, within a span.
#[inline]
pub(crate) fn now<T: SpanOutcome>(
    door: &'static str,
    engine: &Engine,
    operation: &'static str,
    ask: impl FnOnce() -> T,
) -> T {
    let is_on = is_on() && engine.store().is_local();
    let Some(parent) = is_on.then(|| parent(None)).flatten() else {
        return ask();
    };
    let span = decision(door, operation, engine, &parent);
    let answer = span.in_scope(ask);
    answer.record_in(&span);
    answer
}

/// Returns whether there is a collector.
#[inline]
fn is_on() -> bool {
    tracing::span_enabled!(target: TRACES, Level::INFO)
}

/// Returns the parent of a request's span, which may be empty; `None` if the request is not sampled.
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
                // Another kind of subscriber samples by itself.
                it.downcast_ref::<Sampling>().is_none_or(Sampling::draw)
            }),
        }
    };
    is_sampled.then_some(context)
}

/// Returns the id of the trace that a request belongs to, sampled or not.
#[inline]
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<u128> {
    let value = headers.get(TRACEPARENT)?.to_str().ok()?;
    let (id, rest) = value.get(2..)?.strip_prefix('-')?.split_at_checked(32)?;
    let is_hex = id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_whole = is_hex && rest.starts_with('-') && value.len() >= MIN_LENGTH;
    let id = is_whole.then(|| u128::from_str_radix(id, 16).ok())??;
    (id != 0).then_some(id)
}

/// Reads only `traceparent`. A `tracestate` is unknown content, and does not become part of spans.
struct Parent<'h>(&'h HeaderMap);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key).filter(|_| key == TRACEPARENT)?;
        // The parser would accept shorter values as if zeros were missing.
        let value = value.to_str().ok()?;
        (value.len() >= MIN_LENGTH).then_some(value)
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
        // This fails if there is no OpenTelemetry layer. In that case the span needs no parent.
        let _ = span.set_parent(parent.clone());
    }
    span
}

pub(crate) trait HasRules {
    fn rule_set(&self) -> Arc<RuleSet>;
}

impl HasRules for Engine {
    fn rule_set(&self) -> Arc<RuleSet> {
        self.rules()
    }
}

impl<C: Deref<Target = ActiveConfig>> HasRules for Snapshot<'_, Arc<dyn Store>, C> {
    fn rule_set(&self) -> Arc<RuleSet> {
        Arc::clone(self.active().rules())
    }
}

/// A result that can be recorded in a span.
pub(crate) trait SpanOutcome {
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

impl SpanOutcome for ReserveOutcome {
    fn record_in(&self, span: &Span) {
        match self {
            ReserveOutcome::Held {
                decision: Some(decision),
                ..
            }
            | ReserveOutcome::Denied(decision) => decision.record_in(span),
            ReserveOutcome::Held { decision: None, .. } => drop(span.record("outcome", "repeated")),
        }
    }
}

impl SpanOutcome for AcquireOutcome {
    fn record_in(&self, span: &Span) {
        match self {
            AcquireOutcome::Granted { decision, .. } | AcquireOutcome::Denied(decision) => {
                decision.record_in(span);
            }
        }
    }
}

impl SpanOutcome for Hold {
    fn record_in(&self, span: &Span) {
        span.record("outcome", "done");
    }
}

impl SpanOutcome for HoldError {
    fn record_in(&self, span: &Span) {
        let kind = match self {
            HoldError::Unknown | HoldError::OtherKind { .. } => "unknown",
            HoldError::NotYours => "not_yours",
            HoldError::Conflict => "conflict",
            HoldError::Ended(_) => "ended",
            HoldError::TooManyOpen { .. } => "too_many_holds",
            HoldError::NothingToLease => "nothing_to_lease",
            HoldError::OutOfRange { .. }
            | HoldError::AboveLease { .. }
            | HoldError::TooLong { .. }
            | HoldError::BadKey => "bad_request",
            HoldError::Store(error) => return error.record_in(span),
        };
        failed(span, kind);
    }
}

impl<T: SpanOutcome, E: SpanOutcome> SpanOutcome for Result<T, E> {
    fn record_in(&self, span: &Span) {
        match self {
            Ok(answer) => answer.record_in(span),
            Err(error) => error.record_in(span),
        }
    }
}

/// Without an answer, nothing is recorded.
impl<T: SpanOutcome> SpanOutcome for Option<T> {
    fn record_in(&self, span: &Span) {
        if let Some(answer) = self {
            answer.record_in(span);
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
    fn only_sampled_traces_are_continued() {
        let sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = parent_of(sampled).unwrap();
        let span = context.span();
        let given = span.span_context();
        assert_eq!(given.span_id().to_string(), "b7ad6b7169203331");
        assert_eq!(given.trace_state().header(), "");
        assert!(parent_of(&sampled.replace("-01", "-00")).is_none());
    }

    #[test]
    fn trace_id_is_known_without_a_collector() {
        let id_of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, text.parse().unwrap());
            trace_id(&headers)
        };
        let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        assert_eq!(
            id_of(unsampled),
            Some(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c)
        );
        let zeros = format!("00-{}-b7ad6b7169203331-00", "0".repeat(32));
        let signed = unsampled.replace("-0af", "-+af");
        for wrong in [
            "",
            "00",
            "zz",
            &zeros,
            &signed,
            &unsampled[..54],
            &"-".repeat(64),
        ] {
            assert_eq!(id_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unknown_parent_is_ignored() {
        let zeros = format!("00-{}-{}-01", "0".repeat(32), "0".repeat(16));
        for wrong in ["", "00-1-2-01", "zz", &zeros, &"0".repeat(4096)] {
            let context = parent_of(wrong).unwrap();
            assert!(!context.has_active_span(), "{wrong}");
        }
    }
}
