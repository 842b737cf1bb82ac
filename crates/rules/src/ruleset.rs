//! Rules prepared for requests: attributes in, charges out.
//!
//! The values of a request are looked up once, into a table by attribute id. An index finds the rules
//! that may apply. Each rule compares the values of its attributes. The hash of a subject is computed
//! once per distinct `per`.
//!
//! Resolving allocates only if an expression runs, or if there are more rules, attributes, or limits that the
//! request brings, than fit inline.
//!
//! [`RuleSet::resolve`] and [`RuleSet::explain`] take every decision in one place, `consider_matched`.

use std::sync::Arc;

use tollgate_core::{
    CarryOver, Charge, Enforcement, Key, Keyring, Limit, Mode, OnDenied, Recorded, RuleSalt,
    StoreId, Subject, Tag,
};

use crate::address;
use crate::attributes::Attributes;
use crate::conditions::{Accepted, Conditions};
use crate::expr::{Expr, Failure};
use crate::fairness::CompiledFair;
use crate::index::{Candidates, Index};
use crate::layers::{Layers, OwnOverrides, Resolved, Tables, Tier};
use crate::overrides::{Override, WHOLE};
use crate::request::{Request, SubjectSet};
use crate::request_limits::{RequestLimits, Source};
use crate::resolution::{Overridden, Resolution, RuleDenial, RuleDenialReason, push_companion};
use crate::rule::{Durability, Missing, Rule, RuleState};
use crate::share::Overdraft;
use crate::symbols::{AttributeId, Symbols};

/// The rules of a policy, ready for requests.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) rules: Vec<Rule>,
    pub(crate) compiled: Vec<Compiled>,
    pub(crate) symbols: Symbols,
    /// The distinct sets of attributes that make subjects.
    pub(crate) subjects: Vec<SubjectSet>,
    pub(crate) keyring: Keyring,
    /// The number of the address attribute, and how many bits of an IPv6 address make a subject.
    pub(crate) address: Option<AttributeId>,
    pub(crate) ipv6_prefix: u8,
    /// Whether keys carry cluster tags.
    pub(crate) tagged: bool,
    /// Whether there is a ledger.
    pub(crate) ledger: bool,
    /// Whether the default store is only the memory of this instance.
    pub(crate) is_local: bool,
    pub(crate) version: String,
    pub(crate) index: Index,
    /// Candidates, and the rules that they may replace.
    pub(crate) candidates: Box<[(u32, u32)]>,
    pub(crate) tables: Tables,
    pub(crate) layers: Layers,
    /// The number of the tenant attribute, if limits depend on it.
    pub(crate) tenant: Option<AttributeId>,
    /// The number of the attribute that names the plan of a request, if there is one.
    pub(crate) plan: Option<AttributeId>,
    /// Overrides that have no effect, and why.
    pub(crate) idle: Vec<(Arc<Override>, String)>,
}

/// A compiled rule. There is one for each rule, in order.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) enabled: bool,
    pub(crate) conditions: Conditions,
    /// The attributes that make the subject, as an index of `RuleSet::subjects`.
    pub(crate) subject: usize,
    pub(crate) missing: Missing,
    /// The cost of a request, if the charge depends on nothing but the subject and the numbers.
    pub(crate) plain_cost: Option<u64>,
    pub(crate) rollout: u64,
    pub(crate) when: Option<Arc<Expr>>,
    pub(crate) cost: CompiledCost,
    /// The allowance that the rule draws on, as an index of the tables.
    pub(crate) allowance: u32,
    pub(crate) source: Option<Source>,
    /// The name under which the rule's state is kept.
    pub(crate) name: Arc<str>,
    pub(crate) salt: RuleSalt,
    pub(crate) overflow: Key,
    pub(crate) tag: TagFrom,
    pub(crate) store: StoreId,
    /// Over how many keys the allowance of a subject is split; 0 if it has one key.
    pub(crate) shards: u16,
    pub(crate) enforcement: Enforcement,
    pub(crate) charge_denied: bool,
    pub(crate) carry_over: CarryOver,
    /// Whether the rule's usage is recorded in a ledger.
    pub(crate) ledgered: bool,
    pub(crate) overdraft: Overdraft,
    pub(crate) anonymous: Anonymous,
    /// How clients share the allowance, if it has fair shares.
    pub(crate) fair: Option<CompiledFair>,
    /// The back-off that follows the rule's denials, and the salt of the back-off's keys.
    pub(crate) backoff: Option<(Limit, RuleSalt)>,
}

/// Whether the subjects of a rule are anonymous: known by an address only. Strangers can make many such subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anonymous {
    /// Never: another attribute names the client.
    Never,
    /// Always: `ip` is the only attribute in `per` that identifies a client.
    Always,
    /// Depends on the request: anonymous if its attribute `subject` is an address.
    BySubject,
}

impl Anonymous {
    /// Attributes that name a client.
    const NAMES: [&str; 4] = [TENANT, "user", "api_key", "service_account"];
    const SUBJECT: &str = "subject";
    const ADDRESS: &str = "ip:";

    pub(crate) fn of(per: &[String]) -> Anonymous {
        let has = |name: &str| per.iter().any(|it| it == name);
        if Anonymous::NAMES.into_iter().any(has) {
            Anonymous::Never
        } else if has(Anonymous::SUBJECT) {
            Anonymous::BySubject
        } else if has(address::ATTRIBUTE) {
            Anonymous::Always
        } else {
            Anonymous::Never
        }
    }

    #[inline]
    fn is(self, attributes: &Attributes<'_>) -> bool {
        match self {
            Anonymous::Never => false,
            Anonymous::Always => true,
            Anonymous::BySubject => attributes
                .get(Anonymous::SUBJECT)
                .is_some_and(|subject| subject.starts_with(Anonymous::ADDRESS)),
        }
    }
}

/// The cost of a request.
#[derive(Debug)]
pub(crate) enum CompiledCost {
    Fixed(u64),
    Expr(Arc<Expr>),
    /// The cost of the first row whose conditions hold, or the last cost.
    Table(Box<[(Conditions, CompiledCost)]>, Box<CompiledCost>),
}

/// The source of the tag of a rule's keys. The tag depends on the subject alone, so that a subject's
/// state is always in one cluster slot.
#[derive(Debug)]
pub(crate) enum TagFrom {
    /// Nothing: the store is not a cluster.
    Nothing,
    /// The subject.
    Subject,
    /// Some of the attributes that make the subject, as an index of `RuleSet::subjects`.
    Part(usize),
    /// The rule.
    Rule(Tag),
}

/// The attribute that names the tenant. It finds plans, and places keys by default.
pub(crate) const TENANT: &str = "tenant";

/// The attribute that names the action, which a ledger records.
const ACTION: &str = "action";

/// The verdict of one rule on a request.
pub(crate) enum Verdict {
    Disabled,
    /// The condition that does not hold.
    Unmatched(usize),
    NoSubject(AttributeId),
    /// A number below 10,000 that depends on the subject alone. It is not below the rollout.
    OutOfRollout(u64),
    WhenFalse,
    /// The expression that reads an absent attribute, and the attribute if it is known.
    NoValue(&'static str, Option<String>),
    /// The expression that failed, and why.
    Broken(&'static str, String),
    Applies {
        subject: Subject,
        cost: u64,
    },
}

impl RuleSet {
    /// Returns the tag of the keys of `subject` under `rule`.
    #[inline]
    fn tag(&self, rule: &Compiled, subject: Subject, request: &mut Request<'_, '_>) -> Tag {
        match rule.tag {
            TagFrom::Nothing => Tag::default(),
            TagFrom::Subject => subject.tag(),
            // The request has all attributes of the subject, so it has these attributes too.
            TagFrom::Part(part) => self
                .subject(part, request)
                .map_or(subject.tag(), Subject::tag),
            TagFrom::Rule(tag) => tag,
        }
    }

    /// The rules, in the order of the config. An index of a rule, as in a [`Resolution`], refers to
    /// this list.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the part of a key that belongs to the rule at `index`.
    #[must_use]
    pub fn salt(&self, index: u32) -> RuleSalt {
        self.compiled[index as usize].salt
    }

    /// Identifies the text that the rules were read from.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether an enabled rule may apply to requests with this `value` of `attribute`. Such a rule
    /// accepts the value, or has no condition on the attribute.
    ///
    /// ```
    /// # use tollgate_core::Keyring;
    /// # use tollgate_rules::{Policy, RuleSet};
    /// # let policy = Policy::parse("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: shop, match: { domain: shop-* }, algorithm: fixed-window, limit: 5, window: 1m }]
    /// # ")?;
    /// # let rules = RuleSet::compile(&policy, Keyring::new(b"a secret of 16 bytes", "default"));
    /// assert!(rules.may_concern("domain", "shop-eu"));
    /// assert!(!rules.may_concern("domain", "bank"));
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    #[must_use]
    pub fn may_concern(&self, attribute: &str, value: &str) -> bool {
        let mut enabled = self
            .rules
            .iter()
            .filter(|it| it.state != RuleState::Disabled);
        enabled.any(|rule| {
            let mut asked = rule
                .conditions
                .iter()
                .filter(|it| it.attribute == attribute);
            asked.all(|it| it.accepted.iter().any(|pattern| pattern.matches(value)))
        })
    }

    /// Returns the charges of a request with these attributes. A request that no rule matches has none.
    /// `request_limits` keeps the limits that the request brings.
    #[must_use]
    pub fn resolve<'r, 'a: 'r>(
        &'r self,
        attributes: &Attributes<'a>,
        request_limits: &'r RequestLimits,
    ) -> Resolution<'r> {
        let mut resolution = Resolution::default();
        self.resolve_into(attributes, request_limits, &mut resolution);
        resolution
    }

    /// Returns the names under which a ledger records the usage of a request under the rule at `index`.
    fn recorded<'r, 'a: 'r>(&'r self, index: u32, attributes: &Attributes<'a>) -> Recorded<'r> {
        let rule = &self.rules[index as usize];
        Recorded {
            rule: rule.id(),
            tenant: attributes.get(TENANT).unwrap_or_default(),
            action: attributes.get(ACTION).unwrap_or_default(),
            strict: rule.durability() == Durability::Strict,
        }
    }

    /// Adds the charges of a request to `resolution`. The resolution is filled in place, because copies
    /// of it would cost time.
    pub fn resolve_into<'r, 'a: 'r>(
        &'r self,
        attributes: &Attributes<'a>,
        request_limits: &'r RequestLimits,
        resolution: &mut Resolution<'r>,
    ) {
        let mut request = Request::new(self, attributes);
        request.look_up(self);
        let tier = self.tier(&request);
        let own_overrides = match self.layers.has_subjects() {
            true => self.overrides_of(attributes),
            false => None,
        };
        let is_special = own_overrides.is_some() || tier.is_some_and(|tier| tier.is_mixed);
        let before = resolution.charges.len();
        resolution.plan = tier.and_then(|tier| tier.plan);
        let mut found = Candidates::new();
        for index in self.index.find(&request.values, &mut found).iter().copied() {
            let compiled = &self.compiled[index as usize];
            // The index has checked only one condition of each rule.
            if !compiled.matches(&request.values) {
                continue;
            }
            // Most rules: the same charge as below, without its exceptions.
            if let Some(cost) = compiled.plain_cost
                && !is_special
                && let Ok(subject) = self.subject(compiled.subject, &mut request)
            {
                let resolved = self.resolved(compiled, tier);
                let limit = resolved.charged();
                let (limit, on_denied) = match &compiled.fair {
                    None => (limit, OnDenied::charged(compiled.charge_denied)),
                    Some(fair) => {
                        let plan = resolution.plan;
                        self.shared_fairly(fair, limit, plan, &mut request, request_limits)
                    }
                };
                resolution.charges.push(Charge {
                    overflow: compiled.overflow,
                    rule: &compiled.name,
                    store: compiled.store,
                    shards: compiled.shards,
                    cost,
                    enforcement: compiled.enforcement,
                    on_denied,
                    carry_over: compiled.carry_over,
                    overdraft: compiled.overdraft.of(|| whole(limit)),
                    mode: resolved.mode,
                    ..Charge::new(Key::new(compiled.salt, subject), limit)
                });
                resolution.rules.push(index);
                if resolved.fixed || resolved.scale != WHOLE {
                    note_overridden(resolution, resolved.fixed, resolved.scale);
                }
                continue;
            }
            self.resolve_rule(
                index,
                (tier, own_overrides.as_deref().map_or(&[], |own| own)),
                &mut request,
                request_limits,
                resolution,
            );
        }
        if !self.candidates.is_empty() {
            self.place_candidates(resolution, before);
        }
    }

    /// Returns the overrides of the subjects of a request, if there are any. Boxed, because few requests have some.
    #[cold]
    fn overrides_of(&self, attributes: &Attributes<'_>) -> Option<Box<OwnOverrides>> {
        let own = self.layers.of_subjects(attributes);
        (!own.is_empty()).then(|| Box::new(own))
    }

    /// Adds the charge or the denial of the rule at `index`, whose conditions hold.
    #[inline(never)]
    fn resolve_rule<'r, 'a: 'r>(
        &'r self,
        index: u32,
        (tier, own_overrides): (Option<Tier<'r>>, &[Arc<Override>]),
        request: &mut Request<'_, 'a>,
        request_limits: &'r RequestLimits,
        resolution: &mut Resolution<'r>,
    ) {
        let (attributes, compiled) = (request.attributes, &self.compiled[index as usize]);
        let is_mixed = tier.is_some_and(|tier| tier.is_mixed);
        let verdict = self.consider_matched(compiled, request);
        if let Verdict::Applies { subject, cost } = verdict {
            let own = &self.rules[index as usize];
            let changed = match own_overrides.is_empty() && !is_mixed {
                true => None,
                false => self.changed_for_subject(own, compiled, own_overrides, request),
            };
            let (limit, mode, fixed, scale) = match changed {
                None => {
                    let resolved = self.resolved(compiled, tier);
                    let (limit, mode) = limit(compiled, resolved, request, request_limits);
                    (limit, mode, resolved.fixed, resolved.scale)
                }
                Some(resolved) => {
                    let brought = RequestLimits::default();
                    let (limit, mode) = limit(compiled, &resolved, request, &brought);
                    let limit = request_limits.keep(limit.clone());
                    (limit, mode, resolved.fixed, resolved.scale)
                }
            };
            let (limit, on_denied) = match &compiled.fair {
                None => (limit, OnDenied::charged(compiled.charge_denied)),
                Some(fair) => {
                    let plan = resolution.plan;
                    self.shared_fairly(fair, limit, plan, request, request_limits)
                }
            };
            resolution.charges.push(Charge {
                overflow: compiled.overflow,
                rule: &compiled.name,
                tag: self.tag(compiled, subject, request),
                store: compiled.store,
                shards: compiled.shards,
                cost,
                enforcement: compiled.enforcement,
                on_denied,
                carry_over: compiled.carry_over,
                recorded: compiled.ledgered.then(|| self.recorded(index, attributes)),
                overdraft: compiled.overdraft.of(|| whole(limit)),
                anonymous: compiled.anonymous.is(attributes),
                mode,
                ..Charge::new(Key::new(compiled.salt, subject), limit)
            });
            resolution.rules.push(index);
            if fixed || scale != WHOLE {
                note_overridden(resolution, fixed, scale);
            }
            if let Some((limit, salt)) = &compiled.backoff {
                let id = &self.rules[index as usize].id;
                push_companion(resolution, limit, *salt, subject, (index, id));
            }
        } else if let Some(reason) = compiled.denies(&verdict) {
            resolution.denials.push(RuleDenial {
                rule: index,
                reason,
                shadow: compiled.enforcement == Enforcement::Shadow,
            });
        }
    }

    /// Returns the limit of a bucket with fair shares for the client of a request, and what its denial does.
    fn shared_fairly<'r>(
        &self,
        fair: &CompiledFair,
        limit: &'r Limit,
        plan: Option<u16>,
        request: &mut Request<'_, '_>,
        request_limits: &'r RequestLimits,
    ) -> (&'r Limit, OnDenied) {
        // A plan or an override may make the allowance unlimited.
        let Limit::Fair(bucket) = limit else {
            return (limit, OnDenied::Nothing);
        };
        let subject = self.subject(fair.client, request).ok();
        let client = fair.asks(subject, &request.values, plan);
        let limit = Limit::Fair(bucket.for_client(client));
        (request_limits.keep(limit), OnDenied::Note)
    }

    /// Links candidates to the rules they may replace, among the charges from `start` on.
    fn place_candidates(&self, resolution: &mut Resolution<'_>, start: usize) {
        let place = |rules: &[u32], rule: u32| {
            let place = rules[start..].iter().position(|it| *it == rule)?;
            Some(start + place)
        };
        for (candidate, current) in &self.candidates {
            let rules = &resolution.rules;
            if let Some(candidate) = place(rules, *candidate)
                && let Some(current) = place(rules, *current)
                && let Ok(current) = u8::try_from(current)
            {
                resolution.charges[candidate].enforcement = Enforcement::Instead(current);
            }
        }
    }

    /// Returns each candidate with the rule that it may replace, as indexes of [`rules`](Self::rules).
    pub fn candidates(&self) -> impl ExactSizeIterator<Item = (u32, u32)> {
        self.candidates.iter().copied()
    }

    /// Returns the tier of a request; `None` if all tenants have the same numbers.
    #[inline]
    pub(crate) fn tier(&self, request: &Request<'_, '_>) -> Option<Tier<'_>> {
        Some(self.tier_of(self.tenant?, request))
    }

    #[inline(never)]
    fn tier_of(&self, tenant: AttributeId, request: &Request<'_, '_>) -> Tier<'_> {
        let tenant = request.values[tenant as usize];
        match self.plan {
            None => self.tables.tier(tenant),
            Some(plan) => self
                .tables
                .tier_of_request(tenant, request.values[plan as usize]),
        }
    }

    /// Returns the numbers of a rule, without a limit that a request brings.
    #[inline]
    pub(crate) fn resolved<'r>(&'r self, rule: &Compiled, tier: Option<Tier<'r>>) -> &'r Resolved {
        match tier {
            Some(tier) => self.tables.of(tier, rule.allowance),
            None => self.tables.base(rule.allowance),
        }
    }

    /// Returns the keyring that hashes subjects.
    #[must_use]
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// The names of the plans. An index of a plan, as in a [`Resolution`], refers to this list.
    pub fn plans(&self) -> impl ExactSizeIterator<Item = &str> {
        self.layers.plans()
    }

    /// The overrides that have no effect under these rules, and why.
    pub fn idle_overrides(&self) -> impl Iterator<Item = (&Override, &str)> {
        self.idle.iter().map(|(it, why)| (&**it, why.as_str()))
    }

    /// Returns the verdict of `rule` on `request`. Cheap checks come first.
    pub(crate) fn consider(&self, rule: &Compiled, request: &mut Request<'_, '_>) -> Verdict {
        if !rule.enabled {
            return Verdict::Disabled;
        }
        if let Some(index) = rule.unmatched(&request.values) {
            return Verdict::Unmatched(index);
        }
        self.consider_matched(rule, request)
    }

    /// Returns the verdict of an enabled rule after its conditions were found to hold.
    #[inline]
    fn consider_matched(&self, rule: &Compiled, request: &mut Request<'_, '_>) -> Verdict {
        // A rule that skips requests without its subject can stop here. A rule that denies them must go
        // on: it denies only requests that it applies to.
        let subject = self.subject(rule.subject, request);
        match subject {
            Err(id) if rule.missing == Missing::Skip => return Verdict::NoSubject(id),
            Err(_) if rule.rollout == 0 => return Verdict::OutOfRollout(0),
            Ok(subject) if rule.rollout < 10_000 => {
                let draw = subject.draw(10_000);
                if draw >= rule.rollout {
                    return Verdict::OutOfRollout(draw);
                }
            }
            _ => {}
        }
        if let Some(when) = &rule.when {
            match when.holds(request.attributes) {
                Ok(true) => {}
                Ok(false) => return Verdict::WhenFalse,
                Err(failure) => return failed("when", failure),
            }
        }
        let subject = match subject {
            Ok(subject) => subject,
            Err(id) => return Verdict::NoSubject(id),
        };
        match rule.cost.of(request) {
            Ok(cost) => Verdict::Applies { subject, cost },
            Err(failure) => failed("cost", failure),
        }
    }
}

impl CompiledCost {
    #[inline]
    fn of(&self, request: &Request<'_, '_>) -> Result<u64, Failure> {
        match self {
            CompiledCost::Fixed(cost) => Ok(*cost),
            CompiledCost::Expr(expr) => expr.cost(request.attributes),
            CompiledCost::Table(rows, otherwise) => {
                let holds = |(id, accepted): &(AttributeId, Accepted)| {
                    accepted.takes(request.values[*id as usize])
                };
                let row = rows.iter().find(|(row, _)| row.iter().all(holds));
                row.map_or(&**otherwise, |(_, cost)| cost).of(request)
            }
        }
    }
}

impl Compiled {
    /// Returns the index of the first condition that does not hold.
    fn unmatched(&self, values: &[Option<&str>]) -> Option<usize> {
        self.conditions
            .iter()
            .position(|(id, accepted)| !accepted.takes(values[*id as usize]))
    }

    /// Returns whether all conditions hold.
    #[inline]
    fn matches(&self, values: &[Option<&str>]) -> bool {
        let holds = |(id, accepted): &(AttributeId, Accepted)| accepted.takes(values[*id as usize]);
        self.conditions.iter().all(holds)
    }

    /// Returns why a verdict denies the request; `None` if it does not deny.
    #[inline]
    pub(crate) fn denies(&self, verdict: &Verdict) -> Option<RuleDenialReason> {
        match verdict {
            Verdict::Broken(..) => Some(RuleDenialReason::BadExpression),
            Verdict::NoSubject(_) | Verdict::NoValue(..) => {
                (self.missing == Missing::Deny).then_some(RuleDenialReason::MissingAttribute)
            }
            _ => None,
        }
    }
}

/// Returns the limit of a request under a rule, and the mode of its charge.
#[inline]
pub(crate) fn limit<'r>(
    rule: &Compiled,
    resolved: &'r Resolved,
    request: &Request<'_, '_>,
    request_limits: &'r RequestLimits,
) -> (&'r Limit, Mode) {
    if let Some(source) = &rule.source
        && !resolved.fixed
        && let Some(value) = request.values[source.id as usize]
        && let Some((limit, _)) = source.limit(resolved, value)
    {
        let (mode, prepaid) = resolved.modes.of(&limit);
        return (request_limits.keep(prepaid.unwrap_or(limit)), mode);
    }
    (resolved.charged(), resolved.mode)
}

/// Notes how an override has changed the limit of the latest charge.
#[cold]
fn note_overridden(resolution: &mut Resolution<'_>, fixed: bool, scale: u32) {
    let said = match fixed {
        true => Overridden::Fixed,
        false => Overridden::Scaled(scale),
    };
    let place = resolution.charges.len() - 1;
    resolution.overridden.push((place, said));
}

/// Returns the amount of which an overdraft may be a share.
fn whole(limit: &Limit) -> u64 {
    match limit {
        Limit::Quota(quota) => quota.limit(),
        limit => limit.capacity(),
    }
}

fn failed(what: &'static str, failure: Failure) -> Verdict {
    match failure {
        Failure::Missing(name) => Verdict::NoValue(what, name),
        Failure::Broken(how) => Verdict::Broken(what, how),
    }
}
