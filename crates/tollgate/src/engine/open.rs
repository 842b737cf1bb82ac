//! Opens the store and the ledger that a config names.
//!
//! Everything that the config says of connections becomes options here. How the opened stores are put together is
//! in [`engine`](super).

#[cfg(feature = "redis")]
use std::sync::Arc;
#[cfg(feature = "redis")]
use std::time::Duration;

#[cfg(feature = "ledger")]
use tollgate_config::LedgerDatabase;
#[cfg(feature = "redis")]
use tollgate_config::Mode;
use tollgate_config::{Config, Store as StoreConfig};
#[cfg(feature = "ledger")]
use tollgate_ledger::{Database, Ledger, Options as LedgerOptions};
#[cfg(feature = "redis")]
use tollgate_redis::{Address, BreakerOptions, Options, RedisStore, Servers, Tls};
#[cfg(feature = "redis")]
use tollgate_store::SystemClock;

#[cfg(any(feature = "ledger", feature = "redis"))]
use crate::deployment::Deployment;
use crate::start::StartError;

/// The store and the ledger that a config names.
#[derive(Default)]
pub(super) struct Parts {
    /// Each Redis with its name; `None` for the default store.
    #[cfg(feature = "redis")]
    pub(super) redis: Vec<(Option<Arc<str>>, RedisStore)>,
    /// Whether the store was not checked.
    #[cfg(feature = "redis")]
    pub(super) unchecked: bool,
    #[cfg(feature = "ledger")]
    pub(super) ledger: Option<Ledger>,
}

#[allow(unused_variables, clippy::unused_async)] // Each feature adds a part.
impl Parts {
    /// Opens the store and the ledger, and checks that they answer.
    pub(super) async fn open(config: &Config) -> Result<Parts, StartError> {
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
    pub(super) fn skip_store(&mut self, config: &Config) -> Result<(), StartError> {
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
    pub(super) async fn open_ledger(&mut self, config: &Config) -> Result<(), StartError> {
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
    pub(super) fn deployment(&self, config: &Config) -> Deployment {
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

/// Rejects a config with a store or a ledger that is not part of this build. Nothing is ignored
/// silently.
pub(super) fn check_build(config: &Config) -> Result<(), StartError> {
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
pub(super) fn redis_options(
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
pub(super) fn ledger_error(error: &tollgate_ledger::OpenError) -> StartError {
    StartError::passing(format!("ledger: {error}"), error.is_passing())
}

/// Returns the options of the ledger that a config names; `None` if it names none.
#[cfg(feature = "ledger")]
pub(super) fn ledger_options(config: &Config) -> Result<Option<LedgerOptions>, StartError> {
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
