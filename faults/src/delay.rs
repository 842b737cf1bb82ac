//! How late this process is scheduled: what a decision may take longer through no fault of its own.
//!
//! A task that sleeps for a millisecond, again and again, and notes how much longer it took. It
//! shares its runtime with what is measured, so a limiter that blocked its thread would delay it
//! too: the worst delay is reported beside the figures that are corrected by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tollgate_rig::Stopwatch;

const NAP: Duration = Duration::from_millis(1);

/// A nap: when it ended, how long it took, and how much of that was too long.
#[derive(Clone, Copy, Debug)]
pub struct Nap {
    began: Duration,
    ended: Duration,
}

impl Nap {
    fn late(&self) -> Duration {
        (self.ended - self.began).saturating_sub(NAP)
    }
}

/// The naps of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct Delays(Vec<Nap>);

impl Delays {
    /// Naps until `stop`.
    pub(crate) async fn watch(clock: Stopwatch, stop: Arc<AtomicBool>) -> Delays {
        let mut naps = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let began = clock.elapsed();
            sleep(NAP).await;
            let ended = clock.elapsed();
            naps.push(Nap { began, ended });
        }
        Delays(naps)
    }

    /// The worst delay that anything between `from` and `to` can have met: at one moment, or at its
    /// start and its end.
    #[must_use]
    pub fn worst_between(&self, from: Duration, to: Duration) -> Duration {
        let first = self.0.partition_point(|nap| nap.ended < from);
        let after = self.0.partition_point(|nap| nap.began <= to);
        let met = &self.0[first..after.max(first)];
        let worst = met.iter().map(Nap::late).max().unwrap_or_default();
        match met {
            [start, .., end] => worst.max(start.late() + end.late()),
            _ => worst,
        }
    }

    /// The worst delay of all.
    #[must_use]
    pub fn worst(&self) -> Duration {
        self.0.iter().map(Nap::late).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_count_that_overlap() {
        let nap = |began, ended| Nap {
            began: Duration::from_millis(began),
            ended: Duration::from_millis(ended),
        };
        let delays = Delays(vec![nap(0, 9), nap(9, 11), nap(11, 15), nap(15, 40)]);
        let between = |from, to| {
            let [from, to] = [from, to].map(Duration::from_millis);
            delays.worst_between(from, to).as_millis()
        };
        assert_eq!(between(10, 10), 1);
        assert_eq!(between(10, 12), 1 + 3);
        assert_eq!(between(1, 10), 8 + 1);
        assert_eq!(between(1, 20), 8 + 24);
        assert_eq!(between(12, 13), 3);
        assert_eq!(between(50, 60), 0);
        assert_eq!(delays.worst().as_millis(), 24);
    }
}
