//! Fair shares against the same rule without them: nanoseconds of a check in memory, and CPU time of Redis, with few and
//! with many active clients.
//!
//! All clients share one bucket. It is never empty where bars hold: a denied request is cheap without fair shares, so
//! requests that pass are compared. Other rows show a bucket for which all clients compete, so that nearly all requests
//! are denied: a fair bucket notes whom it denied. In Redis, a caller that is alone shows the cost of a call, and many
//! callers show the cost of a request in a call with others.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::{Attributes, Limiter};
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, figure, median};
use tollgate_core::fair::{Client, Lane};
use tollgate_core::{Charge, Key, Limit, OnDenied, Rate, Span};
use tollgate_redis::{Address, Options, RedisStore, Servers};
use tollgate_rig::{Redis, Stopwatch};
use tollgate_store::{Ask, Store, StoreError};

use crate::length::Length;

const CLIENTS: [u64; 2] = [10, 100_000];
const CALLERS: [usize; 2] = [1, 64];
const IN_MEMORY: Bar = Bar::AtMost(1.5);
const IN_REDIS: Bar = Bar::AtMost(1.4);
/// Long enough that no request fails on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How much a bucket holds.
#[derive(Clone, Copy)]
enum Bucket {
    /// More than any benchmark takes.
    Plenty,
    /// So little that nearly all requests are denied.
    Scarce,
}

impl Bucket {
    const ALL: [Bucket; 2] = [Bucket::Plenty, Bucket::Scarce];

    /// Returns the capacity, and the refill per second.
    fn capacity(self) -> u64 {
        match self {
            Bucket::Plenty => 10_000_000,
            Bucket::Scarce => 100,
        }
    }

    /// Returns the `bar` if the requests pass. Requests that are denied have no bar.
    fn bar(self, bar: Bar) -> Bar {
        match self {
            Bucket::Plenty => bar,
            Bucket::Scarce => Bar::None,
        }
    }

    fn name(self, clients: u64) -> String {
        match self {
            Bucket::Plenty => format!("{clients} clients"),
            Bucket::Scarce => format!("{clients} clients, denied"),
        }
    }
}

/// Returns the bars that were missed.
pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let (rounds, seconds) = length.rounds();
    let time = Duration::from_secs(seconds.into());
    let mut report = Report::new("fair");
    report.say(&format!(
        "Checks of one bucket, medians of {rounds} alternating rounds of {seconds} s. In the rows with *denied*, nearly all \
         requests are."
    ));
    let mut memory = Table::new(["in memory", "plain, ns", "fair, ns", "ratio", "bar", ""]);
    for clients in CLIENTS {
        let names: Vec<String> = (0..clients).map(|it| format!("tenant-{it}")).collect();
        for bucket in Bucket::ALL {
            let plain = limiter(bucket, "")?;
            let fair = limiter(bucket, ", fair: { per: [tenant] }")?;
            let mut figures = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                for (limiter, figures) in [&plain, &fair].into_iter().zip(&mut figures) {
                    figures.push(nanos(limiter, &names, time));
                }
            }
            memory.push(row(
                &bucket.name(clients),
                figures,
                0,
                bucket.bar(IN_MEMORY),
            ));
        }
    }
    report.section("A check in memory.", &[memory]);
    let mut redis = Table::new(["CPU of Redis", "plain, us", "fair, us", "ratio", "bar", ""]);
    for clients in CLIENTS {
        let side = Side::new()?;
        for bucket in Bucket::ALL {
            side.fill(bucket, clients)?;
            for callers in CALLERS {
                let mut figures = [Vec::new(), Vec::new()];
                for _ in 0..rounds {
                    for (is_fair, figures) in [false, true].into_iter().zip(&mut figures) {
                        figures.push(side.cpu(bucket, is_fair, clients, callers, time)?);
                    }
                }
                let name = format!("{}, {callers} callers", bucket.name(clients));
                redis.push(row(&name, figures, 1, bucket.bar(IN_REDIS)));
            }
        }
    }
    report.section("A request in Redis.", &[redis]);
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

fn row(name: &str, [plain, fair]: [Vec<f64>; 2], digits: usize, bar: Bar) -> Vec<String> {
    let (plain, fair) = (median(plain), median(fair));
    let ratio = fair / plain;
    vec![
        name.to_owned(),
        figure(plain, digits),
        figure(fair, digits),
        figure(ratio, 2),
        bar.to_string(),
        bar.verdict(ratio),
    ]
}

fn limiter(bucket: Bucket, fair: &str) -> Result<Limiter, Box<dyn Error>> {
    let capacity = bucket.capacity();
    let text = format!(
        "version: 1\nrules:\n  - {{ id: matching, algorithm: token-bucket, capacity: {capacity}, \
         refill: {capacity}/s{fair} }}\n"
    );
    Ok(Limiter::from_yaml("rules.yaml", &text)?)
}

/// Returns the nanoseconds of a check by a random client.
fn nanos(limiter: &Limiter, names: &[String], time: Duration) -> f64 {
    const BATCH: u32 = 1_000;
    let (mut random, mut checks) = (Rng::with_seed(1), 0_u32);
    let stopwatch = Stopwatch::start();
    while stopwatch.elapsed() < time {
        for _ in 0..BATCH {
            let name = &names[random.usize(..names.len())];
            let attributes = Attributes::from([("tenant", name.as_str())]);
            black_box(limiter.check_now(&attributes));
        }
        checks += BATCH;
    }
    stopwatch.elapsed().as_secs_f64() * 1e9 / f64::from(checks)
}

/// A server, and a store on it.
struct Side {
    redis: Redis,
    runtime: Runtime,
    store: RedisStore,
}

impl Side {
    fn new() -> Result<Side, Box<dyn Error>> {
        let (redis, runtime) = (Redis::start(), Runtime::new()?);
        let mut options = Options::new(Servers::Standalone(Address {
            host: "127.0.0.1".to_owned(),
            port: redis.port(),
        }));
        options.timeout = TIMEOUT;
        options.connect_timeout = TIMEOUT;
        let store = runtime.block_on(RedisStore::connect(options))?;
        Ok(Side {
            redis,
            runtime,
            store,
        })
    }

    /// Lets each client ask once, so that the bucket knows all of them.
    fn fill(&self, bucket: Bucket, clients: u64) -> Result<(), Box<dyn Error>> {
        const TASKS: u8 = 64;
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for task in 0..TASKS {
                let store = self.store.clone();
                tasks.spawn(async move {
                    for client in (u64::from(task)..clients).step_by(TASKS.into()) {
                        ask(&store, bucket, true, client).await?;
                    }
                    Ok::<_, StoreError>(())
                });
            }
            while let Some(filled) = tasks.join_next().await {
                filled??;
            }
            Ok(())
        })
    }

    /// Returns the microseconds of CPU time that Redis uses for a request.
    fn cpu(
        &self,
        bucket: Bucket,
        is_fair: bool,
        clients: u64,
        callers: usize,
        time: Duration,
    ) -> Result<f64, Box<dyn Error>> {
        let before = self.redis.cpu_micros();
        let asked = Arc::new(AtomicU64::new(0));
        self.runtime.block_on(async {
            let stop = Arc::new(AtomicBool::new(false));
            let mut tasks = JoinSet::new();
            for caller in 0..callers {
                let (store, stop) = (self.store.clone(), Arc::clone(&stop));
                let asked = Arc::clone(&asked);
                tasks.spawn(async move {
                    let mut random = Rng::with_seed(caller as u64);
                    while !stop.load(Ordering::Relaxed) {
                        ask(&store, bucket, is_fair, random.u64(..clients)).await?;
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<_, StoreError>(())
                });
            }
            sleep(time).await;
            stop.store(true, Ordering::Relaxed);
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            Ok::<_, Box<dyn Error>>(())
        })?;
        let used = self.redis.cpu_micros() - before;
        Ok(used as f64 / asked.load(Ordering::Relaxed) as f64)
    }
}

/// Asks for one unit of the bucket.
async fn ask(
    store: &RedisStore,
    bucket: Bucket,
    is_fair: bool,
    client: u64,
) -> Result<(), StoreError> {
    let limit =
        limit(bucket, is_fair, client).map_err(|it| StoreError::Script(it.to_string().into()))?;
    let charge = Charge {
        rule: "matching",
        on_denied: match is_fair {
            true => OnDenied::Note,
            false => OnDenied::Nothing,
        },
        ..Charge::new(Key::from_bits(bucket.capacity().into()), &limit)
    };
    store.apply(&[charge], Ask::Exactly(1)).await?;
    Ok(())
}

fn limit(bucket: Bucket, is_fair: bool, client: u64) -> Result<Limit, tollgate_core::ParamError> {
    let capacity = bucket.capacity();
    let refill = Rate::new(capacity, Span::SECOND)?;
    if !is_fair {
        return Limit::token_bucket(capacity, refill);
    }
    let limit = Limit::fair(capacity, refill, &[Lane::ONLY])?;
    Ok(match limit {
        Limit::Fair(bucket) => Limit::Fair(bucket.for_client(Client {
            // Spreads the ids, as a keyed hash does.
            id: client.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            weight: 1,
            lane: 0,
        })),
        other => other,
    })
}
