//! The only place where an answer, or an error, becomes what a door sends.
//!
//! * `answers`: the JSON bodies, `minimal`: their short form. gRPC messages and RESP replies take their fields from them.
//! * `http`, `grpc`, `resp`, `envoy`: the wire forms. `preference`: whether a client prefers a short answer.
//! * `failure`, `error`: everything that is not an answer.
//!
//! Header fields, codes and messages of denials are in the crate `tollgate-respond`, which the Tower layer uses as
//! well.

pub(crate) mod answers;
mod envoy;
mod error;
mod failure;
mod grpc;
mod http;
pub(crate) mod minimal;
mod preference;
mod resp;

use ::http::StatusCode;
use ::http::header::{CONTENT_TYPE, HeaderValue};
use axum::body::{Body, Bytes};
use axum::response::Response;
use serde::Serialize;
use tollgate::RuleSet;
use tollgate_respond::{JSON, denial, denial_body, fields};
use utoipa::ToSchema;

use crate::audit::instant;
use crate::control::Status;
use crate::net::SharedPage;

pub(crate) use self::envoy::EnvoyResponder;
pub(crate) use self::error::{BadConfigBody, ConfigProblemBody, ErrorBody, RequestError, error};
pub(crate) use self::failure::EndedBody;
pub(crate) use self::grpc::FromAnswer;
pub(crate) use self::http::{Responder, standing};
pub(crate) use self::resp::reply;

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const CSV: HeaderValue = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
const LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const PROMETHEUS: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Waits for a response. Converts an error into a response.
pub(crate) async fn answer(
    answered: impl Future<Output = Result<Response, RequestError>>,
) -> Response {
    let answered = answered.await;
    answered.unwrap_or_else(|error| self::error(&error))
}

/// Makes a response with the status 200 and a JSON body.
pub(crate) fn report(body: &impl Serialize) -> Response {
    json(StatusCode::OK, JSON, body)
}

/// Makes a response with the status 200 from JSON that was rendered before.
pub(crate) fn rendered(body: Bytes) -> Response {
    shared(
        SharedPage::Kept,
        with_body(StatusCode::OK, JSON, body.into()),
    )
}

/// Marks a response whose body other responses share.
fn shared(page: SharedPage, mut response: Response) -> Response {
    response.extensions_mut().insert(page);
    response
}

/// Makes a response of comma-separated values. The body is made while it is sent.
pub(crate) fn csv(body: Body) -> Response {
    with_body(StatusCode::OK, CSV, body)
}

/// Makes a response with a JSON object on each line. The body is made while it is sent.
pub(crate) fn lines(body: Body) -> Response {
    with_body(StatusCode::OK, LINES, body)
}

/// Makes a response of server-sent events.
pub(crate) fn events(body: Body) -> Response {
    with_body(StatusCode::OK, EVENTS, body)
}

/// Makes the response of `/healthz`.
pub(crate) fn alive() -> Response {
    with_body(StatusCode::OK, PLAIN, "ok\n".into())
}

/// Makes a response with the metrics page.
pub(crate) fn metrics(page: Bytes) -> Response {
    let at = SharedPage::Rendered(page.as_ptr() as usize);
    shared(at, with_body(StatusCode::OK, PROMETHEUS, page.into()))
}

/// The server accepts requests.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ready<'a> {
    /// `ready`.
    status: &'static str,
    /// The version of the config in force.
    config_version: &'a str,
    /// How many rules this config has.
    rules: usize,
    /// Why the store cannot be used at the moment. Failure policies decide meanwhile. Absent if the store
    /// works.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    store_problem: Option<String>,
    /// Where the rules come from.
    config: ReadyConfig<'a>,
}

/// The config in force.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadyConfig<'a> {
    /// The version, made from the text of the file.
    version: &'a str,
    /// When the config was put in force.
    #[schema(format = "date-time")]
    loaded_at: String,
    /// Why the current file was rejected, with the position of the problem. Absent if the file is in
    /// force.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    refused: Option<&'a str>,
    /// Sections of the file whose changes need a restart.
    needs_restart: &'a [&'static str],
    /// The version of the file, if a rollback holds an older version in force instead. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    rolled_back_from: Option<&'a str>,
}

pub(crate) fn ready(rules: &RuleSet, store_problem: Option<String>, status: &Status) -> Response {
    report(&Ready {
        status: "ready",
        config_version: rules.version(),
        rules: rules.rules().len(),
        store_problem,
        config: ReadyConfig {
            version: rules.version(),
            loaded_at: instant(status.loaded_at),
            refused: status.refused.as_deref(),
            needs_restart: &status.needs_restart,
            rolled_back_from: status.rollback.as_ref().map(|it| it.instead_of.as_str()),
        },
    })
}

fn json(status: StatusCode, content_type: HeaderValue, body: &impl Serialize) -> Response {
    tollgate_respond::json(status, content_type, body).map(Body::from)
}

fn with_body(status: StatusCode, content_type: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
