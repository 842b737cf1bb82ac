//! Where a decision, or a request that could not be understood, becomes a status, headers and a
//! body, or a reply to a Redis client. No other file does.

mod decision;
mod envoy;
mod error;
mod fields;
mod object;
mod reply;
pub(crate) mod schema;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use tollgate::RuleSet;
use utoipa::ToSchema;

use crate::audit::instant;
use crate::keeper::Status;

pub(crate) use self::decision::{Responder, decided};
pub(crate) use self::envoy::EnvoyResponder;
pub(crate) use self::error::{BadConfigBody, ErrorBody, ProblemBody, RequestError, error};
pub(crate) use self::reply::reply;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const CSV: HeaderValue = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
const LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const PROMETHEUS: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// The answer, or what was wrong with the question.
pub(crate) async fn answer(
    answered: impl Future<Output = Result<Response, RequestError>>,
) -> Response {
    let answered = answered.await;
    answered.unwrap_or_else(|error| self::error(&error))
}

/// What was asked for, as JSON.
pub(crate) fn report(body: &impl Serialize) -> Response {
    json(StatusCode::OK, JSON, body)
}

/// What is rendered already, as JSON.
pub(crate) fn rendered(body: Bytes) -> Response {
    with_body(StatusCode::OK, JSON, body.into())
}

/// What was asked for, as comma-separated values that are written while they are sent.
pub(crate) fn csv(body: Body) -> Response {
    with_body(StatusCode::OK, CSV, body)
}

/// The same, as a JSON object on each line.
pub(crate) fn lines(body: Body) -> Response {
    with_body(StatusCode::OK, LINES, body)
}

/// The answer to whether the server lives.
pub(crate) fn alive() -> Response {
    with_body(StatusCode::OK, PLAIN, "ok\n".into())
}

/// A page of metrics.
pub(crate) fn metrics(page: String) -> Response {
    with_body(StatusCode::OK, PROMETHEUS, page.into())
}

/// The server takes requests.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ready<'a> {
    /// `ready`.
    status: &'static str,
    /// Which rules are in force.
    config_version: &'a str,
    /// How many they are.
    rules: usize,
    /// Where they come from.
    config: ReadyConfig<'a>,
}

/// The config in force.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadyConfig<'a> {
    /// Names its text.
    version: &'a str,
    /// Since when it is in force.
    #[schema(format = "date-time")]
    loaded_at: String,
    /// Why the file as it is now is not in force: where, and what is wrong there. Absent if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    refused: Option<&'a str>,
    /// The sections of the file that say something new which a restart would bring about.
    needs_restart: &'a [&'static str],
}

pub(crate) fn ready(rules: &RuleSet, status: &Status) -> Response {
    let ready = Ready {
        status: "ready",
        config_version: rules.version(),
        rules: rules.rules().len(),
        config: ReadyConfig {
            version: rules.version(),
            loaded_at: instant(status.loaded_at),
            refused: status.refused.as_deref(),
            needs_restart: &status.needs_restart,
        },
    };
    json(StatusCode::OK, JSON, &ready)
}

fn json(status: StatusCode, content_type: HeaderValue, body: &impl Serialize) -> Response {
    let mut bytes = Vec::with_capacity(1024);
    match serde_json::to_writer(&mut bytes, body) {
        Ok(()) => with_body(status, content_type, bytes.into()),
        // Nothing that is answered here can fail to become JSON.
        Err(_) => with_body(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, Body::empty()),
    }
}

fn with_body(status: StatusCode, content_type: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Whether the client wants refusals to be problem documents: it lists them among what it
/// accepts, and not with a weight of 0.
pub(crate) fn accepts_problem(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(http::header::ACCEPT);
    let ranges = accept.iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next() == Some("application/problem+json");
        named && !parts.any(|part| part.strip_prefix("q=").is_some_and(is_zero))
    })
}

fn is_zero(weight: &str) -> bool {
    weight.parse::<f32>() == Ok(0.0)
}
