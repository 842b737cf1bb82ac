//! Compiles a [`Policy`] into a [`RuleSet`]: names become numbers, layers become tables.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::{Enforcement, Key, Keyring, StoreId};

use crate::address::{self, NetworkMap};
use crate::conditions::{Accepted, Conditions};
use crate::fairness::{CompiledFair, CompiledLanes, CompiledWeights, Fairness, PLAN};
use crate::index::{Guards, Index};
use crate::layers::{Layers, Tables, is_by_tenant};
use crate::overrides::Override;
use crate::pattern::{Exact, Pattern};
use crate::placement::Placement;
use crate::policy::Policy;
use crate::request::SubjectSet;
use crate::request_limits::Source;
use crate::rule::{Condition, Cost, Durability, Rule, RuleState, RuleStore};
use crate::ruleset::{Anonymous, Compiled, CompiledCost, RuleSet, TENANT, TagFrom};
use crate::symbols::{AttributeId, Symbols};

/// The index of each set of attributes that makes subjects.
type Subjects = HashMap<Box<[AttributeId]>, usize>;

/// The deployment that rules are compiled for.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Hashes the subjects.
    pub keyring: Keyring,
    /// How many leading bits of an IPv6 address make one subject.
    pub ipv6_prefix: u8,
    /// Whether keys carry the tag that places them in a cluster: see [`Placement`].
    pub cluster_tags: bool,
    /// Whether usage is recorded in a ledger.
    pub ledger: bool,
    /// Whether the default store is only the memory of this instance. If so, it also keeps the rules of the
    /// store `local`, and decides them with the others in one step.
    pub is_local: bool,
}

/// Makes the options of one instance without a ledger. 64 bits of an IPv6 address make one subject.
impl From<Keyring> for CompileOptions {
    fn from(keyring: Keyring) -> CompileOptions {
        CompileOptions {
            keyring,
            ipv6_prefix: 64,
            cluster_tags: false,
            ledger: false,
            is_local: true,
        }
    }
}

impl RuleSet {
    /// Prepares the rules of `policy`. If `options` is only a keyring, the other options have their
    /// defaults.
    #[must_use]
    pub fn compile(policy: &Policy, options: impl Into<CompileOptions>) -> RuleSet {
        RuleSet::compile_with(policy, options, &[])
    }

    /// Prepares the rules of `policy` with these overrides in force. If two overrides have the same
    /// name, the later one wins.
    #[must_use]
    pub fn compile_with(
        policy: &Policy,
        options: impl Into<CompileOptions>,
        overrides: &[Arc<Override>],
    ) -> RuleSet {
        let options = options.into();
        let idle = overrides.iter();
        let idle = idle.filter_map(|it| {
            let stale = || it.subject()?.stale(&options.keyring);
            Some((Arc::clone(it), it.misfit(policy).or_else(stale)?))
        });
        let idle = idle.collect();
        let layers = Layers::new(policy, overrides, &options.keyring);
        let tables = Tables::new(policy, &layers);
        let mut rules = policy.rules.clone();
        for rule in &mut rules {
            rule.state = layers.state(&rule.id, rule.state).unwrap_or(rule.state);
            rule.rollout = layers
                .rollout(&rule.id)
                .map_or(rule.rollout, |(share, _)| share);
        }
        let mut set = RuleSet {
            rules: Vec::new(),
            compiled: Vec::with_capacity(rules.len()),
            symbols: Symbols::default(),
            subjects: Vec::new(),
            keyring: options.keyring,
            address: None,
            ipv6_prefix: options.ipv6_prefix,
            tagged: options.cluster_tags,
            ledger: options.ledger,
            is_local: options.is_local,
            version: policy.version.clone(),
            index: Index::default(),
            candidates: candidates(&rules),
            idle,
            tenant: None,
            plan: None,
            layers,
            tables,
        };
        let mut subjects = HashMap::new();
        for rule in &rules {
            let compiled = set.prepare(rule, &mut subjects);
            set.compiled.push(compiled);
        }
        let exact: Vec<_> = rules.iter().map(|rule| exact(rule, &set.symbols)).collect();
        set.index = Index::new(&exact);
        set.address = set.symbols.find(address::ATTRIBUTE);
        if !set.tables.are_flat() {
            set.tenant = Some(set.symbols.intern(TENANT));
            let plan_from = policy.tiers.plan_from.as_ref();
            set.plan = plan_from.map(|name| set.symbols.intern(name));
        }
        drop(exact);
        set.rules = rules;
        set
    }

    fn prepare(&mut self, rule: &Rule, subjects: &mut Subjects) -> Compiled {
        let conditions = self.conditions(&rule.conditions);
        let mut per: Vec<&str> = rule.per.iter().map(String::as_str).collect();
        per.sort_unstable();
        let subject = self.subject_of(&per, subjects);
        // Rules that draw on one budget share its state. A rule that only observes has its own state.
        // Otherwise the observing rule would use up the allowance of the enforced rules.
        let name = match rule.enforcement() {
            Enforcement::Enforce => rule.allowance(),
            Enforcement::Shadow | Enforcement::Instead(_) => &rule.id,
        };
        let salt = self.keyring.rule(name);
        let tag = match rule.placement {
            _ if !self.tagged => TagFrom::Nothing,
            Placement::Tenant if is_by_tenant(&rule.per) => {
                TagFrom::Part(self.subject_of(&[TENANT], subjects))
            }
            Placement::Tenant | Placement::Subject => TagFrom::Subject,
            Placement::Rule => TagFrom::Rule(salt.tag()),
            Placement::Sharded(_) if rule.per.is_empty() => TagFrom::Rule(salt.tag()),
            Placement::Sharded(_) => TagFrom::Subject,
        };
        let source = rule.limit_from.as_ref();
        let source = source.map(|it| Source::new(it, &rule.counting.numbers, &mut self.symbols));
        let cost = self.cost(&rule.cost);
        let mut allowances = (0..).zip(&self.tables.allowances);
        let allowance = allowances.find(|(_, it)| it.name == *rule.allowance());
        // A rule that only observes is not billed.
        let ledgered = rule.durability != Durability::None
            && self.ledger
            && rule.enforcement() == Enforcement::Enforce;
        let anonymous = Anonymous::of(&rule.per);
        let is_plain = rule.rollout >= 10_000
            && rule.when.is_none()
            && source.is_none()
            && matches!(tag, TagFrom::Nothing)
            && !ledgered
            && anonymous == Anonymous::Never
            && rule.backoff.is_none();
        Compiled {
            enabled: rule.state != RuleState::Disabled,
            conditions,
            subject,
            missing: rule.missing,
            plain_cost: match &cost {
                CompiledCost::Fixed(cost) if is_plain => Some(*cost),
                _ => None,
            },
            rollout: u64::from(rule.rollout),
            when: rule.when.clone(),
            cost,
            allowance: allowance.map_or(0, |(place, _)| place),
            source,
            name: Arc::clone(name),
            salt,
            overflow: Key::overflow(salt),
            tag,
            shards: match rule.placement {
                Placement::Sharded(parts) => parts.get(),
                _ => 0,
            },
            store: match &rule.store {
                RuleStore::Local if self.is_local => StoreId::DEFAULT,
                store => store.id(),
            },
            enforcement: rule.enforcement(),
            charge_denied: rule.charge_denied,
            carry_over: rule.carry_over,
            ledgered,
            overdraft: rule.overdraft(),
            anonymous,
            fair: rule
                .counting
                .numbers
                .fair
                .as_ref()
                .map(|it| self.fair(it, subjects)),
            backoff: rule.backoff.clone().map(|limit| {
                // An id cannot contain `~`.
                let salt = self.keyring.rule(&format!("{}~backoff", rule.id));
                (limit, salt)
            }),
        }
    }

    fn fair(&mut self, fair: &Fairness, subjects: &mut Subjects) -> CompiledFair {
        let mut per: Vec<&str> = fair.per.iter().map(String::as_str).collect();
        per.sort_unstable();
        CompiledFair {
            client: self.subject_of(&per, subjects),
            weights: fair.weights.as_ref().map(|it| {
                let of: HashMap<Box<str>, u32> = it
                    .of
                    .iter()
                    .map(|(value, weight)| (value.as_str().into(), *weight))
                    .collect();
                let weight = |plan: &str| of.get(plan).copied().unwrap_or(1);
                let by_plan = it.by == PLAN;
                CompiledWeights {
                    plans: by_plan.then(|| self.layers.plans().map(weight).collect()),
                    by: self.symbols.intern(&it.by),
                    of,
                }
            }),
            lanes: fair.lanes.as_ref().map(|it| {
                let mut lanes = CompiledLanes {
                    by: self.symbols.intern(&it.by),
                    // There are at most eight lanes.
                    named: (0..)
                        .zip(&it.named)
                        .map(|(lane, (name, _))| (name.as_str().into(), lane))
                        .collect(),
                    otherwise: u8::try_from(it.otherwise).unwrap_or(u8::MAX),
                    plans: None,
                };
                if it.by == PLAN {
                    let plans = self.layers.plans().map(|plan| lanes.named(plan));
                    lanes.plans = Some(plans.collect());
                }
                lanes
            }),
        }
    }

    fn conditions(&mut self, conditions: &[Condition]) -> Conditions {
        let conditions = conditions.iter().map(|condition| {
            let accepted = match &*condition.accepted {
                [one] => match (one.exact(), one.prefix()) {
                    (Some(Exact::Text(text)), _) => Accepted::Exact(text.into()),
                    (_, Some(text)) => Accepted::Prefix(text.into()),
                    _ => Accepted::One(one.clone()),
                },
                many => match (networks(many), texts(many)) {
                    (Some(networks), _) => Accepted::Networks(networks),
                    (_, Some(texts)) => Accepted::Texts(texts),
                    _ => Accepted::Any(Arc::clone(&condition.accepted)),
                },
            };
            (self.symbols.intern(&condition.attribute), accepted)
        });
        conditions.collect()
    }

    fn cost(&mut self, cost: &Cost) -> CompiledCost {
        match cost {
            Cost::Fixed(cost) => CompiledCost::Fixed(*cost),
            Cost::Expr(expr) => CompiledCost::Expr(Arc::clone(expr)),
            Cost::Table(table) => {
                let rows = table.rows.iter();
                let rows = rows.map(|(of, cost)| (self.conditions(of), self.cost(cost)));
                CompiledCost::Table(rows.collect(), Box::new(self.cost(&table.otherwise)))
            }
        }
    }

    /// Returns the index of this set of attributes. Adds the set if it is new.
    fn subject_of(&mut self, names: &[&str], subjects: &mut Subjects) -> usize {
        let ids: Box<[AttributeId]> = names.iter().map(|name| self.symbols.intern(name)).collect();
        *subjects.entry(ids).or_insert_with_key(|ids| {
            let kind = self.keyring.kind(names.iter().copied());
            self.subjects.push(SubjectSet {
                ids: ids.clone(),
                of_all: names.is_empty().then(|| kind.subject([])),
                kind,
                has_address: names.contains(&address::ATTRIBUTE),
            });
            self.subjects.len() - 1
        })
    }
}

/// Returns the enabled candidates, each with the rule that it may replace.
fn candidates(rules: &[Rule]) -> Box<[(u32, u32)]> {
    let place = |id: &str| (0u32..).zip(rules).find(|(_, rule)| *rule.id == *id);
    let all = (0..).zip(rules);
    let enabled = all.filter(|(_, rule)| rule.state != RuleState::Disabled);
    let pairs = enabled.filter_map(|(at, rule)| Some((at, place(rule.candidate_of()?)?.0)));
    pairs.collect()
}

/// Returns the set of networks, if all patterns are networks.
fn networks(patterns: &[Pattern]) -> Option<NetworkMap<()>> {
    let mut networks = NetworkMap::default();
    for pattern in patterns {
        match pattern.exact() {
            Some(Exact::Network(network)) => networks.entry(network),
            _ => return None,
        };
    }
    Some(networks)
}

/// Returns the texts, if all patterns are plain texts.
fn texts(patterns: &[Pattern]) -> Option<Box<[Box<str>]>> {
    let texts = patterns.iter().map(|pattern| match pattern.exact() {
        Some(Exact::Text(text)) => Some(text.into()),
        _ => None,
    });
    texts.collect()
}

/// Returns the conditions of a rule that ask for exact values; `None` for a disabled rule.
fn exact<'r>(rule: &'r Rule, symbols: &Symbols) -> Option<Guards<'r>> {
    if rule.state == RuleState::Disabled {
        return None;
    }
    let conditions = rule.conditions.iter().filter_map(|condition| {
        let values: Option<Vec<Exact<'_>>> =
            condition.accepted.iter().map(Pattern::exact).collect();
        Some((symbols.find(&condition.attribute)?, values?))
    });
    Some(conditions.collect())
}
