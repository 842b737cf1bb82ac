//! Tokens: known by their hash, compared in constant time.

use std::sync::Arc;

use constant_time_eq::constant_time_eq_32;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};

/// What a token may do. Greater roles may do what lesser ones may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look.
    Read,
    /// Reset, and give back.
    Operate,
    /// Change the rules.
    Admin,
}

impl Role {
    /// The name in configs and errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }
}

/// A token by its hash.
#[derive(Clone, Debug)]
pub struct Token {
    name: Arc<str>,
    role: Role,
    sha256: [u8; 32],
}

impl Token {
    /// The token called `name` whose SHA-256 is this.
    #[must_use]
    pub fn new(name: &str, role: Role, sha256: [u8; 32]) -> Token {
        Token {
            name: name.into(),
            role,
            sha256,
        }
    }

    /// What it is called in logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// What it may do.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }
}

/// All tokens of a listener.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Arc<[Token]>);

impl Tokens {
    /// These tokens.
    #[must_use]
    pub fn new(tokens: Vec<Token>) -> Tokens {
        Tokens(tokens.into())
    }

    /// Whose token a request carries. Without tokens, everybody is `anyone` and may do everything.
    pub(super) fn who(&self, headers: &HeaderMap) -> Result<Token, ()> {
        if self.0.is_empty() {
            return Ok(Token::new("anyone", Role::Admin, [0; 32]));
        }
        let header = headers.get(AUTHORIZATION).ok_or(())?.as_bytes();
        let (scheme, given) = header.split_at_checked(7).ok_or(())?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(());
        }
        let hash: [u8; 32] = Sha256::digest(given.trim_ascii()).into();
        // All are compared, so that the time tells nothing of which was close.
        let mut found = None;
        for token in self.0.iter() {
            if constant_time_eq_32(&token.sha256, &hash) {
                found = Some(token.clone());
            }
        }
        found.ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn tokens() -> Tokens {
        let token = |name, role, text: &str| Token::new(name, role, Sha256::digest(text).into());
        Tokens::new(vec![
            token("grafana", Role::Read, "one"),
            token("ops", Role::Admin, "two"),
        ])
    }

    fn who(header: Option<&'static str>) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(header));
        }
        tokens().who(&headers).ok().map(|it| it.name().to_owned())
    }

    #[test]
    fn a_token_is_known_by_its_hash() {
        assert_eq!(who(Some("Bearer two")).as_deref(), Some("ops"));
        assert_eq!(who(Some("bearer  one ")).as_deref(), Some("grafana"));
        for wrong in ["Bearer three", "Basic two", "Bearer", "Bearer ", "two"] {
            assert_eq!(who(Some(wrong)), None, "{wrong}");
        }
        assert_eq!(who(None), None);
    }

    #[test]
    fn greater_roles_may_do_what_lesser_ones_may() {
        assert!(Role::Admin > Role::Operate && Role::Operate > Role::Read);
    }
}
