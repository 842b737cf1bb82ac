//! Checks the allowance of a rule: its subject, its algorithm and the sources of its numbers.

use std::sync::Arc;

use tollgate_core::backoff::Schedule;
use tollgate_core::{Algorithm, Limit, Span};

use super::rule::names;
use super::terms::{Promised, Terms};
use super::tiers;
use crate::document::{
    At, Duration, Field, Place, Problems, Short, Text, Whole, nearest, rate, whole,
};
use crate::limits::{self, Counting};
use crate::placement::Placement;
use crate::raw::{RawBackoff, RawRule};
use crate::rule::{Ceiling, Durability, LimitFrom};
use crate::tiers::Budget;

/// The subject and the algorithm of an allowance.
pub(super) struct Allowance {
    pub(super) budget: Option<Arc<str>>,
    pub(super) per: Vec<String>,
    pub(super) counting: Counting,
    pub(super) placement: Placement,
    pub(super) terms: Terms,
}

/// The allowance of a rule without a budget. `ledger` says whether usage is recorded in one.
pub(super) fn own(
    raw: &RawRule,
    start: Place,
    ledger: bool,
    problems: &mut Problems<'_>,
) -> Option<Allowance> {
    if raw.algorithm.is_absent() && raw.budget.is_absent() {
        problems.report(
            start,
            "this rule has no `algorithm`",
            "write one, such as `algorithm: gcra` with a `rate`",
        );
    }
    let per = names(raw.per.value(), problems);
    let promised = Promised {
        durability: &raw.durability,
        overdraft: &raw.overdraft,
        timezone: &raw.timezone,
        carry_over: &raw.carry_over,
    };
    let candidate = !raw.candidate_of.is_absent();
    // A candidate may take its subject from the rule that it may replace.
    if !candidate {
        promised.check_zone(&per, problems);
    }
    let counting = limits::counting(&raw.algorithm, &raw.written(), "rule", start, problems)?;
    let terms = promised.terms(&counting, ledger, candidate, problems);
    Some(Allowance {
        budget: None,
        per,
        counting,
        placement: raw.placement.value().copied().unwrap_or_default(),
        terms,
    })
}

/// The allowance of a rule that draws on a budget.
pub(super) fn drawing(
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
        ("durability", raw.durability.key()),
        ("overdraft", raw.overdraft.key()),
    ];
    let of_budget = of_budget
        .into_iter()
        .find_map(|(name, key)| key.map(|key| (name, key)));
    if let Some((field, key)) = raw.written().first_key().or(of_budget) {
        problems.report(
            key,
            format!("`{field}` belongs to the budget"),
            format!("move it to `budgets: {{ {} }}`", Short(name)),
        );
    }
    if let Some(key) = raw.limit_from.key() {
        problems.report(
            key,
            "rules that share a budget share its numbers",
            "remove `limit_from`, or remove `budget` and give the rule its own numbers",
        );
    }
    let Some(budget) = budgets.iter().find(|budget| *budget.name == *name) else {
        let names = budgets.iter().map(|budget| &*budget.name);
        let help = match nearest(name, names) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "define it under `budgets`".to_owned(),
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
        terms: Terms {
            durability: match raw.candidate_of.is_absent() {
                true => budget.durability,
                false => Durability::None,
            },
            durable_by_default: raw.candidate_of.is_absent() && budget.durable_by_default,
            overdraft: budget.overdraft,
            carry_over: budget.carry_over,
        },
    })
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
            problems.report(
                from.place,
                "`limit_from` has no `ceiling`",
                "add the highest limit that the attribute may bring, such as `ceiling: 1000/s`",
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
        Algorithm::FixedWindow
        | Algorithm::SlidingLog
        | Algorithm::SlidingCounter
        | Algorithm::Quota
        | Algorithm::Concurrency => whole(text).map(Ceiling::Amount),
        _ => rate(text).map(Ceiling::Rate),
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
pub(super) fn backoff(at: &At<RawBackoff>, problems: &mut Problems<'_>) -> Option<Limit> {
    let raw = &at.value;
    let start = Place::new(at.place.start, at.place.start);
    if raw.base.is_absent() {
        let help = "add how long the first denial blocks, such as `base: 30s`";
        problems.report(start, "`backoff` has no `base`", help);
    }
    let fields = [&raw.max, &raw.forget, &raw.penalty];
    let broken = |field: &&Field<Duration>| matches!(field, Field::Broken { .. });
    let wholes = [&raw.after, &raw.factor];
    let broken_whole = |field: &&Field<Whole>| matches!(field, Field::Broken { .. });
    if fields.iter().any(broken) || wholes.iter().any(broken_whole) {
        return None;
    }
    let base = raw.base.value()?.0;
    let length = |field: &Field<Duration>| field.value().map(|it| it.0);
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
            let place = |field: &Field<Duration>| field.get().map(|it| it.place);
            let at = match error.field {
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
