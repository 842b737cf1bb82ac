//! The memory that `plan` and `advise` tell for state in memory, against the resident memory of a real process, and the
//! bytes that the store reports.
//!
//! Each case runs in a process of its own: this test, started again with the case in an environment variable.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test"
)]

use std::process::Command;

use tollgate::{Acquire, AcquireOutcome, Ask, Attributes, Config, Span, Time};
use tollgate_simulate::{VirtualLimiter, memory_bytes};

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const START: Time = Time::from_micros(1_800_000_000_000_000);
const CASE: &str = "TOLLGATE_MEMORY_CASE";

/// A rule, how many requests each subject makes, and how many subjects there are.
const CASES: [(&str, u64, u64); 12] = [
    ("algorithm: gcra, rate: 1/m, burst: 100", 1, 600_000),
    (
        "algorithm: token-bucket, capacity: 100, refill: 1/m",
        1,
        400_000,
    ),
    ("algorithm: leaky-bucket, rate: 1/h, queue: 100", 1, 300_000),
    (
        "algorithm: fixed-window, limit: 100, window: 1d",
        1,
        600_000,
    ),
    (
        "algorithm: sliding-counter, limit: 100, window: 1d, estimate: two-window",
        1,
        300_000,
    ),
    (
        "algorithm: sliding-counter, limit: 100, window: 1d, buckets: 10",
        1,
        200_000,
    ),
    (
        "algorithm: sliding-counter, limit: 100, window: 1d, buckets: 60",
        1,
        100_000,
    ),
    ("algorithm: quota, limit: 100, period: year", 1, 600_000),
    (
        "algorithm: sliding-log, limit: 1000, window: 1d",
        1,
        200_000,
    ),
    (
        "algorithm: sliding-log, limit: 1000, window: 1d",
        7,
        100_000,
    ),
    (
        "algorithm: sliding-log, limit: 1000, window: 1d",
        100,
        10_000,
    ),
    ("algorithm: concurrency, limit: 5, lease: 1d", 1, 40_000),
];

fn config(rule: &str) -> Config {
    let text = format!("version: 1\nrules: [{{ id: r, per: [user], {rule} }}]\n");
    tollgate::parse("rules.yaml", &text, &|_| None).unwrap()
}

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let kibibytes: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kibibytes * 1024
}

fn ask(limiter: &VirtualLimiter, users: std::ops::Range<u64>, requests: u64) {
    let is_concurrency = limiter.rules().rules()[0].algorithm().name() == "concurrency";
    for round in 0..requests {
        limiter.set_time(START + Span::from_secs(round));
        for user in users.clone() {
            let user = user.to_string();
            let attributes = Attributes::from([("user", user.as_str())]);
            if is_concurrency {
                let acquired = limiter.try_acquire_now(&attributes, &Acquire::default(), None);
                let AcquireOutcome::Granted { .. } = acquired.unwrap() else {
                    panic!("a lease was denied");
                };
            } else {
                assert!(limiter.ask_now(&attributes, Ask::Exactly(1)).is_allowed());
            }
        }
    }
}

#[test]
fn child_that_fills_a_store() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    let (rule, requests, subjects) = CASES[case.parse::<usize>().unwrap()];
    let config = config(rule);
    let limiter = VirtualLimiter::new(&config, START);
    // The first request makes buffers that are not the memory of subjects.
    ask(&limiter, 0..64, requests);
    let before = resident();
    ask(&limiter, 64..subjects, requests);
    let taken = resident() - before;
    println!("memory {taken} {}", limiter.store().usage().bytes);
}

#[test]
fn estimates_are_within_a_tenth_of_the_resident_memory() {
    let mut wrong = Vec::new();
    for (case, (rule, requests, subjects)) in CASES.iter().enumerate() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_fills_a_store", "--nocapture"])
            .env(CASE, case.to_string())
            // Otherwise the allocator keeps outgrown tables for some time, up to three quarters of what is used.
            .env("MIMALLOC_PURGE_DELAY", "0")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, figures) = text.split_once("memory ").unwrap();
        let figures = figures.lines().next().unwrap();
        let figures: Vec<f64> = figures.split(' ').map(|it| it.parse().unwrap()).collect();
        let estimate = memory_bytes(&config(rule).policy.rules[0], *subjects, *requests) as f64;
        let of_each = |bytes: f64| bytes / *subjects as f64;
        let line = format!(
            "{rule}, {requests} requests: {:.1} bytes estimated, {:.1} reported, {:.1} resident",
            of_each(estimate),
            of_each(figures[1]),
            of_each(figures[0])
        );
        println!("{line}");
        // The store counts neither what the allocator adds to blocks nor all of the record of a lease.
        let (estimated, reported) = (estimate / figures[0], figures[1] / figures[0]);
        let least = if rule.contains("concurrency") {
            0.4
        } else {
            0.85
        };
        if !(0.9..=1.1).contains(&estimated) || !(least..=1.1).contains(&reported) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
