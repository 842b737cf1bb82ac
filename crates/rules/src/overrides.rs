//! Overrides: numbers that operators change at run time, for a tenant, a plan or everyone.
//!
//! An override is text wherever it is kept or sent: a JSON object, read like a policy, so that what
//! is wrong with it is said as clearly.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::document::{
    At, ConfigError, Duration, Factor, Place, Problems, Read, Text, Whole, parse_document,
    percentage, section,
};
use crate::layers::is_by_tenant;
use crate::limits::Numbers;
use crate::policy::Policy;
use crate::raw::RawNumbers;
use crate::rule::RuleState;
use crate::zone::ZoneFrom;

const EMPTY: &str =
    "write a JSON object such as {\"tenant\": \"acme\", \"scale\": \"50%\", \"reason\": \"load\"}";
/// Longer texts are refused unread.
const MAX_BYTES: usize = 16 * 1024;
/// Longer reasons are refused.
const MAX_REASON: usize = 500;
/// Longer names of tenants, rules and authors are refused.
const MAX_NAME: usize = 256;
/// A scale of one, in hundredths of a percent.
pub(crate) const WHOLE: u32 = 10_000;

section! {
    /// An override.
    pub(crate) struct RawOverride is "an override" {
        /// The tenant it is for.
        tenant: Text = "tenant",
        /// The plan it is for.
        plan: Text = "plan",
        /// The rule or budget it is for: all unless given.
        rule: Text = "rule",
        /// Numbers that replace those of the rule.
        numbers: RawNumbers = "numbers",
        /// How much of the limit is left, such as 50%.
        scale: Factor = "scale",
        /// What state the rule is in; for everyone only.
        state: RuleState = "state",
        /// Why.
        reason (required): Text = "reason",
        /// Who set it.
        author: Text = "author",
        /// How long it holds.
        lasts: Duration = "for",
        /// When it was set.
        set_at: Whole = "setAtEpochMillis",
        /// When it ends.
        expires_at: Whole = "expiresAtEpochMillis",
    }
}

/// A change of limits at run time.
#[derive(Clone, Debug)]
pub struct Override {
    scope: Scope,
    /// The rule or budget; all if none.
    rule: Option<Arc<str>>,
    pub(crate) change: Change,
    reason: String,
    author: String,
    set_at: u64,
    expires_at: Option<u64>,
}

/// For whom an override is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// For everyone: an emergency.
    Everyone,
    /// For the tenants of a plan.
    Plan(Arc<str>),
    /// For one tenant.
    Tenant(Arc<str>),
}

/// What an override changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// These numbers take the place of others.
    Numbers(Box<Numbers>),
    /// So much of the limit is left, in hundredths of a percent.
    Scale(u32),
    /// The rule is enforced, observed or off.
    State(RuleState),
}

impl Override {
    /// Reads an override from a JSON object. What does not say when it was set is set at `now`, in
    /// milliseconds since 1970; one that says how long it holds ends so long after that.
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
    /// If it is not an override: then with everything that is wrong.
    pub fn parse(text: &str, now: u64) -> Result<Override, ConfigError> {
        read(text, now, |_, _| {})
    }

    /// Reads what somebody asks for: the same, but who sets it, when, and the instant of its end are not
    /// theirs to say.
    ///
    /// ```
    /// use tollgate_rules::Override;
    ///
    /// let text = r#"{ "tenant": "acme", "scale": "50%", "reason": "x", "author": "somebody else" }"#;
    /// assert!(Override::parse(text, 0).is_ok());
    /// assert!(Override::parse_request(text, 0).is_err());
    /// ```
    ///
    /// # Errors
    /// If it is not an override, or says what it may not: then with everything that is wrong.
    pub fn parse_request(text: &str, now: u64) -> Result<Override, ConfigError> {
        read(text, now, check_request)
    }

    /// The same, set by `author`.
    #[must_use]
    pub fn by(mut self, author: &str) -> Override {
        author.clone_into(&mut self.author);
        self
    }

    /// The override as JSON, which [`parse`](Self::parse) reads.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        match &self.scope {
            Scope::Everyone => {}
            Scope::Plan(plan) => drop(object.insert("plan".to_owned(), json!(**plan))),
            Scope::Tenant(tenant) => drop(object.insert("tenant".to_owned(), json!(**tenant))),
        }
        if let Some(rule) = &self.rule {
            object.insert("rule".to_owned(), json!(**rule));
        }
        let (field, value) = match &self.change {
            Change::Numbers(numbers) => {
                let given = numbers.given();
                let given = given.map(|(name, value)| (name.to_owned(), Value::String(value)));
                ("numbers", Value::Object(given.collect()))
            }
            Change::Scale(hundredths) => ("scale", json!(percentage(*hundredths))),
            Change::State(state) => ("state", json!(state.name())),
        };
        object.insert(field.to_owned(), value);
        object.insert("reason".to_owned(), json!(self.reason));
        object.insert("author".to_owned(), json!(self.author));
        object.insert("setAtEpochMillis".to_owned(), json!(self.set_at));
        if let Some(at) = self.expires_at {
            object.insert("expiresAtEpochMillis".to_owned(), json!(at));
        }
        Value::Object(object)
    }

    /// What it is called: another one of the same name takes its place.
    #[must_use]
    pub fn name(&self) -> String {
        let rule = self.rule.as_deref().unwrap_or("*");
        format!("{}/{rule}", self.scope)
    }

    /// For whom it is.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The rule or budget it is for; `None` if for all.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// What it does, in words.
    #[must_use]
    pub fn effect(&self) -> String {
        match &self.change {
            Change::Numbers(numbers) => {
                let given = numbers.given();
                let given: Vec<String> = given
                    .map(|(name, value)| format!("{name} {value}"))
                    .collect();
                given.join(", ")
            }
            Change::Scale(hundredths) => format!("{} of the limit", percentage(*hundredths)),
            Change::State(state) => format!("state {}", state.name()),
        }
    }

    /// Why it was set.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Who set it.
    #[must_use]
    pub fn author(&self) -> &str {
        &self.author
    }

    /// When it was set, in milliseconds since 1970.
    #[must_use]
    pub fn set_at(&self) -> u64 {
        self.set_at
    }

    /// When it ends, in milliseconds since 1970; `None` if it holds until it is cleared.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }

    /// Whether it has ended by `now`.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Why it has no effect under `policy`, if it has none.
    #[must_use]
    pub fn misfit(&self, policy: &Policy) -> Option<String> {
        if let Scope::Plan(plan) = &self.scope
            && policy.tiers.plan(plan).is_none()
        {
            return Some(format!("there is no plan `{plan}`"));
        }
        let Some(name) = &self.rule else {
            return None;
        };
        let of_rules = policy.rules.iter();
        let of_rules = of_rules.map(|it| (&it.id, it.allowance(), &it.per, &it.counting));
        let of_budgets = policy.budgets.iter();
        let of_budgets = of_budgets.map(|it| (&it.name, &it.name, &it.per, &it.counting));
        let mut all = of_rules.chain(of_budgets);
        let Some((_, allowance, per, counting)) = all.find(|(id, ..)| *id == name) else {
            return Some(format!("there is no rule or budget `{name}`"));
        };
        let rule = policy.rules.iter().find(|rule| rule.id == *name);
        match (&self.change, rule) {
            (Change::State(state), Some(rule)) => {
                let compared = rule.candidate_of.is_some() && *state != RuleState::Disabled;
                compared.then(|| format!("`{name}` is a candidate, and refuses nothing"))
            }
            (Change::State(_), None) => Some(format!("`{name}` is a budget, and has no state")),
            _ if allowance != name => Some(format!(
                "the rule `{name}` draws on the budget `{allowance}`: override that"
            )),
            _ if self.scope != Scope::Everyone && !is_by_tenant(per) => Some(format!(
                "tenants share the allowance of `{name}`: its `per` has no tenant"
            )),
            (Change::Scale(_), _) => None,
            (Change::Numbers(numbers), _)
                if numbers.timezone == Some(ZoneFrom::Tenant) && !is_by_tenant(per) =>
            {
                Some(format!(
                    "tenants share the allowance of `{name}`, and it has one time zone"
                ))
            }
            (Change::Numbers(numbers), _) => numbers.misfit(counting),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Everyone => f.write_str("everyone"),
            Scope::Plan(plan) => write!(f, "plan:{plan}"),
            Scope::Tenant(tenant) => write!(f, "tenant:{tenant}"),
        }
    }
}

/// Reads an override; `check` may have more to say to what is written.
fn read(
    text: &str,
    now: u64,
    check: impl FnOnce(&RawOverride, &mut Problems<'_>),
) -> Result<Override, ConfigError> {
    if text.len() > MAX_BYTES {
        let message = format!("an override is larger than {MAX_BYTES} bytes");
        return Err(ConfigError::unreadable("override", message, "shorten it"));
    }
    let mut problems = Problems::new(text);
    let raw = parse_document(EMPTY, &mut problems)
        .and_then(|root| RawOverride::read(&root, &mut problems));
    let parsed = raw.and_then(|raw| {
        check(&raw, &mut problems);
        validated(&raw, now, &mut problems)
    });
    match parsed {
        Some(it) if problems.is_empty() => Ok(it),
        _ => Err(problems.into_error("override")),
    }
}

/// Complains about what only who keeps an override says.
fn check_request(raw: &RawOverride, problems: &mut Problems<'_>) {
    for (name, key, help) in [
        (
            "author",
            raw.author.key(),
            "leave it out: it is whose token asks",
        ),
        (
            "setAtEpochMillis",
            raw.set_at.key(),
            "leave it out: it is now",
        ),
        (
            "expiresAtEpochMillis",
            raw.expires_at.key(),
            "say how long it holds, such as \"for\": \"1h\"",
        ),
    ] {
        if let Some(key) = key {
            let message = format!("`{name}` is not for a request to say");
            problems.report(key, message, help);
        }
    }
}

fn validated(raw: &RawOverride, now: u64, problems: &mut Problems<'_>) -> Option<Override> {
    let scope = scope(raw, problems);
    let rule = raw.rule.get().map(|at| name(at, problems));
    let change = change(raw, &scope, problems);
    let reason = match raw.reason.get() {
        Some(at) if at.value.0.trim().is_empty() || at.value.0.len() > MAX_REASON => {
            let help = format!("say in a few words why, {MAX_REASON} bytes at most");
            problems.report(at.place, "this is no reason", help);
            return None;
        }
        Some(at) => at.value.0.clone(),
        None => {
            if raw.reason.is_absent() {
                let help = "say in a few words why: add `reason`";
                problems.report(Place::default(), "an override needs a `reason`", help);
            }
            return None;
        }
    };
    let set_at = raw.set_at.value().map_or(now, |it| it.0);
    let expires_at = match (raw.expires_at.value(), raw.lasts.value()) {
        (Some(at), _) => Some(at.0),
        (None, Some(lasts)) => Some(set_at.saturating_add(lasts.0.as_millis_ceil())),
        (None, None) => None,
    };
    if scope == Scope::Everyone && expires_at.is_none() {
        problems.report(
            Place::default(),
            "an override for everyone has an end",
            "add how long it holds, such as \"for\": \"1h\", or name a `tenant` or a `plan`",
        );
    }
    Some(Override {
        scope,
        rule,
        change: change?,
        reason,
        author: raw
            .author
            .get()
            .map_or_else(String::new, |at| name(at, problems).as_ref().to_owned()),
        set_at,
        expires_at,
    })
}

fn name(at: &At<Text>, problems: &mut Problems<'_>) -> Arc<str> {
    if at.value.0.is_empty() || at.value.0.len() > MAX_NAME {
        let help = format!("write a name of 1 to {MAX_NAME} bytes");
        problems.report(at.place, "this is no name", help);
    }
    at.value.0.as_str().into()
}

fn scope(raw: &RawOverride, problems: &mut Problems<'_>) -> Scope {
    match (raw.tenant.get(), raw.plan.get()) {
        (Some(_), Some(plan)) => {
            let help = "name a tenant or a plan, or neither for everyone";
            problems.report(plan.place, "an override is for a tenant or a plan", help);
            Scope::Everyone
        }
        (Some(tenant), None) => Scope::Tenant(name(tenant, problems)),
        (None, Some(plan)) => Scope::Plan(name(plan, problems)),
        (None, None) => Scope::Everyone,
    }
}

fn change(raw: &RawOverride, scope: &Scope, problems: &mut Problems<'_>) -> Option<Change> {
    let given = [raw.numbers.key(), raw.scale.key(), raw.state.key()];
    let given: Vec<Place> = given.into_iter().flatten().collect();
    let [place] = given.as_slice() else {
        let place = given.get(1).copied().unwrap_or_default();
        problems.report(
            place,
            "an override changes one thing",
            "write one of `numbers`, `scale` and `state`",
        );
        return None;
    };
    if let Some(state) = raw.state.value() {
        if *scope != Scope::Everyone {
            let help = "leave the tenant or plan out, or write `scale` or `numbers`";
            problems.report(*place, "a state is the same for everyone", help);
        }
        if *state == RuleState::Enforce && raw.rule.is_absent() {
            let help = "name the rule that is to refuse: add `rule`";
            problems.report(*place, "not every rule is meant to refuse", help);
        }
        return Some(Change::State(*state));
    }
    if let Some(scale) = raw.scale.value() {
        return Some(Change::Scale(scale.0));
    }
    let written = raw.numbers.value()?.written();
    written.check_numbers(problems);
    if raw.rule.is_absent() {
        let help = "name the rule or budget whose numbers they are: add `rule`";
        problems.report(*place, "numbers belong to a rule", help);
    }
    if written.first_key().is_none() {
        let help = "write those that change, such as { \"burst\": 500 }";
        problems.report(*place, "there are no numbers", help);
    }
    written.numbers().map(|it| Change::Numbers(Box::new(it)))
}
