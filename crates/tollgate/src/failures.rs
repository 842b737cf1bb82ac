//! How often failure policies have decided in a store's place, and the line that says why.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::FailurePolicy;
use tollgate_core::{Span, Time};
use tollgate_store::StoreError;

use crate::entry::Entries;

/// The policies in the order in which they are counted; the last is that of rules without one.
const POLICIES: [Option<FailurePolicy>; 7] = [
    Some(FailurePolicy::FailOpen),
    Some(FailurePolicy::FailClosed),
    Some(FailurePolicy::LocalFallback),
    Some(FailurePolicy::Degraded),
    Some(FailurePolicy::Cached),
    Some(FailurePolicy::EmergencyLimit),
    None,
];

/// How often a failing store is logged at most.
const LOG_EVERY: Span = Span::SECOND;

/// What failures of a store have led to.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// By policy, in the order of [`POLICIES`].
    fallbacks: [AtomicU64; POLICIES.len()],
    /// When the last failure was logged, and how many there were since.
    logged_at: AtomicU64,
    unlogged: AtomicU64,
}

impl Failures {
    /// How many requests each policy has decided, by its name; `none` for rules without one.
    pub(crate) fn by_policy(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = POLICIES.iter().zip(&self.fallbacks);
        counts.map(|(policy, count)| {
            let name = policy.map_or("none", FailurePolicy::name);
            (name, count.load(Ordering::Relaxed))
        })
    }

    /// Counts a request that policies have decided.
    pub(crate) fn count(&self, entries: Option<&Entries>) {
        let Some(entries) = entries else { return };
        for (policy, count) in POLICIES.iter().zip(&self.fallbacks) {
            if entries.iter().any(|entry| entry.fallback == *policy) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Logs why, now and then.
    pub(crate) fn log(&self, now: Time, error: &StoreError) {
        let last = self.logged_at.load(Ordering::Relaxed);
        let is_due = now.as_micros().abs_diff(last) >= LOG_EVERY.as_micros();
        let claim = is_due
            && self
                .logged_at
                .compare_exchange(last, now.as_micros(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if claim {
            let others = self.unlogged.swap(0, Ordering::Relaxed);
            tracing::warn!(%error, others, "the store failed, and failure policies decide");
        } else {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
        }
    }
}
