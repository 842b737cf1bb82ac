//! The headers that the gateway removes from requests and answers, and those that it sets.
//!
//! Removed from a request: headers of the connection (and those that `Connection` names), `X-Tollgate-*`, and
//! the headers by which a client could pass for another one: `Forwarded`, `X-Forwarded-*`, `X-Real-IP` and the
//! callers of `subjects.headers`, unless a trusted proxy sent them. A name with `_` counts as the same name
//! with `-`, because many servers treat both as one.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;
use tollgate::Decision;
use tollgate_config::Subjects;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const X_TOLLGATE_RULE: HeaderName = HeaderName::from_static("x-tollgate-rule");
const X_TOLLGATE_DECISION: HeaderName = HeaderName::from_static("x-tollgate-decision");
const X_TOLLGATE_LIMIT: HeaderName = HeaderName::from_static("x-tollgate-limit");
const X_TOLLGATE_REMAINING: HeaderName = HeaderName::from_static("x-tollgate-remaining");
const X_TOLLGATE_RESET: HeaderName = HeaderName::from_static("x-tollgate-reset");
const X_TOLLGATE_ACTION: HeaderName = HeaderName::from_static("x-tollgate-action");
const X_TOLLGATE_DEGRADED: HeaderName = HeaderName::from_static("x-tollgate-degraded");

/// The start of the headers that only the gateway sets.
const OWN: &str = "x-tollgate-";
const X_FORWARDED: &str = "x-forwarded-";

/// Returns the protocol that a client wants to change to; `None` if it does not, or may not. The change to
/// HTTP/2 is not passed on: the requests after it would pass the gateway unseen.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut connection = headers.get_all(CONNECTION).iter().flat_map(tokens);
    if !connection.any(|token| token.eq_ignore_ascii_case(b"upgrade")) {
        return None;
    }
    let mut wanted = headers.get_all(UPGRADE).iter();
    let (Some(value), None) = (wanted.next(), wanted.next()) else {
        return None;
    };
    let is_http2 = |token: &[u8]| token.to_ascii_lowercase().starts_with(b"h2");
    (!tokens(value).any(is_http2)).then(|| value.clone())
}

/// Splits a list.
fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let parts = value.as_bytes().split(|byte| *byte == b',');
    parts.map(<[u8]>::trim_ascii).filter(|it| !it.is_empty())
}

/// Removes the headers of a connection, and those that `Connection` names.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named = headers.get_all(CONNECTION).iter().flat_map(tokens);
        let named: SmallVec<[HeaderName; 4]> = named
            .filter_map(|it| HeaderName::from_bytes(it).ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in [
        KEEP_ALIVE,
        PROXY_CONNECTION,
        TRANSFER_ENCODING,
        UPGRADE,
        HTTP2_SETTINGS,
    ] {
        headers.remove(name);
    }
}

/// What the gateway knows of a request and tells its upstream.
pub(super) struct Sender<'a> {
    pub(super) peer: IpAddr,
    pub(super) is_trusted: bool,
    /// The client's address, behind trusted proxies.
    pub(super) client: IpAddr,
    pub(super) host: &'a Authority,
    pub(super) scheme: &'static str,
    pub(super) subjects: &'a Subjects,
}

/// Turns the headers of a client's request into those of the request to an upstream.
pub(super) fn prepare(headers: &mut HeaderMap, sender: &Sender<'_>, upgrade: Option<HeaderValue>) {
    let wants_trailers = headers
        .get_all(TE)
        .iter()
        .flat_map(tokens)
        .any(|token| token.eq_ignore_ascii_case(b"trailers"));
    remove_hop_by_hop(headers);
    for name in [TE, EXPECT, HOST, PROXY_AUTHORIZATION, CONTENT_LENGTH] {
        headers.remove(name);
    }
    let refused: SmallVec<[HeaderName; 8]> = headers
        .keys()
        .filter(|name| is_refused(name, sender))
        .cloned()
        .collect();
    for name in refused {
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
    tell_way(headers, sender);
}

/// Returns whether a header of the client is not passed on.
fn is_refused(name: &HeaderName, sender: &Sender<'_>) -> bool {
    let name = name.as_str();
    let hyphenated;
    let name = match name.contains('_') {
        true => {
            hyphenated = name.replace('_', "-");
            hyphenated.as_str()
        }
        false => name,
    };
    // Most names begin with another letter.
    if name.starts_with(OWN) {
        return true;
    }
    if sender.is_trusted {
        return false;
    }
    let callers = &sender.subjects.headers;
    let callers = [&callers.user, &callers.service_account, &callers.tenant];
    let is_caller = |caller: &&Option<String>| caller.as_deref() == Some(name);
    name.starts_with(X_FORWARDED)
        || name == FORWARDED
        || name == X_REAL_IP
        || sender.subjects.test_header.as_deref() == Some(name)
        || sender.subjects.time_header.as_deref() == Some(name)
        || callers.iter().any(is_caller)
}

/// Sets the headers that tell the way of a request. What a trusted proxy told is kept.
fn tell_way(headers: &mut HeaderMap, sender: &Sender<'_>) {
    let peer = sender.peer.to_string();
    let host = sender.host.as_str();
    let node = match sender.peer {
        IpAddr::V4(_) => peer.clone(),
        IpAddr::V6(_) => format!("\"[{peer}]\""),
    };
    let host_token = match host
        .bytes()
        .all(|it| it.is_ascii_alphanumeric() || b".-".contains(&it))
    {
        true => host.to_owned(),
        false => format!("\"{host}\""),
    };
    let element = format!("for={node};host={host_token};proto={}", sender.scheme);
    append(headers, FORWARDED, &element);
    append(headers, X_FORWARDED_FOR, &peer);
    for (name, value) in [(X_FORWARDED_HOST, host), (X_FORWARDED_PROTO, sender.scheme)] {
        if !headers.contains_key(&name) {
            set(headers, name, value);
        }
    }
    set(headers, X_REAL_IP, &sender.client.to_string());
}

/// Appends to a list in one line.
fn append(headers: &mut HeaderMap, name: HeaderName, element: &str) {
    let mut list = Vec::new();
    for line in headers.get_all(&name) {
        list.extend_from_slice(line.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(element.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Tells the upstream what was decided.
pub(super) fn tell_decision(headers: &mut HeaderMap, action: Option<&str>, decision: &Decision) {
    headers.insert(X_TOLLGATE_DECISION, HeaderValue::from_static("allowed"));
    if let Some(action) = action {
        set(headers, X_TOLLGATE_ACTION, action);
    }
    if decision.is_degraded() {
        headers.insert(X_TOLLGATE_DEGRADED, HeaderValue::from_static("true"));
    }
    let Some(rule) = decision.rule() else {
        return;
    };
    set(headers, X_TOLLGATE_RULE, rule.rule().id());
    if let (Some(limit), Some(remaining)) = (rule.limit(), rule.remaining()) {
        headers.insert(X_TOLLGATE_LIMIT, limit.into());
        headers.insert(X_TOLLGATE_REMAINING, remaining.into());
        if let Some(reset) = rule.reset_after() {
            headers.insert(X_TOLLGATE_RESET, reset.as_secs_ceil().into());
        }
    }
}

/// The attributes of a caller that the upstream is told, and their headers.
static CALLER: [(&str, HeaderName); 6] = [
    (
        "authentication",
        HeaderName::from_static("x-tollgate-authentication"),
    ),
    ("tenant", HeaderName::from_static("x-tollgate-tenant")),
    ("user", HeaderName::from_static("x-tollgate-user")),
    (
        "service_account",
        HeaderName::from_static("x-tollgate-service-account"),
    ),
    ("plan", HeaderName::from_static("x-tollgate-plan")),
    ("subject", HeaderName::from_static("x-tollgate-subject")),
];

/// Tells the upstream who calls, as verified credentials say.
pub(super) fn tell_identity<'i>(
    headers: &mut HeaderMap,
    attributes: impl Iterator<Item = (&'i str, &'i str)>,
) {
    for (name, value) in attributes {
        let known = CALLER.iter().find(|(attribute, _)| *attribute == name);
        // A value with control characters cannot be a header, and is left out.
        if let (Some((_, header)), Ok(value)) = (known, HeaderValue::from_bytes(value.as_bytes())) {
            headers.insert(header.clone(), value);
        }
    }
}

/// Tells the upstream that no rule was asked.
pub(super) fn tell_exempt(headers: &mut HeaderMap) {
    headers.insert(X_TOLLGATE_DECISION, HeaderValue::from_static("exempt"));
}

/// Turns the headers of an upstream's answer into those of the answer to the client.
pub(super) fn prepare_answer(headers: &mut HeaderMap, status: StatusCode) {
    let is_chunked = headers.contains_key(TRANSFER_ENCODING);
    let upgrade = match status {
        StatusCode::SWITCHING_PROTOCOLS => headers.get(UPGRADE).cloned(),
        _ => None,
    };
    remove_hop_by_hop(headers);
    headers.remove(PROXY_AUTHENTICATE);
    if is_chunked || matches!(status.as_u16(), 204 | 304) {
        headers.remove(CONTENT_LENGTH);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    fn prepared(lines: &[(&'static str, &str)], is_trusted: bool) -> Vec<String> {
        let mut headers = headers(lines);
        let sender = Sender {
            peer: "192.0.2.7".parse().unwrap(),
            is_trusted,
            client: "198.51.100.1".parse().unwrap(),
            host: &Authority::from_static("api.example.com:8000"),
            scheme: "https",
            subjects: &Subjects::default(),
        };
        prepare(&mut headers, &sender, None);
        shown(&headers)
    }

    const WAY: [&str; 5] = [
        "forwarded: for=192.0.2.7;host=\"api.example.com:8000\";proto=https",
        "x-forwarded-for: 192.0.2.7",
        "x-forwarded-host: api.example.com:8000",
        "x-forwarded-proto: https",
        "x-real-ip: 198.51.100.1",
    ];

    #[test]
    fn headers_of_the_connection_are_removed() {
        let lines = [
            ("connection", "close, X-Hop"),
            ("connection", "x-hop-two"),
            ("x-hop", "1"),
            ("x-hop-two", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eDp5"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
            ("expect", "100-continue"),
            ("host", "api.example.com:8000"),
            ("accept", "*/*"),
        ];
        let mut expected = vec!["accept: */*", "te: trailers"];
        expected.extend(WAY);
        expected.sort_unstable();
        assert_eq!(prepared(&lines, false), expected);
    }

    #[test]
    fn headers_that_a_client_invents_are_removed() {
        let lines = [
            ("forwarded", "for=10.0.0.1"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-user", "root"),
            ("x_forwarded_for", "10.0.0.1"),
            ("x-real-ip", "10.0.0.1"),
            ("x-user-id", "root"),
            ("x_user_id", "root"),
            ("x-tenant-id", "acme"),
            ("x-tollgate-decision", "allowed"),
            ("x_tollgate_tenant", "acme"),
        ];
        assert_eq!(prepared(&lines, false), WAY);
    }

    #[test]
    fn trusted_proxy_is_believed() {
        let lines = [
            ("forwarded", "for=10.0.0.1"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-proto", "http"),
            ("x-user-id", "ann"),
            ("x-tollgate-rule", "none"),
        ];
        let expected = [
            "forwarded: for=10.0.0.1, for=192.0.2.7;host=\"api.example.com:8000\";proto=https",
            "x-forwarded-for: 10.0.0.1, 10.0.0.2, 192.0.2.7",
            "x-forwarded-host: api.example.com:8000",
            "x-forwarded-proto: http",
            "x-real-ip: 198.51.100.1",
            "x-user-id: ann",
        ];
        assert_eq!(prepared(&lines, true), expected);
    }

    #[test]
    fn upgrades_are_passed_on_but_not_to_http2() {
        let wanted = |connection: &str, protocol: &str| {
            let headers = headers(&[("connection", connection), ("upgrade", protocol)]);
            upgrade(&headers).is_some()
        };
        assert!(wanted("keep-alive, Upgrade", "websocket"));
        assert!(wanted("upgrade", "foo/2"));
        assert!(!wanted("keep-alive", "websocket"));
        assert!(!wanted("upgrade, http2-settings", "h2c"));
        assert!(!wanted("upgrade", "websocket, H2C"));
    }

    #[test]
    fn length_of_an_answer_in_chunks_is_removed() {
        let mut chunked = headers(&[("transfer-encoding", "chunked"), ("content-length", "5")]);
        prepare_answer(&mut chunked, StatusCode::OK);
        assert!(chunked.is_empty());
        let mut plain = headers(&[("content-length", "5"), ("connection", "close")]);
        prepare_answer(&mut plain, StatusCode::OK);
        assert_eq!(shown(&plain), ["content-length: 5"]);
    }
}
