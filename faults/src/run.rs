//! One fault, from warm-up to recovery, and what was seen.

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

use crate::delay::Delays;
use crate::fault::{Fault, Stage};
use crate::load::{Limiter, Load, Sample, ask, attributes};
use crate::policy::{self, By, LIMIT, Policy};

/// How long a breaker stays open here. By default it is 30 s, which would make the runs long.
pub const BREAKER_OPEN: Duration = Duration::from_secs(1);

/// After so long without an answer by the store, it will not come by itself any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the phases of a run are.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Before the fault.
    pub warm_up: Duration,
    /// The fault, where it does not set its own time.
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

    /// To see that it works.
    pub const QUICK: Pace = Pace {
        warm_up: Duration::from_millis(1200),
        fault: Duration::from_millis(1500),
        settle: Duration::from_millis(300),
    };
}

/// What was seen of one fault.
#[derive(Debug)]
pub struct Seen {
    /// When the fault began and ended.
    pub began: Duration,
    /// See `began`.
    pub ended: Duration,
    /// How often the servers have lost what they knew.
    pub losses: u64,
    /// All answers, in order.
    pub samples: Vec<Sample>,
    /// How late the process was scheduled.
    pub delays: Delays,
    /// By policy, what a subject got that nobody had seen before, after the fault.
    pub fresh: Vec<Fresh>,
    /// Errors that the store has met, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// How long a decision may wait for the store.
    pub timeout: Duration,
    /// Panics anywhere in the process.
    pub panics: usize,
}

/// What a subject got that nobody had seen before, asking as fast as it could.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fresh {
    /// How many were admitted.
    pub admitted: u64,
    /// How many may have come in meanwhile.
    pub refilled: u64,
    /// Whether the store has answered all of them.
    pub by_store: bool,
}

impl Fresh {
    /// Whether that is its limit exactly: all of it, and nothing but what came in meanwhile.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let most = LIMIT.capacity + self.refilled;
        self.by_store && (LIMIT.capacity..=most).contains(&self.admitted)
    }
}

/// Why a run could not be made. Nothing is known of the limiter then.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The rules are not valid.
    #[error("the rules are wrong: {0}")]
    Rules(#[from] ConfigError),
    /// The store is not there to begin with.
    #[error("the store cannot be used: {0}")]
    Store(#[from] StartError),
    /// The servers did not do as they were told.
    #[error("the servers did not play along: {0}")]
    Servers(#[from] JoinError),
}

/// Brings about `fault`, and watches.
///
/// # Errors
/// If that cannot be done; what the limiter does wrong is in what was seen.
pub async fn run(fault: &Fault, pace: Pace) -> Result<Seen, RunError> {
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
    while !load.is_decided_by_store_since(ended) && clock.elapsed() < ended + PATIENCE {
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
    Ok(Seen {
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

/// A store on these servers, which were just started: on a busy machine they may be slow at first.
async fn connect(options: Options) -> Result<RedisStore, StartError> {
    let clock = Stopwatch::start();
    loop {
        match RedisStore::connect(options.clone()).await {
            Err(error) if error.passing && clock.elapsed() < PATIENCE => {}
            done => return done,
        }
    }
}

/// Asks for more than the limit on behalf of somebody new; of another, if a policy has answered
/// because the machine was too busy.
async fn exhaust(limiter: &Limiter, policy: Policy) -> Fresh {
    let patience = Stopwatch::start();
    let mut number = 0;
    loop {
        let fresh = exhaust_once(limiter, policy, &format!("fresh-{number}")).await;
        if fresh.by_store || patience.elapsed() > PATIENCE {
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

/// How many panics there have been in this process since it was first asked.
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
