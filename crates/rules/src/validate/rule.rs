//! Whether a rule makes sense.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollgate_core::backoff::Schedule;
use tollgate_core::{Algorithm, CarryOver, Limit, MAX_AMOUNT, Rate, Span};

use super::{ID_HELP, is_attribute_name, is_id, tiers};
use crate::attributes::Attributes;
use crate::error::{Place, Problems};
use crate::expr::{self, Declared, Expr, Failure, Want};
use crate::limits::{self, Counting};
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::raw::{Conditions, Formula, RawBackoff, RawCarryOver, RawCost, RawRule};
use crate::read::{At, Field};
use crate::rule::{
    Ceiling, Condition, Cost, CostTable, LimitFrom, Missing, Rule, RuleState, StoreFailure,
};
use crate::suggest::nearest;
use crate::tiers::Budget;
use crate::units::{self, Short};
use crate::values::{Length, List, Text, Whole};

const NO_SUBJECTS: &str = "a partial `rollout` needs subjects to choose from";
const NO_SUBJECTS_HELP: &str = "add `per`, or write `state: shadow` to try the rule without effect";

/// What rules refer to.
pub(super) struct Scope<'c> {
    pub(super) budgets: &'c [Budget],
    pub(super) declared: &'c Declared,
}

pub(super) fn rules(
    raw: &[At<RawRule>],
    scope: &Scope<'_>,
    problems: &mut Problems<'_>,
) -> Vec<Rule> {
    let mut seen: HashMap<String, Place> = HashMap::new();
    let mut rules = Vec::with_capacity(raw.len());
    let mut candidates = Vec::new();
    for at in raw {
        let start = Place::new(at.place.start, at.place.start);
        let id = id(&at.value, start, &mut seen, problems);
        if let Some(id) = &id
            && scope.budgets.iter().any(|budget| budget.name == *id)
            && let Some(at) = at.value.id.get()
        {
            let message = format!("there is already a budget `{id}`");
            problems.report(at.place, message, "give the rule another id");
        }
        let rule = rule(&at.value, start, scope, problems);
        if let (Some(id), Some(rule)) = (id, rule) {
            if !at.value.candidate_of.is_absent() {
                candidates.push((rules.len(), &at.value));
            }
            rules.push(Rule { id, ..rule });
        }
    }
    for (index, raw) in candidates {
        candidate(index, raw, &mut rules, &seen, problems);
    }
    rules
}

/// A candidate has what it does not say from the rule that it may take the place of.
fn candidate(
    index: usize,
    raw: &RawRule,
    rules: &mut [Rule],
    seen: &HashMap<String, Place>,
    problems: &mut Problems<'_>,
) {
    let Some(at) = raw.candidate_of.get() else {
        return;
    };
    let name = at.value.0.as_str();
    if let Some(state) = raw.state.get()
        && state.value != RuleState::Disabled
    {
        problems.report(
            state.place,
            format!("a candidate is never `{}`", state.value.name()),
            "leave `state` out: a candidate is compared, and refuses nothing",
        );
    }
    let Some(current) = rules.iter().find(|rule| *rule.id == *name) else {
        // A rule with problems of its own is not missed here.
        if !seen.contains_key(name) {
            let help = match nearest(name, seen.keys().map(String::as_str)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "name the rule that it may take the place of".to_owned(),
            };
            problems.report(
                at.place,
                format!("there is no rule `{}`", Short(name)),
                help,
            );
        }
        return;
    };
    if *rules[index].id == *name || current.candidate_of.is_some() {
        problems.report(
            at.place,
            format!("`{name}` is a candidate itself"),
            "name the rule that is in force",
        );
        return;
    }
    let current = current.clone();
    let rule = &mut rules[index];
    if raw.matches.is_absent() {
        rule.conditions = current.conditions;
    }
    if raw.when.is_absent() {
        rule.when = current.when;
    }
    if raw.per.is_absent() && rule.budget.is_none() {
        rule.per = current.per;
        rule.subject_type = subject_type(&rule.per);
    }
    if raw.missing.is_absent() {
        rule.missing = current.missing;
    }
    if raw.cost.is_absent() {
        rule.cost = current.cost;
    }
    if raw.rollout.is_absent() {
        rule.rollout = current.rollout;
    }
    if raw.placement.is_absent() && rule.budget.is_none() {
        rule.placement = current.placement;
    }
    if let Some(at) = raw.rollout.get()
        && rule.per.is_empty()
        && (1..10_000).contains(&rule.rollout)
    {
        problems.report(at.place, NO_SUBJECTS, NO_SUBJECTS_HELP);
    }
    rule.candidate_of = Some(current.id);
}

fn subject_type(per: &[String]) -> String {
    if per.is_empty() {
        "global".to_owned()
    } else {
        per.join("+")
    }
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
fn rule(
    raw: &RawRule,
    start: Place,
    scope: &Scope<'_>,
    problems: &mut Problems<'_>,
) -> Option<Rule> {
    let conditions = conditions(raw.matches.value(), problems);
    let when = raw
        .when
        .get()
        .and_then(|at| when(at, scope.declared, problems));
    let cost = cost(&raw.cost, scope.declared, problems);
    let allowance = match raw.budget.get() {
        Some(at) => drawing(raw, at, scope.budgets, problems),
        None => own(raw, start, problems),
    };
    let limit_from = limit_from(raw, allowance.as_ref(), problems);
    let rollout = raw.rollout.value().map_or(10_000, |percent| percent.0);
    let alone = allowance.as_ref().is_some_and(|it| it.per.is_empty());
    if let (Some(at), true) = (raw.rollout.get(), alone && raw.candidate_of.is_absent())
        && (1..10_000).contains(&rollout)
    {
        problems.report(at.place, NO_SUBJECTS, NO_SUBJECTS_HELP);
    }
    let emergency_limit = emergency_limit(raw, problems);
    let backoff = raw.backoff.get().map(|at| backoff(at, problems));
    let Allowance {
        budget,
        per,
        counting,
        placement,
        carry_over,
    } = allowance?;
    Some(Rule {
        id: Arc::from(""),
        conditions,
        when,
        subject_type: subject_type(&per),
        per,
        missing: raw.missing.value().copied().unwrap_or(Missing::Skip),
        counting,
        budget,
        limit_from: limit_from?,
        candidate_of: None,
        cost: cost?,
        charge_denied: raw.charge_denied.value().is_some_and(|flag| flag.0),
        backoff: match (backoff, &raw.backoff) {
            (Some(backoff), _) => Some(backoff?),
            (None, Field::Broken { .. }) => return None,
            (None, _) => None,
        },
        carry_over,
        on_store_failure: raw.on_store_failure.value().copied(),
        emergency_limit,
        placement,
        state: raw.state.value().copied().unwrap_or(RuleState::Enforce),
        rollout,
        message: raw.message.value().map(|text| text.0.clone()),
    })
}

/// Whose allowance, and how it is counted.
struct Allowance {
    budget: Option<Arc<str>>,
    per: Vec<String>,
    counting: Counting,
    placement: Placement,
    carry_over: CarryOver,
}

/// The allowance of a rule that has one of its own.
fn own(raw: &RawRule, start: Place, problems: &mut Problems<'_>) -> Option<Allowance> {
    if raw.algorithm.is_absent() && raw.budget.is_absent() {
        problems.report(
            start,
            "this rule has no `algorithm`",
            "write one, such as `algorithm: gcra` with a `rate`",
        );
    }
    let per = names(raw.per.value(), problems);
    let counting = limits::counting(&raw.algorithm, &raw.written(), "rule", start, problems)?;
    Some(Allowance {
        budget: None,
        per,
        counting,
        placement: raw.placement.value().copied().unwrap_or_default(),
        carry_over: RawCarryOver::of(&raw.carry_over),
    })
}

/// The allowance of a rule that draws on a budget.
fn drawing(
    raw: &RawRule,
    at: &At<Text>,
    budgets: &[Budget],
    problems: &mut Problems<'_>,
) -> Option<Allowance> {
    let name = at.value.0.as_str();
    let of_budget = [
        ("per", raw.per.key()),
        ("algorithm", raw.algorithm.key()),
        ("placement", raw.placement.key()),
        ("carry_over", raw.carry_over.key()),
    ];
    let of_budget = of_budget
        .into_iter()
        .find_map(|(name, key)| key.map(|key| (name, key)));
    if let Some((field, key)) = raw.written().first_key().or(of_budget) {
        problems.report(
            key,
            format!("`{field}` is the budget's to say"),
            format!("write it there, under `budgets: {{ {} }}`", Short(name)),
        );
    }
    if let Some(key) = raw.limit_from.key() {
        problems.report(
            key,
            "rules that share a budget share its numbers",
            "leave `limit_from` out, or give the rule an allowance of its own",
        );
    }
    let Some(budget) = budgets.iter().find(|budget| *budget.name == *name) else {
        let names = budgets.iter().map(|budget| &*budget.name);
        let help = match nearest(name, names) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "describe it under `budgets`".to_owned(),
        };
        problems.report(
            at.place,
            format!("there is no budget `{}`", Short(name)),
            help,
        );
        return None;
    };
    Some(Allowance {
        budget: Some(Arc::clone(&budget.name)),
        per: budget.per.clone(),
        counting: budget.counting.clone(),
        placement: budget.placement,
        carry_over: budget.carry_over,
    })
}

/// The attribute that brings the limit along, and its ceiling: both or none.
#[allow(clippy::option_option)] // The outer one says that something is wrong.
fn limit_from(
    raw: &RawRule,
    allowance: Option<&Allowance>,
    problems: &mut Problems<'_>,
) -> Option<Option<LimitFrom>> {
    let (from, ceiling) = match (raw.limit_from.get(), raw.ceiling.get()) {
        (Some(from), Some(ceiling)) => (from, ceiling),
        (Some(from), None) if raw.ceiling.is_absent() => {
            problems.report(
                from.place,
                "`limit_from` has no `ceiling`",
                "add the most that the attribute may say, such as `ceiling: 1000/s`",
            );
            return None;
        }
        (None, Some(ceiling)) if raw.limit_from.is_absent() => {
            problems.report(
                ceiling.place,
                "`ceiling` without `limit_from` has no effect",
                "add `limit_from: attributes.NAME`, or remove `ceiling`",
            );
            return None;
        }
        _ => return Some(None),
    };
    let attribute = tiers::source(from, problems)?;
    let text = ceiling.value.0.as_str();
    let parsed = match allowance?.counting.limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::SlidingCounter => {
            units::whole(text).map(Ceiling::Amount)
        }
        _ => units::rate(text).map(Ceiling::Rate),
    };
    match parsed {
        Ok(ceiling) => Some(Some(LimitFrom {
            attribute: attribute.to_owned(),
            ceiling,
        })),
        Err(bad) => {
            problems.report(ceiling.place, bad.message, bad.help);
            None
        }
    }
}

/// `None` if something is wrong with it, which was reported.
fn backoff(at: &At<RawBackoff>, problems: &mut Problems<'_>) -> Option<Limit> {
    let raw = &at.value;
    let start = Place::new(at.place.start, at.place.start);
    if raw.base.is_absent() {
        let help = "write how long the first refusal blocks, such as `base: 30s`";
        problems.report(start, "`backoff` has no `base`", help);
    }
    let fields = [&raw.max, &raw.forget, &raw.penalty];
    let broken = |field: &&Field<Length>| matches!(field, Field::Broken { .. });
    let wholes = [&raw.after, &raw.factor];
    let broken_whole = |field: &&Field<Whole>| matches!(field, Field::Broken { .. });
    if fields.iter().any(broken) || wholes.iter().any(broken_whole) {
        return None;
    }
    let base = raw.base.value()?.0;
    let length = |field: &Field<Length>| field.value().map(|it| it.0);
    let number = |field: &Field<Whole>| {
        field
            .value()
            .map(|it| u32::try_from(it.0).unwrap_or(u32::MAX))
    };
    let max = length(&raw.max).unwrap_or(Span::HOUR.max(base));
    let limit = Limit::backoff(Schedule {
        after: number(&raw.after).unwrap_or(0),
        base,
        factor: number(&raw.factor).unwrap_or(2),
        max,
        forget: length(&raw.forget).unwrap_or(max),
        penalty: length(&raw.penalty).unwrap_or(Span::ZERO),
    });
    match limit {
        Ok(limit) => Some(limit),
        Err(error) => {
            let place = |field: &Field<Length>| field.get().map(|it| it.place);
            let at = match error.field() {
                "base" => place(&raw.base),
                "max" => place(&raw.max),
                "forget" => place(&raw.forget),
                "penalty" => place(&raw.penalty),
                "factor" => raw.factor.get().map(|it| it.place),
                _ => None,
            };
            problems.report(at.unwrap_or(start), error.to_string(), error.help());
            None
        }
    }
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

fn conditions(raw: Option<&Conditions>, problems: &mut Problems<'_>) -> Vec<Condition> {
    let given = raw.map_or(&[][..], |conditions| &conditions.0);
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

/// The attributes that make a subject.
pub(super) fn names(raw: Option<&List<Text>>, problems: &mut Problems<'_>) -> Vec<String> {
    let given = raw.map_or(&[][..], |list| &list.0);
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

pub(super) fn check_attribute(name: &str, place: Place, problems: &mut Problems<'_>) {
    if !is_attribute_name(name) {
        problems.report(
            place,
            format!("`{}` cannot be the name of an attribute", Short(name)),
            "use letters, digits, `_`, `.` and `-`, start with a letter or `_`, 64 characters at most",
        );
    }
}

/// `None` if it is broken.
fn cost(field: &Field<RawCost>, declared: &Declared, problems: &mut Problems<'_>) -> Option<Cost> {
    let table = match field {
        Field::Absent => return Some(Cost::Fixed(1)),
        Field::Broken { .. } => return None,
        Field::Given { at, .. } => match &at.value {
            RawCost::One(formula) => return one_cost(at.place, formula, declared, problems),
            RawCost::Table(table) => table,
        },
    };
    let given = table.table.value()?;
    let mut complete = true;
    let mut rows = Vec::with_capacity(given.0.len());
    for row in &given.0 {
        let start = Place::new(row.place.start, row.place.start);
        let conditions = conditions(row.value.matches.value(), problems);
        if row.value.matches.is_absent() {
            let help = "write which requests, such as `match: { action: search }`";
            problems.report(start, "this row of costs has no `match`", help);
        }
        if row.value.cost.is_absent() {
            let help = "write what they cost, such as `cost: 5`";
            problems.report(start, "this row of costs has no `cost`", help);
        }
        let cost = row.value.cost.get();
        let cost = cost.and_then(|at| one_cost(at.place, &at.value, declared, problems));
        match cost {
            Some(cost) => rows.push((conditions, cost)),
            None => complete = false,
        }
    }
    let otherwise = match &table.otherwise {
        Field::Absent => Cost::Fixed(1),
        Field::Broken { .. } => return None,
        Field::Given { at, .. } => one_cost(at.place, &at.value, declared, problems)?,
    };
    complete.then(|| Cost::Table(Arc::new(CostTable { rows, otherwise })))
}

/// A number, or an expression.
fn one_cost(
    place: Place,
    formula: &Formula,
    declared: &Declared,
    problems: &mut Problems<'_>,
) -> Option<Cost> {
    let at = &At {
        place,
        value: formula.clone(),
    };
    let text = at.value.text.trim();
    if !text.starts_with(|c: char| c.is_ascii_digit()) || !text.bytes().all(is_number_byte) {
        let expr = compiled(at, Want::Int, declared, problems)?;
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

fn when(at: &At<Formula>, declared: &Declared, problems: &mut Problems<'_>) -> Option<Arc<Expr>> {
    let expr = compiled(at, Want::Bool, declared, problems)?;
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

fn compiled(
    at: &At<Formula>,
    want: Want,
    declared: &Declared,
    problems: &mut Problems<'_>,
) -> Option<Arc<Expr>> {
    match expr::compile(&at.value.text, want, declared) {
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
