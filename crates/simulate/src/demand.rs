//! The demand of subjects: how many requests each makes in a window, at most. Proposes limits.

use hashbrown::HashMap;
use serde::Serialize;
use tollgate::{Span, Time};

use crate::number::floor;

/// The most subjects that are counted. Those after the bound are left out, and counted.
const MOST_SUBJECTS: usize = 500_000;

/// Counts the demand of subjects.
#[derive(Debug)]
pub struct Demand {
    window: u64,
    rows: HashMap<Box<str>, Row>,
    left_out: u64,
}

/// The current window of a subject, its requests in it, and the most in any window.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    window: u64,
    current: u64,
    most: u64,
}

/// The demand of subjects in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DemandFigures {
    /// The subjects.
    pub subjects: u64,
    /// Half of the subjects never make more requests in a window.
    pub p50: u64,
    /// Nine of ten subjects never make more.
    pub p90: u64,
    /// 99 of 100 subjects never make more.
    pub p99: u64,
    /// The busiest subject makes so many.
    pub most: u64,
    /// Requests of subjects that were not counted, because there were too many.
    pub left_out: u64,
}

impl Demand {
    /// Starts to count requests in windows of this length.
    #[must_use]
    pub fn new(window: Span) -> Demand {
        Demand {
            window: window.as_micros().max(1),
            rows: HashMap::new(),
            left_out: 0,
        }
    }

    /// Counts a request of a subject.
    pub fn add(&mut self, subject: &str, at: Time) {
        let window = at.as_micros() / self.window;
        if let Some(row) = self.rows.get_mut(subject) {
            row.add(window);
        } else if self.rows.len() < MOST_SUBJECTS {
            let mut row = Row::default();
            row.add(window);
            self.rows.insert(subject.into(), row);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the figures; `None` without a request.
    #[must_use]
    pub fn figures(&self) -> Option<DemandFigures> {
        let mut most: Vec<u64> = self.rows.values().map(|row| row.most).collect();
        most.sort_unstable();
        let at = |percent: usize| most.get((most.len() * percent).div_ceil(100).max(1) - 1);
        Some(DemandFigures {
            subjects: most.len() as u64,
            p50: *at(50)?,
            p90: *at(90)?,
            p99: *at(99)?,
            most: *most.last()?,
            left_out: self.left_out,
        })
    }
}

impl Row {
    fn add(&mut self, window: u64) {
        if self.window != window {
            (self.window, self.current) = (window, 0);
        }
        self.current += 1;
        self.most = self.most.max(self.current);
    }
}

impl DemandFigures {
    /// Proposes a limit: what 99 of 100 subjects need, with [headroom](with_headroom).
    #[must_use]
    pub fn proposed(&self) -> u64 {
        with_headroom(self.p99)
    }
}

/// Returns half as much again as a demand, rounded up to two digits.
#[must_use]
pub fn with_headroom(demand: u64) -> u64 {
    let wanted = demand.saturating_mul(3).div_ceil(2).max(1);
    let power = 10_u64.pow(wanted.ilog10().saturating_sub(1));
    wanted.div_ceil(power) * power
}

/// What a running instance counts about one rule, and about its busiest subject.
#[derive(Clone, Copy, Debug)]
pub struct LiveCounts {
    /// The checks of the rule.
    pub checks: u64,
    /// Those that the rule denied, or would have denied in shadow.
    pub denied: u64,
    /// The share of the busiest subject in the recent checks of the rule.
    pub busiest_share: f64,
    /// For how long the instance has counted.
    pub counted_for: Span,
    /// The limit of the rule.
    pub limit: u64,
}

impl LiveCounts {
    /// Estimates how many requests the busiest subject makes in a window, rounded up.
    #[must_use]
    pub fn busiest_in(&self, window: Span) -> u64 {
        let windows = self.counted_for.as_micros() as f64 / window.as_micros().max(1) as f64;
        floor((self.busiest_share * self.checks as f64 / windows.max(1.0)).ceil())
    }

    /// Proposes a limit: the current one if it denies nothing, and otherwise at least what the busiest subject needs, with
    /// [headroom](with_headroom).
    #[must_use]
    pub fn proposed(&self, window: Span) -> u64 {
        match self.denied {
            0 => self.limit.max(1),
            _ => self.limit.max(with_headroom(self.busiest_in(window))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_the_most_in_a_window() {
        let mut demand = Demand::new(Span::MINUTE);
        assert_eq!(demand.figures(), None);
        for user in 1..=100_u64 {
            // The n-th user makes n requests in the first minute, and one in the second.
            for _ in 0..user {
                demand.add(&user.to_string(), Time::from_micros(1));
            }
            demand.add(&user.to_string(), Time::from_micros(60_000_001));
        }
        let figures = demand.figures().unwrap();
        let expected = [100, 50, 90, 99, 100];
        assert_eq!(
            [
                figures.subjects,
                figures.p50,
                figures.p90,
                figures.p99,
                figures.most
            ],
            expected
        );
        assert_eq!(figures.proposed(), 150);
    }

    #[test]
    fn counts_of_an_instance_give_the_busiest_subject() {
        let mut counts = LiveCounts {
            checks: 1_000,
            denied: 300,
            busiest_share: 0.5,
            counted_for: Span::from_secs(600),
            limit: 20,
        };
        // 500 requests in ten minutes.
        assert_eq!(counts.busiest_in(Span::MINUTE), 50);
        assert_eq!(counts.proposed(Span::MINUTE), 75);
        // An instance that has not yet run for a window has seen at least this much.
        assert_eq!(counts.busiest_in(Span::HOUR), 500);
        counts.denied = 0;
        assert_eq!(counts.proposed(Span::MINUTE), 20);
    }
}
