//! The limiter that a config names, with its stack of stores.
//!
//! Only this module puts stores together. [`Routed`] is outermost, unless all state is in this process. It
//! has a stack for each store. From the outside in: split allowances ([`Sharded`]), known denials
//! ([`Remembered`], on Redis), the ledger ([`Ledgered`], if the config names one), reports of async mode
//! ([`Reported`], on Redis), slices of leased mode ([`Prepaid`], on Redis), spans ([`Traced`]), and the store itself.
//! Add a new wrapper only here, in `stack`.

mod open;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "redis")]
use std::time::Duration;

#[cfg(feature = "redis")]
use arc_swap::ArcSwapOption;
#[cfg(feature = "redis")]
use tokio::time::sleep;
use tollgate_config::{Config, RuleStore, Store as StoreConfig};
#[cfg(feature = "redis")]
use tollgate_core::StoreId;
#[cfg(feature = "ledger")]
use tollgate_ledger::Ledger;
#[cfg(feature = "redis")]
use tollgate_redis::{BreakerState, Finding, RedisStore, SharedLog, SharedValues};
#[cfg(feature = "redis")]
use tollgate_store::MonotonicClock;
#[cfg(any(feature = "ledger", feature = "redis"))]
use tollgate_store::SystemClock;
use tollgate_store::{Immediate, MemoryStore, Store, Usage};

#[cfg(feature = "redis")]
use self::open::redis_options;
use self::open::{Parts, check_build};
#[cfg(feature = "ledger")]
use self::open::{ledger_error, ledger_options};
#[cfg(feature = "ledger")]
use crate::accounts::Accounts;
#[cfg(any(feature = "ledger", feature = "redis"))]
use crate::deployment::Deployment;
#[cfg(feature = "ledger")]
use crate::ledgered::{LedgerSync, Ledgered, PostError};
use crate::limiter::Limiter;
use crate::start::StartError;
#[cfg(feature = "redis")]
use crate::stores::{Prepaid, PrepaidUsage, Remembered, Reported, ReportedUsage, Sharded};
use crate::stores::{Routed, Traced};

/// A limiter with the store and the ledger that a config names. It derefs to its [`Limiter`].
pub struct Engine {
    limiter: Limiter<Arc<dyn Store>>,
    /// The store in this process: the default store, or that of local rules.
    memory: Arc<Traced<MemoryStore>>,
    /// The stores on Redis: the default one, if it is on Redis, and then those with a name.
    #[cfg(feature = "redis")]
    redis: Vec<Redis>,
    #[cfg(feature = "ledger")]
    sync: Option<Arc<LedgerSync>>,
    #[cfg(any(feature = "ledger", feature = "redis"))]
    deployment: Deployment,
}

/// A Redis of an engine.
#[cfg(feature = "redis")]
struct Redis {
    /// The name of the store; `None` for the default store.
    name: Option<Arc<str>>,
    store: RedisStore,
    /// How many requests were denied from known denials.
    known_denials: Arc<AtomicU64>,
    prepaid: Arc<Slices>,
    reported: Arc<Reports>,
    /// Why the store could not be used since the start; `None` once it can be used.
    missing: Arc<ArcSwapOption<String>>,
}

/// The part of the stack on one Redis that draws slices.
#[cfg(feature = "redis")]
type Slices = Prepaid<Traced<RedisStore>>;

/// The part of the stack on one Redis that sends reports.
#[cfg(feature = "redis")]
type Reports = Reported<Arc<dyn Store>>;

/// How often an engine that has started without its store tries to reach the store.
#[cfg(feature = "redis")]
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

impl Deref for Engine {
    type Target = Limiter<Arc<dyn Store>>;

    fn deref(&self) -> &Self::Target {
        &self.limiter
    }
}

impl Engine {
    /// Starts the limiter of a validated config, and checks that its store and its ledger answer. While
    /// the store cannot be reached, tries again for as long as the config's `connect_patience`. Needs a
    /// Tokio runtime, unless all state is in memory.
    ///
    /// # Errors
    /// If the store or the ledger does not answer, does not match the config, or is not part of this
    /// build.
    pub async fn start(config: &Config) -> Result<Engine, StartError> {
        let parts = Parts::open(config).await?;
        #[cfg(any(feature = "ledger", feature = "redis"))]
        let deployment = {
            let deployment = parts.deployment(config);
            if let Err(error) = deployment.join().await {
                // Close the ledger first: its lock must be free when the caller gets the error.
                #[cfg(feature = "ledger")]
                if let Some(ledger) = parts.ledger {
                    ledger.close().await;
                }
                return Err(error);
            }
            deployment
        };
        Ok(Engine::build(
            config,
            parts,
            #[cfg(any(feature = "ledger", feature = "redis"))]
            deployment,
        ))
    }

    /// Starts the limiter as [`start`](Engine::start) does, but without a check of the store. Failure
    /// policies decide until the store answers.
    ///
    /// # Errors
    /// If the ledger does not answer, or this build lacks a part that the config names.
    pub async fn start_without_store(config: &Config) -> Result<Engine, StartError> {
        check_build(config)?;
        let mut parts = Parts::default();
        parts.skip_store(config)?;
        parts.open_ledger(config).await?;
        Ok(Engine::build_unchecked(config, parts))
    }

    /// Starts the limiter without a check of the store and the ledger. Failure policies decide until
    /// they answer.
    ///
    /// # Errors
    /// If this build lacks a part that the config names, or if something cannot be read, such as a
    /// password file.
    pub fn start_unchecked(config: &Config) -> Result<Engine, StartError> {
        check_build(config)?;
        let mut parts = Parts::default();
        parts.skip_store(config)?;
        #[cfg(feature = "ledger")]
        if let Some(options) = ledger_options(config)? {
            parts.ledger = Some(Ledger::start(options).map_err(|error| ledger_error(&error))?);
        }
        Ok(Engine::build_unchecked(config, parts))
    }

    /// Builds an engine that learns later whether its store and its ledger belong to this deployment.
    fn build_unchecked(config: &Config, parts: Parts) -> Engine {
        #[cfg(any(feature = "ledger", feature = "redis"))]
        let deployment = parts.deployment(config);
        Engine::build(
            config,
            parts,
            #[cfg(any(feature = "ledger", feature = "redis"))]
            deployment,
        )
    }

    /// Builds the stacks of stores, from the inside out.
    #[allow(unused_mut, unused_variables)] // Each feature adds a part.
    fn build(
        config: &Config,
        parts: Parts,
        #[cfg(any(feature = "ledger", feature = "redis"))] deployment: Deployment,
    ) -> Engine {
        let memory = Arc::new(Traced(MemoryStore::new(config.subjects.max_keys)));
        let mut ledger = LedgerPart::default();
        #[cfg(feature = "ledger")]
        if let Some(open) = parts.ledger {
            let clock = Arc::new(SystemClock::new());
            ledger.sync = Some(Arc::new(LedgerSync::new(open, &config.namespace, clock)));
        }
        let mut default = match config.store {
            StoreConfig::Memory => Some(ledger.wrap(Arc::clone(&memory) as Arc<dyn Store>)),
            _ => None,
        };
        #[cfg(feature = "redis")]
        let (mut redis, mut named) = (Vec::new(), Vec::new());
        #[cfg(feature = "redis")]
        for ((name, store), (_, options)) in parts.redis.into_iter().zip(config.redis_stores()) {
            let Stack {
                store: stack,
                prepaid,
                reported,
                known_denials,
            } = stack(&store, options, &ledger);
            match &name {
                None => default = Some(stack),
                Some(name) => named.push((StoreId::named(name), stack)),
            }
            let missing = Arc::default();
            if parts.unchecked {
                watch_for(&store, &missing);
            }
            redis.push(Redis {
                name,
                store,
                known_denials,
                prepaid,
                reported,
                missing,
            });
        }
        // Without Redis in this build, `check_build` has rejected a config with it.
        let mut store = default.unwrap_or_else(|| Arc::clone(&memory) as Arc<dyn Store>);
        let is_alone = config.is_local() && config.stores.is_empty();
        if !is_alone {
            let local = Arc::clone(&memory) as Arc<dyn Immediate>;
            let mut routed = Routed::new(local, store);
            #[cfg(feature = "redis")]
            for (id, store) in named {
                routed = routed.with(id, store);
            }
            store = Arc::new(routed);
        }
        let mut limiter = Limiter::builder(config, store);
        if let StoreConfig::Redis(redis) = &config.store {
            limiter = limiter
                .replicas(redis.replicas)
                .fallback_factor(redis.fallback_factor);
        }
        #[cfg(any(feature = "ledger", feature = "redis"))]
        if deployment.is_shared() {
            limiter = limiter.keyring(deployment.keyring());
        }
        let limiter = limiter.build();
        Engine {
            limiter,
            memory,
            #[cfg(feature = "redis")]
            redis,
            #[cfg(feature = "ledger")]
            sync: ledger.sync,
            #[cfg(any(feature = "ledger", feature = "redis"))]
            deployment,
        }
    }

    /// Returns how much state is kept in this process; `None` if all rules keep theirs in Redis.
    #[must_use]
    pub fn memory_usage(&self) -> Option<Usage> {
        let active = self.limiter.loaded();
        let config = active.config();
        let is_local = |rule: &tollgate_config::Rule| *rule.store() == RuleStore::Local;
        let is_used =
            config.store == StoreConfig::Memory || config.policy.rules.iter().any(is_local);
        is_used.then(|| self.memory.0.usage())
    }

    /// Reports what async rules have admitted, and gives drawn units back that were not used. This takes 3 seconds
    /// at most, for all stores together. Then writes the entries that wait for the ledger, and accepts no more.
    /// Call this at the end of a process.
    pub async fn close(&self) {
        #[cfg(feature = "redis")]
        {
            let mut closing = tokio::task::JoinSet::new();
            for redis in &self.redis {
                let (reported, prepaid) = (Arc::clone(&redis.reported), Arc::clone(&redis.prepaid));
                closing.spawn(async move {
                    reported.close().await;
                    prepaid.close().await;
                });
            }
            // Units that are left then count as used until they refill.
            let _ = tokio::time::timeout(CLOSING, closing.join_all()).await;
        }
        #[cfg(feature = "ledger")]
        if let Some(sync) = &self.sync {
            sync.ledger().close().await;
        }
    }
}

/// Methods for an engine with state in Redis or in a ledger, which outlives the engine.
#[cfg(any(feature = "ledger", feature = "redis"))]
impl Engine {
    /// Checks that the store and the ledger still belong to instances with the same `hash_secret`. Writes
    /// their records again if they are lost, for example because Redis has restarted empty. Logs a mismatch.
    /// Call this every few seconds.
    pub async fn check_fingerprints(&self) {
        if let Some(keyring) = self.deployment.check().await {
            self.limiter.current.rekey(keyring);
        }
    }

    /// Returns, for the store and for the ledger, whether another deployment uses it, as of the last
    /// [check](Self::check_fingerprints).
    pub fn fingerprint_mismatches(&self) -> impl Iterator<Item = (&str, bool)> + '_ {
        self.deployment.mismatches()
    }

    /// Makes the store and the ledger belong to this config, and returns where they are. State under secrets that
    /// the config does not list is not found any more. Stop all other instances first. Needs a Tokio runtime.
    ///
    /// # Errors
    /// If the store or the ledger does not answer, or is in use.
    pub async fn adopt(config: &Config) -> Result<Vec<String>, StartError> {
        let parts = Parts::open(config).await?;
        let adopted = parts.deployment(config).adopt().await;
        #[cfg(feature = "ledger")]
        if let Some(ledger) = parts.ledger {
            ledger.close().await;
        }
        adopted
    }
}

/// The methods for an engine on Redis.
#[cfg(feature = "redis")]
impl Engine {
    /// Returns the Redis of the default store; `None` if that is in this process.
    #[must_use]
    pub fn redis(&self) -> Option<&RedisStore> {
        let default = self.redis.iter().find(|it| it.name.is_none());
        default.map(|redis| &redis.store)
    }

    /// Returns every store on Redis, with its name, and with how many requests were denied from known denials
    /// without a call to it. The default store has no name.
    pub fn redis_stores(&self) -> impl Iterator<Item = (Option<&str>, &RedisStore, u64)> {
        self.redis.iter().map(|it| {
            let known = it.known_denials.load(Ordering::Relaxed);
            (it.name.as_deref(), &it.store, known)
        })
    }

    /// Returns what leased mode has done, in all stores together.
    #[must_use]
    pub fn prepaid_usage(&self) -> PrepaidUsage {
        let all = self.redis.iter().map(|it| it.prepaid.prepaid_usage());
        all.fold(PrepaidUsage::default(), PrepaidUsage::plus)
    }

    /// Returns what async mode has done, in all stores together.
    #[must_use]
    pub fn reported_usage(&self) -> ReportedUsage {
        let all = self.redis.iter().map(|it| it.reported.reported_usage());
        all.fold(ReportedUsage::default(), ReportedUsage::plus)
    }

    /// Returns why the store cannot be used at the moment, so that failure policies decide; `None` if
    /// nothing is known to be wrong with it.
    #[must_use]
    pub fn store_problem(&self) -> Option<String> {
        self.redis.iter().find_map(|redis| {
            let problem = match &*redis.missing.load() {
                Some(problem) => String::clone(problem),
                None => {
                    let mut breakers = redis.store.breakers().into_iter();
                    let (server, _) = breakers.find(|(_, state)| *state == BreakerState::Open)?;
                    format!("{server} does not answer: its circuit breaker is open")
                }
            };
            Some(match &redis.name {
                None => problem,
                Some(name) => format!("store {name}: {problem}"),
            })
        })
    }

    /// Returns the texts that all instances on this Redis share; `None` if state is in this process.
    #[must_use]
    pub fn shared_values(&self) -> Option<SharedValues> {
        let active = self.active();
        let redis = self.redis()?;
        Some(redis.shared_values(&active.config().namespace))
    }

    /// Returns the versions of the config that all instances on this Redis share; `None` if state is in this
    /// process.
    #[must_use]
    pub fn shared_configs(&self) -> Option<SharedValues> {
        let active = self.active();
        Some(self.redis()?.shared_configs(&active.config().namespace))
    }

    /// Returns what all instances on this Redis say of themselves; `None` if state is in this process.
    #[must_use]
    pub fn shared_instances(&self) -> Option<SharedValues> {
        let active = self.active();
        Some(self.redis()?.shared_instances(&active.config().namespace))
    }

    /// Returns the audit trail that all instances on this Redis share; `None` if state is in this process.
    #[must_use]
    pub fn shared_log(&self) -> Option<SharedLog> {
        let active = self.active();
        Some(self.redis()?.shared_log(&active.config().namespace))
    }

    /// Inspects the store of a validated config for an operator, and changes no data there. Returns no
    /// findings if state is in this process. Needs a Tokio runtime.
    ///
    /// # Errors
    /// If something that the config names, such as a password file, cannot be read.
    pub async fn inspect(config: &Config) -> Result<Vec<Finding>, StartError> {
        let mut all = Vec::new();
        for (name, redis) in config.redis_stores() {
            let options = redis_options(config, name, redis)?;
            let mut findings = tollgate_redis::inspect(options.clone()).await;
            // If the store does not answer, other findings say so.
            if let Ok(store) = RedisStore::connect(options).await {
                let mut deployment = Deployment::new(config);
                deployment.add_redis(name, &store, &config.namespace);
                findings.extend(deployment.inspect().await);
            }
            if let Some(name) = name {
                for finding in &mut findings {
                    finding.found = format!("store {name}: {}", finding.found);
                }
            }
            all.extend(findings);
        }
        Ok(all)
    }
}

/// The methods for an engine with a ledger.
#[cfg(feature = "ledger")]
impl Engine {
    /// Returns the ledger, if there is one.
    #[must_use]
    pub fn accounts(&self) -> Option<Accounts<'_>> {
        let sync = self.sync.as_deref();
        sync.map(|sync| Accounts::new(&self.limiter, sync))
    }

    /// Ends overdue reservations that only the ledger knows, and returns how many. Call this every few
    /// seconds.
    ///
    /// # Errors
    /// If the store or the ledger does not answer.
    pub async fn sweep_ledger(&self) -> Result<usize, PostError> {
        match self.accounts() {
            Some(accounts) => accounts.sweep().await,
            None => Ok(0),
        }
    }

    /// Inspects the ledger of a validated config for an operator, and changes nothing there. Returns
    /// the location of the ledger and the version of its tables, which is `None` for a new ledger.
    /// Returns `None` if the config names no ledger. Needs a Tokio runtime.
    ///
    /// # Errors
    /// If the ledger cannot be inspected.
    pub async fn inspect_ledger(
        config: &Config,
    ) -> Result<Option<(String, Option<i64>)>, StartError> {
        let Some(options) = ledger_options(config)? else {
            return Ok(None);
        };
        let place = options.database.location();
        let version = Ledger::inspect(&options).await;
        let version = version.map_err(|error| StartError::new(error.to_string()))?;
        Ok(Some((place, version)))
    }
}

/// Checks a store that was not checked at the start, again and again until the check succeeds. Until then,
/// `missing` has the problem.
#[cfg(feature = "redis")]
fn watch_for(store: &RedisStore, missing: &Arc<ArcSwapOption<String>>) {
    let unknown = "the store has not answered since the start";
    missing.store(Some(Arc::new(unknown.to_owned())));
    let (store, missing) = (store.clone(), Arc::downgrade(missing));
    tokio::spawn(async move {
        loop {
            let checked = store.check().await;
            let Some(missing) = missing.upgrade() else {
                return;
            };
            let Err(error) = checked else {
                missing.store(None);
                tracing::info!("the store answers now, and decides from now on");
                return;
            };
            let is_new = missing.load().as_deref() != Some(&error.what);
            if is_new && !error.passing {
                tracing::error!(%error, "the store cannot be used");
            }
            missing.store(Some(Arc::new(error.what)));
            drop(missing);
            sleep(LOOK_EVERY).await;
        }
    });
}

/// The ledger of an engine, if it has one.
#[derive(Default)]
struct LedgerPart {
    #[cfg(feature = "ledger")]
    sync: Option<Arc<LedgerSync>>,
}

impl LedgerPart {
    /// Puts the ledger behind a store.
    fn wrap(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        #[cfg(feature = "ledger")]
        if let Some(sync) = &self.sync {
            return Arc::new(Ledgered::new(store, Arc::clone(sync)));
        }
        store
    }
}

/// The most time that reports and refunds get when an engine is closed.
#[cfg(feature = "redis")]
const CLOSING: Duration = Duration::from_secs(3);

/// The stack of one Redis, and the parts of it that the engine asks for figures.
#[cfg(feature = "redis")]
struct Stack {
    store: Arc<dyn Store>,
    prepaid: Arc<Slices>,
    reported: Arc<Reports>,
    /// How many requests known denials have answered.
    known_denials: Arc<AtomicU64>,
}

/// Builds the stack of one Redis.
#[cfg(feature = "redis")]
fn stack(redis: &RedisStore, options: &tollgate_config::Redis, ledger: &LedgerPart) -> Stack {
    let clock = Arc::new(MonotonicClock::new());
    let prepaid = Prepaid::new(
        Traced(redis.clone()),
        Arc::clone(&clock) as _,
        options.replicas,
    );
    let prepaid = Arc::new(prepaid);
    let reported = Reported::new(Arc::clone(&prepaid) as Arc<dyn Store>, clock);
    let reported = Arc::new(reported);
    reported.keep_reporting();
    // Above the slices and the reports, so that the ledger records what was used when it was used.
    let store = ledger.wrap(Arc::clone(&reported) as Arc<dyn Store>);
    let mut known_denials = Arc::default();
    let store: Arc<dyn Store> = match options.denial_cache {
        None => Arc::new(Sharded::new(store)),
        Some(longest) => {
            let mut remembered = Remembered::new(store, longest, Arc::new(SystemClock::new()));
            if options.prefilter {
                remembered = remembered.prefilter();
            }
            known_denials = remembered.answered();
            Arc::new(Sharded::new(remembered))
        }
    };
    Stack {
        store,
        prepaid,
        reported,
        known_denials,
    }
}
