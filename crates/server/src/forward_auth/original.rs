//! The request that a proxy asks about, as the proxy describes it.
//!
//! | proxy | describes it in |
//! |---|---|
//! | Traefik, Caddy | `X-Forwarded-Method`, `-Uri`, `-Host`, `-Proto` |
//! | nginx | `X-Original-Method`, `-URI` (or `-URL`), `-Host` (or `Host`), `-Proto` |
//! | Envoy (`ext_authz`) | the request itself, its path after `/auth`; `X-Forwarded-Proto` |
//!
//! A proxy passes on headers that it does not set. So a client can send the headers of the other family
//! itself. A request with headers of both families is rejected.

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
    /// The path as the client wrote it, without the query.
    pub(super) written: &'r str,
    /// The host in lower case, without the port.
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

    /// Reads a request that is itself the original one, except for the start of its path.
    fn below(parts: &'r Parts, path: &'r str) -> Result<Original<'r>, AuthError> {
        let host = match parts.uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => one(&parts.headers, &http::header::HOST)?,
        };
        Ok(Original {
            method: method(parts.method.as_str())?,
            path: normal(path)?,
            written: path,
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
        // A path, or a URL.
        let target = family.target(headers)?;
        let target = target.split(['?', '#']).next().unwrap_or_default();
        let url = target
            .split_once("://")
            .filter(|_| !target.starts_with('/'));
        // Several proxies make a list. The last value comes from the nearest proxy.
        let last = |list: &'r str| list.rsplit(',').map(str::trim).next();
        let (path, named, scheme) = match url {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (path, Some(authority), Some(scheme))
            }
            None => {
                let host = match one(headers, &family.host)? {
                    Some(host) => last(host),
                    None => one(headers, &http::header::HOST)?,
                };
                (target, host, one(headers, &family.proto)?.and_then(last))
            }
        };
        Ok(Original {
            method: self::method(method)?,
            path: normal(path)?,
            written: path,
            host: named.map(host).transpose()?,
            scheme: scheme.and_then(self::scheme),
        })
    }
}

impl Family {
    /// Returns whether the headers describe a request by its method, path or URL. A host or a scheme is
    /// not enough: proxies send these for other reasons as well.
    fn describes(&self, headers: &HeaderMap) -> bool {
        let names = [Some(&self.method), Some(&self.uri), self.url.as_ref()];
        let mut names = names.into_iter().flatten();
        names.any(|name| headers.contains_key(name))
    }

    /// Reads the path or the URL of the request.
    fn target<'r>(&self, headers: &'r HeaderMap) -> Result<&'r str, AuthError> {
        let uri = one(headers, &self.uri)?;
        let url = match &self.url {
            Some(name) => one(headers, name)?,
            None => None,
        };
        match (uri, url) {
            (Some(_), Some(_)) => Err(AuthError::UriAndUrl),
            (Some(target), None) | (None, Some(target)) => Ok(target),
            (None, None) => Err(AuthError::Missing(self.uri.clone())),
        }
    }
}

/// Returns the single value of a header; `None` if it is missing or empty.
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

/// Reads a host: in lower case, without its port.
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

/// Reads a scheme of HTTP; `None` for other schemes.
fn scheme(text: &str) -> Option<&'static str> {
    ["http", "https", "ws", "wss"]
        .into_iter()
        .find(|it| it.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// Reads the request that header lines describe. The lines are separated by bars, with `f-` for
    /// `x-forwarded-` and `o-` for `x-original-`.
    fn read(path: &str, lines: &str) -> Result<String, AuthError> {
        let mut request = Request::put(path);
        for (name, value) in lines.split('|').filter_map(|line| line.split_once('=')) {
            let name = match name.split_at_checked(2) {
                Some(("f-", name)) => format!("x-forwarded-{name}"),
                Some(("o-", name)) => format!("x-original-{name}"),
                _ => name.to_owned(),
            };
            request = request.header(name, value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let it = Original::read(&parts)?;
        let (scheme, host) = (it.scheme.unwrap_or("-"), it.host.as_deref().unwrap_or("-"));
        Ok(format!("{} {scheme} {host} {}", it.method, it.path))
    }

    #[test]
    fn description_of_each_proxy_is_understood() {
        let traefik = "host=127.0.0.1:8080|f-method=POST|f-proto=https|\
                       f-host=API.example.com:8443|f-uri=/search?q=%2F|f-for=192.0.2.1";
        let nginx = "host=api.example.com|o-method=DELETE|o-uri=//a/%2e%2e/b?c=/d|f-proto=https";
        let ingress = "host=tollgate|o-method=GET|o-url=https://Api.Example.com:443/a?b";
        let envoy = "host=api.example.com|f-proto=http";
        for (path, lines, expected) in [
            ("/auth", traefik, "POST https api.example.com /search"),
            ("/auth", nginx, "DELETE - api.example.com /b"),
            ("/auth?x=y", ingress, "GET https api.example.com /a"),
            ("/auth/a//b?c=d", envoy, "PUT http api.example.com /a/b"),
            ("/auth/", envoy, "PUT http api.example.com /"),
        ] {
            assert_eq!(read(path, lines).unwrap(), expected);
        }
    }

    #[test]
    fn ambiguous_or_missing_description_is_rejected() {
        let missing = "lacks the header x-original-method";
        for (lines, says) in [
            ("", "no header"),
            ("host=h|f-proto=http", "no header"),
            ("f-method=GET", "lacks the header x-forwarded-uri"),
            ("o-uri=/", missing),
            ("o-uri=/|o-method=", missing),
            ("o-uri=/|o-method=GET|f-uri=/b", "headers of two kinds"),
            ("f-uri=/|f-method=GET|o-url=/b", "headers of two kinds"),
            (
                "f-method=GET|f-uri=/|f-uri=/b",
                "x-forwarded-uri is given more than once",
            ),
            (
                "o-method=GET|o-uri=/|o-url=/b",
                "has both X-Original-URI and X-Original-URL",
            ),
            ("f-method=GET IT|f-uri=/", "method"),
            ("f-method=GET|f-uri=/|f-host=a b", "host"),
        ] {
            let error = read("/auth", lines).unwrap_err().to_string();
            assert!(error.contains(says), "{lines:?}: {error}");
        }
        let long = format!("f-method=GET|f-uri={}", "/a".repeat(MAX_PATH));
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
        let lines = "f-method=GET|f-uri=/|f-host=spoofed.example, b.example|f-proto=gopher, https";
        assert_eq!(read("/auth", lines).unwrap(), "GET https b.example /");
    }
}
