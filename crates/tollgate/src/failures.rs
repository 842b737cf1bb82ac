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

/// The failures of a store.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// The number of requests by policy, in the order of [`POLICIES`].
    fallbacks: [AtomicU64; POLICIES.len()],
    /// When a failure was last logged.
    logged_at: AtomicU64,
    /// How many failures there were since the last log line.
    unlogged: AtomicU64,
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
        let now = now.as_micros();
        let is_due = |last: u64| now.abs_diff(last) >= LOG_EVERY.as_micros();
        let claim = |last| is_due(last).then_some(now);
        let order = Ordering::Relaxed;
        if self.logged_at.fetch_update(order, order, claim).is_ok() {
            let others = self.unlogged.swap(0, Ordering::Relaxed);
            tracing::warn!(%error, others, "the store failed; failure policies decide");
        } else {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
        }
    }
}
