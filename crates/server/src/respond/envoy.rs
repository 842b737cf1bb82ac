//! Answers as messages of Envoy's rate limit service.

use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use prost_types::Duration;
use tollgate::{Decision, DemandError, Reason, RuleSet};
use tollgate_config::{DenialBody, Headers};
use tollgate_respond::template;
use tonic::Status;

use super::denial_body;
use super::fields::{Fields, Value};
use crate::backend::{Answer, AskError};
use crate::grpc::BadRequest;
use crate::grpc::proto::envoy::config::core::v3::HeaderValue as Header;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use crate::grpc::units::unit;

/// Turns decisions about descriptors into messages.
pub(crate) struct EnvoyResponder {
    fields: Fields,
    denial_body: Option<Arc<DenialBody>>,
}

impl EnvoyResponder {
    pub(crate) fn new(headers: &Headers, rules: &Arc<RuleSet>) -> EnvoyResponder {
        EnvoyResponder {
            fields: Fields::new(headers, rules),
            denial_body: headers.denial_body.clone(),
        }
    }

    /// Makes the response to a request with these `metadata`. It has a code for each descriptor, a code for
    /// all of them, and the header fields of the deciding rule. A denial with a template has a body.
    ///
    /// The response is an error if only rules without a failure policy deny, and only because their
    /// store fails. Envoy then applies its own failure policy.
    pub(crate) fn answer(
        &self,
        answer: &Result<Answer, AskError>,
        metadata: &HeaderMap,
    ) -> Result<RateLimitResponse, Status> {
        let together = match answer {
            Ok(Answer::Demands(together)) => together,
            Ok(_) => return Err(Status::internal("unexpected answer")),
            Err(error) => return Err(failed(error)),
        };
        let rules = together.decisions().iter().flat_map(Decision::rules);
        let mut denying = rules.filter(|rule| !rule.is_shadow() && !rule.is_allowed());
        let is_blocked = |it: &Decision| it.blocked_by().is_some();
        if !together.is_allowed()
            && !together.decisions().iter().any(is_blocked)
            && denying.all(|rule| rule.reason() == Some(Reason::StoreUnavailable))
        {
            return Err(Status::unavailable(
                "limits cannot be checked at the moment",
            ));
        }
        let mut headers = Vec::new();
        let mut raw_body = Vec::new();
        if let Some(decision) = together.deciding() {
            headers.reserve(self.fields.most(decision));
            self.fields.write(decision, |name, value| {
                let value = match value {
                    Value::Number(number) => number.to_string(),
                    Value::Text(text) => text,
                    // Structured fields are ASCII.
                    Value::Ready(value) => value.to_str().unwrap_or_default().to_owned(),
                };
                let key = name.as_str().to_owned();
                headers.push(Header { key, value });
            });
            // An allowed decision makes no body.
            if let Some(template) = template(self.denial_body.as_ref(), decision)
                && let Some(body) = denial_body::render(template, decision, metadata)
            {
                raw_body = body.into_bytes();
                // Envoy takes this in place of its own content type.
                headers.push(Header {
                    key: CONTENT_TYPE.as_str().to_owned(),
                    value: template.content_type().to_owned(),
                });
            }
        }
        Ok(RateLimitResponse {
            overall_code: code(together.is_allowed()) as i32,
            statuses: together.decisions().iter().map(status).collect(),
            response_headers_to_add: headers,
            raw_body,
        })
    }

    /// Denies all `descriptors`, because no rule applies to their domain.
    pub(crate) fn unknown_domain(descriptors: usize) -> RateLimitResponse {
        let over_limit = code(false) as i32;
        let status = DescriptorStatus {
            code: over_limit,
            ..DescriptorStatus::default()
        };
        RateLimitResponse {
            overall_code: over_limit,
            statuses: vec![status; descriptors],
            ..RateLimitResponse::default()
        }
    }

    /// Returns the status of a request that cannot be read.
    pub(crate) fn bad_request(error: &BadRequest) -> Status {
        Status::invalid_argument(error.to_string())
    }

    /// Makes the status for a message that is larger than its method allows.
    pub(crate) fn too_large(limit: usize) -> Status {
        Status::out_of_range(format!("the message is larger than {limit} bytes"))
    }

    /// Makes the status for a request for which the server has no memory left.
    pub(crate) fn no_room() -> Status {
        Status::resource_exhausted(
            "the server has no room for this request now: this connection, or all connections together, have \
             too many unfinished requests and unread answers; read your answers, send fewer requests at a \
             time, and try again",
        )
    }

    /// Returns the status of a request that took too long.
    pub(crate) fn too_slow() -> Status {
        Status::deadline_exceeded("the request took too long to arrive or to be decided")
    }
}

/// Returns the status of a request that cannot be decided.
fn failed(error: &AskError) -> Status {
    match error {
        AskError::Demand(DemandError::Numbers { demand, error, .. }) => Status::invalid_argument(
            format!("descriptor {demand} has a limit that cannot be applied: {error}"),
        ),
        AskError::Demand(error @ DemandError::TooMany { .. }) => {
            Status::invalid_argument(error.to_string())
        }
        // The details are only in the log, because clients do not need them.
        _ => Status::unavailable("hits cannot be given back at the moment"),
    }
}

fn code(allowed: bool) -> Code {
    if allowed { Code::Ok } else { Code::OverLimit }
}

fn status(decision: &Decision) -> DescriptorStatus {
    let mut status = DescriptorStatus {
        code: code(decision.is_allowed()) as i32,
        ..DescriptorStatus::default()
    };
    let Some(rule) = decision.rule() else {
        return status;
    };
    let Some(limit) = rule.limit() else {
        // Unlimited: report the largest number as remaining, as Envoy's own service does.
        if rule.is_allowed() {
            status.limit_remaining = u32::MAX;
        }
        return status;
    };
    // For a limit of 0, the reset is the end of its window, as in Envoy's own service.
    let reset = match limit {
        0 => rule.reset_after().or_else(|| rule.window_left()),
        _ => rule.reset_after(),
    };
    // Envoy takes an absent reset for 0. So all figures are left out if one of them is not known.
    if let (Some(remaining), Some(reset)) = (rule.remaining(), reset) {
        status.current_limit = Some(RateLimit {
            name: rule.rule().id().to_owned(),
            requests_per_unit: amount(limit),
            unit: unit(rule.window()) as i32,
        });
        status.limit_remaining = amount(remaining);
        // Whole seconds, rounded up: Envoy drops fractions.
        status.duration_until_reset = Some(Duration {
            seconds: i64::try_from(reset.as_secs_ceil()).unwrap_or(i64::MAX),
            nanos: 0,
        });
    }
    status
}

fn amount(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}
