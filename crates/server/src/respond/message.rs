//! Decisions and errors as messages and statuses of Tollgate's own gRPC service: the fields of the
//! HTTP answer, by the same names.

use tollgate::{Decision, Reason, RuleDecision, Span, StoreError, StoreFailure, Subject};
use tonic::Status;

use super::decision::refusal;
use crate::grpc::{BadMessage, pb};

/// A decision, allowed or not.
pub(crate) fn decision(decision: &Decision) -> pb::Decision {
    let rule = decision.rule();
    let rule = rule.as_ref();
    let (code, message) = refusal(decision).unzip();
    let reason = rule.and_then(RuleDecision::reason);
    let retry_after = rule.and_then(RuleDecision::retry_after);
    pb::Decision {
        allowed: decision.is_allowed(),
        code: code.map(str::to_owned),
        message: message.map(Into::into),
        rule_id: rule.map(|it| it.rule().id().to_owned()),
        algorithm: rule.map(|it| it.rule().algorithm().name().to_owned()),
        kind: rule.map(|it| it.kind().name().to_owned()),
        reason: reason.map(|it| it.name().to_owned()),
        subject: rule.and_then(RuleDecision::subject).map(hex),
        limit: rule.and_then(RuleDecision::limit),
        remaining: rule.and_then(RuleDecision::remaining),
        retry_after_millis: retry_after.map(Span::as_millis_ceil),
        reset_at_epoch_millis: rule.map(|it| it.reset_at().as_millis_ceil()),
        delay_millis: decision.delay().as_millis_ceil(),
        granted: decision.granted(),
        shadow_denied: decision.shadow_denied(),
        fallback: decision.fallback().map(policy),
        degraded: decision.is_degraded(),
        guarantee: decision.guarantee().name().to_owned(),
        config_version: decision.config_version().to_owned(),
        decided_at_epoch_micros: decision.decided_at().as_micros(),
        rules: decision.rules().map(|it| rule_decision(&it)).collect(),
    }
}

fn rule_decision(rule: &RuleDecision<'_>) -> pb::RuleDecision {
    pb::RuleDecision {
        rule_id: rule.rule().id().to_owned(),
        allowed: rule.is_allowed(),
        shadow: rule.is_shadow(),
        algorithm: rule.rule().algorithm().name().to_owned(),
        kind: rule.kind().name().to_owned(),
        reason: rule.reason().map(|it: Reason| it.name().to_owned()),
        subject: rule.subject().map(hex),
        limit: rule.limit(),
        remaining: rule.remaining(),
        retry_after_millis: rule.retry_after().map(Span::as_millis_ceil),
        reset_at_epoch_millis: rule.reset_at().as_millis_ceil(),
        fallback: rule.fallback().map(policy),
        delay_millis: rule.delay().as_millis_ceil(),
    }
}

fn policy(policy: StoreFailure) -> String {
    policy.name().to_owned()
}

fn hex(subject: Subject) -> String {
    subject.to_hex().as_str().to_owned()
}

/// What is told of a message that cannot be understood.
impl From<BadMessage> for Status {
    fn from(bad: BadMessage) -> Status {
        Status::invalid_argument(bad.to_string())
    }
}

/// What is told where the store does not answer. What exactly is wrong with it is for the log, and no
/// concern of clients.
pub(crate) fn unavailable(_error: &StoreError) -> Status {
    Status::unavailable("this cannot be done now: the store does not answer")
}
