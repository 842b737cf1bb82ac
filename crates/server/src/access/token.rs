//! Tokens: stored as hashes, compared in constant time.

use constant_time_eq::constant_time_eq_32;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

/// The header for the token of a proxy that asks forward-auth. The proxy may pass on the
/// `Authorization` of its own client.
const TOLLGATE_TOKEN: HeaderName = HeaderName::from_static("tollgate-token");

/// The SHA-256 hash of a token.
pub(crate) type Hash = [u8; 32];

/// The hashes of all tokens of a door, and what each token grants.
pub(crate) struct Tokens<G>(Vec<(Hash, G)>);

impl<G> Tokens<G> {
    /// Returns what each token grants.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &G> {
        self.0.iter().map(|(_, grant)| grant)
    }
}

impl<G> FromIterator<(Hash, G)> for Tokens<G> {
    fn from_iter<I: IntoIterator<Item = (Hash, G)>>(tokens: I) -> Tokens<G> {
        Tokens(tokens.into_iter().collect())
    }
}

impl<G> Tokens<G> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the hash of a token, and what the token grants; `None` if the token is unknown.
    pub(crate) fn find(&self, token: &[u8]) -> Option<(Hash, &G)> {
        let hash: Hash = Sha256::digest(token).into();
        Some((hash, self.by_hash(&hash)?))
    }

    /// Returns what the token with this hash grants; `None` if there is no such token.
    pub(crate) fn by_hash(&self, hash: &Hash) -> Option<&G> {
        // All tokens are compared, so that the time does not show which one was close.
        let mut found = None;
        for (sha256, grant) in &self.0 {
            if constant_time_eq_32(sha256, hash) {
                found = Some(grant);
            }
        }
        found
    }
}

/// What a request shows to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown<'h> {
    Nothing,
    Token(&'h [u8]),
    /// Something else, such as a password.
    Other,
}

/// Returns the token in `Authorization: Bearer`.
pub(crate) fn bearer(headers: &HeaderMap) -> Shown<'_> {
    let Some(header) = headers.get(AUTHORIZATION) else {
        return Shown::Nothing;
    };
    match header.as_bytes().split_at_checked(7) {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
            Shown::Token(given.trim_ascii())
        }
        _ => Shown::Other,
    }
}

/// Returns the token in `Tollgate-Token` or, without that header, in `Authorization: Bearer`.
pub(crate) fn proxy_token(headers: &HeaderMap) -> Shown<'_> {
    match headers.get(TOLLGATE_TOKEN) {
        Some(header) => Shown::Token(header.as_bytes().trim_ascii()),
        None => bearer(headers),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        headers
    }

    #[test]
    fn token_is_recognised_by_its_hash() {
        let hash = |token: &str| -> Hash { Sha256::digest(token).into() };
        let tokens: Tokens<&str> = [(hash("one"), "grafana"), (hash("two"), "ops")]
            .into_iter()
            .collect();
        let who = |header: &'static str| match bearer(&headers("authorization", header)) {
            Shown::Token(token) => tokens.find(token).map(|(_, who)| *who),
            Shown::Nothing | Shown::Other => None,
        };
        assert_eq!(who("Bearer two"), Some("ops"));
        assert_eq!(who("bearer  one "), Some("grafana"));
        for wrong in ["Bearer three", "Basic two", "Bearer", "Bearer ", "two"] {
            assert_eq!(who(wrong), None, "{wrong}");
        }
        assert_eq!(bearer(&HeaderMap::new()), Shown::Nothing);
    }

    #[test]
    fn token_of_a_proxy_may_stand_beside_that_of_its_client() {
        let mut both = headers("authorization", "Bearer client");
        assert_eq!(proxy_token(&both), Shown::Token(b"client"));
        both.insert(TOLLGATE_TOKEN, HeaderValue::from_static("proxy"));
        assert_eq!(proxy_token(&both), Shown::Token(b"proxy"));
        assert_eq!(bearer(&both), Shown::Token(b"client"));
    }
}
