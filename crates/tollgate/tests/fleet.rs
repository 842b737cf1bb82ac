//! A simulated fleet in leased or async mode: many instances with the production code of [`tollgate::Prepaid`] or
//! [`tollgate::Reported`], one store,
//! and a network that delays and loses messages, on virtual time.
//!
//! Each run is determined by its seed. A run that fails prints the seed. To run only that one:
//! `TOLLGATE_SEED=7 cargo test -p tollgate --test fleet`. The tables of `docs/modes.md` come from
//! `cargo test -p tollgate --test fleet -- --nocapture tables`, and its plots from the same command with
//! `TOLLGATE_BLESS=1`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a test"
)]

#[path = "fleet/judge.rs"]
mod judge;
#[path = "fleet/plot.rs"]
mod plot;
#[path = "fleet/world.rs"]
mod world;

use tollgate::{Limit, Mode, Rate, Span, Time};
use world::{Faults, Run, Traffic, run};

const LEASED: Mode = Mode::Leased {
    slice: Span::from_millis(100),
};

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
        mode: LEASED,
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

/// Returns the seeds to run: `count`, or the one of the environment.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("TOLLGATE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).collect(),
    }
}

#[test]
fn no_run_of_a_fleet_exceeds_its_limit() {
    for seed in seeds(40) {
        let it = random(seed);
        let result = run(&it);
        if let Err(broken) = judge::check(&it.limit, &result) {
            panic!("TOLLGATE_SEED={seed}: {broken}\n{it:?}");
        }
    }
}

/// In async mode, a span exceeds the limit by at most the uses that were not known to the instance that decided last:
/// those of three `flush`, one look for due reports, and two messages.
#[test]
fn async_mode_exceeds_a_limit_by_at_most_its_bound() {
    let flush = Span::from_millis(100);
    let (mut covered, mut requests) = (0, 0);
    for seed in seeds(40) {
        let mut it = random(seed);
        it.mode = Mode::Async { flush };
        // A clock that runs faster than the store's refills too early.
        it.faults.drift = 0.0;
        let result = run(&it);
        let delays = 2 * it.faults.most_delay.as_micros();
        let unknown = Span::from_micros(325_000 + delays);
        if let Err(broken) = judge::check_within(&it.limit, &result, unknown) {
            panic!("TOLLGATE_SEED={seed}: {broken}\n{it:?}");
        }
        (covered, requests) = (covered + result.covered, requests + result.requests);
    }
    assert!(covered > requests / 4, "{covered} of {requests}");
}

/// One instance knows all its use, so it exceeds nothing.
#[test]
fn one_instance_in_async_mode_never_exceeds_its_limit() {
    for seed in seeds(10) {
        let mut it = random(seed);
        it.mode = Mode::Async {
            flush: Span::from_millis(100),
        };
        (it.instances, it.faults) = (1, Faults::default());
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
        mode: LEASED,
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

/// The fleets and loads of the tables, in percent of the limit.
const INSTANCES: [usize; 3] = [3, 10, 100];
const LOADS: [u64; 4] = [50, 90, 150, 300];

/// Prints how much of the limit is admitted, and how many calls the store gets.
#[test]
fn tables_of_what_leased_mode_admits_and_saves() {
    println!(
        "\n| instances | load of the limit | admitted of the limit | calls per request | from slices |"
    );
    println!("|---|---|---|---|---|");
    let (mut admitted_shares, mut calls) = (Vec::new(), Vec::new());
    for instances in INSTANCES {
        admitted_shares.push(Vec::new());
        calls.push(Vec::new());
        for load in LOADS {
            let it = Run {
                seed: 7,
                limit: gcra(2000, 2000),
                mode: LEASED,
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
            let admitted_share = 100.0 * share(admitted, offered);
            let calls_share = share(result.calls, result.requests);
            admitted_shares.last_mut().unwrap().push(admitted_share);
            calls.last_mut().unwrap().push(calls_share);
            println!(
                "| {instances} | {load}% | {admitted_share:.1}% | {calls_share:.3} | {:.1}% |",
                100.0 * share(result.covered, result.requests),
            );
            assert!(admitted * 100 >= offered * 98, "{instances} at {load}%");
        }
    }
    let panels = [
        ("% admitted of the limit or of the load", admitted_shares),
        ("calls per request", calls),
    ];
    let panels = panels.map(|(title, values)| plot::Panel { title, values });
    plot::write("modes-leased.svg", &INSTANCES, &LOADS, &panels);
}

/// Prints by how much a fleet in async mode exceeds its limit, and how many calls the store gets.
#[test]
fn tables_of_what_async_mode_admits_and_saves() {
    println!(
        "\n| instances | load of the limit | admitted of the limit | most above the limit | overdrawn | calls per request |"
    );
    println!("|---|---|---|---|---|---|");
    let (mut overshoots, mut calls) = (Vec::new(), Vec::new());
    for instances in INSTANCES {
        overshoots.push(Vec::new());
        calls.push(Vec::new());
        for load in LOADS {
            let limit = gcra(2000, 2000);
            let it = Run {
                seed: 7,
                limit: limit.clone(),
                mode: Mode::Async {
                    flush: Span::from_millis(500),
                },
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
            let Limit::Gcra(meter) = &limit else {
                panic!("{limit:?}");
            };
            // All that the limit admits in the run: the burst, and what refills.
            let allowed = 2000 + 2000 * it.length.as_micros() / 1_000_000;
            let admitted = result.uses.len() as u64;
            let over = judge::overshoot(meter, &result);
            let share = |part: u64, of: u64| part as f64 / of as f64;
            let calls_share = share(result.calls, result.requests);
            overshoots.last_mut().unwrap().push(over as f64);
            calls.last_mut().unwrap().push(calls_share);
            println!(
                "| {instances} | {load}% | {:.1}% | {over} | {} | {calls_share:.4} |",
                100.0 * share(admitted, result.requests.min(allowed)),
                result.excess,
            );
            // The debt of one flush is repaid in the next ones.
            assert!(admitted <= allowed + over);
        }
    }
    let panels = [
        ("units above the limit, in any span", overshoots),
        ("calls per request", calls),
    ];
    let panels = panels.map(|(title, values)| plot::Panel { title, values });
    plot::write("modes-async.svg", &INSTANCES, &LOADS, &panels);
}

/// Prints how much less a fleet in async mode admits, if a bucket holds less than what refills in a flush.
#[test]
fn tables_of_what_async_mode_admits_with_small_bursts() {
    println!("\n| burst, of the refill in a flush | 1 instance | 3 instances | 10 instances |");
    println!("|---|---|---|---|");
    for percent in [20, 50, 100, 200] {
        let shares = [1, 3, 10].map(|instances| {
            let it = Run {
                seed: 7,
                limit: gcra(2000, 1000 * percent / 100),
                mode: Mode::Async {
                    flush: Span::from_millis(500),
                },
                instances,
                length: Span::from_secs(6),
                traffic: Traffic {
                    per_second: 3000,
                    skewed: false,
                    bursty: false,
                },
                faults: Faults {
                    most_delay: Span::from_millis(2),
                    ..Faults::default()
                },
            };
            let allowed = 1000 * percent / 100 + 2000 * it.length.as_micros() / 1_000_000;
            100.0 * run(&it).uses.len() as f64 / allowed as f64
        });
        let [one, three, ten] = shares;
        println!("| {percent}% | {one:.0}% | {three:.0}% | {ten:.0}% |");
        assert!(one <= 100.0, "one instance never exceeds a limit");
    }
}
