//! Overrides: numbers that operators change at run time, for a subject, a tenant, a plan or everyone. A
//! block is an override too: it denies one subject before any rule.
//!
//! An override is always kept and sent as text: a JSON object, which is read like a policy. So the
//! errors of an override are as clear as the errors of a policy.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tollgate_core::Keyring;

use crate::address;
use crate::document::{
    At, ConfigError, Duration, Factor, Flag, Place, Problems, Read, Text, Whole, parse_document,
    percentage, section,
};
use crate::layers::is_by_tenant;
use crate::limits::Numbers;
use crate::named_subject::{NamedSubject, Owner};
use crate::policy::Policy;
use crate::raw::RawNumbers;
use crate::rule::RuleState;
use crate::zone::ZoneFrom;

const EMPTY_BLOCK: &str = "write a JSON object such as {\"subject\": \"api_key=k1\", \"for\": \"1h\", \"reason\": \"abuse\"}";
const EMPTY: &str =
    "write a JSON object such as {\"tenant\": \"acme\", \"scale\": \"50%\", \"reason\": \"load\"}";
/// Longer texts are rejected unread.
const MAX_BYTES: usize = 16 * 1024;
/// Longer reasons are rejected.
const MAX_REASON: usize = 500;
/// Longer names of tenants, rules and authors are rejected.
const MAX_NAME: usize = 256;
/// A scale of one, in hundredths of a percent.
pub(crate) const WHOLE: u32 = 10_000;

section! {
    /// An override.
    pub(crate) struct RawOverride is "an override" {
        /// The tenant that the override is for.
        tenant: Text = "tenant",
        /// The plan that the override is for.
        plan: Text = "plan",
        /// The subject that the override is for, as `attribute=value`. Only in requests.
        subject: Text = "subject",
        /// The attribute of the subject. Only in stored overrides.
        attribute: Text = "attribute",
        /// The hash of the subject. Only in stored overrides.
        hash: Text = "hash",
        /// The fingerprint of the secret that hashed the subject. Only in stored overrides.
        hashed_by: Text = "hashedBy",
        /// The network of the subject. Only in stored overrides.
        network: Text = "network",
        /// The rule or budget that the override is for (default all).
        rule: Text = "rule",
        /// Numbers that replace those of the rule.
        numbers: RawNumbers = "numbers",
        /// The share of the limit that remains, such as 50%.
        scale: Factor = "scale",
        /// The state of the rule; only for everyone.
        state: RuleState = "state",
        /// Whether the subject is denied before any rule. Only in stored overrides.
        block: Flag = "block",
        /// The reason.
        reason (required): Text = "reason",
        /// The author.
        author: Text = "author",
        /// How long the override is in force.
        lasts: Duration = "for",
        /// Whether the override has no end.
        forever: Flag = "forever",
        /// When the override was set.
        set_at: Whole = "setAtEpochMillis",
        /// When the override ends.
        expires_at: Whole = "expiresAtEpochMillis",
    }
}

/// A change of limits at run time.
#[derive(Clone, Debug)]
pub struct Override {
    scope: Scope,
    /// The rule or budget; `None` for all.
    rule: Option<Arc<str>>,
    pub(crate) change: Change,
    reason: String,
    author: String,
    set_at: u64,
    expires_at: Option<u64>,
}

/// The tenants that an override applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// For everyone: an emergency.
    Everyone,
    /// For the tenants of a plan.
    Plan(Arc<str>),
    /// For one tenant.
    Tenant(Arc<str>),
    /// For one subject: the requests with one value of an attribute, or of one network.
    Subject(NamedSubject),
}

/// The change that an override makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Numbers(Box<Numbers>),
    /// The share of the limit that remains, in hundredths of a percent.
    Scale(u32),
    State(RuleState),
    /// The subject is denied before any rule.
    Block,
}

/// Where a text comes from.
#[derive(Clone, Copy)]
enum Origin<'k> {
    /// Tollgate has written it.
    Stored,
    /// A request for an override. The keyring hashes its subject.
    Request(&'k Keyring),
    /// A request for a block. The keyring hashes its subject.
    BlockRequest(&'k Keyring),
}

impl Override {
    /// Reads an override from a JSON object. If the object does not say when the override was set, the
    /// time is `now`, in milliseconds since 1970. The duration counts from the time at which the
    /// override was set.
    ///
    /// ```
    /// let text = r#"{ "tenant": "acme", "rule": "api", "numbers": { "burst": 500 }, "for": "1d", "reason": "launch" }"#;
    /// let it = tollgate_rules::Override::parse(text, 0)?;
    /// assert_eq!(it.name(), "tenant:acme/api");
    /// assert_eq!(it.expires_at(), Some(86_400_000));
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// If the text is not an override: everything that is wrong with it.
    pub fn parse(text: &str, now: u64) -> Result<Override, ConfigError> {
        read(text, now, Origin::Stored)
    }

    /// Reads an override from a request. A request must not contain the author, the time at which the
    /// override was set or the time at which it ends. `keyring` hashes the subject.
    ///
    /// ```
    /// # use tollgate_core::Keyring;
    /// use tollgate_rules::Override;
    ///
    /// let keyring = Keyring::new(b"a secret of 16 bytes", "default");
    /// let text = r#"{ "tenant": "acme", "scale": "50%", "reason": "x", "author": "somebody else" }"#;
    /// assert!(Override::parse(text, 0).is_ok());
    /// assert!(Override::parse_request(text, 0, &keyring).is_err());
    /// ```
    ///
    /// # Errors
    /// If the text is not an override, or contains a field that a request must not have: everything that
    /// is wrong with it.
    pub fn parse_request(text: &str, now: u64, keyring: &Keyring) -> Result<Override, ConfigError> {
        read(text, now, Origin::Request(keyring))
    }

    /// Reads a block from a request. It has a `subject`, a `reason`, and an end: `for` or `forever`.
    ///
    /// ```
    /// # use tollgate_core::Keyring;
    /// use tollgate_rules::Override;
    ///
    /// let keyring = Keyring::new(b"a secret of 16 bytes", "default");
    /// let text = r#"{ "subject": "ip=10.0.0.0/8", "for": "1h", "reason": "a flood" }"#;
    /// let block = Override::parse_block(text, 0, &keyring)?;
    /// assert_eq!(block.name(), "block:ip:10.0.0.0/8");
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// If the text is not a block: everything that is wrong with it.
    pub fn parse_block(text: &str, now: u64, keyring: &Keyring) -> Result<Override, ConfigError> {
        read(text, now, Origin::BlockRequest(keyring))
    }

    /// Returns the name of a block of `subject`.
    #[must_use]
    pub fn block_name(subject: &NamedSubject) -> String {
        format!("block:{subject}")
    }

    /// Sets the author.
    #[must_use]
    pub fn by(mut self, author: &str) -> Override {
        author.clone_into(&mut self.author);
        self
    }

    /// Writes the override as JSON, which [`parse`](Self::parse) reads.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut insert = |field: &str, value| drop(object.insert(field.to_owned(), value));
        match &self.scope {
            Scope::Everyone => {}
            Scope::Plan(plan) => insert("plan", json!(**plan)),
            Scope::Tenant(tenant) => insert("tenant", json!(**tenant)),
            Scope::Subject(subject) => {
                insert("attribute", json!(*subject.attribute));
                match &subject.owner {
                    Owner::Network(network) => insert("network", json!(network.to_string())),
                    Owner::Hash { keyring, .. } => {
                        insert("hash", json!(subject.value()));
                        insert("hashedBy", json!(**keyring));
                    }
                }
            }
        }
        if let Some(rule) = &self.rule {
            insert("rule", json!(**rule));
        }
        match &self.change {
            Change::Numbers(numbers) => {
                let given = numbers.given();
                let given = given.map(|(name, value)| (name.to_owned(), Value::String(value)));
                insert("numbers", Value::Object(given.collect()));
            }
            Change::Scale(hundredths) => insert("scale", json!(percentage(*hundredths))),
            Change::State(state) => insert("state", json!(state.name())),
            Change::Block => insert("block", json!(true)),
        }
        insert("reason", json!(self.reason));
        insert("author", json!(self.author));
        insert("setAtEpochMillis", json!(self.set_at));
        match (self.expires_at, &self.scope) {
            (Some(at), _) => insert("expiresAtEpochMillis", json!(at)),
            (None, Scope::Subject(_)) => insert("forever", json!(true)),
            (None, _) => {}
        }
        Value::Object(object)
    }

    /// Returns the override's name. Another override of the same name replaces it.
    #[must_use]
    pub fn name(&self) -> String {
        if let (Change::Block, Scope::Subject(subject)) = (&self.change, &self.scope) {
            return Override::block_name(subject);
        }
        let rule = self.rule.as_deref().unwrap_or("*");
        format!("{}/{rule}", self.scope)
    }

    /// Whether the override is a block: its subject is denied before any rule.
    #[must_use]
    pub fn is_block(&self) -> bool {
        self.change == Change::Block
    }

    /// The subject that the override is for; `None` for other scopes.
    #[must_use]
    pub fn subject(&self) -> Option<&NamedSubject> {
        match &self.scope {
            Scope::Subject(subject) => Some(subject),
            _ => None,
        }
    }

    /// The tenants that the override applies to.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The rule or budget that the override applies to; `None` for all.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// Describes the override's effect in words.
    #[must_use]
    pub fn effect(&self) -> String {
        match &self.change {
            Change::Numbers(numbers) => numbers.to_string(),
            Change::Scale(hundredths) => format!("{} of the limit", percentage(*hundredths)),
            Change::State(state) => format!("state {}", state.name()),
            Change::Block => "blocked".to_owned(),
        }
    }

    /// Why the override was set.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The author.
    #[must_use]
    pub fn author(&self) -> &str {
        &self.author
    }

    /// When the override was set, in milliseconds since 1970.
    #[must_use]
    pub fn set_at(&self) -> u64 {
        self.set_at
    }

    /// When the override ends, in milliseconds since 1970; `None` if it stays until it is removed.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }

    /// Whether the override has ended by `now`.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Returns why the override would have no effect under `policy`; `None` if it has an effect.
    #[must_use]
    pub fn misfit(&self, policy: &Policy) -> Option<String> {
        if let Scope::Plan(plan) = &self.scope
            && policy.tiers.plan(plan).is_none()
        {
            return Some(format!("there is no plan `{plan}`"));
        }
        let name = self.rule.as_ref()?;
        let of_rules = policy.rules.iter();
        let of_rules = of_rules.map(|it| (&it.id, it.allowance(), &it.per, &it.counting));
        let of_budgets = policy.budgets.iter();
        let of_budgets = of_budgets.map(|it| {
            (
                &it.name,
                &it.name,
                &it.allowance.per,
                &it.allowance.counting,
            )
        });
        let mut all = of_rules.chain(of_budgets);
        let Some((_, allowance, per, counting)) = all.find(|(id, ..)| *id == name) else {
            return Some(format!("there is no rule or budget `{name}`"));
        };
        let rule = policy.rules.iter().find(|rule| rule.id == *name);
        match (&self.change, rule) {
            (Change::State(state), Some(rule)) => {
                let compared = rule.candidate_of.is_some() && *state != RuleState::Disabled;
                compared.then(|| format!("`{name}` is a candidate, which denies nothing"))
            }
            (Change::State(_), None) => Some(format!("`{name}` is a budget, which has no state")),
            _ if allowance != name => Some(format!(
                "the rule `{name}` draws on the budget `{allowance}`: override the budget"
            )),
            _ if !self.scope.has_own_allowance(per) => Some(match &self.scope {
                Scope::Subject(NamedSubject { attribute, .. }) => format!(
                    "subjects share the allowance of `{name}`: its `per` has no {attribute}"
                ),
                _ => format!("tenants share the allowance of `{name}`: its `per` has no tenant"),
            }),
            (Change::Scale(_) | Change::Block, _) => None,
            (Change::Numbers(it), _)
                if it.timezone == Some(ZoneFrom::Tenant) && !is_by_tenant(per) =>
            {
                Some(format!(
                    "tenants share the allowance of `{name}`, and it has one time zone"
                ))
            }
            (Change::Numbers(numbers), _) => numbers.misfit(counting),
        }
    }
}

impl Scope {
    /// Whether an allowance with this `per` belongs to the scope alone. If not, other subjects or tenants
    /// share the allowance.
    pub(crate) fn has_own_allowance(&self, per: &[String]) -> bool {
        match self {
            Scope::Everyone => true,
            Scope::Plan(_) | Scope::Tenant(_) => is_by_tenant(per),
            Scope::Subject(subject) => per.iter().any(|name| **name == *subject.attribute),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Everyone => f.write_str("everyone"),
            Scope::Plan(plan) => write!(f, "plan:{plan}"),
            Scope::Tenant(tenant) => write!(f, "tenant:{tenant}"),
            Scope::Subject(subject) => write!(f, "subject:{subject}"),
        }
    }
}

/// Reads an override. A request must not contain the fields that Tollgate sets itself.
fn read(text: &str, now: u64, origin: Origin<'_>) -> Result<Override, ConfigError> {
    if text.len() > MAX_BYTES {
        let message = format!("an override is larger than {MAX_BYTES} bytes");
        return Err(ConfigError::unreadable("override", message, "shorten it"));
    }
    let mut problems = Problems::new(text);
    let empty = match origin {
        Origin::BlockRequest(_) => EMPTY_BLOCK,
        _ => EMPTY,
    };
    let raw = parse_document(empty, &mut problems)
        .and_then(|root| RawOverride::read(&root, &mut problems));
    let parsed = raw.and_then(|raw| {
        match origin {
            Origin::Stored => {}
            Origin::Request(_) => check_request(&raw, &mut problems),
            Origin::BlockRequest(_) => {
                check_request(&raw, &mut problems);
                check_block(&raw, &mut problems);
            }
        }
        validated(&raw, now, origin, &mut problems)
    });
    match parsed {
        Some(it) if problems.is_empty() => Ok(it),
        _ => Err(problems.into_error("override")),
    }
}

/// Reports fields that Tollgate sets itself.
fn check_request(raw: &RawOverride, problems: &mut Problems<'_>) {
    let mut check = |name, key, help| {
        if let Some(key) = key {
            problems.report(key, format!("a request cannot set `{name}`"), help);
        }
    };
    let help = "remove it: Tollgate records the name of the token";
    check("author", raw.author.key(), help);
    let help = "remove it: Tollgate records the time";
    check("setAtEpochMillis", raw.set_at.key(), help);
    let help = "write a duration instead, such as \"for\": \"1h\"";
    check("expiresAtEpochMillis", raw.expires_at.key(), help);
    let help = "write \"subject\": \"attribute=value\" instead: Tollgate hashes the value";
    check("attribute", raw.attribute.key(), help);
    check("hash", raw.hash.key(), help);
    check("hashedBy", raw.hashed_by.key(), help);
    check("network", raw.network.key(), help);
    let help = "remove it: a block has its own path, and `tollgate block` sends one";
    check("block", raw.block.key(), help);
}

/// Reports fields that a block does not have.
fn check_block(raw: &RawOverride, problems: &mut Problems<'_>) {
    let fields = [
        ("tenant", raw.tenant.key()),
        ("plan", raw.plan.key()),
        ("rule", raw.rule.key()),
        ("numbers", raw.numbers.key()),
        ("scale", raw.scale.key()),
        ("state", raw.state.key()),
    ];
    for (name, key) in fields {
        if let Some(key) = key {
            let help = "remove it: a block denies its subject before any rule";
            problems.report(key, format!("a block has no `{name}`"), help);
        }
    }
    if raw.subject.is_absent() {
        let help = "add the subject, such as \"subject\": \"api_key=k1\" or \"ip=10.0.0.0/8\"";
        problems.report(Place::default(), "a block needs a `subject`", help);
    }
}

fn validated(
    raw: &RawOverride,
    now: u64,
    origin: Origin<'_>,
    problems: &mut Problems<'_>,
) -> Option<Override> {
    let scope = scope(raw, origin, problems);
    let rule = raw.rule.get().map(|at| name(at, problems));
    let is_block = match origin {
        Origin::BlockRequest(_) => true,
        _ => raw.block.value().is_some_and(|it| it.0),
    };
    let change = match is_block {
        true => Some(Change::Block),
        false => change(raw, &scope, problems),
    };
    if is_block && (rule.is_some() || !matches!(scope, Scope::Subject(_))) {
        let help = "name a subject, and no rule";
        problems.report(Place::default(), "a block is for one subject", help);
    }
    if raw.reason.is_absent() {
        let help = "add a `reason` in a few words";
        problems.report(Place::default(), "an override needs a `reason`", help);
    }
    let at = raw.reason.get()?;
    let reason = at.value.0.clone();
    if reason.trim().is_empty() || reason.len() > MAX_REASON {
        let help = format!("write the reason in a few words, {MAX_REASON} bytes at most");
        problems.report(at.place, "the reason is empty or too long", help);
        return None;
    }
    let set_at = raw.set_at.value().map_or(now, |it| it.0);
    let expires_at = match (raw.expires_at.value(), raw.lasts.value()) {
        (Some(at), _) => Some(at.0),
        (None, Some(lasts)) => Some(set_at.saturating_add(lasts.0.as_millis_ceil())),
        (None, None) => None,
    };
    let is_forever = raw.forever.value().is_some_and(|it| it.0);
    match &scope {
        _ if is_forever && expires_at.is_some() => {
            let place = raw.forever.key().unwrap_or_default();
            let help = "write either a duration or `forever`";
            problems.report(place, "an override has an end or is forever", help);
        }
        Scope::Subject(_) if !is_forever && expires_at.is_none() => {
            let message = "an override for a subject needs an end";
            let help = "add a duration, such as \"for\": \"1h\", or \"forever\": true";
            problems.report(Place::default(), message, help);
        }
        _ => {}
    }
    if scope == Scope::Everyone && expires_at.is_none() {
        let message = "an override for everyone needs an end";
        let help =
            "add a duration, such as \"for\": \"1h\", or name a `tenant`, a `plan` or a `subject`";
        problems.report(Place::default(), message, help);
    }
    let author = raw.author.get().map(|at| name(at, problems).to_string());
    Some(Override {
        scope,
        rule,
        change: change?,
        reason,
        author: author.unwrap_or_default(),
        set_at,
        expires_at,
    })
}

fn name(at: &At<Text>, problems: &mut Problems<'_>) -> Arc<str> {
    if at.value.0.is_empty() || at.value.0.len() > MAX_NAME {
        let help = format!("write a name of 1 to {MAX_NAME} bytes");
        problems.report(at.place, "the name is empty or too long", help);
    }
    at.value.0.as_str().into()
}

fn scope(raw: &RawOverride, origin: Origin<'_>, problems: &mut Problems<'_>) -> Scope {
    let places = [
        raw.tenant.key(),
        raw.plan.key(),
        raw.subject.key().or(raw.attribute.key()),
    ];
    let mut places = places.into_iter().flatten().skip(1);
    if let Some(second) = places.next() {
        let help = "name one of them, or none of them for everyone";
        let message = "an override is for a tenant, a plan or a subject";
        problems.report(second, message, help);
        return Scope::Everyone;
    }
    if let Some(tenant) = raw.tenant.get() {
        return Scope::Tenant(name(tenant, problems));
    }
    if let Some(plan) = raw.plan.get() {
        return Scope::Plan(name(plan, problems));
    }
    match subject(raw, origin, problems) {
        Some(subject) => Scope::Subject(subject),
        None => Scope::Everyone,
    }
}

/// Returns the subject of a request or of a stored override; `None` if it has none, or a wrong one.
fn subject(
    raw: &RawOverride,
    origin: Origin<'_>,
    problems: &mut Problems<'_>,
) -> Option<NamedSubject> {
    if let Some(at) = raw.subject.get() {
        let (Origin::Request(keyring) | Origin::BlockRequest(keyring)) = origin else {
            let help = "write `attribute`, and `hash` or `network`";
            problems.report(at.place, "a stored override has no `subject`", help);
            return None;
        };
        let read = NamedSubject::parse(&at.value.0, keyring);
        return match read {
            Ok(subject) => Some(subject),
            Err(error) => {
                problems.report(at.place, error.message, error.help);
                None
            }
        };
    }
    let attribute = name(raw.attribute.get()?, problems);
    let owner = match (raw.hash.get(), raw.hashed_by.get(), raw.network.get()) {
        (Some(hash), Some(by), None) => {
            let digits = &hash.value.0;
            let is_hash = digits.len() == 32 && digits.bytes().all(|it| it.is_ascii_hexdigit());
            let hash = is_hash.then(|| u128::from_str_radix(digits, 16).ok());
            let keyring = name(by, problems);
            hash.flatten().map(|hash| Owner::Hash { hash, keyring })
        }
        (None, None, Some(network)) => {
            let network = address::parse_network(&network.value.0);
            network.ok().map(Owner::Network)
        }
        _ => None,
    };
    if owner.is_none() {
        let help = "write `hash` with `hashedBy`, or `network`";
        problems.report(Place::default(), "the subject cannot be read", help);
    }
    owner.map(|owner| NamedSubject { attribute, owner })
}

fn change(raw: &RawOverride, scope: &Scope, problems: &mut Problems<'_>) -> Option<Change> {
    let given = [raw.numbers.key(), raw.scale.key(), raw.state.key()];
    let given: Vec<Place> = given.into_iter().flatten().collect();
    let [place] = given.as_slice() else {
        let place = given.get(1).copied().unwrap_or_default();
        let help = "write one of `numbers`, `scale` and `state`";
        problems.report(place, "an override makes exactly one change", help);
        return None;
    };
    if let Some(state) = raw.state.value() {
        if *scope != Scope::Everyone {
            let help = "remove the tenant or plan, or write `scale` or `numbers`";
            problems.report(*place, "an override of `state` applies to everyone", help);
        }
        if *state == RuleState::Enforce && raw.rule.is_absent() {
            let message = "`enforce` needs a rule: some rules only observe on purpose";
            problems.report(*place, message, "add the `rule` to enforce");
        }
        return Some(Change::State(*state));
    }
    if let Some(scale) = raw.scale.value() {
        return Some(Change::Scale(scale.0));
    }
    let written = raw.numbers.value()?.written();
    written.check_numbers(problems);
    if raw.rule.is_absent() {
        let help = "add the `rule` or budget that the numbers belong to";
        problems.report(*place, "numbers belong to a rule", help);
    }
    if written.first_key().is_none() {
        let help = "write those that change, such as { \"burst\": 500 }";
        problems.report(*place, "there are no numbers", help);
    }
    written.numbers().map(|it| Change::Numbers(Box::new(it)))
}
