//! The limiter that a config names, with its stack of stores.
//!
//! Only this module puts stores together. [`Routed`] is outermost, unless all state is in this process. It
//! has a stack for each store. From the outside in: split allowances ([`Sharded`]), known denials
//! ([`Remembered`], on Redis), the ledger ([`Ledgered`], if the config names one), slices ([`Prepaid`], on
//! Redis), spans ([`Traced`]), and the store itself. Add a new wrapper only here, in `stack`.

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
#[cfg(feature = "ledger")]
use tollgate_config::LedgerDatabase;
#[cfg(feature = "redis")]
use tollgate_config::Mode;
use tollgate_config::{Config, RuleStore, Store as StoreConfig};
#[cfg(feature = "redis")]
use tollgate_core::StoreId;
#[cfg(feature = "ledger")]
use tollgate_ledger::{Database, Ledger, Options as LedgerOptions};
#[cfg(feature = "redis")]
use tollgate_redis::{
    Address, BreakerOptions, BreakerState, Finding, Options, RedisStore, Servers, SharedLog,
    SharedValues, Tls,
};
#[cfg(feature = "redis")]
use tollgate_store::MonotonicClock;
#[cfg(any(feature = "ledger", feature = "redis"))]
use tollgate_store::SystemClock;
use tollgate_store::{Immediate, MemoryStore, Store, Usage};

#[cfg(feature = "ledger")]
use crate::accounts::Accounts;
#[cfg(any(feature = "ledger", feature = "redis"))]
use crate::deployment::Deployment;
#[cfg(feature = "ledger")]
use crate::ledgered::{LedgerSync, Ledgered, PostError};
use crate::limiter::Limiter;
use crate::start::StartError;
#[cfg(feature = "redis")]
use crate::stores::{Prepaid, PrepaidUsage, Remembered, Sharded};
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
    /// Why the store could not be used since the start; `None` once it can be used.
    missing: Arc<ArcSwapOption<String>>,
}

/// The slices of one Redis.
#[cfg(feature = "redis")]
type Slices = Prepaid<Traced<RedisStore>>;

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

/// The store and the ledger that a config names.
#[derive(Default)]
struct Parts {
    /// Each Redis with its name; `None` for the default store.
    #[cfg(feature = "redis")]
    redis: Vec<(Option<Arc<str>>, RedisStore)>,
    /// Whether the store was not checked.
    #[cfg(feature = "redis")]
    unchecked: bool,
    #[cfg(feature = "ledger")]
    ledger: Option<Ledger>,
}

#[allow(unused_variables, clippy::unused_async)] // Each feature adds a part.
impl Parts {
    /// Opens the store and the ledger, and checks that they answer.
    async fn open(config: &Config) -> Result<Parts, StartError> {
        check_build(config)?;
        let mut parts = Parts::default();
        // The store comes first: if it is not there, no ledger has to be closed.
        #[cfg(feature = "redis")]
        for (name, redis) in config.redis_stores() {
            let options = redis_options(config, name, redis)?;
            let store = RedisStore::connect_within(options, redis.connect_patience.into()).await;
            let failed = |error: tollgate_redis::StartError| {
                let of = name.map_or(String::new(), |name| format!("stores.{name}: "));
                StartError::of_store(format!("{of}{error}"), error.passing)
            };
            parts.redis.push((name.cloned(), store.map_err(failed)?));
        }
        parts.open_ledger(config).await?;
        Ok(parts)
    }

    /// Takes the store that a config names, without a check.
    fn skip_store(&mut self, config: &Config) -> Result<(), StartError> {
        #[cfg(feature = "redis")]
        {
            for (name, redis) in config.redis_stores() {
                let options = redis_options(config, name, redis)?;
                self.redis
                    .push((name.cloned(), RedisStore::unchecked(options)));
            }
            self.unchecked = true;
        }
        Ok(())
    }

    /// Opens the ledger that a config names.
    async fn open_ledger(&mut self, config: &Config) -> Result<(), StartError> {
        #[cfg(feature = "ledger")]
        if let Some(options) = ledger_options(config)? {
            let ledger = Ledger::open(options).await;
            self.ledger = Some(ledger.map_err(|error| ledger_error(&error))?);
        }
        Ok(())
    }
}

#[cfg(any(feature = "ledger", feature = "redis"))]
impl Parts {
    /// Returns the deployment that the store and the ledger should belong to.
    fn deployment(&self, config: &Config) -> Deployment {
        let mut deployment = Deployment::new(config);
        // The ledger comes first: Redis may have lost its record.
        #[cfg(feature = "ledger")]
        if let Some(ledger) = &self.ledger {
            deployment.add_ledger(ledger, &config.namespace);
        }
        #[cfg(feature = "redis")]
        for (name, redis) in &self.redis {
            deployment.add_redis(name.as_ref(), redis, &config.namespace);
        }
        deployment
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
            let (stack, prepaid, known_denials) = stack(&store, options, &ledger);
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

    /// Gives drawn units back that were not used. Writes the entries that wait for the ledger, and accepts no
    /// more. Call this at the end of a process.
    pub async fn close(&self) {
        #[cfg(feature = "redis")]
        for redis in &self.redis {
            // Slices end by themselves soon, so a slow store need not be waited for.
            let _ = tokio::time::timeout(Duration::from_secs(1), redis.prepaid.close()).await;
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

/// Builds the stack of one Redis. Also returns its slices, and the count of requests that known denials have
/// answered.
#[cfg(feature = "redis")]
fn stack(
    redis: &RedisStore,
    options: &tollgate_config::Redis,
    ledger: &LedgerPart,
) -> (Arc<dyn Store>, Arc<Slices>, Arc<AtomicU64>) {
    let clock = Arc::new(MonotonicClock::new());
    let prepaid = Prepaid::new(Traced(redis.clone()), clock, options.replicas);
    let prepaid = Arc::new(prepaid);
    // Above the slices, so that the ledger records what was used, and not what was drawn.
    let store = ledger.wrap(Arc::clone(&prepaid) as Arc<dyn Store>);
    let Some(longest) = options.denial_cache else {
        return (Arc::new(Sharded::new(store)), prepaid, Arc::default());
    };
    let mut remembered = Remembered::new(store, longest, Arc::new(SystemClock::new()));
    if options.prefilter {
        remembered = remembered.prefilter();
    }
    let known_denials = remembered.answered();
    (Arc::new(Sharded::new(remembered)), prepaid, known_denials)
}

/// Rejects a config with a store or a ledger that is not part of this build. Nothing is ignored
/// silently.
fn check_build(config: &Config) -> Result<(), StartError> {
    let missing = match (&config.store, &config.ledger) {
        (StoreConfig::Redis(_), _) if !cfg!(feature = "redis") => ("store", "redis"),
        _ if !config.stores.is_empty() && !cfg!(feature = "redis") => ("stores", "redis"),
        (_, Some(_)) if !cfg!(feature = "ledger") => {
            ("ledger", "ledger-sqlite` or `ledger-postgres")
        }
        _ => return Ok(()),
    };
    let (section, feature) = missing;
    Err(StartError::new(format!(
        "the config has a `{section}` section, which this build does not serve: \
         enable the feature `{feature}`, or remove the section"
    )))
}

/// Returns the options of one Redis that a config names. The default store has no name.
#[cfg(feature = "redis")]
fn redis_options(
    config: &Config,
    name: Option<&Arc<str>>,
    redis: &tollgate_config::Redis,
) -> Result<Options, StartError> {
    config.check_store().map_err(StartError::new)?;
    let section = match name {
        None => "store.redis".to_owned(),
        Some(name) => format!("stores.{name}.redis"),
    };
    let addresses = redis.urls.iter().map(|url| Address {
        host: url.host.clone(),
        port: url.port,
    });
    let mut addresses: Vec<Address> = addresses.collect();
    let servers = match &redis.mode {
        Mode::Sentinel { master } => Servers::Sentinel {
            sentinels: addresses,
            master: master.clone(),
            login: login(
                &redis.sentinel_login,
                &format!("{section}.sentinel_password_file"),
            )?,
        },
        Mode::Cluster => Servers::Cluster(addresses),
        Mode::Standalone => match addresses.pop() {
            Some(address) => Servers::Standalone(address),
            None => {
                let what = format!("{section}.urls: no server is named");
                return Err(StartError::new(what));
            }
        },
    };
    let mut options = Options::new(servers);
    if let Some(url) = redis.urls.first() {
        options.login = login(&redis.login_at(url), &format!("{section}.password_file"))?;
        options.database = url.database;
    }
    if redis.tls() {
        let ca = redis.tls_ca.as_ref().map(|path| {
            let failed = format!("{section}.tls_ca: failed to read {}", path.display());
            let unreadable = |error| StartError::new(format!("{failed}: {error}"));
            std::fs::read(path).map_err(unreadable)
        });
        let ca = ca.transpose()?;
        options.tls = Some(Tls { ca });
    }
    options.timeout = redis.timeout.into();
    options.connect_timeout = redis.connect_timeout.into();
    options.idle_timeout = redis.idle_timeout.into();
    options.max_connections = redis.max_connections;
    options.max_in_flight = redis.max_in_flight;
    options.batch = redis.batch;
    options.key_prefix.clone_from(&redis.key_prefix);
    options.namespace.clone_from(&config.namespace);
    options.max_keys = config.subjects.max_keys as u64;
    options.max_anonymous_keys = config.subjects.max_anonymous_keys as u64;
    if redis.clock == tollgate_config::ClockSource::Caller {
        options.clock = tollgate_redis::ClockSource::Caller(Arc::new(SystemClock::new()));
    }
    if config.subjects.time_header.is_some() {
        // A request may be as old as the skew allows, and has to find the state of its time.
        let skew = config.subjects.max_time_skew.as_micros();
        options.margin = tollgate_core::Span::from_micros(options.margin.as_micros() + skew);
    }
    let breaker = &redis.circuit_breaker;
    options.breaker = BreakerOptions {
        consecutive_failures: breaker.consecutive_failures,
        timeout_duration: Duration::from(breaker.timeout_duration),
        half_open_max_requests: breaker.half_open_max_requests,
    };
    Ok(options)
}

#[cfg(feature = "ledger")]
fn ledger_error(error: &tollgate_ledger::OpenError) -> StartError {
    StartError::passing(format!("ledger: {error}"), error.is_passing())
}

/// Returns the options of the ledger that a config names; `None` if it names none.
#[cfg(feature = "ledger")]
fn ledger_options(config: &Config) -> Result<Option<LedgerOptions>, StartError> {
    let Some(ledger) = &config.ledger else {
        return Ok(None);
    };
    let database = match &ledger.database {
        LedgerDatabase::Sqlite(path) => Database::Sqlite(path.clone()),
        LedgerDatabase::Postgres(url) => {
            let unreadable = |error| StartError::new(format!("ledger.postgres: {error}"));
            let url = url.read().map_err(unreadable)?;
            let text = String::from_utf8(url.expose().to_vec());
            let unreadable = |_| StartError::new("ledger.postgres: is not UTF-8 text");
            Database::Postgres(text.map_err(unreadable)?)
        }
    };
    Ok(Some(LedgerOptions {
        // If several servers used one file, each would count for itself and admit the whole limit.
        exclusive: true,
        flush_interval: ledger.flush_interval.into(),
        max_queued: ledger.max_queued,
        spill: Some(ledger.spill.clone()),
        max_spill_bytes: ledger.max_spill,
        strict_wait: ledger.strict_wait.into(),
        ..LedgerOptions::new(database)
    }))
}

#[cfg(feature = "redis")]
fn login(
    login: &tollgate_config::Login,
    setting: &str,
) -> Result<tollgate_redis::Login, StartError> {
    let password = match &login.password {
        None => None,
        Some(password) => {
            let secret = password
                .read()
                .map_err(|error| StartError::new(format!("{setting}: failed to read: {error}")))?;
            let text = String::from_utf8(secret.expose().to_vec());
            Some(text.map_err(|_| StartError::new(format!("{setting}: is not UTF-8 text")))?)
        }
    };
    Ok(tollgate_redis::Login {
        username: login.username.clone(),
        password,
    })
}
