//! Runs one fault, from warm-up to recovery, and records everything.

use std::collections::BTreeMap;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use tollgate::ConfigError;
use tollgate_redis::{BreakerOptions, Options, RedisStore, StartError};
use tollgate_rig::Stopwatch;

use crate::fault::{Fault, Stage};
use crate::load::{Limiter, Load, Sample, ask, attributes};
use crate::policy::{self, By, LIMIT, Policy};
use crate::scheduling::Delays;

/// How long the breaker stays open. The default of 30 s would make the runs long.
pub const BREAKER_OPEN: Duration = Duration::from_secs(1);

/// How long to wait for the store after a fault. A store that has not decided by then is reported as never
/// back.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The lengths of the phases of a run.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Before the fault.
    pub warm_up: Duration,
    /// The length of the fault, unless the fault determines it.
    pub fault: Duration,
    /// After the store is back.
    pub settle: Duration,
}

impl Pace {
    /// For the report.
    pub const FULL: Pace = Pace {
        warm_up: Duration::from_millis(2500),
        fault: Duration::from_millis(4000),
        settle: Duration::from_millis(2000),
    };

    /// For a smoke test.
    pub const QUICK: Pace = Pace {
        warm_up: Duration::from_millis(1200),
        fault: Duration::from_millis(1500),
        settle: Duration::from_millis(300),
    };
}

/// The observations of one run.
#[derive(Debug)]
pub struct Observed {
    /// When the fault began.
    pub began: Duration,
    /// When the fault ended.
    pub ended: Duration,
    /// How often the servers lost their state.
    pub losses: u64,
    /// All answers, in order.
    pub samples: Vec<Sample>,
    /// How late the process was scheduled.
    pub delays: Delays,
    /// For each policy, what a new subject got after the fault.
    pub fresh: Vec<Fresh>,
    /// Errors of the store, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// How long a decision may wait for the store.
    pub timeout: Duration,
    /// Panics anywhere in the process.
    pub panics: usize,
}

/// The result of a new subject that sent requests as fast as it could.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fresh {
    /// How many requests were admitted.
    pub admitted: u64,
    /// How many units may have been refilled meanwhile.
    pub refilled: u64,
    /// Whether the store decided all requests.
    pub by_store: bool,
}

impl Fresh {
    /// Whether the subject got exactly its limit, plus at most the refilled units.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let most = LIMIT.capacity + self.refilled;
        self.by_store && (LIMIT.capacity..=most).contains(&self.admitted)
    }
}

/// Why a run failed. Such a failure says nothing about the limiter.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The rules are not valid.
    #[error("the rules are invalid: {0}")]
    Rules(#[from] ConfigError),
    /// The store is unusable before the fault.
    #[error("the store is unusable: {0}")]
    Store(#[from] StartError),
    /// A server could not be started or controlled.
    #[error("a server could not be started or controlled: {0}")]
    Servers(#[from] JoinError),
}

/// Injects `fault`, and records what happens.
///
/// # Errors
/// If the servers or the limiter cannot be started. Mistakes of the limiter are not errors: they are in the
/// result.
pub async fn run(fault: &Fault, pace: Pace) -> Result<Observed, RunError> {
    let panics_before = count_panics();
    let (stage, length) = (fault.stage, pace.fault);
    let stage: Arc<dyn Stage> = spawn_blocking(move || stage(length)).await?.into();
    let mut options = stage.options();
    options.breaker = BreakerOptions {
        timeout_duration: BREAKER_OPEN,
        ..BreakerOptions::default()
    };
    let timeout = options.timeout;
    let store = connect(options).await?;
    let config = policy::config()?;
    let limiter = policy::limiter(&config, store, stage.clock());
    let limiter = Arc::new(limiter);

    let clock = Stopwatch::start();
    let stop = Arc::new(AtomicBool::new(false));
    let delays = tokio::spawn(Delays::watch(clock, Arc::clone(&stop)));
    let load = Load::start(&limiter, clock, stop);
    sleep(pace.warm_up).await;
    let began = clock.elapsed();
    let struck = Arc::clone(&stage);
    let losses = spawn_blocking(move || struck.strike(length)).await?;
    let ended = clock.elapsed();
    while !load.is_decided_by_store_since(ended) && clock.elapsed() < ended + TIMEOUT {
        sleep(Duration::from_millis(2)).await;
    }
    sleep(pace.settle).await;
    let (samples, failed) = load.stop().await;
    let delays = delays.await?;
    let mut fresh = Vec::new();
    for policy in Policy::ALL {
        fresh.push(exhaust(&limiter, policy).await);
    }
    let mut errors = BTreeMap::new();
    for (_, kind, count) in limiter.store().store().metrics().errors() {
        *errors.entry(kind).or_default() += count;
    }
    drop(limiter);
    spawn_blocking(move || drop(stage)).await?;
    Ok(Observed {
        began,
        ended,
        losses,
        samples,
        delays,
        fresh,
        errors,
        timeout,
        panics: count_panics() - panics_before + failed.len(),
    })
}

/// Connects to servers that were just started. Tries again for a while, because on a busy machine they may be
/// slow at first.
async fn connect(options: Options) -> Result<RedisStore, StartError> {
    let clock = Stopwatch::start();
    loop {
        match RedisStore::connect(options.clone()).await {
            Err(error) if error.passing && clock.elapsed() < TIMEOUT => {}
            done => return done,
        }
    }
}

/// Sends more requests than the limit for a new subject. Tries another subject if a policy decided because the
/// machine was too busy.
async fn exhaust(limiter: &Limiter, policy: Policy) -> Fresh {
    let clock = Stopwatch::start();
    let mut number = 0;
    loop {
        let fresh = exhaust_once(limiter, policy, &format!("fresh-{number}")).await;
        if fresh.by_store || clock.elapsed() > TIMEOUT {
            return fresh;
        }
        number += 1;
        sleep(BREAKER_OPEN / 4).await;
    }
}

async fn exhaust_once(limiter: &Limiter, policy: Policy, user: &str) -> Fresh {
    let attributes = attributes(policy, user);
    let clock = Stopwatch::start();
    let mut fresh = Fresh {
        by_store: true,
        ..Fresh::default()
    };
    for _ in 0..LIMIT.capacity * 2 {
        let (decision, at_once) = ask(limiter, &attributes).await;
        fresh.admitted += u64::from(decision.is_allowed());
        fresh.by_store &= policy.decided_by(&decision, at_once) != By::Policy;
    }
    let micros = u64::try_from(clock.elapsed().as_micros()).unwrap_or(u64::MAX);
    fresh.refilled = micros.saturating_mul(LIMIT.per_second) / 1_000_000;
    fresh
}

/// Returns the number of panics in this process since the first call.
fn count_panics() -> usize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static COUNT: Once = Once::new();
    COUNT.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            usual(panic);
        }));
    });
    PANICS.load(Ordering::SeqCst)
}
