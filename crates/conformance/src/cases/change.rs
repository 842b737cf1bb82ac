//! Checks the usage of a key after the numbers of its limit have changed.

use tollgate_core::{CarryOver, Charge, Limit, OnDenied, Span};

use super::{CAPACITY, WINDOW, apply, charge, denied, kinds, left, limits, promised, refund, take};
use crate::random::Range;
use crate::{Fixture, Kind, START};
use tollgate_store::Ask;

/// Returns a charge of cost 1 for subject `number` that is carried over as `how` says.
fn carried(how: CarryOver, number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        carry_over: how,
        ..charge(number, limit)
    }
}

/// Usage stays when the numbers change, up to the new capacity.
pub async fn a_raised_limit_acts_at_once_and_a_lowered_one_counts_the_usage(
    fixture: &impl Fixture,
) {
    for (kind, n, _) in kinds(fixture) {
        let [five, ten, twenty] = [5, 10, 20].map(|capacity| kind.limit(capacity, WINDOW));
        take(fixture, charge(n, &ten), 10).await;
        assert_eq!(left(fixture, charge(n, &twenty)).await, 10, "{kind:?}");
        take(fixture, charge(n, &twenty), 10).await;
        denied(fixture, charge(n, &twenty), 1).await;
        denied(fixture, charge(n, &five), 1).await;

        take(fixture, charge(n + 100, &twenty), 3).await;
        take(fixture, charge(n + 100, &five), 2).await;
        denied(fixture, charge(n + 100, &five), 1).await;
    }
}

/// A state is converted by the first request under new numbers, even if the request is denied. A peek
/// only shows the result.
pub async fn changed_numbers_carry_over_at_the_first_apply_even_if_denied(fixture: &impl Fixture) {
    if fixture.range() == Range::Steady {
        return;
    }
    let meters = limits(fixture, WINDOW).filter(|(kind, ..)| kind.is_meter());
    for (kind, n, start, fast) in meters {
        let slow = kind.limit(CAPACITY, Span::from_secs(10));
        let (peeked, applied, spent) = (n, n + 100, n + 200);
        for number in [peeked, applied, spent] {
            take(fixture, charge(number, &fast), CAPACITY).await;
        }
        denied(fixture, charge(peeked, &fast), 1).await;
        assert_eq!(left(fixture, charge(peeked, &slow)).await, 0, "{kind:?}");
        let both = [charge(applied, &slow), charge(spent, &fast)];
        assert!(!apply(fixture, &both, Ask::Exactly(1)).await.allowed);
        fixture.set_time(start + WINDOW);
        assert_eq!(left(fixture, charge(applied, &slow)).await, 1, "{kind:?}");
        let left = left(fixture, charge(peeked, &slow)).await;
        assert_eq!(left, CAPACITY, "{kind:?}");
    }
}

/// GCRA and token bucket have the same state: a rule may change from one to the other.
pub async fn gcra_and_token_bucket_share_a_state(fixture: &impl Fixture) {
    let gcra = Kind::Gcra.limit(CAPACITY, WINDOW);
    let bucket = Kind::TokenBucket.limit(CAPACITY, WINDOW);
    take(fixture, charge(1, &gcra), CAPACITY).await;
    denied(fixture, charge(1, &bucket), 1).await;
    fixture.set_time(START + WINDOW);
    take(fixture, charge(1, &bucket), CAPACITY).await;
    denied(fixture, charge(1, &gcra), 1).await;
}

/// The used share stays used, rounded up. It does not matter which numbers have changed.
pub async fn a_proportional_change_keeps_the_used_share(fixture: &impl Fixture) {
    for (kind, n, start) in kinds(fixture) {
        let one = |number, limit| carried(CarryOver::Proportional, number, limit);
        let [three, ten, twenty] = [3, 10, 20].map(|capacity| kind.limit(capacity, WINDOW));
        take(fixture, one(n, &ten), 5).await;
        assert_eq!(left(fixture, one(n, &twenty)).await, 10, "{kind:?}");
        take(fixture, one(n, &twenty), 1).await;
        // Eleven used of twenty become two used of three.
        take(fixture, one(n, &three), 1).await;
        let denial = denied(fixture, one(n, &three), 1).await;
        assert!(promised(&denial) > start, "{kind:?}");
        // A spent allowance stays spent.
        take(fixture, one(n + 200, &ten), 10).await;
        denied(fixture, one(n + 200, &twenty), 1).await;
        denied(fixture, one(n + 200, &three), 1).await;

        let slow = kind.limit(10, Span::from_secs(10));
        take(fixture, one(n + 100, &ten), 7).await;
        take(fixture, one(n + 100, &slow), 3).await;
        denied(fixture, one(n + 100, &slow), 1).await;
    }
}

/// Each entry and sub-bucket keeps its share, so that the amount left is right at every later instant.
pub async fn a_proportional_change_scales_each_entry(fixture: &impl Fixture) {
    for kind in [Kind::SlidingLog, Kind::SlidingCounter] {
        let (ten, four) = (kind.limit(10, WINDOW), kind.limit(4, WINDOW));
        let one = carried(CarryOver::Proportional, kind as u64 + 1, &four);
        let times = [0, 300, 600].map(|millis| START + Span::from_millis(millis));
        for time in times {
            fixture.set_time(time);
            take(fixture, Charge { limit: &ten, ..one }, 3).await;
        }
        // 9 of 10 are used now. After the first and the second entry have left, 6 and 3 of 10 are used.
        // Under the new limit of 4, these become 4, 3 and 2.
        assert_eq!(left(fixture, one).await, 0, "{kind:?}");
        take(fixture, one, 0).await;
        for (time, left_then) in times.into_iter().zip([1, 2, 4]) {
            // A sub-bucket is a tenth of the window, so a cost may count 100 ms longer.
            fixture.set_time(time + WINDOW + Span::from_millis(100));
            assert_eq!(left(fixture, one).await, left_then, "{kind:?}");
        }
    }
}

/// Under `reset`, usage is forgotten when the numbers change, and only at a change.
pub async fn a_change_that_resets_gives_the_whole_allowance(fixture: &impl Fixture) {
    for (kind, n, _) in kinds(fixture) {
        let one = |number, limit| carried(CarryOver::Reset, number, limit);
        let [five, ten, twenty] = [5, 10, 20].map(|capacity| kind.limit(capacity, WINDOW));
        take(fixture, one(n, &ten), 10).await;
        denied(fixture, one(n, &ten), 1).await;
        assert_eq!(left(fixture, one(n, &five)).await, 5, "{kind:?}");
        denied(fixture, one(n, &ten), 1).await;
        take(fixture, one(n, &twenty), 20).await;
        denied(fixture, one(n, &twenty), 1).await;
        let slow = kind.limit(20, Span::from_secs(10));
        take(fixture, one(n, &slow), 20).await;
        denied(fixture, one(n, &slow), 1).await;
    }
}

/// A capacity of 0 has no shares. So the used amount stays, up to the new capacity.
pub async fn a_capacity_of_zero_has_no_shares(fixture: &impl Fixture) {
    for (kind, n, _) in kinds(fixture).filter(|(kind, ..)| kind.can_be_zero()) {
        let (ten, none) = (kind.limit(10, WINDOW), kind.limit(0, WINDOW));
        let mut lefts = Vec::new();
        for (how, number) in [(CarryOver::Keep, n), (CarryOver::Proportional, n + 100)] {
            take(fixture, carried(how, number, &ten), 4).await;
            denied(fixture, carried(how, number, &none), 1).await;
            lefts.push(left(fixture, carried(how, number, &ten)).await);
        }
        assert_eq!(lefts[0], lefts[1], "{kind:?}");
        assert!(lefts[0] >= 6, "{kind:?}");
    }
}

/// An unlimited rule does not change a state. When the rule gets a limit again, earlier usage counts.
pub async fn an_unlimited_time_changes_no_state(fixture: &impl Fixture) {
    for (kind, n, _) in kinds(fixture) {
        let (ten, twenty) = (kind.limit(10, WINDOW), kind.limit(20, WINDOW));
        let unlimited = Limit::unlimited(ten.algorithm());
        for (number, (how, left_then)) in (n..).step_by(100).zip([
            (CarryOver::Keep, 12),
            (CarryOver::Proportional, 4),
            (CarryOver::Reset, 20),
        ]) {
            take(fixture, carried(how, number, &ten), 8).await;
            take(fixture, carried(how, number, &unlimited), 1 << 40).await;
            assert_eq!(left(fixture, carried(how, number, &ten)).await, 2);
            let after = carried(how, number, &twenty);
            assert_eq!(left(fixture, after).await, left_then, "{kind:?}, {how:?}");
        }
    }
}

/// A changed algorithm starts without a state, and does not touch the state of the old algorithm.
pub async fn another_algorithm_starts_fresh(fixture: &impl Fixture) {
    for how in CarryOver::ALL {
        let number = 1 + how as u64;
        let window = Kind::FixedWindow.limit(CAPACITY, Span::HOUR);
        let log = Kind::SlidingLog.limit(CAPACITY, Span::HOUR);
        take(fixture, carried(how, number, &window), CAPACITY).await;
        take(fixture, carried(how, number, &log), CAPACITY).await;
        denied(fixture, carried(how, number, &log), 1).await;
        denied(fixture, carried(how, number, &window), 1).await;
    }
}

/// When the window of a log gets shorter, all entries of the log may have left the window. Even then the log
/// keeps the latest instant that it has seen. If the clock has gone back, the next charge is written at that
/// instant. So the charge may leave the window late, but never early.
pub async fn an_expired_log_keeps_the_latest_instant(fixture: &impl Fixture) {
    if fixture.range() == Range::Steady {
        return;
    }
    let long = Kind::SlidingLog.limit(CAPACITY, Span::from_secs(30));
    let short = Kind::SlidingLog.limit(CAPACITY, Span::from_micros(10));
    let first = take(fixture, charge(1, &long), 1).await.now;
    let latest = first + Span::from_secs(3);
    fixture.set_time(latest);
    take(fixture, charge(1, &long), 1).await;
    refund(fixture, &[charge(1, &long)], 1, latest).await;
    fixture.set_time(first + Span::from_millis(500));
    let counted = Charge {
        on_denied: OnDenied::Charge,
        ..charge(1, &short)
    };
    let applied = apply(fixture, &[counted], Ask::Exactly(CAPACITY + 1)).await;
    assert!(!applied.allowed);
    let leaves_at = latest + Span::from_micros(10);
    assert_eq!(applied.outcomes[0].reset_at, leaves_at);
}
