//! Decisions and errors as messages and statuses of Tollgate's own gRPC service: the fields of the
//! HTTP answer, by the same names.

use tollgate::{
    AcquireOutcome, Decision, FailurePolicy, Hold, Holders, Reason, ReserveOutcome, RuleDecision,
    Span, StoreError, Subject,
};
use tonic::Status;

use super::decision::refusal;
use super::hold::{MAX_LISTED, lease_state, millis, state};
use crate::grpc::{BadMessage, pb};
use crate::usage::Usage;

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
        warning: decision.warning().map(str::to_owned),
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
        grace: rule.grace().map(|it| pb::Grace {
            limit: it.of,
            remaining: it.left,
        }),
    }
}

/// What became of a wish to reserve.
pub(crate) fn reserving(told: &ReserveOutcome) -> pb::ReserveResponse {
    match told {
        ReserveOutcome::Held { hold, decision } => pb::ReserveResponse {
            allowed: true,
            repeated: decision.is_none(),
            reservation: Some(reservation(hold)),
            decision: decision.as_ref().map(self::decision),
        },
        ReserveOutcome::Denied(decision) => pb::ReserveResponse {
            allowed: false,
            repeated: false,
            reservation: None,
            decision: Some(self::decision(decision)),
        },
    }
}

/// What became of a wish for a lease.
pub(crate) fn acquiring(told: &AcquireOutcome) -> pb::AcquireLeaseResponse {
    match told {
        AcquireOutcome::Granted {
            lease,
            token,
            decision,
        } => pb::AcquireLeaseResponse {
            allowed: true,
            lease: Some(self::lease(lease)),
            token: Some(token.to_string()),
            decision: Some(self::decision(decision)),
        },
        AcquireOutcome::Denied(decision) => pb::AcquireLeaseResponse {
            allowed: false,
            lease: None,
            token: None,
            decision: Some(self::decision(decision)),
        },
    }
}

/// How a reservation stands.
pub(crate) fn reservation(hold: &Hold) -> pb::Reservation {
    pb::Reservation {
        id: hold.id.to_string(),
        state: state(hold.state).to_owned(),
        cost: hold.units,
        actual: hold.actual,
        uncharged: hold.uncharged,
        expires_at_epoch_millis: millis(hold.expires_at),
    }
}

/// How a lease stands.
pub(crate) fn lease(lease: &Hold) -> pb::Lease {
    pb::Lease {
        id: lease.id.to_string(),
        state: lease_state(lease.state).to_owned(),
        owner: lease.owner.as_ref().to_owned(),
        fence: lease.fence,
        expires_at_epoch_millis: millis(lease.expires_at),
    }
}

/// Who holds slots, by rule.
pub(crate) fn holders(rules: &[Holders]) -> pb::ListHoldersResponse {
    let rules = rules.iter().map(|rule| {
        let listed = rule.holders.iter().take(MAX_LISTED);
        let holders = listed.map(|holder| pb::Holder {
            owner: holder.owner.as_ref().to_owned(),
            fence: holder.fence,
            expires_at_epoch_millis: millis(holder.expires_at),
        });
        pb::RuleHolders {
            rule_id: rule.rule.clone(),
            limit: rule.limit,
            holders: holders.collect(),
            truncated: rule.holders.len() > MAX_LISTED,
        }
    });
    pb::ListHoldersResponse {
        rules: rules.collect(),
    }
}

/// What a tenant has used.
pub(crate) fn usage(told: &Usage) -> pb::GetUsageResponse {
    let usage = told.rows.iter().map(|row| pb::Usage {
        rule_id: row.rule.as_ref().to_owned(),
        allowance: row.allowance.as_ref().to_owned(),
        action: row.action.as_ref().to_owned(),
        starts_at_epoch_millis: millis(row.period.start),
        ends_at_epoch_millis: millis(row.period.end),
        used: row.used,
        reserved: row.reserved,
        granted: row.granted,
        corrections: row.corrections,
        requests: row.requests,
    });
    pb::GetUsageResponse {
        usage: usage.collect(),
        truncated: told.is_cut,
    }
}

fn policy(policy: FailurePolicy) -> String {
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
