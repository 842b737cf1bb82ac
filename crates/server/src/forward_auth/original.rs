//! The request that a proxy asks about, as the proxy describes it.
//!
//! | proxy | describes it in |
//! |---|---|
//! | Traefik, Caddy | `X-Forwarded-Method`, `-Uri`, `-Host`, `-Proto` |
//! | nginx | `X-Original-Method`, `-URI` (or `-URL`), `-Host` (or `Host`), `-Proto` |
//! | Envoy (`ext_authz`) | the request itself, its path after `/auth`; `X-Forwarded-Proto` |
//!
//! A proxy passes on headers that it does not set, so the client can send those of the other
//! family. A request with both families is rejected, because one of them may come from the client.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, HeaderName};
use tollgate_config::{MAX_PATH, normal_path};

use super::AuthError;

const MAX_METHOD: usize = 32;
/// The longest host name, with a dot at its end.
const MAX_HOST: usize = 254;

/// The headers of a family.
struct Family {
    method: HeaderName,
    uri: HeaderName,
    /// The header with a whole URL instead of a path.
    url: Option<HeaderName>,
    host: HeaderName,
    proto: HeaderName,
}

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

static FORWARDED: Family = Family {
    method: HeaderName::from_static("x-forwarded-method"),
    uri: HeaderName::from_static("x-forwarded-uri"),
    url: None,
    host: HeaderName::from_static("x-forwarded-host"),
    proto: X_FORWARDED_PROTO,
};

static ORIGINAL: Family = Family {
    method: HeaderName::from_static("x-original-method"),
    uri: HeaderName::from_static("x-original-uri"),
    url: Some(HeaderName::from_static("x-original-url")),
    host: HeaderName::from_static("x-original-host"),
    proto: HeaderName::from_static("x-original-proto"),
};

/// A request as the client sent it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Original<'r> {
    pub(super) method: &'r str,
    /// The normalised path, without the query.
    pub(super) path: String,
    /// In lower case, without the port.
    pub(super) host: Option<Cow<'r, str>>,
    pub(super) scheme: Option<&'static str>,
}

impl<'r> Original<'r> {
    /// Reads the request that a proxy described at `/auth`, or below it.
    pub(super) fn read(parts: &'r Parts) -> Result<Original<'r>, AuthError> {
        match parts.uri.path().strip_prefix(super::PATH) {
            Some(path) if !path.is_empty() => Original::below(parts, path),
            _ => Original::in_headers(&parts.headers),
        }
    }

    /// The request itself is the original one, except for the start of its path.
    fn below(parts: &'r Parts, path: &'r str) -> Result<Original<'r>, AuthError> {
        let host = match parts.uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => one(&parts.headers, &http::header::HOST)?,
        };
        Ok(Original {
            method: method(parts.method.as_str())?,
            path: normal(path)?,
            host: host.map(self::host).transpose()?,
            scheme: one(&parts.headers, &X_FORWARDED_PROTO)?.and_then(scheme),
        })
    }

    fn in_headers(headers: &'r HeaderMap) -> Result<Original<'r>, AuthError> {
        let family = match (FORWARDED.describes(headers), ORIGINAL.describes(headers)) {
            (true, true) => return Err(AuthError::BothFamilies),
            (true, false) => &FORWARDED,
            (false, true) => &ORIGINAL,
            (false, false) => return Err(AuthError::NotDescribed),
        };
        let method = one(headers, &family.method)?;
        let method = method.ok_or_else(|| AuthError::Missing(family.method.clone()))?;
        let target = Target::of(family.target(headers)?);
        let named = match target.authority {
            Some(authority) => Some(authority),
            None => match one(headers, &family.host)? {
                // Several proxies make a list. The last value comes from the nearest proxy.
                Some(host) => host.rsplit(',').map(str::trim).next(),
                None => one(headers, &http::header::HOST)?,
            },
        };
        let scheme = match target.scheme {
            Some(scheme) => Some(scheme),
            None => {
                one(headers, &family.proto)?.and_then(|list| list.rsplit(',').map(str::trim).next())
            }
        };
        Ok(Original {
            method: self::method(method)?,
            path: normal(target.path)?,
            host: named.map(host).transpose()?,
            scheme: scheme.and_then(self::scheme),
        })
    }
}

impl Family {
    /// Whether these headers describe a request. Hosts and schemes do not: they are forwarded for
    /// other reasons as well.
    fn describes(&self, headers: &HeaderMap) -> bool {
        let names = [Some(&self.method), Some(&self.uri), self.url.as_ref()];
        let mut names = names.into_iter().flatten();
        names.any(|name| headers.contains_key(name))
    }

    /// The path or the URL of the request.
    fn target<'r>(&self, headers: &'r HeaderMap) -> Result<&'r str, AuthError> {
        let uri = one(headers, &self.uri)?;
        let url = match &self.url {
            Some(name) => one(headers, name)?,
            None => None,
        };
        match (uri, url) {
            (Some(_), Some(_)) => Err(AuthError::Repeated(self.uri.clone())),
            (Some(target), None) | (None, Some(target)) => Ok(target),
            (None, None) => Err(AuthError::Missing(self.uri.clone())),
        }
    }
}

/// A path, or a URL.
struct Target<'r> {
    scheme: Option<&'r str>,
    authority: Option<&'r str>,
    path: &'r str,
}

impl<'r> Target<'r> {
    fn of(uri: &'r str) -> Target<'r> {
        let uri = uri.split(['?', '#']).next().unwrap_or_default();
        match uri.split_once("://") {
            Some((scheme, rest)) if !uri.starts_with('/') => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                Target {
                    scheme: Some(scheme),
                    authority: Some(authority),
                    path,
                }
            }
            _ => Target {
                scheme: None,
                authority: None,
                path: uri,
            },
        }
    }
}

/// The single value of a header; `None` if it is missing or empty.
fn one<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Result<Option<&'r str>, AuthError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(AuthError::Repeated(name.clone()));
    }
    let value = std::str::from_utf8(value.as_bytes().trim_ascii());
    let value = value.map_err(|_| AuthError::NotText(name.clone()))?;
    Ok((!value.is_empty()).then_some(value))
}

fn method(text: &str) -> Result<&str, AuthError> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || text.len() > MAX_METHOD || !text.bytes().all(is_token) {
        return Err(AuthError::BadMethod);
    }
    Ok(text)
}

fn normal(path: &str) -> Result<String, AuthError> {
    normal_path(path.as_bytes()).ok_or(AuthError::PathTooLong { limit: MAX_PATH })
}

/// A host without its port, in lower case.
fn host(text: &str) -> Result<Cow<'_, str>, AuthError> {
    let (name, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let end = bracketed.find(']').ok_or(AuthError::BadHost)? + 2;
            text.split_at(end)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_host = |byte: u8| byte.is_ascii_graphic() && !b"/@,\"\\<>".contains(&byte);
    let is_right = !name.is_empty()
        && name.len() <= MAX_HOST
        && name.bytes().all(is_host)
        && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    if !is_right {
        return Err(AuthError::BadHost);
    }
    Ok(if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    })
}

/// A scheme of HTTP; `None` for others.
fn scheme(text: &str) -> Option<&'static str> {
    ["http", "https", "ws", "wss"]
        .into_iter()
        .find(|it| it.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn read(path: &str, lines: &[(&str, &str)]) -> Result<String, AuthError> {
        let mut request = Request::put(path);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let Original {
            method,
            path,
            host,
            scheme,
        } = Original::read(&parts)?;
        let host = host.as_deref().unwrap_or("-");
        Ok(format!("{method} {} {host} {path}", scheme.unwrap_or("-")))
    }

    #[test]
    fn description_of_each_proxy_is_understood() {
        let traefik = [
            ("host", "127.0.0.1:8080"),
            ("x-forwarded-method", "POST"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "API.example.com:8443"),
            ("x-forwarded-uri", "/search?q=%2F"),
            ("x-forwarded-for", "192.0.2.1"),
        ];
        assert_eq!(
            read("/auth", &traefik).unwrap(),
            "POST https api.example.com /search"
        );
        let nginx = [
            ("host", "api.example.com"),
            ("x-original-method", "DELETE"),
            ("x-original-uri", "//a/%2e%2e/b?c=/d"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(
            read("/auth", &nginx).unwrap(),
            "DELETE - api.example.com /b"
        );
        let ingress = [
            ("host", "tollgate"),
            ("x-original-method", "GET"),
            ("x-original-url", "https://Api.Example.com:443/a?b"),
        ];
        assert_eq!(
            read("/auth?x=y", &ingress).unwrap(),
            "GET https api.example.com /a"
        );
        let envoy = [("host", "api.example.com"), ("x-forwarded-proto", "http")];
        assert_eq!(
            read("/auth/a//b?c=d", &envoy).unwrap(),
            "PUT http api.example.com /a/b"
        );
        assert_eq!(
            read("/auth/", &envoy).unwrap(),
            "PUT http api.example.com /"
        );
    }

    #[test]
    fn ambiguous_or_missing_description_is_rejected() {
        let table: &[(&[(&str, &str)], &str)] = &[
            (&[], "no header"),
            (&[("host", "h"), ("x-forwarded-proto", "http")], "no header"),
            (
                &[("x-forwarded-method", "GET")],
                "lacks the header x-forwarded-uri",
            ),
            (
                &[("x-original-uri", "/")],
                "lacks the header x-original-method",
            ),
            (
                &[("x-original-uri", "/"), ("x-original-method", "")],
                "lacks the header x-original-method",
            ),
            (
                &[
                    ("x-original-uri", "/"),
                    ("x-original-method", "GET"),
                    ("x-forwarded-uri", "/b"),
                ],
                "both",
            ),
            (
                &[
                    ("x-forwarded-uri", "/"),
                    ("x-forwarded-method", "GET"),
                    ("x-original-url", "/b"),
                ],
                "both",
            ),
            (
                &[
                    ("x-forwarded-method", "GET"),
                    ("x-forwarded-uri", "/"),
                    ("x-forwarded-uri", "/b"),
                ],
                "x-forwarded-uri is given more than once",
            ),
            (
                &[
                    ("x-original-method", "GET"),
                    ("x-original-uri", "/"),
                    ("x-original-url", "/b"),
                ],
                "x-original-uri is given more than once",
            ),
            (
                &[("x-forwarded-method", "GET IT"), ("x-forwarded-uri", "/")],
                "method",
            ),
            (
                &[
                    ("x-forwarded-method", "GET"),
                    ("x-forwarded-uri", "/"),
                    ("x-forwarded-host", "a b"),
                ],
                "host",
            ),
        ];
        for (lines, says) in table {
            let error = read("/auth", lines).unwrap_err().to_string();
            assert!(error.contains(says), "{lines:?}: {error}");
        }
        let long = "/a".repeat(MAX_PATH);
        let long = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", long.as_str()),
        ];
        let error = read("/auth", &long).unwrap_err();
        assert_eq!(error, AuthError::PathTooLong { limit: 4096 });
    }

    #[test]
    fn hosts_are_normalised() {
        let table = [
            ("a.example", Some("a.example")),
            ("A.Example.:443", Some("a.example")),
            ("[::1]:80", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("[::1", None),
            ("[::1]x", None),
            ("a:b", None),
            ("a:1:2", None),
            ("", None),
            (".", None),
            ("a/b", None),
            ("u@h", None),
        ];
        for (text, expected) in table {
            assert_eq!(host(text).ok().as_deref(), expected, "{text}");
        }
        assert!(host(&"a".repeat(MAX_HOST + 1)).is_err());
    }

    #[test]
    fn nearest_proxy_decides_the_host() {
        let lines = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-host", "spoofed.example, b.example"),
            ("x-forwarded-proto", "gopher, https"),
        ];
        assert_eq!(read("/auth", &lines).unwrap(), "GET https b.example /");
    }
}
