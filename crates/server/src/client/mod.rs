//! Who asks, for doors that have to find it in a request: from the address of the peer and the
//! headers to attributes.
//!
//! | attribute | is |
//! |---|---|
//! | `ip` | the client's address, behind trusted proxies |
//! | `api_key` | what its header says |
//! | `user`, `service_account`, `tenant` | what their headers say, from trusted proxies |
//! | `traffic` | `test` or `internal`, where that is so |
//! | `subject` | `api_key:…`, `user:…`, `service_account:…` or `ip:…`, the first that is there |
//! | `subject_type` | which of them |
//!
//! A client says what it likes in its headers; whoever connects through no trusted proxy can only
//! present an API key. A subject starts with its type, so that nobody can spend the allowance of an
//! address by sending it as an API key. `Authorization` is not interpreted.

mod address;

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use tollgate::Attributes;
use tollgate_config::Subjects;

use crate::http::bounds::MAX_VALUE;

/// Finds who asks, as a config says.
#[derive(Clone, Debug)]
pub struct Clients {
    subjects: Subjects,
    api_key: Option<HeaderName>,
    user: Option<HeaderName>,
    service_account: Option<HeaderName>,
    tenant: Option<HeaderName>,
    test: Option<HeaderName>,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client<'h> {
    address: IpAddr,
    ip: String,
    api_key: Option<&'h str>,
    user: Option<&'h str>,
    service_account: Option<&'h str>,
    tenant: Option<&'h str>,
    traffic: Option<&'static str>,
    subject: String,
    subject_type: &'static str,
}

/// Why it cannot be said who asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Who asks depends on which of them counts.
    #[error("the header {0} is given more than once")]
    Repeated(HeaderName),
    /// A value is beyond the bound.
    #[error("the header {0} is longer than {MAX_VALUE} bytes")]
    TooLong(HeaderName),
    /// A value is no text.
    #[error("the header {0} is not UTF-8 text")]
    NotText(HeaderName),
}

impl Clients {
    /// Finds them as `subjects` says.
    #[must_use]
    pub fn new(subjects: Subjects) -> Clients {
        // What a config accepts is the name of a header.
        let named = |name: &Option<String>| HeaderName::try_from(name.as_deref()?).ok();
        let headers = &subjects.headers;
        Clients {
            api_key: named(&headers.api_key),
            user: named(&headers.user),
            service_account: named(&headers.service_account),
            tenant: named(&headers.tenant),
            test: named(&subjects.test_header),
            subjects,
        }
    }

    /// Whether the word of `peer` on clients is believed.
    #[must_use]
    pub fn is_trusted(&self, peer: IpAddr) -> bool {
        self.subjects.is_trusted(peer)
    }

    /// Who asks: `peer` connects, and sends `headers`.
    ///
    /// # Errors
    /// If a header that says who asks is ambiguous, too long or no text.
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
        let api_key = match &self.api_key {
            Some(name) => value(headers, name)?,
            None => None,
        };
        let user = believed(&self.user)?;
        let service_account = believed(&self.service_account)?;
        let tenant = believed(&self.tenant)?;
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
        let (subject_type, named) = [
            ("api_key", api_key),
            ("user", user),
            ("service_account", service_account),
        ]
        .into_iter()
        .find(|(_, value)| value.is_some())
        .unwrap_or(("ip", None));
        let subject = match named {
            Some(name) => format!("{subject_type}:{name}"),
            None => format!("{subject_type}:{}", self.subjects.network_of(address)),
        };
        Ok(Client {
            address,
            ip: address.to_string(),
            api_key,
            user,
            service_account,
            tenant,
            traffic,
            subject,
            subject_type,
        })
    }
}

impl<'h> Client<'h> {
    /// The client's address; an IPv4 address is in its own notation.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// What is known of the client, as attributes.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        [
            ("ip", Some(self.ip.as_str())),
            ("api_key", self.api_key),
            ("user", self.user),
            ("service_account", self.service_account),
            ("tenant", self.tenant),
            ("traffic", self.traffic),
            ("subject", Some(self.subject.as_str())),
            ("subject_type", Some(self.subject_type)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }

    /// Adds what is known of the client to `attributes`.
    pub fn describe<'a>(&'a self, attributes: &mut Attributes<'a>)
    where
        'h: 'a,
    {
        attributes.extend(self.attributes());
    }
}

/// The one value of a header, if it is there and not empty.
fn value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ClientError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(ClientError::Repeated(name.clone()));
    }
    let value = value.as_bytes().trim_ascii();
    if value.len() > MAX_VALUE {
        return Err(ClientError::TooLong(name.clone()));
    }
    let text = std::str::from_utf8(value).map_err(|_| ClientError::NotText(name.clone()))?;
    Ok((!text.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests;
