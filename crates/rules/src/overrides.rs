//! Overrides: numbers that operators change at run time, for a subject, a tenant, a plan or everyone. A
//! block is an override too: it denies one subject before any rule.
//!
//! An override is always kept and sent as text: a JSON object, which is read like a policy. So the
//! errors of an override are as clear as the errors of a policy.

mod text;

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tollgate_core::Keyring;

use self::text::{Origin, read};
use crate::document::{ConfigError, percentage};
use crate::layers::is_by_tenant;
use crate::limits::Numbers;
use crate::mode::{ModeName, always_exact};
use crate::named_subject::{NamedSubject, Owner};
use crate::policy::Policy;
use crate::rule::RuleState;
use crate::tiers::Tiers;
use crate::zone::ZoneFrom;

/// A scale of one, in hundredths of a percent.
pub(crate) const WHOLE: u32 = 10_000;

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
    /// The share of subjects that the rule applies to, in hundredths of a percent.
    Rollout(u16),
    Mode(ModeName),
    /// The subject is denied before any rule.
    Block,
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
            Change::Rollout(share) => insert("rollout", json!(percentage((*share).into()))),
            Change::Mode(mode) => insert("mode", json!(mode.name())),
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
        match self.change {
            // Names of their own, so that these can change while other overrides change the numbers.
            Change::Mode(_) => format!("mode:{}/{rule}", self.scope),
            Change::Rollout(_) => format!("rollout:{}/{rule}", self.scope),
            _ => format!("{}/{rule}", self.scope),
        }
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
            Change::Rollout(share) => format!("rollout {}", percentage((*share).into())),
            Change::Mode(mode) => format!("mode {}", mode.name()),
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
            (Change::Rollout(share), Some(rule)) => {
                let is_partial = (1..WHOLE).contains(&u32::from(*share));
                (is_partial && rule.per.is_empty()).then(|| {
                    format!("all requests share the allowance of `{name}`: a partial rollout needs subjects to choose from")
                })
            }
            (Change::Rollout(_), None) => {
                Some(format!("`{name}` is a budget, which has no rollout"))
            }
            _ if allowance != name => Some(format!(
                "the rule `{name}` draws on the budget `{allowance}`: override the budget"
            )),
            _ if !self.scope.has_own_allowance(per, &policy.tiers) => Some(match &self.scope {
                Scope::Subject(NamedSubject { attribute, .. }) => format!(
                    "subjects share the allowance of `{name}`: its `per` has no {attribute}"
                ),
                _ => format!("tenants share the allowance of `{name}`: its `per` has no tenant"),
            }),
            (Change::Scale(_) | Change::Block, _) => None,
            (Change::Mode(mode), rule) => {
                let backs_off = rule.is_some_and(|rule| rule.backoff.is_some());
                let why = match always_exact(&counting.limit) {
                    Some(why) => Some(why),
                    None if backs_off => Some("its back-off is checked with every request"),
                    None => None,
                };
                let why = why.filter(|_| *mode != ModeName::Exact);
                why.map(|why| format!("`{name}` is always exact: {why}"))
            }
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
    pub(crate) fn has_own_allowance(&self, per: &[String], tiers: &Tiers) -> bool {
        match self {
            Scope::Everyone => true,
            Scope::Plan(_) => tiers.may_differ_by_plan(per),
            Scope::Tenant(_) => is_by_tenant(per),
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
