//! Decisions as HTTP answers.

use std::borrow::Cow;
use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use http::header::HeaderValue;
use tollgate::{Decision, FailurePolicy, Kind, Reason, RuleDecision, RuleSet, Span, Time};
use tollgate_config::Headers;

use super::fields::Fields;
use super::object::{List, Object};
use super::{JSON, PROBLEM, with_body};

/// Turns decisions into answers, by the `headers` section of the config.
pub(crate) struct Responder {
    fields: Fields,
    problem_json: bool,
}

impl Responder {
    pub(crate) fn new(headers: &Headers, rules: &Arc<RuleSet>) -> Responder {
        Responder {
            fields: Fields::new(headers.families, rules),
            problem_json: headers.problem_json,
        }
    }

    /// The answer to a check: 200 if allowed, else 429, or 503 where a queue is full or no store
    /// answers. A refusal is a problem document (RFC 9457) if the client accepts that, or all are.
    pub(crate) fn decision(&self, decision: &Decision, accepts_problem: bool) -> Response {
        let status = status(decision);
        let wants_problem = self.problem_json || accepts_problem;
        let mut response = if wants_problem && !decision.is_allowed() {
            let members = |object: &mut Object<'_>| put_decision(object, decision);
            problem(status, decision, members)
        } else {
            object(status, JSON, |object| put_decision(object, decision))
        };
        self.fields.write(decision, response.headers_mut());
        response
    }

    /// The answer to a proxy that asks for a client: 200 with nothing to read, or a refusal that can
    /// be handed to the client. That is told of the rule that refuses and of no other: who asks is
    /// a stranger, and how limits are set up is no concern of theirs.
    pub(crate) fn verdict(&self, decision: &Decision, accepts_problem: bool) -> Response {
        let mut response = if decision.is_allowed() {
            Response::default()
        } else {
            let status = status(decision);
            let members = |object: &mut Object<'_>| put_refusal(object, decision);
            if self.problem_json || accepts_problem {
                problem(status, decision, members)
            } else {
                object(status, JSON, members)
            }
        };
        self.fields.write(decision, response.headers_mut());
        response
    }

    /// Adds the fields of the rule that decides.
    pub(super) fn write_fields(&self, decision: &Decision, response: &mut Response) {
        self.fields.write(decision, response.headers_mut());
    }

    /// The answer to several checks: 200, with a decision for each.
    pub(crate) fn batch(&self, decisions: &[Decision]) -> Response {
        object(StatusCode::OK, JSON, |object| {
            let decisions = List::new(decisions.iter(), |it, object| put_decision(object, it));
            object.put("decisions", decisions);
        })
    }
}

/// The answer to a question about how things stand: always 200.
pub(crate) fn decided(decision: &Decision) -> Response {
    object(StatusCode::OK, JSON, |object| {
        put_decision(object, decision);
    })
}

fn status(decision: &Decision) -> StatusCode {
    match decision.rule().and_then(|rule| rule.reason()) {
        _ if decision.is_allowed() => StatusCode::OK,
        Some(Reason::QueueFull | Reason::StoreUnavailable) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// The code that tells callers which sort of limit was hit.
pub(super) fn code(kind: Kind, reason: Reason) -> &'static str {
    match reason {
        Reason::Exceeded | Reason::BackedOff | Reason::NeverFits => match kind {
            Kind::Rate => "RATE_LIMIT",
            Kind::Budget => "BUDGET",
            Kind::Quota => "QUOTA",
            Kind::Concurrency => "CONCURRENCY",
        },
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
    Some((code(rule.kind(), reason), message))
}

/// What a refused caller is told where the rule has no message of its own. Nothing here depends on
/// the subject.
fn message(rule: &RuleDecision<'_>, reason: Reason) -> String {
    let wait = rule
        .retry_after()
        .map_or(1, |wait| wait.as_secs_ceil().max(1));
    match reason {
        Reason::Exceeded if rule.kind() == Kind::Quota => match rule.remaining() {
            Some(0) => format!("The quota is used up. Try again in {wait} s."),
            _ => format!("The quota has less left than this takes. Try again in {wait} s."),
        },
        Reason::Exceeded if rule.kind() == Kind::Concurrency => {
            format!("Too many requests at once. Try again in {wait} s.")
        }
        Reason::Exceeded | Reason::BackedOff => {
            format!("Too many requests. Try again in {wait} s.")
        }
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

/// A JSON object, with the members that `write` puts.
pub(super) fn object(
    status: StatusCode,
    content_type: HeaderValue,
    write: impl FnOnce(&mut Object<'_>),
) -> Response {
    let mut bytes = Vec::with_capacity(1024);
    Object::write(&mut bytes, write);
    with_body(status, content_type, bytes.into())
}

/// A refusal as a problem document (RFC 9457), with the members of the ordinary answer.
fn problem(
    status: StatusCode,
    decision: &Decision,
    members: impl FnOnce(&mut Object<'_>),
) -> Response {
    object(status, PROBLEM, |object| {
        object.put("type", "about:blank");
        object.put("title", status.canonical_reason());
        object.put("status", u64::from(status.as_u16()));
        object.put("detail", refusal(decision).map(|(_, message)| message));
        members(object);
    })
}

/// Whether it is one, and if not why.
fn put_outcome(object: &mut Object<'_>, decision: &Decision) {
    object.put("allowed", decision.is_allowed());
    if let Some((code, message)) = refusal(decision) {
        object.put("code", code);
        object.put("message", message);
    }
    if let Some(warning) = decision.warning() {
        object.put("warning", warning);
    }
}

/// A decision: the fields of the rule that decides, and then each rule's. Described by
/// [`schema::Decision`](super::schema::Decision).
pub(super) fn put_decision(object: &mut Object<'_>, decision: &Decision) {
    let rule = decision.rule();
    put_outcome(object, decision);
    object.put("ruleId", rule.map(|rule| rule.rule().id()));
    put_rule(object, rule.as_ref());
    // Of all rules: whoever waits this long has waited for each.
    object.put("delayMillis", decision.delay().as_millis_ceil());
    object.put("granted", decision.granted());
    object.put("shadowDenied", decision.shadow_denied());
    // The failure policy that decided instead of the store.
    object.put("fallback", decision.fallback().map(FailurePolicy::name));
    object.put("degraded", decision.is_degraded());
    object.put("guarantee", decision.guarantee().name());
    object.put("configVersion", decision.config_version());
    object.put("decidedAtEpochMicros", decision.decided_at().as_micros());
    let rules = List::new(decision.rules(), |rule, object| {
        object.put("ruleId", rule.rule().id());
        object.put("allowed", rule.is_allowed());
        object.put("shadow", rule.is_shadow());
        put_rule(object, Some(&rule));
        if let Some(policy) = rule.fallback() {
            object.put("fallback", policy.name());
        }
        if let Some(grace) = rule.grace() {
            object.put("grace", grace);
        }
        object.put("delayMillis", rule.delay().as_millis_ceil());
    });
    object.put("rules", rules);
}

/// A refusal for a stranger: the fields of the rule that refuses, without its subject. Described by
/// [`schema::Verdict`](super::schema::Verdict).
fn put_refusal(object: &mut Object<'_>, decision: &Decision) {
    put_outcome(object, decision);
    let Some(rule) = decision.rule() else {
        return;
    };
    object.put("ruleId", rule.rule().id());
    object.put("kind", rule.kind().name());
    put_amounts(object, Some(&rule));
}

/// What is told of one rule, wherever it is told. Without a rule, the fields are null.
fn put_rule(object: &mut Object<'_>, rule: Option<&RuleDecision<'_>>) {
    object.put("algorithm", rule.map(|it| it.rule().algorithm().name()));
    object.put("kind", rule.map(|it| it.kind().name()));
    let reason = rule.and_then(RuleDecision::reason);
    object.put("reason", reason.map(Reason::name));
    object.put("subject", rule.and_then(RuleDecision::subject));
    put_amounts(object, rule);
}

fn put_amounts(object: &mut Object<'_>, rule: Option<&RuleDecision<'_>>) {
    object.put("limit", rule.and_then(RuleDecision::limit));
    object.put("remaining", rule.and_then(RuleDecision::remaining));
    let retry_after = rule.and_then(RuleDecision::retry_after);
    object.put("retryAfterMillis", retry_after.map(Span::as_millis_ceil));
    let reset_at = rule.map(RuleDecision::reset_at);
    object.put("resetAtEpochMillis", reset_at.map(Time::as_millis_ceil));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_allowance_has_a_code_of_its_own() {
        let spent = Kind::ALL.map(|kind| code(kind, Reason::Exceeded));
        assert_eq!(spent, ["RATE_LIMIT", "BUDGET", "QUOTA", "CONCURRENCY"]);
        // What is wrong with a store is the same for all.
        let failed = Kind::ALL.map(|kind| code(kind, Reason::StoreFailed));
        assert_eq!(failed, ["STORE_FAILED"; 4]);
    }
}
