//! The smallest examples of failures that the property tests found.

use tollgate_core::{
    Admission, CarryOver, Leaky, Limiting, Rate, Span, Time, fixed_window, gcra, leaky_bucket,
    sliding_counter, sliding_log, two_window,
};

const fn at(micros: u64) -> Time {
    Time::from_micros(micros)
}

/// Spends all of `old` at `charged`, and sets the clock back to `behind`. Changes the limit to `new` at
/// `behind`, and returns the amount available at `later`.
fn left_after_a_change<L: Limiting>(old: &L, new: &L, instants: [u64; 3]) -> u64 {
    let [charged, behind, later] = instants.map(at);
    let mut state = L::State::default();
    assert!(old.decide(&state, old.capacity(), charged).is_allowed());
    old.charge(&mut state, old.capacity(), charged);
    new.carry_over(old, &mut state, CarryOver::Keep, behind);
    new.decide(&state, 0, later).available
}

#[test]
fn a_fixed_window_changed_while_the_clock_is_behind_keeps_its_window() {
    let [one, two] = [1, 2].map(|limit| fixed_window::new(limit, Span::SECOND).unwrap());
    let left = left_after_a_change(&one, &two, [2_000_000, 1_900_000, 2_000_000]);
    assert_eq!(left, 1, "one of two was used in this very window");
}

#[test]
fn a_sliding_counter_changed_while_the_clock_is_behind_counts_its_cost_no_shorter() {
    let [old, new] = [100, 200].map(|window| {
        let window = Span::from_micros(window);
        sliding_counter::new(5, window, 10).unwrap()
    });
    let left = left_after_a_change(&old, &new, [10_000, 1_000, 10_000]);
    assert_eq!(left, 0, "all was used at this very instant");
}

#[test]
fn two_windows_changed_while_the_clock_is_behind_stay_in_force() {
    let [old, new] =
        [100, 200].map(|window| two_window::new(5, Span::from_micros(window)).unwrap());
    let left = left_after_a_change(&old, &new, [10_000, 1_000, 10_000]);
    assert_eq!(left, 0, "all was used at this very instant");
}

#[test]
fn a_meter_changed_while_the_clock_is_behind_refills_nothing_until_the_clock_has_caught_up() {
    let rate = Rate::new(1, Span::SECOND).unwrap();
    let [ten, twenty] = [10, 20].map(|burst| gcra::new(rate, burst).unwrap());
    let instants = [1_000_000_000, 500_000_000, 999_999_999];
    assert!(left_after_a_change(&ten, &twenty, instants) <= 10);
    let caught_up = [1_000_000_000, 500_000_000, 1_000_000_000];
    assert_eq!(left_after_a_change(&ten, &twenty, caught_up), 10);
}

#[test]
fn a_sliding_log_that_was_emptied_still_knows_the_latest_instant() {
    let log = sliding_log::new(5, Span::from_micros(100)).unwrap();
    let mut state = sliding_log::State::default();
    log.charge(&mut state, 5, at(1000));
    log.refund(&mut state, 5, at(1000), at(1000));
    log.charge(&mut state, 5, at(150));
    let refused = log.decide(&state, 1, at(250));
    assert_eq!(refused.retry_at(), Some(at(1100)));
}

#[test]
fn two_windows_raised_beyond_microseconds_keep_both_counts() {
    let [old, new] = [50_000, 100_000].map(|limit| two_window::new(limit, Span::DAY).unwrap());
    let day = Span::DAY.as_micros();
    let mut state = two_window::State::default();
    old.charge(&mut state, 10_000, at(10 * day));
    new.carry_over(&old, &mut state, CarryOver::Keep, at(11 * day));
    let half_a_day_on = new.decide(&state, 0, at(11 * day + day / 2));
    assert_eq!(half_a_day_on.available, 95_000);
}

#[test]
fn turns_in_milliseconds_keep_their_order() {
    let rate = Rate::new(999_999_937, Span::SECOND).unwrap();
    let shape = Leaky::Shape { max_wait: None };
    let bucket = leaky_bucket::new(rate, 10_000_000_000, shape).unwrap();
    let mut state = Default::default();
    bucket.charge(&mut state, 5_000_000_000, at(1_000_000));
    let [first, second] = [1_000_999, 1_001_000].map(|now| {
        let Admission::Allowed { delay } = bucket.decide(&state, 1, at(now)).admission else {
            panic!("there is room");
        };
        bucket.charge(&mut state, 1, at(now));
        at(now) + delay
    });
    assert!(first <= second, "{first:?}, then {second:?}");
}
