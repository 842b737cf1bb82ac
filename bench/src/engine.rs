//! Nanoseconds per check: the store, the whole limiter, and governor's keyed limiter.
//!
//! All sides get the same warm keys in the same random order, in alternating rounds.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use governor::DefaultKeyedRateLimiter;
use tollgate::{Attributes, Limiter};
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, median};
use tollgate_bench::workload;
use tollgate_core::{Key, Limit};
use tollgate_rig::Stopwatch;
use tollgate_store::{Applied, Ask, MemoryStore};

use crate::length::Length;

pub(crate) const FIVE_RULES: &str = include_str!("five-rules.yaml");
const KEYS: [usize; 3] = [1, 10_000, 1_000_000];
const THREADS: [usize; 2] = [1, 2];
/// How many API keys a tenant has.
const KEYS_PER_TENANT: usize = 100;

struct Effort {
    rounds: usize,
    /// The checks of a thread in a round.
    checks: usize,
}

pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let (rounds, checks) = length.pick((3, 100_000), (5, 1_000_000), (9, 1_000_000));
    let effort = Effort { rounds, checks };
    let mut report = Report::new("engine");
    report.say(&format!(
        "Nanoseconds per check and thread, medians of {rounds} rounds of {checks} checks."
    ));
    let columns = [
        "keys", "threads", "tollgate", "governor", "ratio", "bar", "",
    ];
    let mut store = Table::new(columns);
    let mut limiter = Table::new(columns);
    for keys in KEYS {
        let sides = Sides::new(keys)?;
        for threads in THREADS {
            let times = sides.measure(threads, &effort)?;
            let row = |ours: f64, ratio: f64, bar: Bar| {
                [
                    keys.to_string(),
                    threads.to_string(),
                    format!("{ours:.0}"),
                    format!("{:.0}", times.governor),
                    format!("{ratio:.2}"),
                    bar.to_string(),
                    bar.verdict(ratio),
                ]
            };
            let faster = times.governor / times.store;
            store.row(row(times.store, faster, store_bar(keys)));
            let slower = times.limiter / times.governor;
            limiter.row(row(times.limiter, slower, limiter_bar(keys)));
        }
    }
    report.section(
        "The store: one gcra charge, key already hashed; how many times as fast as governor.",
        &[store],
    );
    report.section(
        &format!(
            "The limiter: string attributes in, five rules of which two match (gcra per tenant, and per \
             tenant and\nAPI key, {KEYS_PER_TENANT} API keys a tenant), decision out, metrics on; its time in \
             times of governor's single check."
        ),
        &[limiter],
    );
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

fn store_bar(keys: usize) -> Bar {
    Bar::AtLeast(if keys >= 1_000_000 { 2.5 } else { 1.5 })
}

fn limiter_bar(keys: usize) -> Bar {
    match keys {
        1 => Bar::None,
        10_000 => Bar::AtMost(4.0),
        _ => Bar::AtMost(1.5),
    }
}

/// A limiter that decides about a key by its index.
trait Side: Sync {
    fn is_allowed(&self, key: usize) -> bool;
}

struct StoreSide {
    store: MemoryStore,
    limit: Limit,
    keys: Vec<Key>,
}

impl Side for StoreSide {
    fn is_allowed(&self, key: usize) -> bool {
        let charge = workload::charge(self.keys[key], &self.limit);
        let mut applied = Applied::default();
        self.store
            .apply_into(&[charge], Ask::Exactly(1), &mut applied);
        applied.allowed
    }
}

struct LimiterSide {
    limiter: Limiter,
    api_keys: Vec<String>,
    tenants: Vec<String>,
}

impl Side for LimiterSide {
    fn is_allowed(&self, key: usize) -> bool {
        let attributes = Attributes::from([
            ("tenant", self.tenants[key / KEYS_PER_TENANT].as_str()),
            ("api_key", self.api_keys[key].as_str()),
            ("action", "search"),
        ]);
        self.limiter.check_now(&attributes).is_allowed()
    }
}

struct GovernorSide {
    limiter: DefaultKeyedRateLimiter<String>,
    api_keys: Vec<String>,
}

impl Side for GovernorSide {
    fn is_allowed(&self, key: usize) -> bool {
        self.limiter.check_key(&self.api_keys[key]).is_ok()
    }
}

struct Sides {
    keys: usize,
    store: StoreSide,
    limiter: LimiterSide,
    governor: GovernorSide,
}

/// Nanoseconds per check and thread.
struct Times {
    store: f64,
    limiter: f64,
    governor: f64,
}

impl Sides {
    /// Makes the sides, and sends each key once to each of them.
    fn new(keys: usize) -> Result<Sides, Box<dyn Error>> {
        let api_keys = workload::api_keys(keys);
        let sides = Sides {
            keys,
            store: StoreSide {
                store: MemoryStore::new(10_000_000),
                limit: workload::gcra()?,
                keys: workload::hashed(&api_keys),
            },
            limiter: LimiterSide {
                limiter: Limiter::from_yaml("five-rules.yaml", FIVE_RULES)?,
                api_keys: api_keys.clone(),
                tenants: (0..keys.div_ceil(KEYS_PER_TENANT))
                    .map(|number| format!("tenant-{number}"))
                    .collect(),
            },
            governor: GovernorSide {
                limiter: workload::governor().ok_or("governor rejects the quota")?,
                api_keys,
            },
        };
        let each_key = [(0..keys).collect()];
        time(&sides.store, &each_key)?;
        time(&sides.limiter, &each_key)?;
        time(&sides.governor, &each_key)?;
        Ok(sides)
    }

    fn measure(&self, threads: usize, effort: &Effort) -> Result<Times, Box<dyn Error>> {
        let order = |thread| random_order(self.keys, effort.checks, thread);
        let orders: Vec<Vec<usize>> = (0..threads as u64).map(order).collect();
        let (mut store, mut limiter, mut governor) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=effort.rounds {
            let times = [
                time(&self.store, &orders)?,
                time(&self.governor, &orders)?,
                time(&self.limiter, &orders)?,
            ];
            // The first round is a warm-up.
            if round > 0 {
                store.push(times[0]);
                governor.push(times[1]);
                limiter.push(times[2]);
            }
        }
        Ok(Times {
            store: median(store),
            limiter: median(limiter),
            governor: median(governor),
        })
    }
}

fn random_order(keys: usize, checks: usize, seed: u64) -> Vec<usize> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..checks).map(|_| rng.usize(..keys)).collect()
}

/// Starts one thread for each list in `orders`. The threads start together, and each checks the keys of its
/// list, one after the other. Returns the nanoseconds per check of the slowest thread.
fn time<S: Side>(side: &S, orders: &[Vec<usize>]) -> Result<f64, Box<dyn Error>> {
    let start = Barrier::new(orders.len());
    let run = |order: &[usize]| {
        start.wait();
        let stopwatch = Stopwatch::start();
        let allowed = order.iter().filter(|key| black_box(side.is_allowed(**key)));
        let allowed = allowed.count();
        (stopwatch.elapsed(), allowed)
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = orders
            .iter()
            .map(|order| scope.spawn(|| run(order)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join();
        threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()
    })
    .map_err(|_| "a thread panicked")?;

    let checks: usize = orders.iter().map(Vec::len).sum();
    let allowed: usize = results.iter().map(|(_, allowed)| allowed).sum();
    if allowed != checks {
        return Err(format!("{} of {checks} checks were denied", checks - allowed).into());
    }
    let elapsed = results.iter().map(|(elapsed, _)| *elapsed).max();
    let nanos = elapsed.unwrap_or_default().as_secs_f64() * 1e9;
    Ok(nanos * orders.len() as f64 / checks as f64)
}
