//! Counts how many admissions exceed a limit, in the worst span of time.
//!
//! In any span `t`, `capacity + rate × t` may be admitted. From outside, the exact time of a decision is
//! unknown: it is between the request and the answer. So a span lasts from its first request to its last
//! answer. This way, an admission that may be correct is never counted as wrong.

use std::time::Duration;

/// A capacity, and a rate at which it refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// How much is allowed at once.
    pub capacity: u64,
    /// How much comes back each second.
    pub per_second: u64,
}

/// An admitted request: when it was sent, and when it was answered.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// When the request was sent.
    pub asked: Duration,
    /// When the request was answered.
    pub answered: Duration,
}

/// Returns how many `admissions` exceed the `allowance`, in the worst span.
#[must_use]
pub fn excess(admissions: &[Admission], allowance: Allowance) -> u64 {
    let mut admissions = admissions.to_vec();
    admissions.sort_by_key(|it| it.answered);
    // A span that starts with this admission begins at the earliest request among this and all later
    // admissions.
    let mut earliest = Duration::MAX;
    for admission in admissions.iter_mut().rev() {
        earliest = earliest.min(admission.asked);
        admission.asked = earliest;
    }
    // All amounts are in millionths of a unit. The excess at an answer is what was admitted in the span,
    // minus what was refilled since the start of the span.
    const UNIT: i128 = 1_000_000;
    let refilled = |at: Duration| i128::from(allowance.per_second) * micros(at);
    let mut best_start = i128::MIN;
    let mut worst = i128::MIN;
    for (before, admission) in (0i128..).zip(&admissions) {
        best_start = best_start.max(refilled(admission.asked) - before * UNIT);
        worst = worst.max((before + 1) * UNIT - refilled(admission.answered) + best_start);
    }
    let above = worst.saturating_sub(i128::from(allowance.capacity) * UNIT);
    // Round up: an admission that came too early is one unit above the allowance.
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
    fn admissions_within_the_limit_are_no_excess() {
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
    fn each_admission_beyond_the_limit_counts() {
        let burst: Vec<_> = (0..13).map(|_| at(0)).collect();
        assert_eq!(excess(&burst, TEN), 3);
        let early: Vec<_> = (0..10).map(|_| at(0)).chain([at(99)]).collect();
        assert_eq!(excess(&early, TEN), 1);
    }

    #[test]
    fn worst_span_counts_wherever_it_is() {
        let idle_then_twice: Vec<_> = (0..20).map(|_| at(60_000)).chain([at(0)]).collect();
        assert_eq!(excess(&idle_then_twice, TEN), 10);
    }

    #[test]
    fn slow_answer_is_not_counted_as_excess() {
        let slow = Admission {
            asked: Duration::ZERO,
            answered: Duration::from_millis(100),
        };
        let burst: Vec<_> = (0..10).map(|_| at(50)).chain([slow]).collect();
        assert_eq!(excess(&burst, TEN), 0);
    }
}
