//! Changes of plans and tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_core::{Limit, Outcome, Zone};

use super::Found;
use super::numbers::{Numbered, compared, numbers};
use crate::limits::Numbers;
use crate::period::Every;

/// How many tenants are named if many tenants have the same change.
const NAMED: usize = 5;

pub(super) fn plans(old: &Numbered<'_>, new: &Numbered<'_>, found: &mut Found) {
    let (before, after) = (&old.policy.tiers, &new.policy.tiers);
    if before.default_plan() != after.default_plan() {
        let said = |plan: Option<&str>| plan.unwrap_or("none").to_owned();
        let (old, new) = (said(before.default_plan()), said(after.default_plan()));
        let what = format!("{old} becomes {new}: for tenants without a plan");
        found.note("default_plan", what);
    }
    if before.plan_from != after.plan_from {
        let said = |from: Option<&str>| match from {
            Some(name) => format!("attributes.{name}"),
            None => "nothing".to_owned(),
        };
        let (old, new) = (said(before.plan_attribute()), said(after.plan_attribute()));
        found.note("plan_from", format!("{old} becomes {new}"));
    }
    for plan in &before.plans {
        if after.plan(&plan.name).is_none() {
            found.note(format!("plan {}", plan.name), "is gone");
        }
    }
    for plan in &after.plans {
        let about = format!("plan {}", plan.name);
        let known = before.plans.iter().find(|it| it.name == plan.name);
        let Some(known) = known else {
            found.note(about, "is new");
            continue;
        };
        let place = after.plan(&plan.name);
        let on_it = after.tenants.values();
        let on_it = on_it.filter(|tenant| after.plan_of(Some(tenant)) == place);
        let whom = match on_it.count() {
            0 => "no named tenant is on it".to_owned(),
            1 => "1 tenant is on it".to_owned(),
            many => format!("{many} tenants are on it"),
        };
        let mut names: Vec<&Arc<str>> = known.patches.iter().map(|(name, _)| name).collect();
        names.extend(plan.patches.iter().map(|(name, _)| name));
        names.sort_unstable();
        names.dedup();
        for name in names {
            let of = |patches: &[(Arc<str>, Numbers)]| {
                let own = patches.iter().find(|(known, _)| known == name);
                own.map_or_else(Numbers::default, |(_, numbers)| numbers.clone())
            };
            let changes = numbers(&of(&known.patches), &of(&plan.patches));
            if !changes.is_empty() {
                let what = format!("{name}: {}; {whom}", changes.join(", "));
                found.note(&about, what);
            }
        }
    }
}

pub(super) fn tenants(old: &Numbered<'_>, new: &Numbered<'_>, found: &mut Found) {
    let (before, after) = (&old.policy.tiers.tenants, &new.policy.tiers.tenants);
    // Groups tenants by their change: many tenants often have the same change.
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut note = |what: String, name| groups.entry(what).or_default().push(name);
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        note("no longer named".to_owned(), &**name);
    }
    for (name, tenant) in after.iter() {
        let Some(known) = before.get(name) else {
            let plan = new.plan_of(Some(tenant));
            note(format!("newly named, on plan {plan}"), &**name);
            continue;
        };
        let (was, is) = (old.plan_of(Some(known)), new.plan_of(Some(tenant)));
        if was != is {
            note(format!("from plan {was} to plan {is}"), &**name);
        }
        if known.zone != tenant.zone {
            let said = |zone: &Option<Zone>| {
                let name = zone.as_ref().map(Zone::name);
                name.unwrap_or("unset").to_owned()
            };
            let (was, is) = (said(&known.zone), said(&tenant.zone));
            let what = "the periods of quotas may begin at other times";
            note(format!("timezone {was} becomes {is}: {what}"), &**name);
        }
        let mut own: Vec<&Arc<str>> = known.patches.iter().map(|(name, _)| name).collect();
        own.extend(tenant.patches.iter().map(|(name, _)| name));
        own.sort_unstable();
        own.dedup();
        for allowance in own {
            let limits = (old.of(name, allowance), new.of(name, allowance));
            if let (Some(was), Some(is)) = limits
                && was.limit != is.limit
            {
                let than = compared(&was.limit, &is.limit);
                let (was, is) = (amount(&was.limit), amount(&is.limit));
                note(format!("{allowance}: {was} becomes {is}: {than}"), &**name);
            }
        }
    }
    for (what, mut names) in groups {
        names.sort_unstable();
        let about = match names.as_slice() {
            [one] => format!("tenant {one}"),
            few if few.len() <= NAMED => format!("tenants {}", few.join(", ")),
            many => format!(
                "tenants {} and {} more",
                many[..NAMED].join(", "),
                many.len() - NAMED
            ),
        };
        found.note(about, what);
    }
}

fn amount(limit: &Limit) -> String {
    match limit {
        Limit::Quota(quota) => {
            let (count, unit) = quota.calendar().unit();
            let every = Every { count, unit };
            let (most, zone) = (quota.limit(), quota.calendar().zone().name());
            let more = match quota.grace() {
                0 => String::new(),
                grace => format!(" and {grace} of grace"),
            };
            format!("{most}{more} in each {every} of {zone}")
        }
        Limit::Concurrency(slots) => format!("{} at once", slots.limit()),
        _ => match limit.capacity() {
            Outcome::UNLIMITED => "unlimited".to_owned(),
            most => format!("{most} in {}", limit.window()),
        },
    }
}
