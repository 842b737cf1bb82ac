//! Checks an allowance, and the fields of a rule that must go with its algorithm.

use tollgate_core::{Algorithm, CarryOver};

use super::rule::names;
use crate::document::{Field, Place, Problems};
use crate::layers::is_by_tenant;
use crate::limits;
use crate::raw::{RawAlgorithm, RawAllowance, RawRule};
use crate::rule::{Cost, Durability, FailurePolicy, Rule};
use crate::share::Carried;
use crate::tiers::Allowance;
use crate::zone::ZoneFrom;

impl RawAllowance {
    /// The allowance of a rule or a budget, `what`, that starts at `start`. `ledger` says whether usage
    /// is recorded in one. A candidate is compared, not billed.
    pub(super) fn validate(
        &self,
        algorithm: &Field<RawAlgorithm>,
        (what, start): (&str, Place),
        ledger: bool,
        candidate: bool,
        problems: &mut Problems<'_>,
    ) -> Option<Allowance> {
        let per = names(self.per.value(), problems);
        // A candidate may take its subject from the rule that it may replace.
        if !candidate {
            self.check_zone(&per, problems);
        }
        let counting = limits::counting(algorithm, &self.written(), what, start, problems)?;
        let algorithm = counting.algorithm;
        let by_default = algorithm == RawAlgorithm::Quota && !candidate;
        let durability = match self.durability.get() {
            Some(at) => at.value,
            None if by_default && ledger => Durability::Async,
            None => Durability::None,
        };
        let ledgered = ledger && durability != Durability::None;
        self.check_terms(algorithm, ledger, ledgered, problems);
        Some(Allowance {
            per,
            counting,
            placement: self.placement.value().copied().unwrap_or_default(),
            carry_over: match self.carry_over.value() {
                Some(Carried::Counts(word)) => *word,
                Some(Carried::Most(_)) | None => CarryOver::Keep,
            },
            durability,
            durable_by_default: self.durability.is_absent() && by_default,
            overdraft: self.overdraft.value().copied(),
        })
    }

    /// Reports a durability, a carry-over and an overdraft that do not go with the algorithm or the ledger.
    fn check_terms(
        &self,
        algorithm: RawAlgorithm,
        ledger: bool,
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

/// Reports fields of a rule that do not go with its algorithm. `start` is where the rule starts.
pub(super) fn check_rule(raw: &RawRule, rule: &Rule, start: Place, problems: &mut Problems<'_>) {
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
