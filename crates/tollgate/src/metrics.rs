//! Counts per rule, cheap enough for every check.
//!
//! Each thread counts in a stripe of its own, so that threads do not fight over cache lines; a
//! reader adds the stripes up.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tollgate_core::Enforcement;

use crate::decision::{Entry, Reason, RuleVerdict};

const STRIPES: usize = 16;

/// What each rule has decided so far, and what was decided beside the rules.
pub struct Metrics {
    stripes: [Box<[Cells]>; STRIPES],
    throttles: [ThrottleCells; STRIPES],
}

/// The counts of ad-hoc limits in one stripe.
#[derive(Default)]
#[repr(align(64))]
struct ThrottleCells {
    allowed: AtomicU64,
    limited: AtomicU64,
    failed: AtomicU64,
}

/// What ad-hoc limits have decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleCounts {
    /// Requests that were allowed.
    pub allowed: u64,
    /// Requests that were refused.
    pub limited: u64,
    /// Requests that the store did not decide.
    pub failed: u64,
}

/// One rule's counts in one stripe, on cache lines of their own.
#[derive(Default)]
#[repr(align(64))]
struct Cells {
    allowed: AtomicU64,
    near_limit: AtomicU64,
    shadow_rejected: AtomicU64,
    /// By reason, in the order of [`Reason::ALL`].
    rejected: [AtomicU64; Reason::ALL.len()],
}

/// One rule's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Checks this rule has allowed.
    pub allowed: u64,
    /// Allowed checks that left less than a fifth of the limit.
    pub near_limit: u64,
    /// Checks this rule would have refused if it did not only watch.
    pub shadow_rejected: u64,
    /// Checks this rule has refused, by reason, in the order of [`Reason::ALL`].
    pub rejected: [u64; Reason::ALL.len()],
}

impl Metrics {
    pub(crate) fn new(rules: usize) -> Metrics {
        let stripe = |_| (0..rules).map(|_| Cells::default()).collect();
        Metrics {
            stripes: std::array::from_fn(stripe),
            throttles: Default::default(),
        }
    }

    /// Counts a request that was decided by an ad-hoc limit; none says that it was not decided.
    #[inline]
    pub(crate) fn count_throttle(&self, allowed: Option<bool>) {
        let cells = &self.throttles[stripe()];
        let cell = match allowed {
            Some(true) => &cells.allowed,
            Some(false) => &cells.limited,
            None => &cells.failed,
        };
        cell.fetch_add(1, Ordering::Relaxed);
    }

    /// What ad-hoc limits have decided.
    #[must_use]
    pub fn throttles(&self) -> ThrottleCounts {
        let mut counts = ThrottleCounts::default();
        for cells in &self.throttles {
            counts.allowed += cells.allowed.load(Ordering::Relaxed);
            counts.limited += cells.limited.load(Ordering::Relaxed);
            counts.failed += cells.failed.load(Ordering::Relaxed);
        }
        counts
    }

    pub(crate) fn count(&self, entries: &[Entry]) {
        let stripe = &self.stripes[stripe()];
        for entry in entries {
            let Some(cells) = stripe.get(entry.rule as usize) else {
                continue;
            };
            let cell = match (entry.reason(), entry.enforcement) {
                (None, _) => {
                    if is_near_limit(entry) {
                        cells.near_limit.fetch_add(1, Ordering::Relaxed);
                    }
                    &cells.allowed
                }
                (Some(_), Enforcement::Shadow) => &cells.shadow_rejected,
                (Some(reason), Enforcement::Enforce) => &cells.rejected[reason as usize],
            };
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts of each rule, in the order of the file.
    #[must_use]
    pub fn counts(&self) -> Vec<RuleCounts> {
        let mut counts = vec![RuleCounts::default(); self.stripes[0].len()];
        for stripe in &self.stripes {
            for (sum, cells) in counts.iter_mut().zip(stripe) {
                sum.allowed += cells.allowed.load(Ordering::Relaxed);
                sum.near_limit += cells.near_limit.load(Ordering::Relaxed);
                sum.shadow_rejected += cells.shadow_rejected.load(Ordering::Relaxed);
                for (sum, cell) in sum.rejected.iter_mut().zip(&cells.rejected) {
                    *sum += cell.load(Ordering::Relaxed);
                }
            }
        }
        counts
    }
}

fn is_near_limit(entry: &Entry) -> bool {
    match &entry.verdict {
        RuleVerdict::Decided(outcome) => outcome.remaining.saturating_mul(5) < outcome.limit,
        _ => false,
    }
}

fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        mine.get()
    })
}
