//! The latency of a request when the server is not busy, against a PING through the same client library.
//!
//! Requests are sent at random times, independent of earlier answers. The latency is measured from the time
//! at which the request should have been sent. One thread sends and receives, and never sleeps: waking a
//! thread would take longer than most requests.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd};
use tokio::runtime::Runtime;
use tokio::task::{JoinSet, yield_now};
use tollgate_redis::RedisStore;
use tollgate_rig::{Redis, Stopwatch};

use super::callers;
use super::traffic::{SUBJECTS, Traffic};

pub(super) struct Latency {
    runtime: Runtime,
    store: RedisStore,
    connection: MultiplexedConnection,
}

/// Latencies of one round, in microseconds.
#[derive(Clone, Copy)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

impl Latency {
    pub(super) fn new(redis: &Redis) -> Result<Latency, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (store, connection) = runtime.block_on(async {
            let store = callers::connect(std::slice::from_ref(redis)).await?;
            let client = Client::open(redis.url())?;
            let connection = client.get_multiplexed_async_connection().await?;
            Ok::<_, Box<dyn Error>>((store, connection))
        })?;
        Ok(Latency {
            runtime,
            store,
            connection,
        })
    }

    /// Measures checks at this rate.
    pub(super) fn of_checks(
        &self,
        traffic: &Arc<Traffic>,
        per_second: f64,
        time: Duration,
    ) -> Result<Percentiles, Box<dyn Error>> {
        self.runtime.block_on(paced(per_second, time, |number| {
            let (store, traffic) = (self.store.clone(), Arc::clone(traffic));
            async move { callers::ask(&store, &traffic, number).await.is_ok() }
        }))
    }

    /// Measures PINGs at this rate.
    pub(super) fn of_pings(
        &self,
        per_second: f64,
        time: Duration,
    ) -> Result<Percentiles, Box<dyn Error>> {
        self.runtime.block_on(paced(per_second, time, |_| {
            let mut connection = self.connection.clone();
            async move {
                let mut ping = Cmd::new();
                ping.arg("PING");
                connection.send_packed_command(&ping).await.is_ok()
            }
        }))
    }
}

async fn paced<F>(
    per_second: f64,
    time: Duration,
    request: impl Fn(usize) -> F,
) -> Result<Percentiles, Box<dyn Error>>
where
    F: Future<Output = bool> + Send + 'static,
{
    let mut rng = Rng::new();
    let start = Arc::new(Stopwatch::start());
    let (mut tasks, mut due) = (JoinSet::new(), 0.0);
    while due < time.as_secs_f64() {
        while start.elapsed().as_secs_f64() < due {
            yield_now().await;
        }
        let (answer, start) = (request(rng.usize(..SUBJECTS)), Arc::clone(&start));
        tasks.spawn(async move {
            let answered = answer.await;
            answered.then(|| start.elapsed().as_secs_f64() - due)
        });
        due -= rng.f64().max(f64::MIN_POSITIVE).ln() / per_second;
    }
    let mut seconds = Vec::new();
    while let Some(task) = tasks.join_next().await {
        seconds.push(task?.ok_or("a request failed")?);
    }
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| {
        // The index is below the length, because the share is below 1.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let place = (seconds.len() as f64 * share) as usize;
        seconds.get(place).map_or(f64::NAN, |it| it * 1e6)
    };
    Ok(Percentiles {
        p50: at(0.5),
        p99: at(0.99),
    })
}
