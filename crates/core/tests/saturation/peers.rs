//! Controllers that were not chosen, to compare with.

use tollgate_core::adaptive::Ended;
use tollgate_core::{Span, Time};

use super::Controller;

const WINDOW: Span = Span::from_millis(100);
const REQUESTS: usize = 16;

/// Additive increase, multiplicative decrease: the target is twice the least mean latency of the last ten seconds.
pub(crate) struct RecentMinimum {
    limit: f64,
    most: f64,
    began: Time,
    latencies: Vec<u64>,
    peak: u64,
    /// The ends and means of earlier windows.
    means: Vec<(Time, f64)>,
}

impl RecentMinimum {
    pub(crate) fn new(most: u64) -> RecentMinimum {
        RecentMinimum {
            limit: 20.0,
            most: most as f64,
            began: Time::default(),
            latencies: Vec::new(),
            peak: 0,
            means: Vec::new(),
        }
    }
}

/// Returns the mean of a window that has ended.
fn mean(latencies: &[u64]) -> f64 {
    latencies.iter().sum::<u64>() as f64 / latencies.len() as f64
}

impl Controller for RecentMinimum {
    fn record(&mut self, ended: Ended) {
        let now = ended.answered;
        self.latencies.push(now.since(ended.started).as_micros());
        self.peak = self.peak.max(ended.in_flight);
        if now.since(self.began) < WINDOW || self.latencies.len() < REQUESTS {
            return;
        }
        let mean = mean(&self.latencies);
        self.means
            .retain(|(at, _)| now.since(*at) < Span::from_secs(10));
        self.means.push((now, mean));
        let least = self.means.iter().map(|it| it.1).fold(f64::MAX, f64::min);
        if mean > 2.0 * least {
            self.limit *= 0.9;
        } else if self.peak as f64 * 2.0 >= self.limit {
            self.limit += 1.0;
        }
        self.limit = self.limit.clamp(5.0, self.most);
        (self.began, self.peak) = (now, 0);
        self.latencies.clear();
    }

    fn limit(&self) -> u64 {
        self.limit as u64
    }
}

/// A gradient: the limit follows the ratio of a long average of the latency and its present value.
pub(crate) struct LongAverage {
    limit: f64,
    most: f64,
    began: Time,
    latencies: Vec<u64>,
    peak: u64,
    long: f64,
}

impl LongAverage {
    pub(crate) fn new(most: u64) -> LongAverage {
        LongAverage {
            limit: 20.0,
            most: most as f64,
            began: Time::default(),
            latencies: Vec::new(),
            peak: 0,
            long: 0.0,
        }
    }
}

impl Controller for LongAverage {
    fn record(&mut self, ended: Ended) {
        let now = ended.answered;
        self.latencies.push(now.since(ended.started).as_micros());
        self.peak = self.peak.max(ended.in_flight);
        if now.since(self.began) < WINDOW || self.latencies.len() < REQUESTS {
            return;
        }
        let short = mean(&self.latencies);
        self.long = match self.long {
            0.0 => short,
            long => long + (short - long) * 2.0 / 601.0,
        };
        if self.long > 2.0 * short {
            self.long *= 0.95;
        }
        if self.peak as f64 * 2.0 >= self.limit {
            let gradient = (1.5 * self.long / short).clamp(0.5, 1.0);
            let next = self.limit * gradient + self.limit.sqrt();
            self.limit = (self.limit * 0.8 + next * 0.2).clamp(5.0, self.most);
        }
        (self.began, self.peak) = (now, 0);
        self.latencies.clear();
    }

    fn limit(&self) -> u64 {
        self.limit as u64
    }
}
