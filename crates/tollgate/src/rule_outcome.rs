//! The outcome of one rule in a decision: from the store, from the rule itself, or from a failure policy.

use tollgate_config::{FailurePolicy, RuleDenial, RuleDenialReason};
use tollgate_core::quota::Quota;
use tollgate_core::{Admission, Charge, Denial, Enforcement, Key, OnDenied, Outcome, Span, Time};

use smallvec::SmallVec;

use crate::decision::{Grace, Reason, bounded};
use crate::fallback::RETRY_AFTER;

/// The outcomes of the rules of a request, in the order of their charges.
pub(crate) type RuleOutcomes = SmallVec<[RuleOutcome; 4]>;

/// The outcome of one rule in a decision.
#[derive(Clone, Copy)]
pub(crate) struct RuleOutcome {
    pub(crate) rule: u32,
    /// `None` if the rule denied the request before it had a key.
    pub(crate) key: Option<KeyHalves>,
    pub(crate) enforcement: Enforcement,
    /// The policy that decided instead of the store.
    pub(crate) fallback: Option<FailurePolicy>,
    /// How long an empty allowance takes to refill. For a quota, the length of its period. Zero if the
    /// rule denied the request without a charge.
    pub(crate) window: Span,
    /// The grace of a quota. The limit that the store reports includes it.
    pub(crate) grace: u64,
    pub(crate) source: Source,
    pub(crate) verdict: RuleVerdict,
}

/// Whether an outcome comes from a rule or from its back-off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The rule.
    Rule,
    /// The back-off of the previous rule. [`RuleOutcome::add_backoff`] adds it to that rule.
    Backoff,
    /// The rule together with its back-off, if only the back-off denies.
    BackedOff,
}

/// A key as two words. An `Option<Key>` would be twice as large.
#[derive(Clone, Copy)]
pub(crate) struct KeyHalves(u64, u64);

impl From<Key> for KeyHalves {
    #[allow(clippy::cast_possible_truncation)] // The key is cut in two halves.
    fn from(key: Key) -> KeyHalves {
        KeyHalves((key.bits() >> 64) as u64, key.bits() as u64)
    }
}

impl From<KeyHalves> for Key {
    fn from(halves: KeyHalves) -> Key {
        Key::from_bits(u128::from(halves.0) << 64 | u128::from(halves.1))
    }
}

/// How a rule has decided.
#[derive(Clone, Copy)]
pub(crate) enum RuleVerdict {
    /// The store has decided.
    Decided(Outcome),
    /// The rule denied the request before the store was asked.
    Denied(RuleDenialReason),
    /// The store failed, and the rule allows without counting. The value is the limit that was not
    /// checked.
    Assumed(u64),
    /// The store failed, and the rule denies. The values are the retry time, and the limit that was not
    /// checked.
    StoreFailed(Time, u64),
}

impl Source {
    #[inline]
    pub(crate) fn of(charge: &Charge<'_>) -> Source {
        match charge.on_denied {
            OnDenied::Strike(_) => Source::Backoff,
            _ => Source::Rule,
        }
    }
}

impl RuleOutcome {
    /// Adds the outcome of the rule's back-off. The longer wait of the two applies.
    #[cold]
    pub(crate) fn add_backoff(&mut self, backoff: &RuleOutcome) {
        let (RuleVerdict::Decided(own), RuleVerdict::Decided(block)) =
            (&mut self.verdict, &backoff.verdict)
        else {
            return;
        };
        let Admission::Denied(Denial::Until(until)) = block.admission else {
            return;
        };
        own.admission = match own.admission {
            Admission::Denied(Denial::Until(at)) => Admission::Denied(Denial::Until(at.max(until))),
            Admission::Denied(Denial::QueueFull(at)) => {
                Admission::Denied(Denial::QueueFull(at.max(until)))
            }
            denied @ Admission::Denied(Denial::Never | Denial::Unrestored | Denial::Undecided) => {
                denied
            }
            Admission::Allowed { .. } => {
                self.source = Source::BackedOff;
                Admission::Denied(Denial::Until(until))
            }
        };
        own.reset_at = own.reset_at.max(until);
    }

    /// Denies the request until `at` or longer, because others wait before it; with `is_full` because too many
    /// wait.
    #[cfg(feature = "wait")]
    #[cold]
    pub(crate) fn keep_out(&mut self, at: Time, is_full: bool) {
        if let RuleVerdict::Decided(outcome) = &mut self.verdict {
            let retry = match outcome.admission {
                Admission::Denied(Denial::Until(retry)) => retry.max(at),
                // The units that are left belong to the requests that wait.
                Admission::Allowed { .. } => {
                    outcome.remaining = 0;
                    at
                }
                Admission::Denied(_) => return,
            };
            outcome.admission = Admission::Denied(match is_full {
                true => Denial::QueueFull(retry),
                false => Denial::Until(retry),
            });
            outcome.reset_at = outcome.reset_at.max(retry);
        }
    }

    /// Makes the outcome of a charge of the rule at index `rule`. For a quota, call
    /// [`apply_period`](Self::apply_period) afterwards.
    #[inline]
    pub(crate) fn of(charge: &Charge<'_>, rule: u32, outcome: Outcome) -> RuleOutcome {
        RuleOutcome {
            rule,
            key: Some(charge.key.into()),
            enforcement: charge.enforcement,
            fallback: None,
            window: charge.limit.window(),
            grace: 0,
            source: Source::of(charge),
            verdict: RuleVerdict::Decided(outcome),
        }
    }

    /// Sets the window of a quota to its current period. The whole quota is back when the period ends.
    /// A count that is not restored counts as a failure of the store.
    pub(crate) fn apply_period(&mut self, quota: &Quota, now: Time) {
        let period = quota.period_at(now);
        self.window = period.end.since(period.start);
        self.grace = quota.grace();
        let RuleVerdict::Decided(outcome) = &mut self.verdict else {
            return;
        };
        if outcome.admission == Admission::Denied(Denial::Unrestored) {
            self.verdict = match self.enforcement {
                Enforcement::Enforce => RuleVerdict::StoreFailed(now + RETRY_AFTER, quota.limit()),
                Enforcement::Shadow | Enforcement::Instead(_) => {
                    RuleVerdict::Assumed(quota.limit())
                }
            };
        } else if outcome.reset_at <= now {
            outcome.reset_at = period.end;
        }
    }

    /// Returns the grace of a quota whose usage is above its limit.
    pub(crate) fn grace(&self) -> Option<Grace> {
        match &self.verdict {
            RuleVerdict::Decided(outcome) if outcome.remaining < self.grace => Some(Grace {
                of: self.grace,
                left: outcome.remaining,
            }),
            _ => None,
        }
    }

    /// Returns the limit that callers see, without grace.
    pub(crate) fn limit(&self) -> Option<u64> {
        match &self.verdict {
            RuleVerdict::Decided(outcome) => {
                bounded(outcome.limit).map(|it| it.saturating_sub(self.grace))
            }
            RuleVerdict::Assumed(limit) | RuleVerdict::StoreFailed(_, limit) => bounded(*limit),
            RuleVerdict::Denied(_) => None,
        }
    }

    pub(crate) fn denied(denial: &RuleDenial) -> RuleOutcome {
        let enforcement = if denial.shadow {
            Enforcement::Shadow
        } else {
            Enforcement::Enforce
        };
        let verdict = RuleVerdict::Denied(denial.reason);
        RuleOutcome {
            rule: denial.rule,
            key: None,
            enforcement,
            fallback: None,
            window: Span::ZERO,
            grace: 0,
            source: Source::Rule,
            verdict,
        }
    }

    pub(crate) fn enforces(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// Returns whether the store or the rule itself has decided, not a failure policy.
    pub(crate) fn is_counted(&self) -> bool {
        let stood_in = matches!(
            self.verdict,
            RuleVerdict::Assumed(_) | RuleVerdict::StoreFailed(..)
        );
        self.fallback.is_none() && !stood_in
    }

    pub(crate) fn is_allowed(&self) -> bool {
        match &self.verdict {
            RuleVerdict::Decided(outcome) => outcome.is_allowed(),
            RuleVerdict::Assumed(_) => true,
            RuleVerdict::Denied(_) | RuleVerdict::StoreFailed(..) => false,
        }
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        match &self.verdict {
            RuleVerdict::Denied(RuleDenialReason::MissingAttribute) => {
                Some(Reason::MissingAttribute)
            }
            RuleVerdict::Denied(RuleDenialReason::BadExpression) => Some(Reason::BadExpression),
            RuleVerdict::Assumed(_) => None,
            RuleVerdict::StoreFailed(..) => Some(match self.fallback {
                Some(_) => Reason::StoreFailed,
                None => Reason::StoreUnavailable,
            }),
            RuleVerdict::Decided(_) if self.source == Source::BackedOff => Some(Reason::BackedOff),
            RuleVerdict::Decided(outcome) => reason_of(outcome),
        }
    }

    pub(crate) fn retry_at(&self) -> Option<Time> {
        match &self.verdict {
            RuleVerdict::Decided(outcome) => match outcome.admission {
                Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => Some(at),
                _ => None,
            },
            RuleVerdict::StoreFailed(at, _) => Some(*at),
            RuleVerdict::Denied(_) | RuleVerdict::Assumed(_) => None,
        }
    }

    #[inline]
    pub(crate) fn remaining(&self) -> u64 {
        // The common case first, without a jump by table.
        if let RuleVerdict::Decided(outcome) = &self.verdict {
            return outcome.remaining.saturating_sub(self.grace);
        }
        match &self.verdict {
            RuleVerdict::Assumed(_) => Outcome::UNLIMITED,
            _ => 0,
        }
    }
}

/// Returns why a limit denies, if it does.
pub(crate) fn reason_of(outcome: &Outcome) -> Option<Reason> {
    match outcome.admission {
        Admission::Allowed { .. } => None,
        Admission::Denied(Denial::Until(_)) => Some(Reason::Exceeded),
        Admission::Denied(Denial::QueueFull(_)) => Some(Reason::QueueFull),
        Admission::Denied(Denial::Never) => Some(Reason::NeverFits),
        // There is no ledger to restore the count from, or the ledger failed.
        Admission::Denied(Denial::Unrestored | Denial::Undecided) => Some(Reason::StoreUnavailable),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Anchor, Calendar, Limit, Unit, Zone};

    use super::*;

    /// The 14th of November 2023.
    const NOW: Time = Time::from_micros(1_700_000_000_000_000);
    const DECEMBER: Time = Time::from_micros(1_701_388_800_000_000);

    fn outcome(
        enforcement: Enforcement,
        admission: Admission,
        remaining: u64,
        reset: Time,
    ) -> RuleOutcome {
        let months = Calendar::new(1, Unit::Month, Anchor::First, Zone::utc()).unwrap();
        let limit = Limit::quota(10, 3, 0, months).unwrap();
        let charge = Charge {
            rule: "monthly",
            enforcement,
            recorded: Some(tollgate_core::Recorded::default()),
            ..Charge::new(Key::from_bits(1), &limit)
        };
        let outcome = Outcome {
            admission,
            limit: 13,
            remaining,
            reset_at: reset,
        };
        let mut decided = RuleOutcome::of(&charge, 0, outcome);
        let Limit::Quota(quota) = &limit else {
            panic!("the limit is a quota");
        };
        decided.apply_period(quota, NOW);
        decided
    }

    fn allowed(remaining: u64) -> RuleOutcome {
        let at_once = Admission::Allowed { delay: Span::ZERO };
        outcome(Enforcement::Enforce, at_once, remaining, DECEMBER)
    }

    #[test]
    fn limit_excludes_grace_and_grace_is_reported_while_in_use() {
        let numbers = |it: RuleOutcome| (it.limit(), it.remaining(), it.grace());
        assert_eq!(numbers(allowed(12)), (Some(10), 9, None));
        assert_eq!(numbers(allowed(3)), (Some(10), 0, None));
        let grace = |left| Some(Grace { of: 3, left });
        assert_eq!(numbers(allowed(2)), (Some(10), 0, grace(2)));
        assert_eq!(numbers(allowed(0)), (Some(10), 0, grace(0)));
        // An amount that was carried over adds to the limit.
        assert_eq!(numbers(allowed(17)), (Some(10), 14, None));
    }

    #[test]
    fn window_of_a_quota_is_its_period() {
        let unused = outcome(
            Enforcement::Enforce,
            Admission::Allowed { delay: Span::ZERO },
            13,
            NOW,
        );
        for it in [allowed(4), unused] {
            assert_eq!(it.window, Span::from_secs(30 * 86_400));
            let RuleVerdict::Decided(outcome) = it.verdict else {
                panic!("it was decided");
            };
            assert_eq!(outcome.reset_at, DECEMBER);
        }
    }

    #[test]
    fn unrestored_count_is_a_store_failure() {
        let unrestored = Admission::Denied(Denial::Unrestored);
        let it = outcome(Enforcement::Enforce, unrestored, 0, NOW);
        assert_eq!(it.reason(), Some(Reason::StoreUnavailable));
        assert_eq!(it.retry_at(), Some(NOW + RETRY_AFTER));
        assert_eq!((it.limit(), it.grace()), (Some(10), None));
        // If the count is not restored, a shadow rule allows the request.
        for enforcement in [Enforcement::Shadow, Enforcement::Instead(0)] {
            assert_eq!(outcome(enforcement, unrestored, 0, NOW).reason(), None);
        }
    }
}
