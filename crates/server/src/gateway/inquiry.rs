//! What a client asks for: host, path and route, and the attributes that rules see.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderName, Version};
use serde_json::Value;
use tollgate_config::{MAX_PATH, RequestField, Route, normal_path};

use crate::client::{Client, ClientError};
use crate::forward_auth::AuthError;
use crate::http::bounds::MAX_VALUE;
use crate::question::AttributeMap;
use crate::respond::RequestError;

/// What a client asks for.
pub(super) struct Inquiry {
    /// The host as the client wrote it.
    pub(super) authority: Authority,
    /// The host in lower case, without port.
    pub(super) host: String,
    /// The path in its normal form.
    pub(super) path: String,
}

impl Inquiry {
    pub(super) fn read(parts: &Parts) -> Result<Inquiry, RequestError> {
        let authority = authority(parts)?;
        let name = authority.host();
        let host = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if host.is_empty() || authority.as_str().contains('@') {
            return Err(RequestError::BadHost);
        }
        let path = normal_path(parts.uri.path().as_bytes());
        let path = path.ok_or(AuthError::PathTooLong { limit: MAX_PATH })?;
        Ok(Inquiry {
            authority,
            host,
            path,
        })
    }

    /// Returns the attributes of the request.
    pub(super) fn attributes<'r>(
        &'r self,
        parts: &'r Parts,
        scheme: &'static str,
        route: Option<&'r Route>,
        client: Client<'r>,
        size: Option<u64>,
    ) -> AttributeMap<'r> {
        let mut attributes = AttributeMap::default();
        attributes.push("method", parts.method.as_str());
        attributes.push("path", self.path.as_str());
        attributes.push("host", self.host.as_str());
        attributes.push("scheme", scheme);
        if let Some(route) = route {
            attributes.push("action", route.action());
        }
        if let Some(size) = size {
            attributes.push("size", size.to_string());
        }
        for (name, value) in client.into_attributes() {
            attributes.push(name, value);
        }
        attributes
    }
}

/// Returns the host that the client asks for. A request may name it in its target and in `Host`: then both
/// must agree, because the upstream may read either.
fn authority(parts: &Parts) -> Result<Authority, RequestError> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let header = hosts.next();
    if hosts.next().is_some() {
        return Err(RequestError::NotOneHost);
    }
    let header = match header {
        Some(value) => {
            let host = Authority::try_from(value.as_bytes());
            Some(host.map_err(|_| RequestError::BadHost)?)
        }
        None => None,
    };
    match (parts.uri.authority(), header) {
        (Some(target), Some(header)) if *target != header => Err(RequestError::BadHost),
        (Some(_), None) if parts.version == Version::HTTP_11 => Err(RequestError::NotOneHost),
        (Some(target), _) => Ok(target.clone()),
        (None, Some(header)) => Ok(header),
        (None, None) => Err(RequestError::NotOneHost),
    }
}

/// Adds the attributes that a route reads from the request. `body` is the whole body, if the route reads it.
pub(super) fn add_fields<'r>(
    attributes: &mut AttributeMap<'r>,
    route: &'r Route,
    parts: &'r Parts,
    body: Option<&Bytes>,
) -> Result<(), RequestError> {
    let body = match body {
        Some(bytes) if !bytes.is_empty() => Some(json(bytes)?),
        _ => None,
    };
    for (name, field) in route.attributes() {
        let value = match field {
            RequestField::Header(header) => header_value(parts, header)?,
            RequestField::Query(parameter) => query_value(parts, parameter)?,
            RequestField::Body(path) => body.as_ref().and_then(|it| body_value(it, path)),
        };
        if let Some(value) = value {
            if value.len() > MAX_VALUE {
                return Err(RequestError::LongField {
                    name: name.to_owned(),
                });
            }
            attributes.push(name, value);
        }
    }
    Ok(())
}

fn json(bytes: &Bytes) -> Result<Value, RequestError> {
    match serde_json::from_slice(bytes) {
        Ok(body @ Value::Object(_)) => Ok(body),
        Ok(_) => Err(RequestError::NotJson),
        Err(_) => Err(RequestError::NotJson),
    }
}

fn header_value<'r>(parts: &'r Parts, name: &str) -> Result<Option<Cow<'r, str>>, RequestError> {
    let mut values = parts.headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let name = || HeaderName::try_from(name).unwrap_or(HOST);
    if values.next().is_some() {
        return Err(ClientError::Repeated(name()).into());
    }
    let text = std::str::from_utf8(value.as_bytes().trim_ascii());
    let text = text.map_err(|_| ClientError::NotText(name()))?;
    Ok((!text.is_empty()).then_some(Cow::Borrowed(text)))
}

fn query_value<'r>(parts: &'r Parts, name: &str) -> Result<Option<Cow<'r, str>>, RequestError> {
    let query = parts.uri.query().unwrap_or_default();
    let mut values = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name);
    let value = values.next().map(|(_, value)| value);
    match values.next() {
        Some(_) => Err(RequestError::Query(format!("{name} is given twice"))),
        None => Ok(value.filter(|value| !value.is_empty())),
    }
}

fn body_value<'r>(body: &Value, path: &[String]) -> Option<Cow<'r, str>> {
    let field = path.iter().try_fold(body, |value, name| value.get(name))?;
    Some(Cow::Owned(match field {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        _ => return None,
    }))
}
