//! The limiter that a config names: in this process, or on a store that a fleet shares.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate_config::{
    Attributes, Config, Explanation, LedgerDatabase, Mode, Override, RuleSet, Store,
};
use tollgate_core::{Limit, Time};
use tollgate_ledger::{Database, Ledger, Options as LedgerOptions};
use tollgate_redis::{
    Address, BreakerOptions, Finding, Options, RedisStore, Servers, SharedValues, Tls,
};
use tollgate_store::{Ask, MemoryStore, StoreError, SystemClock};

use crate::{
    ActiveConfig, BatchDecision, Decision, Demand, DemandError, Limiter, Metrics, Reloaded,
    SharedLimiter, SharedOptions, Snapshot, Throttled,
};

/// A limiter with its store, whatever that is.
///
/// Answers of a shared limiter are awaited in boxes of their own: what they need to wait is large, and
/// would otherwise be copied about by those who ask a local one.
pub enum Engine {
    /// State in this process.
    Local(Box<Limiter>),
    /// The same, with a ledger behind it that outlives the process.
    Kept(Box<SharedLimiter<MemoryStore>>),
    /// State in Redis.
    Shared(Box<SharedLimiter<RedisStore>>),
}

/// Runs one of two expressions with the limiter of an engine: one that never waits, or one that may.
macro_rules! with_limiter {
    ($engine:expr, |$local:ident| $at_once:expr, |$limiter:ident| $waiting:expr) => {
        match $engine {
            $crate::Engine::Local($local) => $at_once,
            $crate::Engine::Kept($limiter) => $waiting,
            $crate::Engine::Shared($limiter) => $waiting,
        }
    };
}
pub(crate) use with_limiter;

/// Why there is no limiter: which setting is to blame, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct StartError {
    what: String,
    passing: bool,
}

impl StartError {
    fn new(what: impl Into<String>) -> StartError {
        StartError {
            what: what.into(),
            passing: false,
        }
    }

    /// Whether it may pass by itself, as when a server is down.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.passing
    }
}

impl From<Limiter> for Engine {
    fn from(limiter: Limiter) -> Engine {
        Engine::Local(Box::new(limiter))
    }
}

impl Engine {
    /// The limiter of a validated config, its store looked at. Within a Tokio runtime.
    ///
    /// # Errors
    /// If the store is not there, or not what the config says it is.
    pub async fn start(config: &Config) -> Result<Engine, StartError> {
        let ledger = match ledger(config)? {
            Some(options) => Some(Ledger::open(options).await.map_err(|error| StartError {
                passing: error.is_passing(),
                what: format!("ledger: {error}"),
            })?),
            None => None,
        };
        let Some((options, shared)) = redis(config)? else {
            return Ok(Engine::in_this_process(config, ledger));
        };
        let store = RedisStore::connect(options).await;
        let store = store.map_err(|error| StartError {
            passing: error.passing,
            what: error.to_string(),
        })?;
        let limiter = SharedLimiter::new(config, store, shared).with_ledger(ledger);
        Ok(Engine::Shared(Box::new(limiter)))
    }

    /// The same, whether the store is there or not: failure policies decide until it is.
    ///
    /// # Errors
    /// If what the config names, as a password's file, is not there.
    pub fn start_unchecked(config: &Config) -> Result<Engine, StartError> {
        let ledger = ledger(config)?.map(Ledger::start);
        let Some((options, shared)) = redis(config)? else {
            return Ok(Engine::in_this_process(config, ledger));
        };
        let limiter = SharedLimiter::new(config, RedisStore::unchecked(options), shared);
        Ok(Engine::Shared(Box::new(limiter.with_ledger(ledger))))
    }

    fn in_this_process(config: &Config, ledger: Option<Ledger>) -> Engine {
        if ledger.is_none() {
            return Engine::Local(Box::new(Limiter::new(config)));
        }
        let store = MemoryStore::new(config.subjects.max_keys);
        // What is in this process is asked as quickly as a refusal is remembered.
        let options = SharedOptions {
            denial_cache: None,
            ..SharedOptions::default()
        };
        let limiter = SharedLimiter::new(config, store, options).with_ledger(ledger);
        Engine::Kept(Box::new(limiter))
    }

    /// Looks at the store of a validated config as an operator would, and changes no data there. Of
    /// state in this process there is nothing to find. Within a Tokio runtime.
    ///
    /// # Errors
    /// If what the config names, as a password's file, is not there.
    pub async fn inspect(config: &Config) -> Result<Vec<Finding>, StartError> {
        match redis(config)? {
            Some((options, _)) => Ok(tollgate_redis::inspect(options).await),
            None => Ok(Vec::new()),
        }
    }

    /// May this request proceed now? If so, as many units as `ask` says are taken from every rule
    /// that applies to it.
    pub async fn ask(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        if let Engine::Kept(limiter) = self
            && let Some(decision) = limiter.ask_at_once(attributes, ask)
        {
            return decision;
        }
        with_limiter!(self, |limiter| limiter.ask(attributes, ask), |limiter| {
            Box::pin(limiter.ask(attributes, ask)).await
        })
    }

    /// What [`ask`](Self::ask) would decide now. Takes nothing, and is not counted.
    pub async fn peek(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        with_limiter!(self, |limiter| limiter.peek(attributes, ask), |limiter| {
            Box::pin(limiter.peek(attributes, ask)).await
        })
    }

    /// Decides several demands as one request: if all of them are met, what they want to take is
    /// taken, in one call of the store; if not, nothing is.
    ///
    /// # Errors
    /// If a demand brings numbers that a rule cannot have, or all together make more than
    /// [`MAX_CHARGES`](crate::MAX_CHARGES) charges: nothing was taken then. Also if the store takes
    /// nothing back.
    pub async fn ask_all(&self, demands: &[Demand<'_>]) -> Result<BatchDecision, DemandError> {
        with_limiter!(self, |limiter| limiter.ask_all(demands), |limiter| {
            Box::pin(limiter.ask_all(demands)).await
        })
    }

    /// Gives back `units` that were taken by a decision at `charged_at`.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn refund(
        &self,
        attributes: &Attributes<'_>,
        units: u64,
        charged_at: Time,
    ) -> Result<Decision, StoreError> {
        with_limiter!(
            self,
            |limiter| Ok(limiter.refund(attributes, units, charged_at)),
            |limiter| { Box::pin(limiter.refund(attributes, units, charged_at)).await }
        )
    }

    /// Takes `cost` from the allowance of `key` under `limit`, which no rule knows, if there is as
    /// much. A cost of 0 only looks.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn throttle(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: u64,
    ) -> Result<Throttled, StoreError> {
        with_limiter!(
            self,
            |limiter| Ok(limiter.throttle(key, limit, cost)),
            |limiter| Box::pin(limiter.throttle(key, limit, cost)).await
        )
    }

    /// The same where nobody has to be waited for; `None`, and nothing is taken, where somebody
    /// has.
    #[inline]
    pub fn throttle_now(&self, key: &[u8], limit: &Limit, cost: u64) -> Option<Throttled> {
        match self {
            Engine::Local(limiter) => Some(limiter.throttle(key, limit, cost)),
            Engine::Kept(_) | Engine::Shared(_) => None,
        }
    }

    /// Whether an answer may have to be waited for. If not, every future here is ready at once.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        !matches!(self, Engine::Local(_))
    }

    /// Forgets what the subjects of this request have used.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn reset(&self, attributes: &Attributes<'_>) -> Result<(), StoreError> {
        with_limiter!(
            self,
            |limiter| {
                limiter.reset(attributes);
                Ok(())
            },
            |limiter| Box::pin(limiter.reset(attributes)).await
        )
    }

    /// Puts another config in force, for requests that come from now on; those in flight end with the
    /// one they began with. State stays, and so do the counts of rules that keep their id. What needs a
    /// restart is left as it is, and named.
    pub fn reload(&self, config: &Config) -> Reloaded {
        with_limiter!(self, |limiter| limiter.reload(config), |limiter| limiter
            .reload(config))
    }

    /// Texts that all instances on this store share; `None` if state is in this process.
    #[must_use]
    pub fn shared_values(&self) -> Option<SharedValues> {
        match self {
            Engine::Local(_) | Engine::Kept(_) => None,
            Engine::Shared(limiter) => {
                let live = limiter.live();
                Some(limiter.store().shared_values(&live.config().namespace))
            }
        }
    }

    /// Puts these overrides in force, instead of those that were, for requests that come from now on.
    /// They stay over a reload.
    pub fn set_overrides(&self, overrides: Arc<[Arc<Override>]>) {
        with_limiter!(
            self,
            |limiter| limiter.set_overrides(overrides),
            |limiter| limiter.set_overrides(overrides)
        );
    }

    /// The config in force, and what was made of it.
    #[must_use]
    pub fn live(&self) -> Arc<ActiveConfig> {
        with_limiter!(self, |limiter| limiter.live(), |limiter| limiter.live())
    }

    /// The engine with the config in force now, whatever comes after it: for requests that look at the
    /// config more than once.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot::new(self, self.live())
    }

    /// Which rules apply to this request, and why the others do not.
    #[must_use]
    pub fn explain(&self, attributes: &Attributes<'_>) -> Vec<Explanation> {
        self.rules().explain(attributes)
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        with_limiter!(self, |limiter| limiter.rules(), |limiter| limiter.rules())
    }

    /// What the rules in force have decided so far.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        with_limiter!(self, |limiter| limiter.metrics(), |limiter| limiter
            .metrics())
    }

    /// Forgets expired state of this process, a share of it at a time.
    pub fn sweep(&self) {
        match self {
            Engine::Local(limiter) => limiter.sweep(),
            Engine::Kept(limiter) => limiter.sweep_all(),
            Engine::Shared(limiter) => limiter.sweep(),
        }
    }
}

/// The Redis that a config names, in the words of those who connect; none if it names none.
pub(crate) fn redis(config: &Config) -> Result<Option<(Options, SharedOptions)>, StartError> {
    let Store::Redis(redis) = &config.store else {
        return Ok(None);
    };
    config.check_store().map_err(StartError::new)?;
    let addresses = redis.urls.iter().map(|url| Address {
        host: url.host.clone(),
        port: url.port,
    });
    let mut addresses: Vec<Address> = addresses.collect();
    let url = redis.urls.first();
    let servers = match &redis.mode {
        Mode::Sentinel { master } => Servers::Sentinel {
            sentinels: addresses,
            master: master.clone(),
            login: login(&redis.sentinel_login, "store.redis.sentinel_password_file")?,
        },
        Mode::Cluster => Servers::Cluster(addresses),
        Mode::Standalone => match addresses.pop() {
            Some(address) => Servers::Standalone(address),
            None => return Err(StartError::new("store.redis.urls: no server is named")),
        },
    };
    let mut options = Options::new(servers);
    if let Some(url) = url {
        options.login = login(&redis.login_at(url), "store.redis.password_file")?;
        options.database = url.database;
    }
    if redis.tls() {
        let ca = redis.tls_ca.as_deref().map(read_ca).transpose()?;
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
    if redis.clock == tollgate_config::ClockSource::Caller {
        options.clock = tollgate_redis::ClockSource::Caller(Arc::new(SystemClock::new()));
    }
    let breaker = &redis.circuit_breaker;
    options.breaker = BreakerOptions {
        consecutive_failures: breaker.consecutive_failures,
        timeout_duration: Duration::from(breaker.timeout_duration),
        half_open_max_requests: breaker.half_open_max_requests,
    };
    let shared = SharedOptions {
        replicas: redis.replicas,
        fallback_factor: redis.fallback_factor,
        denial_cache: redis.denial_cache,
    };
    Ok(Some((options, shared)))
}

/// The ledger that a config names, in the words of those who open it; none if it names none.
pub(crate) fn ledger(config: &Config) -> Result<Option<LedgerOptions>, StartError> {
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
        flush_interval: ledger.flush_interval.into(),
        max_queued: ledger.max_queued,
        spill: Some(ledger.spill.clone()),
        max_spill_bytes: ledger.max_spill,
        ..LedgerOptions::new(database)
    }))
}

fn login(
    login: &tollgate_config::Login,
    setting: &str,
) -> Result<tollgate_redis::Login, StartError> {
    let password = match &login.password {
        None => None,
        Some(password) => {
            let secret = password
                .read()
                .map_err(|error| StartError::new(format!("{setting}: cannot be read: {error}")))?;
            let text = String::from_utf8(secret.expose().to_vec());
            Some(text.map_err(|_| StartError::new(format!("{setting}: is not UTF-8 text")))?)
        }
    };
    Ok(tollgate_redis::Login {
        username: login.username.clone(),
        password,
    })
}

fn read_ca(path: &Path) -> Result<Vec<u8>, StartError> {
    let unreadable = |error| {
        let path = path.display();
        StartError::new(format!("store.redis.tls_ca: cannot read {path}: {error}"))
    };
    std::fs::read(path).map_err(unreadable)
}
