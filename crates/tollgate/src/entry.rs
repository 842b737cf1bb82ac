//! One rule's part in a decision.

use tollgate_config::{FailurePolicy, RuleDenial, RuleDenialReason};
use tollgate_core::quota::Quota;
use tollgate_core::{
    Admission, Charge, Denial, Enforcement, Key, Limit, OnDenied, Outcome, Span, Time,
};

use smallvec::SmallVec;

use crate::decision::{Grace, Reason, bounded};
use crate::fallback::RETRY_AFTER;

/// The rules' parts in a decision, in the order of their charges.
pub(crate) type Entries = SmallVec<[Entry; 4]>;

/// One rule's part in a decision.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) rule: u32,
    /// None if the rule refused before there was one.
    pub(crate) key: Option<KeyHalves>,
    pub(crate) enforcement: Enforcement,
    /// The policy that decided instead of the store.
    pub(crate) fallback: Option<FailurePolicy>,
    /// The time in which the allowance comes back, of a quota its period; zero if the rule refused before
    /// there was one.
    pub(crate) window: Span,
    /// How much of the limit that the store reports is a quota's grace.
    pub(crate) grace: u64,
    pub(crate) part: Part,
    pub(crate) verdict: RuleVerdict,
}

/// Which part of a rule has spoken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The rule.
    Whole,
    /// Its back-off, which is heard with the rule.
    Backoff,
    /// Both, and the back-off alone refuses.
    BackedOff,
}

/// A key in two words: an `Option<Key>` would be twice as large.
#[derive(Clone, Copy)]
pub(crate) struct KeyHalves(u64, u64);

impl From<Key> for KeyHalves {
    #[allow(clippy::cast_possible_truncation)] // Cutting it in two is the point.
    fn from(key: Key) -> KeyHalves {
        KeyHalves((key.bits() >> 64) as u64, key.bits() as u64)
    }
}

impl From<KeyHalves> for Key {
    fn from(halves: KeyHalves) -> Key {
        Key::from_bits(u128::from(halves.0) << 64 | u128::from(halves.1))
    }
}

#[derive(Clone, Copy)]
pub(crate) enum RuleVerdict {
    /// The store has decided.
    Decided(Outcome),
    /// The rule refused before the store was asked.
    Denied(RuleDenialReason),
    /// The store failed, and the rule allows without counting. The limit that would have decided.
    Assumed(u64),
    /// The store failed, and the rule refuses. When to try again, and the limit that would have decided.
    StoreFailed(Time, u64),
}

impl Part {
    #[inline]
    pub(crate) fn of(charge: &Charge<'_>) -> Part {
        match charge.on_denied {
            OnDenied::Strike(_) => Part::Backoff,
            _ => Part::Whole,
        }
    }
}

impl Entry {
    /// Adds what the rule's back-off says. Whoever waits, waits for both.
    #[cold]
    pub(crate) fn hear(&mut self, backoff: &Entry) {
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
            refused @ Admission::Denied(Denial::Never | Denial::Unrestored) => refused,
            Admission::Allowed { .. } => {
                self.part = Part::BackedOff;
                Admission::Denied(Denial::Until(until))
            }
        };
        own.reset_at = own.reset_at.max(until);
    }

    /// What the store said at `now` to `charge` of the rule at `rule`.
    #[inline]
    pub(crate) fn of(charge: &Charge<'_>, rule: u32, outcome: Outcome, now: Time) -> Entry {
        let mut entry = Entry {
            rule,
            key: Some(charge.key.into()),
            enforcement: charge.enforcement,
            fallback: None,
            window: charge.limit.window(),
            grace: 0,
            part: Part::of(charge),
            verdict: RuleVerdict::Decided(outcome),
        };
        if let Limit::Quota(quota) = charge.limit {
            entry.of_quota(quota, now);
        }
        entry
    }

    /// A quota has the period in force for a window, and is whole again at its end. One that was not
    /// restored has decided nothing.
    pub(crate) fn of_quota(&mut self, quota: &Quota, now: Time) {
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

    /// What is left of a quota's grace, and of how much, if that is in use.
    pub(crate) fn grace(&self) -> Option<Grace> {
        match &self.verdict {
            RuleVerdict::Decided(outcome) if outcome.remaining < self.grace => Some(Grace {
                of: self.grace,
                left: outcome.remaining,
            }),
            _ => None,
        }
    }

    /// The limit that is reported: without grace.
    pub(crate) fn limit(&self) -> Option<u64> {
        match &self.verdict {
            RuleVerdict::Decided(outcome) => {
                bounded(outcome.limit).map(|it| it.saturating_sub(self.grace))
            }
            RuleVerdict::Assumed(limit) | RuleVerdict::StoreFailed(_, limit) => bounded(*limit),
            RuleVerdict::Denied(_) => None,
        }
    }

    pub(crate) fn denied(refusal: &RuleDenial) -> Entry {
        let enforcement = if refusal.shadow {
            Enforcement::Shadow
        } else {
            Enforcement::Enforce
        };
        let verdict = RuleVerdict::Denied(refusal.reason);
        Entry {
            rule: refusal.rule,
            key: None,
            enforcement,
            fallback: None,
            window: Span::ZERO,
            grace: 0,
            part: Part::Whole,
            verdict,
        }
    }

    pub(crate) fn enforces(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// Whether the store has decided, or the rule itself.
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
            RuleVerdict::Decided(_) if self.part == Part::BackedOff => Some(Reason::BackedOff),
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

    pub(crate) fn remaining(&self) -> u64 {
        match &self.verdict {
            RuleVerdict::Decided(outcome) => outcome.remaining.saturating_sub(self.grace),
            RuleVerdict::Assumed(_) => Outcome::UNLIMITED,
            RuleVerdict::Denied(_) | RuleVerdict::StoreFailed(..) => 0,
        }
    }
}

/// Why a limit refuses, if it does.
pub(crate) fn reason_of(outcome: &Outcome) -> Option<Reason> {
    match outcome.admission {
        Admission::Allowed { .. } => None,
        Admission::Denied(Denial::Until(_)) => Some(Reason::Exceeded),
        Admission::Denied(Denial::QueueFull(_)) => Some(Reason::QueueFull),
        Admission::Denied(Denial::Never) => Some(Reason::NeverFits),
        // Nobody restores it, or whoever should failed.
        Admission::Denied(Denial::Unrestored) => Some(Reason::StoreUnavailable),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Anchor, Calendar, Unit, Zone};

    use super::*;

    /// The 14th of November 2023.
    const NOW: Time = Time::from_micros(1_700_000_000_000_000);
    const DECEMBER: Time = Time::from_micros(1_701_388_800_000_000);

    fn told(enforcement: Enforcement, admission: Admission, remaining: u64, reset: Time) -> Entry {
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
        Entry::of(&charge, 0, outcome, NOW)
    }

    fn allowed(remaining: u64) -> Entry {
        let at_once = Admission::Allowed { delay: Span::ZERO };
        told(Enforcement::Enforce, at_once, remaining, DECEMBER)
    }

    #[test]
    fn grace_is_no_part_of_the_limit_and_told_while_it_is_in_use() {
        let numbers = |entry: Entry| (entry.limit(), entry.remaining(), entry.grace());
        assert_eq!(numbers(allowed(12)), (Some(10), 9, None));
        assert_eq!(numbers(allowed(3)), (Some(10), 0, None));
        let grace = |left| Some(Grace { of: 3, left });
        assert_eq!(numbers(allowed(2)), (Some(10), 0, grace(2)));
        assert_eq!(numbers(allowed(0)), (Some(10), 0, grace(0)));
        // What was carried over is beside the limit.
        assert_eq!(numbers(allowed(17)), (Some(10), 14, None));
    }

    #[test]
    fn a_quota_has_its_period_for_a_window_and_is_whole_at_its_end() {
        let unused = told(
            Enforcement::Enforce,
            Admission::Allowed { delay: Span::ZERO },
            13,
            NOW,
        );
        for entry in [allowed(4), unused] {
            assert_eq!(entry.window, Span::from_secs(30 * 86_400));
            let RuleVerdict::Decided(outcome) = entry.verdict else {
                panic!("it was decided");
            };
            assert_eq!(outcome.reset_at, DECEMBER);
        }
    }

    #[test]
    fn what_was_not_restored_is_a_failure_of_the_store() {
        let unrestored = Admission::Denied(Denial::Unrestored);
        let entry = told(Enforcement::Enforce, unrestored, 0, NOW);
        assert_eq!(entry.reason(), Some(Reason::StoreUnavailable));
        assert_eq!(entry.retry_at(), Some(NOW + RETRY_AFTER));
        assert_eq!((entry.limit(), entry.grace()), (Some(10), None));
        // Who only watches has nothing to say.
        for enforcement in [Enforcement::Shadow, Enforcement::Instead(0)] {
            assert_eq!(told(enforcement, unrestored, 0, NOW).reason(), None);
        }
    }
}
