//! Reservations, leases, their holders and usage as replies to Redis clients: the fields of the HTTP
//! answers, by the same names.

use tollgate::{AcquireOutcome, Decision, Hold, Holders, LeaseToken, ReserveOutcome};

use super::hold::{MAX_LISTED, lease_state, millis, state};
use super::reply::{FIELDS, put_decision};
use crate::resp::reply::Reply;
use crate::usage::Usage;

/// How many fields a reservation has.
const RESERVATION: usize = 6;
/// How many a lease has.
const LEASE: usize = 5;

/// What became of a wish to reserve: the fields of the decision, and then those of the reservation.
pub(crate) fn reserving(told: &ReserveOutcome, to: &mut Reply<'_>) {
    let (hold, decision) = match told {
        ReserveOutcome::Held { hold, decision } => (Some(hold), decision.as_ref()),
        ReserveOutcome::Denied(decision) => (None, Some(decision)),
    };
    // Nothing was decided where it was reserved before.
    let decided = decision.map_or(1, |_| FIELDS);
    to.map(decided + 1 + if hold.is_some() { RESERVATION } else { 0 });
    put_outcome(decision, to);
    to.text("repeated");
    to.truth(decision.is_none());
    if let Some(hold) = hold {
        put_reservation(hold, to);
    }
}

/// What became of a wish for a lease: the fields of the decision, and then those of the lease.
pub(crate) fn acquiring(told: &AcquireOutcome, to: &mut Reply<'_>) {
    let (decision, granted): (_, Option<(&Hold, &LeaseToken)>) = match told {
        AcquireOutcome::Granted {
            lease,
            token,
            decision,
        } => (decision, Some((lease, token))),
        AcquireOutcome::Denied(decision) => (decision, None),
    };
    to.map(FIELDS + granted.map_or(0, |_| LEASE + 1));
    put_decision(decision, to);
    if let Some((lease, token)) = granted {
        put_lease(lease, to);
        to.text("token");
        to.text(&token.to_string());
    }
}

/// How a reservation stands.
pub(crate) fn reservation(hold: &Hold, to: &mut Reply<'_>) {
    to.map(RESERVATION);
    put_reservation(hold, to);
}

/// How a lease stands.
pub(crate) fn lease(lease: &Hold, to: &mut Reply<'_>) {
    to.map(LEASE);
    put_lease(lease, to);
}

/// Who holds slots: a map for each rule.
pub(crate) fn holders(rules: &[Holders], to: &mut Reply<'_>) {
    to.list(rules.len());
    for rule in rules {
        let listed = &rule.holders[..rule.holders.len().min(MAX_LISTED)];
        to.map(4);
        to.text("ruleId");
        to.text(&rule.rule);
        to.text("limit");
        to.count(rule.limit);
        to.text("truncated");
        to.truth(listed.len() < rule.holders.len());
        to.text("holders");
        to.list(listed.len());
        for holder in listed {
            to.map(3);
            to.text("owner");
            to.text(&holder.owner);
            to.text("fence");
            to.count(holder.fence);
            to.text("expiresAtEpochMillis");
            to.count(millis(holder.expires_at));
        }
    }
}

/// What a tenant has used: a map for each rule, action and period.
pub(crate) fn usage(tenant: &str, told: &Usage, to: &mut Reply<'_>) {
    to.map(3);
    to.text("tenant");
    to.text(tenant);
    to.text("truncated");
    to.truth(told.is_cut);
    to.text("usage");
    to.list(told.rows.len());
    for row in &told.rows {
        to.map(10);
        for (name, text) in [
            ("ruleId", &row.rule),
            ("allowance", &row.allowance),
            ("action", &row.action),
        ] {
            to.text(name);
            to.text(text);
        }
        for (name, time) in [
            ("startsAtEpochMillis", row.period.start),
            ("endsAtEpochMillis", row.period.end),
        ] {
            to.text(name);
            to.count(millis(time));
        }
        for (name, amount) in [
            ("used", row.used),
            ("reserved", row.reserved),
            ("granted", row.granted),
            ("corrections", row.corrections),
        ] {
            to.text(name);
            to.integer(amount);
        }
        to.text("requests");
        to.count(row.requests);
    }
}

fn put_outcome(decision: Option<&Decision>, to: &mut Reply<'_>) {
    match decision {
        Some(decision) => put_decision(decision, to),
        None => {
            to.text("allowed");
            to.truth(true);
        }
    }
}

fn put_reservation(hold: &Hold, to: &mut Reply<'_>) {
    to.text("id");
    to.text(&hold.id.to_string());
    to.text("state");
    to.text(state(hold.state));
    to.text("cost");
    to.count(hold.units);
    to.text("actual");
    to.optional(hold.actual, Reply::count);
    to.text("uncharged");
    to.count(hold.uncharged);
    to.text("expiresAtEpochMillis");
    to.count(millis(hold.expires_at));
}

fn put_lease(lease: &Hold, to: &mut Reply<'_>) {
    to.text("id");
    to.text(&lease.id.to_string());
    to.text("state");
    to.text(lease_state(lease.state));
    to.text("owner");
    to.text(&lease.owner);
    to.text("fence");
    to.count(lease.fence);
    to.text("expiresAtEpochMillis");
    to.count(millis(lease.expires_at));
}
