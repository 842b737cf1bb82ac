//! Finds the client of a request, and describes it with attributes. Used by doors where the headers of
//! a request name the client.
//!
//! | attribute | value |
//! |---|---|
//! | `ip` | the client's address, behind trusted proxies |
//! | `api_key` | the value of its header |
//! | `user`, `service_account`, `tenant` | the values of their headers, from trusted proxies only |
//! | `priority` | the class that its header names, from trusted proxies only |
//! | `fairness_id` | the value of its header, from trusted proxies only |
//! | `traffic` | `test` or `internal`, if one of them applies |
//! | `subject` | `api_key:…`, `user:…`, `service_account:…` or `ip:…`, the first that is known |
//! | `subject_type` | the type of that subject |
//!
//! A client can send any header. So a client that does not connect through a trusted proxy can only
//! present an API key. A subject starts with its type: an address that is sent as an API key does not
//! spend the allowance of that address. `Authorization` is not interpreted.

mod address;

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use tollgate_config::{Subjects, address_text};

use crate::http::bounds::MAX_VALUE;

/// Finds clients, as the `subjects` section of a config says.
#[derive(Clone, Debug)]
pub struct Clients {
    subjects: Subjects,
    api_key: Option<HeaderName>,
    user: Option<HeaderName>,
    service_account: Option<HeaderName>,
    tenant: Option<HeaderName>,
    priority: Option<HeaderName>,
    fairness_id: Option<HeaderName>,
    test: Option<HeaderName>,
}

/// The client of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client<'h> {
    address: IpAddr,
    attributes: SmallVec<[(&'static str, Cow<'h, str>); 10]>,
}

/// Why the client of a request is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A header has several values, so it is unclear which one names the client.
    #[error("the header {0} is given more than once")]
    Repeated(HeaderName),
    /// A value is too long.
    #[error("the header {0} is longer than {MAX_VALUE} bytes")]
    TooLong(HeaderName),
    /// A value is not text.
    #[error("the header {0} is not UTF-8 text")]
    NotText(HeaderName),
}

impl Clients {
    /// Finds clients as `subjects` says.
    #[must_use]
    pub fn new(subjects: Subjects) -> Clients {
        // The config accepts only valid header names, so no name is dropped here.
        let named = |name: &Option<String>| HeaderName::try_from(name.as_deref()?).ok();
        let headers = &subjects.headers;
        Clients {
            api_key: named(&headers.api_key),
            user: named(&headers.user),
            service_account: named(&headers.service_account),
            tenant: named(&headers.tenant),
            priority: named(&headers.priority),
            fairness_id: named(&headers.fairness_id),
            test: named(&subjects.test_header),
            subjects,
        }
    }

    /// Returns whether `peer` is a trusted proxy.
    #[must_use]
    pub fn is_trusted(&self, peer: IpAddr) -> bool {
        self.subjects.is_trusted(peer)
    }

    /// Finds the client of a request with `headers` that `peer` sent.
    ///
    /// # Errors
    /// If a header that names the client is ambiguous, too long or not text.
    pub fn find<'h>(
        &self,
        peer: IpAddr,
        headers: &'h HeaderMap,
    ) -> Result<Client<'h>, ClientError> {
        let peer = peer.to_canonical();
        let trusted = self.is_trusted(peer);
        let believed = |name: &Option<HeaderName>| match name {
            Some(name) if trusted => value(headers, name),
            _ => Ok(None),
        };
        let api_key = self.api_key.as_ref().map(|name| value(headers, name));
        let api_key = api_key.transpose()?.flatten();
        let user = believed(&self.user)?;
        let service_account = believed(&self.service_account)?;
        let tenant = believed(&self.tenant)?;
        let fairness_id = believed(&self.fairness_id)?;
        let priority = match &self.priority {
            Some(name) if trusted => combined(headers, name)?,
            _ => None,
        };
        let priority = priority.and_then(|header| self.subjects.priorities.named_by(&header));
        let address = if trusted {
            address::behind(peer, headers, &self.subjects)
        } else {
            peer
        };
        let is_test = |name: &HeaderName| trusted && headers.contains_key(name);
        let traffic = if self.test.as_ref().is_some_and(is_test) {
            Some("test")
        } else {
            self.subjects.is_internal(address).then_some("internal")
        };
        let known = [
            ("api_key", api_key),
            ("user", user),
            ("service_account", service_account),
        ];
        let subject = known
            .iter()
            .find_map(|(name, value)| Some((*name, (*value)?)));
        let (subject_type, subject) = match subject {
            Some((name, value)) => (name, [name, ":", value].concat()),
            None => ("ip", ["ip:", &self.subjects.network_of(address)].concat()),
        };
        let mut attributes = SmallVec::new();
        attributes.push(("ip", Cow::Owned(address_text(address))));
        for (name, value) in known
            .into_iter()
            .chain([("tenant", tenant), ("traffic", traffic)])
        {
            attributes.extend(value.map(|value| (name, Cow::Borrowed(value))));
        }
        // The name of a class is the config's, not the request's.
        attributes.extend(priority.map(|name| ("priority", Cow::Owned(name.to_owned()))));
        attributes.extend(fairness_id.map(|it| ("fairness_id", Cow::Borrowed(it))));
        attributes.push(("subject", Cow::Owned(subject)));
        attributes.push(("subject_type", Cow::Borrowed(subject_type)));
        Ok(Client {
            address,
            attributes,
        })
    }
}

impl<'h> Client<'h> {
    /// Returns the client's address. An IPv4 address is never in IPv6 notation.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the attributes of the client.
    pub fn into_attributes(self) -> impl Iterator<Item = (&'static str, Cow<'h, str>)> {
        self.attributes.into_iter()
    }
}

/// Returns the single value of a header; `None` if it is missing or empty.
fn value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ClientError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(ClientError::Repeated(name.clone()));
    }
    text(value, name)
}

/// Returns the value of a header that may be repeated: its values in one list (RFC 9218, RFC 8941).
fn combined<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<Cow<'h, str>>, ClientError> {
    let mut combined: Option<Cow<'h, str>> = None;
    for value in headers.get_all(name) {
        let Some(text) = text(value, name)? else {
            continue;
        };
        combined = Some(match combined {
            None => Cow::Borrowed(text),
            Some(before) if before.len() + text.len() > MAX_VALUE => {
                return Err(ClientError::TooLong(name.clone()));
            }
            Some(before) => Cow::Owned([&before, ", ", text].concat()),
        });
    }
    Ok(combined)
}

/// Returns the text of a value; `None` if it is empty.
fn text<'h>(value: &'h HeaderValue, name: &HeaderName) -> Result<Option<&'h str>, ClientError> {
    let value = value.as_bytes().trim_ascii();
    if value.len() > MAX_VALUE {
        return Err(ClientError::TooLong(name.clone()));
    }
    let text = std::str::from_utf8(value).map_err(|_| ClientError::NotText(name.clone()))?;
    Ok((!text.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests;
