//! Answers as HTTP responses: status, header fields and a JSON body.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use tollgate::{AcquireOutcome, Decision, ReserveOutcome, RuleSet};
use tollgate_config::{AnswerForm, Headers};

use super::answers::{
    Both, DecisionBody, DecisionsBody, HoldersBody, LeaseBody, NewLeaseBody, ReservationBody,
    TenantUsageBody,
};
use super::denial::status;
use super::fields::write_retry_after;
use super::minimal::{MinimalDecisionBody, MinimalDecisionsBody};
use super::preference::{preference, tell_applied};
use super::{JSON, json, report};
use crate::backend::Answer;

/// Turns answers into responses, as the `headers` section of the config says.
pub(crate) struct Responder {
    shared: tollgate_respond::Responder,
    form: AnswerForm,
}

impl Responder {
    pub(crate) fn new(headers: &Headers, rules: &Arc<RuleSet>) -> Responder {
        Responder {
            shared: tollgate_respond::Responder::new(headers, rules),
            form: headers.answers,
        }
    }

    /// Makes the response to a question with these `headers`. The body of a denial is a template of the
    /// rule or of the config, if there is one. Otherwise it is a problem document (RFC 9457) if the client
    /// accepts that, or if the config says so.
    ///
    /// Answers to checks, peeks and refunds are minimal if the client prefers that, or if the config says so
    /// and the client does not prefer the full form. A denial with a template, or a problem document, stays as
    /// it is.
    pub(crate) fn answer(&self, answer: &Answer, headers: &HeaderMap) -> Response {
        let in_form = |full: &dyn Fn() -> Response, minimal: &dyn Fn() -> Response| {
            let wanted = preference(headers);
            let form = wanted.unwrap_or(self.form);
            let mut response = match form {
                AnswerForm::Full => full(),
                AnswerForm::Minimal => minimal(),
            };
            if wanted.is_some() {
                tell_applied(response.headers_mut(), form);
            }
            response
        };
        match answer {
            Answer::Decision(decision) if self.shared.has_own_body(decision, headers) => {
                self.decision(decision, headers)
            }
            Answer::Decision(decision) => in_form(&|| self.decision(decision, headers), &|| {
                let body = MinimalDecisionBody::new(decision);
                let mut response = json(status(decision), JSON, &body);
                write_retry_after(response.headers_mut(), decision);
                response
            }),
            Answer::Standing(decision) => in_form(&|| standing(decision), &|| {
                report(&MinimalDecisionBody::new(decision))
            }),
            Answer::Batch(decisions) => {
                in_form(&|| report(&DecisionsBody::new(decisions)), &|| {
                    report(&MinimalDecisionsBody::new(decisions))
                })
            }
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
            | Answer::Acquire(AcquireOutcome::Denied(decision)) => self.decision(decision, headers),
            Answer::Reservation(hold) => report(&ReservationBody::new(hold)),
            Answer::Lease(lease) => report(&LeaseBody::new(lease)),
            Answer::Holders(rules) => report(&HoldersBody::new(rules)),
            Answer::Usage(usage) => report(&TenantUsageBody::new(usage)),
        }
    }

    fn decision(&self, decision: &Decision, headers: &HeaderMap) -> Response {
        if decision.is_allowed() {
            let mut response = json(StatusCode::OK, JSON, &DecisionBody::new(decision));
            self.shared.write_fields(response.headers_mut(), decision);
            return response;
        }
        let body = DecisionBody::new(decision);
        self.shared.denial(decision, headers, body).map(Body::from)
    }

    /// Makes the response to a proxy that asks for one of its clients: 200 without a body, or a denial
    /// that the proxy can pass on.
    pub(crate) fn verdict(&self, decision: &Decision, headers: &HeaderMap) -> Response {
        self.shared.verdict(decision, headers).map(Body::from)
    }

    /// Makes the answer of the gateway to a request that is denied. A gRPC call gets a gRPC status.
    pub(crate) fn deny(&self, decision: &Decision, headers: &HeaderMap) -> Response {
        self.shared.deny(decision, headers).map(Body::from)
    }

    /// Adds the rate limit fields to an answer of an upstream. They replace those of the upstream.
    pub(crate) fn add_fields(&self, headers: &mut HeaderMap, decision: &Decision) {
        self.shared.replace_fields(headers, decision);
    }

    fn created(&self, held: impl Serialize, decision: &Decision) -> Response {
        let (first, second) = (held, DecisionBody::new(decision));
        let mut response = json(StatusCode::CREATED, JSON, &Both { first, second });
        self.shared.write_fields(response.headers_mut(), decision);
        response
    }
}

/// Makes a response that shows the state of the limits. Its status is always 200.
pub(crate) fn standing(decision: &Decision) -> Response {
    report(&DecisionBody::new(decision))
}
