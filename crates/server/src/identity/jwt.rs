//! Tokens (JWT, RFC 7519): their format, their signature, and their claims.
//!
//! A token says which algorithm and which key verify it, and an attacker writes that part. So the kind of
//! the key decides which algorithms may use it, `kid` is only looked up in the keys of the config, and
//! every other field of the header is ignored: no key and no URL is taken from a token. A token with a critical
//! extension is rejected. There is no way to accept a token without a signature.
//!
//! Signatures are verified with `ring`, which the server uses for TLS as well.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{hmac, signature};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tollgate::{Clock, Time};
use tollgate_config::{Jwk, Jwt, JwtAlgorithm, KeyMaterial};

use super::jwks::{KeySource, Keys};
use super::verified::Verified;
use super::{IdentityError, Pair, with_subject};
use crate::http::bounds::MAX_VALUE;

/// The longest token. Longer ones are rejected unread.
pub(crate) const MAX_TOKEN: usize = 8 * 1024;

/// How many keys are tried for a token that names none.
const MAX_TRIED: usize = 4;

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the token is longer than {MAX_TOKEN} bytes")]
    TooLong,
    #[error("the token is malformed")]
    Malformed,
    #[error("the token has an extension that is not supported")]
    Critical,
    #[error("the algorithm of the token is not accepted")]
    Algorithm,
    #[error("the key of the token is not known")]
    UnknownKey,
    #[error("the signature of the token is wrong")]
    Signature,
    #[error("the token has no expiry")]
    NoExpiry,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token has another issuer")]
    Issuer,
    #[error("the token is for another audience")]
    Audience,
    #[error("a claim of the token is longer than {MAX_VALUE} bytes")]
    LongClaim,
}

/// Verifies tokens.
pub(super) struct Tokens {
    config: Jwt,
    keys: KeySource,
    verified: Verified,
    clock: Arc<dyn Clock>,
}

/// The fields of a header that are read.
#[derive(Deserialize)]
struct Header<'t> {
    #[serde(borrow)]
    alg: Cow<'t, str>,
    #[serde(borrow, default)]
    kid: Option<Cow<'t, str>>,
    #[serde(default)]
    crit: Option<IgnoredAny>,
}

/// A token that was split. Its signature is not verified yet.
struct Split<'t> {
    header: &'t str,
    payload: &'t str,
    signature: Vec<u8>,
    /// The part that the signature is made of.
    signed: &'t str,
}

impl Tokens {
    pub(super) fn new(config: Jwt, keys: KeySource, clock: Arc<dyn Clock>) -> Tokens {
        Tokens {
            config,
            keys,
            verified: Verified::default(),
            clock,
        }
    }

    /// Verifies a token, and returns its attributes.
    pub(super) async fn verify(&self, token: &str) -> Result<Arc<[Pair]>, IdentityError> {
        let now = self.clock.now();
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        // Without keys, the token is not verified.
        let keys = self.keys.current().await.ok_or(IdentityError::NoKeys)?;
        if let Some(known) = self.verified.find(&hash, keys.generation, now) {
            return Ok(known);
        }
        let (claims, keys) = self.verify_signature(token, keys).await?;
        let expires = self.check_claims(&claims, now)?;
        self.check_scopes(&claims)?;
        let attributes = self.attributes(&claims)?;
        let entry = Arc::clone(&attributes);
        self.verified.add(hash, keys.generation, expires, entry);
        Ok(attributes)
    }

    /// Verifies the signature, and returns the claims with the keys that were used. A key that is not
    /// known may be new, and so may a key without an id: then the keys are fetched again, within a bound.
    async fn verify_signature(
        &self,
        token: &str,
        mut keys: Arc<Keys>,
    ) -> Result<(Map<String, Value>, Arc<Keys>), IdentityError> {
        let split = Split::new(token)?;
        let header = decode(split.header)?;
        let header: Header<'_> =
            serde_json::from_slice(&header).map_err(|_| TokenError::Malformed)?;
        if header.crit.is_some() {
            return Err(TokenError::Critical.into());
        }
        let algorithm = JwtAlgorithm::from_name(&header.alg).ok_or(TokenError::Algorithm)?;
        let accepted = &self.config.algorithms;
        if !accepted.is_empty() && !accepted.contains(&algorithm) {
            return Err(TokenError::Algorithm.into());
        }
        let named = header.kid.as_deref();
        if let Err(error) = split.check_signature(&keys, named, algorithm) {
            // A key with the id of the token does not change. Without ids, a new key looks like a wrong signature.
            if keys.knows_by_id(named) {
                return Err(error.into());
            }
            let newer = self.keys.newer(keys.generation).await;
            keys = newer.ok_or(error)?;
            split.check_signature(&keys, named, algorithm)?;
        }
        let payload = decode(split.payload)?;
        let claims = serde_json::from_slice(&payload).map_err(|_| TokenError::Malformed)?;
        Ok((claims, keys))
    }

    /// Checks times, issuer and audience. Returns when the token expires.
    fn check_claims(&self, claims: &Map<String, Value>, now: Time) -> Result<Time, TokenError> {
        let leeway = self.config.leeway;
        let expires = date(claims, "exp")?.ok_or(TokenError::NoExpiry)?;
        let expires = expires + leeway;
        if now >= expires {
            return Err(TokenError::Expired);
        }
        for name in ["nbf", "iat"] {
            if date(claims, name)?.is_some_and(|from| now + leeway < from) {
                return Err(TokenError::NotYet);
            }
        }
        let one_of = |name: &str, accepted: &[String]| {
            let is_accepted = |value: &Value| {
                let text = value.as_str();
                text.is_some_and(|text| accepted.iter().any(|it| it == text))
            };
            match claims.get(name) {
                _ if accepted.is_empty() => true,
                Some(Value::Array(all)) => name == "aud" && all.iter().any(is_accepted),
                Some(value) => is_accepted(value),
                None => false,
            }
        };
        if !one_of("iss", &self.config.issuers) {
            return Err(TokenError::Issuer);
        }
        if !one_of("aud", &self.config.audiences) {
            return Err(TokenError::Audience);
        }
        Ok(expires)
    }

    fn check_scopes(&self, claims: &Map<String, Value>) -> Result<(), IdentityError> {
        let has = |scope: &str| {
            ["scope", "scp"].iter().any(|name| match claims.get(*name) {
                Some(Value::String(all)) => all.split(' ').any(|it| it == scope),
                Some(Value::Array(all)) => all.iter().any(|it| it.as_str() == Some(scope)),
                _ => false,
            })
        };
        match self.config.scopes.iter().find(|scope| !has(scope)) {
            None => Ok(()),
            Some(scope) => Err(IdentityError::Scope {
                scope: scope.clone(),
            }),
        }
    }

    /// Turns claims into attributes. A claim that is not a text, a number or a boolean gives none.
    fn attributes(&self, claims: &Map<String, Value>) -> Result<Arc<[Pair]>, TokenError> {
        let mut attributes: Vec<Pair> = Vec::with_capacity(self.config.claims.len() + 3);
        for (name, claim) in &self.config.claims {
            let value = match find(claims, claim) {
                Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => Cow::Owned(value.to_string()),
                _ => continue,
            };
            if value.len() > MAX_VALUE {
                return Err(TokenError::LongClaim);
            }
            attributes.push((Arc::clone(name), value.into()));
        }
        Ok(with_subject(attributes, "jwt"))
    }
}

impl<'t> Split<'t> {
    fn new(token: &'t str) -> Result<Split<'t>, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        if payload.contains('.') {
            return Err(TokenError::Malformed);
        }
        Ok(Split {
            header,
            payload,
            signature: decode(signature)?,
            signed,
        })
    }

    /// Checks the signature with the keys that a token with this `kid` may mean.
    fn check_signature(
        &self,
        keys: &Keys,
        kid: Option<&str>,
        algorithm: JwtAlgorithm,
    ) -> Result<(), TokenError> {
        if !keys.knows(kid) {
            return Err(TokenError::UnknownKey);
        }
        let mut fits = keys
            .named(kid)
            .filter(|key| may_use(key, algorithm))
            .peekable();
        if fits.peek().is_none() {
            return Err(TokenError::Algorithm);
        }
        let message = self.signed.as_bytes();
        let mut tried = fits.take(MAX_TRIED);
        match tried.any(|key| is_signed(key, algorithm, message, &self.signature)) {
            true => Ok(()),
            false => Err(TokenError::Signature),
        }
    }
}

fn decode(text: &str) -> Result<Vec<u8>, TokenError> {
    let decoded = URL_SAFE_NO_PAD.decode(text);
    decoded.map_err(|_| TokenError::Malformed)
}

/// Returns a claim by its name, or by its path with dots.
fn find<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    find(claims.get(first)?.as_object()?, rest)
}

/// Returns a claim that is a time. A claim of another type is not ignored: it might be meant to end the
/// token.
fn date(claims: &Map<String, Value>, name: &str) -> Result<Option<Time>, TokenError> {
    let seconds = match claims.get(name) {
        None => return Ok(None),
        Some(value) => value.as_f64().ok_or(TokenError::Malformed)?,
    };
    if !seconds.is_finite() || seconds < 0.0 {
        return Err(TokenError::Malformed);
    }
    // A number that is too large becomes the largest integer.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let micros = (seconds * 1_000_000.0) as u64;
    Ok(Some(Time::from_micros(micros)))
}

/// Returns whether a key may verify this algorithm.
fn may_use(key: &Jwk, algorithm: JwtAlgorithm) -> bool {
    key.material.fits(algorithm) && key.algorithm.is_none_or(|only| only == algorithm)
}

/// Returns whether `key` has signed `message`.
fn is_signed(key: &Jwk, algorithm: JwtAlgorithm, message: &[u8], given: &[u8]) -> bool {
    let verified = match (&key.material, algorithm) {
        (KeyMaterial::Rsa { n, e }, _) => {
            let Some(parameters) = rsa(algorithm) else {
                return false;
            };
            let key = signature::RsaPublicKeyComponents { n, e };
            key.verify(parameters, message, given)
        }
        (KeyMaterial::P256(point), JwtAlgorithm::Es256) => {
            signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                .verify(message, given)
        }
        (KeyMaterial::P384(point), JwtAlgorithm::Es384) => {
            signature::UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point)
                .verify(message, given)
        }
        (KeyMaterial::Ed25519(key), JwtAlgorithm::EdDsa) => {
            signature::UnparsedPublicKey::new(&signature::ED25519, key).verify(message, given)
        }
        (KeyMaterial::Hmac(secret), _) => {
            let Some(hash) = hmac_of(algorithm) else {
                return false;
            };
            hmac::verify(&hmac::Key::new(hash, secret), message, given)
        }
        _ => return false,
    };
    verified.is_ok()
}

fn rsa(algorithm: JwtAlgorithm) -> Option<&'static signature::RsaParameters> {
    Some(match algorithm {
        JwtAlgorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        JwtAlgorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        JwtAlgorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        JwtAlgorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        JwtAlgorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        JwtAlgorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn hmac_of(algorithm: JwtAlgorithm) -> Option<hmac::Algorithm> {
    Some(match algorithm {
        JwtAlgorithm::Hs256 => hmac::HMAC_SHA256,
        JwtAlgorithm::Hs384 => hmac::HMAC_SHA384,
        JwtAlgorithm::Hs512 => hmac::HMAC_SHA512,
        _ => return None,
    })
}
