//! Counts the requests that failure policies decided instead of the store, and logs why the store failed.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::FailurePolicy;
use tollgate_core::{Span, Time};
use tollgate_store::StoreError;

use crate::rule_outcome::RuleOutcomes;

/// The policies in the order of their counts. The last one is for rules without a policy.
const POLICIES: [Option<FailurePolicy>; 7] = [
    Some(FailurePolicy::FailOpen),
    Some(FailurePolicy::FailClosed),
    Some(FailurePolicy::LocalFallback),
    Some(FailurePolicy::Degraded),
    Some(FailurePolicy::Cached),
    Some(FailurePolicy::EmergencyLimit),
    None,
];

/// The shortest time between two log lines about a failing store.
const LOG_EVERY: Span = Span::SECOND;

/// The failures of a store, and the holds that found no room.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// The number of requests by policy, in the order of [`POLICIES`].
    fallbacks: [AtomicU64; POLICIES.len()],
    /// How many holds were rejected because the store was full of open holds.
    full_store: AtomicU64,
    /// How many holds were rejected because their subject had too many open holds.
    full_subject: AtomicU64,
    store_log: LogPace,
    subject_log: LogPace,
}

/// Paces log lines: at most one per [`LOG_EVERY`].
#[derive(Debug, Default)]
struct LogPace {
    logged_at: AtomicU64,
    /// How many lines were left out since the last one.
    unlogged: AtomicU64,
}

impl LogPace {
    /// Returns whether to log now. If so, returns how many lines were left out since the last one.
    fn claim(&self, now: Time) -> Option<u64> {
        let now = now.as_micros();
        let is_due = |last: u64| now.abs_diff(last) >= LOG_EVERY.as_micros();
        let claim = |last| is_due(last).then_some(now);
        let order = Ordering::Relaxed;
        if self.logged_at.fetch_update(order, order, claim).is_ok() {
            return Some(self.unlogged.swap(0, order));
        }
        self.unlogged.fetch_add(1, order);
        None
    }
}

impl Failures {
    /// Returns how many requests each policy has decided, by the policy's name. The name is `none` for
    /// rules without a policy.
    pub(crate) fn by_policy(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = POLICIES.iter().zip(&self.fallbacks);
        counts.map(|(policy, count)| {
            let name = policy.map_or("none", FailurePolicy::name);
            (name, count.load(Ordering::Relaxed))
        })
    }

    /// Counts a request that failure policies decided.
    pub(crate) fn count(&self, outcomes: Option<&RuleOutcomes>) {
        let Some(outcomes) = outcomes else { return };
        for (policy, count) in POLICIES.iter().zip(&self.fallbacks) {
            if outcomes.iter().any(|outcome| outcome.fallback == *policy) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Logs a failure, at most one per [`LOG_EVERY`].
    pub(crate) fn log(&self, now: Time, error: &StoreError) {
        if matches!(error, StoreError::TooManyHolds) {
            self.full_store.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(others) = self.store_log.claim(now) {
            tracing::warn!(%error, others, "the store failed; failure policies decide");
        }
    }

    /// Counts and logs a hold of a subject that has too many open holds.
    pub(crate) fn too_many_of_subject(&self, now: Time, subject: u128, most: u64) {
        self.full_subject.fetch_add(1, Ordering::Relaxed);
        if let Some(others) = self.subject_log.claim(now) {
            tracing::warn!(
                subject = format_args!("{subject:032x}"),
                max_open_holds = most,
                others,
                "a subject has too many open reservations and leases; a further one was rejected"
            );
        }
    }

    /// Returns how many holds were rejected, by the reason: `subject` or `store`.
    pub(crate) fn rejected_holds(&self) -> [(&'static str, u64); 2] {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("subject", count(&self.full_subject)),
            ("store", count(&self.full_store)),
        ]
    }
}
