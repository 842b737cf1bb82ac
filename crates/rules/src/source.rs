//! Where the numbers of a denial came from, in words.
//!
//! A denial is described after the request is over, from the few facts that are kept about it: the rule,
//! the tenant, the plan that the request named, and whether the request brought its own limit.

use std::sync::Arc;

use crate::address;
use crate::attributes::Attributes;
use crate::layers::{Layer, is_by_tenant};
use crate::overrides::Override;
use crate::request::Request;
use crate::rule::Rule;
use crate::ruleset::{RuleSet, TENANT};

/// How a request brings numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestSource {
    /// In the attribute that the rule's `limit_from` names.
    Attribute,
    /// Beside its attributes, such as a limit override of Envoy.
    Numbers,
}

/// Where the numbers of a rule came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSource {
    /// Each number and its source, as in an explanation: `limit 5 (plan free), window 1m (rule)`.
    pub numbers: String,
    /// The name of the last override that had an effect, if there is one.
    pub by_override: Option<String>,
}

impl RuleSet {
    /// Returns where the numbers of the rule at `rule` came from, for a request of `tenant` that named `plan` (see
    /// [`named_plan`](Self::named_plan)). `brought` says how the request brought a limit, if it did.
    ///
    /// ```
    /// # use tollgate_core::Keyring;
    /// # use tollgate_rules::{Policy, RuleSet};
    /// # let policy = Policy::parse("rules.yaml", "
    /// # version: 1
    /// # plans: { free: { api: { limit: 2 } } }
    /// # tenants: { acme: { plan: free } }
    /// # rules: [{ id: api, per: [tenant], algorithm: fixed-window, limit: 5, window: 1m }]
    /// # ")?;
    /// # let rules = RuleSet::compile(&policy, Keyring::new(b"a secret of 16 bytes", "default"));
    /// let source = rules.source(0, Some("acme"), None, &[], None);
    /// assert_eq!(source.numbers, "limit 2 (plan free), window 1m (rule)");
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    #[must_use]
    pub fn source(
        &self,
        rule: u32,
        tenant: Option<&str>,
        plan: Option<u16>,
        own_overrides: &[Arc<Override>],
        brought: Option<RequestSource>,
    ) -> LimitSource {
        let place = rule as usize;
        let (Some(rule), Some(compiled)) = (self.rules.get(place), self.compiled.get(place)) else {
            return LimitSource::default();
        };
        let tenant_pair = tenant.map(|tenant| (TENANT, tenant));
        let named = plan.and_then(|plan| self.plans().nth(plan.into()));
        let plan_pair = self.plan.map(|id| self.symbols.name(id)).zip(named);
        let attributes: Attributes<'_> = tenant_pair.into_iter().chain(plan_pair).collect();
        let request = self.request(&attributes);
        let numbers = self.numbers(rule, compiled, &request, own_overrides);
        let mut numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        match brought {
            None => {}
            Some(RequestSource::Numbers) => numbers.push("limit (request)".to_owned()),
            Some(RequestSource::Attribute) => {
                if let Some(source) = &compiled.source {
                    let name = self.symbols.name(source.id);
                    numbers.push(format!("limit_from (attribute {name})"));
                }
            }
        }
        let tenant = tenant.filter(|_| self.tenant.is_some() && is_by_tenant(&rule.per));
        let plan = self.plan_under(rule, &request);
        let steps = self
            .layers
            .steps(rule.allowance(), plan, tenant, own_overrides);
        let mut layers = steps.iter().rev();
        let by_override = layers.find_map(|(layer, _)| match layer {
            Layer::Override(it) => Some(it.name()),
            _ => None,
        });
        let switched = || self.layers.state_override(rule.id()).map(Override::name);
        LimitSource {
            numbers: numbers.join(", "),
            by_override: by_override.or_else(switched),
        }
    }

    /// Returns the plan that a request names in the attribute of `plan_from`, as an index of
    /// [`plans`](Self::plans); `None` if it names none.
    #[must_use]
    pub fn named_plan(&self, attributes: &Attributes<'_>) -> Option<u16> {
        let name = self.symbols.name(self.plan?);
        self.layers.tiers.plan(attributes.get(name)?)
    }

    /// Returns the plan of a request: the plan that it names, or else that of its tenant. `None` without both.
    #[must_use]
    pub fn plan_of(&self, attributes: &Attributes<'_>) -> Option<&str> {
        let tiers = &self.layers.tiers;
        let named = self.named_plan(attributes).map(usize::from);
        match named.and_then(|named| self.plans().nth(named)) {
            Some(named) => Some(named),
            None => tiers.plan_of_tenant(attributes.get(TENANT)?),
        }
    }

    /// Returns the plan whose numbers a request has under `rule`.
    pub(crate) fn plan_under(&self, rule: &Rule, request: &Request<'_, '_>) -> Option<u16> {
        let plan = self.tier(request)?.plan;
        plan.filter(|_| self.layers.tiers.may_differ_by_plan(&rule.per))
    }

    /// Returns the overrides of the subjects of a request that concern the rule at `rule`. Without such
    /// overrides this allocates nothing.
    #[must_use]
    pub fn own_overrides(&self, rule: u32, attributes: &Attributes<'_>) -> Box<[Arc<Override>]> {
        let (own, rule) = (
            self.layers.of_subjects(attributes),
            &self.rules[rule as usize],
        );
        let concerns = |it: &Arc<Override>| {
            let named = it.rule().is_none_or(|name| *name == **rule.allowance());
            named && it.scope().has_own_allowance(&rule.per, &self.layers.tiers)
        };
        own.into_iter().filter(concerns).collect()
    }

    /// Returns whether a request brought its limit in the attribute that the rule at `rule` reads.
    #[must_use]
    pub fn brings_limit(&self, rule: u32, attributes: &Attributes<'_>) -> bool {
        let compiled = &self.compiled[rule as usize];
        let Some(source) = &compiled.source else {
            return false;
        };
        let request = self.request(attributes);
        let resolved = self.resolved(compiled, self.tier(&request));
        let value = request.values[source.id as usize];
        !resolved.fixed && value.is_some_and(|value| source.limit(resolved, value).is_some())
    }

    /// Returns the subject of one attribute, as a rule with only this attribute in `per` has it.
    #[must_use]
    pub fn single_subject(&self, attribute: &str, value: &str) -> tollgate_core::Subject {
        let network = match attribute {
            address::ATTRIBUTE => address::subject(value, self.ipv6_prefix),
            _ => None,
        };
        let kind = self.keyring.kind([attribute]);
        kind.subject([network.as_deref().unwrap_or(value)])
    }

    /// Returns the subjects that requests with these attributes have: one for each `per` whose attributes are
    /// all given, with that `per`.
    #[must_use]
    pub fn subjects_of(
        &self,
        attributes: &Attributes<'_>,
    ) -> Vec<(Vec<&str>, tollgate_core::Subject)> {
        let mut request = self.request(attributes);
        let sets = (0..self.subjects.len()).filter(|set| !self.subjects[*set].ids.is_empty());
        let known = sets.filter_map(|set| {
            let subject = self.subject(set, &mut request).ok()?;
            let names = self.subjects[set].ids.iter();
            Some((names.map(|id| self.symbols.name(*id)).collect(), subject))
        });
        known.collect()
    }
}
