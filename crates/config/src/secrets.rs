//! The parts of a config that are never shown: passwords, secrets, and the logins of URLs.
//!
//! Secrets are found by name and form before anything else is read. So a secret is hidden even under a
//! misspelt name, in the wrong place, or in a file that is not YAML. Rules, plans and tenants hold no
//! secrets and are skipped.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tollgate_rules::document::{Node, Place, Problems, Value, nearest, secret_part};

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `secret`, so that it is never printed.
    #[must_use]
    pub fn new(secret: String) -> Secret {
        Secret(secret)
    }

    /// Returns the bytes, to hash or to log in with.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The fields that hold a secret.
const NAMES: [&str; 6] = [
    "password",
    "sentinel_password",
    "hash_secret",
    "previous_hash_secrets",
    "tokens",
    "sha256",
];

/// Parts of names that suggest a secret.
const HINTS: [&str; 5] = ["pass", "pwd", "secret", "auth", "token"];

/// The fields of a token that may be shown. The hash is hidden: a user may have written the token
/// itself there.
const SHOWN: [&str; 3] = ["name", "role", "scopes"];

/// Keeps the secrets of a config out of every rendering.
pub(crate) fn hide(root: &Node, problems: &mut Problems<'_>) {
    let mut hiding = Hiding {
        seen: HashSet::new(),
        problems,
    };
    let Value::Map(entries) = &root.value else {
        return hiding.below(root, Hide::Nothing);
    };
    for (key, value) in entries.iter() {
        // Users choose the names in these sections, so a name says nothing about a secret.
        let named = [
            "rules",
            "routes",
            "attributes",
            "budgets",
            "plans",
            "tenants",
        ];
        if !key.text().is_some_and(|key| named.contains(&key)) {
            // The part of a webhook URL after the host is often its only credential.
            let hide = match key.text() {
                Some("events") => Hide::Urls,
                _ => Hide::Nothing,
            };
            hiding.entry(key, value, hide);
        }
    }
}

/// Which values below a node are secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Hide {
    /// Only values with a name or a form that shows that they are secret.
    Nothing,
    /// The values that `Nothing` hides, and whole URLs.
    Urls,
    /// All values but the fields of a token that may be shown.
    Tokens,
    All,
}

impl Hide {
    /// Returns which values below `key` are secret.
    fn below(self, key: Option<&str>) -> Hide {
        match (self, key) {
            (Hide::Nothing, Some("tokens")) => Hide::Tokens,
            (Hide::Nothing | Hide::Urls, Some(key)) if names_secret(key) => Hide::All,
            (Hide::Urls, _) => Hide::Urls,
            (Hide::Tokens, Some(key)) if SHOWN.contains(&key) => Hide::Nothing,
            (Hide::Nothing, _) => Hide::Nothing,
            (Hide::Tokens | Hide::All, _) => Hide::All,
        }
    }
}

struct Hiding<'p, 's> {
    /// Values that were visited, by memory address, so that an alias is followed once.
    seen: HashSet<(usize, Hide)>,
    problems: &'p mut Problems<'s>,
}

impl Hiding<'_, '_> {
    fn below(&mut self, node: &Node, hide: Hide) {
        let address = match &node.value {
            Value::Scalar { text, .. } => Arc::as_ptr(text).cast::<()>().addr(),
            Value::List(items) => Arc::as_ptr(items).cast::<()>().addr(),
            Value::Map(entries) => Arc::as_ptr(entries).cast::<()>().addr(),
            Value::Broken => return,
        };
        if !self.seen.insert((address, hide)) {
            return;
        }
        match &node.value {
            Value::Scalar { text, .. } if hide == Hide::Urls && !text.contains("://") => {}
            Value::Scalar { text, .. } if hide != Hide::Nothing => {
                if !is_reference(text) {
                    self.problems.keep_secret(node.place);
                }
            }
            Value::Scalar { text, .. } => self.url(node, text),
            Value::List(items) => items.iter().for_each(|item| self.below(item, hide)),
            Value::Map(entries) => {
                for (key, value) in entries.iter() {
                    self.entry(key, value, hide);
                }
            }
            Value::Broken => {}
        }
    }

    fn entry(&mut self, key: &Node, value: &Node, hide: Hide) {
        let known = |key: &str| key == "sha256" || SHOWN.contains(&key);
        if hide != Hide::Tokens || !key.text().is_some_and(known) {
            self.below(key, hide);
        }
        self.below(value, hide.below(key.text()));
    }

    fn url(&mut self, node: &Node, text: &str) {
        let Some(part) = secret_part(text) else {
            return;
        };
        let start = node.place.start + usize::from(!node.is_plain());
        let written = self.problems.source().get(start..start + text.len());
        let place = match written == Some(text) {
            true => Place::new(start + part.start, start + part.end),
            // The text is escaped or folded, so offsets in it are not offsets in the source.
            false => node.place,
        };
        self.problems.keep_secret(place);
    }
}

/// Hides secrets line by line, in a text that is not valid YAML.
pub(crate) fn hide_in_text(problems: &mut Problems<'_>) {
    let mut start = 0;
    for line in problems.source().split_inclusive('\n') {
        let shown = line.trim_end();
        let mut after = 0;
        for part in shown.split_inclusive(':') {
            after += part.len();
            let name = part.trim_end_matches([':', '"', '\'', ' ']);
            let name = name.rsplit(['"', '\'', ' ', '{', ',', '\t']).next();
            let value = shown[after..].trim_start().trim_matches(['"', '\'']);
            if part.ends_with(':') && name.is_some_and(names_secret) && !is_reference(value) {
                problems.keep_secret(Place::new(start + after, start + shown.len()));
                break;
            }
        }
        for part in [secret_part(shown), target(shown)].into_iter().flatten() {
            problems.keep_secret(Place::new(start + part.start, start + part.end));
        }
        start += line.len();
    }
}

fn names_secret(name: &str) -> bool {
    // A name of this length is not a misspelling of a secret's name.
    if !(3..=32).contains(&name.len()) {
        return false;
    }
    // A section, and the method of a credential: the secrets in it have names of their own.
    if name == "authentication" {
        return false;
    }
    let plain = name.to_ascii_lowercase();
    let hints = HINTS.iter().any(|hint| plain.contains(hint));
    !plain.ends_with("_file") && (hints || nearest(name, NAMES).is_some())
}

/// Whether a text is only a reference such as `${VAR}`, which is not secret.
fn is_reference(text: &str) -> bool {
    let name = text.strip_prefix("${").and_then(|it| it.strip_suffix('}'));
    let in_names = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.is_some_and(|name| name.bytes().all(in_names))
}

/// Finds the part of a URL after the host, in a line that may hold the URL of a webhook.
fn target(line: &str) -> Option<Range<usize>> {
    let mut schemes = ["http://", "https://"].into_iter();
    let host = schemes.find_map(|scheme| Some(line.find(scheme)? + scheme.len()))?;
    let slash = line[host..].find('/')?;
    Some(host + slash..line.len())
}

#[cfg(test)]
mod tests {
    use tollgate_rules::document::parse_document;

    use super::*;

    /// Renders the source as errors show it.
    fn shown(source: &str) -> String {
        let mut problems = Problems::new(source);
        match parse_document("", &mut problems) {
            Some(root) => hide(&root, &mut problems),
            None => hide_in_text(&mut problems),
        }
        for (start, _) in source.match_indices('\n') {
            problems.report(Place::new(start, start), "here", "there");
        }
        let error = problems.into_error("x.yaml");
        format!("{error}{error:?}{}", error.render_color())
    }

    #[test]
    fn secrets_are_hidden_wherever_they_are() {
        for source in [
            // Invalid YAML.
            "store: { redis: { password: hunter2\nx\n",
            "store: { redis: { 'password' : \"hunter2\nx\n",
            "store: [ redis://app:hunter2@host\nx:\n",
            "password: hunter2\n\tx: 1\n",
            "a: [\npasword: hunter2 }\n",
            "events: { webhook: { url: https://h/services/hunter2\nx\n",
            // Valid YAML.
            "store: { redis: { password: hunter2 } }\n",
            "store: { redis: { pasword: 'hunter2' } }\n",
            "store: { redis: { password: [a, { b: hunter2 }] } }\n",
            "store:\n  redis:\n    sentinel-password: \"hunter2\"\n",
            "password: hunter2\n",
            "requirepass: hunter2\nPWD: hunter2\n",
            "password: ${A}hunter2\n",
            "password: &p hunter2\nx: *p\n",
            "- password: hunter2\n",
            "store: redis://app:hunter2@host\n",
            "store: { redis: { urls: [redis://h, \"redis://app:hunter2@host\"] } }\n",
            "store: { redis: { url: \"redis://app:\\x68unter2hunter2@host\" } }\n",
            "redis://app:hunter2@host: x\n",
            "subjects: { hash_secret: hunter2 }\n",
            "subjects: { previous_hash_secrets: [hunter2, ${A}hunter2] }\n",
            "server: { admin: { tokens: [{ name: a, sha256: hunter2 }] } }\n",
            "server: { admin: { tokens: [{ name: a, SHA256: hunter2, x: [hunter2] }] } }\n",
            "server: { admin: { tokens: [hunter2, { hunter2: read }] } }\n",
            "server: { admin: { tokens: { ops: hunter2 } } }\n",
            "server: { admin: { token: hunter2, tokns: [hunter2] } }\n",
            "server: { tokens: [{ name: a, scopes: [check], sha256: hunter2 }, hunter2] }\n",
            "server: { http: { tokens: [hunter2] } }\n",
            "ledger: { postgres: \"postgres://app:hunter2@db/t\" }\n",
            "ledger: { postgres: postgres://db/t?password=hunter2 }\n",
            "events: { webhook: { url: https://h/services/hunter2, secret: hunter2 } }\n",
            "authentication: { jwt: { secret: hunter2 } }\n",
            "events: { webhok: [\"https://h?token=hunter2\"] }\n",
        ] {
            let shown = shown(source);
            assert!(!shown.contains("hunter2"), "{source}{shown}");
        }
    }

    #[test]
    fn other_values_are_shown() {
        for source in [
            "password: \"${REDIS_PASSWORD}\" # shown\n",
            "password_file: /run/secrets/shown\n",
            "store: { redis: { url: redis://shown:6379 } }\n",
            "rules: [{ match: { password: shown } }]\n",
            "ledger: { postgres_url_file: /run/secrets/shown }\n",
            "events: { webhook: { url: \"${HOOK}\", timeout: shown } }\n",
            "authentication: { jwt: { issuer: shown } }\n",
            "server: { admin: { tokens: [{ name: shown, sha256: x }] } }\n",
            "server: { admin: { tokens: [{ sha256: x, role: shown }] } }\n",
            "server: { tokens: [{ sha256: x, scopes: [shown] }] }\n",
        ] {
            let shown = shown(source);
            assert!(shown.contains("shown"), "{source}{shown}");
        }
        assert!(shown("password: ${NAME}\n").contains("${NAME}"));
    }
}
