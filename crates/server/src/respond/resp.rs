//! Answers as replies to Redis clients: fields of the JSON bodies, by the same names.

use tollgate::{AcquireOutcome, Decision, Hold, ReserveOutcome};

use super::answers::{DecisionBody, HoldersBody, LeaseBody, ReservationBody, TenantUsageBody};
use crate::backend::{Answer, AskError};
use crate::resp::reply::Reply;

/// The number of fields in each kind of reply.
const DECISION: usize = 15;
const RESERVATION: usize = 6;
const LEASE: usize = 5;

/// Writes the reply to a question.
pub(crate) fn reply(answer: &Result<Answer, AskError>, to: &mut Reply<'_>) {
    match answer {
        Ok(Answer::Decision(decision) | Answer::Standing(decision)) => {
            to.map(DECISION);
            put_decision(decision, to);
        }
        Ok(Answer::Batch(decisions)) => list(decisions, to),
        Ok(Answer::Demands(demands)) => list(demands.decisions(), to),
        Ok(Answer::Reserve(outcome)) => reserve(outcome, to),
        Ok(Answer::Reservation(hold)) => {
            to.map(RESERVATION);
            put_reservation(hold, to);
        }
        Ok(Answer::Acquire(outcome)) => acquire(outcome, to),
        Ok(Answer::Lease(lease)) => {
            to.map(LEASE);
            put_lease(lease, to);
        }
        Ok(Answer::Holders(rules)) => holders(&HoldersBody::new(rules), to),
        Ok(Answer::Usage(tenant)) => usage(&TenantUsageBody::new(tenant), to),
        Err(error) => to.error(error.codes().3, &error.to_string()),
    }
}

fn list(decisions: &[Decision], to: &mut Reply<'_>) {
    to.list(decisions.len());
    for decision in decisions {
        to.map(DECISION);
        put_decision(decision, to);
    }
}

/// Writes the fields of the deciding rule. Fields that do not apply are null.
fn put_decision(decision: &Decision, to: &mut Reply<'_>) {
    let body = DecisionBody::new(decision);
    to.entry("allowed", body.allowed);
    to.entry("ruleId", body.rule_id);
    to.entry("limit", body.limit);
    to.entry("remaining", body.remaining);
    to.entry("retryAfterMillis", body.retry_after_millis);
    to.entry("resetAtEpochMillis", body.reset_at_epoch_millis);
    to.entry("algorithm", body.algorithm);
    to.entry("granted", body.granted);
    to.entry("delayMillis", body.delay_millis);
    to.entry("fallback", body.fallback);
    to.entry("code", body.code);
    to.entry("message", body.message.as_deref());
    to.entry("reason", body.reason);
    to.entry("degraded", body.degraded);
    to.entry("decidedAtEpochMicros", body.decided_at_epoch_micros);
}

/// Writes the fields of the decision, then those of the reservation.
fn reserve(outcome: &ReserveOutcome, to: &mut Reply<'_>) {
    let (hold, decision) = match outcome {
        ReserveOutcome::Held { hold, decision } => (Some(hold), decision.as_ref()),
        ReserveOutcome::Denied(decision) => (None, Some(decision)),
    };
    let decided = decision.map_or(1, |_| DECISION);
    to.map(decided + 1 + hold.map_or(0, |_| RESERVATION));
    match decision {
        Some(decision) => put_decision(decision, to),
        // The reservation was made before: nothing was decided now.
        None => to.entry("allowed", true),
    }
    to.entry("repeated", decision.is_none());
    if let Some(hold) = hold {
        put_reservation(hold, to);
    }
}

/// Writes the fields of the decision, then those of the lease.
fn acquire(outcome: &AcquireOutcome, to: &mut Reply<'_>) {
    match outcome {
        AcquireOutcome::Granted {
            lease,
            token,
            decision,
        } => {
            to.map(DECISION + LEASE + 1);
            put_decision(decision, to);
            put_lease(lease, to);
            to.entry("token", token.to_string().as_str());
        }
        AcquireOutcome::Denied(decision) => {
            to.map(DECISION);
            put_decision(decision, to);
        }
    }
}

fn put_reservation(hold: &Hold, to: &mut Reply<'_>) {
    let body = ReservationBody::new(hold);
    to.entry("id", body.id.as_str());
    to.entry("state", body.state);
    to.entry("cost", body.cost);
    to.entry("actual", body.actual);
    to.entry("uncharged", body.uncharged);
    to.entry("expiresAtEpochMillis", body.expires_at_epoch_millis);
}

fn put_lease(lease: &Hold, to: &mut Reply<'_>) {
    let body = LeaseBody::new(lease);
    to.entry("id", body.id.as_str());
    to.entry("state", body.state);
    to.entry("owner", body.owner.as_str());
    to.entry("fence", body.fence);
    to.entry("expiresAtEpochMillis", body.expires_at_epoch_millis);
}

/// Writes a map for each rule.
fn holders(body: &HoldersBody, to: &mut Reply<'_>) {
    to.list(body.rules.len());
    for rule in &body.rules {
        to.map(4);
        to.entry("ruleId", rule.rule_id.as_str());
        to.entry("limit", rule.limit);
        to.entry("truncated", rule.truncated);
        to.text("holders");
        to.list(rule.holders.len());
        for holder in &rule.holders {
            to.map(3);
            to.entry("owner", holder.owner.as_str());
            to.entry("fence", holder.fence);
            to.entry("expiresAtEpochMillis", holder.expires_at_epoch_millis);
        }
    }
}

/// Writes a map for each rule, action and period.
fn usage(body: &TenantUsageBody<'_>, to: &mut Reply<'_>) {
    to.map(3);
    to.entry("tenant", body.tenant);
    to.entry("truncated", body.truncated);
    to.text("usage");
    to.list(body.usage.len());
    for row in &body.usage {
        to.map(10);
        to.entry("ruleId", row.rule_id);
        to.entry("allowance", row.allowance);
        to.entry("action", row.action);
        to.entry("startsAtEpochMillis", row.starts_at_epoch_millis);
        to.entry("endsAtEpochMillis", row.ends_at_epoch_millis);
        to.entry("used", row.used);
        to.entry("reserved", row.reserved);
        to.entry("granted", row.granted);
        to.entry("corrections", row.corrections);
        to.entry("requests", row.requests);
    }
}
