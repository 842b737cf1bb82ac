//! The headers that the gateway removes from requests and answers, and those that it sets.
//!
//! Removed from a request: headers of the connection (and those that `Connection` names), `X-Tollgate-*`, and
//! the headers by which a client could pass for another one: `Forwarded`, `X-Forwarded-*`, `X-Real-IP` and the
//! callers, the priority and the fairness id of `subjects.headers`, unless a trusted proxy sent them. A name with
//! `_` counts as the same name
//! with `-`, because many servers treat both as one.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use smallvec::SmallVec;
use tollgate::Decision;
use tollgate_config::{Subjects, address_text};

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

/// Returns whether a header is about the connection.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == CONNECTION
        || *name == TRANSFER_ENCODING
        || *name == UPGRADE
        || *name == KEEP_ALIVE
        || *name == PROXY_CONNECTION
        || *name == HTTP2_SETTINGS
}

/// Removes the headers of a connection, those that `Connection` names, and those that `also` names. Most
/// requests have one or two of them: a look at each name costs less than a search for each of the others.
fn remove(headers: &mut HeaderMap, also: impl Fn(&HeaderName) -> bool) {
    let removed = |name: &&HeaderName| is_hop_by_hop(name) || also(name);
    let mut removed: SmallVec<[HeaderName; 8]> = headers.keys().filter(removed).cloned().collect();
    if removed.contains(&CONNECTION) {
        let named = headers.get_all(CONNECTION).iter().flat_map(tokens);
        // These words are no headers, or a header that is removed in any case.
        let named = named.filter(|it| {
            let words: [&[u8]; 3] = [b"keep-alive", b"close", b"upgrade"];
            !words.iter().any(|word| it.eq_ignore_ascii_case(word))
        });
        removed.extend(named.filter_map(|it| HeaderName::from_bytes(it).ok()));
    }
    for name in removed {
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
    pub(super) callers: &'a Callers,
}

/// The headers by which trusted proxies name the caller, the time and a test, with `-` in place of `_`.
#[derive(Clone)]
pub(super) struct Callers(Arc<[String]>);

impl Callers {
    pub(super) fn of(subjects: &Subjects) -> Callers {
        let headers = &subjects.headers;
        let named = [
            &headers.user,
            &headers.service_account,
            &headers.tenant,
            &headers.priority,
            &headers.fairness_id,
            &subjects.test_header,
            &subjects.time_header,
        ];
        let names = named.into_iter().flatten();
        Callers(names.map(|name| name.replace('_', "-")).collect())
    }
}

/// Turns the headers of a client's request into those of the request to an upstream.
pub(super) fn prepare(headers: &mut HeaderMap, sender: &Sender<'_>, upgrade: Option<HeaderValue>) {
    let wants_trailers = headers
        .get_all(TE)
        .iter()
        .flat_map(tokens)
        .any(|token| token.eq_ignore_ascii_case(b"trailers"));
    remove(headers, |name| {
        sender.callers.is_removed(name, sender.is_trusted)
    });
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
    tell_way(headers, sender);
}

impl Callers {
    /// Returns whether a header of a client is not passed on.
    fn is_removed(&self, name: &HeaderName, is_trusted: bool) -> bool {
        if *name == HOST
            || *name == CONTENT_LENGTH
            || *name == TE
            || *name == EXPECT
            || *name == PROXY_AUTHORIZATION
        {
            return true;
        }
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
        if is_trusted {
            return false;
        }
        name.starts_with(X_FORWARDED)
            || name == FORWARDED
            || name == X_REAL_IP
            || self.0.iter().any(|caller| caller == name)
    }

    /// Removes the trailers of a client that are not passed on: those that would be removed as headers.
    pub(super) fn remove_trailers(&self, trailers: &mut HeaderMap, is_trusted: bool) {
        remove(trailers, |name| self.is_removed(name, is_trusted));
    }
}

/// Joins the `Cookie` lines of a request. HTTP/2 clients may send a line for each cookie, and servers that
/// speak HTTP/1 expect one line (RFC 9113, 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for line in std::iter::once(second).chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    if let Ok(value) = HeaderValue::from_bytes(&joined) {
        headers.insert(COOKIE, value);
    }
}

/// Says that a request has an empty body, where servers expect a length: RFC 9110, 8.6. `has_length` tells whether
/// the client has sent one.
pub(super) fn tell_empty(headers: &mut HeaderMap, method: &Method, has_length: bool) {
    if has_length || matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
}

/// Sets the headers that name the client, its host and its scheme: `Forwarded`, `X-Forwarded-*` and `X-Real-IP`. Keeps
/// what a trusted proxy has sent.
fn tell_way(headers: &mut HeaderMap, sender: &Sender<'_>) {
    let host = sender.host.as_str();
    let is_token = |it: u8| it.is_ascii_alphanumeric() || b".-".contains(&it);
    let quote = if host.bytes().all(is_token) { "" } else { "\"" };
    let node = match sender.peer {
        IpAddr::V4(_) => ("", ""),
        IpAddr::V6(_) => ("\"[", "]\""),
    };
    let ((open, close), scheme) = (node, sender.scheme);
    let peer = address_text(sender.peer);
    let parts = [
        "for=", open, &peer, close, ";host=", quote, host, quote, ";proto=", scheme,
    ];
    let element = parts.concat();
    // An address consists of visible ASCII characters.
    let peer_value = HeaderValue::try_from(peer).unwrap_or(HeaderValue::from_static(""));
    let client_value = match sender.client == sender.peer {
        true => peer_value.clone(),
        false => address_value(sender.client),
    };
    // An authority and a scheme consist of visible ASCII characters.
    if let Ok(element) = HeaderValue::try_from(element) {
        append(headers, FORWARDED, element);
    }
    append(headers, X_FORWARDED_FOR, peer_value);
    if !headers.contains_key(X_FORWARDED_HOST) {
        set(headers, X_FORWARDED_HOST, host);
    }
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
    headers.insert(X_REAL_IP, client_value);
}

/// Returns an address as the value of a header.
fn address_value(address: IpAddr) -> HeaderValue {
    // An address consists of visible ASCII characters.
    HeaderValue::try_from(address_text(address)).unwrap_or(HeaderValue::from_static(""))
}

/// Appends an element to a header that is a list, and joins its lines into one.
fn append(headers: &mut HeaderMap, name: HeaderName, element: HeaderValue) {
    if !headers.contains_key(&name) {
        headers.insert(name, element);
        return;
    }
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

/// Tells the upstream that it should give a cheaper answer if it can.
pub(super) fn tell_degraded(headers: &mut HeaderMap) {
    headers.insert(X_TOLLGATE_DEGRADED, HeaderValue::from_static("true"));
}

/// Tells the upstream what was decided.
pub(super) fn tell_decision(headers: &mut HeaderMap, action: Option<&str>, decision: &Decision) {
    headers.insert(X_TOLLGATE_DECISION, HeaderValue::from_static("allowed"));
    if let Some(action) = action {
        set(headers, X_TOLLGATE_ACTION, action);
    }
    if decision.is_degraded() {
        tell_degraded(headers);
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
    let has_length = !is_chunked && !matches!(status.as_u16(), 204 | 304);
    let upgrade = match status {
        StatusCode::SWITCHING_PROTOCOLS => headers.get(UPGRADE).cloned(),
        _ => None,
    };
    remove(headers, |name| {
        *name == PROXY_AUTHENTICATE || (*name == CONTENT_LENGTH && !has_length)
    });
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
            client: "198.51.100.1".parse().unwrap(),
            host: &Authority::from_static("api.example.com:8000"),
            scheme: "https",
            is_trusted,
            callers: &Callers::of(&Subjects::default()),
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
