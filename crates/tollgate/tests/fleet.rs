//! A simulated fleet in leased mode: many instances with the production code of [`tollgate::Prepaid`], one store,
//! and a network that delays and loses messages, on virtual time.
//!
//! Each run is determined by its seed. A run that fails prints the seed. To run only that one:
//! `TOLLGATE_SEED=7 cargo test -p tollgate --test fleet`. The tables of `docs/modes.md` come from
//! `cargo test -p tollgate --test fleet -- --nocapture tables`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a test"
)]

#[path = "fleet/judge.rs"]
mod judge;
#[path = "fleet/world.rs"]
mod world;

use tollgate::{Limit, Rate, Span, Time};
use world::{Faults, Run, Traffic, run};

const SLICE: Span = Span::from_millis(100);

fn gcra(rate: u64, burst: u64) -> Limit {
    Limit::gcra(Rate::new(rate, Span::SECOND).unwrap(), burst).unwrap()
}

/// Returns a run with everything chosen by the seed.
fn random(seed: u64) -> Run {
    let mut random = fastrand::Rng::with_seed(seed);
    let limits = [
        gcra(1000, 1000),
        gcra(200, 60),
        Limit::token_bucket(500, Rate::new(2000, Span::SECOND).unwrap()).unwrap(),
        Limit::leaky_bucket(
            Rate::new(300, Span::SECOND).unwrap(),
            90,
            tollgate::Leaky::Police,
        )
        .unwrap(),
        Limit::sliding_log(400, Span::SECOND).unwrap(),
        Limit::sliding_counter(400, Span::from_millis(1500), 6).unwrap(),
        Limit::fixed_window(500, Span::SECOND).unwrap(),
    ];
    let limit = limits[random.usize(..limits.len())].clone();
    let instances = [3, 10, 40, 200][random.usize(..4)];
    Run {
        seed,
        limit,
        slice: SLICE,
        instances,
        length: Span::from_secs(3),
        traffic: Traffic {
            per_second: random.u64(300..2500),
            skewed: random.bool(),
            bursty: random.bool(),
        },
        faults: match random.u8(..4) {
            0 => Faults::default(),
            _ => Faults {
                loss: f64::from(random.u32(0..20)) / 100.0,
                most_delay: Span::from_millis(random.u64(1..120)),
                drift: f64::from(random.u32(0..14)) / 1000.0,
                crashes: random.u32(0..8),
                partitions: random.u32(0..3),
                failovers: u32::from(random.u8(..4) == 0),
            },
        },
    }
}

#[test]
fn no_run_of_a_fleet_exceeds_its_limit() {
    let seeds = match std::env::var("TOLLGATE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..40).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        let it = random(seed);
        let result = run(&it);
        if let Err(broken) = judge::check(&it.limit, &result) {
            panic!("TOLLGATE_SEED={seed}: {broken}\n{it:?}");
        }
    }
}

#[test]
fn a_thousand_instances_share_a_limit() {
    let it = Run {
        seed: 1,
        limit: gcra(2000, 2000),
        slice: SLICE,
        instances: 1000,
        length: Span::from_secs(2),
        traffic: Traffic {
            per_second: 6000,
            skewed: true,
            bursty: true,
        },
        faults: Faults {
            loss: 0.01,
            most_delay: Span::from_millis(5),
            ..Faults::default()
        },
    };
    let result = run(&it);
    judge::check(&it.limit, &result).unwrap();
    assert!(result.uses.len() > 4000);
}

/// The judge of the other tests finds one use too many.
#[test]
fn the_judge_finds_an_overshoot() {
    let at = |millis| Time::from_micros(1_700_000_000_000_000) + Span::from_millis(millis);
    let log = Limit::sliding_log(3, Span::SECOND).unwrap();
    let window = Limit::fixed_window(3, Span::SECOND).unwrap();
    for (limit, last) in [(gcra(1, 3), 999), (log, 999), (window, 999)] {
        for (last, is_kept) in [(last, false), (last + 1, true)] {
            let result = world::Outcomes {
                uses: vec![at(0), at(0), at(0), at(last)],
                ..world::Outcomes::default()
            };
            let judged = judge::check(&limit, &result);
            assert_eq!(judged.is_ok(), is_kept, "{limit:?} at {last}");
        }
    }
}

/// Prints how much of the limit is admitted, and how many calls the store gets.
#[test]
fn tables_of_what_leased_mode_admits_and_saves() {
    println!(
        "\n| instances | load of the limit | admitted of the limit | calls per request | from slices |"
    );
    println!("|---|---|---|---|---|");
    for instances in [3, 10, 100] {
        for load in [50, 90, 150, 300] {
            let it = Run {
                seed: 7,
                limit: gcra(2000, 2000),
                slice: SLICE,
                instances,
                length: Span::from_secs(6),
                traffic: Traffic {
                    per_second: 2000 * load / 100,
                    skewed: true,
                    bursty: false,
                },
                faults: Faults {
                    most_delay: Span::from_millis(2),
                    ..Faults::default()
                },
            };
            let result = run(&it);
            judge::check(&it.limit, &result).unwrap();
            // The second half: the burst of the start is used up, unless the load is below the limit.
            let half = Time::from_micros(it.length.as_micros() / 2);
            let admitted = result
                .uses
                .iter()
                .filter(|at| **at >= world::START + half.since(Time::default()));
            let admitted = admitted.count() as u64;
            let refilled = 2000 * it.length.as_micros() / 2_000_000;
            let offered = result.late_requests.min(refilled);
            let share = |part: u64, of: u64| part as f64 / of as f64;
            println!(
                "| {instances} | {load}% | {:.1}% | {:.3} | {:.1}% |",
                100.0 * share(admitted, offered),
                share(result.calls, result.requests),
                100.0 * share(result.covered, result.requests),
            );
            assert!(admitted * 100 >= offered * 98, "{instances} at {load}%");
        }
    }
}
