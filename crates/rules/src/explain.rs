//! Why each rule applies to a request, or does not, in words.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Algorithm, Enforcement, Limit, Subject, Zone};

use crate::attributes::Attributes;
use crate::document::percentage;
use crate::layers::{Layer, Layers, Step, is_by_tenant, replaced};
use crate::limits::Numbers;
use crate::overrides::{Override, WHOLE};
use crate::period::Every;
use crate::request::Request;
use crate::request_limits::RequestLimits;
use crate::resolution::RuleDenialReason;
use crate::rule::{Rule, RuleState};
use crate::ruleset::{Compiled, RuleSet, Verdict, limit};
use crate::zone::ZoneFrom;

/// The effect of one rule on a request, explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The rule, as an index of [`RuleSet::rules`].
    pub rule: u32,
    /// The rule's id.
    pub id: Arc<str>,
    /// The attributes that make the rule's subject.
    pub per: Vec<String>,
    /// Whether the rule only observes.
    pub shadow: bool,
    /// The rule's effect.
    pub effect: Effect,
}

/// The effect of a rule on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// The rule charges the request.
    Applies {
        /// The cost of one unit of the request.
        cost: u64,
        /// The numbers of all layers, and where each comes from.
        numbers: Vec<NumberFrom>,
        /// The limit that decides: the result of all layers.
        limit: Limit,
        /// The hashed subject.
        subject: Subject,
    },
    /// The rule does not concern the request.
    Skips {
        /// Why the rule does not concern the request, in words.
        why: String,
    },
    /// The rule denies the request without asking a store.
    Denies {
        /// The kind of denial.
        reason: RuleDenialReason,
        /// Why the rule denies the request, in words.
        why: String,
    },
}

/// A number of a limit, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberFrom {
    /// The name of the number in the config; `scale` for a share of the limit, `limit_from` for a limit
    /// that the request brings.
    pub name: &'static str,
    /// The value, as a config would write it.
    pub value: String,
    /// The source, in words.
    pub from: String,
}

impl fmt::Display for NumberFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.name, self.value, self.from)
    }
}

impl fmt::Display for Layer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::Plan(plan) => write!(f, "plan {plan}"),
            Layer::Tenant(tenant) => write!(f, "tenant {tenant}"),
            Layer::Override(it) => write!(f, "override {}: {}", it.name(), it.reason()),
        }
    }
}

impl Explanation {
    /// Whether the rule charges the request.
    #[must_use]
    pub fn applies(&self) -> bool {
        matches!(self.effect, Effect::Applies { .. })
    }

    /// Why the rule does not apply, in words.
    #[must_use]
    pub fn why_not(&self) -> Option<&str> {
        match &self.effect {
            Effect::Applies { .. } => None,
            Effect::Skips { why } | Effect::Denies { why, .. } => Some(why),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.id)?;
        match &self.effect {
            Effect::Applies { cost, numbers, .. } => {
                match self.per.as_slice() {
                    [] => write!(f, "applies, cost {cost}, one allowance for all")?,
                    per => write!(f, "applies, cost {cost}, per {}", per.join(" + "))?,
                }
                for (index, number) in numbers.iter().enumerate() {
                    let between = if index == 0 { ": " } else { ", " };
                    write!(f, "{between}{number}")?;
                }
            }
            Effect::Skips { why } => write!(f, "does not apply: {why}")?,
            Effect::Denies { why, .. } => write!(f, "denies: {why}")?,
        }
        if self.shadow {
            f.write_str(" (shadow)")?;
        }
        Ok(())
    }
}

impl RuleSet {
    /// Explains the effect of each rule on a request, in order.
    ///
    /// ```
    /// # use tollgate_core::Keyring;
    /// # use tollgate_rules::{Attributes, Policy, RuleSet};
    /// # let policy = Policy::parse("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: login, match: { action: login }, algorithm: fixed-window, limit: 5, window: 1m }]
    /// # ")?;
    /// # let rules = RuleSet::compile(&policy, Keyring::new(b"a secret of 16 bytes", "default"));
    /// let why = rules.explain(&Attributes::from([("action", "search")]));
    /// assert_eq!(
    ///     why[0].to_string(),
    ///     "login: does not apply: match: action is \"search\", wanted \"login\"",
    /// );
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    #[must_use]
    pub fn explain(&self, attributes: &Attributes<'_>) -> Vec<Explanation> {
        let mut request = self.request(attributes);
        let rules = (0u32..).zip(self.compiled.iter().zip(&self.rules));
        let explain = |(index, (compiled, rule)): (u32, (_, &Rule))| {
            let verdict = self.consider(compiled, &mut request);
            let effect = match (&verdict, compiled.denies(&verdict)) {
                (Verdict::Applies { cost, subject }, _) => Effect::Applies {
                    cost: *cost,
                    numbers: self.numbers(
                        rule,
                        compiled,
                        &request,
                        &self.own_overrides(index, attributes),
                    ),
                    limit: self.limit_of(index, compiled, &request),
                    subject: *subject,
                },
                (_, Some(reason)) => Effect::Denies {
                    reason,
                    why: self.words(rule, &verdict, attributes),
                },
                (_, None) => Effect::Skips {
                    why: self.words(rule, &verdict, attributes),
                },
            };
            Explanation {
                rule: index,
                id: rule.shared_id(),
                per: rule.per.clone(),
                shadow: rule.enforcement() == Enforcement::Shadow
                    && rule.state() != RuleState::Disabled,
                effect,
            }
        };
        rules.map(explain).collect()
    }

    /// Returns the limit of a request under a rule, after all layers.
    fn limit_of(&self, rule: u32, compiled: &Compiled, request: &Request<'_, '_>) -> Limit {
        let own = self.layers.of_subjects(request.attributes);
        let (request_limits, rule) = (RequestLimits::default(), &self.rules[rule as usize]);
        let limit = match self.changed_for_subject(rule, compiled, &own, request) {
            Some(resolved) => limit(compiled, &resolved, request, &request_limits)
                .0
                .clone(),
            None => {
                let resolved = self.resolved(compiled, self.tier(request));
                limit(compiled, resolved, request, &request_limits)
                    .0
                    .clone()
            }
        };
        match (limit, &compiled.fair) {
            (Limit::Fair(bucket), Some(fair)) => {
                let plan = self.tier(request).and_then(|it| it.plan);
                Limit::Fair(bucket.for_client(fair.asks(None, &request.values, plan)))
            }
            (limit, _) => limit,
        }
    }

    /// Returns the numbers of a rule for a request, and where each comes from. `own_overrides` are the
    /// overrides of the subject that concern the rule.
    pub(crate) fn numbers(
        &self,
        rule: &Rule,
        compiled: &Compiled,
        request: &Request<'_, '_>,
        own_overrides: &[Arc<Override>],
    ) -> Vec<NumberFrom> {
        let tenant = self.tenant.and_then(|id| request.values[id as usize]);
        let tenant = tenant.filter(|_| is_by_tenant(&rule.per));
        let plan = self.plan_under(rule, request);
        let Layered {
            mut numbers,
            scales,
            mode_from,
        } = layered(&self.layers, rule, plan, tenant, own_overrides);
        let number = |(name, value), from: &str| NumberFrom {
            name,
            value,
            from: from.to_owned(),
        };
        if let Some(id) = self.plan
            && let Some(value) = request.values[id as usize]
            && self.layers.tiers.may_differ_by_plan(&rule.per)
        {
            let name = self.symbols.name(id);
            let from = match self.layers.tiers.plan(value) {
                Some(_) => format!("attribute {name}"),
                None => format!("attribute {name}, which does not name a plan and is ignored"),
            };
            numbers.push(number(("plan_from", format!("{value:?}")), &from));
        }
        if let Some(source) = &compiled.source
            && let Some(value) = request.values[source.id as usize]
        {
            let name = self.symbols.name(source.id);
            let changed = self.changed_for_subject(rule, compiled, own_overrides, request);
            let resolved = changed
                .as_ref()
                .unwrap_or_else(|| self.resolved(compiled, self.tier(request)));
            let from = match source.limit(resolved, value) {
                _ if resolved.fixed => format!("attribute {name}, which an override replaces"),
                Some((_, false)) => format!("attribute {name}"),
                Some((_, true)) => format!("attribute {name}, held to the ceiling"),
                None => format!("attribute {name}, which is not a valid limit and is ignored"),
            };
            numbers.push(number(("limit_from", format!("{value:?}")), &from));
        }
        numbers.extend(scales);
        if let (Some(fair), Some(shares)) = (&compiled.fair, &rule.counting.numbers.fair) {
            let plan = self.tier(request).and_then(|it| it.plan);
            let client = fair.asks(None, &request.values, plan);
            if let Some(weights) = &shares.weights {
                let value = ("weight", client.weight.to_string());
                numbers.push(number(value, &format!("this client, by {}", weights.by)));
            }
            if let (Some(lanes), Some(name)) =
                (&shares.lanes, shares.lane_names().nth(client.lane.into()))
            {
                let value = ("lane", name.to_owned());
                numbers.push(number(value, &format!("this request, by {}", lanes.by)));
            }
        }
        let changed = self.changed_for_subject(rule, compiled, own_overrides, request);
        let resolved = changed
            .as_ref()
            .unwrap_or_else(|| self.resolved(compiled, self.tier(request)));
        for told in resolved.modes.explained(&resolved.limit) {
            numbers.push(number(told, &mode_from));
        }
        numbers
    }

    fn words(&self, rule: &Rule, verdict: &Verdict, attributes: &Attributes<'_>) -> String {
        match verdict {
            Verdict::Applies { .. } => String::new(),
            Verdict::Disabled => "disabled".to_owned(),
            Verdict::WhenFalse => "when: false".to_owned(),
            Verdict::NoSubject(id) => {
                format!("per: the request carries no {}", self.symbols.name(*id))
            }
            Verdict::NoValue(what, Some(name)) => format!("{what}: the request carries no {name}"),
            Verdict::NoValue(what, None) => {
                format!("{what}: the request lacks an attribute that the expression reads")
            }
            Verdict::Broken(what, how) => format!("{what}: {how}"),
            Verdict::OutOfRollout(draw) => {
                let rollout = percentage(u32::from(rule.rollout));
                if rule.rollout == 0 {
                    format!("rollout: {rollout} of the subjects")
                } else {
                    let draw = percentage(u32::try_from(*draw).unwrap_or(WHOLE));
                    format!("rollout: subject is at {draw}, rollout is {rollout}")
                }
            }
            Verdict::Unmatched(index) => {
                rule.conditions.get(*index).map_or_else(String::new, |it| {
                    let name = &it.attribute;
                    let wanted: Vec<String> = it.accepted.iter().map(ToString::to_string).collect();
                    let wanted = match wanted.as_slice() {
                        [one] => format!("{one:?}"),
                        many => format!("one of [{}]", many.join(", ")),
                    };
                    match attributes.get(name) {
                        Some(value) => format!("match: {name} is {value:?}, wanted {wanted}"),
                        None => format!("match: the request carries no {name}, wanted {wanted}"),
                    }
                })
            }
        }
    }
}

/// The numbers of a rule after all layers except the request.
pub(crate) struct Layered {
    /// Each number, and where it comes from.
    pub(crate) numbers: Vec<NumberFrom>,
    /// The scales of overrides, which apply to the numbers of all layers.
    pub(crate) scales: Vec<NumberFrom>,
    /// Where the mode comes from.
    pub(crate) mode_from: String,
}

/// Returns the numbers of a rule for a plan, a tenant or a subject with overrides of its own, and where each comes
/// from.
pub(crate) fn layered(
    layers: &Layers,
    rule: &Rule,
    plan: Option<u16>,
    tenant: Option<&str>,
    own_overrides: &[Arc<Override>],
) -> Layered {
    let own = match rule.budget() {
        Some(budget) => format!("budget {budget}"),
        None => "rule".to_owned(),
    };
    let number = |(name, value), from: &str| NumberFrom {
        name,
        value,
        from: from.to_owned(),
    };
    let written = |numbers: &Numbers, from: &str| -> Vec<NumberFrom> {
        numbers.given().map(|given| number(given, from)).collect()
    };
    let mut numbers = written(&rule.counting.numbers, &own);
    let mut sum = rule.counting.numbers.clone();
    let zone = tenant.and_then(|tenant| layers.zone_of(tenant));
    let mut scales = Vec::new();
    let mut mode_from = own.clone();
    let steps = layers.steps(rule.allowance(), plan, tenant, own_overrides);
    for (layer, step) in steps {
        match step {
            // The mode is written below, after the numbers of all layers are known.
            Step::Mode(_) => mode_from = layer.to_string(),
            Step::Scale(scale) => {
                scales.push(number(("scale", percentage(scale)), &layer.to_string()));
            }
            Step::Numbers(patch) => {
                let Some((result, _)) = replaced(&rule.counting, &sum, patch, zone) else {
                    continue;
                };
                if result != sum.with(patch) {
                    numbers = written(&rule.counting.numbers, &own);
                }
                sum = result;
                for it in written(patch, &layer.to_string()) {
                    match numbers.iter_mut().find(|known| known.name == it.name) {
                        Some(known) => *known = it,
                        None => numbers.push(it),
                    }
                }
            }
        }
    }
    if rule.algorithm() == Algorithm::Quota {
        in_zone(&mut numbers, &sum, tenant, zone);
    }
    if let Some(overdraft) = &rule.overdraft {
        numbers.push(number(("overdraft", overdraft.to_string()), &own));
    }
    if let Some(most) = &rule.max_lease {
        numbers.push(number(("max_lease", most.to_string()), &own));
    }
    if let Some(adaptive) = &rule.adaptive {
        numbers.push(number(("adaptive", adaptive.to_string()), &own));
    }
    Layered {
        numbers,
        scales,
        mode_from,
    }
}

/// Describes a limit in words: `gcra: 10 at once, all back in 10h`.
#[must_use]
pub fn summary(limit: &Limit) -> String {
    let name = limit.algorithm().name();
    match limit {
        Limit::Unlimited(_) => format!("{name}: unlimited"),
        Limit::Quota(quota) => {
            let (count, unit) = quota.calendar().unit();
            let (limit, every) = (quota.limit(), Every { count, unit });
            let grace = match quota.grace() {
                0 => String::new(),
                grace => format!(", and {grace} more with a warning"),
            };
            format!("{name}: {limit} in each {every}{grace}")
        }
        Limit::Concurrency(slots) => {
            let (limit, lease) = (slots.limit(), slots.lease());
            format!("{name}: {limit} at once, each held for {lease} unless renewed")
        }
        limit => {
            let (capacity, window) = (limit.capacity(), limit.window());
            format!("{name}: {capacity} at once, all back in {window}")
        }
    }
}

/// Adds the time zone of a quota, unless the rule, a plan or an override names the zone.
fn in_zone(
    numbers: &mut Vec<NumberFrom>,
    sum: &Numbers,
    tenant: Option<&str>,
    zone: Option<&Zone>,
) {
    if let Some(ZoneFrom::Named(_)) = sum.timezone {
        return;
    }
    let (value, from) = match (zone, tenant) {
        (Some(zone), Some(tenant)) => (zone.name(), format!("tenant {tenant}")),
        (_, Some(tenant)) if sum.timezone.is_some() => {
            ("UTC", format!("default: tenant {tenant} has no timezone"))
        }
        _ => ("UTC", "default".to_owned()),
    };
    let it = NumberFrom {
        name: "timezone",
        value: value.to_owned(),
        from,
    };
    match numbers.iter_mut().find(|known| known.name == it.name) {
        Some(known) => *known = it,
        None => numbers.push(it),
    }
}
