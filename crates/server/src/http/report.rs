//! `POST /v1/report`: a client tells how long a service took, which moves the limits of rules with `adaptive`.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::json;
use tollgate::{AdaptedLimit, LatencyReport, Snapshot, Span};
use tollgate_core::MAX_AMOUNT;
use utoipa::ToSchema;
use utoipa::openapi::path::OperationBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::body::{amount, attribute_map, parse_like, whole};
use super::hold_body::Duration;
use crate::describe::{Describe, taking};
use crate::question::AttributeMap;
use crate::respond::RequestError;

/// How long a service took for a request.
#[derive(Deserialize, ToSchema)]
#[schema(as = Report)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ReportBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
    #[serde(deserialize_with = "duration")]
    #[schema(schema_with = latency)]
    latency: Span,
    /// Whether the service failed, or said that it is overloaded.
    #[serde(default)]
    failed: bool,
    /// How many requests were in flight: the slots that the instance saw held unless given.
    #[serde(default, deserialize_with = "number")]
    #[schema(schema_with = amount, required = false)]
    in_flight: Option<u64>,
}

/// The limits that a report applies to.
#[derive(Serialize, ToSchema)]
#[schema(as = Reported)]
pub(super) struct ReportedBody {
    /// The limits of this instance now; empty if no rule with `adaptive` applies.
    limits: Vec<LimitBody>,
}

/// The limit of a rule now.
#[derive(Serialize, ToSchema)]
#[schema(as = AdaptedLimit)]
#[serde(rename_all = "camelCase")]
pub(super) struct LimitBody {
    rule_id: String,
    /// The limit of this instance.
    limit: u64,
    /// The limit of the rule, which is the largest.
    ceiling: u64,
    /// Whether nearly all of the limit is in use. A service that is told so can give cheaper answers.
    degraded: bool,
}

/// Passes a report on.
pub(super) fn report(snapshot: &Snapshot<'_>, body: &[u8]) -> Result<ReportedBody, RequestError> {
    const LIKE: &str = r#"{"attributes":{"service":"search"},"latency":"35ms"}"#;
    let body: ReportBody<'_> = parse_like(body, LIKE)?;
    let report = LatencyReport {
        latency: body.latency,
        failed: body.failed,
        in_flight: body.in_flight,
    };
    let attributes = body.attributes.attributes();
    let limits = snapshot.report(&attributes, &report).into_iter();
    let limits = limits.map(|it| {
        let AdaptedLimit {
            rule,
            limit,
            ceiling,
            degraded,
        } = it;
        LimitBody {
            rule_id: rule,
            limit,
            ceiling,
            degraded,
        }
    });
    Ok(ReportedBody {
        limits: limits.collect(),
    })
}

/// Reads a duration that has to be there.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let Duration(span) = Duration::deserialize(deserializer)?;
    span.ok_or_else(|| de::Error::custom("null is not a duration: write one such as \"35ms\""))
}

/// Reads a number of requests.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match whole(deserializer)? {
        Some(number) if number > MAX_AMOUNT => Err(de::Error::custom(format!(
            "{number} is above the largest amount, {MAX_AMOUNT}"
        ))),
        number => Ok(number),
    }
}

fn latency() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[0-9]{1,9}(us|ms|s)$"))
        .description(Some("How long the service took, such as `35ms`."))
        .into()
}

pub(super) fn describe() -> OperationBuilder {
    let example = json!({"attributes": {"service": "search"}, "latency": "35ms", "failed": false});
    taking::<ReportBody<'_>>("report", example)
        .summary(Some(
            "Tells how long a service took, which moves the limits of rules with `adaptive`.",
        ))
        .ok::<ReportedBody>("The limits that the report applies to.")
}
