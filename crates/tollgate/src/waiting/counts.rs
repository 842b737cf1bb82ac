//! What the metrics tell of waiting requests, by rule.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The request was admitted.
    Admitted,
    /// The request was denied: its turn would have come too late.
    Denied,
    /// The client went away.
    Cancelled,
    /// The queue was full, so the request did not wait.
    Full,
}

impl WaitOutcome {
    /// All outcomes.
    pub const ALL: [WaitOutcome; 4] = [
        WaitOutcome::Admitted,
        WaitOutcome::Denied,
        WaitOutcome::Cancelled,
        WaitOutcome::Full,
    ];

    /// Returns the name of the outcome in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WaitOutcome::Admitted => "admitted",
            WaitOutcome::Denied => "denied",
            WaitOutcome::Cancelled => "cancelled",
            WaitOutcome::Full => "full",
        }
    }
}

/// The upper bounds of the waits that are counted together, in microseconds. Longer waits come last.
pub const WAIT_BOUNDS: [u64; 11] = [
    1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000,
    30_000_000,
];

/// The waits under one rule.
#[derive(Debug, Default)]
pub struct WaitCounts {
    waiting: AtomicUsize,
    ended: [Waits; WaitOutcome::ALL.len()],
}

/// The waits that ended in one way.
#[derive(Debug, Default)]
struct Waits {
    counts: [AtomicU64; WAIT_BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl WaitCounts {
    pub(super) fn enter(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self, outcome: WaitOutcome, wait: Duration) {
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let place = WAIT_BOUNDS.partition_point(|bound| *bound < micros);
        let waits = &self.ended[outcome as usize];
        waits.counts[place].fetch_add(1, Ordering::Relaxed);
        waits.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns how many requests wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns how many waits ended in this way: as many as were at most as long as each of [`WAIT_BOUNDS`] and
    /// longer than the bound before, then those that were longer than all; and their sum in microseconds.
    #[must_use]
    pub fn ended(&self, outcome: WaitOutcome) -> ([u64; WAIT_BOUNDS.len() + 1], u64) {
        let waits = &self.ended[outcome as usize];
        let counts = std::array::from_fn(|place| waits.counts[place].load(Ordering::Relaxed));
        (counts, waits.micros.load(Ordering::Relaxed))
    }
}
