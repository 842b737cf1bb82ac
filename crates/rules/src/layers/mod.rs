//! The numbers of each tenant under each rule.
//!
//! Numbers come in layers, and a later layer replaces numbers of the earlier layers. The order is: the
//! rule, the plan, overrides of the plan, the tenant, overrides of the tenant, the request, overrides of
//! a subject, and emergency overrides for everyone. The scales of overrides multiply, and the product
//! applies to the numbers of all layers.
//!
//! All numbers except those of requests, and of subjects with an override, are computed when the rules are
//! compiled, and stored in tables. A request looks up its tenant once.

mod of_subject;
mod tables;

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Keyring, Limit, Mode, ParamError, Span, Zone};

pub(crate) use tables::{Tables, Tier};

use crate::attributes::Attributes;
use crate::limits::{Counting, Numbers, Terms};
use crate::mode::{ModeName, Modes};
use crate::named_subject::SubjectMap;
use crate::overrides::{Change, Override, Scope, WHOLE};
use crate::policy::Policy;
use crate::rule::RuleState;
use crate::ruleset::TENANT;
use crate::tiers::Tiers;

/// The numbers of one allowance for one plan or tenant, or for requests with neither, after all layers except
/// the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resolved {
    pub(crate) limit: Limit,
    /// The scale, in hundredths of a percent. It is applied to `limit` already, but not to a limit that a
    /// request brings.
    pub(crate) scale: u32,
    /// Whether an override for everyone or for the subject set the numbers. If so, a request cannot bring
    /// other numbers.
    pub(crate) fixed: bool,
    /// Everything but the amount of a quota or a concurrency limit, for an amount that a request brings.
    pub(crate) terms: Option<Box<Terms>>,
    /// The mode, after overrides.
    pub(crate) modes: Modes,
    /// The mode of charges under `limit`.
    pub(crate) mode: Mode,
    /// The numbers that leave room for slices, if `limit` is charged under such numbers.
    pub(crate) prepaid: Option<Box<Limit>>,
}

impl Resolved {
    /// Returns the limit under which requests are charged.
    #[inline]
    pub(crate) fn charged(&self) -> &Limit {
        self.prepaid.as_deref().unwrap_or(&self.limit)
    }
}

/// A layer of numbers.
#[derive(Clone, Debug)]
pub(crate) enum Layer<'l> {
    Plan(&'l str),
    Tenant(&'l str),
    Override(&'l Override),
}

/// The change that a layer makes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'l> {
    Numbers(&'l Numbers),
    Scale(u32),
    Mode(ModeName),
}

/// An allowance: a rule's own, or a budget.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    pub(crate) name: Arc<str>,
    /// Whether each tenant has its own allowance. The numbers can differ by tenant only if this is
    /// true.
    by_tenant: bool,
    /// Whether plans may set its numbers.
    by_plan: bool,
    counting: Counting,
}

impl Allowance {
    pub(crate) fn new(
        name: &Arc<str>,
        per: &[String],
        counting: &Counting,
        tiers: &Tiers,
    ) -> Allowance {
        Allowance {
            name: Arc::clone(name),
            by_tenant: is_by_tenant(per),
            by_plan: tiers.may_differ_by_plan(per),
            counting: counting.clone(),
        }
    }
}

/// Plans, tenants and overrides, before the tables are computed.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub(crate) tiers: Tiers,
    everyone: Vec<Arc<Override>>,
    /// Indexed by plan.
    plans: Vec<Vec<Arc<Override>>>,
    tenants: HashMap<Arc<str>, Vec<Arc<Override>>>,
    subjects: SubjectMap<Arc<Override>>,
}

/// The overrides of the subjects of one request.
pub(crate) type OwnOverrides = SmallVec<[Arc<Override>; 2]>;

type Steps<'l> = SmallVec<[(Layer<'l>, Step<'l>); 6]>;

impl Layers {
    /// Collects the layers of a policy, and the overrides that have an effect under the policy.
    pub(crate) fn new(policy: &Policy, overrides: &[Arc<Override>], keyring: &Keyring) -> Layers {
        let mut of_subjects = Vec::new();
        let mut layers = Layers {
            tiers: policy.tiers.clone(),
            plans: vec![Vec::new(); policy.tiers.plans.len()],
            ..Layers::default()
        };
        for it in overrides {
            if it.misfit(policy).is_some() {
                continue;
            }
            let of_scope = match it.scope() {
                Scope::Everyone => &mut layers.everyone,
                Scope::Tenant(tenant) => layers.tenants.entry(Arc::clone(tenant)).or_default(),
                Scope::Plan(plan) => {
                    let place = policy.tiers.plan(plan).map_or(0, usize::from);
                    &mut layers.plans[place]
                }
                // A block is not a layer of numbers: see `blocks.rs`.
                Scope::Subject(_) if it.is_block() => continue,
                Scope::Subject(subject) => {
                    of_subjects.push((subject, Arc::clone(it)));
                    continue;
                }
            };
            of_scope.push(Arc::clone(it));
        }
        layers.subjects = SubjectMap::new(of_subjects.into_iter(), keyring);
        layers
    }

    /// Collects the layers of a policy.
    pub(crate) fn without_overrides(policy: &Policy) -> Layers {
        // No subject is hashed.
        Layers::new(policy, &[], &Keyring::new(b"", ""))
    }

    /// Returns whether a subject has overrides.
    #[inline]
    pub(crate) fn has_subjects(&self) -> bool {
        !self.subjects.is_empty()
    }

    /// Returns the overrides of the subjects of a request.
    #[inline]
    pub(crate) fn of_subjects(&self, attributes: &Attributes<'_>) -> OwnOverrides {
        let mut own = OwnOverrides::new();
        if !self.subjects.is_empty() {
            self.subjects
                .visit(attributes, |it| own.push(Arc::clone(it)));
        }
        own
    }

    /// Returns the state that an override for everyone gives the rule. `own` is the rule's state in the
    /// config.
    pub(crate) fn state(&self, rule: &str, own: RuleState) -> Option<RuleState> {
        let state = |it: &Arc<Override>| match it.change {
            Change::State(state) => Some(state),
            _ => None,
        };
        let of = |name| {
            let of_name = self.everyone.iter().filter(move |it| it.rule() == name);
            of_name.rev().find_map(state)
        };
        // Only an override that names the rule switches a disabled rule on.
        of(Some(rule)).or_else(|| of(None).filter(|_| own != RuleState::Disabled))
    }

    /// Returns the override for everyone that has set the state of an enforced rule, if there is one.
    pub(crate) fn state_override(&self, rule: &str) -> Option<&Override> {
        let of = |name| {
            let mut of_name = self
                .everyone
                .iter()
                .rev()
                .filter(move |it| it.rule() == name);
            of_name.find(|it| matches!(it.change, Change::State(_)))
        };
        of(Some(rule)).or_else(|| of(None)).map(|it| &**it)
    }

    /// Returns the rollout that an override gives the rule, and the override.
    pub(crate) fn rollout(&self, rule: &str) -> Option<(u16, &Override)> {
        let mut of_rule = self
            .everyone
            .iter()
            .rev()
            .filter(|it| it.rule() == Some(rule));
        of_rule.find_map(|it| match it.change {
            Change::Rollout(share) => Some((share, &**it)),
            _ => None,
        })
    }

    /// Returns the tenants with overrides that concern an allowance.
    pub(crate) fn overridden_tenants(&self, allowance: &str) -> impl Iterator<Item = &str> {
        let concerns = move |it: &Arc<Override>| it.rule().is_none_or(|rule| rule == allowance);
        let all = self.tenants.iter();
        let own = all.filter(move |(_, overrides)| overrides.iter().any(concerns));
        own.map(|(tenant, _)| &**tenant)
    }

    /// The names of the plans.
    pub(crate) fn plans(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tiers.plans()
    }

    /// Returns the time zone of a tenant, if the config names the tenant and the zone.
    pub(crate) fn zone_of(&self, tenant: &str) -> Option<&Zone> {
        self.tiers.tenants.get(tenant)?.zone.as_ref()
    }

    /// Returns the changes that the layers above the rule make to the numbers of `allowance`, in order.
    /// For an allowance that tenants share, `plan` and `tenant` are `None`. `own_overrides` are
    /// the overrides of the subject.
    pub(crate) fn steps<'l>(
        &'l self,
        allowance: &str,
        plan: Option<u16>,
        tenant: Option<&'l str>,
        own_overrides: &'l [Arc<Override>],
    ) -> Steps<'l> {
        let mut steps = Steps::new();
        let plan = plan.map(usize::from);
        if let Some(it) = plan.and_then(|plan| self.tiers.plans.get(plan)) {
            let numbers = own(&it.patches, allowance).map(Step::Numbers);
            steps.extend(numbers.map(|step| (Layer::Plan(&it.name), step)));
        }
        let of_plan = plan.and_then(|plan| self.plans.get(plan));
        steps.extend(of_plan.into_iter().flat_map(|it| applicable(it, allowance)));
        if let Some(name) = tenant {
            let known = self.tiers.tenants.get(name);
            let numbers = known.and_then(|it| own(&it.patches, allowance));
            steps.extend(numbers.map(|numbers| (Layer::Tenant(name), Step::Numbers(numbers))));
            let overrides = self.tenants.get(name).into_iter();
            steps.extend(overrides.flat_map(|it| applicable(it, allowance)));
        }
        for it in own_overrides {
            steps.extend(applicable(std::slice::from_ref(it), allowance));
        }
        steps.extend(applicable(&self.everyone, allowance));
        steps
    }

    /// Returns the numbers of an allowance after all layers except the request.
    pub(crate) fn resolve(
        &self,
        it: &Allowance,
        plan: Option<u16>,
        tenant: Option<&str>,
        own_overrides: &[Arc<Override>],
    ) -> Resolved {
        let plan = plan.filter(|_| it.by_plan);
        let tenant = tenant.filter(|_| it.by_tenant);
        let counting = &it.counting;
        let zone = tenant.and_then(|tenant| self.zone_of(tenant));
        let mut numbers = counting.numbers.clone();
        // A tenant without a zone has the limit of the rule.
        let in_zone = zone.and_then(|_| numbers.limit(counting.algorithm, zone)?.ok());
        let mut resolved = Resolved {
            limit: in_zone.unwrap_or_else(|| counting.limit.clone()),
            scale: WHOLE,
            fixed: false,
            terms: None,
            modes: counting.modes,
            mode: Mode::Exact,
            prepaid: None,
        };
        for (layer, step) in self.steps(&it.name, plan, tenant, own_overrides) {
            match step {
                Step::Scale(scale) => resolved.scale = multiplied(resolved.scale, scale),
                Step::Mode(name) => resolved.modes = resolved.modes.named(name),
                Step::Numbers(patch) => {
                    if let Some((patched, limit)) = replaced(counting, &numbers, patch, zone) {
                        numbers = patched;
                        resolved.limit = limit;
                        let fixes = |it: &Override| {
                            matches!(it.scope(), Scope::Everyone | Scope::Subject(_))
                        };
                        resolved.fixed = matches!(layer, Layer::Override(it) if fixes(it));
                    }
                }
            }
        }
        let terms = numbers.terms(counting.algorithm, zone);
        resolved.terms = terms.and_then(Result::ok).map(Box::new);
        resolved.limit = scaled(&resolved.limit, resolved.scale, resolved.terms.as_deref());
        let (mode, prepaid) = resolved.modes.of(&resolved.limit);
        (resolved.mode, resolved.prepaid) = (mode, prepaid.map(Box::new));
        resolved
    }
}

/// Replaces those of `numbers` that `patch` gives, for a tenant in `zone`. If the result is not a valid
/// limit, `patch` replaces the numbers of the rule itself, which it always fits.
pub(crate) fn replaced(
    counting: &Counting,
    numbers: &Numbers,
    patch: &Numbers,
    zone: Option<&Zone>,
) -> Option<(Numbers, Limit)> {
    let tries = [numbers.with(patch), counting.numbers.with(patch)];
    tries.into_iter().find_map(|numbers| {
        let limit = numbers.limit(counting.algorithm, zone)?.ok()?;
        Some((numbers, limit))
    })
}

/// Finds the numbers of `patches` for an allowance.
fn own<'p>(patches: &'p [(Arc<str>, Numbers)], allowance: &str) -> Option<&'p Numbers> {
    let own = patches.iter().find(|(name, _)| **name == *allowance);
    own.map(|(_, numbers)| numbers)
}

/// Returns the overrides of one scope for an allowance. For numbers: first the override that names the allowance,
/// then the override for all allowances. For the mode: the other way around, so that the override that names the
/// allowance decides.
fn applicable<'l>(
    overrides: &'l [Arc<Override>],
    allowance: &str,
) -> impl Iterator<Item = (Layer<'l>, Step<'l>)> {
    let step = |it: &'l Arc<Override>| match &it.change {
        Change::Numbers(numbers) => Some((Layer::Override(it), Step::Numbers(numbers))),
        Change::Scale(scale) => Some((Layer::Override(it), Step::Scale(*scale))),
        Change::State(_) | Change::Rollout(_) | Change::Mode(_) | Change::Block => None,
    };
    let mode = |it: &'l Arc<Override>| match &it.change {
        Change::Mode(name) => Some((Layer::Override(it), Step::Mode(*name))),
        _ => None,
    };
    type Found<'l> = Option<(Layer<'l>, Step<'l>)>;
    let find = |name: Option<&str>, step: &dyn Fn(&'l Arc<Override>) -> Found<'l>| {
        let mut named = overrides.iter().rev().filter(|it| it.rule() == name);
        named.find_map(step)
    };
    let (own, all) = (Some(allowance), None);
    let found = [
        find(own, &step),
        find(all, &step),
        find(all, &mode),
        find(own, &mode),
    ];
    found.into_iter().flatten()
}

fn multiplied(a: u32, b: u32) -> u32 {
    let product = u64::from(a) * u64::from(b) / u64::from(WHOLE);
    // The product of two shares above 0 is never rounded down to 0.
    let least = u64::from(a > 0 && b > 0);
    u32::try_from(product.max(least)).unwrap_or(u32::MAX)
}

/// Scales a limit. `terms` are its terms, for quotas and concurrency limits.
pub(crate) fn scaled(limit: &Limit, scale: u32, terms: Option<&Terms>) -> Limit {
    match scale {
        WHOLE => limit.clone(),
        0 => closed(limit, terms).unwrap_or_else(|_| limit.scaled(0, WHOLE)),
        _ => limit.scaled(scale, WHOLE),
    }
}

/// Makes a limit that admits nothing and is otherwise the same.
fn closed(limit: &Limit, terms: Option<&Terms>) -> Result<Limit, ParamError> {
    match (limit, terms) {
        // `closed` also removes the grace and the grants.
        (Limit::Quota(quota), _) => Ok(Limit::Quota(quota.closed())),
        (Limit::Unlimited(_), Some(terms)) => terms.closed(),
        _ => limit.renumbered(0, limit.window().max(Span::SECOND)),
    }
}

/// Whether each tenant has an allowance of its own.
pub(crate) fn is_by_tenant(per: &[String]) -> bool {
    per.iter().any(|name| name == TENANT)
}
