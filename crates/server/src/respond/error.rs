//! Requests that could not be understood.

use axum::response::Response;
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use tollgate::{BadHoldName, PostError, StoreError};
use utoipa::ToSchema;

use super::held::HeldError;
use super::{JSON, json};
use crate::client::ClientError;
use crate::forward_auth::AuthError;
use crate::http::bounds::{MAX_BATCH, MAX_HEADERS};
use crate::keeper::Refused;
use crate::usage::UsageError;

/// Why a request was not even decided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the body is not a valid request: {0}")]
    Json(serde_json::Error),
    #[error("the body is not a JSON object; send one such as {like}")]
    NotAnObject { like: &'static str },
    #[error("a cost of {cost} is above the largest amount, {max}", max = tollgate_core::MAX_AMOUNT)]
    CostTooLarge { cost: u64 },
    #[error("the batch holds {count} requests; at most {MAX_BATCH}")]
    BatchTooLong { count: usize },
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
    #[error("the token has not the role {role}")]
    NotPermitted { role: &'static str },
    #[error("wrong method: the header Allow says which are right")]
    WrongMethod,
    #[error("the path is not UTF-8 text")]
    BadPath,
    #[error(transparent)]
    BadName(BadHoldName),
    #[error("this is no token of a lease: use the `token` as it was given")]
    BadToken,
    #[error("say for how long: `ttl`")]
    NoTtl,
    #[error(transparent)]
    Hold(#[from] HeldError),
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error("the server is shutting down")]
    Draining,
    #[error("this came to no end: the log says why; whether it was done is not known")]
    Internal,
    #[error("the query is not right: {0}")]
    Query(String),
    #[error(
        "there is no config file to read: the server runs with starter rules; start it with --config"
    )]
    NoConfigFile,
    #[error("the config is refused, and the one before stays in force: {0}")]
    BadConfig(Refused),
    #[error("this is no override: {0}")]
    BadOverride(Refused),
    #[error("this override would have no effect: {0}")]
    NoEffect(String),
    #[error("there are {max} overrides already: clear some first", max = crate::overrides::MAX_OVERRIDES)]
    TooManyOverrides,
    #[error("there is no override `{0}`; GET /v1/overrides names those that there are")]
    NoSuchOverride(String),
    #[error("overrides cannot be changed at the moment: the log says why")]
    OverridesUnavailable,
    #[error("the audit trail cannot be read: {0}")]
    Audit(std::io::Error),
    #[error(
        "no ledger is configured: add a `ledger` section to the config, and start the server again"
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
    #[error("the books cannot be asked now: {0}")]
    Ledger(StoreError),
    #[error("others read or compare the books already: try again when they are done")]
    LedgerBusy,
    #[error("this cannot be done now: {0}")]
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
            | RequestError::CostTooLarge { .. }
            | RequestError::BadPath
            | RequestError::BadName(_)
            | RequestError::BadToken
            | RequestError::NoTtl
            | RequestError::BodyCutShort => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            RequestError::BatchTooLong { .. } | RequestError::BodyTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE")
            }
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
            RequestError::Hold(error) => error.status(),
            RequestError::Usage(error) => error.status(),
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
    /// For people: what is wrong, and what would be right.
    message: String,
}

/// Why a config was not put in force.
#[derive(Serialize, ToSchema)]
#[schema(as = BadConfig)]
pub(crate) struct BadConfigBody<'a> {
    /// For programs: does not change.
    #[schema(example = "BAD_CONFIG")]
    code: &'static str,
    /// For people: the first of the problems.
    message: String,
    /// All of them, in the order of the file.
    problems: Vec<ProblemBody<'a>>,
}

/// One thing that is wrong with a config.
#[derive(Serialize, ToSchema)]
#[schema(as = ConfigProblem)]
pub(crate) struct ProblemBody<'a> {
    /// The file, with line and column where they are known.
    #[schema(example = "rules.yaml:12:7")]
    at: &'a str,
    message: &'a str,
    /// What would be right.
    #[schema(required = true)]
    help: Option<&'a str>,
}

fn bad_config(status: StatusCode, code: &'static str, error: &RequestError) -> Option<Response> {
    let (RequestError::BadConfig(refused) | RequestError::BadOverride(refused)) = error else {
        return None;
    };
    let problems = refused.problems.iter().map(|problem| ProblemBody {
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

/// The answer to a request that could not be understood.
pub(crate) fn error(error: &RequestError) -> Response {
    let (status, code) = error.status();
    if let Some(response) = bad_config(status, code, error) {
        return response;
    }
    if let RequestError::Hold(error) = error
        && let Some(body) = error.ended(code)
    {
        return json(status, JSON, &body);
    }
    let message = match error {
        // What exactly is wrong with the store is for the log, and no concern of clients.
        RequestError::Store(_) => "this cannot be done now: the store does not answer".to_owned(),
        _ => error.to_string(),
    };
    let mut response = json(status, JSON, &ErrorBody { code, message });
    let headers = response.headers_mut();
    match error {
        RequestError::Store(_) | RequestError::Ledger(_) | RequestError::LedgerBusy => {
            headers.insert(RETRY_AFTER, 5.into());
        }
        RequestError::Hold(error) if error.is_store() => {
            headers.insert(RETRY_AFTER, 5.into());
        }
        RequestError::Usage(UsageError::Ledger | UsageError::Busy) => {
            headers.insert(RETRY_AFTER, 5.into());
        }
        RequestError::NoToken => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        _ => {}
    }
    response
}
