//! Checks allowances: their subjects, their algorithms, their terms, and the sources of their numbers.

use std::sync::Arc;

use tollgate_core::backoff::Schedule;
use tollgate_core::{Algorithm, CarryOver, Leaky, Limit, Span};

use super::Outside;
use super::rule::{check_attribute, names};
use crate::document::{
    At, Duration, Field, Place, Problems, Short, Text, Whole, rate, suggestion, whole,
};
use crate::layers::is_by_tenant;
use crate::limits;
use crate::placement::Placement;
use crate::raw::{RawAlgorithm, RawAllowance, RawBackoff, RawRule};
use crate::rule::{Ceiling, DEFAULT_STORE, Durability, LOCAL_STORE, LimitFrom, RuleStore};
use crate::share::Carried;
use crate::tiers::{Allowance, Budget};
use crate::zone::ZoneFrom;

/// Returns the allowance of a rule without a budget.
pub(super) fn own(
    raw: &RawRule,
    start: Place,
    outside: Outside<'_>,
    problems: &mut Problems<'_>,
) -> Option<Allowance> {
    if raw.algorithm.is_absent() && raw.budget.is_absent() {
        let help = "write one, such as `algorithm: gcra` with a `rate`";
        problems.report(start, "this rule has no `algorithm`", help);
    }
    let candidate = !raw.candidate_of.is_absent();
    let of = ("rule", start);
    raw.allowance
        .validate(&raw.algorithm, of, outside, candidate, problems)
}

impl RawAllowance {
    /// Returns the allowance of `what`, a rule or a budget that starts at `start`. The usage of a candidate
    /// is not recorded.
    pub(super) fn validate(
        &self,
        algorithm: &Field<RawAlgorithm>,
        (what, start): (&str, Place),
        outside: Outside<'_>,
        candidate: bool,
        problems: &mut Problems<'_>,
    ) -> Option<Allowance> {
        let per = names(self.per.value(), problems);
        let store = self.store(outside, problems);
        // A ledger does not record what only this instance counts.
        let ledger = outside.ledger && store != RuleStore::Local;
        // The subject of a candidate may come from the rule that it may replace, so it is not known
        // here.
        if !candidate {
            self.check_zone(&per, problems);
        }
        let mut counting = limits::counting(algorithm, &self.written(), what, start, problems)?;
        counting.modes = self.modes(&counting.limit, problems);
        let algorithm = counting.algorithm;
        let by_default = algorithm == RawAlgorithm::Quota && !candidate;
        let durability = match self.durability.get() {
            Some(at) => at.value,
            None if by_default && ledger => Durability::Async,
            None => Durability::None,
        };
        let ledgered = ledger && durability != Durability::None;
        self.check_terms(
            algorithm,
            (ledger, store == RuleStore::Local),
            ledgered,
            problems,
        );
        self.check_shards(&counting.limit, ledgered, problems);
        if let (Some(at), Limit::Concurrency(slots)) = (self.max_lease.get(), &counting.limit)
            && at.value.0 < slots.lease()
        {
            let (most, lease) = (at.value, slots.lease());
            let message = format!("{most} is shorter than the lease of {lease}");
            let help = "write a `max_lease` that is at least the `lease`, or remove it";
            problems.report(at.place, message, help);
        }
        Some(Allowance {
            per,
            counting,
            placement: self.placement.value().copied().unwrap_or_default(),
            durable_by_default: self.durability.is_absent()
                && by_default
                && store != RuleStore::Local,
            store,
            carry_over: match self.carry_over.value() {
                Some(Carried::Counts(word)) => *word,
                Some(Carried::Most(_)) | None => CarryOver::Keep,
            },
            durability,
            overdraft: self.overdraft.value().copied(),
            max_lease: self.max_lease.value().map(|it| it.0),
            adaptive: self.adaptive.value().and_then(|it| it.0),
        })
    }

    /// Reports a sharded placement of an allowance that cannot be split.
    fn check_shards(&self, limit: &Limit, ledgered: bool, problems: &mut Problems<'_>) {
        let Some(at) = self.placement.get() else {
            return;
        };
        let Placement::Sharded(_) = at.value else {
            return;
        };
        let (why, help) = match limit {
            Limit::Concurrency(_) => (
                "slots cannot be split over several keys",
                "choose another `placement`",
            ),
            Limit::LeakyBucket(it) if it.leaky() != Leaky::Police => (
                "a queue cannot be split over several keys",
                "choose another `placement`, or remove `shape`",
            ),
            Limit::Fair(_) => (
                "a bucket with fair shares cannot be split over several keys",
                "choose another `placement`, or remove `fair`",
            ),
            _ if ledgered => (
                "a count that a ledger restores cannot be split over several keys",
                "choose another `placement`, or write `durability: none`",
            ),
            _ => return,
        };
        problems.report(at.place, why, help);
    }

    /// Returns the store that the allowance names.
    fn store(&self, outside: Outside<'_>, problems: &mut Problems<'_>) -> RuleStore {
        let Some(at) = self.store.get() else {
            return RuleStore::Default;
        };
        match at.value.0.as_str() {
            DEFAULT_STORE => RuleStore::Default,
            LOCAL_STORE => RuleStore::Local,
            name => match outside.stores.iter().find(|it| ***it == *name) {
                Some(known) => RuleStore::Named(Arc::clone(known)),
                None => {
                    let known = outside.stores.iter().map(|it| &**it);
                    let known = known.chain([LOCAL_STORE, DEFAULT_STORE]);
                    let help = "define it under `stores`, or write `local` for the memory of this instance";
                    let help = suggestion(name, known, help);
                    let message = format!("there is no store `{}`", Short(name));
                    problems.report(at.place, message, help);
                    RuleStore::Default
                }
            },
        }
    }

    /// Reports a durability, carry-over or overdraft that does not fit the algorithm or the ledger.
    fn check_terms(
        &self,
        algorithm: RawAlgorithm,
        (ledger, local): (bool, bool),
        ledgered: bool,
        problems: &mut Problems<'_>,
    ) {
        let name = algorithm.name();
        let slots = algorithm == RawAlgorithm::Concurrency;
        if let Some(at) = self.durability.get() {
            if algorithm != RawAlgorithm::Quota {
                let message = format!("only quotas are recorded in a ledger, and this is {name}");
                let help = "write `algorithm: quota`, or remove `durability`";
                problems.report(at.place, message, help);
            } else if local && at.value != Durability::None {
                let message = "a ledger does not record a quota that only this instance counts";
                let help = "remove `store: local`, or write `durability: none`";
                problems.report(at.place, message, help);
            } else if !ledger && at.value != Durability::None {
                let message = format!("`{}` needs a ledger", at.value.name());
                let help = "add `ledger: { sqlite: ./tollgate.db }` to the config, or write `none`";
                problems.report(at.place, message, help);
            }
        }
        if let Some(at) = self.carry_over.get()
            && let Carried::Counts(word @ (CarryOver::Proportional | CarryOver::Reset)) = at.value
        {
            let word = word.name();
            if slots {
                let message = format!("slots cannot be carried over as `{word}`");
                let help = "remove `carry_over`: held slots stay held until they are released";
                problems.report(at.place, message, help);
            } else if ledgered {
                let message = format!("`{word}` would change usage without an entry in the ledger");
                let help = "remove `carry_over`, and correct usage with `tollgate correct` or a reset; \
                            or write `durability: none`";
                problems.report(at.place, message, help);
            }
        }
        if let (Some(key), false) = (self.max_lease.key(), slots) {
            let message = format!("`max_lease` is for concurrency, and this is {name}");
            let help = "write `algorithm: concurrency`, or remove `max_lease`";
            problems.report(key, message, help);
        }
        if let (Some(key), false) = (self.adaptive.key(), slots) {
            let message = format!("`adaptive` is for concurrency, and this is {name}");
            let help = "write `algorithm: concurrency`, or remove `adaptive`";
            problems.report(key, message, help);
        }
        if let (Some(at), true) = (self.overdraft.get(), slots) {
            let help = "remove `overdraft`: a slot is held or not, and has no amount";
            problems.report(at.place, "slots have no overdraft", help);
        }
    }

    /// Reports `timezone: tenant` if tenants share the allowance.
    pub(super) fn check_zone(&self, per: &[String], problems: &mut Problems<'_>) {
        if let Some(at) = self.timezone.get()
            && at.value == ZoneFrom::Tenant
            && !is_by_tenant(per)
        {
            let message = "tenants share this allowance, so it has one time zone";
            let help = "name the zone, such as UTC, or add `tenant` to `per`";
            problems.report(at.place, message, help);
        }
    }
}

/// Returns the allowance of a rule that draws on a budget.
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
        ("store", given.store.key()),
        ("carry_over", given.carry_over.key()),
        ("durability", given.durability.key()),
        ("overdraft", given.overdraft.key()),
        ("max_lease", given.max_lease.key()),
        ("adaptive", given.adaptive.key()),
        ("mode", given.mode.key()),
        ("slice", given.slice.key()),
        ("flush", given.flush.key()),
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

/// Returns the attribute that brings the limit, with its ceiling. Reports a rule that has only one of
/// the two.
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
    let attribute = attribute_of(from, "rate_limit", problems)?;
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
    Some(Some(LimitFrom { attribute, ceiling }))
}

/// Returns the attribute that a text such as `attributes.rate_limit` names, or reports that it names none.
/// `example` is the name of such an attribute.
pub(super) fn attribute_of(
    from: &At<Text>,
    example: &str,
    problems: &mut Problems<'_>,
) -> Option<String> {
    let given = from.value.0.as_str();
    // A claim of a token becomes an attribute of the same name.
    let claim = Some(given).filter(|it| it.starts_with("jwt.claims."));
    let Some(attribute) = given.strip_prefix("attributes.").or(claim) else {
        let message = format!("`{}` does not name an attribute", Short(given));
        let help = format!(
            "write attributes. and the name, such as attributes.{example}, or jwt.claims. and the claim of a token"
        );
        problems.report(from.place, message, help);
        return None;
    };
    check_attribute(attribute, from.place, problems);
    Some(attribute.to_owned())
}

/// Returns the back-off of a rule. `None` if it is wrong; the problem was reported.
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
