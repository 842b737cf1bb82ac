//! Admissions against a limit: how many were too many, in the worst span of time.
//!
//! `capacity + rate × t` may be admitted in any span `t`. When exactly a request was decided is not
//! known from outside, only that it was between the question and the answer: a span is taken from
//! the first question to the last answer, so that nothing is called wrong that may have been right.

use std::time::Duration;

/// So much at once, and so much a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// At once.
    pub capacity: u64,
    /// A second.
    pub per_second: u64,
}

/// An admission: when it was asked for, and when it was answered.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// The question.
    pub asked: Duration,
    /// The answer.
    pub answered: Duration,
}

/// How many `admissions` exceed the `allowance`, in the span where that is most.
#[must_use]
pub fn excess(admissions: &[Admission], allowance: Allowance) -> u64 {
    let mut admissions = admissions.to_vec();
    admissions.sort_by_key(|it| it.answered);
    // Of those answered from here on, the earliest question: that is where the span begins.
    let mut earliest = Duration::MAX;
    for admission in admissions.iter_mut().rev() {
        earliest = earliest.min(admission.asked);
        admission.asked = earliest;
    }
    // In millionths of a unit. What is ahead of the allowance at an answer is what was admitted up
    // to it, less what has come in since the start of the span.
    const UNIT: i128 = 1_000_000;
    let refilled = |at: Duration| i128::from(allowance.per_second) * micros(at);
    let mut best_start = i128::MIN;
    let mut worst = i128::MIN;
    for (before, admission) in (0i128..).zip(&admissions) {
        best_start = best_start.max(refilled(admission.asked) - before * UNIT);
        worst = worst.max((before + 1) * UNIT - refilled(admission.answered) + best_start);
    }
    let above = worst.saturating_sub(i128::from(allowance.capacity) * UNIT);
    // A part of a unit too early is a whole unit too many.
    u64::try_from(above.max(0).div_euclid(UNIT) + i128::from(above.max(0) % UNIT != 0))
        .unwrap_or(u64::MAX)
}

fn micros(at: Duration) -> i128 {
    i128::try_from(at.as_micros()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Allowance = Allowance {
        capacity: 10,
        per_second: 10,
    };

    fn at(millis: u64) -> Admission {
        let at = Duration::from_millis(millis);
        Admission {
            asked: at,
            answered: at,
        }
    }

    #[test]
    fn what_the_limit_admits_is_never_too_much() {
        assert_eq!(excess(&[], TEN), 0);
        let burst: Vec<_> = (0..10).map(|_| at(0)).collect();
        assert_eq!(excess(&burst, TEN), 0);
        let and_on: Vec<_> = burst
            .into_iter()
            .chain((1..100).map(|it| at(it * 100)))
            .collect();
        assert_eq!(excess(&and_on, TEN), 0);
    }

    #[test]
    fn each_beyond_it_counts() {
        let burst: Vec<_> = (0..13).map(|_| at(0)).collect();
        assert_eq!(excess(&burst, TEN), 3);
        let early: Vec<_> = (0..10).map(|_| at(0)).chain([at(99)]).collect();
        assert_eq!(excess(&early, TEN), 1);
    }

    #[test]
    fn the_worst_span_counts_wherever_it_is() {
        let idle_then_twice: Vec<_> = (0..20).map(|_| at(60_000)).chain([at(0)]).collect();
        assert_eq!(excess(&idle_then_twice, TEN), 10);
    }

    #[test]
    fn in_doubt_it_was_right() {
        let slow = Admission {
            asked: Duration::ZERO,
            answered: Duration::from_millis(100),
        };
        let burst: Vec<_> = (0..10).map(|_| at(50)).chain([slow]).collect();
        assert_eq!(excess(&burst, TEN), 0);
    }
}
