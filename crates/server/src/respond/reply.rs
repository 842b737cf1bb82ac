//! Decisions as replies to Redis clients: the fields of the HTTP answer, by the same names.

use tollgate::{Decision, FailurePolicy, Reason, RuleDecision, Span};

use super::decision::refusal;
use crate::resp::reply::Reply;

/// How many fields a decision has.
pub(super) const FIELDS: usize = 15;

/// Writes the fields of the rule that decides. Those that do not apply are null.
pub(crate) fn reply(decision: &Decision, to: &mut Reply<'_>) {
    to.map(FIELDS);
    put_decision(decision, to);
}

/// The fields alone, to stand in a map with others.
pub(super) fn put_decision(decision: &Decision, to: &mut Reply<'_>) {
    let rule = decision.rule();
    let rule = rule.as_ref();
    let (code, message) = refusal(decision).unzip();
    to.text("allowed");
    to.truth(decision.is_allowed());
    to.text("ruleId");
    to.optional(rule.map(|it| it.rule().id()), Reply::text);
    to.text("limit");
    to.optional(rule.and_then(RuleDecision::limit), Reply::count);
    to.text("remaining");
    to.optional(rule.and_then(RuleDecision::remaining), Reply::count);
    to.text("retryAfterMillis");
    let retry_after = rule.and_then(RuleDecision::retry_after);
    to.optional(retry_after.map(Span::as_millis_ceil), Reply::count);
    to.text("resetAtEpochMillis");
    let reset_at = rule.map(|it| it.reset_at().as_millis_ceil());
    to.optional(reset_at, Reply::count);
    to.text("algorithm");
    to.optional(rule.map(|it| it.rule().algorithm().name()), Reply::text);
    to.text("granted");
    to.count(decision.granted());
    to.text("delayMillis");
    to.count(decision.delay().as_millis_ceil());
    to.text("fallback");
    to.optional(decision.fallback().map(FailurePolicy::name), Reply::text);
    to.text("code");
    to.optional(code, Reply::text);
    to.text("message");
    to.optional(message.as_deref(), Reply::text);
    to.text("reason");
    let reason = rule.and_then(RuleDecision::reason);
    to.optional(reason.map(Reason::name), Reply::text);
    to.text("degraded");
    to.truth(decision.is_degraded());
    to.text("decidedAtEpochMicros");
    to.count(decision.decided_at().as_micros());
}
