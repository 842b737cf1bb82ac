//! What changes from one config to another, and for whom, in words.
//!
//! * `rules`: rules and budgets.
//! * `tiers`: plans and tenants.
//! * `numbers`: what numbers become, and for whom.

mod numbers;
mod rules;
mod tiers;

use std::fmt;

use self::numbers::Numbered;
use crate::config::Config;
use crate::server::{Server, Token, UnknownDomain};

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What it is about: a rule, a plan, tenants, a part of the config.
    pub about: String,
    /// What changes, in words.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.what)
    }
}

/// What changes from `old` to `new`, in the order of what is looked at first: the deployment, rules and
/// budgets, plans, tenants.
///
/// ```
/// # use tollgate_rules::{diff, parse};
/// # let rules = |rate: &str| parse("rules.yaml", &format!("
/// # version: 1
/// # rules: [{{ id: api, per: [tenant], algorithm: gcra, rate: {rate} }}]
/// # "), &|_| None);
/// let differences = diff(&rules("10/s")?, &rules("20/s")?);
/// assert_eq!(
///     differences[0].to_string(),
///     "rule api: rate 10/s becomes 20/s: more for who has no plan",
/// );
/// # Ok::<(), tollgate_rules::ConfigError>(())
/// ```
#[must_use]
pub fn diff(old: &Config, new: &Config) -> Vec<Difference> {
    let mut found = Found(Vec::new());
    deployment(old, new, &mut found);
    let (before, after) = (Numbered::new(old), Numbered::new(new));
    rules::rules(&before, &after, &mut found);
    tiers::plans(&before, &after, &mut found);
    tiers::tenants(&before, &after, &mut found);
    found.0
}

struct Found(Vec<Difference>);

impl Found {
    fn note(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.0.push(Difference {
            about: about.into(),
            what: what.into(),
        });
    }
}

/// What the whole deployment is about.
fn deployment(old: &Config, new: &Config, found: &mut Found) {
    if old.namespace != new.namespace {
        let (old, new) = (&old.namespace, &new.namespace);
        let what = format!("{old} becomes {new}: after a restart, every state starts afresh");
        found.note("namespace", what);
    }
    if old.subjects.hash_secret != new.subjects.hash_secret {
        let what = "another one: after a restart, every state starts afresh";
        found.note("subjects.hash_secret", what);
    }
    let restarts = [
        ("store", old.store != new.store),
        ("server", doors(&old.server) != doors(&new.server)),
        ("telemetry", old.telemetry != new.telemetry),
        ("ledger", old.ledger != new.ledger),
        ("events", old.events != new.events),
        (
            "subjects.max_keys",
            old.subjects.max_keys != new.subjects.max_keys,
        ),
    ];
    for (part, _) in restarts.into_iter().filter(|(_, changed)| *changed) {
        found.note(part, "changed: it takes a restart");
    }
    if admitted(&old.server) != admitted(&new.server) {
        found.note(
            "server.admin.tokens",
            "changed: others may enter the admin door",
        );
    }
    let mut subjects = old.subjects.clone();
    subjects.hash_secret.clone_from(&new.subjects.hash_secret);
    subjects.max_keys = new.subjects.max_keys;
    if subjects != new.subjects {
        found.note(
            "subjects",
            "changed: who a request is from may be told otherwise",
        );
    }
    if old.headers != new.headers {
        found.note("headers", "changed: answers say other things");
    }
    if format!("{:?}", old.routes) != format!("{:?}", new.routes) {
        found.note(
            "routes",
            "changed: requests of forward-auth may be other actions",
        );
    }
}

/// What of the doors takes a restart.
fn doors(server: &Server) -> Server {
    let mut server = server.clone();
    if let Some(admin) = &mut server.admin {
        admin.tokens.clear();
    }
    if let Some(grpc) = &mut server.grpc {
        grpc.unknown_domain = UnknownDomain::Allow;
    }
    server
}

fn admitted(server: &Server) -> &[Token] {
    server.admin.as_ref().map_or(&[], |admin| &admin.tokens)
}
