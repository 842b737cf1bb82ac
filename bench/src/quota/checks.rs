//! Checks and reservations, with a ledger and without, in memory and on Redis.

use std::error::Error;
use std::path::Path;

use tollgate::{Ask, Attributes, Engine, Reserve, ReserveOutcome};
use tollgate_bench::table::{Bar, median};
use tollgate_rig::{Redis, Stopwatch};

use super::{Effort, MOST_OF_LEDGER, MOST_OF_RESERVATION, Pair};

const TENANTS: usize = 100;
/// Divides the number of requests over a network, because these are slower.
const FEWER: usize = 10;

/// An engine, and its requests per round.
struct Side {
    engine: Engine,
    requests: usize,
    checks: Vec<f64>,
    reservations: Vec<f64>,
}

pub(super) async fn measure(effort: &Effort) -> Result<(Vec<Pair>, Vec<Pair>), Box<dyn Error>> {
    let redis = Redis::start();
    let on_redis = format!("store: {{ redis: {{ urls: [\"{}\"] }} }}", redis.url());
    let directory = std::env::temp_dir().join(format!("tollgate-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let mut sides = Vec::new();
    for (store, name) in [("store: memory", "memory"), (on_redis.as_str(), "redis")] {
        for is_ledgered in [true, false] {
            let requests = match name {
                "memory" => effort.requests,
                _ => effort.requests / FEWER,
            };
            sides.push(Side {
                engine: start(store, is_ledgered.then_some(&directory), name).await?,
                requests,
                checks: Vec::new(),
                reservations: Vec::new(),
            });
        }
    }
    let tenants: Vec<String> = (0..TENANTS).map(|it| format!("tenant-{it}")).collect();
    for round in 0..=effort.rounds {
        for side in &mut sides {
            let checked = side.check(&tenants).await;
            let reserved = side.reserve(&tenants).await?;
            // The first round is a warm-up.
            if round > 0 {
                side.checks.push(checked);
                side.reservations.push(reserved);
            }
        }
    }
    let medians: Vec<(f64, f64)> = sides
        .iter_mut()
        .map(|side| {
            let take = std::mem::take;
            (
                median(take(&mut side.checks)),
                median(take(&mut side.reservations)),
            )
        })
        .collect();
    for side in &sides {
        side.engine.close().await;
    }
    std::fs::remove_dir_all(&directory)?;
    let ledgered = [("memory", 0), ("redis", 2)].map(|(name, place)| Pair {
        name,
        ours: medians[place].0,
        theirs: medians[place + 1].0,
        bar: Bar::AtMost(MOST_OF_LEDGER),
    });
    let names = [
        "memory, with a ledger",
        "memory",
        "redis, with a ledger",
        "redis",
    ];
    let reserved = names.into_iter().zip(&medians).map(|(name, it)| Pair {
        name,
        ours: it.1,
        theirs: it.0,
        bar: match name {
            "memory" | "redis" => Bar::AtMost(MOST_OF_RESERVATION),
            _ => Bar::None,
        },
    });
    Ok((ledgered.into(), reserved.collect()))
}

async fn start(
    store: &str,
    directory: Option<&std::path::PathBuf>,
    name: &str,
) -> Result<Engine, Box<dyn Error>> {
    let ledger = directory.map(|it: &std::path::PathBuf| {
        let file: &Path = it;
        format!(
            "ledger: {{ sqlite: {} }}",
            file.join(format!("{name}.db")).display()
        )
    });
    let namespace = match directory {
        Some(_) => "ledgered",
        None => "plain",
    };
    let text = format!(
        "
version: 1
namespace: {namespace}
{store}
{}
subjects: {{ hash_secret: a secret of a benchmark }}
rules:
  - {{ id: monthly, per: [tenant], algorithm: quota, limit: 1000000000000, period: month }}
",
        ledger.unwrap_or_default()
    );
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None)?;
    Ok(Engine::start(&config).await?)
}

impl Side {
    /// Measures the microseconds per check.
    async fn check(&self, tenants: &[String]) -> f64 {
        let stopwatch = Stopwatch::start();
        for tenant in tenants.iter().cycle().take(self.requests) {
            let attributes = Attributes::from([("tenant", tenant.as_str())]);
            std::hint::black_box(self.engine.ask(&attributes, Ask::Exactly(1)).await);
        }
        stopwatch.elapsed().as_secs_f64() * 1e6 / self.requests as f64
    }

    /// Measures the microseconds per reserve and commit.
    async fn reserve(&self, tenants: &[String]) -> Result<f64, Box<dyn Error>> {
        let requests = self.requests / 5;
        let request = Reserve {
            units: 10,
            ..Reserve::default()
        };
        let stopwatch = Stopwatch::start();
        for tenant in tenants.iter().cycle().take(requests) {
            let attributes = Attributes::from([("tenant", tenant.as_str())]);
            match self.engine.reserve(&attributes, &request).await? {
                ReserveOutcome::Held { hold, .. } => drop(self.engine.commit(&hold.id, 7).await?),
                ReserveOutcome::Denied(_) => return Err("a reservation was denied".into()),
            }
        }
        Ok(stopwatch.elapsed().as_secs_f64() * 1e6 / requests as f64)
    }
}
