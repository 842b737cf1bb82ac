//! Measures how late the operating system schedules this process. Such delays lengthen decisions, and are not
//! the fault of the limiter.
//!
//! A task sleeps for a millisecond again and again, and records how much longer each sleep took. The task and
//! the limiter share a runtime. So a limiter that blocks its thread would delay this task too, and would look
//! like a scheduling delay. Therefore the report shows the worst delay beside the corrected figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tollgate_rig::Stopwatch;

const LENGTH: Duration = Duration::from_millis(1);

/// One sleep of a millisecond.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    began: Duration,
    ended: Duration,
}

impl Sleep {
    fn late(&self) -> Duration {
        (self.ended - self.began).saturating_sub(LENGTH)
    }
}

/// The sleeps of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct Delays(Vec<Sleep>);

impl Delays {
    /// Sleeps again and again until `stop`.
    pub(crate) async fn watch(clock: Stopwatch, stop: Arc<AtomicBool>) -> Delays {
        let mut sleeps = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let began = clock.elapsed();
            sleep(LENGTH).await;
            let ended = clock.elapsed();
            sleeps.push(Sleep { began, ended });
        }
        Delays(sleeps)
    }

    /// Returns how much the scheduler can have delayed a task that ran from `from` to `to`: the longest single
    /// delay in that time or, if it is larger, the sum of the first and the last delay.
    #[must_use]
    pub fn worst_between(&self, from: Duration, to: Duration) -> Duration {
        let first = self.0.partition_point(|one| one.ended < from);
        let after = self.0.partition_point(|one| one.began <= to);
        let met = &self.0[first..after.max(first)];
        let worst = met.iter().map(Sleep::late).max().unwrap_or_default();
        match met {
            [start, .., end] => worst.max(start.late() + end.late()),
            _ => worst,
        }
    }

    /// Returns the worst delay of the whole run.
    #[must_use]
    pub fn worst(&self) -> Duration {
        self.0.iter().map(Sleep::late).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_overlapping_sleeps_count() {
        let one = |began, ended| Sleep {
            began: Duration::from_millis(began),
            ended: Duration::from_millis(ended),
        };
        let delays = Delays(vec![one(0, 9), one(9, 11), one(11, 15), one(15, 40)]);
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
