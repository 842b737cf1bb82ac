//! Reservations, leases, their holders and usage as HTTP answers. Errors about them are in `error`.

use axum::response::Response;
use http::StatusCode;
use tollgate::{AcquireOutcome, Hold, HoldState, Holders, ReserveOutcome, Time};
use tollgate_ledger::UsageRow;

use super::JSON;
use super::decision::{Responder, object, put_decision};
use super::object::{List, Object};
use crate::usage::Usage;

/// How many holders of a rule are told at most.
pub(super) const MAX_LISTED: usize = 256;

impl Responder {
    /// The answer to a wish to reserve: 201 if it is held from now on, 200 if it was held before, else
    /// what is answered to a check.
    pub(crate) fn reserving(&self, told: &ReserveOutcome, accepts_problem: bool) -> Response {
        match told {
            ReserveOutcome::Held { hold, decision } => {
                let Some(decision) = decision else {
                    return reservation(hold);
                };
                let mut response = object(StatusCode::CREATED, JSON, |object| {
                    put_reservation(object, hold);
                    put_decision(object, decision);
                });
                self.write_fields(decision, &mut response);
                response
            }
            ReserveOutcome::Denied(decision) => self.decision(decision, accepts_problem),
        }
    }

    /// The answer to a wish for a lease: 201 if it is held, else what is answered to a check.
    pub(crate) fn acquiring(&self, told: &AcquireOutcome, accepts_problem: bool) -> Response {
        match told {
            AcquireOutcome::Granted {
                lease,
                token,
                decision,
            } => {
                let mut response = object(StatusCode::CREATED, JSON, |object| {
                    put_lease(object, lease);
                    object.put("token", token.to_string().as_str());
                    put_decision(object, decision);
                });
                self.write_fields(decision, &mut response);
                response
            }
            AcquireOutcome::Denied(decision) => self.decision(decision, accepts_problem),
        }
    }
}

/// How a reservation stands.
pub(crate) fn reservation(hold: &Hold) -> Response {
    object(StatusCode::OK, JSON, |object| put_reservation(object, hold))
}

/// How a lease stands.
pub(crate) fn lease(lease: &Hold) -> Response {
    object(StatusCode::OK, JSON, |object| put_lease(object, lease))
}

/// Who holds slots, by rule.
pub(crate) fn holders(rules: &[Holders]) -> Response {
    object(StatusCode::OK, JSON, |object| {
        let rules = List::new(rules.iter(), |rule: &Holders, object| {
            object.put("ruleId", rule.rule.as_str());
            object.put("limit", rule.limit);
            object.put("truncated", rule.holders.len() > MAX_LISTED);
            let listed = rule.holders.iter().take(MAX_LISTED);
            let holders = List::new(listed, |holder, object| {
                object.put("owner", &*holder.owner);
                object.put("fence", holder.fence);
                object.put("expiresAtEpochMillis", millis(holder.expires_at));
            });
            object.put("holders", holders);
        });
        object.put("rules", rules);
    })
}

/// What a tenant has used.
pub(crate) fn usage(tenant: &str, told: &Usage) -> Response {
    object(StatusCode::OK, JSON, |object| {
        object.put("tenant", tenant);
        object.put("truncated", told.is_cut);
        let rows = List::new(told.rows.iter(), |row: &UsageRow, object| {
            object.put("ruleId", &*row.rule);
            object.put("allowance", &*row.allowance);
            object.put("action", &*row.action);
            object.put("startsAtEpochMillis", millis(row.period.start));
            object.put("endsAtEpochMillis", millis(row.period.end));
            object.put("used", row.used);
            object.put("reserved", row.reserved);
            object.put("granted", row.granted);
            object.put("corrections", row.corrections);
            object.put("requests", row.requests);
        });
        object.put("usage", rows);
    })
}

/// Described by [`schema::Reservation`](super::schema::Reservation).
fn put_reservation(object: &mut Object<'_>, hold: &Hold) {
    object.put("id", hold.id.to_string().as_str());
    object.put("state", state(hold.state));
    object.put("cost", hold.units);
    object.put("actual", hold.actual);
    object.put("uncharged", hold.uncharged);
    object.put("expiresAtEpochMillis", millis(hold.expires_at));
}

/// Described by [`schema::Lease`](super::schema::Lease).
fn put_lease(object: &mut Object<'_>, lease: &Hold) {
    object.put("id", lease.id.to_string().as_str());
    object.put("state", lease_state(lease.state));
    object.put("owner", &*lease.owner);
    object.put("fence", lease.fence);
    object.put("expiresAtEpochMillis", millis(lease.expires_at));
}

/// What the state of a reservation is called.
pub(super) fn state(state: HoldState) -> &'static str {
    match state {
        HoldState::Reserved => "RESERVED",
        HoldState::Consumed => "CONSUMED",
        HoldState::Released => "RELEASED",
        HoldState::Expired => "EXPIRED",
    }
}

/// What the state of a lease is called: nothing of it is settled later.
pub(super) fn lease_state(state: HoldState) -> &'static str {
    match state {
        HoldState::Reserved => "HELD",
        HoldState::Consumed | HoldState::Released => "RELEASED",
        HoldState::Expired => "EXPIRED",
    }
}

/// The last millisecond that is not after it: whoever goes by that is not late.
pub(super) fn millis(time: Time) -> u64 {
    time.as_micros() / 1000
}
