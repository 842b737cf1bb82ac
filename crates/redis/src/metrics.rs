//! Counters of the store: latency per script, errors, and requests per call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the latency buckets, in microseconds.
const LATENCY_BOUNDS: [u64; 12] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
];

/// Upper bounds of the batch size buckets.
const BATCH_BOUNDS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// The names of the scripts. Their index is the index of their counters.
const SCRIPTS: [&str; 11] = [
    "meter",
    "leaky-bucket",
    "fixed-window",
    "sliding-counter",
    "two-window",
    "sliding-log",
    "quota",
    "concurrency",
    "fair",
    "holds",
    "mixed",
];

/// The kinds of errors, in the order of the counters. Most are a
/// [`kind`](tollgate_store::StoreError::kind) of store error. `noscript` counts calls of a script
/// that the server did not have.
const ERRORS: [&str; 9] = [
    "timeout",
    "disconnected",
    "unavailable",
    "breaker_open",
    "overloaded",
    "foreign_data",
    "full",
    "script",
    "noscript",
];

/// Counts of values up to each bound, and their sum.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    sum: AtomicU64,
}

/// The counts of a histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramCounts {
    /// Each upper bound, and how many values were at most that large.
    pub up_to: Vec<(u64, u64)>,
    /// How many values there were.
    pub count: u64,
    /// The sum of the values.
    pub sum: u64,
}

impl<const N: usize> Histogram<N> {
    fn new(bounds: &'static [u64; N]) -> Histogram<N> {
        Histogram {
            bounds,
            counts: [const { AtomicU64::new(0) }; N],
            beyond: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    fn count(&self, value: u64) {
        let index = self.bounds.iter().position(|bound| value <= *bound);
        let cell = index.map_or(&self.beyond, |index| &self.counts[index]);
        cell.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    fn counts(&self) -> HistogramCounts {
        let mut count = 0;
        let up_to = self.bounds.iter().zip(&self.counts).map(|(bound, cell)| {
            count += cell.load(Ordering::Relaxed);
            (*bound, count)
        });
        let up_to = up_to.collect();
        HistogramCounts {
            up_to,
            count: count + self.beyond.load(Ordering::Relaxed),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// The counters of a store.
#[derive(Debug)]
pub struct Metrics {
    /// For each script, the latency of answered calls and of failed calls.
    latency: [[Histogram<12>; 2]; SCRIPTS.len()],
    errors: [[AtomicU64; ERRORS.len()]; SCRIPTS.len()],
    batches: Histogram<9>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let latency = |_| {
            [
                Histogram::new(&LATENCY_BOUNDS),
                Histogram::new(&LATENCY_BOUNDS),
            ]
        };
        Metrics {
            latency: std::array::from_fn(latency),
            errors: [const { [const { AtomicU64::new(0) }; ERRORS.len()] }; SCRIPTS.len()],
            batches: Histogram::new(&BATCH_BOUNDS),
        }
    }

    pub(crate) fn called(&self, script: &str, answered: bool, took: Duration, requests: usize) {
        let script = index_of(&SCRIPTS, script);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.latency[script][usize::from(!answered)].count(micros);
        self.batches.count(requests as u64);
    }

    pub(crate) fn failed(&self, script: &str, error: &str) {
        let cell = &self.errors[index_of(&SCRIPTS, script)][index_of(&ERRORS, error)];
        cell.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the latency of calls in microseconds, by script and whether they were answered. Empty histograms
    /// are left out.
    pub fn latency(&self) -> impl Iterator<Item = (&'static str, bool, HistogramCounts)> + '_ {
        let scripts = SCRIPTS.iter().zip(&self.latency);
        let all = scripts.flat_map(|(script, [answered, failed])| {
            [
                (*script, true, answered.counts()),
                (*script, false, failed.counts()),
            ]
        });
        all.filter(|(_, _, counts)| counts.count > 0)
    }

    /// Returns how many requests went into one call.
    #[must_use]
    pub fn batches(&self) -> HistogramCounts {
        self.batches.counts()
    }

    /// Returns errors by script and kind. Zero counts are left out.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let scripts = SCRIPTS.iter().zip(&self.errors);
        let all = scripts.flat_map(|(script, errors)| {
            let errors = ERRORS.iter().zip(errors);
            errors.map(|(error, cell)| (*script, *error, cell.load(Ordering::Relaxed)))
        });
        all.filter(|(_, _, count)| *count > 0)
    }
}

/// Returns the index of `name` in `names`, or the last one if it is not there.
fn index_of(names: &[&str], name: &str) -> usize {
    let index = names.iter().position(|it| *it == name);
    index.unwrap_or(names.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    #[test]
    fn each_script_has_its_own_counters() {
        for script in Script::common().chain([Script::of_records()]) {
            let metrics = Metrics::new();
            metrics.called(script.name, true, Duration::ZERO, 1);
            let names: Vec<&str> = metrics.latency().map(|(name, ..)| name).collect();
            assert_eq!(names, [script.name]);
        }
    }
}
