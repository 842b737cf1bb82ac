//! Who calls: verifies the credentials of a request, and turns them into attributes.
//!
//! A door asks once for each request, after it has found the client, and before it asks the rules:
//!
//! ```text
//! let authenticator = control.authenticators().of(snapshot.active());
//! let certificate = parts.extensions.get::<Arc<ClientCertificate>>();
//! let identity = authenticator.identify(&parts.headers, certificate.map(|it| &**it)).await?;
//! for (name, value) in identity.attributes() {
//!     attributes.push(name, value);   // later values replace those of the client's headers
//! }
//! ```
//!
//! The error is a `RequestError`, so `respond` makes the 401 or 403. The door finds clients with
//! [`subjects`], so that an API key that nobody has verified is not a subject.
//!
//! | attribute | value |
//! |---|---|
//! | `authentication` | `jwt`, `api_key`, `certificate` or `anonymous` |
//! | those of `authentication.jwt.claims` | the values of the claims |
//! | the columns of the table of API keys | the values of the row; `api_key` is the SHA-256 of the key unless there is such a column |
//! | those of `authentication.client_certificates` | the parts of the certificate |
//! | `subject`, `subject_type` | `api_key:…`, `user:…` or `service_account:…` |
//!
//! * `jwt`: the format of tokens, signatures and claims. `jwks`: the keys. `verified`: tokens that were
//!   verified before.
//!
//! Credentials that are wrong are always rejected, even if none are required.

mod jwks;
mod jwt;
mod verified;

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use smallvec::{SmallVec, smallvec};
use tollgate::{ActiveConfig, Clock, Engine, SystemClock};
use tollgate_config::{ApiKeyTable, Authentication, CertificateName, Config, Subjects};

use self::jwks::{KeySource, RemoteKeys};
pub(crate) use self::jwt::TokenError;
use self::jwt::{MAX_TOKEN, Tokens};
use crate::per_config::{Made, PerConfig};
use crate::tls::ClientCertificate;

/// An attribute.
type Pair = (Arc<str>, Box<str>);

/// The longest API key.
const MAX_KEY: usize = 1024;

/// Verifies the credentials of all doors of a server.
pub(crate) struct Authenticators(PerConfig<Authenticator>);

/// Verifies credentials as one config says.
pub(crate) struct Authenticator {
    tokens: Option<Tokens>,
    api_keys: Option<(HeaderName, Arc<ApiKeyTable>)>,
    certificates: Vec<(Arc<str>, CertificateName)>,
    required: bool,
    is_on: bool,
    anonymous: Arc<[Pair]>,
}

/// The caller of a request, as its credentials say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity(SmallVec<[Arc<[Pair]>; 2]>);

/// Why a caller is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("this needs credentials: {}", .0.help())]
    Missing(Accepted),
    #[error("the request has several credentials: send one")]
    Several,
    #[error("the header {0} is given more than once")]
    Repeated(HeaderName),
    #[error("the header {0} is too long or not ASCII text")]
    BadHeader(HeaderName),
    #[error("{0}")]
    Token(#[from] TokenError),
    #[error("the token lacks the scope {scope}")]
    Scope { scope: String },
    // Callers are not told whether the key was revoked or never existed.
    #[error("the API key is not valid")]
    ApiKey(Accepted),
    #[error(
        "tokens cannot be verified at the moment, because their keys cannot be fetched; try again later"
    )]
    NoKeys,
}

/// The ways to send credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) bearer: bool,
    /// The header of API keys, unless they are sent as bearer tokens.
    pub(crate) header: Option<HeaderName>,
}

impl Accepted {
    fn help(&self) -> String {
        match (self.bearer, &self.header) {
            (true, Some(header)) => format!("send `Authorization: Bearer …` or `{header}: …`"),
            (true, None) => "send `Authorization: Bearer …`".to_owned(),
            (false, Some(header)) => format!("send `{header}: …`"),
            (false, None) => "use a certificate".to_owned(),
        }
    }
}

/// Returns where a door finds clients in the headers of requests. If credentials are verified, an API key
/// in a header is not a subject by itself.
pub(crate) fn subjects(config: &Config) -> Subjects {
    let mut subjects = config.subjects.clone();
    if config.authentication.is_on() {
        subjects.headers.api_key = None;
    }
    subjects
}

impl Authenticators {
    pub(crate) fn new(engine: &Engine) -> Authenticators {
        Authenticators::with_clock(engine, Arc::new(SystemClock::new()))
    }

    fn with_clock(engine: &Engine, clock: Arc<dyn Clock>) -> Authenticators {
        // The keys of a server outlive a config that names the same server.
        let last: Mutex<Option<Arc<RemoteKeys>>> = Mutex::default();
        Authenticators(PerConfig::new(engine, move |active| {
            let remote = |url: &_, refresh| {
                let mut last = last.lock();
                let known = last.take().filter(|it| it.is_of(url, refresh));
                let keys = known.unwrap_or_else(|| RemoteKeys::new(url, refresh));
                Arc::clone(last.insert(keys))
            };
            let config = &active.config().authentication;
            Authenticator::new(config, remote, Arc::clone(&clock))
        }))
    }

    /// Returns the authenticator of this config.
    pub(crate) fn of(&self, active: &ActiveConfig) -> Arc<Made<Authenticator>> {
        self.0.of(active)
    }
}

impl Authenticator {
    fn new(
        config: &Authentication,
        remote: impl Fn(&tollgate_config::HttpUrl, tollgate::Span) -> Arc<RemoteKeys>,
        clock: Arc<dyn Clock>,
    ) -> Authenticator {
        let tokens = config.jwt.as_ref().map(|jwt| {
            let keys = KeySource::new(&jwt.keys, remote);
            Tokens::new(jwt.clone(), keys, clock)
        });
        let api_keys = config.api_keys.as_ref().and_then(|keys| {
            // The config accepts only valid header names.
            let header = HeaderName::try_from(&keys.header).ok()?;
            Some((header, Arc::clone(&keys.table)))
        });
        Authenticator {
            tokens,
            api_keys,
            certificates: config.client_certificates.clone(),
            required: config.required,
            is_on: config.is_on(),
            anonymous: Arc::new([pair("authentication", "anonymous")]),
        }
    }

    /// Verifies the credentials of a request with these headers, which came over a connection with this
    /// certificate.
    pub(crate) async fn identify(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Identity, IdentityError> {
        if !self.is_on {
            return Ok(Identity::default());
        }
        let certificate = certificate.and_then(|it| self.certified(it));
        let bearer = match self.reads_bearer() {
            true => bearer(headers)?,
            false => None,
        };
        let key = match self
            .api_keys
            .as_ref()
            .filter(|(name, _)| *name != AUTHORIZATION)
        {
            Some((name, _)) => single(headers, name, MAX_KEY)?,
            None => None,
        };
        let caller = match (bearer, key) {
            (Some(_), Some(_)) => return Err(IdentityError::Several),
            (Some(token), None) => Some(self.bearer(token).await?),
            (None, Some(key)) => Some(self.api_key(key)?),
            (None, None) => None,
        };
        // The caller of a request replaces attributes of the connection.
        let known: SmallVec<_> = certificate.into_iter().chain(caller).collect();
        match known.is_empty() {
            false => Ok(Identity(known)),
            true if self.required => Err(IdentityError::Missing(self.accepted())),
            true => Ok(Identity(smallvec![Arc::clone(&self.anonymous)])),
        }
    }

    fn reads_bearer(&self) -> bool {
        let keys = self.api_keys.as_ref();
        self.tokens.is_some() || keys.is_some_and(|(name, _)| *name == AUTHORIZATION)
    }

    fn accepted(&self) -> Accepted {
        let header = self.api_keys.as_ref().map(|(name, _)| name.clone());
        Accepted {
            bearer: self.reads_bearer(),
            header: header.filter(|name| *name != AUTHORIZATION),
        }
    }

    /// Verifies a bearer token. If API keys are sent in the same way, a text without the two dots of a JWT
    /// is an API key.
    async fn bearer(&self, token: &str) -> Result<Arc<[Pair]>, IdentityError> {
        let has_keys = self
            .api_keys
            .as_ref()
            .is_some_and(|(name, _)| *name == AUTHORIZATION);
        let dots = token.bytes().filter(|byte| *byte == b'.').count();
        match &self.tokens {
            Some(tokens) if dots == 2 || !has_keys => tokens.verify(token).await,
            _ => self.api_key(token),
        }
    }

    fn api_key(&self, key: &str) -> Result<Arc<[Pair]>, IdentityError> {
        let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let table = self.api_keys.as_ref().map(|(_, table)| table);
        let known = table.and_then(|table| table.find(&hash));
        match known.filter(|key| !key.is_revoked) {
            Some(key) => Ok(Arc::clone(&key.attributes)),
            None => Err(IdentityError::ApiKey(self.accepted())),
        }
    }

    /// Returns the attributes that come from a certificate; `None` if it has none of its parts.
    fn certified(&self, certificate: &ClientCertificate) -> Option<Arc<[Pair]>> {
        let mut attributes: Vec<Pair> = Vec::new();
        for (name, part) in &self.certificates {
            let value = match part {
                CertificateName::CommonName => &certificate.common_name,
                CertificateName::DnsName => &certificate.dns_name,
                CertificateName::Uri => &certificate.uri,
                CertificateName::Email => &certificate.email,
            };
            if let Some(value) = value {
                attributes.push((Arc::clone(name), value.clone()));
            }
        }
        (!attributes.is_empty()).then(|| with_subject(attributes, "certificate"))
    }
}

impl Identity {
    /// Returns the attributes. If a name has several values, the last one applies.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.0.iter().flat_map(|pairs| pairs.iter());
        pairs.map(|(name, value)| (&**name, &**value))
    }
}

fn pair(name: &str, value: &str) -> Pair {
    (name.into(), value.into())
}

/// Adds the method of a credential, and the subject that its attributes name.
fn with_subject(mut attributes: Vec<Pair>, method: &str) -> Arc<[Pair]> {
    let of = |name: &str| attributes.iter().find(|(known, _)| &**known == name);
    let named = ["user", "service_account"].into_iter().find_map(|name| {
        let (_, value) = of(name)?;
        Some((name, format!("{name}:{value}")))
    });
    if let Some((kind, subject)) = named {
        attributes.push(pair("subject", &subject));
        attributes.push(pair("subject_type", kind));
    }
    attributes.push(pair("authentication", method));
    attributes.into()
}

/// Returns the bearer token of a request; `None` if it has none. Other schemes are for the service behind
/// the door.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, IdentityError> {
    let Some(value) = single(headers, &AUTHORIZATION, MAX_TOKEN + "Bearer ".len())? else {
        return Ok(None);
    };
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    let is_bearer = scheme.eq_ignore_ascii_case("bearer");
    Ok(is_bearer.then(|| token.trim_ascii()))
}

/// Returns the single value of a header; `None` if it is missing or empty.
fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    most: usize,
) -> Result<Option<&'h str>, IdentityError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(IdentityError::Repeated(name.clone()));
    }
    let text = value.to_str().ok().map(str::trim_ascii);
    match text.filter(|text| text.len() <= most) {
        Some(text) => Ok((!text.is_empty()).then_some(text)),
        None => Err(IdentityError::BadHeader(name.clone())),
    }
}

#[cfg(test)]
mod tests;
