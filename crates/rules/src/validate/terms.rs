//! Checks the terms of an allowance beside its numbers: durability, overdraft, time zone, carry-over.

use tollgate_core::{Algorithm, CarryOver};

use crate::document::{Field, Place, Problems};
use crate::layers::is_by_tenant;
use crate::limits::Counting;
use crate::raw::{RawAlgorithm, RawRule};
use crate::rule::{Cost, Durability, FailurePolicy, Rule};
use crate::share::{Carried, Overdraft};
use crate::zone::ZoneFrom;

/// The fields of a rule or a budget that set these terms.
pub(super) struct Promised<'f> {
    pub(super) durability: &'f Field<Durability>,
    pub(super) overdraft: &'f Field<Overdraft>,
    pub(super) timezone: &'f Field<ZoneFrom>,
    pub(super) carry_over: &'f Field<Carried>,
}

/// The terms of an allowance beside its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) durability: Durability,
    /// Whether `durability` is left out, so that it would be `async` with a ledger.
    pub(super) durable_by_default: bool,
    pub(super) overdraft: Option<Overdraft>,
    pub(super) carry_over: CarryOver,
}

impl Promised<'_> {
    /// The terms. `ledger` says whether usage is recorded in one. A candidate is compared, not billed.
    pub(super) fn terms(
        &self,
        counting: &Counting,
        ledger: bool,
        candidate: bool,
        problems: &mut Problems<'_>,
    ) -> Terms {
        let algorithm = counting.algorithm;
        let durability = self.durability(algorithm, ledger, candidate, problems);
        let is_ledgered = ledger && durability != Durability::None;
        let carry_over = match self.carry_over.get() {
            Some(at) => match at.value {
                Carried::Most(_) => CarryOver::Keep,
                Carried::Counts(word) => {
                    if algorithm == RawAlgorithm::Concurrency && word != CarryOver::Keep {
                        problems.report(
                            at.place,
                            format!("slots cannot be carried over as `{}`", word.name()),
                            "remove `carry_over`: held slots stay held until they are released",
                        );
                    } else if is_ledgered && word != CarryOver::Keep {
                        problems.report(
                            at.place,
                            format!(
                                "`{}` would change usage without an entry in the ledger",
                                word.name()
                            ),
                            "remove `carry_over`, and correct usage with `tollgate correct` or a reset; or \
                             write `durability: none`",
                        );
                    }
                    word
                }
            },
            None => CarryOver::Keep,
        };
        Terms {
            durability,
            durable_by_default: self.durability.is_absent()
                && algorithm == RawAlgorithm::Quota
                && !candidate,
            overdraft: self.overdraft(algorithm, problems),
            carry_over,
        }
    }

    fn durability(
        &self,
        algorithm: RawAlgorithm,
        ledger: bool,
        candidate: bool,
        problems: &mut Problems<'_>,
    ) -> Durability {
        let quota = algorithm == RawAlgorithm::Quota;
        let Some(at) = self.durability.get() else {
            return match quota && ledger && !candidate {
                true => Durability::Async,
                false => Durability::None,
            };
        };
        if !quota {
            problems.report(
                at.place,
                format!(
                    "only quotas are recorded in a ledger, and this is {}",
                    algorithm.name()
                ),
                "write `algorithm: quota`, or remove `durability`",
            );
        } else if !ledger && at.value != Durability::None {
            problems.report(
                at.place,
                format!("`{}` needs a ledger", at.value.name()),
                "add `ledger: { sqlite: ./tollgate.db }` to the config, or write `none`",
            );
        }
        at.value
    }

    fn overdraft(&self, algorithm: RawAlgorithm, problems: &mut Problems<'_>) -> Option<Overdraft> {
        let at = self.overdraft.get()?;
        if algorithm == RawAlgorithm::Concurrency {
            problems.report(
                at.place,
                "slots have no overdraft",
                "remove `overdraft`: a slot is held or not, and has no amount",
            );
        }
        Some(at.value)
    }

    /// Reports `timezone: tenant` if tenants share the allowance.
    pub(super) fn check_zone(&self, per: &[String], problems: &mut Problems<'_>) {
        check_zone(self.timezone, per, problems);
    }
}

/// Reports `timezone: tenant` if tenants share the allowance.
pub(super) fn check_zone(timezone: &Field<ZoneFrom>, per: &[String], problems: &mut Problems<'_>) {
    if let Some(at) = timezone.get()
        && at.value == ZoneFrom::Tenant
        && !is_by_tenant(per)
    {
        problems.report(
            at.place,
            "tenants share this allowance, so it has one time zone",
            "name the zone, such as UTC, or add `tenant` to `per`",
        );
    }
}

/// Reports fields of a rule that do not go with its algorithm. `start` is where the rule starts.
pub(super) fn check_rule(raw: &RawRule, rule: &Rule, start: Place, problems: &mut Problems<'_>) {
    match rule.algorithm() {
        Algorithm::Concurrency => check_slots(raw, rule, start, problems),
        Algorithm::Quota => {
            if let Some(at) = raw.charge_denied.get()
                && at.value.0
            {
                problems.report(
                    at.place,
                    "a denied request uses nothing, so a quota cannot charge it",
                    "remove `charge_denied`; to slow down clients that retry, add a rule with a rate",
                );
            }
        }
        _ => {}
    }
}

fn check_slots(raw: &RawRule, rule: &Rule, start: Place, problems: &mut Problems<'_>) {
    if !matches!(rule.cost, Cost::Fixed(1)) {
        let place = raw.cost.get().map_or(start, |at| at.place);
        problems.report(
            place,
            "every request holds one slot, so a `cost` has no effect",
            "remove `cost`, or write 1; a rule with a rate or a quota can weigh requests",
        );
    }
    if let Some(at) = raw.charge_denied.get()
        && at.value.0
    {
        let help = "remove `charge_denied`";
        problems.report(
            at.place,
            "a denied request holds no slot, so it cannot be charged",
            help,
        );
    }
    if let Some(key) = raw.backoff.key() {
        problems.report(
            key,
            "slots have no back-off: one may be released at any moment",
            "remove `backoff`, or put it on a rule with a rate",
        );
    }
    if let Some(key) = raw.candidate_of.key() {
        problems.report(
            key,
            "a candidate holds no slots, so it cannot be compared",
            "write `state: shadow` to try a concurrency limit without effect",
        );
    }
    if let Some(at) = raw.on_store_failure.get() {
        let why = match at.value {
            FailurePolicy::FailOpen | FailurePolicy::FailClosed | FailurePolicy::Degraded => return,
            FailurePolicy::LocalFallback | FailurePolicy::Cached => {
                "one instance does not know the slots of the others"
            }
            FailurePolicy::EmergencyLimit => "a rate does not limit how many run at the same time",
        };
        problems.report(
            at.place,
            format!("`{}` cannot be used for slots: {why}", at.value.name()),
            "write `fail-open`, `fail-closed` or `degraded`",
        );
    }
}
