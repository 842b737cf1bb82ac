//! Which numbers hold for whom.
//!
//! Numbers are laid over each other, the later over the earlier: the rule's own, its plan's, what an
//! override says of the plan, the tenant's, what an override says of the tenant, what the request
//! brings along, and what an emergency override says for everyone. Scales multiply, and hold for
//! whatever the numbers have become.
//!
//! All of that is worked out when the rules are compiled, into tables that a request looks up: by the
//! name of its tenant, once.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tollgate_core::{Limit, Span};

use crate::config::Config;
use crate::limits::{Counting, Numbers};
use crate::overrides::{Change, Override, Scope, WHOLE};
use crate::rule::RuleState;
use crate::ruleset::TENANT;
use crate::tiers::{Tenant, Tiers};

/// The numbers that hold in one case.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) limit: Limit,
    /// What is left of it, in hundredths of a percent: `limit` has that in it already, and a limit
    /// that a request brings along has not.
    pub(crate) scale: u32,
    /// Whether an emergency has set the numbers: then a request brings none.
    pub(crate) fixed: bool,
}

/// Who says something about numbers.
#[derive(Clone, Debug)]
pub(crate) enum Layer<'l> {
    Plan(&'l str),
    Tenant(&'l str),
    Override(&'l Override),
}

/// What is said.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'l> {
    Numbers(&'l Numbers),
    Scale(u32),
}

/// An allowance: a rule's own, or a budget.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    pub(crate) name: Arc<str>,
    /// Whether each tenant has its own: only then can its numbers differ by tenant.
    by_tenant: bool,
    counting: Counting,
}

/// Plans, tenants and overrides, before they are worked out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    tiers: Tiers,
    everyone: Vec<Arc<Override>>,
    /// By the place of the plan.
    plans: Vec<Vec<Arc<Override>>>,
    tenants: HashMap<Arc<str>, Vec<Arc<Override>>>,
}

type Steps<'l> = SmallVec<[(Layer<'l>, Step<'l>); 6]>;

impl Layers {
    /// The layers of a config and of the overrides that have an effect under it.
    pub(crate) fn new(config: &Config, overrides: &[Arc<Override>]) -> Layers {
        let mut layers = Layers {
            tiers: config.tiers.clone(),
            plans: vec![Vec::new(); config.tiers.plans.len()],
            ..Layers::default()
        };
        for it in overrides {
            if it.misfit(config).is_some() {
                continue;
            }
            let of_scope = match it.scope() {
                Scope::Everyone => &mut layers.everyone,
                Scope::Tenant(tenant) => layers.tenants.entry(Arc::clone(tenant)).or_default(),
                Scope::Plan(plan) => {
                    let place = config.tiers.plan(plan).map_or(0, usize::from);
                    &mut layers.plans[place]
                }
            };
            of_scope.push(Arc::clone(it));
        }
        layers
    }

    /// What an emergency says of the state of a rule that is in the state `own`.
    pub(crate) fn state(&self, rule: &str, own: RuleState) -> Option<RuleState> {
        let state = |it: &Arc<Override>| match it.change {
            Change::State(state) => Some(state),
            _ => None,
        };
        let of = |name| {
            let of_name = self.everyone.iter().filter(move |it| it.rule() == name);
            of_name.rev().find_map(state)
        };
        // What is off is only switched on by its name.
        of(Some(rule)).or_else(|| of(None).filter(|_| own != RuleState::Disabled))
    }

    /// The names of the plans.
    pub(crate) fn plans(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tiers.plans()
    }

    /// The plan of a tenant, named or not.
    pub(crate) fn plan_of(&self, tenant: &str) -> Option<u16> {
        self.tiers.plan_of(self.tiers.tenants.get(tenant))
    }

    /// What is said of the numbers of `allowance`, in order, the rule's own left out. An allowance that
    /// tenants share has no plan and no tenant.
    pub(crate) fn steps<'l>(
        &'l self,
        allowance: &str,
        plan: Option<u16>,
        tenant: Option<&'l str>,
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
            let numbers = self
                .tiers
                .tenants
                .get(name)
                .and_then(|it| own(&it.patches, allowance));
            steps.extend(numbers.map(|numbers| (Layer::Tenant(name), Step::Numbers(numbers))));
            let of_tenant = self.tenants.get(name);
            steps.extend(
                of_tenant
                    .into_iter()
                    .flat_map(|it| applicable(it, allowance)),
            );
        }
        steps.extend(applicable(&self.everyone, allowance));
        steps
    }

    /// The numbers that these steps make of an allowance's own.
    fn resolve(&self, it: &Allowance, plan: Option<u16>, tenant: Option<&str>) -> Resolved {
        let (plan, tenant) = match it.by_tenant {
            true => (plan, tenant),
            false => (None, None),
        };
        let mut numbers = it.counting.numbers;
        let mut resolved = Resolved {
            limit: it.counting.limit.clone(),
            scale: WHOLE,
            fixed: false,
        };
        for (layer, step) in self.steps(&it.name, plan, tenant) {
            match step {
                Step::Scale(scale) => resolved.scale = multiplied(resolved.scale, scale),
                Step::Numbers(patch) => {
                    if let Some((patched, limit)) = laid_over(&it.counting, &numbers, patch) {
                        numbers = patched;
                        resolved.limit = limit;
                        resolved.fixed = matches!(
                            layer,
                            Layer::Override(it) if *it.scope() == Scope::Everyone
                        );
                    }
                }
            }
        }
        resolved.limit = scaled(&resolved.limit, resolved.scale);
        resolved
    }
}

/// `patch` over `numbers`. Each layer was checked over the rule's own numbers: where it does not go
/// together with those of other layers, it is laid over these.
pub(crate) fn laid_over(
    counting: &Counting,
    numbers: &Numbers,
    patch: &Numbers,
) -> Option<(Numbers, Limit)> {
    let tries = [numbers.with(patch), counting.numbers.with(patch)];
    tries.into_iter().find_map(|numbers| {
        let limit = numbers.limit(counting.algorithm)?.ok()?;
        Some((numbers, limit))
    })
}

/// What of an allowance patches hold.
fn own<'p>(patches: &'p [(Arc<str>, Numbers)], allowance: &str) -> Option<&'p Numbers> {
    let mut own = patches.iter().filter(|(name, _)| **name == *allowance);
    own.next().map(|(_, numbers)| numbers)
}

/// What overrides of one scope say of an allowance: the one that names it, and the one for all.
fn applicable<'l>(
    overrides: &'l [Arc<Override>],
    allowance: &str,
) -> impl Iterator<Item = (Layer<'l>, Step<'l>)> {
    let step = |it: &'l Arc<Override>| match &it.change {
        Change::Numbers(numbers) => Some((Layer::Override(it), Step::Numbers(numbers))),
        Change::Scale(scale) => Some((Layer::Override(it), Step::Scale(*scale))),
        Change::State(_) => None,
    };
    let of = |name: Option<&str>| {
        let of_name = overrides.iter().filter(|it| it.rule() == name);
        of_name.rev().find_map(step)
    };
    [of(Some(allowance)), of(None)].into_iter().flatten()
}

fn multiplied(a: u32, b: u32) -> u32 {
    let product = u64::from(a) * u64::from(b) / u64::from(WHOLE);
    // Little is not nothing.
    let least = u64::from(a > 0 && b > 0);
    u32::try_from(product.max(least)).unwrap_or(u32::MAX)
}

/// What is left of a limit.
pub(crate) fn scaled(limit: &Limit, scale: u32) -> Limit {
    match scale {
        WHOLE => limit.clone(),
        0 => {
            let window = limit.window().max(Span::SECOND);
            let none = limit.renumbered(0, window);
            none.unwrap_or_else(|_| limit.scaled(0, WHOLE))
        }
        _ => limit.scaled(scale, WHOLE),
    }
}

/// Whether each tenant has an allowance of its own.
pub(crate) fn is_by_tenant(per: &[String]) -> bool {
    per.iter().any(|name| name == TENANT)
}

/// The numbers of every allowance in every case, worked out.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) allowances: Vec<Allowance>,
    base: Box<[Resolved]>,
    /// By the place of the plan, then of the allowance.
    plans: Vec<Box<[Resolved]>>,
    default_plan: Option<u16>,
    tenants: HashMap<Name, Found, RandomState>,
    /// What tenants have of their own, those that have something.
    own: Vec<Own>,
}

/// The name of a tenant. Most are kept in the table itself: to follow a pointer from there is to wait
/// for memory once more.
type Name = SmallVec<[u8; 24]>;

/// What is a tenant's own, by allowance, in their order.
type Own = Box<[(u32, Resolved)]>;

/// What is known of a tenant.
#[derive(Clone, Copy, Debug)]
struct Found {
    plan: Option<u16>,
    /// Where its own is, if it has any.
    own: Option<u32>,
}

/// Whose numbers hold for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tier<'t> {
    pub(crate) plan: Option<u16>,
    own: Option<&'t [(u32, Resolved)]>,
}

impl Tables {
    pub(crate) fn new(config: &Config, layers: &Layers) -> Tables {
        let own = config.rules.iter().filter(|rule| rule.budget.is_none());
        let own = own.map(|rule| (&rule.id, &rule.per, &rule.counting));
        let shared = config.budgets.iter();
        let shared = shared.map(|budget| (&budget.name, &budget.per, &budget.counting));
        let all = own.chain(shared).map(|(name, per, counting)| Allowance {
            name: Arc::clone(name),
            by_tenant: is_by_tenant(per),
            counting: counting.clone(),
        });
        let mut tables = Tables {
            allowances: all.collect(),
            base: Box::default(),
            plans: Vec::new(),
            default_plan: config.tiers.default_plan,
            tenants: HashMap::default(),
            own: Vec::new(),
        };
        let row = |plan| {
            let all = tables.allowances.iter();
            all.map(|it| layers.resolve(it, plan, None)).collect()
        };
        let places = (0..).take(config.tiers.plans.len());
        let plans = places.map(|plan: u16| row(Some(plan))).collect();
        (tables.base, tables.plans) = (row(None), plans);
        let places: HashMap<&str, u32> = (0..)
            .zip(&tables.allowances)
            .map(|(place, it)| (&*it.name, place))
            .collect();
        let named = config.tiers.tenants.iter();
        let named = named.map(|(name, tenant)| (&**name, Some(tenant)));
        let known = &config.tiers.tenants;
        let others = layers.tenants.keys().map(|name| &**name);
        let others = others.filter(|name| !known.contains_key(*name));
        let others = others.map(|name| (name, None));
        let all = named.chain(others).map(|(name, tenant)| {
            let own = tables.own(layers, &places, name, tenant);
            (name, layers.tiers.plan_of(tenant), own)
        });
        let all: Vec<_> = all.collect();
        tables.tenants.reserve(all.len());
        for (name, plan, own) in all {
            let mut found = Found { plan, own: None };
            if !own.is_empty() {
                found.own = u32::try_from(tables.own.len()).ok();
                tables.own.push(own);
            }
            tables.tenants.insert(name.as_bytes().into(), found);
        }
        tables
    }

    /// What is the tenant's own, in the config or by overrides, in the order of the allowances.
    fn own(
        &self,
        layers: &Layers,
        places: &HashMap<&str, u32>,
        name: &str,
        tenant: Option<&Tenant>,
    ) -> Own {
        let plan = layers.tiers.plan_of(tenant);
        let patched = tenant.map_or(&[][..], |it| &it.patches);
        let mut concerned: Vec<u32> = patched
            .iter()
            .filter_map(|(allowance, _)| places.get(&**allowance).copied())
            .collect();
        for it in layers.tenants.get(name).into_iter().flatten() {
            match it.rule() {
                Some(allowance) => concerned.extend(places.get(allowance)),
                None => concerned.extend(places.values()),
            }
        }
        concerned.retain(|place| self.allowances[*place as usize].by_tenant);
        concerned.sort_unstable();
        concerned.dedup();
        let resolved = concerned.into_iter().map(|place| {
            let allowance = &self.allowances[place as usize];
            (place, layers.resolve(allowance, plan, Some(name)))
        });
        resolved.collect()
    }

    /// Whether all requests have the same numbers.
    pub(crate) fn are_flat(&self) -> bool {
        self.plans.is_empty() && self.tenants.is_empty()
    }

    /// Whose numbers hold for a tenant.
    #[inline]
    pub(crate) fn tier(&self, tenant: Option<&str>) -> Tier<'_> {
        let Some(tenant) = tenant else {
            return Tier {
                plan: None,
                own: None,
            };
        };
        let found = self.tenants.get(tenant.as_bytes());
        let own = found.and_then(|found| self.own.get(found.own? as usize));
        Tier {
            plan: found.map_or(self.default_plan, |found| found.plan),
            own: own.map(|own| &**own),
        }
    }

    /// The numbers of an allowance without a tenant.
    #[inline]
    pub(crate) fn base(&self, allowance: u32) -> &Resolved {
        &self.base[allowance as usize]
    }

    /// The numbers of an allowance for who is on a plan and has none of their own.
    pub(crate) fn of_plan(&self, plan: u16, allowance: u32) -> &Resolved {
        match self.plans.get(usize::from(plan)) {
            Some(plan) => &plan[allowance as usize],
            None => self.base(allowance),
        }
    }

    /// The numbers of an allowance for a tenant.
    #[inline]
    pub(crate) fn of<'t>(&'t self, tier: Tier<'t>, allowance: u32) -> &'t Resolved {
        if let Some(own) = tier.own
            && let Ok(place) = own.binary_search_by_key(&allowance, |(it, _)| *it)
        {
            return &own[place].1;
        }
        match tier.plan.and_then(|plan| self.plans.get(usize::from(plan))) {
            Some(plan) => &plan[allowance as usize],
            None => self.base(allowance),
        }
    }
}
