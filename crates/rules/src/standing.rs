//! The numbers of a rule without a request: for everyone, and for each plan, tenant and subject with numbers of its
//! own. And what an override would change, before it is set.

use std::collections::BTreeSet;
use std::sync::Arc;

use tollgate_core::Keyring;

use crate::document::percentage;
use crate::explain::{Layered, NumberFrom, layered, summary};
use crate::layers::{Allowance, Layers};
use crate::mode::ModeName;
use crate::overrides::{Override, Scope};
use crate::policy::Policy;
use crate::rule::{Rule, RuleState};

/// The numbers of the rules of a policy, with overrides in force.
#[derive(Debug)]
pub struct Standing<'p> {
    policy: &'p Policy,
    layers: Layers,
    /// The overrides of subjects that have an effect.
    of_subjects: Vec<Arc<Override>>,
}

/// The numbers of a rule for one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeNumbers {
    /// Whom the numbers apply to, in words: `everyone`, `plan pro`.
    pub whom: String,
    /// The limit that results from all numbers, in words.
    pub limit: String,
    /// Each number, and the layer that set it. The first scope also has the state and the rollout.
    pub numbers: Vec<NumberFrom>,
    /// The product of all scales, in hundredths of a percent.
    scale: u32,
}

/// A value that an override would change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Previewed {
    /// The rule; `None` for a block, which denies before any rule.
    pub rule: Option<Arc<str>>,
    /// Whom the change applies to, in words.
    pub whom: String,
    /// The name of the value, such as `rate`.
    pub what: &'static str,
    /// The value now; `None` if there is none.
    pub before: Option<String>,
    /// The value with the override; `None` if there is none.
    pub after: Option<String>,
}

impl<'p> Standing<'p> {
    /// Collects the layers of `policy` with these overrides. `keyring` hashes the subjects.
    #[must_use]
    pub fn new(policy: &'p Policy, overrides: &[Arc<Override>], keyring: &Keyring) -> Standing<'p> {
        let has_effect = |it: &&Arc<Override>| {
            let subject = it.subject().filter(|_| !it.is_block());
            subject.is_some_and(|it| it.stale(keyring).is_none()) && it.misfit(policy).is_none()
        };
        Standing {
            policy,
            layers: Layers::new(policy, overrides, keyring),
            of_subjects: overrides.iter().filter(has_effect).cloned().collect(),
        }
    }

    /// Returns the numbers of a rule by scope: everyone first, then plans, tenants and subjects with other numbers,
    /// at most `most`. Also returns whether there are more. `None` if there is no such rule.
    ///
    /// ```
    /// # use tollgate_core::Keyring;
    /// # use tollgate_rules::{Policy, Standing};
    /// # let keyring = Keyring::new(b"a secret of 16 bytes", "default");
    /// # let policy = Policy::parse("rules.yaml", "
    /// # version: 1
    /// # plans: { free: { api: { limit: 2 } } }
    /// # rules: [{ id: api, per: [tenant], algorithm: fixed-window, limit: 5, window: 1m }]
    /// # ")?;
    /// let standing = Standing::new(&policy, &[], &keyring);
    /// let (scopes, is_cut) = standing.of("api", 10).unwrap();
    /// assert_eq!((scopes[1].whom.as_str(), is_cut), ("plan free", false));
    /// assert_eq!(scopes[1].numbers[0].to_string(), "limit 2 (plan free)");
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    #[must_use]
    pub fn of(&self, rule: &str, most: usize) -> Option<(Vec<ScopeNumbers>, bool)> {
        let rule = self.policy.rules.iter().find(|it| *it.id == *rule)?;
        let mut found = vec![self.numbers(rule, &Scope::Everyone)];
        for scope in self.other_scopes(rule) {
            let it = self.numbers(rule, &scope);
            if is_same(&it, &found[0]) {
                continue;
            }
            if found.len() == most.max(1) {
                return Some((found, true));
            }
            found.push(it);
        }
        Some((found, false))
    }

    /// Returns the scopes that may have numbers of their own under a rule, without everyone.
    fn other_scopes(&self, rule: &Rule) -> impl Iterator<Item = Scope> {
        let (tiers, allowance) = (&self.policy.tiers, rule.allowance());
        let fits = |scope: &Scope| scope.has_own_allowance(&rule.per, tiers);
        let plans = tiers.plans.iter().map(|it| Scope::Plan(it.name.clone()));
        let patched = tiers.tenants.iter();
        let patched =
            patched.filter(|(_, it)| it.patches.iter().any(|(name, _)| name == allowance));
        let patched = patched.map(|(name, _)| &**name);
        let tenants: BTreeSet<&str> = patched
            .chain(self.layers.overridden_tenants(allowance))
            .collect();
        let tenants = tenants.into_iter().map(|it| Scope::Tenant(it.into()));
        let subjects = self.of_subjects.iter();
        let subjects = subjects.filter(|it| it.rule().is_none_or(|it| *it == **allowance));
        let subjects = subjects.map(|it| it.scope().clone());
        let mut scopes: Vec<Scope> = plans.chain(tenants).chain(subjects).filter(fits).collect();
        // A subject may have an override of one rule, and another one of all rules.
        scopes.dedup();
        scopes.into_iter()
    }

    fn numbers(&self, rule: &Rule, scope: &Scope) -> ScopeNumbers {
        let tiers = &self.policy.tiers;
        let (mut plan, mut tenant, mut own) = (None, None, Vec::new());
        match scope {
            Scope::Everyone => {}
            Scope::Plan(name) => plan = tiers.plan(name),
            Scope::Tenant(name) => {
                tenant = Some(&**name);
                plan = tiers.plan_of(tiers.tenants.get(&**name));
            }
            Scope::Subject(_) => {
                let of_subject = self.of_subjects.iter().filter(|it| {
                    let is_named = it.rule().is_none_or(|it| *it == **rule.allowance());
                    it.scope() == scope && is_named
                });
                own.extend(of_subject.cloned());
            }
        }
        let plan = plan.filter(|_| tiers.may_differ_by_plan(&rule.per));
        let Layered {
            mut numbers,
            scales,
            mode_from,
        } = layered(&self.layers, rule, plan, tenant, &own);
        let allowance = Allowance::new(rule.allowance(), &rule.per, &rule.counting, tiers);
        let resolved = self.layers.resolve(&allowance, plan, tenant, &own);
        numbers.extend(scales);
        for (name, value) in resolved.modes.explained(&resolved.limit) {
            let from = mode_from.clone();
            numbers.push(NumberFrom { name, value, from });
        }
        if *scope == Scope::Everyone {
            self.add_state(rule, &mut numbers);
        }
        ScopeNumbers {
            whom: match scope {
                Scope::Everyone if tiers.plans.is_empty() => "everyone".to_owned(),
                Scope::Everyone if !tiers.may_differ_by_plan(&rule.per) => "everyone".to_owned(),
                Scope::Everyone => "without a plan".to_owned(),
                Scope::Plan(name) => format!("plan {name}"),
                Scope::Tenant(name) => format!("tenant {name}"),
                Scope::Subject(subject) => format!("subject {subject}"),
            },
            limit: summary(&resolved.limit),
            numbers,
            scale: resolved.scale,
        }
    }

    /// Adds the state and the rollout of a rule.
    fn add_state(&self, rule: &Rule, numbers: &mut Vec<NumberFrom>) {
        let by = |it: &Override| format!("override {}: {}", it.name(), it.reason());
        let (state, from) = match self.layers.state(&rule.id, rule.state) {
            Some(state) => (state, self.layers.state_override(&rule.id).map(by)),
            None => (rule.state, None),
        };
        let (rollout, rolled_by) = match self.layers.rollout(&rule.id) {
            Some((share, it)) => (share, Some(by(it))),
            None => (rule.rollout, None),
        };
        let mut add = |name, value: String, from: Option<String>| {
            let from = from.unwrap_or_else(|| "rule".to_owned());
            numbers.push(NumberFrom { name, value, from });
        };
        match &rule.candidate_of {
            // A candidate denies nothing, whatever its state says.
            Some(current) if state != RuleState::Disabled => {
                add("state", format!("candidate of {current}"), None);
            }
            _ => add("state", state.name().to_owned(), from),
        }
        add("rollout", percentage(rollout.into()), rolled_by);
    }
}

/// Whether two scopes have the same numbers. The state and the rollout are only in the first scope.
fn is_same(one: &ScopeNumbers, first: &ScopeNumbers) -> bool {
    let of_scope = |it: &&NumberFrom| !matches!(it.name, "state" | "rollout");
    let own = one.numbers.iter().filter(of_scope);
    own.eq(first.numbers.iter().filter(of_scope))
}

/// Returns what `wanted` would change if it were set, at most `most` values, and whether there are more. `in_force`
/// are the overrides in force. `keyring` hashes the subjects.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_core::Keyring;
/// # use tollgate_rules::{Override, Policy, preview};
/// # let keyring = Keyring::new(b"a secret of 16 bytes", "default");
/// # let policy = Policy::parse("rules.yaml", "
/// # version: 1
/// # rules: [{ id: api, per: [user], algorithm: gcra, rate: 100/s }]
/// # ")?;
/// let text = r#"{ "rule": "api", "numbers": { "rate": "50/s" }, "for": "1h", "reason": "load" }"#;
/// let wanted = Arc::new(Override::parse(text, 0)?);
/// let (changes, _) = preview(&policy, &[], &wanted, &keyring, 50);
/// assert_eq!(changes[0].what, "rate");
/// assert_eq!(changes[0].before.as_deref(), Some("100/s"));
/// assert_eq!(changes[0].after.as_deref(), Some("50/s"));
/// # Ok::<(), tollgate_rules::ConfigError>(())
/// ```
#[must_use]
pub fn preview(
    policy: &Policy,
    in_force: &[Arc<Override>],
    wanted: &Arc<Override>,
    keyring: &Keyring,
    most: usize,
) -> (Vec<Previewed>, bool) {
    let name = wanted.name();
    if let (true, Scope::Subject(subject)) = (wanted.is_block(), wanted.scope()) {
        let is_blocked = in_force.iter().any(|it| it.name() == name);
        let denied = "denied before any rule".to_owned();
        let change = Previewed {
            rule: None,
            whom: format!("subject {subject}"),
            what: "requests",
            before: Some(match is_blocked {
                true => denied.clone(),
                false => "decided by the rules".to_owned(),
            }),
            after: Some(denied),
        };
        return (vec![change], false);
    }
    let mut then: Vec<Arc<Override>> = in_force.to_vec();
    then.retain(|it| it.name() != name);
    then.push(Arc::clone(wanted));
    let before = Standing::new(policy, in_force, keyring);
    let after = Standing::new(policy, &then, keyring);
    let mut found = Vec::new();
    for rule in &policy.rules {
        let concerns = |name: &str| *name == *rule.id || *name == **rule.allowance();
        if !wanted.rule().is_none_or(concerns) {
            continue;
        }
        let pair = |scope: &Scope| (before.numbers(rule, scope), after.numbers(rule, scope));
        if *wanted.scope() != Scope::Everyone {
            if wanted.scope().has_own_allowance(&rule.per, &policy.tiers) {
                add(rule, &pair(wanted.scope()), &mut found);
            }
        } else {
            let all = pair(&Scope::Everyone);
            add(rule, &all, &mut found);
            for scope in after.other_scopes(rule) {
                let own = pair(&scope);
                if !(is_same(&own.0, &all.0) && is_same(&own.1, &all.1)) {
                    add(rule, &own, &mut found);
                }
                if found.len() > most {
                    break;
                }
            }
        }
        if found.len() > most {
            found.truncate(most);
            return (found, true);
        }
    }
    (found, false)
}

/// Adds the values that differ.
fn add(rule: &Rule, (before, after): &(ScopeNumbers, ScopeNumbers), found: &mut Vec<Previewed>) {
    let mut note = |what, before: Option<String>, after: Option<String>, whom: &str| {
        if before != after {
            found.push(Previewed {
                rule: Some(rule.shared_id()),
                whom: whom.to_owned(),
                what,
                before,
                after,
            });
        }
    };
    let value = |of: &ScopeNumbers, name: &str| {
        let found = of.numbers.iter().find(|it| it.name == name);
        let found = found.map(|it| it.value.clone());
        // A rule without a word about its mode is exact.
        found.or_else(|| (name == "mode").then(|| ModeName::Exact.name().to_owned()))
    };
    let mut names: Vec<&'static str> = Vec::new();
    for it in after.numbers.iter().chain(&before.numbers) {
        if it.name != "scale" && !names.contains(&it.name) {
            names.push(it.name);
        }
    }
    for name in names {
        note(name, value(before, name), value(after, name), &after.whom);
    }
    // Several scales multiply, so only their product says what changes.
    if before.scale != after.scale {
        let share = |of: &ScopeNumbers| Some(percentage(of.scale));
        note("scale", share(before), share(after), &after.whom);
        let limit = |of: &ScopeNumbers| Some(of.limit.clone());
        note("limit in force", limit(before), limit(after), &after.whom);
    }
}
