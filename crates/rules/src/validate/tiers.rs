//! Checks budgets, plans and tenants.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::Zone;

use super::allowance::attribute_of;
use super::{ID_HELP, Outside, is_id};
use crate::document::{At, Named, Place, Problems, Short, Text, one_of, suggestion};
use crate::layers::is_by_tenant;
use crate::limits::{self, Counting, Numbers};
use crate::raw::{RawBudget, RawNumbers, RawPolicy, RawTenant};
use crate::rule::Rule;
use crate::tiers::{Budget, Patches, Plan, Tenant, Tiers};
use crate::zone;

/// With more plans than this, the file probably lists tenants as plans.
const MAX_PLANS: usize = 256;

/// Returns the budgets of a policy.
pub(super) fn budgets(
    raw: Option<&Named<RawBudget>>,
    outside: Outside<'_>,
    problems: &mut Problems<'_>,
) -> Vec<Budget> {
    let given = raw.map_or(&[][..], |named| &named.0);
    let mut budgets: Vec<Budget> = Vec::with_capacity(given.len());
    for (name, at) in given {
        check_name(name, "the name of a budget", problems);
        if budgets.iter().any(|known| *known.name == *name.value) {
            twice("budget", name, problems);
            continue;
        }
        let raw = &at.value;
        if raw.algorithm.is_absent() {
            let help = "write one, such as `algorithm: token-bucket` with `capacity` and `refill`";
            problems.report(name.place, "this budget has no `algorithm`", help);
        }
        let of = ("budget", Place::new(name.place.start, name.place.start));
        let allowance = &raw.allowance;
        let allowance = allowance.validate(&raw.algorithm, of, outside, false, problems);
        budgets.extend(allowance.map(|allowance| Budget {
            name: name.value.as_str().into(),
            allowance,
        }));
    }
    budgets
}

/// The rules and budgets with numbers that a plan or a tenant may replace.
pub(crate) struct Allowances<'c> {
    counting: HashMap<&'c str, Known<'c>>,
    /// Rules without numbers of their own, and the budgets that they draw on.
    drawing: HashMap<&'c str, &'c str>,
}

/// The name of an allowance, the attributes of its subjects, and its numbers.
type Known<'c> = (&'c Arc<str>, &'c [String], &'c Counting);

impl<'c> Allowances<'c> {
    pub(crate) fn new(rules: &'c [Rule], budgets: &'c [Budget]) -> Allowances<'c> {
        let own = rules.iter().filter(|rule| rule.budget.is_none());
        let own = own.map(|it| (&it.id, &it.per, &it.counting));
        let shared = budgets.iter();
        let shared = shared.map(|it| (&it.name, &it.allowance.per, &it.allowance.counting));
        let all = own.chain(shared);
        let all = all.map(|(name, per, counting)| (&**name, (name, &**per, counting)));
        let drawing = rules.iter().filter_map(|it| Some((&*it.id, it.budget()?)));
        Allowances {
            counting: all.collect(),
            drawing: drawing.collect(),
        }
    }

    /// Returns the rule or budget called `name`, or reports that plans and tenants cannot change it. `may_differ`
    /// says whether an allowance with a `per` can have different numbers.
    fn find(
        &self,
        name: &At<String>,
        may_differ: impl Fn(&[String]) -> bool,
        problems: &mut Problems<'_>,
    ) -> Option<(&'c Arc<str>, &'c Counting)> {
        if let Some((id, per, counting)) = self.counting.get(name.value.as_str()) {
            if may_differ(per) {
                return Some((id, counting));
            }
            let message =
                format!("a plan or a tenant cannot change `{id}`: all tenants share its allowance");
            let help = "add `tenant` to its `per`, so that each tenant has an allowance of its own";
            problems.report(name.place, message, help);
            return None;
        }
        if let Some(budget) = self.drawing.get(name.value.as_str()) {
            let message = format!("the rule `{}` draws on the budget `{budget}`", name.value);
            let help = format!("write the numbers under `{budget}`");
            problems.report(name.place, message, help);
            return None;
        }
        let otherwise = "write the id of a rule or the name of a budget";
        let help = suggestion(&name.value, self.counting.keys().copied(), otherwise);
        let message = format!("there is no rule or budget `{}`", Short(&name.value));
        problems.report(name.place, message, help);
        None
    }

    /// Returns the numbers of a plan or a tenant. The numbers are checked on top of `below`, the
    /// numbers of the tenant's plan.
    fn patches(
        &self,
        raw: &Named<RawNumbers>,
        below: &[(Arc<str>, Numbers)],
        may_differ: impl Fn(&[String]) -> bool,
        problems: &mut Problems<'_>,
    ) -> Patches {
        let mut patches: Vec<(Arc<str>, Numbers)> = Vec::with_capacity(raw.0.len());
        for (name, at) in &raw.0 {
            let Some((id, counting)) = self.find(name, &may_differ, problems) else {
                continue;
            };
            if patches.iter().any(|(known, _)| known == id) {
                twice("name", name, problems);
                continue;
            }
            let written = at.value.written();
            if written.first_key().is_none() {
                let help = format!("write the numbers that differ, or remove `{id}`");
                problems.report(name.place, format!("`{id}` has no numbers"), help);
                continue;
            }
            let below = below.iter().find(|(known, _)| known == id);
            let base = match below {
                Some((_, below)) => counting.numbers.with(below),
                None => counting.numbers.clone(),
            };
            let patch = limits::patch(counting.algorithm, &base, &written, at.place, problems);
            patches.extend(patch.map(|patch| (Arc::clone(id), patch)));
        }
        patches.into()
    }
}

/// Returns the plans of a policy, without its tenants.
pub(super) fn plans(
    policy: &RawPolicy,
    allowances: &Allowances<'_>,
    problems: &mut Problems<'_>,
) -> Tiers {
    let (raw, default_plan) = (&policy.plans, &policy.default_plan);
    let mut tiers = Tiers::default();
    if let Some(from) = policy.plan_from.get() {
        // A wrong text counts as an attribute, so that its plans are not reported as well.
        tiers.plan_from = Some(attribute_of(from, "plan", problems).unwrap_or_default());
        if raw.is_absent() {
            let help = "add `plans`, or remove `plan_from`";
            problems.report(
                from.place,
                "`plan_from` without `plans` has no effect",
                help,
            );
        }
    }
    let given = raw.value().map_or(&[][..], |named| &named.0);
    if let (Some(key), true) = (raw.key(), given.len() > MAX_PLANS) {
        let message = format!("there are {} plans", given.len());
        let help = format!(
            "write at most {MAX_PLANS} plans, and put the numbers of a single tenant into its `overrides`"
        );
        problems.report(key, message, help);
        return tiers;
    }
    for (name, at) in given {
        check_name(name, "the name of a plan", problems);
        if tiers.plan(&name.value).is_some() {
            twice("plan", name, problems);
            continue;
        }
        let may_differ = |per: &[String]| tiers.may_differ_by_plan(per);
        let patches = allowances.patches(&at.value, &[], may_differ, problems);
        tiers.plans.push(Plan {
            name: name.value.as_str().into(),
            patches,
        });
    }
    tiers.default_plan = default_plan.get().and_then(|at| plan(at, &tiers, problems));
    tiers
}

/// Finds the index of the plan that a text names.
fn plan(at: &At<Text>, tiers: &Tiers, problems: &mut Problems<'_>) -> Option<u16> {
    let name = at.value.0.as_str();
    let place = tiers.plan(name);
    if place.is_none() {
        let otherwise = match tiers.plans.len() {
            0 => "add it to `plans`, which is empty".to_owned(),
            1..=8 => format!("the plans are {}", one_of(tiers.plans())),
            _ => "name one of the `plans`".to_owned(),
        };
        let help = suggestion(name, tiers.plans(), otherwise);
        let message = format!("there is no plan `{}`", Short(name));
        problems.report(at.place, message, help);
    }
    place
}

/// Adds tenants to `known`.
pub(crate) fn tenants(
    raw: &Named<RawTenant>,
    tiers: &Tiers,
    allowances: &Allowances<'_>,
    known: &mut HashMap<Box<str>, Tenant>,
    problems: &mut Problems<'_>,
) {
    // Each zone is looked up once: many tenants share a few zones.
    let mut zones: HashMap<&str, Zone> = HashMap::new();
    for (name, at) in &raw.0 {
        if name.value.is_empty() {
            let help = "write the tenant's name, as requests carry it in the attribute `tenant`";
            problems.report(name.place, "a tenant has no name", help);
            continue;
        }
        let raw = &at.value;
        let plan = raw.plan.get().and_then(|at| plan(at, tiers, problems));
        let of_plan = plan.or(tiers.default_plan);
        let below = of_plan.and_then(|plan| tiers.plans.get(usize::from(plan)));
        let below = below.map_or(&[][..], |plan| &plan.patches);
        let patches = match raw.overrides.value() {
            Some(raw) => allowances.patches(raw, below, is_by_tenant, problems),
            None => Patches::default(),
        };
        let zone = raw.timezone.get().and_then(|at| {
            let text = at.value.0.as_str();
            zones.get(text).cloned().or_else(|| {
                let zone = zone::named(text, at.place, problems)?;
                zones.insert(text, zone.clone());
                Some(zone)
            })
        });
        let tenant = Tenant {
            plan,
            zone,
            patches,
        };
        if known.insert(name.value.as_str().into(), tenant).is_some() {
            twice("tenant", name, problems);
        }
    }
}

fn check_name(name: &At<String>, what: &str, problems: &mut Problems<'_>) {
    if !is_id(&name.value) {
        let message = format!("`{}` cannot be {what}", Short(&name.value));
        problems.report(name.place, message, ID_HELP);
    }
}

fn twice(what: &str, name: &At<String>, problems: &mut Problems<'_>) {
    let message = format!("the {what} `{}` is given twice", Short(&name.value));
    problems.report(name.place, message, "keep one of the two");
}
