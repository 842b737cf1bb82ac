//! How far the sliding counters are from the exact log, on synthetic traffic.
//!
//! All algorithms get the same requests, each with its own state. Time is virtual and the random numbers have a
//! fixed seed, so the figures are the same on every machine.

use std::collections::VecDeque;
use std::error::Error;
use std::f64::consts::TAU;
use std::time::Duration;

use fastrand::Rng;
use tollgate_bench::table::Table;
use tollgate_core::{Limiting, ParamError, Span, Time, sliding_counter, sliding_log, two_window};

use crate::length::Length;

const LIMIT: u64 = 100;
const WINDOW: Span = Span::MINUTE;
/// The rate of requests that uses up exactly the limit, per second.
const FULL_RATE: f64 = LIMIT as f64 / 60.0;
const DAY: f64 = 86_400.0;
/// The start of the traffic: a midnight, far from the epoch.
const START: u64 = 1_700_006_400 * 1_000_000;

const HEADINGS: [&str; 6] = [
    "traffic",
    "exact log",
    "6 sub-buckets",
    "10 sub-buckets",
    "12 sub-buckets",
    "two windows",
];

pub(crate) fn run(length: Length) -> Result<(), Box<dyn Error>> {
    let requests: u32 = length.pick(50_000, 1_000_000, 1_000_000);
    println!("{LIMIT} a minute, {requests} requests of each kind of traffic\n");
    let traffic = [
        ("Poisson, 0.5x the limit", Traffic::Poisson { load: 0.5 }),
        ("Poisson, 1x the limit", Traffic::Poisson { load: 1.0 }),
        ("Poisson, 2x the limit", Traffic::Poisson { load: 2.0 }),
        (
            "bursts of ~15 s at 4x, pauses of ~45 s",
            Traffic::Bursts { until: 0.0 },
        ),
        ("a day's sine from 0.1x to 1.9x", Traffic::Diurnal),
    ];
    let mut differing = Table::new(HEADINGS);
    let mut admitted = Table::new(HEADINGS);
    let mut highest = Table::new(HEADINGS);
    for (name, traffic) in traffic {
        let mut algorithms = algorithms()?;
        let differ = replay(traffic, requests, &mut algorithms)?;
        let [a, b, c, d, e] = differ.map(|count| percent(count.into(), requests.into(), 3));
        differing.row([name.to_owned(), a, b, c, d, e]);
        let exact = algorithms[0].admitted() as f64;
        let all = algorithms
            .each_ref()
            .map(|algorithm| algorithm.admitted() as f64);
        let [a, b, c, d, e] = all.map(|count| percent(count, exact, 2));
        admitted.row([name.to_owned(), a, b, c, d, e]);
        let most = algorithms
            .each_ref()
            .map(|algorithm| algorithm.highest() as f64);
        let [a, b, c, d, e] = most.map(|count| percent(count, LIMIT as f64, 0));
        highest.row([name.to_owned(), a, b, c, d, e]);
    }
    println!("Requests that the exact log decides differently, of all requests\n{differing}");
    println!("Admitted requests, relative to the exact log\n{admitted}");
    println!(
        "The most requests admitted within one window length, relative to the limit\n{highest}"
    );
    Ok(())
}

fn percent(part: f64, whole: f64, digits: usize) -> String {
    format!("{:.digits$}%", 100.0 * part / whole)
}

/// Returns the algorithms in the order of [`HEADINGS`].
fn algorithms() -> Result<[Box<dyn Algorithm>; 5], ParamError> {
    Ok([
        algorithm(sliding_log::new(LIMIT, WINDOW)?),
        algorithm(sliding_counter::new(LIMIT, WINDOW, 6)?),
        algorithm(sliding_counter::new(LIMIT, WINDOW, 10)?),
        algorithm(sliding_counter::new(LIMIT, WINDOW, 12)?),
        algorithm(two_window::new(LIMIT, WINDOW)?),
    ])
}

/// Sends the same requests to all algorithms. Returns for each algorithm how often it decided differently
/// from the first one.
fn replay(
    mut traffic: Traffic,
    requests: u32,
    algorithms: &mut [Box<dyn Algorithm>; 5],
) -> Result<[u32; 5], Box<dyn Error>> {
    let mut rng = Rng::with_seed(0x746f_6c6c);
    let mut differing = [0; 5];
    let mut seconds = 0.0;
    for _ in 0..requests {
        seconds = traffic.next_after(seconds, &mut rng);
        let micros = u64::try_from(Duration::try_from_secs_f64(seconds)?.as_micros())?;
        let now = Time::from_micros(START + micros);
        let decided = algorithms.each_mut().map(|algorithm| algorithm.admits(now));
        for (count, decision) in differing.iter_mut().zip(decided) {
            *count += u32::from(decision != decided[0]);
        }
    }
    Ok(differing)
}

/// The times of requests. Loads are in multiples of the limit.
enum Traffic {
    /// Independent clients.
    Poisson { load: f64 },
    /// A batch client that sends until this time, and then pauses.
    Bursts { until: f64 },
    /// People send few requests at night, and many by day.
    Diurnal,
}

impl Traffic {
    fn next_after(&mut self, now: f64, rng: &mut Rng) -> f64 {
        match self {
            Traffic::Poisson { load } => now + gap(*load, rng),
            Traffic::Bursts { until } => {
                let next = now + gap(4.0, rng);
                if next <= *until {
                    return next;
                }
                let resumes = *until + exponential(45.0, rng);
                *until = resumes + exponential(15.0, rng);
                resumes
            }
            Traffic::Diurnal => {
                // Draw requests at the peak load, and keep each with the probability of its hour.
                let mut next = now;
                loop {
                    next += gap(1.9, rng);
                    let load = 1.0 + 0.9 * (TAU * next / DAY).sin();
                    if rng.f64() * 1.9 < load {
                        return next;
                    }
                }
            }
        }
    }
}

/// Returns the seconds until the next request of a Poisson process.
fn gap(load: f64, rng: &mut Rng) -> f64 {
    exponential(1.0 / (load * FULL_RATE), rng)
}

fn exponential(mean: f64, rng: &mut Rng) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

/// An algorithm with the state of one subject, and statistics of its admissions.
trait Algorithm {
    fn admits(&mut self, now: Time) -> bool;
    /// Returns the number of admitted requests.
    fn admitted(&self) -> u64;
    /// Returns the most admitted requests within one window length.
    fn highest(&self) -> usize;
}

struct Subject<L: Limiting> {
    limit: L,
    state: L::State,
    admitted: u64,
    /// The times of admitted requests within the last window length.
    recent: VecDeque<Time>,
    highest: usize,
}

fn algorithm<L: Limiting + 'static>(limit: L) -> Box<dyn Algorithm> {
    Box::new(Subject {
        limit,
        state: L::State::default(),
        admitted: 0,
        recent: VecDeque::new(),
        highest: 0,
    })
}

impl<L: Limiting> Algorithm for Subject<L> {
    fn admits(&mut self, now: Time) -> bool {
        if !self.limit.decide(&self.state, 1, now).is_allowed() {
            return false;
        }
        self.limit.charge(&mut self.state, 1, now);
        while let Some(oldest) = self.recent.front()
            && *oldest + WINDOW <= now
        {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        self.admitted += 1;
        self.highest = self.highest.max(self.recent.len());
        true
    }

    fn admitted(&self) -> u64 {
        self.admitted
    }

    fn highest(&self) -> usize {
        self.highest
    }
}
