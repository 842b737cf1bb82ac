//! Requests that get an error instead of an answer.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use tollgate::{PostError, Saturated, StoreError};
pub(crate) use tollgate_respond::ErrorBody;
use utoipa::ToSchema;

use super::{JSON, json};
use crate::access::AccessError;
use crate::backend::AskError;
use crate::client::ClientError;
use crate::control::RejectedConfig;
use crate::door_metrics::Fault;
use crate::forward_auth::AuthError;
use crate::gateway::UpstreamError;
use crate::identity::{Accepted, IdentityError};
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
    #[error(
        "the server has no room for this request now: this connection, or all connections together, have \
         too many unfinished requests and unread answers; read your answers, send fewer requests at a \
         time, and try again"
    )]
    NoRoom,
    #[error("the request has more than {limit} headers")]
    TooManyHeaders { limit: usize },
    #[error("the request must have exactly one Host header")]
    NotOneHost,
    #[error(
        "this door does not know the host `{name}`: use localhost or the address that it listens on, \
         or add the name to {door}.hosts in the config"
    )]
    UnknownHost { name: String, door: &'static str },
    #[error(
        "this door does not accept requests from web pages of {origin}; to allow them, add the origin to \
         {door}.origins in the config"
    )]
    ForeignOrigin { origin: String, door: &'static str },
    #[error(
        "no such path; there are POST /v1/check, /v1/check/batch, /v1/peek, /v1/refund, /v1/report, \
         /v1/reservations, /v1/reservations/{{id}}/commit, /v1/reservations/{{id}}/release, \
         /v1/reservations/{{id}}/extend, /v1/leases, /v1/leases/{{id}}/renew, /v1/leases/holders, \
         DELETE /v1/leases/{{id}}, GET /v1/reservations/{{id}}, /v1/usage/{{tenant}}, /healthz, \
         /readyz, /metrics, /openapi.json and, for proxies, /auth"
    )]
    NoSuchPath,
    #[error(
        "no such path; there are POST /v1/explain, /v1/peek, /v1/advise, /v1/reset, /v1/refund, /v1/reload, /v1/rollback, \
         /v1/overrides, /v1/overrides/preview, /v1/overrides/restore, /v1/blocks, /v1/blocks/preview, /v1/blocks/remove, /v1/denials, /v1/ledger/corrections, /v1/ledger/grants, /v1/ledger/reconcile, DELETE /v1/overrides, /v1/blocks and GET /v1/rules, \
         /v1/rules/{{rule}}, /v1/rules/{{rule}}/subjects, /v1/candidates, /v1/overrides, /v1/blocks, /v1/config/versions, /v1/config/versions/{{version}}, /v1/config/diff, /v1/audit, /v1/denials, /v1/overview, /v1/live, /v1/fleet, /v1/ledger, /v1/ledger/usage, /v1/ledger/quotas, /v1/ledger/burndown, /v1/ledger/entries, /metrics, /healthz, /readyz, /ui, /openapi.json"
    )]
    NoSuchAdminPath,
    #[error("this needs a token: send `Authorization: Bearer …`")]
    NoToken,
    #[error(
        "the request lacks the token of the proxy: configure the proxy to send `Tollgate-Token: …`"
    )]
    NoProxyToken,
    #[error("this token lacks the `{role}` role")]
    NotPermitted { role: &'static str },
    #[error(transparent)]
    Access(AccessError),
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
    #[error("there is no rule `{0}`; GET /v1/rules lists them")]
    NoSuchRule(String),
    #[error("there is no override `{0}`; GET /v1/overrides lists them")]
    NoSuchOverride(String),
    #[error("{0}")]
    BadSubject(crate::overrides::OverrideError),
    #[error("there are already {max} blocks: unblock some first, or block a network", max = crate::overrides::MAX_BLOCKS)]
    TooManyBlocks,
    #[error("this subject is not blocked; GET /v1/blocks lists the blocks")]
    NotBlocked,
    #[error("{0}")]
    NoHashSecret(crate::overrides::OverrideError),
    #[error("there is no version `{0}`; GET /v1/config/versions lists them")]
    NoSuchVersion(String),
    #[error("{0}")]
    NotRestorable(String),
    #[error("the versions of the config cannot be read at the moment; the log has the cause")]
    VersionsUnavailable,
    #[error("overrides cannot be changed at the moment; the log has the cause")]
    OverridesUnavailable,
    #[error("the audit trail cannot be read: {0}")]
    Audit(std::io::Error),
    #[error("the server has no journal of denials")]
    NoJournal,
    #[error("too many clients follow this instance; retry, or use `/v1/overview`")]
    TooManyReaders,
    #[error("the journal of denials cannot be read: {0}")]
    Journal(std::io::Error),
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
    // The error names the ledger or the store.
    #[error("{0}; try again later")]
    Ledger(StoreError),
    #[error("too many concurrent ledger queries; retry")]
    LedgerBusy,
    // The details are only in the log, because clients do not need them.
    #[error("the store does not answer; try again later")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the host of the request is not valid, or its target and its Host header differ")]
    BadHost,
    #[error("the gateway does not open tunnels: CONNECT is not supported")]
    Connect,
    #[error("no route leads to a service for this request")]
    NoRoute,
    #[error("the body is not a JSON object")]
    NotJson,
    #[error("the value of {name} in the request is too long")]
    LongField { name: String },
    #[error("too many requests wait for their turn; try again")]
    TooManyWaiting,
    #[error(transparent)]
    Saturated(Saturated),
    #[error(transparent)]
    Upstream(UpstreamError),
}

impl RequestError {
    /// Returns the HTTP status, and the code in the body.
    fn status(&self) -> (u16, &'static str) {
        match self {
            Self::Json(_)
            | Self::Query(_)
            | Self::NotAnObject { .. }
            | Self::BadPosting(_)
            | Self::BadText(_)
            | Self::BadSubject(_)
            | Self::BadPath
            | Self::NotOneHost
            | Self::BadHost
            | Self::NotJson
            | Self::LongField { .. }
            | Self::BodyCutShort => (400, "BAD_REQUEST"),
            Self::Question(BadQuestion::LongBatch { .. }) => (413, "TOO_LARGE"),
            Self::Question(_) => (400, "BAD_REQUEST"),
            Self::Access(error) => {
                let (status, code, ..) = error.codes();
                (status, code)
            }
            Self::NoToken | Self::NoProxyToken => (401, "NO_TOKEN"),
            Self::NotPermitted { .. } => (403, "NOT_PERMITTED"),
            Self::UnknownHost { .. } => (403, "UNKNOWN_HOST"),
            Self::ForeignOrigin { .. } => (403, "FOREIGN_ORIGIN"),
            Self::NoSuchPath | Self::NoSuchAdminPath => (404, "NOT_FOUND"),
            Self::NoSuchRule(_) => (404, "NO_SUCH_RULE"),
            Self::NoSuchOverride(_) => (404, "NO_SUCH_OVERRIDE"),
            Self::NoSuchCounter(_) => (404, "NO_SUCH_COUNTER"),
            Self::NotBlocked => (404, "NOT_BLOCKED"),
            Self::NoSuchVersion(_) => (404, "NO_SUCH_VERSION"),
            Self::WrongMethod => (405, "WRONG_METHOD"),
            Self::BodyTooSlow => (408, "TOO_SLOW"),
            Self::NoConfigFile => (409, "NO_CONFIG_FILE"),
            Self::TooManyOverrides => (409, "TOO_MANY_OVERRIDES"),
            Self::TooManyBlocks => (409, "TOO_MANY_BLOCKS"),
            Self::NoHashSecret(_) => (409, "NO_HASH_SECRET"),
            Self::NotRestorable(_) => (409, "NOT_RESTORABLE"),
            Self::NoLedger => (409, "NO_LEDGER"),
            Self::NoJournal => (409, "NO_JOURNAL"),
            Self::TooManyReaders => (503, "TOO_MANY_READERS"),
            Self::PostedOtherwise(_) => (409, "POSTING_CONFLICT"),
            Self::BodyTooLarge { .. } => (413, "TOO_LARGE"),
            Self::BadConfig(_) => (422, "BAD_CONFIG"),
            Self::BadOverride(_) => (422, "BAD_OVERRIDE"),
            Self::NoEffect(_) => (422, "NO_EFFECT"),
            Self::TooManyHeaders { .. } => (431, "TOO_LARGE"),
            Self::Internal => (500, "INTERNAL"),
            Self::NoRoom => (503, "NO_ROOM"),
            Self::OverridesUnavailable => (503, "OVERRIDES_UNAVAILABLE"),
            Self::VersionsUnavailable => (503, "VERSIONS_UNAVAILABLE"),
            Self::Audit(_) => (503, "AUDIT_UNAVAILABLE"),
            Self::Journal(_) => (503, "JOURNAL_UNAVAILABLE"),
            Self::Ledger(_) => (503, "LEDGER_UNAVAILABLE"),
            Self::LedgerBusy => (503, "LEDGER_BUSY"),
            Self::Draining => (503, "SHUTTING_DOWN"),
            Self::Store(_) => (503, "STORE_UNAVAILABLE"),
            Self::Auth(AuthError::Untrusted { .. } | AuthError::NoPeer) => (403, "UNTRUSTED_PROXY"),
            Self::Auth(AuthError::PathTooLong { .. }) => (414, "TOO_LARGE"),
            Self::Auth(AuthError::Client(ClientError::TooLong(_))) => (431, "TOO_LARGE"),
            Self::Client(ClientError::TooLong(_)) => (431, "TOO_LARGE"),
            Self::Auth(_) | Self::Client(_) => (400, "BAD_REQUEST"),
            Self::NoRoute => (404, "NO_ROUTE"),
            Self::Connect => (405, "WRONG_METHOD"),
            Self::TooManyWaiting => (503, "QUEUE_FULL"),
            Self::Saturated(_) => (503, "UPSTREAM_SATURATED"),
            Self::Upstream(UpstreamError::Busy | UpstreamError::ClientBusy) => {
                (503, "UPSTREAM_BUSY")
            }
            Self::Upstream(UpstreamError::TimedOut) => (504, "UPSTREAM_TIMEOUT"),
            Self::Upstream(UpstreamError::Unreachable) => (502, "UPSTREAM_UNREACHABLE"),
            Self::Upstream(UpstreamError::BadAnswer) => (502, "UPSTREAM_FAILED"),
            Self::Upstream(UpstreamError::Body(_)) => (400, "BAD_REQUEST"),
            Self::Ask(error) => {
                let (status, code, ..) = error.codes();
                (status, code)
            }
            Self::Identity(error) => match error {
                IdentityError::Several | IdentityError::Repeated(_) => (400, "BAD_REQUEST"),
                IdentityError::BadHeader(_) => (431, "TOO_LARGE"),
                IdentityError::Missing(_) => (401, "NO_CREDENTIALS"),
                IdentityError::Token(_) => (401, "BAD_TOKEN"),
                IdentityError::ApiKey(_) => (401, "BAD_API_KEY"),
                IdentityError::Scope { .. } => (403, "NOT_PERMITTED"),
                IdentityError::NoKeys => (503, "KEYS_UNAVAILABLE"),
            },
        }
    }
}

impl RequestError {
    /// Returns why the request is bad; `None` if the request is not at fault.
    fn fault(&self) -> Option<Fault> {
        Some(match self {
            // The body is JSON, but a value in it is wrong.
            Self::Json(error) if error.is_data() => Fault::Question,
            Self::Json(_) | Self::NotAnObject { .. } => Fault::Body,
            Self::Question(BadQuestion::LongBatch { .. })
            | Self::BodyTooLarge { .. }
            | Self::TooManyHeaders { .. }
            | Self::Auth(
                AuthError::PathTooLong { .. } | AuthError::Client(ClientError::TooLong(_)),
            ) => Fault::TooLarge,
            Self::Question(_)
            | Self::Query(_)
            | Self::BadPosting(_)
            | Self::BadText(_)
            | Self::BadConfig(_)
            | Self::BadOverride(_)
            | Self::BadSubject(_)
            | Self::NoEffect(_)
            | Self::BadPath => Fault::Question,
            Self::Ask(error) if error.codes().0 == 400 => Fault::Question,
            Self::BodyCutShort => Fault::CutShort,
            Self::BodyTooSlow => Fault::TooSlow,
            Self::NoRoom => Fault::NoRoom,
            Self::NotOneHost | Self::BadHost | Self::UnknownHost { .. } => Fault::Host,
            Self::ForeignOrigin { .. } => Fault::Origin,
            Self::NoSuchPath | Self::NoSuchAdminPath | Self::WrongMethod => Fault::Unknown,
            Self::NoToken | Self::NoProxyToken | Self::NotPermitted { .. } | Self::Access(_) => {
                Fault::Token
            }
            Self::Auth(AuthError::Untrusted { .. } | AuthError::NoPeer) => Fault::UntrustedProxy,
            Self::Identity(IdentityError::NoKeys) => return None,
            Self::Identity(_) => Fault::Token,
            Self::Client(ClientError::TooLong(_)) => Fault::TooLarge,
            Self::Auth(_) | Self::Client(_) => Fault::Header,
            Self::NotJson => Fault::Body,
            Self::LongField { .. } => Fault::Question,
            Self::NoRoute | Self::Connect => Fault::Unknown,
            Self::Upstream(UpstreamError::Body(_)) => Fault::Body,
            Self::Ask(_)
            | Self::Draining
            | Self::Internal
            | Self::NoConfigFile
            | Self::TooManyOverrides
            | Self::NoSuchRule(_)
            | Self::NoSuchOverride(_)
            | Self::TooManyBlocks
            | Self::NotBlocked
            | Self::NoHashSecret(_)
            | Self::NoSuchVersion(_)
            | Self::NotRestorable(_)
            | Self::VersionsUnavailable
            | Self::NoJournal
            | Self::TooManyReaders
            | Self::Journal(_)
            | Self::OverridesUnavailable
            | Self::Audit(_)
            | Self::NoLedger
            | Self::NoSuchCounter(_)
            | Self::PostedOtherwise(_)
            | Self::Ledger(_)
            | Self::LedgerBusy
            | Self::TooManyWaiting
            | Self::Saturated(_)
            | Self::Upstream(_)
            | Self::Store(_) => return None,
        })
    }
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

/// Makes the response to a request that has no answer. The response has the fault of the request in its
/// extensions, where the connection finds and counts it.
pub(crate) fn error(error: &RequestError) -> Response {
    let mut response = response(error);
    if let Some(fault) = error.fault() {
        response.extensions_mut().insert(fault);
    }
    response
}

fn response(error: &RequestError) -> Response {
    let (status, code) = error.status();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let message = error.to_string();
    if let RequestError::BadConfig(rejected) | RequestError::BadOverride(rejected) = error {
        let problems = rejected.problems.iter().map(|problem| ConfigProblemBody {
            at: &problem.at,
            message: &problem.message,
            help: problem.help.as_deref(),
        });
        let body = BadConfigBody {
            code,
            message,
            problems: problems.collect(),
        };
        return json(status, JSON, &body);
    }
    if let RequestError::Ask(error) = error
        && let Some(body) = error.ended(code)
    {
        return json(status, JSON, &body);
    }
    if let RequestError::Identity(error) = error {
        return unidentified(error, status, ErrorBody { code, message });
    }
    let mut response = json(status, JSON, &ErrorBody { code, message });
    let headers = response.headers_mut();
    match error {
        RequestError::Store(_)
        | RequestError::Ledger(_)
        | RequestError::LedgerBusy
        | RequestError::NoRoom => {
            headers.insert(RETRY_AFTER, 5.into());
        }
        RequestError::TooManyWaiting | RequestError::Upstream(UpstreamError::Busy) => {
            headers.insert(RETRY_AFTER, 1.into());
        }
        RequestError::Saturated(saturated) => {
            headers.insert(RETRY_AFTER, saturated.retry_after.as_secs_ceil().into());
        }
        RequestError::Ask(_) if status == StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(RETRY_AFTER, 5.into());
        }
        RequestError::Access(AccessError::TooManyWrong(retry_after)) => {
            headers.insert(RETRY_AFTER, retry_after.as_secs().max(1).into());
        }
        RequestError::NoToken
        | RequestError::NoProxyToken
        | RequestError::Access(AccessError::NoToken) => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        RequestError::Access(AccessError::NotPermitted(scope)) => {
            let challenge = format!(
                "Bearer error=\"insufficient_scope\", scope=\"{}\"",
                scope.name()
            );
            if let Ok(challenge) = HeaderValue::from_str(&challenge) {
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
        }
        _ => {}
    }
    response
}

/// Makes the response to a request whose caller is not known: a problem document (RFC 9457), and a
/// challenge that says which credentials are accepted (RFC 6750).
fn unidentified(error: &IdentityError, status: StatusCode, body: ErrorBody) -> Response {
    let described = |code: &str| {
        let message = &body.message;
        format!("Bearer error=\"{code}\", error_description=\"{message}\"")
    };
    // A client that sent no token, or an API key, learns only how to send credentials (RFC 6750).
    let scheme = |accepted: &Accepted| match &accepted.header {
        Some(header) if !accepted.bearer => format!("ApiKey header=\"{header}\""),
        _ => "Bearer".to_owned(),
    };
    let challenge = match error {
        IdentityError::Missing(accepted) | IdentityError::ApiKey(accepted) => {
            Some(scheme(accepted))
        }
        IdentityError::Token(_) => Some(described("invalid_token")),
        IdentityError::Scope { scope } => Some(format!(
            "{}, scope=\"{scope}\"",
            described("insufficient_scope")
        )),
        IdentityError::Several | IdentityError::Repeated(_) | IdentityError::BadHeader(_) => {
            Some(described("invalid_request"))
        }
        IdentityError::NoKeys => None,
    };
    let detail = body.message.clone().into();
    let mut response = tollgate_respond::problem(status, detail, body).map(Body::from);
    let headers = response.headers_mut();
    match challenge.map(|it| HeaderValue::from_str(&it)) {
        Some(Ok(challenge)) => {
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
        // Every message is printable.
        Some(Err(_)) => {}
        None => {
            headers.insert(RETRY_AFTER, 5.into());
        }
    }
    response
}
