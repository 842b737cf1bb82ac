//! Counts per rule, cheap enough for every check.
//!
//! Each thread counts in its own stripe: see `striped`.
//!
//! The counts of a rule belong to its id. The [`Metrics`] of one config and of the next config share
//! the counts. So a request that ends after a reload is still counted.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::RuleSet;
use tollgate_core::{Charge, Enforcement, Key, Outcome, Subject, Time};

use crate::candidates::{Candidates, Comparison};
use crate::decision::{Decision, Reason};
use crate::fair_counts::{FairCounts, FairRule};
use crate::hot_keys::HotKeys;
use crate::rule_outcome::{RuleOutcome, RuleVerdict};
use crate::striped::{STRIPES, Striped, stripe};
#[cfg(feature = "wait")]
use crate::waiting::WaitCounts;

/// The decisions of each rule and of ad-hoc limits so far.
pub struct Metrics {
    /// The counts of each rule, in the order of the file. Each thread has its own stripe of them.
    rules: Box<[Arc<[Cells; STRIPES]>]>,
    throttles: Arc<Throttles>,
    candidates: Candidates,
    fair: FairCounts,
    hot_keys: HotKeys,
    /// The waits under each rule that lets requests wait, in the order of the file.
    #[cfg(feature = "wait")]
    waits: Box<[Option<Arc<WaitCounts>>]>,
}

/// The decisions of ad-hoc limits: allowed, limited, failed. They do not belong to a config.
#[derive(Default)]
pub(crate) struct Throttles(Striped<3>);

/// A subject with many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// The index of the rule in the file.
    pub rule: usize,
    /// The hashed subject.
    pub subject: Subject,
    /// The approximate number of recent requests.
    pub requests: u64,
    /// The approximate number of recent requests of all subjects: of all rules, or of the rule that was asked for.
    pub of: u64,
}

/// The decisions of ad-hoc limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleCounts {
    /// Requests that were allowed.
    pub allowed: u64,
    /// Requests that were denied.
    pub limited: u64,
    /// Requests that were not decided because the store failed.
    pub failed: u64,
}

/// One rule's counts in one stripe, on separate cache lines.
#[repr(align(64))]
struct Cells {
    /// The least that was left since the last reading; [`NOTHING_SEEN`] if there was no decision.
    least: AtomicU64,
    allowed: AtomicU64,
    near_limit: AtomicU64,
    grace: AtomicU64,
    shadow_denied: AtomicU64,
    /// The number of denials by reason, in the order of [`Reason::ALL`].
    denied: [AtomicU64; Reason::ALL.len()],
}

/// The value before the first decision. Only [`Outcome::UNLIMITED`] is as large, and it is not counted.
const NOTHING_SEEN: u64 = u64::MAX;

impl Default for Cells {
    fn default() -> Cells {
        Cells {
            least: AtomicU64::new(NOTHING_SEEN),
            allowed: AtomicU64::new(0),
            near_limit: AtomicU64::new(0),
            grace: AtomicU64::new(0),
            shadow_denied: AtomicU64::new(0),
            denied: [const { AtomicU64::new(0) }; Reason::ALL.len()],
        }
    }
}

/// One rule's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Checks that this rule allowed.
    pub allowed: u64,
    /// Allowed checks that left less than a fifth of the limit.
    pub near_limit: u64,
    /// Allowed checks above the limit of a quota, within its grace.
    pub grace: u64,
    /// How many checks this shadow rule would have denied.
    pub shadow_denied: u64,
    /// How many checks this rule denied, by reason, in the order of [`Reason::ALL`].
    pub denied: [u64; Reason::ALL.len()],
}

impl Throttles {
    /// Counts a decision of an ad-hoc limit; `None` if the store failed.
    #[inline]
    pub(crate) fn count(&self, allowed: Option<bool>) {
        let place = match allowed {
            Some(true) => 0,
            Some(false) => 1,
            None => 2,
        };
        self.0.add(place, 1);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("rules", &self.counts())
            .field("throttles", &self.throttles())
            .finish_non_exhaustive()
    }
}

impl Metrics {
    /// Makes the metrics of rules without decisions.
    pub(crate) fn new(rules: &RuleSet, throttles: Arc<Throttles>) -> Metrics {
        Metrics {
            rules: rules.rules().iter().map(|_| Arc::default()).collect(),
            throttles,
            candidates: Candidates::new(rules, None),
            fair: FairCounts::new(rules, None),
            hot_keys: HotKeys::new(),
            #[cfg(feature = "wait")]
            waits: waits(rules, std::iter::repeat(None)),
        }
    }

    /// Makes the metrics of the next config. For each rule of `next`, `places` has the index of that rule
    /// in the current config, or `None` if the rule is new.
    pub(crate) fn followed_by(
        &self,
        next: &RuleSet,
        places: impl Iterator<Item = Option<usize>>,
    ) -> Metrics {
        let places: Vec<Option<usize>> = places.collect();
        #[cfg(feature = "wait")]
        let waits = {
            let before = places.iter().map(|place| self.waits((*place)?));
            waits(next, before)
        };
        let places = places.into_iter();
        let mut moved = vec![None; self.rules.len()];
        let rules = (0u32..).zip(places).map(|(now, before)| {
            let kept = before.and_then(|place| self.rules.get(place));
            if let Some(moved) = before.and_then(|place| moved.get_mut(place)) {
                *moved = Some(now);
            }
            kept.map_or_else(Arc::default, Arc::clone)
        });
        Metrics {
            rules: rules.collect(),
            throttles: Arc::clone(&self.throttles),
            candidates: Candidates::new(next, Some(&self.candidates)),
            fair: FairCounts::new(next, Some(&self.fair)),
            hot_keys: self.hot_keys.moved(&moved),
            #[cfg(feature = "wait")]
            waits,
        }
    }

    /// Returns the waits under the rule at this index; `None` if requests do not wait under it.
    #[cfg(feature = "wait")]
    #[must_use]
    pub fn waits(&self, rule: usize) -> Option<&Arc<WaitCounts>> {
        self.waits.get(rule)?.as_ref()
    }

    /// Returns the decisions of ad-hoc limits.
    #[must_use]
    pub fn throttles(&self) -> ThrottleCounts {
        let [allowed, limited, failed] = self.throttles.0.sums();
        ThrottleCounts {
            allowed,
            limited,
            failed,
        }
    }

    /// Counts what `charges` of fair rules got. `rules` has the rule of each charge.
    #[inline]
    pub(crate) fn count_fair(&self, charges: &[Charge<'_>], rules: &[u32], decision: &Decision) {
        self.fair.count(charges, rules, decision);
    }

    /// Counts the outcomes of a request of a tenant on `plan`.
    pub(crate) fn count(&self, outcomes: &[RuleOutcome], plan: Option<u16>) {
        self.hot_keys.sample(outcomes);
        self.candidates.count(outcomes, plan);
        let mine = stripe();
        for outcome in outcomes {
            let Some(rule) = self.rules.get(outcome.rule as usize) else {
                continue;
            };
            let cells = &rule[mine.index()];
            if let RuleVerdict::Decided(decided) = &outcome.verdict {
                let remaining = outcome.remaining();
                if remaining < cells.least.load(Ordering::Relaxed) {
                    cells.least.fetch_min(remaining, Ordering::Relaxed);
                }
                // The most common outcome, without the cases below.
                if decided.is_allowed()
                    && outcome.grace == 0
                    && remaining.saturating_mul(5) >= decided.limit
                {
                    mine.add(&cells.allowed, 1);
                    continue;
                }
            }
            let cell = match (outcome.reason(), outcome.enforcement) {
                (None, _) => {
                    if is_near_limit(outcome) {
                        mine.add(&cells.near_limit, 1);
                    }
                    if outcome.grace().is_some() {
                        mine.add(&cells.grace, 1);
                    }
                    &cells.allowed
                }
                (Some(_), Enforcement::Shadow | Enforcement::Instead(_)) => &cells.shadow_denied,
                // A block is not a rule, so no outcome of a rule has the reason `blocked`.
                (Some(reason), Enforcement::Enforce) => &cells.denied[reason as usize],
            };
            mine.add(cell, 1);
        }
    }

    /// Returns how candidates compare with the rules in force, by plan.
    #[must_use]
    pub fn comparisons(&self) -> Vec<Comparison> {
        self.candidates.comparisons()
    }

    /// Returns what fair rules gave to their clients, by lane and weight, as of `now`.
    #[must_use]
    pub fn fair(&self, now: Time) -> Vec<FairRule> {
        self.fair.figures(now)
    }

    /// Returns the counts of each rule, in the order of the file.
    #[must_use]
    pub fn counts(&self) -> Vec<RuleCounts> {
        let sum = |stripes: &Arc<[Cells; STRIPES]>| {
            let mut sum = RuleCounts::default();
            for cells in stripes.iter() {
                sum.allowed += cells.allowed.load(Ordering::Relaxed);
                sum.near_limit += cells.near_limit.load(Ordering::Relaxed);
                sum.grace += cells.grace.load(Ordering::Relaxed);
                sum.shadow_denied += cells.shadow_denied.load(Ordering::Relaxed);
                for (sum, cell) in sum.denied.iter_mut().zip(&cells.denied) {
                    *sum += cell.load(Ordering::Relaxed);
                }
            }
            sum
        };
        self.rules.iter().map(sum).collect()
    }

    /// Returns the least that each rule had left since the last call, in the order of the file. `None`
    /// for a rule without decisions since the last call, or without a limit.
    pub fn take_least_remaining(&self) -> Vec<Option<u64>> {
        let least = |stripes: &Arc<[Cells; STRIPES]>| {
            let stripes = stripes.iter();
            let least = stripes.map(|cells| cells.least.swap(NOTHING_SEEN, Ordering::Relaxed));
            least.min().filter(|least| *least != NOTHING_SEEN)
        };
        self.rules.iter().map(least).collect()
    }

    /// Returns the subjects with the most recent requests, the largest number first, at most `limit` of
    /// them. They are found by sampling: a subject with less than a percent of the requests may be
    /// missing. Rules without `per` have only one subject, and are left out.
    #[must_use]
    pub fn hot_keys(&self, rules: &RuleSet, limit: usize) -> Vec<HotKey> {
        hot_of(rules, self.hot_keys.most(), limit)
    }

    /// Returns the subjects with the most recent requests under the rule at this index, the largest number first,
    /// at most `limit` of them. A subject with less than 4 percent of the requests of the rule may be missing.
    #[must_use]
    pub fn hot_keys_of(&self, rules: &RuleSet, rule: usize, limit: usize) -> Vec<HotKey> {
        let all = u32::try_from(rule).map(|rule| self.hot_keys.most_of(rule));
        hot_of(rules, all.unwrap_or_default(), limit)
    }
}

fn hot_of(rules: &RuleSet, all: Vec<(u32, Key, u64)>, limit: usize) -> Vec<HotKey> {
    let of = all.iter().map(|(_, _, requests)| requests).sum();
    let hot = all.into_iter().filter_map(|(rule, key, requests)| {
        let place = rule as usize;
        let several = rules
            .rules()
            .get(place)
            .is_some_and(|it| !it.per().is_empty());
        several.then(|| HotKey {
            rule: place,
            subject: key.subject(rules.salt(rule)),
            requests,
            of,
        })
    });
    hot.take(limit).collect()
}

/// Returns the waits under each of `rules`. `before` has those under the same rules of the config before.
#[cfg(feature = "wait")]
fn waits<'m>(
    rules: &RuleSet,
    before: impl Iterator<Item = Option<&'m Arc<WaitCounts>>>,
) -> Box<[Option<Arc<WaitCounts>>]> {
    let rules = rules.rules().iter().zip(before);
    let waits = rules.map(|(rule, before)| match before {
        Some(before) => Some(Arc::clone(before)),
        None => rule.waiting().map(|_| Arc::default()),
    });
    waits.collect()
}

const _: () = assert!(Outcome::UNLIMITED == NOTHING_SEEN);

fn is_near_limit(outcome: &RuleOutcome) -> bool {
    match &outcome.verdict {
        RuleVerdict::Decided(_) => {
            let limit = outcome.limit();
            limit.is_some_and(|limit| outcome.remaining().saturating_mul(5) < limit)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Ask, Attributes, Limiter};

    const RULES: &str = "version: 1\nrules:\n\
        - { id: user, per: [user], algorithm: fixed-window, limit: 1000000, window: 10d }\n\
        - { id: all, algorithm: fixed-window, limit: 9000000, window: 10d }\n\
        - { id: open, algorithm: gcra, rate: unlimited }\n";

    fn limiter() -> Limiter {
        Limiter::from_yaml("rules.yaml", RULES).unwrap()
    }

    #[test]
    fn least_remaining_is_reset_by_reading() {
        let limiter = limiter();
        let ask = |user, units| {
            let decision =
                limiter.ask_now(&Attributes::from([("user", user)]), Ask::Exactly(units));
            assert!(decision.is_allowed());
        };
        let least = || limiter.metrics().take_least_remaining();
        assert_eq!(least(), [None, None, None]);
        ask("ann", 1000);
        ask("bob", 1);
        assert_eq!(least(), [Some(999_000), Some(8_998_999), None]);
        assert_eq!(least(), [None, None, None]);
        ask("bob", 1);
        assert_eq!(least(), [Some(999_998), Some(8_998_998), None]);
    }

    #[test]
    fn subject_with_the_most_requests_comes_first() {
        let limiter = limiter();
        for round in 0..20_000 {
            let one_of_many = format!("user{round}");
            let user = if round % 2 == 0 {
                "ann"
            } else {
                one_of_many.as_str()
            };
            let _ = limiter.check_now(&Attributes::from([("user", user)]));
        }
        let ann = limiter.peek_now(&Attributes::from([("user", "ann")]), Ask::Exactly(0));
        let hot = limiter.metrics().hot_keys(&limiter.rules(), 10);
        assert_eq!(hot.len(), 10);
        assert_eq!(hot[0].rule, 0);
        assert_eq!(Some(hot[0].subject), ann.rules().next().unwrap().subject());
        assert!((7_000..13_000).contains(&hot[0].requests), "{hot:?}");
        // The rule without `per` has one subject only.
        assert!(hot.iter().all(|it| it.rule == 0));
    }
}
