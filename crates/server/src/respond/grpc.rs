//! Answers as messages of Tollgate's own gRPC service: the fields of the JSON bodies, by the same
//! names.

use tollgate::{AcquireOutcome, Decision, Hold, ReserveOutcome};

use super::answers::{
    DecisionBody, HoldersBody, LeaseBody, ReservationBody, RuleDecisionBody, TenantUsageBody,
};
use crate::backend::Answer;
use crate::grpc::pb;

/// A message that answers a question.
pub(crate) trait FromAnswer: Sized {
    /// Makes the message from `answer`; `None` if `answer` belongs to another question.
    fn from_answer(answer: &Answer) -> Option<Self>;
}

impl FromAnswer for pb::Decision {
    fn from_answer(answer: &Answer) -> Option<pb::Decision> {
        match answer {
            Answer::Decision(it) | Answer::Standing(it) => Some(decision(it)),
            _ => None,
        }
    }
}

impl FromAnswer for pb::CheckBatchResponse {
    fn from_answer(answer: &Answer) -> Option<pb::CheckBatchResponse> {
        match answer {
            Answer::Batch(decisions) => Some(pb::CheckBatchResponse {
                decisions: decisions.iter().map(decision).collect(),
            }),
            _ => None,
        }
    }
}

impl FromAnswer for pb::ReserveResponse {
    fn from_answer(answer: &Answer) -> Option<pb::ReserveResponse> {
        let Answer::Reserve(outcome) = answer else {
            return None;
        };
        let (hold, decided) = match outcome {
            ReserveOutcome::Held { hold, decision } => (Some(hold), decision.as_ref()),
            ReserveOutcome::Denied(decision) => (None, Some(decision)),
        };
        Some(pb::ReserveResponse {
            allowed: hold.is_some(),
            repeated: decided.is_none(),
            reservation: hold.map(reservation),
            decision: decided.map(decision),
        })
    }
}

impl FromAnswer for pb::AcquireLeaseResponse {
    fn from_answer(answer: &Answer) -> Option<pb::AcquireLeaseResponse> {
        let Answer::Acquire(outcome) = answer else {
            return None;
        };
        let (granted, decided) = match outcome {
            AcquireOutcome::Granted {
                lease,
                token,
                decision,
            } => (Some((lease, token)), decision),
            AcquireOutcome::Denied(decision) => (None, decision),
        };
        Some(pb::AcquireLeaseResponse {
            allowed: granted.is_some(),
            lease: granted.map(|(it, _)| lease(it)),
            token: granted.map(|(_, token)| token.to_string()),
            decision: Some(decision(decided)),
        })
    }
}

impl FromAnswer for pb::Reservation {
    fn from_answer(answer: &Answer) -> Option<pb::Reservation> {
        match answer {
            Answer::Reservation(hold) => Some(reservation(hold)),
            _ => None,
        }
    }
}

impl FromAnswer for pb::Lease {
    fn from_answer(answer: &Answer) -> Option<pb::Lease> {
        match answer {
            Answer::Lease(it) => Some(lease(it)),
            _ => None,
        }
    }
}

impl FromAnswer for pb::ListHoldersResponse {
    fn from_answer(answer: &Answer) -> Option<pb::ListHoldersResponse> {
        let Answer::Holders(holders) = answer else {
            return None;
        };
        let rules = HoldersBody::new(holders).rules.into_iter();
        let rules = rules.map(|rule| {
            let holders = rule.holders.into_iter().map(|holder| pb::Holder {
                owner: holder.owner,
                fence: holder.fence,
                expires_at_epoch_millis: holder.expires_at_epoch_millis,
            });
            pb::RuleHolders {
                rule_id: rule.rule_id,
                limit: rule.limit,
                holders: holders.collect(),
                truncated: rule.truncated,
            }
        });
        Some(pb::ListHoldersResponse {
            rules: rules.collect(),
        })
    }
}

impl FromAnswer for pb::GetUsageResponse {
    fn from_answer(answer: &Answer) -> Option<pb::GetUsageResponse> {
        let Answer::Usage(usage) = answer else {
            return None;
        };
        let body = TenantUsageBody::new(usage);
        let usage = body.usage.into_iter().map(|row| pb::Usage {
            rule_id: row.rule_id.to_owned(),
            allowance: row.allowance.to_owned(),
            action: row.action.to_owned(),
            starts_at_epoch_millis: row.starts_at_epoch_millis,
            ends_at_epoch_millis: row.ends_at_epoch_millis,
            used: row.used,
            reserved: row.reserved,
            granted: row.granted,
            corrections: row.corrections,
            requests: row.requests,
        });
        Some(pb::GetUsageResponse {
            usage: usage.collect(),
            truncated: body.truncated,
        })
    }
}

fn decision(decision: &Decision) -> pb::Decision {
    let body = DecisionBody::new(decision);
    pb::Decision {
        allowed: body.allowed,
        code: body.code.map(str::to_owned),
        message: body.message.map(Into::into),
        rule_id: body.rule_id.map(str::to_owned),
        algorithm: body.algorithm.map(str::to_owned),
        kind: body.kind.map(str::to_owned),
        reason: body.reason.map(str::to_owned),
        subject: body.subject.map(|it| it.0.to_hex().as_str().to_owned()),
        limit: body.limit,
        remaining: body.remaining,
        retry_after_millis: body.retry_after_millis,
        reset_at_epoch_millis: body.reset_at_epoch_millis,
        delay_millis: body.delay_millis,
        granted: body.granted,
        shadow_denied: body.shadow_denied,
        fallback: body.fallback.map(str::to_owned),
        degraded: body.degraded,
        guarantee: body.guarantee.to_owned(),
        config_version: body.config_version.to_owned(),
        decided_at_epoch_micros: body.decided_at_epoch_micros,
        rules: body.rules.iter().map(rule_decision).collect(),
        warning: body.warning.map(str::to_owned),
    }
}

fn rule_decision(rule: RuleDecisionBody<'_>) -> pb::RuleDecision {
    pb::RuleDecision {
        rule_id: rule.rule_id.to_owned(),
        allowed: rule.allowed,
        shadow: rule.shadow,
        algorithm: rule.algorithm.to_owned(),
        kind: rule.kind.to_owned(),
        reason: rule.reason.map(str::to_owned),
        subject: rule.subject.map(|it| it.0.to_hex().as_str().to_owned()),
        limit: rule.limit,
        remaining: rule.remaining,
        retry_after_millis: rule.retry_after_millis,
        reset_at_epoch_millis: rule.reset_at_epoch_millis,
        fallback: rule.fallback.map(str::to_owned),
        delay_millis: rule.delay_millis,
        grace: rule.grace.map(|grace| pb::Grace {
            limit: grace.limit,
            remaining: grace.remaining,
        }),
    }
}

fn reservation(hold: &Hold) -> pb::Reservation {
    let body = ReservationBody::new(hold);
    pb::Reservation {
        id: body.id,
        state: body.state.to_owned(),
        cost: body.cost,
        actual: body.actual,
        uncharged: body.uncharged,
        expires_at_epoch_millis: body.expires_at_epoch_millis,
    }
}

fn lease(lease: &Hold) -> pb::Lease {
    let body = LeaseBody::new(lease);
    pb::Lease {
        id: body.id,
        state: body.state.to_owned(),
        owner: body.owner,
        fence: body.fence,
        expires_at_epoch_millis: body.expires_at_epoch_millis,
    }
}
