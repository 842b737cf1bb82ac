//! The side of Tollgate: tasks that call a store in this process, each with one request at a time.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate_bench::process::cpu_micros;
use tollgate_redis::{Address, Options, RedisStore, Servers};
use tollgate_rig::{Redis, Stopwatch};
use tollgate_store::{Ask, Store, StoreError};

use super::Round;
use super::traffic::{SUBJECTS, Traffic};

/// Long enough that no request fails on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A store, its servers, and its runtime.
pub(super) struct Side<'s> {
    runtime: Runtime,
    store: RedisStore,
    servers: &'s [Redis],
}

/// Connects to these servers, as a cluster if there are several.
pub(super) async fn connect(servers: &[Redis]) -> Result<RedisStore, Box<dyn Error>> {
    let address = |server: &Redis| Address {
        host: "127.0.0.1".to_owned(),
        port: server.port(),
    };
    let mut options = Options::new(match servers {
        [only] => Servers::Standalone(address(only)),
        several => Servers::Cluster(several.iter().map(address).collect()),
    });
    options.timeout = TIMEOUT;
    options.connect_timeout = TIMEOUT;
    Ok(RedisStore::connect(options).await?)
}

impl<'s> Side<'s> {
    pub(super) fn new(servers: &'s [Redis]) -> Result<Side<'s>, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(worker_threads())
            .enable_all()
            .build()?;
        let store = runtime.block_on(connect(servers))?;
        Ok(Side {
            runtime,
            store,
            servers,
        })
    }

    /// Runs `callers` tasks with random subjects for `time`.
    pub(super) fn run(
        &self,
        traffic: &Arc<Traffic>,
        callers: usize,
        time: Duration,
    ) -> Result<Round, Box<dyn Error>> {
        let batches_before = self.store.metrics().batches();
        let our_cpu = cpu_micros(std::process::id())?;
        let redis_cpu = self.cpu_micros();
        let stopwatch = Stopwatch::start();
        let mut latencies = self.runtime.block_on(async {
            let stop = Arc::new(AtomicBool::new(false));
            let mut tasks = JoinSet::new();
            for _ in 0..callers {
                let (store, traffic) = (self.store.clone(), Arc::clone(traffic));
                tasks.spawn(caller(store, traffic, Arc::clone(&stop), stopwatch));
            }
            sleep(time).await;
            stop.store(true, Ordering::Relaxed);
            let mut latencies = Vec::new();
            while let Some(asked) = tasks.join_next().await {
                latencies.extend(asked??);
            }
            Ok::<Vec<Duration>, Box<dyn Error>>(latencies)
        })?;
        let seconds = stopwatch.elapsed().as_secs_f64();
        let redis_cpu = self.cpu_micros() - redis_cpu;
        let our_cpu = cpu_micros(std::process::id())? - our_cpu;
        let batches = self.store.metrics().batches();
        let requests = latencies.len() as f64;
        latencies.sort_unstable();
        let at = |percent: usize| {
            let latency = latencies.get(latencies.len() * percent / 100);
            latency.map_or(f64::NAN, |it| it.as_secs_f64() * 1e3)
        };
        Ok(Round {
            per_second: requests / seconds,
            redis_cpu: redis_cpu / requests,
            our_cpu: our_cpu / requests,
            batch: (batches.sum - batches_before.sum) as f64
                / (batches.count - batches_before.count) as f64,
            p50_millis: at(50),
            p99_millis: at(99),
        })
    }

    /// Sends one request for each of the first `count` subjects.
    pub(super) fn fill(&self, traffic: &Arc<Traffic>, count: usize) -> Result<(), Box<dyn Error>> {
        const TASKS: usize = 256;
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for task in 0..TASKS {
                let (store, traffic) = (self.store.clone(), Arc::clone(traffic));
                tasks.spawn(async move {
                    for number in (task..count).step_by(TASKS) {
                        ask(&store, &traffic, number).await?;
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

    fn cpu_micros(&self) -> f64 {
        let all = self.servers.iter().map(Redis::cpu_micros);
        all.sum::<u64>() as f64
    }
}

/// Leaves half of the cores to the servers.
fn worker_threads() -> usize {
    let all = std::thread::available_parallelism().map_or(2, usize::from);
    (all / 2).max(1)
}

async fn caller(
    store: RedisStore,
    traffic: Arc<Traffic>,
    stop: Arc<AtomicBool>,
    clock: Stopwatch,
) -> Result<Vec<Duration>, StoreError> {
    let (mut rng, mut latencies) = (Rng::new(), Vec::new());
    let mut sent = clock.elapsed();
    while !stop.load(Ordering::Relaxed) {
        ask(&store, &traffic, rng.usize(..SUBJECTS)).await?;
        let now = clock.elapsed();
        latencies.push(now - sent);
        sent = now;
    }
    Ok(latencies)
}

/// Sends one request of a subject, which must be allowed.
pub(super) async fn ask(
    store: &RedisStore,
    traffic: &Traffic,
    number: usize,
) -> Result<(), StoreError> {
    let charges = traffic.charges(number);
    let applied = store.apply(&charges, Ask::Exactly(1)).await?;
    if applied.allowed {
        Ok(())
    } else {
        Err(StoreError::Script("a request was denied".into()))
    }
}
