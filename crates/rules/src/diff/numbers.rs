//! Changed numbers, and the plans they concern.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tollgate_core::{Limit, Outcome};

use super::Found;
use crate::layers::{Allowance, Layers, Resolved, Tables};
use crate::limits::{Counting, Numbers};
use crate::policy::Policy;
use crate::tiers::Tenant;

/// A policy and its successor.
pub(super) type Both<'a> = (&'a Numbered<'a>, &'a Numbered<'a>);

/// Notes changes of the algorithm and the numbers of a rule or a budget.
pub(super) fn counting(
    about: &str,
    (name, old, new): (&Arc<str>, &Counting, &Counting),
    (before, after): Both<'_>,
    found: &mut Found,
) {
    if old.algorithm != new.algorithm {
        let (was, is) = (counted(old), counted(new));
        return found.note(
            about,
            format!("{was} becomes {is}: its counts start from zero"),
        );
    }
    let changes = numbers(&old.numbers, &new.numbers);
    if !changes.is_empty() {
        let than = compared(&old.limit, &new.limit);
        let mut whom = "for tenants without a plan".to_owned();
        let plans = after.policy.tiers.plans();
        let concerned = |plan: &&str| {
            let of = |it: &Numbered<'_>| it.of_plan(plan, name).map(|it| it.limit.clone());
            of(before) != of(after)
        };
        let concerned: Vec<&str> = plans.filter(concerned).collect();
        if !concerned.is_empty() {
            let word = if concerned.len() == 1 {
                "plan"
            } else {
                "plans"
            };
            whom += &format!(", and on the {word} {}", concerned.join(", "));
        }
        found.note(about, format!("{}: {than} {whom}", changes.join(", ")));
    }
}

/// Lists the numbers that differ, in words.
pub(super) fn numbers(old: &Numbers, new: &Numbers) -> Vec<String> {
    let old: BTreeMap<&str, String> = old.given().collect();
    let new: BTreeMap<&str, String> = new.given().collect();
    let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let differing = names.into_iter().filter_map(|name| {
        let said = |of: Option<&String>| of.map_or_else(|| "unset".to_owned(), String::clone);
        let (old, new) = (said(old.get(name)), said(new.get(name)));
        (old != new).then(|| format!("{name} {old} becomes {new}"))
    });
    differing.collect()
}

/// Says whether `new` allows more or less than `old`.
pub(super) fn compared(old: &Limit, new: &Limit) -> &'static str {
    if let (Limit::Concurrency(old), Limit::Concurrency(new)) = (old, new) {
        // The lease does not change how many slots there are.
        return match (old.limit().cmp(&new.limit()), old.lease().cmp(&new.lease())) {
            (Ordering::Less, _) => "more at once",
            (Ordering::Greater, _) => "less at once",
            (_, Ordering::Less) => "as many, and slots of a crashed client become free later",
            (_, Ordering::Greater) => "as many, and slots of a crashed client become free earlier",
            (_, Ordering::Equal) => "the same in effect",
        };
    }
    let speed = |limit: &Limit| {
        let window = u128::from(limit.window().as_micros().max(1));
        (u128::from(limit.capacity()), window)
    };
    if old.capacity() == new.capacity() && old.window() == new.window() {
        let (Limit::Quota(old), Limit::Quota(new)) = (old, new) else {
            return "the same in effect";
        };
        if old.calendar() != new.calendar() {
            return "as much, in periods that begin at other times";
        }
        return match (
            old.rollover().cmp(&new.rollover()),
            old.grace().cmp(&new.grace()),
        ) {
            (Ordering::Less, _) => "more is carried over",
            (Ordering::Greater, _) => "less is carried over",
            (_, Ordering::Less) => "as much, and the warning comes earlier",
            (_, Ordering::Greater) => "as much, and the warning comes later",
            (_, Ordering::Equal) => "the same in effect",
        };
    }
    let unlimited = |limit: &Limit| limit.capacity() == Outcome::UNLIMITED;
    let ((old_most, old_window), (new_most, new_window)) = (speed(old), speed(new));
    let at_once = old_most.cmp(&new_most);
    let in_time = match (unlimited(old), unlimited(new)) {
        (false, false) => (old_most * new_window).cmp(&(new_most * old_window)),
        (old, new) => old.cmp(&new),
    };
    match (at_once, in_time) {
        (Ordering::Greater, Ordering::Less) => "less at once and more in the long run",
        (Ordering::Less, Ordering::Greater) => "more at once and less in the long run",
        (Ordering::Greater, _) | (_, Ordering::Greater) => "less",
        _ => "more",
    }
}

/// A policy with its computed numbers.
pub(super) struct Numbered<'c> {
    pub(super) policy: &'c Policy,
    tables: Tables,
}

impl<'c> Numbered<'c> {
    pub(super) fn new(policy: &'c Policy) -> Numbered<'c> {
        let layers = Layers::without_overrides(policy);
        Numbered {
            policy,
            tables: Tables::new(policy, &layers),
        }
    }

    fn allowance(&self, name: &str) -> Option<u32> {
        let mut all = (0..).zip(&self.tables.allowances);
        all.find_map(|(place, it): (u32, &Allowance)| (*it.name == *name).then_some(place))
    }

    /// Returns the numbers of a tenant for the allowance `name`; `None` if this policy does not have
    /// that allowance.
    pub(super) fn of(&self, tenant: &str, name: &str) -> Option<&Resolved> {
        let tier = self.tables.tier(Some(tenant));
        Some(self.tables.of(tier, self.allowance(name)?))
    }

    /// Returns the numbers that tenants on a plan have for the allowance `name`.
    fn of_plan(&self, plan: &str, name: &str) -> Option<&Resolved> {
        let plan = self.policy.tiers.plan(plan)?;
        Some(self.tables.of_plan(plan, self.allowance(name)?))
    }

    pub(super) fn plan_of(&self, tenant: Option<&Tenant>) -> &str {
        let plan = self.policy.tiers.plan_of(tenant);
        let plan = plan.and_then(|it| self.policy.tiers.plans.get(usize::from(it)));
        plan.map_or("none", |plan| &plan.name)
    }
}

pub(super) fn counted(counting: &Counting) -> String {
    format!("{} of {}", counting.algorithm.name(), counting.numbers)
}
