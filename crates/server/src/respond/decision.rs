//! Decisions as HTTP answers.

use std::borrow::Cow;

use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use tollgate::{Decision, Reason, RuleDecision, RuleSet, Span, StoreFailure, Subject};
use tollgate_rules::Headers;
use utoipa::ToSchema;

use super::fields::Fields;
use super::{JSON, PROBLEM, accepts_problem, json, schema};

/// Turns decisions into answers, by the `headers` section of the config.
pub(crate) struct Responder {
    fields: Fields,
    problem_json: bool,
}

impl Responder {
    pub(crate) fn new(headers: &Headers, rules: &RuleSet) -> Responder {
        Responder {
            fields: Fields::new(headers.families, rules),
            problem_json: headers.problem_json,
        }
    }

    /// Whether a refusal is to be a problem document (RFC 9457).
    pub(crate) fn wants_problem(&self, request: &HeaderMap) -> bool {
        self.problem_json || accepts_problem(request)
    }

    /// The answer to a check: 200 if allowed, else 429, or 503 where a queue is full or no store
    /// answers.
    pub(crate) fn decision(&self, decision: &Decision, wants_problem: bool) -> Response {
        let status = status(decision);
        let mut response = if wants_problem && !decision.is_allowed() {
            let told = DecisionBody(decision);
            json(status, PROBLEM, &Problem { status, told })
        } else {
            json(status, JSON, &DecisionBody(decision))
        };
        self.fields.write(decision, response.headers_mut());
        response
    }

    /// The answer to a proxy that asks for a client: 200 with nothing to read, or a refusal that can
    /// be handed to the client. That is told of the rule that refuses and of no other: who asks is
    /// a stranger, and how limits are set up is no concern of theirs.
    pub(crate) fn verdict(&self, decision: &Decision, wants_problem: bool) -> Response {
        let mut response = if decision.is_allowed() {
            Response::default()
        } else {
            let (status, told) = (status(decision), Told(decision));
            if wants_problem {
                json(status, PROBLEM, &Problem { status, told })
            } else {
                json(status, JSON, &told)
            }
        };
        self.fields.write(decision, response.headers_mut());
        response
    }

    /// The answer to several checks: 200, with a decision for each.
    pub(crate) fn batch(&self, decisions: &[Decision]) -> Response {
        let decisions = decisions.iter().map(DecisionBody).collect();
        json(StatusCode::OK, JSON, &BatchAnswer { decisions })
    }
}

/// A decision for each request of a batch, in their order.
#[derive(Serialize, ToSchema)]
#[schema(as = Decisions)]
pub(crate) struct BatchAnswer<'a> {
    #[schema(value_type = Vec<schema::Decision>)]
    decisions: Vec<DecisionBody<'a>>,
}

/// The answer to a question about how things stand: always 200.
pub(crate) fn decided(decision: &Decision) -> Response {
    json(StatusCode::OK, JSON, &DecisionBody(decision))
}

fn status(decision: &Decision) -> StatusCode {
    match decision.rule().and_then(|rule| rule.reason()) {
        _ if decision.is_allowed() => StatusCode::OK,
        Some(Reason::QueueFull | Reason::StoreUnavailable) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// The code that tells callers which sort of limit was hit.
pub(super) fn code(reason: Reason) -> &'static str {
    match reason {
        Reason::Exceeded | Reason::NeverFits => "RATE_LIMIT",
        Reason::QueueFull => "QUEUE_FULL",
        Reason::MissingAttribute => "MISSING_ATTRIBUTE",
        Reason::BadExpression => "BAD_ATTRIBUTE",
        Reason::StoreFailed => "STORE_FAILED",
        Reason::StoreUnavailable => "STORE_UNAVAILABLE",
    }
}

/// The code and the message of a refusal.
pub(super) fn refusal(decision: &Decision) -> Option<(&'static str, Cow<'_, str>)> {
    let rule = decision.rule()?;
    let reason = rule.reason()?;
    let message = match rule.rule().message() {
        Some(message) => Cow::Borrowed(message),
        None => Cow::Owned(message(&rule, reason)),
    };
    Some((code(reason), message))
}

/// What a refused caller is told where the rule has no message of its own. Nothing here depends on
/// the subject.
fn message(rule: &RuleDecision<'_>, reason: Reason) -> String {
    let wait = rule
        .retry_after()
        .map_or(1, |wait| wait.as_secs_ceil().max(1));
    match reason {
        Reason::Exceeded => format!("Too many requests. Try again in {wait} s."),
        Reason::QueueFull => format!("The queue is full. Try again in {wait} s."),
        Reason::NeverFits => {
            "The request costs more than this limit ever allows at once.".to_owned()
        }
        Reason::MissingAttribute => "The request lacks an attribute it must carry.".to_owned(),
        Reason::BadExpression => "An attribute of the request has no usable value.".to_owned(),
        Reason::StoreFailed | Reason::StoreUnavailable => {
            format!("Limits cannot be checked at the moment. Try again in {wait} s.")
        }
    }
}

/// What is told of a decision, as the members of a JSON object.
trait Members {
    fn decision(&self) -> &Decision;
    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error>;
}

/// A decision as JSON: the fields of the rule that decides, and then each rule's. Described by
/// [`schema::Decision`].
struct DecisionBody<'a>(&'a Decision);

impl Serialize for DecisionBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.entries(&mut map)?;
        map.end()
    }
}

impl Members for DecisionBody<'_> {
    fn decision(&self) -> &Decision {
        self.0
    }

    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let DecisionBody(decision) = self;
        let rule = decision.rule();
        map.serialize_entry("allowed", &decision.is_allowed())?;
        if let Some((code, message)) = refusal(decision) {
            map.serialize_entry("code", code)?;
            map.serialize_entry("message", &message)?;
        }
        map.serialize_entry("ruleId", &rule.map(|rule| rule.rule().id()))?;
        rule_entries(map, rule.as_ref())?;
        // Of all rules: whoever waits this long has waited for each.
        map.serialize_entry("delayMillis", &decision.delay().as_millis_ceil())?;
        map.serialize_entry("granted", &decision.granted())?;
        map.serialize_entry("shadowDenied", &decision.shadow_denied())?;
        // The failure policy that decided instead of the store.
        map.serialize_entry("fallback", &decision.fallback().map(StoreFailure::name))?;
        map.serialize_entry("degraded", &decision.is_degraded())?;
        map.serialize_entry("guarantee", decision.guarantee().name())?;
        map.serialize_entry("configVersion", decision.config_version())?;
        map.serialize_entry("decidedAtEpochMicros", &decision.decided_at().as_micros())?;
        map.serialize_entry("rules", &RuleBodies(decision))
    }
}

/// A refusal for a stranger: the fields of the rule that refuses, without its subject. Described by
/// [`schema::Verdict`].
struct Told<'a>(&'a Decision);

impl Serialize for Told<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.entries(&mut map)?;
        map.end()
    }
}

impl Members for Told<'_> {
    fn decision(&self) -> &Decision {
        self.0
    }

    fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Told(decision) = self;
        map.serialize_entry("allowed", &decision.is_allowed())?;
        if let Some((code, message)) = refusal(decision) {
            map.serialize_entry("code", code)?;
            map.serialize_entry("message", &message)?;
        }
        let Some(rule) = decision.rule() else {
            return Ok(());
        };
        let retry_after = rule.retry_after();
        map.serialize_entry("ruleId", rule.rule().id())?;
        map.serialize_entry("kind", rule.kind().name())?;
        map.serialize_entry("limit", &rule.limit())?;
        map.serialize_entry("remaining", &rule.remaining())?;
        map.serialize_entry("retryAfterMillis", &retry_after.map(Span::as_millis_ceil))?;
        map.serialize_entry("resetAtEpochMillis", &rule.reset_at().as_millis_ceil())
    }
}

struct RuleBodies<'a>(&'a Decision);

impl Serialize for RuleBodies<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.rules().map(RuleBody))
    }
}

struct RuleBody<'a>(RuleDecision<'a>);

impl Serialize for RuleBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let RuleBody(rule) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ruleId", rule.rule().id())?;
        map.serialize_entry("allowed", &rule.is_allowed())?;
        map.serialize_entry("shadow", &rule.is_shadow())?;
        rule_entries(&mut map, Some(rule))?;
        if let Some(policy) = rule.fallback() {
            map.serialize_entry("fallback", policy.name())?;
        }
        map.serialize_entry("delayMillis", &rule.delay().as_millis_ceil())?;
        map.end()
    }
}

/// What is told of one rule, wherever it is told. Without a rule, the fields are null.
fn rule_entries<M: SerializeMap>(
    map: &mut M,
    rule: Option<&RuleDecision<'_>>,
) -> Result<(), M::Error> {
    let retry_after = rule.and_then(RuleDecision::retry_after);
    map.serialize_entry("algorithm", &rule.map(|it| it.rule().algorithm().name()))?;
    map.serialize_entry("kind", &rule.map(|it| it.kind().name()))?;
    map.serialize_entry(
        "reason",
        &rule.and_then(RuleDecision::reason).map(Reason::name),
    )?;
    map.serialize_entry("subject", &rule.and_then(RuleDecision::subject).map(Hashed))?;
    map.serialize_entry("limit", &rule.and_then(RuleDecision::limit))?;
    map.serialize_entry("remaining", &rule.and_then(RuleDecision::remaining))?;
    map.serialize_entry("retryAfterMillis", &retry_after.map(Span::as_millis_ceil))?;
    map.serialize_entry(
        "resetAtEpochMillis",
        &rule.map(|it| it.reset_at().as_millis_ceil()),
    )
}

struct Hashed(Subject);

impl Serialize for Hashed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_hex().as_str())
    }
}

/// A refusal as a problem document (RFC 9457), with the members of the ordinary answer.
struct Problem<T> {
    status: StatusCode,
    told: T,
}

impl<T: Members> Serialize for Problem<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", "about:blank")?;
        map.serialize_entry("title", &self.status.canonical_reason())?;
        map.serialize_entry("status", &self.status.as_u16())?;
        let refusal = refusal(self.told.decision());
        map.serialize_entry("detail", &refusal.map(|(_, message)| message))?;
        self.told.entries(&mut map)?;
        map.end()
    }
}
