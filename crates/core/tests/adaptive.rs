//! The promise of the adaptive limit: by cases, by random requests, and against a service that can be saturated, on
//! virtual time.

#![allow(clippy::unwrap_used)] // A failing helper fails its test.

mod saturation;

use proptest::prelude::*;
use saturation::{Phase, figures, halving, overload, recovered, success};
use tollgate_core::adaptive::{Adaptive, Ended, MAX_RESERVE, Numbers, Slow, check_reserve, part};
use tollgate_core::{Span, Time};

/// A limit, and the time that its requests pass.
struct Subject {
    adaptive: Adaptive,
    now: u64,
}

impl Subject {
    fn new(numbers: Numbers) -> Subject {
        Subject {
            adaptive: Adaptive::new(numbers).unwrap(),
            now: 1_000_000,
        }
    }

    /// Passes a window of requests, all at once, with this latency in milliseconds. All of the limit is in flight.
    fn window(&mut self, latency: u64) -> u64 {
        let limit = self.adaptive.limit();
        self.window_of(latency, limit, 0)
    }

    /// Passes a window of requests of which some percent fail.
    fn window_of(&mut self, latency: u64, in_flight: u64, failed: u64) -> u64 {
        // Ten requests a millisecond, for long enough that the window ends.
        let started = self.now;
        for index in 0..(100 + 20 * latency.max(100)) * 10 {
            let at = started + index * 100;
            self.now = at + latency * 1000;
            let moved = self.adaptive.record(Ended {
                started: Time::from_micros(at),
                answered: Time::from_micros(self.now),
                in_flight,
                failed: index % 100 < failed,
                abandoned: false,
            });
            if moved {
                break;
            }
        }
        self.adaptive.limit()
    }
}

fn numbers() -> Numbers {
    Numbers::default()
}

#[test]
fn limit_doubles_until_the_first_slow_window() {
    let mut subject = Subject::new(numbers());
    assert_eq!(subject.adaptive.limit(), 20);
    assert_eq!(subject.window(50), 40);
    assert_eq!(subject.window(50), 80);
    assert_eq!(subject.window(110), 72);
    assert_eq!(subject.window(50), 72 + 8);
}

#[test]
fn limit_shrinks_in_proportion_to_the_latency() {
    for (latency, expected) in [(105, 180), (125, 160), (160, 125), (200, 100), (900, 100)] {
        let mut subject = Subject::new(Numbers {
            start: 100,
            min: 1,
            ..numbers()
        });
        // The first window tells the unloaded latency, and doubles the limit.
        assert_eq!(subject.window(50), 200);
        assert_eq!(subject.window(latency), expected, "{latency} ms");
    }
}

#[test]
fn limit_that_is_not_in_use_does_not_grow() {
    let mut subject = Subject::new(numbers());
    assert_eq!(subject.window_of(50, 9, 0), 20);
    assert_eq!(subject.window_of(50, 10, 0), 40);
}

#[test]
fn limit_stays_between_min_and_max() {
    let mut subject = Subject::new(Numbers {
        min: 15,
        max: 30,
        ..numbers()
    });
    assert_eq!(subject.window(50), 30);
    assert_eq!(subject.window(50), 30);
    assert_eq!(subject.window(500), 15);
}

#[test]
fn failures_shrink_the_limit_even_if_they_are_quick() {
    let mut subject = Subject::new(numbers());
    assert_eq!(subject.window(50), 40);
    assert_eq!(subject.window_of(50, 40, 10), 80, "a tenth is accepted");
    assert_eq!(subject.window_of(1, 80, 100), 60);
}

#[test]
fn slow_may_be_a_span() {
    let mut subject = Subject::new(Numbers {
        slow: Slow::Above(Span::from_millis(80)),
        ..numbers()
    });
    assert_eq!(subject.window(79), 40);
    assert_eq!(subject.window(100), 32);
}

#[test]
fn quick_service_is_not_slow_because_of_a_few_milliseconds() {
    let mut subject = Subject::new(numbers());
    assert_eq!(subject.window(1), 40);
    assert_eq!(subject.window(9), 80);
    assert_eq!(subject.window(11), 72);
}

#[test]
fn requests_from_before_a_change_do_not_count() {
    let mut subject = Subject::new(numbers());
    let old = Time::from_micros(subject.now);
    subject.window(50);
    assert_eq!(subject.window(200), 20);
    for _ in 0..1000 {
        // They waited in the queue of the earlier limit.
        subject.now += 1000;
        let moved = subject.adaptive.record(Ended {
            started: old,
            answered: Time::from_micros(subject.now),
            in_flight: 20,
            failed: false,
            abandoned: false,
        });
        assert!(!moved);
    }
}

#[test]
fn service_that_has_become_slower_gets_its_limit_back() {
    let mut subject = Subject::new(Numbers {
        start: 100,
        ..numbers()
    });
    subject.window(50);
    // Whatever the limit is, the latency is 150 ms: there is no queue.
    for _ in 0..10 {
        subject.window(150);
    }
    assert_eq!(subject.adaptive.unloaded(), Some(Span::from_millis(150)));
    let before = subject.adaptive.limit();
    assert!(subject.window(150) > before);
}

#[test]
fn first_class_sees_a_smaller_limit_one_window_later() {
    let mut subject = Subject::new(numbers());
    subject.window(50);
    assert_eq!(subject.window(200), 20);
    assert_eq!(subject.adaptive.limit_of_the_first(), 40);
    // While the first class exceeds the limit, nothing is learned, so this ends after a second.
    assert_eq!(subject.window_of(50, 30, 0), 20);
    assert_eq!(subject.adaptive.limit_of_the_first(), 20);
}

#[test]
fn classes_lie_evenly_between_all_and_the_reserve() {
    let parts = |limit| [0, 1, 2, 3, 4].map(|class| part(limit, class, 5, 40));
    assert_eq!(parts(100), [100, 90, 80, 70, 60]);
    assert_eq!(parts(5), [5, 5, 4, 4, 3]);
    assert_eq!(parts(1), [1, 1, 1, 1, 1]);
    assert_eq!(part(50, 0, 1, 40), 50);
    assert_eq!(
        part(50, 9, 2, 40),
        30,
        "a class that does not exist is the last"
    );
}

#[test]
fn numbers_out_of_range_are_rejected() {
    let wrong = |numbers: Numbers| Adaptive::new(numbers).unwrap_err().field;
    assert_eq!(
        wrong(Numbers {
            min: 0,
            ..numbers()
        }),
        "min"
    );
    assert_eq!(
        wrong(Numbers {
            min: 9,
            max: 8,
            ..numbers()
        }),
        "min"
    );
    assert_eq!(
        wrong(Numbers {
            max: 1_000_001,
            ..numbers()
        }),
        "max"
    );
    let slow = |slow| wrong(Numbers { slow, ..numbers() });
    assert_eq!(slow(Slow::Percent(109)), "slow");
    assert_eq!(slow(Slow::Percent(1001)), "slow");
    assert_eq!(slow(Slow::Above(Span::ZERO)), "slow");
}

#[test]
fn p99_recovers_within_seconds_when_capacity_halves() {
    for is_slower in [false, true] {
        for seed in 0..4 {
            let mut run = halving(is_slower);
            run.seed = seed;
            let buckets = run.play(&mut Adaptive::new(numbers()).unwrap());
            let [healthy, half, _] = [0, 1, 2].map(|phase| run.phases[phase].p99_without_queue());
            let shown = format!("seed {seed}, slower: {is_slower}");
            let after = recovered(&buckets, 30, 60, half * 8 / 5);
            assert!(after.is_some_and(|it| it <= 3.0), "{after:?}: {shown}");
            let back = recovered(&buckets, 60, 90, healthy * 8 / 5);
            assert!(back.is_some_and(|it| it <= 3.0), "{back:?}: {shown}");
            for (from, to, least) in [(15, 30, 96.0), (45, 60, 90.0), (75, 90, 96.0)] {
                let figures = figures(&buckets, from, to);
                let shown = format!("{figures:?} from {from}: {shown}");
                assert!(figures.utilisation >= least, "{shown}");
                assert!(figures.oscillation <= 15.0, "{shown}");
            }
            // The first five seconds are the start.
            assert!(success(&buckets[10..], 0) > 99.9, "{shown}");
            assert!(success(&buckets[10..], 1) < 65.0, "{shown}");
        }
    }
}

/// The service hangs: it needs 5 s for a request, and its clients give up after 2 s.
#[test]
fn requests_that_clients_give_up_shrink_the_limit() {
    for seed in 0..4 {
        let mut run = overload(100, 50_000, 1400, 120);
        (run.seed, run.patience) = (seed, Some(2_000_000));
        let healthy = run.phases[0];
        let hangs = Phase {
            from: 30,
            service: 5_000_000,
            ..healthy
        };
        let back = Phase {
            from: 60,
            ..healthy
        };
        run.phases.extend([hangs, back]);
        let mut adaptive = Adaptive::new(numbers()).unwrap();
        let buckets = run.play(&mut adaptive);
        let shown = format!("seed {seed}");
        // It can work on 40 requests in 2 s.
        let limits: Vec<u64> = buckets[100..120].iter().map(|it| it.limit).collect();
        assert!(limits.iter().all(|it| *it <= 20), "{limits:?}: {shown}");
        // Its base is not the time after which clients give up. So it recovers.
        let bound = healthy.p99_without_queue() * 8 / 5;
        let recovers = recovered(&buckets, 60, 120, bound);
        assert!(
            recovers.is_some_and(|it| it <= 20.0),
            "{recovers:?}: {shown}"
        );
        assert!(success(&buckets[200..], 0) > 99.0, "{shown}");
        assert!(success(&buckets[200..], 1) > 98.0, "{shown}");
    }
}

/// Clients that give up at any time before an answer is slow say nothing about the service.
#[test]
fn requests_that_are_given_up_soon_do_not_count() {
    let mut subject = Subject::new(numbers());
    assert_eq!(subject.window(50), 40);
    for _ in 0..1000 {
        subject.now += 1000;
        let moved = subject.adaptive.record(Ended {
            started: Time::from_micros(subject.now),
            answered: Time::from_micros(subject.now + 90_000),
            in_flight: 40,
            failed: false,
            abandoned: true,
        });
        assert!(!moved);
    }
    assert_eq!(subject.adaptive.latency(), Some(Span::from_millis(50)));
}

/// A class that may use half of the limit can fill that half, and the limit grows.
#[test]
fn limit_grows_for_every_class() {
    for limit in 1..200 {
        let least = part(limit, 7, 8, MAX_RESERVE);
        assert!(least * 2 >= limit, "{least} of {limit}");
    }
    assert!(check_reserve(MAX_RESERVE).is_ok());
    assert!(check_reserve(MAX_RESERVE + 1).is_err());
}

#[test]
fn latency_does_not_drift_in_ten_minutes_of_overload() {
    for (workers, service, rate) in [(100, 50_000, 2400), (20, 1_000_000, 30)] {
        let run = overload(workers, service, rate, 600);
        let buckets = run.play(&mut Adaptive::new(numbers()).unwrap());
        for from in [60, 300, 570] {
            let figures = figures(&buckets, from, from + 30);
            let bound = run.phases[0].p99_without_queue() * 3 / 2;
            assert!(figures.p99 <= bound, "{figures:?} at {from} s of {workers}");
            assert!(figures.utilisation >= 90.0, "{figures:?} at {from} s");
        }
    }
}

#[test]
fn service_that_is_not_saturated_denies_nothing() {
    let run = overload(100, 50_000, 1400, 60);
    let buckets = run.play(&mut Adaptive::new(numbers()).unwrap());
    let denied = |class: usize| buckets[10..].iter().map(|it| it.denied[class]).sum::<u64>();
    assert_eq!((denied(0), denied(1)), (0, 0));
}

proptest! {
    #[test]
    fn limit_is_always_within_its_bounds(
        min in 1_u64..50,
        more in 0_u64..2000,
        start in 0_u64..5000,
        percent in 110_u64..=1000,
        requests in prop::collection::vec((0_u64..5_000_000, 0_u64..2_000_000_000, 0_u64..3000, prop::bool::weighted(0.1)), 1..2000),
        jump_back in prop::option::of(0_usize..2000),
    ) {
        let max = min + more;
        let slow = Slow::Percent(percent);
        let mut adaptive = Adaptive::new(Numbers { min, max, start, slow }).unwrap();
        let mut now = 10_000_000_000;
        for (index, (passed, latency, in_flight, failed)) in requests.into_iter().enumerate() {
            now += passed;
            if jump_back == Some(index) {
                now -= 9_000_000_000;
            }
            let before = adaptive.limit_of_the_first();
            adaptive.record(Ended {
                started: Time::from_micros(now - latency.min(now)),
                answered: Time::from_micros(now),
                in_flight,
                failed,
                abandoned: failed && in_flight % 2 == 0,
            });
            let limit = adaptive.limit();
            prop_assert!((min..=max).contains(&limit), "{limit}");
            let first = adaptive.limit_of_the_first();
            prop_assert!(first >= limit && first <= max);
            prop_assert!(first * 2 + 1 >= before || first == min, "{before} to {first}");
        }
    }
}
