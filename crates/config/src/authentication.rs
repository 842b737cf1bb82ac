//! Authentication: how the callers of a door prove who they are, and which attributes that gives their
//! requests. Plain data, validated. Nothing here verifies a token.
//!
//! * `jwks`: the keys that verify tokens, from a file or from the text of a key server.
//! * `api_keys`: the table of API keys.

mod api_keys;
mod jwks;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_core::Span;
use tollgate_rules::document::{
    At, BadValue, Duration, Field, Flag, List, Named, Place, Problems, Short, Text, Texts, section,
    words,
};
use tollgate_rules::{ConfigError, is_attribute_name};

pub use self::api_keys::{ApiKey, ApiKeyTable};
pub use self::jwks::{Jwk, JwkSet, JwtAlgorithm, KeyMaterial};
use crate::config::Config;
use crate::events::{HttpUrl, url};
use crate::fields::{Env, duration_in, expand, text};
use crate::secrets::Secret;
use crate::subjects::credential_header;
use crate::tenant_files;

/// How callers prove who they are. Without any method, doors do not ask for credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authentication {
    /// Tokens of the kind JWT.
    pub jwt: Option<Jwt>,
    /// API keys.
    pub api_keys: Option<ApiKeys>,
    /// The attributes that come from the certificate of a client, and the part of the certificate that
    /// gives each its value.
    pub client_certificates: Vec<(Arc<str>, CertificateName)>,
    /// Whether a request without credentials is rejected. Otherwise such a request is anonymous.
    pub required: bool,
}

/// How tokens are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Jwt {
    /// The keys.
    pub keys: JwtKeys,
    /// The algorithms that tokens may use. Empty: every algorithm that fits the key.
    pub algorithms: Vec<JwtAlgorithm>,
    /// The issuers that are accepted. Empty: any.
    pub issuers: Vec<String>,
    /// The audiences that are accepted. Empty: any.
    pub audiences: Vec<String>,
    /// The scopes that a token must have, all of them.
    pub scopes: Vec<String>,
    /// By how much the clocks of the issuer and of this host may differ (default 30 seconds).
    pub leeway: Span,
    /// The attributes that come from claims, and the claim that gives each its value.
    pub claims: Vec<(Arc<str>, String)>,
}

/// Where the keys of tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JwtKeys {
    /// A file. `None` until the file is read.
    File(String, Option<Arc<JwkSet>>),
    /// A server, and how long its keys are used before they are fetched again.
    Url(HttpUrl, Span),
    /// One secret.
    Secret(Secret),
}

/// Where API keys are listed, and how clients send them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ApiKeys {
    /// The path of the table, as written.
    pub file: String,
    /// The keys. Empty until the file is read.
    pub table: Arc<ApiKeyTable>,
    /// The header that carries a key, in lower case (default `x-api-key`). In `authorization` a key comes
    /// after the word `Bearer`.
    pub header: String,
}

words! {
    /// A part of a client's certificate.
    pub enum CertificateName is "a part of a certificate" {
        /// The common name of the subject.
        CommonName = "common_name",
        /// The first DNS name.
        DnsName = "dns_name",
        /// The first URI, such as a SPIFFE ID.
        Uri = "uri",
        /// The first email address.
        Email = "email",
    }
}

section! {
    /// How callers of the gateway and of forward-auth prove who they are.
    pub(crate) struct RawAuthentication is "`authentication`" {
        /// Tokens of the kind JWT, sent as `Authorization: Bearer`.
        jwt: RawJwt = "jwt",
        /// API keys.
        api_keys: RawApiKeys = "api_keys",
        /// Attributes from the certificate of a client (mTLS): names, and the part of the certificate that gives each its value.
        client_certificates: Named<CertificateName> = "client_certificates",
        /// Whether a request without credentials is rejected with 401 (default false). Otherwise it carries the attribute authentication = anonymous.
        required: Flag = "required",
    }
}

section! {
    /// How tokens are verified: with the keys of a file or of a URL, or with one secret.
    pub(crate) struct RawJwt is "`jwt`" {
        /// A file with a JSON Web Key Set. The path is relative to this file.
        jwks_file: Text = "jwks_file",
        /// The URL of a JSON Web Key Set, such as https://login.example.com/.well-known/jwks.json. `${VAR}` reads the environment.
        jwks_url: Text = "jwks_url",
        /// The secret of tokens with HS256, HS384 or HS512, at least 32 bytes. `${VAR}` reads the environment.
        secret: Text = "secret",
        /// How long the keys of jwks_url are used before they are fetched again, 10s to 1d (default 5m).
        refresh: Duration = "refresh",
        /// The algorithms that tokens may use. Default: every algorithm that fits the key.
        algorithms: List<JwtAlgorithm> = "algorithms",
        /// The issuer that a token must name (iss), or a list of issuers. Default: any.
        issuer: Texts = "issuer",
        /// The audience that a token must name (aud), or a list of audiences. Default: any.
        audience: Texts = "audience",
        /// The scopes that a token must have, all of them.
        scopes: List<Text> = "scopes",
        /// By how much the clock of the issuer may differ, 0s to 10m (default 30s).
        leeway: Duration = "leeway",
        /// Attributes from claims: names, and the claim that gives each its value. Default: user from sub.
        claims: Named<Text> = "claims",
    }
}

section! {
    /// Where API keys are listed, and how clients send them.
    pub(crate) struct RawApiKeys is "`api_keys`" {
        /// A CSV file with a column sha256 (the hash of the key in hexadecimal digits), optionally a column revoked, and columns that become attributes. The path is relative to this file.
        file (required): Text = "file",
        /// The header that carries a key (default x-api-key). In authorization a key comes after the word Bearer.
        header: Text = "header",
    }
}

/// Larger key sets are rejected unread.
const MAX_JWKS: u64 = 1024 * 1024;
/// Larger tables of API keys are rejected unread.
const MAX_API_KEYS: u64 = 32 * 1024 * 1024;
/// The fewest bytes of a secret that signs tokens. HS256 needs 32 (RFC 7518).
const MIN_HS_SECRET: usize = 32;
/// The most attributes that one method may give.
const MAX_MAPPED: usize = 16;

/// Attributes that doors derive from the request itself. No credential can replace them.
const RESERVED: [&str; 10] = [
    "ip",
    "method",
    "path",
    "host",
    "scheme",
    "action",
    "traffic",
    "subject",
    "subject_type",
    "authentication",
];

/// The prefix of a claim in the `limit_from` of a rule, and in `plan_from`.
const CLAIM: &str = "jwt.claims.";

const JWKS_URL_HELP: &str =
    "write an address such as https://login.example.com/.well-known/jwks.json";
const NO_KEYS_HELP: &str =
    "add one of `jwks_file: ./jwks.json`, `jwks_url: https://…` and `secret: \"${JWT_SECRET}\"`";

/// Checks that a credential may give the attribute `name`.
fn attribute(name: &str) -> Result<Arc<str>, BadValue> {
    if !is_attribute_name(name) {
        let message = format!("`{}` cannot be the name of an attribute", Short(name));
        let help = "use letters, digits, `_`, `.` and `-`, start with a letter or `_`, 64 characters at most";
        return Err(BadValue::new(message, help));
    }
    if RESERVED.contains(&name) {
        let message = format!("no credential can set the attribute `{name}`");
        let help = "the door sets it: choose another name";
        return Err(BadValue::new(message, help));
    }
    Ok(name.into())
}

impl Authentication {
    /// Whether doors ask for credentials.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.required || self.has_method()
    }

    fn has_method(&self) -> bool {
        let certificates = !self.client_certificates.is_empty();
        self.jwt.is_some() || self.api_keys.is_some() || certificates
    }

    /// Adds the claims that limits and plans come from (`limit_from: jwt.claims.NAME`). Returns the first user
    /// of a claim if there are no tokens.
    fn add_claims<'r, T>(&mut self, attributes: impl Iterator<Item = (T, &'r str)>) -> Option<T> {
        for (user, attribute) in attributes {
            let Some(claim) = attribute.strip_prefix(CLAIM) else {
                continue;
            };
            let Some(jwt) = &mut self.jwt else {
                return Some(user);
            };
            if !jwt.claims.iter().any(|(name, _)| &**name == attribute) {
                jwt.claims.push((attribute.into(), claim.to_owned()));
            }
        }
        None
    }
}

pub(crate) fn authentication(
    field: &Field<RawAuthentication>,
    env: Env<'_>,
    files: bool,
    problems: &mut Problems<'_>,
) -> Authentication {
    let Field::Given { key, at } = field else {
        return Authentication::default();
    };
    let raw = &at.value;
    let authentication = Authentication {
        jwt: jwt(&raw.jwt, env, files, problems),
        api_keys: api_keys(&raw.api_keys, env, files, problems),
        client_certificates: mapped(&raw.client_certificates, |name| *name, problems),
        required: raw.required.value().is_some_and(|flag| flag.0),
    };
    let given = [
        raw.jwt.key(),
        raw.api_keys.key(),
        raw.client_certificates.key(),
    ];
    if given.iter().all(Option::is_none) {
        let message = "`authentication` has no method";
        let help = "add `jwt`, `api_keys` or `client_certificates`, or remove `authentication`";
        problems.report(*key, message, help);
    }
    authentication
}

/// Adds the claims that limits and plans come from, and reports rules that need tokens if there are none.
pub(crate) fn add_claims(config: &mut Config, start: Place, problems: &mut Problems<'_>) {
    let rules = config.policy.rules.iter();
    let limits = rules.filter_map(|rule| Some((Some(rule.id()), rule.limit_attribute()?)));
    let plan = config.policy.tiers.plan_attribute();
    let attributes = limits.chain(plan.map(|attribute| (None, attribute)));
    if let Some(user) = config.authentication.add_claims(attributes) {
        let (who, what) = match user {
            Some(rule) => (format!("the rule `{rule}` takes its limit"), "limit"),
            None => ("`plan_from` takes the plan".to_owned(), "plan"),
        };
        let message = format!("{who} from a token, and there are no tokens");
        let help = format!(
            "add `authentication.jwt`, or take the {what} from an attribute: `attributes.NAME`"
        );
        problems.report(start, message, help);
    }
}

fn jwt(
    field: &Field<RawJwt>,
    env: Env<'_>,
    files: bool,
    problems: &mut Problems<'_>,
) -> Option<Jwt> {
    let Field::Given { key, at } = field else {
        return None;
    };
    let raw = &at.value;
    let sources = [
        ("jwks_file", raw.jwks_file.key()),
        ("jwks_url", raw.jwks_url.key()),
        ("secret", raw.secret.key()),
    ];
    let given: Vec<_> = sources.iter().filter(|(_, key)| key.is_some()).collect();
    match given.as_slice() {
        [] => problems.report(*key, "`jwt` has no keys", NO_KEYS_HELP),
        [(one, _), (other, Some(place)), ..] => {
            let message = format!("`{one}` and `{other}` cannot be used together");
            problems.report(*place, message, "keep one of them");
        }
        _ => {}
    }
    let mut refresh = Span::from_secs(300);
    duration_in(&raw.refresh, &mut refresh, 10_000..=86_400_000, problems);
    if let (Some(key), true) = (raw.refresh.key(), raw.jwks_url.is_absent()) {
        let message = "`refresh` without `jwks_url` has no effect";
        let help = "remove it: a file is read again when it changes";
        problems.report(key, message, help);
    }
    let mut leeway = Span::from_secs(30);
    duration_in(&raw.leeway, &mut leeway, 0..=600_000, problems);
    let keys = keys(raw, refresh, env, files, problems);
    let algorithms = algorithms(raw, problems);
    let claims = match raw.claims.is_absent() {
        true => vec![("user".into(), "sub".to_owned())],
        false => mapped(&raw.claims, |claim| claim.0.clone(), problems),
    };
    let issuers = texts("issuer", &raw.issuer, env, problems);
    let audiences = texts("audience", &raw.audience, env, problems);
    let scopes = scopes(raw.scopes.value(), problems);
    Some(Jwt {
        keys: keys?,
        algorithms,
        issuers,
        audiences,
        scopes,
        leeway,
        claims,
    })
}

fn keys(
    raw: &RawJwt,
    refresh: Span,
    env: Env<'_>,
    files: bool,
    problems: &mut Problems<'_>,
) -> Option<JwtKeys> {
    if let Some(at) = raw.jwks_file.get() {
        let path = named_file("jwks_file", &raw.jwks_file, env, files, problems)?;
        if path.starts_with("http://") || path.starts_with("https://") {
            let message = "`jwks_file` is a URL";
            problems.report(at.place, message, "write it as `jwks_url`");
        }
        return Some(JwtKeys::File(path, None));
    }
    if let Some(at) = raw.jwks_url.get() {
        let text = expand(at, env, problems)?;
        let url = problems.accept(
            at.place,
            url(&text, "keys cannot be fetched", JWKS_URL_HELP),
        )?;
        return Some(JwtKeys::Url(url, refresh));
    }
    let at = raw.secret.get()?;
    let secret = expand(at, env, problems)?;
    if secret.len() < MIN_HS_SECRET {
        let message = format!("the secret has only {} bytes", secret.len());
        let help = format!(
            "use at least {MIN_HS_SECRET} random bytes, such as `openssl rand -hex 32` prints"
        );
        problems.report(at.place, message, help);
    }
    Some(JwtKeys::Secret(Secret::new(secret)))
}

/// Returns the algorithms that tokens may use. Reports an algorithm that does not fit the keys.
fn algorithms(raw: &RawJwt, problems: &mut Problems<'_>) -> Vec<JwtAlgorithm> {
    let given = raw.algorithms.value().map_or(&[][..], |list| &list.0);
    if let (Some(key), true) = (raw.algorithms.key(), given.is_empty()) {
        let help = "list the algorithms of your tokens, such as [ES256], or remove `algorithms`";
        problems.report(key, "`algorithms` is empty", help);
    }
    for at in given {
        let name = at.value.name();
        let wrong = match at.value.is_symmetric() {
            true if raw.jwks_url.key().is_some() => Some("`jwks_url`: a secret must not be public"),
            false if raw.secret.key().is_some() => Some("`secret`: it needs a public key"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            let message = format!("{name} cannot be used with {wrong}");
            problems.report(at.place, message, "remove it, or use other keys");
        }
    }
    given.iter().map(|at| at.value).collect()
}

fn api_keys(
    field: &Field<RawApiKeys>,
    env: Env<'_>,
    files: bool,
    problems: &mut Problems<'_>,
) -> Option<ApiKeys> {
    let Field::Given { key, at } = field else {
        return None;
    };
    let raw = &at.value;
    if raw.file.is_absent() {
        let help = "add `file: ./keys.csv`, a table with a column sha256";
        problems.report(*key, "`api_keys` has no `file`", help);
    }
    let header = match raw.header.get() {
        None => Some("x-api-key".to_owned()),
        Some(at) => problems.accept(at.place, credential_header(&at.value.0)),
    };
    Some(ApiKeys {
        file: named_file("file", &raw.file, env, files, problems)?,
        table: Arc::default(),
        header: header?,
    })
}

/// Returns the path of another file. Reports it if the config may not name files.
fn named_file(
    name: &str,
    field: &Field<Text>,
    env: Env<'_>,
    files: bool,
    problems: &mut Problems<'_>,
) -> Option<String> {
    let path = text(name, field, env, problems)?;
    if let (Some(key), false) = (field.key(), files) {
        let message = "a config that is not a file cannot name other files";
        problems.report(key, message, "load the config from a file");
        return None;
    }
    Some(path)
}

/// Returns attributes and their sources. Reports names that cannot be attributes of a credential.
fn mapped<T, U>(
    field: &Field<Named<T>>,
    source: impl Fn(&T) -> U,
    problems: &mut Problems<'_>,
) -> Vec<(Arc<str>, U)> {
    let given = field.value().map_or(&[][..], |named| &named.0);
    let mut mapped: Vec<(Arc<str>, U)> = Vec::new();
    for (name, at) in given {
        if mapped.len() == MAX_MAPPED {
            let message = format!("there are more than {MAX_MAPPED} attributes");
            let help = "keep the attributes that rules use";
            problems.report(name.place, message, help);
            break;
        }
        if mapped.iter().any(|(known, _)| **known == *name.value) {
            let message = format!("the attribute `{}` is given twice", Short(&name.value));
            problems.report(name.place, message, "keep one of the two");
            continue;
        }
        if let Some(name) = problems.accept(name.place, attribute(&name.value)) {
            mapped.push((name, source(&at.value)));
        }
    }
    mapped
}

fn texts(
    name: &str,
    field: &Field<Texts>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<String> {
    let given = field.value().map_or(&[][..], |texts| &texts.0);
    if let (Some(key), true) = (field.key(), given.is_empty()) {
        let help = format!("write a value, or remove `{name}`");
        problems.report(key, format!("`{name}` is empty"), help);
    }
    let mut all = Vec::with_capacity(given.len());
    for at in given {
        let Some(text) = expand(at, env, problems) else {
            continue;
        };
        if text.is_empty() {
            let help = format!("write a value, or remove `{name}`");
            problems.report(at.place, format!("`{name}` is empty"), help);
        }
        all.push(text);
    }
    all
}

fn scopes(given: Option<&List<Text>>, problems: &mut Problems<'_>) -> Vec<String> {
    let given = given.map_or(&[][..], |list| &list.0);
    let is_scope = |at: &&At<Text>| {
        // RFC 6749: printable characters without a space, a quote or a backslash.
        let in_scope = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
        let fits = !at.value.0.is_empty() && at.value.0.bytes().all(in_scope);
        if !fits {
            let message = format!("`{}` cannot be a scope", Short(&at.value.0));
            let help = "write each scope by itself, without spaces and quotes";
            problems.report(at.place, message, help);
        }
        fits
    };
    given
        .iter()
        .filter(is_scope)
        .map(|at| at.value.0.clone())
        .collect()
}

/// Returns the files that a config names here, also if it has problems elsewhere.
pub(crate) fn paths(
    raw: &Field<RawAuthentication>,
    folder: &Path,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<PathBuf> {
    let raw = raw.value();
    let jwks = raw.and_then(|it| it.jwt.value()).map(|it| &it.jwks_file);
    let keys = raw.and_then(|it| it.api_keys.value()).map(|it| &it.file);
    let given = [jwks, keys].into_iter().flatten();
    let given = given.filter_map(|field| expand(field.get()?, env, problems));
    given.map(|path| folder.join(path)).collect()
}

/// Reads the key set and the API keys that `config` names. Paths are relative to `folder`.
pub(crate) fn read_files(config: &mut Config, folder: &Path) -> Result<(), ConfigError> {
    let mut read = |path: &str, what: &str, most: u64| -> Result<(String, String), ConfigError> {
        let path = folder.join(path);
        let text = tenant_files::read(&path, what, most)?;
        let version = &mut config.policy.version;
        let mut hasher = blake3::Hasher::new();
        hasher.update(version.as_bytes());
        hasher.update(text.as_bytes());
        *version = hasher.finalize().to_hex()[..12].to_owned();
        let name = path.display().to_string();
        config.files.push(path);
        Ok((name, text))
    };
    let authentication = &mut config.authentication;
    if let Some(Jwt {
        keys: JwtKeys::File(path, set),
        ..
    }) = &mut authentication.jwt
    {
        let (name, text) = read(path, "key set", MAX_JWKS)?;
        let mut problems = Problems::new(&text);
        let keys = JwkSet::read(&mut problems);
        if !problems.is_empty() {
            return Err(problems.into_error(&name));
        }
        *set = Some(Arc::new(keys));
    }
    if let Some(keys) = &mut authentication.api_keys {
        let (name, text) = read(&keys.file, "table of API keys", MAX_API_KEYS)?;
        let mut problems = Problems::new(&text);
        let table = ApiKeyTable::read(&mut problems);
        if !problems.is_empty() {
            return Err(problems.into_error(&name));
        }
        keys.table = Arc::new(table);
    }
    Ok(())
}
