//! Decisions as HTTP responses: the status, the rate limit header fields, and the body of a denial.
//!
//! Every door of the server, and the Tower layer, answer with this crate. So a client sees the same words and
//! the same numbers everywhere. Nothing here decides anything.
//!
//! ```
//! use http::HeaderMap;
//! use tollgate::{Attributes, Limiter};
//! use tollgate_respond::Responder;
//!
//! let limiter = Limiter::from_yaml("rules.yaml", "
//! version: 1
//! rules: [{ id: api, per: [user], algorithm: fixed-window, limit: 1, window: 1h }]
//! ")?;
//! let responder = Responder::new(&limiter.active().config().headers, &limiter.rules());
//! let ann = Attributes::from([("user", "ann")]);
//! let answers = [0; 2].map(|_| responder.verdict(&limiter.check_now(&ann), &HeaderMap::new()));
//! assert_eq!(answers.each_ref().map(|it| it.status().as_u16()), [200, 429]);
//! assert_eq!(answers[0].headers()["ratelimit-remaining"], "0");
//! assert!(answers[1].headers().contains_key("retry-after"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`denial`]: code, message and status of a denial. [`denial_body`]: its body by a template.
//! * [`fields`]: the rate limit header fields.

mod bodies;
pub mod denial;
pub mod denial_body;
pub mod fields;
mod grpc;
#[cfg(feature = "openapi")]
pub mod schema;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;
use tollgate::{Decision, RuleSet};
use tollgate_config::{DenialBody, Headers};

pub use self::bodies::{Both, ErrorBody, ProblemBody, VerdictBody};
use self::denial::status;
use self::fields::Fields;

/// The media type of JSON.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The media type of problem documents.
pub const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Returns whether a service says with this status that it has too much to do. A proxy in front of a service that
/// hangs says so with 502 or 504.
///
/// ```
/// use http::StatusCode;
/// use tollgate_respond::is_overload;
///
/// let says_so = |code| is_overload(StatusCode::from_u16(code).unwrap());
/// assert!([429, 502, 503, 504].into_iter().all(says_so));
/// assert!(![200, 404, 500, 501].into_iter().any(says_so));
/// ```
#[must_use]
pub fn is_overload(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Turns decisions into responses, as the `headers` section of a config says.
pub struct Responder {
    fields: Fields,
    problem_json: bool,
    denial_body: Option<Arc<DenialBody>>,
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").finish_non_exhaustive()
    }
}

impl Responder {
    /// Prepares responses to decisions of `rules`.
    #[must_use]
    pub fn new(headers: &Headers, rules: &Arc<RuleSet>) -> Responder {
        Responder {
            fields: Fields::new(headers, rules),
            problem_json: headers.problem_json,
            denial_body: headers.denial_body.clone(),
        }
    }

    /// Adds the rate limit fields of a decision to the header of a response.
    pub fn write_fields(&self, headers: &mut HeaderMap, decision: &Decision) {
        self.fields.write_to(headers, decision);
    }

    /// Makes the response for a client with this request header: 200 without a body, or a denial. The denial
    /// shows only the denying rule, because the client must not learn how the limits are set up.
    #[must_use]
    pub fn verdict(&self, decision: &Decision, headers: &HeaderMap) -> Response<Bytes> {
        let denied = (!decision.is_allowed()).then(|| VerdictBody::new(decision));
        if let Some(body) = denied.flatten() {
            return self.denial(decision, headers, body);
        }
        let mut response = Response::default();
        *response.status_mut() = status(decision);
        self.write_fields(response.headers_mut(), decision);
        response
    }

    /// Adds the rate limit fields of a decision to a header that may have fields of another limiter. They
    /// replace those.
    pub fn replace_fields(&self, headers: &mut HeaderMap, decision: &Decision) {
        self.fields.replace_in(headers, decision);
    }

    /// Makes the response to a denied request. `headers` are those of the request: a gRPC call gets a gRPC status,
    /// and any other request the denial of [`verdict`](Self::verdict).
    #[must_use]
    pub fn deny(&self, decision: &Decision, headers: &HeaderMap) -> Response<Bytes> {
        let answer = self.verdict(decision, headers);
        if !grpc::is_call(headers) {
            return answer;
        }
        let message = denial::denial(decision).map(|(_, message)| message);
        grpc::status(answer, &message.unwrap_or_default())
    }

    /// Returns whether a template or a problem document is the body of this decision.
    #[must_use]
    pub fn has_own_body(&self, decision: &Decision, headers: &HeaderMap) -> bool {
        !decision.is_allowed()
            && (self.problem_json
                || template(self.denial_body.as_ref(), decision).is_some()
                || accepts_problem(headers))
    }

    /// Makes the response of a denial. The body is a template of the rule or of the config, if there is one.
    /// Otherwise it is `body`, as a problem document (RFC 9457) if the client accepts that or if the config
    /// says so.
    #[must_use]
    pub fn denial(
        &self,
        decision: &Decision,
        headers: &HeaderMap,
        body: impl Serialize,
    ) -> Response<Bytes> {
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
            let message = denial::denial(decision).map(|(_, message)| message);
            problem(status, message.unwrap_or_default(), body)
        } else {
            json(status, JSON, &body)
        };
        self.write_fields(response.headers_mut(), decision);
        response
    }
}

/// Returns the template for the body of a denial: that of the denying rule, or that of the config.
#[must_use]
pub fn template<'d>(
    of_config: Option<&'d Arc<DenialBody>>,
    decision: &'d Decision,
) -> Option<&'d DenialBody> {
    let of_rule = decision.rule().and_then(|it| it.rule().denial_body());
    of_rule.or(of_config).map(|body| &**body)
}

/// Makes a problem document with the members of `body`.
#[must_use]
pub fn problem(
    status: StatusCode,
    detail: std::borrow::Cow<'_, str>,
    body: impl Serialize,
) -> Response<Bytes> {
    let first = ProblemBody {
        r#type: "about:blank",
        title: status.canonical_reason().unwrap_or_default(),
        status: status.as_u16(),
        detail,
    };
    let second = body;
    json(status, PROBLEM, &Both { first, second })
}

/// Makes a response with a JSON body.
#[must_use]
pub fn json(
    status: StatusCode,
    content_type: HeaderValue,
    body: &impl Serialize,
) -> Response<Bytes> {
    let mut bytes = Vec::with_capacity(1024);
    match serde_json::to_writer(&mut bytes, body) {
        Ok(()) => with_body(status, content_type, bytes.into()),
        // Every body here becomes JSON: all keys of its maps are strings.
        Err(_) => with_body(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, Bytes::new()),
    }
}

fn with_body(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Returns whether the client accepts problem documents: it lists them in `Accept`, with a weight above
/// 0.
#[must_use]
pub fn accepts_problem(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(ACCEPT);
    let ranges = accept.iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next() == Some("application/problem+json");
        let is_zero = |weight: &str| weight.parse::<f32>() == Ok(0.0);
        named && !parts.any(|part| part.strip_prefix("q=").is_some_and(is_zero))
    })
}
