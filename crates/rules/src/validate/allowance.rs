//! Checks the allowance of a rule: its subject, its algorithm and the sources of its numbers.

use tollgate_core::backoff::Schedule;
use tollgate_core::{Algorithm, Limit, Span};

use super::rule::check_attribute;
use crate::document::{
    At, Duration, Field, Place, Problems, Short, Text, Whole, rate, suggestion, whole,
};
use crate::raw::{RawBackoff, RawRule};
use crate::rule::{Ceiling, Durability, LimitFrom};
use crate::tiers::{Allowance, Budget};

/// The allowance of a rule without a budget. `ledger` says whether usage is recorded in one.
pub(super) fn own(
    raw: &RawRule,
    start: Place,
    ledger: bool,
    problems: &mut Problems<'_>,
) -> Option<Allowance> {
    if raw.algorithm.is_absent() && raw.budget.is_absent() {
        let help = "write one, such as `algorithm: gcra` with a `rate`";
        problems.report(start, "this rule has no `algorithm`", help);
    }
    let candidate = !raw.candidate_of.is_absent();
    let of = ("rule", start);
    raw.allowance
        .validate(&raw.algorithm, of, ledger, candidate, problems)
}

/// The allowance of a rule that draws on a budget.
pub(super) fn drawing(
    raw: &RawRule,
    at: &At<Text>,
    budgets: &[Budget],
    problems: &mut Problems<'_>,
) -> Option<Allowance> {
    let (name, given) = (at.value.0.as_str(), &raw.allowance);
    let of_budget = [
        ("per", given.per.key()),
        ("algorithm", raw.algorithm.key()),
        ("placement", given.placement.key()),
        ("carry_over", given.carry_over.key()),
        ("durability", given.durability.key()),
        ("overdraft", given.overdraft.key()),
    ];
    let mut of_budget = of_budget.into_iter();
    let of_budget = of_budget.find_map(|(name, key)| Some((name, key?)));
    if let Some((field, key)) = given.written().first_key().or(of_budget) {
        let help = format!("move it to `budgets: {{ {} }}`", Short(name));
        problems.report(key, format!("`{field}` belongs to the budget"), help);
    }
    if let Some(key) = raw.limit_from.key() {
        let help = "remove `limit_from`, or remove `budget` and give the rule its own numbers";
        problems.report(key, "rules that share a budget share its numbers", help);
    }
    let Some(budget) = budgets.iter().find(|budget| *budget.name == *name) else {
        let names = budgets.iter().map(|budget| &*budget.name);
        let help = suggestion(name, names, "define it under `budgets`");
        let message = format!("there is no budget `{}`", Short(name));
        problems.report(at.place, message, help);
        return None;
    };
    let mut allowance = budget.allowance.clone();
    if !raw.candidate_of.is_absent() {
        allowance.durability = Durability::None;
        allowance.durable_by_default = false;
    }
    Some(allowance)
}

/// The attribute that brings the limit, and its ceiling: both or neither.
#[allow(clippy::option_option)] // The outer `None` means broken.
pub(super) fn limit_from(
    raw: &RawRule,
    allowance: Option<&Allowance>,
    problems: &mut Problems<'_>,
) -> Option<Option<LimitFrom>> {
    let (from, ceiling) = match (raw.limit_from.get(), raw.ceiling.get()) {
        (Some(from), Some(ceiling)) => (from, ceiling),
        (Some(from), None) if raw.ceiling.is_absent() => {
            let help =
                "add the highest limit that the attribute may bring, such as `ceiling: 1000/s`";
            problems.report(from.place, "`limit_from` has no `ceiling`", help);
            return None;
        }
        (None, Some(ceiling)) if raw.limit_from.is_absent() => {
            let message = "`ceiling` without `limit_from` has no effect";
            let help = "add `limit_from: attributes.NAME`, or remove `ceiling`";
            problems.report(ceiling.place, message, help);
            return None;
        }
        _ => return Some(None),
    };
    let Some(attribute) = from.value.0.strip_prefix("attributes.") else {
        let message = format!("`{}` does not name an attribute", Short(&from.value.0));
        let help = "write attributes. and the name, such as attributes.rate_limit";
        problems.report(from.place, message, help);
        return None;
    };
    check_attribute(attribute, from.place, problems);
    let text = ceiling.value.0.as_str();
    let parsed = match allowance?.counting.limit.algorithm() {
        Algorithm::FixedWindow
        | Algorithm::SlidingLog
        | Algorithm::SlidingCounter
        | Algorithm::Quota
        | Algorithm::Concurrency => whole(text).map(Ceiling::Amount),
        _ => rate(text).map(Ceiling::Rate),
    };
    let ceiling = problems.accept(ceiling.place, parsed)?;
    let attribute = attribute.to_owned();
    Some(Some(LimitFrom { attribute, ceiling }))
}

/// `None` if something is wrong with it, which was reported.
pub(super) fn backoff(at: &At<RawBackoff>, problems: &mut Problems<'_>) -> Option<Limit> {
    let raw = &at.value;
    let start = Place::new(at.place.start, at.place.start);
    if raw.base.is_absent() {
        let help = "add how long the first denial blocks, such as `base: 30s`";
        problems.report(start, "`backoff` has no `base`", help);
    }
    let length = |field: &Field<Duration>, default| match field {
        Field::Absent => Some(default),
        Field::Broken { .. } => None,
        Field::Given { at, .. } => Some(at.value.0),
    };
    let number = |field: &Field<Whole>, default| match field {
        Field::Absent => Some(default),
        Field::Broken { .. } => None,
        Field::Given { at, .. } => Some(u32::try_from(at.value.0).unwrap_or(u32::MAX)),
    };
    let base = raw.base.value()?.0;
    let max = length(&raw.max, Span::HOUR.max(base))?;
    let limit = Limit::backoff(Schedule {
        after: number(&raw.after, 0)?,
        base,
        factor: number(&raw.factor, 2)?,
        max,
        forget: length(&raw.forget, max)?,
        penalty: length(&raw.penalty, Span::ZERO)?,
    });
    let place = |field: &Field<Duration>| field.get().map(|it| it.place);
    let at = match limit.as_ref().err().map(|error| error.field) {
        Some("base") => place(&raw.base),
        Some("max") => place(&raw.max),
        Some("forget") => place(&raw.forget),
        Some("penalty") => place(&raw.penalty),
        Some("factor") => raw.factor.get().map(|it| it.place),
        _ => None,
    };
    problems.accept(at.unwrap_or(start), limit)
}
