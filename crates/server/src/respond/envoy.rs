//! Decisions as answers of Envoy's rate limit service.

use std::sync::Arc;

use crate::grpc::proto::envoy::config::core::v3::HeaderValue as Header;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use http::header::HeaderName;
use prost_types::Duration;
use tollgate::{BatchDecision, Decision, DemandError, Reason, RuleDecision, RuleSet};
use tollgate_config::Families;
use tonic::Status;

use super::fields::{Fields, Sink, Value};
use crate::grpc::BadRequest;
use crate::grpc::units::unit;

/// Turns decisions about descriptors into answers.
pub(crate) struct EnvoyResponder {
    fields: Fields,
}

impl EnvoyResponder {
    pub(crate) fn new(families: Families, rules: &Arc<RuleSet>) -> EnvoyResponder {
        EnvoyResponder {
            fields: Fields::new(families, rules),
        }
    }

    /// The answer to a request: a code for each descriptor and for all, and the fields of the rule
    /// that decides. Where only rules without a failure policy refuse, and only because their store
    /// fails, there is none: what Envoy does then is Envoy's to say.
    pub(crate) fn answer(&self, together: &BatchDecision) -> Result<RateLimitResponse, Status> {
        if !together.is_allowed() && is_unavailable(together) {
            return Err(Status::unavailable(
                "limits cannot be checked at the moment",
            ));
        }
        let mut headers = Headers(Vec::new());
        if let Some(decision) = together.deciding() {
            self.fields.write(decision, &mut headers);
        }
        Ok(RateLimitResponse {
            overall_code: code(together.is_allowed()) as i32,
            statuses: together.decisions().iter().map(status).collect(),
            response_headers_to_add: headers.0,
        })
    }

    /// The refusal of all `descriptors`, as no rule is for their domain.
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

    /// What is told of a request that cannot be understood.
    pub(crate) fn bad_request(error: &BadRequest) -> Status {
        Status::invalid_argument(error.to_string())
    }

    /// What is told of a request that cannot be decided.
    pub(crate) fn undecided(error: &DemandError) -> Status {
        match error {
            DemandError::Numbers { demand, error, .. } => Status::invalid_argument(format!(
                "descriptor {demand} has a limit that cannot be applied: {error}"
            )),
            DemandError::TooMany { .. } => Status::invalid_argument(error.to_string()),
            // What exactly is wrong with the store is for the log, and no concern of clients.
            DemandError::Store(_) => Status::unavailable("hits cannot be given back at the moment"),
        }
    }

    /// What is told of a request that took too long.
    pub(crate) fn too_slow() -> Status {
        Status::deadline_exceeded("the request took too long to arrive or to be decided")
    }
}

/// Whether nothing refuses but rules that do not say what to do when their store fails.
fn is_unavailable(together: &BatchDecision) -> bool {
    let rules = together.decisions().iter().flat_map(Decision::rules);
    let mut refusing = rules.filter(|rule| !rule.is_shadow() && !rule.is_allowed());
    refusing.all(|rule| rule.reason() == Some(Reason::StoreUnavailable))
}

fn code(allowed: bool) -> Code {
    if allowed { Code::Ok } else { Code::OverLimit }
}

fn status(decision: &Decision) -> DescriptorStatus {
    let mut status = DescriptorStatus {
        code: code(decision.is_allowed()) as i32,
        ..DescriptorStatus::default()
    };
    if let Some(rule) = decision.rule()
        && let (Some(limit), Some(remaining)) = (rule.limit(), rule.remaining())
    {
        status.current_limit = Some(RateLimit {
            name: rule.rule().id().to_owned(),
            requests_per_unit: amount(limit),
            unit: unit(rule.window()) as i32,
        });
        status.limit_remaining = amount(remaining);
        status.duration_until_reset = Some(until_reset(&rule));
    }
    status
}

fn amount(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

/// In whole seconds, rounded up: Envoy drops what is behind the point.
fn until_reset(rule: &RuleDecision<'_>) -> Duration {
    let seconds = rule.reset_after().as_secs_ceil();
    Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: 0,
    }
}

struct Headers(Vec<Header>);

impl Sink for Headers {
    fn expect(&mut self, fields: usize) {
        self.0.reserve(fields);
    }

    fn add(&mut self, name: HeaderName, value: Value<'_>) {
        let value = match value {
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text,
            // Structured fields are ASCII.
            Value::Ready(value) => value.to_str().unwrap_or_default().to_owned(),
        };
        self.0.push(Header {
            key: name.as_str().to_owned(),
            value,
        });
    }
}
