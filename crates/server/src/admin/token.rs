//! Tokens: stored as hashes, compared in constant time.

use std::sync::Arc;

use constant_time_eq::constant_time_eq_32;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use tollgate_config::{Role, Token};

/// The client of a request, and its role.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    pub(super) name: Arc<str>,
    pub(super) role: Role,
}

/// The hashes of all tokens of a listener.
pub(super) struct Tokens(Vec<([u8; 32], Operator)>);

impl Tokens {
    pub(super) fn new(tokens: &[Token]) -> Tokens {
        let known = tokens.iter().map(|token| {
            let (name, role) = (token.name.as_str().into(), token.role);
            (token.sha256, Operator { name, role })
        });
        Tokens(known.collect())
    }

    /// Returns the client that sends these headers; `None` if its token is unknown. Without tokens,
    /// every client is `anonymous` and has every role.
    pub(super) fn who(&self, headers: &HeaderMap) -> Option<Operator> {
        if self.0.is_empty() {
            return Some(Operator {
                name: "anonymous".into(),
                role: Role::Admin,
            });
        }
        let header = headers.get(AUTHORIZATION)?.as_bytes();
        let (scheme, given) = header.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return None;
        }
        let hash: [u8; 32] = Sha256::digest(given.trim_ascii()).into();
        // All tokens are compared, so that the time does not show which one was close.
        let mut found = None;
        for (sha256, who) in &self.0 {
            if constant_time_eq_32(sha256, &hash) {
                found = Some(who);
            }
        }
        found.cloned()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn who(header: Option<&'static str>) -> Option<String> {
        let sha256 = |text: &str| -> String {
            let digest = Sha256::digest(text);
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let yaml = format!(
            "version: 1\nrules: []\nserver:\n  admin:\n    address: 127.0.0.1:0\n    tokens:\n\
             \x20     - {{ name: grafana, role: read, sha256: {} }}\n\
             \x20     - {{ name: ops, role: admin, sha256: {} }}\n",
            sha256("one"),
            sha256("two")
        );
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let tokens = Tokens::new(&config.server.admin.unwrap().tokens);
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(header));
        }
        tokens.who(&headers).map(|who| who.name.to_string())
    }

    #[test]
    fn token_is_recognised_by_its_hash() {
        assert_eq!(who(Some("Bearer two")).as_deref(), Some("ops"));
        assert_eq!(who(Some("bearer  one ")).as_deref(), Some("grafana"));
        for wrong in ["Bearer three", "Basic two", "Bearer", "Bearer ", "two"] {
            assert_eq!(who(Some(wrong)), None, "{wrong}");
        }
        assert_eq!(who(None), None);
    }
}
