//! Checks every algorithm's promise.
//!
//! `tests/model` has the promises. The tests send the same random numbers, costs, clocks, refunds and
//! changes to the crate and to the model. `TOLLGATE_PROOF_CASES=20` runs twenty times as many cases.
//! Failures are kept in `tests/proptest-regressions`, and run first.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A failing helper fails its test.

mod cases;
mod drive;
mod model;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::{Admission, Limiting, Rate, Span, Time};

use cases::cases;
use drive::steps::{Clock, Cost, Pause, asks, cost, history, start};
use drive::{Proven, Run, laws, numbers};
use model::bucket::Bucket;

const KEPT: &str = "tests/proptest-regressions/properties.txt";

/// Makes a test of each law for the numbers of one algorithm.
macro_rules! laws_hold_for {
    ($($algorithm:ident)*) => {$(
        mod $algorithm {
            use super::*;

            proptest! {
                #![proptest_config(cases(1_500, 30, KEPT))]

                #[test]
                fn answers_as_the_model_does(
                    first in numbers::$algorithm(),
                    start in start(),
                    history in history(Clock::Wandering, numbers::$algorithm()),
                ) {
                    laws::answers_as_the_model_does(&first, start, &history)?;
                }

                #[test]
                fn denies_until_exactly_the_promised_instant(
                    first in numbers::$algorithm(),
                    start in start(),
                    history in history(Clock::Wandering, numbers::$algorithm()),
                    cost in cost(),
                    permille in 0..=1000u64,
                ) {
                    let run = Run::after(&first, start, &history);
                    for cost in [1, run.cost(cost), run.limit.capacity()] {
                        laws::denies_until_exactly_the_promised_instant(&run, cost, permille)?;
                    }
                }

                #[test]
                fn takes_exactly_what_it_admits(
                    first in numbers::$algorithm(),
                    start in start(),
                    history in history(Clock::Wandering, numbers::$algorithm()),
                    costs in prop::collection::vec(cost(), 1..8),
                ) {
                    let mut run = Run::after(&first, start, &history);
                    for cost in costs {
                        let cost = run.cost(cost);
                        laws::takes_exactly_what_it_admits(&mut run, cost)?;
                    }
                }

                #[test]
                fn a_refund_undoes_a_charge(
                    first in numbers::$algorithm(),
                    start in start(),
                    history in history(Clock::Onwards, numbers::$algorithm()),
                    cost in cost(),
                    percent in 0..250u32,
                ) {
                    let run = Run::after(&first, start, &history);
                    let cost = run.cost(cost);
                    laws::a_refund_undoes_a_charge(&run, cost, Pause::Windows(percent))?;
                }

                #[test]
                fn is_forgotten_exactly_at_its_expiry(
                    first in numbers::$algorithm(),
                    start in start(),
                    history in history(Clock::Wandering, numbers::$algorithm()),
                ) {
                    laws::is_forgotten_exactly_at_its_expiry(&Run::after(&first, start, &history))?;
                }

                #[test]
                fn a_change_acts_in_its_own_direction(
                    first in numbers::$algorithm(),
                    start in start(),
                    history in history(Clock::Wandering, numbers::$algorithm()),
                    percent in 0..300u64,
                    cost in cost(),
                ) {
                    let run = Run::after(&first, start, &history);
                    let capacity = run.cost(Cost::Percent(percent));
                    laws::a_change_acts_in_its_own_direction(&run, capacity, cost)?;
                }

                #[test]
                fn a_change_leaves_what_it_says(
                    first in numbers::$algorithm(),
                    start in start(),
                    used in cost(),
                    percent in 0..300u64,
                ) {
                    let run = Run::new(&first, start);
                    let capacity = run.cost(Cost::Percent(percent));
                    laws::a_change_leaves_what_it_says(&run, run.cost(used), capacity)?;
                }
            }
        }
    )*};
}

laws_hold_for! {
    fixed_window sliding_log sliding_counter two_window token_bucket gcra policing shaping
}

/// The instant and the cost of an admitted request.
type Admitted = (u64, u64);

/// Asks for all of `asks`, and returns the admitted requests with their delays.
fn admitted<N: Proven>(numbers: &N, start: u64, asks: &[(Pause, Cost)]) -> Vec<(Admitted, u64)> {
    let mut run = Run::new(numbers, start);
    let mut admitted = Vec::new();
    for (pause, cost) in asks {
        run.pause(*pause);
        let cost = run.cost(*cost);
        if let Admission::Allowed { delay } = run.ask(cost).admission {
            admitted.push(((run.now, cost), delay.as_micros()));
        }
    }
    admitted
}

/// Checks every sequence of consecutive admitted requests. The sum of its costs must be at most
/// `most(earliest, latest)`: the bound for the time from its earliest to its latest instant.
fn never_above(
    admitted: &[(Admitted, u64)],
    most: impl Fn(u64, u64) -> Option<u128>,
) -> TestCaseResult {
    for first in 0..admitted.len() {
        let (mut sum, mut earliest, mut latest) = (0, u64::MAX, 0);
        for ((at, cost), _) in &admitted[first..] {
            sum += u128::from(*cost);
            (earliest, latest) = (earliest.min(*at), latest.max(*at));
            if let Some(most) = most(earliest, latest) {
                prop_assert!(
                    sum <= most,
                    "{sum} from {earliest} to {latest}, at most {most}"
                );
            }
        }
    }
    Ok(())
}

/// Checks as [`never_above`] does, but every span of one window.
fn never_above_in_a_window(
    admitted: &[(Admitted, u64)],
    window: u64,
    most: u128,
) -> TestCaseResult {
    never_above(admitted, |earliest, latest| {
        (latest - earliest < window).then_some(most)
    })
}

fn never_above_the_refill(room: &Bucket, admitted: &[(Admitted, u64)]) -> TestCaseResult {
    never_above(admitted, |earliest, latest| {
        // A limit that counts in milliseconds keeps its promise for spans of whole milliseconds.
        let span = latest - latest % room.grain() - (earliest - earliest % room.grain());
        let refilled = u128::from(room.amount) * u128::from(span) / u128::from(room.period);
        Some(u128::from(room.capacity) + refilled)
    })
}

proptest! {
    #![proptest_config(cases(1_500, 30, KEPT))]

    #[test]
    fn fixed_window_admits_its_limit_in_each_window_and_twice_that_in_any_span(
        numbers in numbers::fixed_window(),
        start in start(),
        asks in asks(Clock::Wandering),
    ) {
        let admitted = admitted(&numbers, start, &asks);
        let limit = u128::from(numbers.limit);
        never_above(&admitted, |earliest, latest| {
            let windows = latest / numbers.window - earliest / numbers.window + 1;
            Some(limit * u128::from(windows))
        })?;
        never_above_in_a_window(&admitted, numbers.window, 2 * limit)?;
    }

    #[test]
    fn sliding_log_admits_its_limit_in_any_span_of_one_window(
        numbers in numbers::sliding_log(),
        start in start(),
        asks in asks(Clock::Wandering),
    ) {
        let admitted = admitted(&numbers, start, &asks);
        never_above_in_a_window(&admitted, numbers.window, numbers.limit.into())?;
    }

    #[test]
    fn sliding_log_admits_no_more_when_its_entries_are_merged(
        numbers in numbers::sliding_log(),
        start in start(),
        asks in asks(Clock::Onwards),
        merge in prop::collection::vec(prop::bool::weighted(0.3), 120),
    ) {
        let mut run = Run::new(&numbers, start);
        let mut admitted = Vec::new();
        for ((pause, cost), merge) in asks.iter().zip(merge) {
            run.pause(*pause);
            let cost = run.cost(*cost);
            if run.ask(cost).is_allowed() {
                admitted.push(((run.now, cost), 0));
            }
            if merge {
                let before = run.decide(0).available;
                run.state.coarsen();
                prop_assert!(run.decide(0).available <= before);
            }
        }
        never_above_in_a_window(&admitted, numbers.window, numbers.limit.into())?;
    }

    #[test]
    fn sliding_counter_admits_its_limit_in_any_span_of_one_window(
        numbers in numbers::sliding_counter(),
        start in start(),
        asks in asks(Clock::Wandering),
    ) {
        let admitted = admitted(&numbers, start, &asks);
        never_above_in_a_window(&admitted, numbers.window, numbers.limit.into())?;
    }

    #[test]
    fn sliding_counter_holds_cost_for_a_window_and_at_most_a_sub_bucket_more(
        numbers in numbers::sliding_counter(),
        start in start(),
    ) {
        let mut run = Run::new(&numbers, start);
        if numbers.limit > 0 && run.ask(numbers.limit).is_allowed() {
            let held = run.decide(1).retry_at().unwrap().since(run.time()).as_micros();
            let whole = run.limit.window().as_micros();
            let most = whole + whole / u64::from(numbers.buckets);
            prop_assert!((numbers.window..=most).contains(&held), "held {held} of {most}");
        }
    }

    #[test]
    fn two_window_admits_less_than_twice_its_limit_in_any_span_of_one_window(
        numbers in numbers::two_window(),
        start in start(),
        asks in asks(Clock::Wandering),
    ) {
        let most = (2 * u128::from(numbers.limit)).saturating_sub(1);
        never_above_in_a_window(&admitted(&numbers, start, &asks), numbers.window, most)?;
    }

    #[test]
    fn token_bucket_admits_its_capacity_and_its_refill_in_any_span(
        numbers in numbers::token_bucket(),
        start in start(),
        asks in asks(Clock::Wandering),
    ) {
        never_above_the_refill(&numbers, &admitted(&numbers, start, &asks))?;
    }

    #[test]
    fn gcra_admits_its_burst_and_its_rate_in_any_span(
        numbers in numbers::gcra(),
        start in start(),
        asks in asks(Clock::Wandering),
    ) {
        never_above_the_refill(&numbers, &admitted(&numbers, start, &asks))?;
    }

    #[test]
    fn token_bucket_and_gcra_decide_the_same(numbers in numbers::gcra()) {
        let rate = Rate::new(numbers.amount, Span::from_micros(numbers.period)).unwrap();
        let capacity = numbers.capacity;
        let token_bucket = tollgate_core::token_bucket::new(capacity, rate);
        prop_assert_eq!(token_bucket, tollgate_core::gcra::new(rate, capacity));
    }

    #[test]
    fn policing_leaky_bucket_admits_its_queue_one_more_and_its_rate_in_any_span(
        numbers in numbers::policing(),
        start in start(),
        asks in asks(Clock::Wandering),
    ) {
        never_above_the_refill(&numbers.room, &admitted(&numbers, start, &asks))?;
    }

    #[test]
    fn shaping_leaky_bucket_admits_its_queue_one_more_and_its_rate_in_any_span(
        numbers in numbers::shaping(),
        start in start(),
        asks in asks(Clock::Wandering),
    ) {
        never_above_the_refill(&numbers.room, &admitted(&numbers, start, &asks))?;
    }

    /// Turns are whole ticks, so two turns may be up to one tick closer than the rate says.
    #[test]
    fn shaping_leaky_bucket_departs_no_faster_than_its_rate(
        numbers in numbers::shaping(),
        start in start(),
        asks in asks(Clock::Onwards),
    ) {
        let room = &numbers.room;

        let departures: Vec<Admitted> = admitted(&numbers, start, &asks)
            .into_iter()
            .map(|((at, cost), delay)| (at + delay, cost))
            .collect();
        for first in 0..departures.len() {
            let mut before = 0;
            for (at, cost) in &departures[first..] {
                let span = at.checked_sub(departures[first].0);
                prop_assert!(span.is_some(), "departs before the one before it");
                let span = u128::from(span.unwrap_or(0) + room.grain());
                prop_assert!(
                    before * u128::from(room.period) < u128::from(room.amount) * span,
                    "{before} departed before {at}"
                );
                before += u128::from(*cost);
            }
        }
    }
}

/// Uses more distinct instants than a log has entries. Merged entries may count longer, but never shorter.
#[test]
fn sliding_log_beyond_its_entries_still_admits_its_limit_in_any_window() {
    use tollgate_core::sliding_log::{MAX_ENTRIES, State, new};

    let (limit, window) = (MAX_ENTRIES as u64 + 2_000, 30_000);
    let log = new(limit, Span::from_micros(window)).unwrap();
    let mut state = State::default();
    let mut admitted = Vec::new();
    for now in 1_000_000..1_000_000 + 4 * window {
        if log.decide(&state, 1, Time::from_micros(now)).is_allowed() {
            log.charge(&mut state, 1, Time::from_micros(now));
            admitted.push(now);
        }
        assert!(state.entries().count() <= MAX_ENTRIES);
    }
    let limit = usize::try_from(limit).unwrap();
    for (first, last) in admitted.iter().zip(&admitted[limit..]) {
        assert!(
            last - first >= window,
            "{limit} and one more from {first} to {last}"
        );
    }
}
