//! Tokens: those of the admin door have a role, those of the data doors have scopes.

use std::fmt;

use tollgate_rules::document::{At, Field, List, Place, Problems, Short, Text, words};
use tollgate_rules::{ID_HELP, is_id};

use super::raw::{RawDataToken, RawToken};
use crate::fields::{Env, expand};

const MAX_TOKENS: usize = 256;
/// Names that the audit trail uses for changes without a token.
const RESERVED_NAMES: [&str; 5] = ["anonymous", "clock", "file", "rollback", "signal"];
const TOKEN_HELP: &str =
    "write the 64 hexadecimal digits that `printf %s \"$TOKEN\" | sha256sum` prints";
/// The SHA-256 hash of the empty text.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A token of the admin door.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Token {
    /// The name of the token's owner, for the audit trail.
    pub name: String,
    /// What the token allows.
    pub role: Role,
    /// The SHA-256 hash of the token.
    pub sha256: [u8; 32],
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = &mut f.debug_struct("Token");
        token.field("name", &self.name).field("role", &self.role);
        token.finish_non_exhaustive()
    }
}

/// A token of the data doors.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataToken {
    /// The name of the token's owner, for the log.
    pub name: String,
    /// What the token allows.
    pub scopes: TokenScopes,
    /// The SHA-256 hash of the token.
    pub sha256: [u8; 32],
}

impl fmt::Debug for DataToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = &mut f.debug_struct("DataToken");
        let token = token.field("name", &self.name);
        token.field("scopes", &self.scopes).finish_non_exhaustive()
    }
}

words! {
    /// What a token allows at the admin door. Each role includes the roles before it.
    pub enum Role is "a role" {
        /// Read everything.
        Read = "read",
        /// Also reset counters, refund units, override limits, and correct the ledger.
        Operate = "operate",
        /// Also change the rules and everything else.
        Admin = "admin",
    }
}

impl Role {
    /// Whether this role allows everything that `other` allows.
    #[must_use]
    pub fn includes(self, other: Role) -> bool {
        self as u8 >= other as u8
    }
}

words! {
    /// A part of what a token allows at the data doors.
    pub enum TokenScope is "a scope" {
        /// Check and peek, also by forward-auth, Envoy and `CL.THROTTLE`.
        Check = "check",
        /// Make and end reservations and leases, list the holders of leases, and report latencies.
        Reserve = "reserve",
        /// Give back what a check charged.
        Refund = "refund",
        /// Read the usage of tenants.
        Usage = "usage",
        /// Read `/metrics`.
        Metrics = "metrics",
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenScopes(u8);

impl TokenScopes {
    /// No scope.
    pub const NONE: TokenScopes = TokenScopes(0);
    /// Every scope.
    pub const ALL: TokenScopes = TokenScopes(u8::MAX);

    /// Whether `scope` is in the set.
    #[must_use]
    pub fn includes(self, scope: TokenScope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }
}

impl FromIterator<TokenScope> for TokenScopes {
    fn from_iter<I: IntoIterator<Item = TokenScope>>(scopes: I) -> TokenScopes {
        let bits = scopes.into_iter().map(|scope| 1 << scope as u8);
        TokenScopes(bits.fold(0, |all, bit| all | bit))
    }
}

words! {
    /// Whether clients of a data door need a token, if the server has tokens.
    pub(crate) enum DoorTokens is "a setting for tokens" {
        /// Clients need a token.
        Required = "required",
        /// Clients need no token.
        Off = "off",
    }
}

/// Reads the tokens of the admin door.
pub(super) fn admin_tokens(
    given: &At<List<RawToken>>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<Token> {
    let help = "list at least one token; on a loopback address you may leave `tokens` out to admit everyone";
    let role = |at: &At<RawToken>, problems: &mut Problems<'_>| {
        let name = at.value.name.get();
        if let Some(name) = name.filter(|it| RESERVED_NAMES.contains(&it.value.0.as_str())) {
            let message = format!("`{}` cannot be the name of a token", Short(&name.value.0));
            let help = "the audit trail uses this name for changes that no token asked for: choose another";
            problems.report(name.place, message, help);
        }
        if at.value.role.is_absent() {
            let help = "write `role: read`, `operate` or `admin`";
            problems.report(start(at), "this token has no `role`", help);
        }
        at.value.role.value().copied()
    };
    let fields: Fields<RawToken> = |it| (&it.name, &it.sha256);
    let read = tokens(given, help, fields, role, env, problems);
    let read = read
        .into_iter()
        .map(|(name, role, sha256)| Token { name, role, sha256 });
    read.collect()
}

/// Reads the tokens of the data doors.
pub(super) fn data_tokens(
    given: &At<List<RawDataToken>>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<DataToken> {
    let help = "list at least one token, or leave `tokens` out to admit everyone";
    let scopes = |at: &At<RawDataToken>, problems: &mut Problems<'_>| {
        let help = "list what the token allows, such as `scopes: [check]`";
        if at.value.scopes.is_absent() {
            problems.report(start(at), "this token has no `scopes`", help);
        }
        let given = at.value.scopes.get()?;
        let List(scopes) = &given.value;
        // Words that are not scopes were reported already, and are not in the list.
        let written = problems.source().get(given.place.start..given.place.end);
        let has_words = written.is_some_and(|it| it.contains(char::is_alphanumeric));
        if scopes.is_empty() && !has_words {
            problems.report(given.place, "`scopes` is empty", help);
        }
        Some(scopes.iter().map(|scope| scope.value).collect())
    };
    let fields: Fields<RawDataToken> = |it| (&it.name, &it.sha256);
    let read = tokens(given, help, fields, scopes, env, problems);
    let read = read.into_iter().map(|(name, scopes, sha256)| DataToken {
        name,
        scopes,
        sha256,
    });
    read.collect()
}

/// Returns the start of a token, as the place of problems with fields that are missing.
fn start<T>(at: &At<T>) -> Place {
    Place::new(at.place.start, at.place.start)
}

/// Returns the fields that every token has: the name and the hash.
type Fields<T> = fn(&T) -> (&Field<Text>, &Field<Text>);

/// Reads tokens. `grant` returns what a token allows.
fn tokens<T, G>(
    given: &At<List<T>>,
    empty_help: &str,
    fields: Fields<T>,
    grant: impl Fn(&At<T>, &mut Problems<'_>) -> Option<G>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<(String, G, [u8; 32])> {
    let List(raw) = &given.value;
    if raw.is_empty() {
        problems.report(given.place, "`tokens` is empty", empty_help);
    }
    if let Some(at) = raw.get(MAX_TOKENS) {
        let message = format!("there are more than {MAX_TOKENS} tokens");
        problems.report(at.place, message, "give a team one token");
    }
    let mut tokens: Vec<(String, G, [u8; 32])> = Vec::new();
    for at in raw.iter().take(MAX_TOKENS) {
        let (name_field, hash_field) = fields(&at.value);
        let name = name(at, name_field, problems);
        let grant = grant(at, problems);
        let sha256 = hash(at, hash_field, env, problems);
        let (Some(name), Some(grant), Some(sha256)) = (name, grant, sha256) else {
            continue;
        };
        if let Some((other, ..)) = tokens.iter().find(|(other, ..)| *other == name) {
            let place = name_field.get().map_or(at.place, |it| it.place);
            let message = format!("there are two tokens named `{other}`");
            let help = "give each token its own name: logs and the audit trail show the name";
            problems.report(place, message, help);
        } else if let Some((other, ..)) = tokens.iter().find(|(.., other)| *other == sha256) {
            let place = hash_field.get().map_or(at.place, |it| it.place);
            let message = format!("`{other}` and `{name}` are the same token");
            let help = "give each its own token: logs and the audit trail tell callers apart by it";
            problems.report(place, message, help);
        }
        tokens.push((name, grant, sha256));
    }
    tokens
}

fn name<T>(at: &At<T>, field: &Field<Text>, problems: &mut Problems<'_>) -> Option<String> {
    if field.is_absent() {
        let help = "name its owner for logs and the audit trail, such as `name: ops`";
        problems.report(start(at), "this token has no `name`", help);
    }
    let name = field.get()?;
    if !is_id(&name.value.0) {
        let message = format!("`{}` cannot be the name of a token", Short(&name.value.0));
        problems.report(name.place, message, ID_HELP);
    }
    Some(name.value.0.clone())
}

fn hash<T>(
    at: &At<T>,
    field: &Field<Text>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<[u8; 32]> {
    if field.is_absent() {
        problems.report(start(at), "this token has no `sha256`", TOKEN_HELP);
    }
    let hash = field.get()?;
    let text = expand(hash, env, problems)?;
    let digest = digest(&text);
    // The messages do not quote the text: it may be the token itself.
    if digest.is_none() {
        problems.report(hash.place, "this is not a SHA-256 hash", TOKEN_HELP);
    } else if text.eq_ignore_ascii_case(EMPTY) {
        problems.report(hash.place, "this is the hash of an empty token", TOKEN_HELP);
    }
    digest
}

/// Returns the bytes of 64 hexadecimal digits; `None` if the text is anything else.
fn digest(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits: [u32; 64] = digits?.try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::try_from(pair[0] * 16 + pair[1]).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_has_the_scopes_that_it_was_made_of() {
        let every = [
            TokenScope::Check,
            TokenScope::Reserve,
            TokenScope::Refund,
            TokenScope::Usage,
            TokenScope::Metrics,
        ];
        assert_eq!(every.len(), TokenScope::WORDS.len());
        for scope in every {
            let alone = TokenScopes::from_iter([scope]);
            let included = every.map(|other| alone.includes(other));
            assert_eq!(included, every.map(|other| other == scope));
            assert!(TokenScopes::ALL.includes(scope));
            assert!(!TokenScopes::NONE.includes(scope));
        }
    }
}
