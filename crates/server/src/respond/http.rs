//! Answers as HTTP responses: status, header fields and a JSON body.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use tollgate::{AcquireOutcome, Decision, ReserveOutcome, RuleSet};
use tollgate_config::{AnswerForm, DenialBody, Headers};

use super::answers::{
    Both, DecisionBody, DecisionsBody, HoldersBody, LeaseBody, NewLeaseBody, ProblemBody,
    ReservationBody, TenantUsageBody, VerdictBody,
};
use super::denial::{denial, status};
use super::denial_body;
use super::fields::{Fields, write_retry_after};
use super::minimal::{MinimalDecisionBody, MinimalDecisionsBody};
use super::preference::{preference, tell_applied};
use super::{JSON, PROBLEM, accepts_problem, json, report, with_body};
use crate::backend::Answer;

/// Turns answers into responses, as the `headers` section of the config says.
pub(crate) struct Responder {
    fields: Fields,
    form: AnswerForm,
    problem_json: bool,
    denial_body: Option<Arc<DenialBody>>,
}

impl Responder {
    pub(crate) fn new(headers: &Headers, rules: &Arc<RuleSet>) -> Responder {
        Responder {
            fields: Fields::new(headers, rules),
            form: headers.answers,
            problem_json: headers.problem_json,
            denial_body: headers.denial_body.clone(),
        }
    }

    /// Makes the response to a question with these `headers`. The body of a denial is a template of the
    /// rule or of the config, if there is one. Otherwise it is a problem document (RFC 9457) if the client
    /// accepts that, or if the config says so.
    ///
    /// Answers to checks, peeks and refunds are minimal if the client prefers that, or if the config says so
    /// and the client does not prefer all of it. A denial with a template, or a problem document, stays as
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
            Answer::Decision(decision) if self.has_own_body(decision, headers) => {
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

    /// Returns whether a template or a problem document is the body of this decision.
    fn has_own_body(&self, decision: &Decision, headers: &HeaderMap) -> bool {
        !decision.is_allowed()
            && (self.problem_json
                || template(self.denial_body.as_ref(), decision).is_some()
                || accepts_problem(headers))
    }

    fn decision(&self, decision: &Decision, headers: &HeaderMap) -> Response {
        if decision.is_allowed() {
            let mut response = json(StatusCode::OK, JSON, &DecisionBody::new(decision));
            self.fields.write_to(response.headers_mut(), decision);
            return response;
        }
        self.denial(decision, headers, DecisionBody::new(decision))
    }

    /// Makes the response to a proxy that asks for one of its clients: 200 without a body, or a denial
    /// that the proxy can pass on. The denial shows only the denying rule, because the client must not
    /// learn how the limits are set up.
    pub(crate) fn verdict(&self, decision: &Decision, headers: &HeaderMap) -> Response {
        let denied = (!decision.is_allowed()).then(|| VerdictBody::new(decision));
        if let Some(body) = denied.flatten() {
            return self.denial(decision, headers, body);
        }
        let mut response = Response::default();
        *response.status_mut() = status(decision);
        self.fields.write_to(response.headers_mut(), decision);
        response
    }

    /// Makes the answer of the gateway to a request that is denied. A gRPC call gets a gRPC status.
    pub(crate) fn refusal(&self, decision: &Decision, headers: &HeaderMap) -> Response {
        if !is_grpc(headers) {
            return self.verdict(decision, headers);
        }
        let message = denial(decision).map(|(_, message)| message);
        let status = match status(decision) {
            StatusCode::FORBIDDEN => tonic::Code::PermissionDenied,
            StatusCode::SERVICE_UNAVAILABLE => tonic::Code::Unavailable,
            _ => tonic::Code::ResourceExhausted,
        };
        let status = tonic::Status::new(status, message.unwrap_or_default());
        let mut response = status.into_http::<Body>();
        self.fields.write_to(response.headers_mut(), decision);
        response
    }

    /// Adds the rate limit fields to an answer of an upstream. They replace those of the upstream.
    pub(crate) fn add_fields(&self, headers: &mut HeaderMap, decision: &Decision) {
        self.fields.replace_in(headers, decision);
    }

    /// Makes the response of a denial. `body` is the body if no template applies.
    fn denial(&self, decision: &Decision, headers: &HeaderMap, body: impl Serialize) -> Response {
        let status = status(decision);
        let template = template(self.denial_body.as_ref(), decision);
        let mut response = if let Some((content_type, body)) = template.and_then(|it| {
            Some((
                it.content_type(),
                denial_body::render(it, decision, headers)?,
            ))
        }) {
            // The config accepts only valid media types.
            let content_type = HeaderValue::from_str(content_type);
            with_body(status, content_type.unwrap_or(JSON), body.into())
        } else if self.problem_json || accepts_problem(headers) {
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

/// Returns the template for the body of a denial: that of the denying rule, or that of the config.
pub(super) fn template<'d>(
    of_config: Option<&'d Arc<DenialBody>>,
    decision: &'d Decision,
) -> Option<&'d DenialBody> {
    let of_rule = decision.rule().and_then(|it| it.rule().denial_body());
    of_rule.or(of_config).map(|body| &**body)
}

/// Returns whether a request is a gRPC call.
fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(http::header::CONTENT_TYPE);
    content_type.is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"))
}

/// Makes a response that shows the state of the limits. Its status is always 200.
pub(crate) fn standing(decision: &Decision) -> Response {
    report(&DecisionBody::new(decision))
}
