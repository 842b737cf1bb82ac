//! Answers as HTTP responses: status, header fields and a JSON body.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use tollgate::{AcquireOutcome, Decision, ReserveOutcome, RuleSet};
use tollgate_config::Headers;

use super::answers::{
    Both, DecisionBody, DecisionsBody, HoldersBody, LeaseBody, NewLeaseBody, ProblemBody,
    ReservationBody, TenantUsageBody, VerdictBody,
};
use super::denial::{denial, status};
use super::fields::Fields;
use super::{JSON, PROBLEM, json, report};
use crate::backend::Answer;

/// Turns answers into responses, as the `headers` section of the config says.
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

    /// Makes the response to a question. A denial is a problem document (RFC 9457) if the client
    /// accepts that, or if the config says so.
    pub(crate) fn answer(&self, answer: &Answer, accepts_problem: bool) -> Response {
        match answer {
            Answer::Decision(decision) => self.decision(decision, accepts_problem),
            Answer::Standing(decision) => standing(decision),
            Answer::Batch(decisions) => report(&DecisionsBody::new(decisions)),
            Answer::Demands(demands) => report(&DecisionsBody::new(demands.decisions())),
            // 201 if the reservation is new, 200 if an earlier request made it.
            Answer::Reserve(ReserveOutcome::Held { hold, decision }) => match decision {
                None => report(&ReservationBody::new(hold)),
                Some(decision) => self.created(ReservationBody::new(hold), decision),
            },
            Answer::Acquire(AcquireOutcome::Granted {
                lease,
                token,
                decision,
            }) => {
                let (first, token) = (LeaseBody::new(lease), token.to_string());
                let second = NewLeaseBody { token };
                self.created(Both { first, second }, decision)
            }
            Answer::Reserve(ReserveOutcome::Denied(decision))
            | Answer::Acquire(AcquireOutcome::Denied(decision)) => {
                self.decision(decision, accepts_problem)
            }
            Answer::Reservation(hold) => report(&ReservationBody::new(hold)),
            Answer::Lease(lease) => report(&LeaseBody::new(lease)),
            Answer::Holders(rules) => report(&HoldersBody::new(rules)),
            Answer::Usage(usage) => report(&TenantUsageBody::new(usage)),
        }
    }

    fn decision(&self, decision: &Decision, accepts_problem: bool) -> Response {
        self.with_body(decision, accepts_problem, DecisionBody::new(decision))
    }

    /// Makes the response to a proxy that asks for one of its clients: 200 without a body, or a denial
    /// that the proxy can pass on. The denial shows only the denying rule, because the client must not
    /// learn how the limits are set up.
    pub(crate) fn verdict(&self, decision: &Decision, accepts_problem: bool) -> Response {
        let denied = (!decision.is_allowed()).then(|| VerdictBody::new(decision));
        if let Some(body) = denied.flatten() {
            return self.with_body(decision, accepts_problem, body);
        }
        let mut response = Response::default();
        *response.status_mut() = status(decision);
        self.fields.write_to(response.headers_mut(), decision);
        response
    }

    fn with_body(
        &self,
        decision: &Decision,
        accepts_problem: bool,
        body: impl Serialize,
    ) -> Response {
        let status = status(decision);
        let wants_problem = self.problem_json || accepts_problem;
        let mut response = if wants_problem && !decision.is_allowed() {
            let message = denial(decision).map(|(_, message)| message);
            let first = ProblemBody {
                r#type: "about:blank",
                title: status.canonical_reason().unwrap_or_default(),
                status: status.as_u16(),
                detail: message.unwrap_or_default(),
            };
            json(
                status,
                PROBLEM,
                &Both {
                    first,
                    second: body,
                },
            )
        } else {
            json(status, JSON, &body)
        };
        self.fields.write_to(response.headers_mut(), decision);
        response
    }

    fn created(&self, held: impl Serialize, decision: &Decision) -> Response {
        let (first, second) = (held, DecisionBody::new(decision));
        let mut response = json(StatusCode::CREATED, JSON, &Both { first, second });
        self.fields.write_to(response.headers_mut(), decision);
        response
    }
}

/// Makes a response that shows the state of the limits. Its status is always 200.
pub(crate) fn standing(decision: &Decision) -> Response {
    report(&DecisionBody::new(decision))
}
