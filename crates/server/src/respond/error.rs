//! Requests that get an error instead of an answer.

use axum::response::Response;
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use tollgate::{PostError, StoreError};
use utoipa::ToSchema;

use super::{JSON, json};
use crate::backend::AskError;
use crate::client::ClientError;
use crate::control::RejectedConfig;
use crate::forward_auth::AuthError;
use crate::http::bounds::MAX_HEADERS;
use crate::question::BadQuestion;

/// Why a request was not decided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the body is not a valid request: {0}")]
    Json(serde_json::Error),
    #[error("the body is not a JSON object; send one such as {like}")]
    NotAnObject { like: &'static str },
    #[error(transparent)]
    Question(#[from] BadQuestion),
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("the body ended early")]
    BodyCutShort,
    #[error("the body took too long to arrive")]
    BodyTooSlow,
    #[error("the request has more than {MAX_HEADERS} headers")]
    TooManyHeaders,
    #[error(
        "no such path; there are POST /v1/check, /v1/check/batch, /v1/peek, /v1/refund, \
         /v1/reservations, /v1/reservations/{{id}}/commit, /v1/reservations/{{id}}/release, \
         /v1/reservations/{{id}}/extend, /v1/leases, /v1/leases/{{id}}/renew, /v1/leases/holders, \
         DELETE /v1/leases/{{id}}, GET /v1/reservations/{{id}}, /v1/usage/{{tenant}}, /healthz, \
         /readyz, /metrics, /openapi.json and, for proxies, /auth"
    )]
    NoSuchPath,
    #[error(
        "no such path; there are POST /v1/explain, /v1/peek, /v1/reset, /v1/refund, /v1/reload, \
         /v1/overrides, /v1/ledger/corrections, /v1/ledger/grants, /v1/ledger/reconcile, DELETE /v1/overrides and GET /v1/rules, \
         /v1/candidates, /v1/overrides, /v1/audit, /v1/ledger, /v1/ledger/usage, /v1/ledger/entries, /metrics, /healthz, /openapi.json"
    )]
    NoSuchAdminPath,
    #[error("this needs a token: send `Authorization: Bearer …`")]
    NoToken,
    #[error("this token lacks the `{role}` role")]
    NotPermitted { role: &'static str },
    #[error("wrong method: the header Allow lists the right ones")]
    WrongMethod,
    #[error("the path is not UTF-8 text")]
    BadPath,
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("the server is shutting down")]
    Draining,
    #[error("internal error; the change may have been applied, and the log has the cause")]
    Internal,
    #[error("bad query: {0}")]
    Query(String),
    #[error(
        "there is no config file to read: the server runs with starter rules; start it with --config"
    )]
    NoConfigFile,
    #[error("the config was rejected, and the previous one stays in force: {0}")]
    BadConfig(RejectedConfig),
    #[error("this is not a valid override: {0}")]
    BadOverride(RejectedConfig),
    #[error("this override would have no effect: {0}")]
    NoEffect(String),
    #[error("there are already {max} overrides: clear some first", max = crate::overrides::MAX_OVERRIDES)]
    TooManyOverrides,
    #[error("there is no override `{0}`; GET /v1/overrides lists them")]
    NoSuchOverride(String),
    #[error("overrides cannot be changed at the moment; the log has the cause")]
    OverridesUnavailable,
    #[error("the audit trail cannot be read: {0}")]
    Audit(std::io::Error),
    #[error(
        "no ledger is configured: add a `ledger` section to the config, and restart the server"
    )]
    NoLedger,
    #[error("{0}")]
    NoSuchCounter(PostError),
    #[error("{0}")]
    BadPosting(PostError),
    #[error("{0}")]
    PostedOtherwise(PostError),
    #[error("{0}")]
    BadText(String),
    #[error("the ledger does not answer: {0}")]
    Ledger(StoreError),
    #[error("too many concurrent ledger queries; retry")]
    LedgerBusy,
    // The details are in the log. Clients do not need them.
    #[error("the store does not answer; try again later")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Auth(#[from] AuthError),
}

impl RequestError {
    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            RequestError::Json(_)
            | RequestError::Query(_)
            | RequestError::NotAnObject { .. }
            | RequestError::BadPosting(_)
            | RequestError::BadText(_)
            | RequestError::BadPath
            | RequestError::BodyCutShort => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            RequestError::Question(BadQuestion::LongBatch { .. })
            | RequestError::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE"),
            RequestError::Question(_) => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            RequestError::TooManyHeaders => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "TOO_LARGE")
            }
            RequestError::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, "TOO_SLOW"),
            RequestError::NoSuchPath | RequestError::NoSuchAdminPath => {
                (StatusCode::NOT_FOUND, "NOT_FOUND")
            }
            RequestError::NoToken => (StatusCode::UNAUTHORIZED, "NO_TOKEN"),
            RequestError::NotPermitted { .. } => (StatusCode::FORBIDDEN, "NOT_PERMITTED"),
            RequestError::WrongMethod => (StatusCode::METHOD_NOT_ALLOWED, "WRONG_METHOD"),
            RequestError::NoConfigFile => (StatusCode::CONFLICT, "NO_CONFIG_FILE"),
            RequestError::BadConfig(_) => (StatusCode::UNPROCESSABLE_ENTITY, "BAD_CONFIG"),
            RequestError::BadOverride(_) => (StatusCode::UNPROCESSABLE_ENTITY, "BAD_OVERRIDE"),
            RequestError::NoEffect(_) => (StatusCode::UNPROCESSABLE_ENTITY, "NO_EFFECT"),
            RequestError::TooManyOverrides => (StatusCode::CONFLICT, "TOO_MANY_OVERRIDES"),
            RequestError::NoSuchOverride(_) => (StatusCode::NOT_FOUND, "NO_SUCH_OVERRIDE"),
            RequestError::OverridesUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "OVERRIDES_UNAVAILABLE")
            }
            RequestError::Audit(_) => (StatusCode::SERVICE_UNAVAILABLE, "AUDIT_UNAVAILABLE"),
            RequestError::NoLedger => (StatusCode::CONFLICT, "NO_LEDGER"),
            RequestError::NoSuchCounter(_) => (StatusCode::NOT_FOUND, "NO_SUCH_COUNTER"),
            RequestError::PostedOtherwise(_) => (StatusCode::CONFLICT, "POSTING_CONFLICT"),
            RequestError::Ledger(_) => (StatusCode::SERVICE_UNAVAILABLE, "LEDGER_UNAVAILABLE"),
            RequestError::LedgerBusy => (StatusCode::SERVICE_UNAVAILABLE, "LEDGER_BUSY"),
            RequestError::Draining => (StatusCode::SERVICE_UNAVAILABLE, "SHUTTING_DOWN"),
            RequestError::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL"),
            RequestError::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE"),
            RequestError::Auth(error) => auth_status(error),
            RequestError::Ask(error) => error.http_status(),
        }
    }
}

fn auth_status(error: &AuthError) -> (StatusCode, &'static str) {
    match error {
        AuthError::Untrusted { .. } | AuthError::NoPeer => {
            (StatusCode::FORBIDDEN, "UNTRUSTED_PROXY")
        }
        AuthError::PathTooLong { .. } => (StatusCode::URI_TOO_LONG, "TOO_LARGE"),
        AuthError::Client(ClientError::TooLong(_)) => {
            (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "TOO_LARGE")
        }
        AuthError::NotDescribed
        | AuthError::BothFamilies
        | AuthError::Missing(_)
        | AuthError::Repeated(_)
        | AuthError::NotText(_)
        | AuthError::BadMethod
        | AuthError::BadHost
        | AuthError::Client(ClientError::Repeated(_) | ClientError::NotText(_)) => {
            (StatusCode::BAD_REQUEST, "BAD_REQUEST")
        }
    }
}

/// Why a request was not decided.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody {
    /// For programs: does not change.
    #[schema(example = "BAD_REQUEST")]
    code: &'static str,
    /// For people: what is wrong, and how to fix it.
    message: String,
}

/// Why a config was rejected.
#[derive(Serialize, ToSchema)]
#[schema(as = BadConfig)]
pub(crate) struct BadConfigBody<'a> {
    /// For programs: does not change.
    #[schema(example = "BAD_CONFIG")]
    code: &'static str,
    /// For people: the first problem.
    message: String,
    /// All problems, in the order of the file.
    problems: Vec<ConfigProblemBody<'a>>,
}

/// One problem of a config.
#[derive(Serialize, ToSchema)]
#[schema(as = ConfigProblem)]
pub(crate) struct ConfigProblemBody<'a> {
    /// The file, with line and column if they are known.
    #[schema(example = "rules.yaml:12:7")]
    at: &'a str,
    message: &'a str,
    /// How to fix it.
    #[schema(required = true)]
    help: Option<&'a str>,
}

fn bad_config(status: StatusCode, code: &'static str, error: &RequestError) -> Option<Response> {
    let (RequestError::BadConfig(rejected) | RequestError::BadOverride(rejected)) = error else {
        return None;
    };
    let problems = rejected.problems.iter().map(|problem| ConfigProblemBody {
        at: &problem.at,
        message: &problem.message,
        help: problem.help.as_deref(),
    });
    let body = BadConfigBody {
        code,
        message: error.to_string(),
        problems: problems.collect(),
    };
    Some(json(status, JSON, &body))
}

/// The response to a request that has no answer.
pub(crate) fn error(error: &RequestError) -> Response {
    let (status, code) = error.status();
    if let Some(response) = bad_config(status, code, error) {
        return response;
    }
    if let RequestError::Ask(error) = error
        && let Some(body) = error.ended(code)
    {
        return json(status, JSON, &body);
    }
    let message = error.to_string();
    let mut response = json(status, JSON, &ErrorBody { code, message });
    let headers = response.headers_mut();
    match error {
        RequestError::Store(_) | RequestError::Ledger(_) | RequestError::LedgerBusy => {
            headers.insert(RETRY_AFTER, 5.into());
        }
        RequestError::Ask(_) if status == StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(RETRY_AFTER, 5.into());
        }
        RequestError::NoToken => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        _ => {}
    }
    response
}
