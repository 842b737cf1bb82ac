//! Whether a rule makes sense.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollgate_core::{MAX_AMOUNT, Rate};

use super::{ID_HELP, is_attribute_name, is_id};
use crate::attributes::Attributes;
use crate::error::{Place, Problems};
use crate::expr::{self, Expr, Failure, Want};
use crate::limits::limit_of;
use crate::pattern::Pattern;
use crate::raw::{Formula, RawRule};
use crate::read::{At, Field};
use crate::rule::{Condition, Cost, Missing, Rule, RuleState, StoreFailure};
use crate::units::{self, Short};

pub(super) fn rules(raw: &[At<RawRule>], problems: &mut Problems<'_>) -> Vec<Rule> {
    let mut seen: HashMap<String, Place> = HashMap::new();
    let mut rules = Vec::with_capacity(raw.len());
    for at in raw {
        let start = Place::new(at.place.start, at.place.start);
        let id = id(&at.value, start, &mut seen, problems);
        let rule = rule(&at.value, start, problems);
        if let (Some(id), Some(rule)) = (id, rule) {
            rules.push(Rule { id, ..rule });
        }
    }
    rules
}

fn id(
    raw: &RawRule,
    start: Place,
    seen: &mut HashMap<String, Place>,
    problems: &mut Problems<'_>,
) -> Option<Arc<str>> {
    if raw.id.is_absent() {
        let help = "give it a name that stays: state and metrics belong to it";
        problems.report(start, "this rule has no `id`", help);
    }
    let at = raw.id.get()?;
    let id = at.value.0.as_str();
    if !is_id(id) {
        problems.report(
            at.place,
            format!("`{}` cannot be an id", Short(id)),
            ID_HELP,
        );
        return None;
    }
    if let Some(first) = seen.get(id) {
        let line = problems.line_of(*first);
        problems.report(
            at.place,
            format!("there is already a rule `{id}`"),
            format!("it stands on line {line}: give this one another id"),
        );
        return None;
    }
    seen.insert(id.to_owned(), at.place);
    Some(id.into())
}

/// Everything of a rule but its id.
fn rule(raw: &RawRule, start: Place, problems: &mut Problems<'_>) -> Option<Rule> {
    if raw.algorithm.is_absent() {
        problems.report(
            start,
            "this rule has no `algorithm`",
            "write one, such as `algorithm: gcra` with a `rate`",
        );
    }
    let conditions = conditions(raw, problems);
    let per = per(raw, problems);
    let when = raw.when.get().and_then(|at| when(at, problems));
    let cost = cost(&raw.cost, problems);
    let limit = limit_of(raw, start, problems);
    let rollout = raw.rollout.value().map_or(10_000, |percent| percent.0);
    if let (Some(at), true) = (raw.rollout.get(), per.is_empty())
        && (1..10_000).contains(&rollout)
    {
        problems.report(
            at.place,
            "a partial `rollout` needs subjects to choose from",
            "add `per`, or write `state: shadow` to try the rule without effect",
        );
    }
    let emergency_limit = emergency_limit(raw, problems);
    let limit = limit?;
    let subject_type = if per.is_empty() {
        "global".to_owned()
    } else {
        per.join("+")
    };
    Some(Rule {
        id: Arc::from(""),
        conditions,
        when,
        per,
        missing: raw.missing.value().copied().unwrap_or(Missing::Skip),
        algorithm: limit.algorithm(),
        limit,
        cost: cost?,
        charge_denied: raw.charge_denied.value().is_some_and(|flag| flag.0),
        on_store_failure: raw.on_store_failure.value().copied(),
        emergency_limit,
        placement: raw.placement.value().copied().unwrap_or_default(),
        state: raw.state.value().copied().unwrap_or(RuleState::Enforce),
        rollout,
        message: raw.message.value().map(|text| text.0.clone()),
        subject_type,
    })
}

/// The emergency limit, which is there if and only if the policy is.
fn emergency_limit(raw: &RawRule, problems: &mut Problems<'_>) -> Option<Rate> {
    let policy = &raw.on_store_failure;
    match (policy.get(), raw.emergency_limit.key()) {
        (Some(at), None) if at.value == StoreFailure::EmergencyLimit => problems.report(
            at.place,
            "`emergency-limit` needs an `emergency_limit`",
            "add one such as `emergency_limit: 50/s`: for each instance, all subjects together",
        ),
        (Some(at), Some(key)) if at.value != StoreFailure::EmergencyLimit => problems.report(
            key,
            format!("`emergency_limit` has no effect with `{}`", at.value.name()),
            "write `on_store_failure: emergency-limit`, or remove `emergency_limit`",
        ),
        (None, Some(key)) if policy.is_absent() => problems.report(
            key,
            "`emergency_limit` without `on_store_failure: emergency-limit` has no effect",
            "add `on_store_failure: emergency-limit`, or remove `emergency_limit`",
        ),
        _ => {}
    }
    raw.emergency_limit.value().map(|pace| pace.0)
}

fn conditions(raw: &RawRule, problems: &mut Problems<'_>) -> Vec<Condition> {
    let given = raw
        .matches
        .value()
        .map_or(&[][..], |conditions| &conditions.0);
    let mut conditions = Vec::with_capacity(given.len());
    for (attribute, values) in given {
        check_attribute(&attribute.value, attribute.place, problems);
        let mut accepted = Vec::with_capacity(values.len());
        for at in values {
            match Pattern::parse(&at.value) {
                Ok(pattern) => accepted.push(pattern),
                Err(_) => problems.report(
                    at.place,
                    "a backslash stands before `*`, `?` or another backslash",
                    r"write `\\` for a backslash in the value",
                ),
            }
        }
        conditions.push(Condition {
            attribute: attribute.value.clone(),
            accepted: accepted.into(),
        });
    }
    conditions
}

fn per(raw: &RawRule, problems: &mut Problems<'_>) -> Vec<String> {
    let given = raw.per.value().map_or(&[][..], |list| &list.0);
    let mut per: Vec<String> = Vec::with_capacity(given.len());
    let mut seen = HashSet::new();
    for at in given {
        let name = &at.value.0;
        check_attribute(name, at.place, problems);
        if !seen.insert(name.as_str()) {
            problems.report(
                at.place,
                format!("`{name}` is listed twice"),
                "list it once",
            );
        } else {
            per.push(name.clone());
        }
    }
    per
}

fn check_attribute(name: &str, place: Place, problems: &mut Problems<'_>) {
    if !is_attribute_name(name) {
        problems.report(
            place,
            format!("`{}` cannot be the name of an attribute", Short(name)),
            "use letters, digits, `_`, `.` and `-`, start with a letter or `_`, 64 characters at most",
        );
    }
}

/// `None` if it is broken.
fn cost(field: &Field<Formula>, problems: &mut Problems<'_>) -> Option<Cost> {
    let at = match field {
        Field::Absent => return Some(Cost::Fixed(1)),
        Field::Broken { .. } => return None,
        Field::Given { at, .. } => at,
    };
    let text = at.value.text.trim();
    if !text.starts_with(|c: char| c.is_ascii_digit()) || !text.bytes().all(is_number_byte) {
        let expr = formula(at, Want::Int, problems)?;
        if !expr.is_constant() {
            return Some(Cost::Expr(expr));
        }
        return match expr.cost(&Attributes::new()) {
            Ok(cost) => Some(Cost::Fixed(cost)),
            Err(failure) => {
                always_fails(at, &failure, problems);
                None
            }
        };
    }
    match units::whole(text) {
        Ok(cost) if cost <= MAX_AMOUNT => return Some(Cost::Fixed(cost)),
        Ok(_) => problems.report(
            at.place,
            format!("a cost of {text} is above the largest amount, {MAX_AMOUNT}"),
            "write a smaller cost",
        ),
        Err(bad) => problems.report(at.place, bad.message, bad.help),
    }
    None
}

fn when(at: &At<Formula>, problems: &mut Problems<'_>) -> Option<Arc<Expr>> {
    let expr = formula(at, Want::Bool, problems)?;
    if expr.is_constant()
        && let Err(failure) = expr.holds(&Attributes::new())
    {
        always_fails(at, &failure, problems);
    }
    Some(expr)
}

/// An expression without attributes fails the same way for every request.
fn always_fails(at: &At<Formula>, failure: &Failure, problems: &mut Problems<'_>) {
    let how = match failure {
        Failure::Broken(how) => how.as_str(),
        Failure::Missing(_) => "it reads an attribute that no request has",
    };
    let help = "this fails for every request: write an expression that has a value";
    problems.report(at.place, format!("not a usable value: {how}"), help);
}

fn is_number_byte(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'_'
}

fn formula(at: &At<Formula>, want: Want, problems: &mut Problems<'_>) -> Option<Arc<Expr>> {
    match expr::compile(&at.value.text, want) {
        Ok(expr) => Some(Arc::new(expr)),
        Err(faults) => {
            for fault in faults {
                let inside = at.value.verbatim.zip(fault.range).map(|(start, range)| {
                    let end = (start + range.end).min(at.place.end);
                    Place::new((start + range.start).min(end), end)
                });
                problems.report(inside.unwrap_or(at.place), fault.message, fault.help);
            }
            None
        }
    }
}
