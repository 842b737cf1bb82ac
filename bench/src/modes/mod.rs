//! Leased and async mode on Redis, against the memory store and against exact checks: through the doors ([`doors`]), and
//! through the limiter in this process.
//!
//! In this process the clients are tasks, each with one request in flight. There is no door in between, so the ratio to
//! the memory store is harder to reach than behind a door, and has no bar.

mod doors;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Attributes, Engine, Started, Stopwatch};
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, median};
use tollgate_bench::workload::api_keys;
use tollgate_rig::Redis;

use crate::length::Length;

const IN_FLIGHT: usize = 64;
const KEYS: usize = 100_000;
/// The most requests that are not decided from a slice, for one busy key.
const HOT: Bar = Bar::AtMost(0.01);
/// The most time of a local denial, relative to a denial by the memory store.
const DENIAL: Bar = Bar::AtMost(1.2);
/// The least share of a limit that is admitted while it is being reached.
const ADMITTED: Bar = Bar::AtLeast(0.98);
const NO_OVERSHOOT: Bar = Bar::AtMost(1.0);

/// A rule that no run uses up, for many keys.
const PLENTY: &str = "algorithm: fixed-window, limit: 1000000000, window: 30d";

fn config(rule: &str, mode: &str, redis: Option<&Redis>) -> String {
    let store = redis.map_or_else(String::new, |redis| {
        format!(
            "store: {{ redis: {{ url: \"{}\", timeout: 2s }} }}\n",
            redis.url()
        )
    });
    let policy = match mode {
        "store: local" => "",
        _ => ", on_store_failure: fail-closed",
    };
    format!(
        "version: 1\nsubjects: {{ hash_secret: the secret of a benchmark }}\n{store}\
         rules: [{{ id: bench, per: [api_key], {rule}, {mode}{policy} }}]\n"
    )
}

/// The figures of one run.
struct Figures {
    per_second: f64,
    admitted: u64,
    /// The share of requests that asked the store.
    asked: f64,
}

/// Picks keys with a Zipf distribution of exponent 1.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: usize) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Zipf(sums.collect())
    }

    fn pick(&self, random: &mut fastrand::Rng) -> usize {
        let last = self.0.last().copied().unwrap_or(0.0);
        let wanted = random.f64() * last;
        self.0
            .partition_point(|sum| *sum < wanted)
            .min(self.0.len() - 1)
    }
}

fn elapsed(watch: &Stopwatch, begun: Started) -> Duration {
    Duration::from_nanos(watch.nanos_since(begun))
}

/// Keeps [`IN_FLIGHT`] requests in flight for `length`.
async fn load(engine: &Arc<Engine>, keys: &Arc<(Vec<String>, Zipf)>, length: Duration) -> Figures {
    let watch = Stopwatch::new();
    let begun = watch.start();
    let (requests, admitted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let before = engine.prepaid_usage();
    let tasks = (0..IN_FLIGHT as u64).map(|seed| {
        let (engine, keys, watch) = (Arc::clone(engine), Arc::clone(keys), watch.clone());
        let (requests, admitted) = (Arc::clone(&requests), Arc::clone(&admitted));
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            while elapsed(&watch, begun) < length {
                for _ in 0..16 {
                    let key = keys.0[keys.1.pick(&mut random)].as_str();
                    let decision = engine.check(&Attributes::from([("api_key", key)])).await;
                    requests.fetch_add(1, Ordering::Relaxed);
                    admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                }
                tokio::task::yield_now().await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        let _ = task.await;
    }
    let after = engine.prepaid_usage();
    let requests = requests.load(Ordering::Relaxed) as f64;
    Figures {
        per_second: requests / elapsed(&watch, begun).as_secs_f64(),
        admitted: admitted.load(Ordering::Relaxed),
        asked: (after.asked + after.draws - before.asked - before.draws) as f64 / requests,
    }
}

/// Starts an engine, with the sweeps that a server makes.
async fn start(text: &str) -> Result<Arc<Engine>, Box<dyn Error>> {
    let config = tollgate::parse("bench.yaml", text, &|_| None)?;
    let engine = Arc::new(Engine::start(&config).await?);
    let weak = Arc::downgrade(&engine);
    tokio::spawn(async move {
        while let Some(engine) = weak.upgrade() {
            engine.sweep();
            drop(engine);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    Ok(engine)
}

/// Returns the bars that were missed.
pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let (rounds, seconds) = length.rounds();
    let mut report = Report::new("modes");
    let [through_doors, to_noop] = doors::measure(length)?;
    report.section(
        &format!(
            "Through the doors: `tollgate serve`, its Redis and the load on one machine, {IN_FLIGHT} requests in flight, {KEYS} keys\nwith a \
             Zipf distribution, a limit that is not reached, a slice of 10 s, a flush of 500 ms; medians of {rounds} alternating\nrounds of \
             {seconds} s. Memory is the memory store, the others are on Redis."
        ),
        &[through_doors],
    );
    report.section(
        "Requests a second, relative to a no-op server of the same door. Limitador's figures are not of this run.",
        &[to_noop],
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let round = match length.is_quick() {
        true => Duration::from_millis(300),
        false => Duration::from_secs(seconds.into()),
    };
    let mut in_process = table();
    runtime.block_on(measure(rounds, round, &mut in_process))?;
    report.section(
        &format!(
            "Without a door, in one process: 2 threads, {IN_FLIGHT} requests in flight, medians of {rounds} alternating rounds of {} ms.",
            round.as_millis()
        ),
        &[in_process],
    );
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

fn table() -> Table {
    Table::new(["figure", "value", "bar", ""])
}

/// Adds a figure.
fn row(table: &mut Table, name: &str, value: f64, bar: Bar) {
    table.row([
        name.to_owned(),
        format!("{value:.3}"),
        bar.to_string(),
        bar.verdict(value),
    ]);
}

/// Returns the nanoseconds of a check that is denied.
async fn denial(engine: &Engine, checks: u32) -> f64 {
    let attributes = Attributes::from([("api_key", "denied")]);
    let watch = Stopwatch::new();
    let begun = watch.start();
    for _ in 0..checks {
        std::hint::black_box(engine.check(&attributes).await.is_allowed());
    }
    watch.nanos_since(begun) as f64 / f64::from(checks)
}

async fn measure(rounds: u32, length: Duration, table: &mut Table) -> Result<(), Box<dyn Error>> {
    let redis = Redis::start();
    let mut row = |name: &str, value: f64, bar: Bar| row(table, name, value, bar);
    let many = Arc::new((api_keys(KEYS), Zipf::new(KEYS)));
    let one = Arc::new((api_keys(1), Zipf::new(1)));
    let memory = start(&config(PLENTY, "mode: exact", None)).await?;
    let leased = "mode: leased, slice: 10s";
    let ours = start(&config(PLENTY, leased, Some(&redis))).await?;
    let exact = start(&config(PLENTY, "mode: exact", Some(&redis))).await?;
    let sides = [&memory, &ours, &exact];
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..=rounds {
        for (engine, rates) in sides.iter().zip(&mut rates) {
            let figures = load(engine, &many, length).await;
            if round > 0 {
                rates.push(figures.per_second);
            }
        }
    }
    let [memory_rate, leased_rate, exact_rate] = rates.map(median);
    row(
        "in process, memory: 1000 checks/s",
        memory_rate / 1000.0,
        Bar::None,
    );
    row(
        "in process, leased with a slice of 10 s: 1000 checks/s",
        leased_rate / 1000.0,
        Bar::None,
    );
    row(
        "in process, exact on Redis: 1000 checks/s",
        exact_rate / 1000.0,
        Bar::None,
    );
    row(
        "in process, leased to memory",
        leased_rate / memory_rate,
        Bar::None,
    );
    row(
        "in process, leased to exact",
        leased_rate / exact_rate,
        Bar::None,
    );
    let hot = start(&config(PLENTY, "mode: leased, slice: 100ms", Some(&redis))).await?;
    load(&hot, &one, length).await;
    let figures = load(&hot, &one, length).await;
    row(
        "calls per request, one busy key, slice 100 ms",
        figures.asked,
        HOT,
    );
    // A rate that the load exceeds many times.
    let reached = config(
        "algorithm: gcra, rate: 2000/s, burst: 1000",
        "mode: leased",
        Some(&redis),
    );
    let reached = start(&reached).await?;
    load(&reached, &one, length).await;
    let watch = Stopwatch::new();
    let begun = watch.start();
    let figures = load(&reached, &one, length).await;
    let refilled = 2000.0 * elapsed(&watch, begun).as_secs_f64();
    let admitted = figures.admitted as f64;
    row(
        "admitted of a rate that is being reached",
        admitted / refilled,
        ADMITTED,
    );
    row(
        "admitted of the most that this limit allows",
        admitted / (1000.0 + refilled),
        NO_OVERSHOOT,
    );
    let nothing = "algorithm: fixed-window, limit: 1, window: 30d";
    let in_memory = start(&config(nothing, "mode: exact", None)).await?;
    let local = start(&config(nothing, "store: local", Some(&redis))).await?;
    let mut nanos = [const { Vec::new() }; 2];
    for round in 0..=rounds.max(3) {
        for (engine, nanos) in [&in_memory, &local].iter().zip(&mut nanos) {
            let took = denial(engine, 100_000).await;
            if round > 0 {
                nanos.push(took);
            }
        }
    }
    let [memory_nanos, local_nanos] = nanos.map(median);
    row("denial by the memory store, ns", memory_nanos, Bar::None);
    row(
        "denial by a local rule beside Redis, ns",
        local_nanos,
        Bar::None,
    );
    row(
        "local denial to a denial by the memory store",
        local_nanos / memory_nanos,
        DENIAL,
    );
    Ok(())
}
