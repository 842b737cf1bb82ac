//! Checks rules: each rule alone, and rules together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollgate_core::{Algorithm, Rate, Span};

use super::allowance::{backoff, drawing, limit_from, own};
use super::formula;
use super::{ID_HELP, Outside, is_attribute_name, is_id};
use crate::document::{At, Field, List, Place, Problems, Short, Text, suggestion};
use crate::expr::Declared;
use crate::mode::ModeName;
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::raw::{Conditions, RawRule};
use crate::rule::{
    Condition, Cost, FailurePolicy, LogDenials, MAX_DENIAL_DELAY, Missing, Rule, RuleState,
    RuleStore,
};
use crate::tiers::Budget;

const NO_SUBJECTS: &str = "a partial `rollout` needs subjects to choose from";
const NO_SUBJECTS_HELP: &str = "add `per`, or write `state: shadow` to try the rule without effect";

/// The parts of a policy that rules refer to.
pub(super) struct Scope<'c> {
    pub(super) budgets: &'c [Budget],
    pub(super) declared: &'c Declared,
    pub(super) outside: Outside<'c>,
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
            if at.value.candidate_of.is_absent() {
                check_rule(&at.value, &rule, start, problems);
            } else {
                candidates.push((rules.len(), at));
            }
            rules.push(Rule { id, ..rule });
        }
    }
    for (index, at) in candidates {
        candidate(index, &at.value, &mut rules, &seen, problems);
        let start = Place::new(at.place.start, at.place.start);
        let rule = &rules[index];
        check_rule(&at.value, rule, start, problems);
        if rule.budget.is_none() {
            at.value.allowance.check_zone(&rule.per, problems);
        }
    }
    rules
}

/// Fills the fields that a candidate leaves out from the rule that it may replace.
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
        let message = format!("a candidate cannot be `{}`", state.value.name());
        let help = "remove `state`: a candidate is compared and denies nothing";
        problems.report(state.place, message, help);
    }
    let Some(current) = rules.iter().find(|rule| *rule.id == *name) else {
        // A broken rule was reported already.
        if !seen.contains_key(name) {
            let known = seen.keys().map(String::as_str);
            let help = suggestion(name, known, "name the rule that it may replace");
            let message = format!("there is no rule `{}`", Short(name));
            problems.report(at.place, message, help);
        }
        return;
    };
    if *rules[index].id == *name || current.candidate_of.is_some() {
        let message = format!("`{name}` is a candidate itself");
        return problems.report(at.place, message, "name the rule that is in force");
    }
    if current.algorithm() == Algorithm::Concurrency {
        let message = format!("`{name}` is a concurrency limit, and a candidate holds no slots");
        let help = "write `state: shadow` to try another limit beside it";
        return problems.report(at.place, message, help);
    }
    let current = current.clone();
    let rule = &mut rules[index];
    if raw.matches.is_absent() {
        rule.conditions = current.conditions;
    }
    if raw.when.is_absent() {
        rule.when = current.when;
    }
    if raw.allowance.per.is_absent() && rule.budget.is_none() {
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
    if raw.allowance.placement.is_absent() && rule.budget.is_none() {
        rule.placement = current.placement;
    }
    if raw.allowance.store.is_absent() && rule.budget.is_none() {
        rule.store = current.store;
    } else if rule.store != current.store {
        let place = raw.allowance.store.get().map_or(at.place, |it| it.place);
        let (own, other) = (rule.store.name(), current.store.name());
        let message = format!(
            "the candidate is in the store `{own}`, and `{name}` is in the store `{other}`"
        );
        let help = "one store compares the two: write the same `store`, or leave it out";
        problems.report(place, message, help);
    }
    if let Some(at) = raw.rollout.get()
        && rule.per.is_empty()
        && (1..10_000).contains(&rule.rollout)
    {
        problems.report(at.place, NO_SUBJECTS, NO_SUBJECTS_HELP);
    }
    rule.candidate_of = Some(current.id);
}

/// Reports fields of a rule that do not fit its algorithm. `start` is where the rule starts.
fn check_rule(raw: &RawRule, rule: &Rule, start: Place, problems: &mut Problems<'_>) {
    if let (RuleStore::Local, Some(key)) = (&rule.store, raw.on_store_failure.key()) {
        let message = "`on_store_failure` has no effect on a rule in the store `local`";
        let help = "remove `on_store_failure`: the memory of this instance always answers";
        problems.report(key, message, help);
    }
    check_shards(raw, rule, start, problems);
    check_fair(raw, rule, problems);
    let charged = raw.charge_denied.get().filter(|at| at.value.0);
    match (rule.algorithm(), charged) {
        (Algorithm::Concurrency, Some(at)) => {
            let message = "a denied request holds no slot, so it cannot be charged";
            problems.report(at.place, message, "remove `charge_denied`");
        }
        (Algorithm::Quota, Some(at)) => {
            let message = "a denied request uses nothing, so a quota cannot charge it";
            let help =
                "remove `charge_denied`; to slow down clients that retry, add a rule with a rate";
            problems.report(at.place, message, help);
        }
        _ => {}
    }
    check_mode(raw, rule, problems);
    if rule.algorithm() != Algorithm::Concurrency {
        return;
    }
    if !matches!(rule.cost, Cost::Fixed(1)) {
        let place = raw.cost.get().map_or(start, |at| at.place);
        let message = "every request holds one slot, so a `cost` has no effect";
        let help = "remove `cost`, or write 1; a rule with a rate or a quota can weigh requests";
        problems.report(place, message, help);
    }
    if let Some(key) = raw.backoff.key() {
        let message = "slots have no back-off: one may be released at any moment";
        problems.report(
            key,
            message,
            "remove `backoff`, or put it on a rule with a rate",
        );
    }
    if let Some(key) = raw.candidate_of.key() {
        let message = "a candidate holds no slots, so it cannot be compared";
        let help = "write `state: shadow` to try a concurrency limit without effect";
        problems.report(key, message, help);
    }
    if let Some(at) = raw.on_store_failure.get() {
        let why = match at.value {
            FailurePolicy::FailOpen | FailurePolicy::FailClosed | FailurePolicy::Degraded => return,
            FailurePolicy::LocalFallback | FailurePolicy::Cached => {
                "one instance does not know the slots of the others"
            }
            FailurePolicy::EmergencyLimit => "a rate does not limit how many run at the same time",
        };
        let message = format!("`{}` cannot be used for slots: {why}", at.value.name());
        let help = "write `fail-open`, `fail-closed` or `degraded`";
        problems.report(at.place, message, help);
    }
}

/// Reports fields that do not go with fair shares.
fn check_fair(raw: &RawRule, rule: &Rule, problems: &mut Problems<'_>) {
    if rule.counting.numbers.fair.is_none() {
        return;
    }
    if let (Some(key), true) = (raw.charge_denied.key(), rule.charge_denied) {
        let message = "a denied request takes no share, so it cannot be charged";
        problems.report(key, message, "remove `charge_denied`, or remove `fair`");
    }
    if let Some(key) = raw.limit_from.key() {
        let message = "clients share one bucket, so a request cannot bring its limit";
        let help = "remove `limit_from`, or remove `fair`; weights give clients different shares";
        problems.report(key, message, help);
    }
}

/// Reports fields that need the store to decide every request, if the mode does not ask it for every request.
fn check_mode(raw: &RawRule, rule: &Rule, problems: &mut Problems<'_>) {
    let mode = rule.counting.modes.name;
    if mode == ModeName::Exact {
        return;
    }
    if let Some(key) = raw.backoff.key() {
        let message = format!(
            "a back-off is checked with every request, so the rule cannot be `{}`",
            mode.name()
        );
        problems.report(key, message, "remove `backoff`, or write `mode: exact`");
    }
    if mode == ModeName::Async
        && let Some(at) = raw.charge_denied.get().filter(|at| at.value.0)
    {
        let message = "denied requests are counted by the store, so the rule cannot be `async`";
        problems.report(
            at.place,
            message,
            "remove `charge_denied`, or write another `mode`",
        );
    }
    let limit = &rule.counting.limit;
    if let (Cost::Fixed(cost), (_, Some(prepaid))) = (&rule.cost, rule.counting.modes.of(limit))
        && (prepaid.capacity() + 1..=limit.capacity()).contains(cost)
        && let Some(at) = raw.cost.get()
    {
        let most = prepaid.capacity();
        let message =
            format!("in mode `leased` at most {most} are admitted at once, so no request");
        let message = format!("{message} of this rule would be admitted");
        let help = "shorten `slice`, raise the burst or capacity, or write `mode: exact`";
        problems.report(at.place, message, help);
    }
}

/// Reports fields that do not go with an allowance that is split over several keys.
fn check_shards(raw: &RawRule, rule: &Rule, start: Place, problems: &mut Problems<'_>) {
    let Placement::Sharded(parts) = rule.placement else {
        return;
    };
    let charged = raw.charge_denied.get().filter(|at| at.value.0);
    let charged = charged.and(raw.charge_denied.key());
    for (name, key) in [("charge_denied", charged), ("backoff", raw.backoff.key())] {
        if let Some(key) = key {
            let message = format!(
                "`{name}` does not go with `sharded({parts})`: after a denial by one part, the next part may admit"
            );
            let help = format!("choose another `placement`, or remove `{name}`");
            problems.report(key, message, help);
        }
    }
    let least = rule.limit().capacity() / rule.limit().parts(u64::from(parts.get()));
    if let Cost::Fixed(cost @ 1..) = rule.cost
        && cost > least
        && rule.limit().capacity() > 0
    {
        let place = raw.cost.get().map_or(start, |at| at.place);
        let message = format!("a cost of {cost} does not fit into a part of {least} units");
        problems.report(place, message, "split the allowance into fewer parts");
    }
}

fn subject_type(per: &[String]) -> String {
    match per {
        [] => "global".to_owned(),
        _ => per.join("+"),
    }
}

fn id(
    raw: &RawRule,
    start: Place,
    seen: &mut HashMap<String, Place>,
    problems: &mut Problems<'_>,
) -> Option<Arc<str>> {
    if raw.id.is_absent() {
        let help = "add a stable `id`: state and metrics are kept under it";
        problems.report(start, "this rule has no `id`", help);
    }
    let at = raw.id.get()?;
    let id = at.value.0.as_str();
    if !is_id(id) {
        let message = format!("`{}` cannot be an id", Short(id));
        problems.report(at.place, message, ID_HELP);
        return None;
    }
    if let Some(first) = seen.get(id) {
        let line = problems.line_of(*first);
        let help = format!("the first one is on line {line}: choose another id");
        problems.report(at.place, format!("there is already a rule `{id}`"), help);
        return None;
    }
    seen.insert(id.to_owned(), at.place);
    Some(id.into())
}

/// Makes a rule. The caller fills in the id.
fn rule(
    raw: &RawRule,
    start: Place,
    scope: &Scope<'_>,
    problems: &mut Problems<'_>,
) -> Option<Rule> {
    let conditions = conditions(raw.matches.value(), problems);
    let when = raw.when.get();
    let when = when.and_then(|at| formula::when(at, scope.declared, problems));
    let cost = formula::cost(&raw.cost, scope.declared, problems);
    let allowance = match raw.budget.get() {
        Some(at) => drawing(raw, at, scope.budgets, problems),
        None => own(raw, start, scope.outside, problems),
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
    let allowance = allowance?;
    Some(Rule {
        id: Arc::from(""),
        conditions,
        when,
        subject_type: subject_type(&allowance.per),
        per: allowance.per,
        missing: raw.missing.value().copied().unwrap_or(Missing::Skip),
        counting: allowance.counting,
        budget: raw.budget.value().map(|name| name.0.as_str().into()),
        limit_from: limit_from?,
        candidate_of: None,
        cost: cost?,
        charge_denied: raw.charge_denied.value().is_some_and(|flag| flag.0),
        backoff: match (backoff, &raw.backoff) {
            (Some(backoff), _) => Some(backoff?),
            (None, Field::Broken { .. }) => return None,
            (None, _) => None,
        },
        carry_over: allowance.carry_over,
        durability: allowance.durability,
        durable_by_default: allowance.durable_by_default,
        overdraft: allowance.overdraft,
        max_lease: allowance.max_lease,
        adaptive: allowance.adaptive,
        on_store_failure: raw.on_store_failure.value().copied(),
        emergency_limit,
        placement: allowance.placement,
        store: allowance.store,
        state: raw.state.value().copied().unwrap_or(RuleState::Enforce),
        rollout,
        message: raw.message.value().map(|text| text.0.clone()),
        denial_body: raw.denial_body.value().map(|raw| Arc::new(raw.body())),
        delay_denials: delay_denials(raw, problems),
        log_denials: raw
            .log_denials
            .value()
            .copied()
            .unwrap_or(LogDenials::Sampled),
    })
}

/// Returns how long denials are held back. Reports a delay that is too short or too long.
fn delay_denials(raw: &RawRule, problems: &mut Problems<'_>) -> Span {
    let Some(at) = raw.delay_denials.get() else {
        return Span::ZERO;
    };
    let delay = at.value.0;
    if !(Span::from_millis(1)..=MAX_DENIAL_DELAY).contains(&delay) {
        let message = format!("{delay} is not between 1ms and {MAX_DENIAL_DELAY}");
        let help =
            "write a delay such as 500ms, or remove `delay_denials`; `backoff` blocks for longer";
        problems.report(at.place, message, help);
    }
    delay
}

/// Returns the emergency limit. Reports a policy `emergency-limit` without an `emergency_limit`, and
/// the reverse.
fn emergency_limit(raw: &RawRule, problems: &mut Problems<'_>) -> Option<Rate> {
    let policy = &raw.on_store_failure;
    match (policy.get(), raw.emergency_limit.key()) {
        (Some(at), None) if at.value == FailurePolicy::EmergencyLimit => {
            let message = "`emergency-limit` needs an `emergency_limit`";
            let help =
                "add one such as `emergency_limit: 50/s`: for each instance, all subjects together";
            problems.report(at.place, message, help);
        }
        (Some(at), Some(key)) if at.value != FailurePolicy::EmergencyLimit => {
            let message = format!("`emergency_limit` has no effect with `{}`", at.value.name());
            let help = "write `on_store_failure: emergency-limit`, or remove `emergency_limit`";
            problems.report(key, message, help);
        }
        (None, Some(key)) if policy.is_absent() => {
            let message =
                "`emergency_limit` without `on_store_failure: emergency-limit` has no effect";
            let help = "add `on_store_failure: emergency-limit`, or remove `emergency_limit`";
            problems.report(key, message, help);
        }
        _ => {}
    }
    raw.emergency_limit.value().map(|pace| pace.0)
}

pub(super) fn conditions(raw: Option<&Conditions>, problems: &mut Problems<'_>) -> Vec<Condition> {
    let given = raw.map_or(&[][..], |conditions| &conditions.0);
    let mut conditions = Vec::with_capacity(given.len());
    for (attribute, values) in given {
        check_attribute(&attribute.value, attribute.place, problems);
        let accepted = values.iter();
        let accepted = accepted
            .filter_map(|at| problems.accept(at.place, Pattern::of(&attribute.value, &at.value)));
        conditions.push(Condition {
            accepted: accepted.collect(),
            attribute: attribute.value.clone(),
        });
    }
    conditions
}

/// Returns the attributes that make a subject.
pub(super) fn names(raw: Option<&List<Text>>, problems: &mut Problems<'_>) -> Vec<String> {
    let given = raw.map_or(&[][..], |list| &list.0);
    let mut per: Vec<String> = Vec::with_capacity(given.len());
    let mut seen = HashSet::new();
    for at in given {
        let name = &at.value.0;
        check_attribute(name, at.place, problems);
        if seen.insert(name.as_str()) {
            per.push(name.clone());
        } else {
            let message = format!("`{name}` is listed twice");
            problems.report(at.place, message, "list it once");
        }
    }
    per
}

pub(crate) fn check_attribute(name: &str, place: Place, problems: &mut Problems<'_>) {
    if !is_attribute_name(name) {
        let message = format!("`{}` cannot be the name of an attribute", Short(name));
        let help = "use letters, digits, `_`, `.` and `-`, start with a letter or `_`, 64 characters at most";
        problems.report(place, message, help);
    }
}
