//! The computed numbers of every allowance for every plan and tenant.
//!
//! There may be tens of thousands of tenants, and most have the same numbers. Tenants with the same
//! numbers share a row, for example tenants of one plan and one time zone.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tollgate_core::Zone;

use super::{Allowance, Layers, Resolved};
use crate::policy::Policy;
use crate::raw::RawAlgorithm;
use crate::tiers::Tenant;

/// The computed numbers of every allowance for every plan and tenant.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) allowances: Vec<Allowance>,
    base: Box<[Resolved]>,
    /// Indexed by plan, then by allowance.
    plans: Vec<Box<[Resolved]>>,
    default_plan: Option<u16>,
    /// The plans by name, if requests name their plans.
    named_plans: Option<HashMap<Box<str>, u16, RandomState>>,
    tenants: HashMap<Name, Found, RandomState>,
    /// The rows of tenants with numbers of their own.
    own: Vec<Own>,
}

/// The name of a tenant. Most names are stored inline in the table, which saves a pointer and a cache
/// miss.
type Name = SmallVec<[u8; 24]>;

/// A row: a tenant's own numbers by allowance, in the order of allowances.
type Own = Box<[(u32, Resolved)]>;

/// The plan and the row of a tenant.
#[derive(Clone, Copy, Debug)]
struct Found {
    plan: Option<u16>,
    /// The index of the tenant's row, if the tenant has its own numbers.
    own: Option<u32>,
}

/// The plan and the row that apply to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tier<'t> {
    pub(crate) plan: Option<u16>,
    own: Option<&'t [(u32, Resolved)]>,
    /// Whether the request named a plan, and its tenant has numbers on top of another plan. These numbers are in
    /// no table.
    pub(crate) is_mixed: bool,
}

/// The rows while they are computed.
#[derive(Default)]
struct Rows<'c> {
    /// Rows and their indexes.
    known: HashMap<Own, u32>,
    /// The row of tenants that have only a zone of their own, by plan and zone.
    of_zone: HashMap<(Option<u16>, &'c Zone), Option<u32>>,
}

impl Rows<'_> {
    /// Returns the index of a row, and adds the row if it is new; `None` if the row is empty.
    fn place(&mut self, row: Own) -> Option<u32> {
        if row.is_empty() {
            return None;
        }
        let next = u32::try_from(self.known.len()).ok()?;
        Some(*self.known.entry(row).or_insert(next))
    }
}

impl Tables {
    pub(crate) fn new(policy: &Policy, layers: &Layers) -> Tables {
        let own = policy.rules.iter().filter(|rule| rule.budget.is_none());
        let own = own.map(|rule| (&rule.id, &rule.per, &rule.counting));
        let shared = policy.budgets.iter();
        let shared = shared.map(|it| (&it.name, &it.allowance.per, &it.allowance.counting));
        let all = own.chain(shared);
        let all =
            all.map(|(name, per, counting)| Allowance::new(name, per, counting, &policy.tiers));
        let mut tables = Tables {
            allowances: all.collect(),
            base: Box::default(),
            plans: Vec::new(),
            default_plan: policy.tiers.default_plan,
            named_plans: policy.tiers.plan_from.as_ref().map(|_| {
                let names = policy.tiers.plans().map(Box::from);
                names.zip(0..).collect()
            }),
            tenants: HashMap::default(),
            own: Vec::new(),
        };
        let row = |plan| {
            let all = tables.allowances.iter();
            all.map(|it| layers.resolve(it, plan, None, &[])).collect()
        };
        let places = (0..).take(policy.tiers.plans.len());
        let plans = places.map(|plan: u16| row(Some(plan))).collect();
        (tables.base, tables.plans) = (row(None), plans);
        tables.add_tenants(policy, layers);
        tables
    }

    fn add_tenants(&mut self, policy: &Policy, layers: &Layers) {
        let places = (0..).zip(&self.allowances).map(|(at, it)| (&*it.name, at));
        let places: HashMap<&str, u32> = places.collect();
        let known = &policy.tiers.tenants;
        let named = known.iter().map(|(name, tenant)| (&**name, Some(tenant)));
        let others = layers.tenants.keys().map(|name| (&**name, None));
        let others = others.filter(|(name, _)| !known.contains_key(*name));
        let mut rows = Rows::default();
        let mut tenants = HashMap::default();
        for (name, tenant) in named.chain(others) {
            let plan = layers.tiers.plan_of(tenant);
            let zone = only_zone(layers, name, tenant);
            let own = match zone.and_then(|zone| rows.of_zone.get(&(plan, zone))) {
                Some(place) => *place,
                None => rows.place(self.own(layers, &places, name, tenant)),
            };
            if let Some(zone) = zone {
                rows.of_zone.insert((plan, zone), own);
            }
            tenants.insert(name.as_bytes().into(), Found { plan, own });
        }
        let mut rows: Vec<(Own, u32)> = rows.known.into_iter().collect();
        rows.sort_unstable_by_key(|(_, place)| *place);
        self.own = rows.into_iter().map(|(row, _)| row).collect();
        self.tenants = tenants;
    }

    /// Returns the tenant's numbers that differ from the numbers of its plan, in the order of
    /// allowances. They come from the policy or from overrides.
    fn own(
        &self,
        layers: &Layers,
        places: &HashMap<&str, u32>,
        name: &str,
        tenant: Option<&Tenant>,
    ) -> Own {
        let plan = layers.tiers.plan_of(tenant);
        let patched = tenant.map_or(&[][..], |it| &it.patches);
        let patched = patched.iter().filter_map(|(name, _)| places.get(&**name));
        let mut concerned: Vec<u32> = patched.copied().collect();
        for it in layers.tenants.get(name).into_iter().flatten() {
            match it.rule() {
                Some(allowance) => concerned.extend(places.get(allowance)),
                None => concerned.extend(places.values()),
            }
        }
        if tenant.is_some_and(|it| it.zone.is_some()) {
            let all = (0..).zip(&self.allowances);
            let quotas = all.filter(|(_, it)| it.counting.algorithm == RawAlgorithm::Quota);
            concerned.extend(quotas.map(|(place, _): (u32, _)| place));
        }
        concerned.retain(|place| self.allowances[*place as usize].by_tenant);
        concerned.sort_unstable();
        concerned.dedup();
        let on_plan = Tier {
            plan,
            own: None,
            is_mixed: false,
        };
        let resolved = concerned.into_iter().map(|place| {
            let allowance = &self.allowances[place as usize];
            (place, layers.resolve(allowance, plan, Some(name), &[]))
        });
        let differing = resolved.filter(|(place, it)| it != self.of(on_plan, *place));
        differing.collect()
    }

    /// Whether all requests have the same numbers.
    pub(crate) fn are_flat(&self) -> bool {
        self.plans.is_empty() && self.tenants.is_empty()
    }

    /// Finds the plan and the row of a tenant.
    #[inline]
    pub(crate) fn tier(&self, tenant: Option<&str>) -> Tier<'_> {
        let Some(tenant) = tenant else {
            return Tier {
                plan: None,
                own: None,
                is_mixed: false,
            };
        };
        let found = self.tenants.get(tenant.as_bytes());
        let own = found.and_then(|found| self.own.get(found.own? as usize));
        Tier {
            plan: found.map_or(self.default_plan, |found| found.plan),
            own: own.map(|own| &**own),
            is_mixed: false,
        }
    }

    /// Finds the plan and the row of a request of `tenant` that may name a plan. Without a known name, the
    /// request has the plan of its tenant, or the default plan.
    pub(crate) fn tier_of_request(&self, tenant: Option<&str>, named: Option<&str>) -> Tier<'_> {
        let tier = self.tier(tenant);
        let plan = named.and_then(|name| self.named_plans.as_ref()?.get(name).copied());
        match plan {
            None => Tier {
                plan: tier.plan.or(self.default_plan),
                ..tier
            },
            same if same == tier.plan => tier,
            plan => Tier {
                plan,
                own: None,
                is_mixed: tier.own.is_some(),
            },
        }
    }

    /// Returns the numbers of an allowance without a tenant.
    #[inline]
    pub(crate) fn base(&self, allowance: u32) -> &Resolved {
        &self.base[allowance as usize]
    }

    /// Returns the numbers of an allowance for tenants of a plan without numbers of their own.
    pub(crate) fn of_plan(&self, plan: u16, allowance: u32) -> &Resolved {
        match self.plans.get(usize::from(plan)) {
            Some(plan) => &plan[allowance as usize],
            None => self.base(allowance),
        }
    }

    /// Returns the numbers of an allowance for a tenant.
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

/// Returns the zone of a tenant, if the zone is the only setting of the tenant's own.
fn only_zone<'c>(layers: &Layers, name: &str, tenant: Option<&'c Tenant>) -> Option<&'c Zone> {
    let tenant = tenant?;
    let alone = tenant.patches.is_empty() && !layers.tenants.contains_key(name);
    tenant.zone.as_ref().filter(|_| alone)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const RULES: &str = "version: 1
plans: { pro: { monthly: { limit: 500 } } }
rules:
  - { id: monthly, per: [tenant], algorithm: quota, limit: 100, period: month }
  - { id: utc, per: [tenant], algorithm: quota, limit: 100, period: day, timezone: UTC }
  - { id: rate, per: [tenant], algorithm: gcra, rate: 1/s }
tenants:
";

    fn tables(tenants: &str) -> Tables {
        let policy = crate::Policy::parse("x", &format!("{RULES}{tenants}"));
        let policy = policy.unwrap_or_else(|error| panic!("{error}"));
        Tables::new(&policy, &Layers::without_overrides(&policy))
    }

    #[test]
    fn tenants_of_one_plan_and_zone_share_a_row() {
        let mut tenants = String::new();
        let zones = ["Europe/Berlin", "America/New_York", "UTC"];
        for index in 0..3_000 {
            let zone = zones[index % zones.len()];
            let plan = if index % 2 == 0 { ", plan: pro" } else { "" };
            let _ = writeln!(tenants, "  t{index}: {{ timezone: {zone}{plan} }}");
        }
        let tables = tables(&tenants);
        assert_eq!(tables.tenants.len(), 3_000);
        // One row for each pair of two plans and two zones. UTC is the same as no zone.
        assert_eq!(tables.own.len(), 4);
        // A row keeps only the rule `monthly`: the zone changes the numbers of no other rule.
        assert!(tables.own.iter().all(|row| row.len() == 1));
    }

    #[test]
    fn tenants_with_the_same_numbers_of_their_own_share_a_row() {
        let mut tenants = String::new();
        for index in 0..100 {
            let numbers = "{ timezone: Asia/Tokyo, overrides: { monthly: { limit: 7 } } }";
            let _ = writeln!(tenants, "  t{index}: {numbers}");
        }
        tenants += "  other: { overrides: { monthly: { limit: 7 } } }\n";
        assert_eq!(tables(&tenants).own.len(), 2);
    }
}
