//! Changes of rules and budgets.

use std::collections::BTreeSet;

use tollgate_core::Limit;

use super::Found;
use super::numbers::{Both, Numbered, counted, counting};
use crate::rule::{Condition, Cost, Rule, RuleState, RuleStore};

pub(super) fn rules(before: &Numbered<'_>, after: &Numbered<'_>, found: &mut Found) {
    let (old, new) = (before.policy, after.policy);
    let both = (before, after);
    let find = |rules: &[Rule], id: &str| rules.iter().position(|rule| *rule.id == *id);
    for rule in &old.rules {
        if find(&new.rules, &rule.id).is_none() {
            let whom = whom(&rule.conditions);
            let what = format!("is gone: {whom} are no longer limited by it");
            found.note(format!("rule {}", rule.id), what);
        }
    }
    for rule in &new.rules {
        match find(&old.rules, &rule.id) {
            Some(place) => changed(&old.rules[place], rule, both, found),
            None => found.note(format!("rule {}", rule.id), described(rule)),
        }
    }
    for budget in &old.budgets {
        if !new.budgets.iter().any(|it| it.name == budget.name) {
            found.note(format!("budget {}", budget.name), "is gone");
        }
    }
    for budget in &new.budgets {
        let about = format!("budget {}", budget.name);
        let is = &budget.allowance;
        let Some(known) = old.budgets.iter().find(|it| it.name == budget.name) else {
            let (counted, per) = (counted(&is.counting), per(&is.per));
            found.note(about, format!("is new: {counted}, {per}"));
            continue;
        };
        let was = &known.allowance;
        subject(&about, &was.per, &is.per, found);
        if was.placement != is.placement {
            let what = "placement changes: its counts start from zero in a cluster";
            found.note(&about, what);
        }
        store(&about, &was.store, &is.store, found);
        let counted = (&budget.name, &was.counting, &is.counting);
        counting(&about, counted, both, found);
    }
}

/// Notes a change of the store that keeps the counts.
fn store(about: &str, old: &RuleStore, new: &RuleStore, found: &mut Found) {
    if old != new {
        let (old, new) = (old.name(), new.name());
        found.note(
            about,
            format!("store {old} becomes {new}: its counts start from zero"),
        );
    }
}

/// Notes a change of the attributes that make the subject. Their order does not matter.
fn subject(about: &str, old: &[String], new: &[String], found: &mut Found) {
    let sorted = |per: &[String]| per.iter().cloned().collect::<BTreeSet<String>>();
    if sorted(old) != sorted(new) {
        let (old, new) = (per(old), per(new));
        found.note(
            about,
            format!("{old} becomes {new}: its counts start from zero"),
        );
    }
}

/// Describes a new rule in words.
fn described(rule: &Rule) -> String {
    let allowance = match rule.budget() {
        Some(budget) => format!("draws on the budget {budget}"),
        None => format!("{}, {}", counted(&rule.counting), per(&rule.per)),
    };
    let state = match (rule.candidate_of(), rule.state) {
        (Some(current), _) => format!("as a candidate of {current}"),
        (None, state) => state_words(state).to_owned(),
    };
    let whom = whom(&rule.conditions);
    format!("is new: {allowance}, for {whom}; {state}")
}

fn state_words(state: RuleState) -> &'static str {
    match state {
        RuleState::Enforce => "it denies",
        RuleState::Shadow => "it only observes",
        RuleState::Disabled => "it is off",
    }
}

/// Notes the changes of a rule that is in both policies.
fn changed(old: &Rule, new: &Rule, both: Both<'_>, found: &mut Found) {
    let about = format!("rule {}", new.id);
    if old.state != new.state {
        let words = state_words(new.state);
        let (old, new) = (old.state.name(), new.state.name());
        found.note(&about, format!("{old} becomes {new}: {words}"));
    }
    if old.rollout != new.rollout {
        let share = |rollout: u16| crate::document::percentage(rollout.into());
        let whom = match old.rollout < new.rollout {
            true => "it stays on for its subjects, and further ones are added",
            false => "it stays on for some of its subjects only, and none are added",
        };
        let (old, new) = (share(old.rollout), share(new.rollout));
        found.note(&about, format!("rollout {old} becomes {new}: {whom}"));
    }
    if old.candidate_of != new.candidate_of {
        let what = match (&old.candidate_of, &new.candidate_of) {
            (Some(_), None) => "is not a candidate any more, and denies".to_owned(),
            (_, Some(current)) => format!("is a candidate of {current} now"),
            (None, None) => String::new(),
        };
        found.note(&about, what);
    }
    let (before, after) = (whom(&old.conditions), whom(&new.conditions));
    if before != after {
        found.note(&about, format!("is for {after}, and was for {before}"));
    }
    let text = |rule: &Rule| rule.when.as_ref().map(|when| when.text().to_owned());
    if text(old) != text(new) {
        let said = |text: Option<String>| text.unwrap_or_else(|| "always".to_owned());
        let (old, new) = (said(text(old)), said(text(new)));
        found.note(&about, format!("when {old} becomes {new}"));
    }
    if old.budget != new.budget {
        let from = |rule: &Rule| match rule.budget() {
            Some(budget) => format!("the budget {budget}"),
            None => "an allowance of its own".to_owned(),
        };
        let (old, new) = (from(old), from(new));
        found.note(&about, format!("draws on {new}, and drew on {old}"));
    } else if new.budget.is_none() {
        subject(&about, &old.per, &new.per, found);
        let counted = (&new.id, &old.counting, &new.counting);
        counting(&about, counted, both, found);
    }
    let (before, after) = (priced(&old.cost), priced(&new.cost));
    if before != after {
        found.note(&about, format!("cost {before} becomes {after}"));
    }
    settings(&about, old, new, found);
}

/// Notes changes of the rule's fields that are not numbers.
fn settings(about: &str, old: &Rule, new: &Rule, found: &mut Found) {
    let waits = |rule: &Rule| match &rule.backoff {
        Some(Limit::Backoff(backoff)) => {
            let it = backoff.schedule();
            let (after, base, factor, max) = (it.after, it.base, it.factor, it.max);
            format!(
                "after {after} of {base} times {factor} up to {max}, forgotten after {}, penalty {}",
                it.forget, it.penalty
            )
        }
        _ => "none".to_owned(),
    };
    let source = |rule: &Rule| match &rule.limit_from {
        Some(from) => format!("attributes.{} up to {}", from.attribute, from.ceiling),
        None => "nothing".to_owned(),
    };
    let none = || "none".to_owned();
    let said = |rule: &Rule| {
        let denied = if rule.charge_denied { "yes" } else { "no" };
        let policy = rule.on_store_failure.map_or("none", |it| it.name());
        let emergency = rule.emergency_limit.map(|it| it.to_string());
        let most = rule.max_lease.map(|it| it.to_string());
        let adaptive = rule.adaptive.map(|it| it.to_string());
        [
            ("missing", rule.missing.name().to_owned()),
            ("charge_denied", denied.to_owned()),
            ("backoff", waits(rule)),
            ("carry_over", rule.carry_over.name().to_owned()),
            ("durability", rule.durability.name().to_owned()),
            ("overdraft", rule.overdraft().to_string()),
            ("max_lease", most.unwrap_or_else(|| "lease".to_owned())),
            ("adaptive", adaptive.unwrap_or_else(|| "off".to_owned())),
            ("on_store_failure", policy.to_owned()),
            ("emergency_limit", emergency.unwrap_or_else(none)),
            ("limit_from", source(rule)),
            ("delay_denials", rule.delay_denials.to_string()),
            ("placement", format!("{:?}", rule.placement)),
            ("mode", rule.counting.modes.settings()),
            ("store", rule.store.name().to_owned()),
            ("log_denials", rule.log_denials.name().to_owned()),
        ]
    };
    for ((name, before), (_, after)) in said(old).into_iter().zip(said(new)) {
        if before != after {
            found.note(about, format!("{name} {before} becomes {after}"));
        }
    }
    if old.message != new.message {
        found.note(about, "has another message for denied clients");
    }
    if old.denial_body != new.denial_body {
        found.note(about, "has another body for denied clients");
    }
}

fn per(per: &[String]) -> String {
    match per {
        [] => "one allowance for all".to_owned(),
        per => format!("per {}", per.join(" + ")),
    }
}

fn priced(cost: &Cost) -> String {
    match cost {
        Cost::Fixed(cost) => cost.to_string(),
        Cost::Expr(expr) => expr.text().to_owned(),
        Cost::Table(table) => {
            let row = |(of, it): &(Vec<_>, _)| format!("{} for {}", priced(it), whom(of));
            let mut rows: Vec<String> = table.rows.iter().map(row).collect();
            rows.push(format!("{} otherwise", priced(&table.otherwise)));
            rows.join(", ")
        }
    }
}

/// Describes in words which requests the conditions match.
fn whom(conditions: &[Condition]) -> String {
    if conditions.is_empty() {
        return "all requests".to_owned();
    }
    let conditions = conditions.iter().map(|condition| {
        let accepted: Vec<String> = condition.accepted.iter().map(ToString::to_string).collect();
        format!("{} {}", condition.attribute, accepted.join(" or "))
    });
    let conditions: Vec<String> = conditions.collect();
    format!("requests with {}", conditions.join(", "))
}
