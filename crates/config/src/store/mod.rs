//! The store that keeps state: the memory of this process, or a Redis that several instances share.
//!
//! The data is validated, so that code that connects need not check it again. Nothing here connects.

mod flag;
mod raw;
mod url;
mod validate;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_core::Span;

use crate::config::Config;
use crate::secrets::Secret;
use tollgate_rules::document::words;

pub(crate) use raw::{RawSharedStore, RawStore};
pub(crate) use url::{PORT, Parts, SENTINEL_PORT, address, decode, host_port};
pub use url::{RedisUrl, UrlError};
pub(crate) use validate::{named_stores, store};

/// The most addresses that a config may list. Other nodes of a cluster are found through the listed
/// ones.
pub(crate) const MAX_URLS: usize = 32;
/// The most stores beside the default one.
pub(crate) const MAX_STORES: usize = 16;
/// The largest password file, in bytes. A larger file is a mistake.
const MAX_PASSWORD: u64 = 64 * 1024;

pub(crate) const MASTER_HELP: &str =
    "use the name of the Sentinels' configuration: letters, digits, `.`, `_` and `-`";
pub(crate) const SECRET_HELP: &str = "add `subjects: { hash_secret: \"${TOLLGATE_SECRET}\" }` with 32 random bytes, \
     such as `openssl rand -hex 32` prints";
pub(crate) const NO_SECRET: &str =
    "a shared store needs a `hash_secret`: instances that share it must hash subjects alike";
pub(crate) const NO_SECRET_FOR_LEDGER: &str = "a ledger needs a `hash_secret`: it records hashed subjects, and must find them \
     again after a restart";
pub(crate) const NO_SECRET_FOR_DENIALS: &str = "a journal of denials in files needs a `hash_secret`: it records hashed subjects, \
     and must find them again after a restart";
pub(crate) const USER_ALONE: &str = "there is a user without a password";
pub(crate) const USER_ALONE_HELP: &str = "add `password` or `password_file`; a URL with a password and no user is redis://:password@host";

/// The store that keeps state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// In the memory of this process.
    Memory,
    /// In a Redis.
    Redis(Box<Redis>),
}

/// A store beside the default one. Rules name it with `store`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedStore {
    /// The name.
    pub name: Arc<str>,
    /// The Redis that keeps the state.
    pub redis: Box<Redis>,
}

/// A Redis that keeps state, and how to treat it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redis {
    /// What the addresses point to (default: one Redis).
    pub mode: Mode,
    /// The addresses: exactly one for a standalone Redis, 1 to 32 otherwise. Either all use TLS, or
    /// none.
    pub urls: Vec<RedisUrl>,
    /// The login from the config fields. It takes precedence over the login in a URL: see
    /// [`Redis::login_at`].
    pub login: Login,
    /// The login for the Sentinels; empty in other modes.
    pub sentinel_login: Login,
    /// The certificate authority to trust; only with TLS.
    pub tls_ca: Option<PathBuf>,
    /// How long a decision waits for the store in total (default 50 ms).
    pub timeout: Span,
    /// How long a connection may take to open (default 200 ms).
    pub connect_timeout: Span,
    /// How long a server that starts tries to reach the store (default 10 s).
    pub connect_patience: Span,
    /// How long a connection may be idle before it is closed (default 30 s).
    pub idle_timeout: Span,
    /// The most connections to each server (default 4).
    pub max_connections: usize,
    /// The most requests that wait for the store (default 10,000).
    pub max_in_flight: usize,
    /// The most requests that one call of the script decides (default 64).
    pub batch: usize,
    /// The clock that decisions use (default: the store's).
    pub clock: ClockSource,
    /// The prefix of every key (default `tg`).
    pub key_prefix: String,
    /// When to stop calling a failing store for a while.
    pub circuit_breaker: CircuitBreaker,
    /// How many instances of Tollgate share the store (default 1).
    pub replicas: u32,
    /// How much of its share of a limit each instance allows under `local-fallback`, in hundredths of a
    /// percent (default 10,000).
    pub fallback_factor: u32,
    /// How long a denial is remembered in this process at most (default 1 s); `None` if denials are not
    /// remembered.
    pub denial_cache: Option<Span>,
    /// Whether a request is denied from a remembered denial of one of its rules (default: only if all of its
    /// rules deny).
    pub prefilter: bool,
}

/// What the servers at the configured addresses are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The Redis itself.
    Standalone,
    /// Sentinels, which know the address of the Redis.
    Sentinel {
        /// The name of the Redis at the Sentinels.
        master: String,
    },
    /// Some nodes of a cluster.
    Cluster,
}

/// A user and a password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; without it, the user `default`.
    pub username: Option<String>,
    /// The password; without it, there is no login.
    pub password: Option<Password>,
}

/// A password, or the file that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// The password itself.
    Text(Secret),
    /// A file that holds the password.
    File(PathBuf),
}

words! {
    /// The clock that decides.
    pub enum ClockSource is "a clock" {
        /// The time of the Redis that keeps a key: one time for all instances.
        Store = "store",
        /// The time of the instance that asks.
        Caller = "caller",
    }
}

/// When Tollgate stops calling a failing store for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitBreaker {
    /// How many failures in a row open the circuit breaker (default 5).
    pub consecutive_failures: u32,
    /// How long an open circuit breaker stops all calls to the store (default 30 s).
    pub timeout_duration: Span,
    /// How many requests may try the store at the same time after the pause (default 3).
    pub half_open_max_requests: u32,
}

/// Whether `name` may be the name of a master.
pub(crate) fn is_master(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.bytes().all(allowed)
}

impl Store {
    /// Replaces the store of the config file by `flag`, the result of [`Store::from_flag`]. If both are
    /// a Redis, `flag` replaces only the mode, the addresses, and a user and a password that it has. Settings
    /// for TLS or Sentinels are removed if `flag` does not use TLS or Sentinels.
    ///
    /// Call [`Config::check_store`] afterwards.
    pub fn override_by(&mut self, flag: Store) {
        match (&mut *self, flag) {
            (Store::Redis(file), Store::Redis(flag)) => {
                // A login on the command line replaces the one in the file.
                if flag.urls.iter().any(|url| url.username.is_some()) {
                    file.login.username = None;
                }
                if flag.urls.iter().any(|url| url.password.is_some()) {
                    file.login.password = None;
                }
                if !flag.tls() {
                    file.tls_ca = None;
                }
                if !matches!(flag.mode, Mode::Sentinel { .. }) {
                    file.sentinel_login = Login::default();
                }
                (file.mode, file.urls) = (flag.mode, flag.urls);
            }
            (store, flag) => *store = flag,
        }
    }
}

impl Redis {
    /// Makes a Redis at these addresses, with defaults.
    pub(crate) fn new(mode: Mode, urls: Vec<RedisUrl>) -> Redis {
        Redis {
            mode,
            urls,
            login: Login::default(),
            sentinel_login: Login::default(),
            tls_ca: None,
            timeout: Span::from_millis(50),
            connect_timeout: Span::from_millis(200),
            connect_patience: Span::from_secs(10),
            idle_timeout: Span::from_secs(30),
            max_connections: 4,
            max_in_flight: 10_000,
            batch: 64,
            clock: ClockSource::Store,
            key_prefix: "tg".to_owned(),
            circuit_breaker: CircuitBreaker {
                consecutive_failures: 5,
                timeout_duration: Span::from_secs(30),
                half_open_max_requests: 3,
            },
            replicas: 1,
            fallback_factor: 10_000,
            denial_cache: Some(Span::SECOND),
            prefilter: false,
        }
    }

    /// Whether this Redis would keep its keys where `other` keeps them: same address, database and prefix.
    pub(crate) fn shares_keys_with(&self, other: &Redis) -> bool {
        let mut both = self
            .urls
            .iter()
            .flat_map(|one| other.urls.iter().map(move |two| (one, two)));
        self.key_prefix == other.key_prefix
            && both.any(|(one, two)| {
                (&one.host, one.port, one.database) == (&two.host, two.port, two.database)
            })
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn tls(&self) -> bool {
        self.urls.iter().any(|url| url.tls)
    }

    /// Returns the login for `url`, one of [`urls`](Redis::urls). The fields of the config take
    /// precedence over the login in the URL. With Sentinels, this is the login for the Redis that they
    /// name.
    #[must_use]
    pub fn login_at(&self, url: &RedisUrl) -> Login {
        let of_url = || url.password.clone().map(Password::Text);
        Login {
            username: self.login.username.clone().or_else(|| url.username.clone()),
            password: self.login.password.clone().or_else(of_url),
        }
    }
}

impl Password {
    /// Returns the password without a line break at the end. Reads the file if the password is in one.
    ///
    /// # Errors
    /// If the file cannot be read, is empty, or is not text.
    pub fn read(&self) -> io::Result<Secret> {
        match self {
            Password::Text(secret) => Ok(secret.clone()),
            Password::File(path) => read_secret_file(path, "a password"),
        }
    }
}

/// Reads a file that holds only a secret, without a line break at the end.
pub(crate) fn read_secret_file(path: &Path, what: &str) -> io::Result<Secret> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_PASSWORD + 1).read_to_string(&mut text)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || text.len() as u64 > MAX_PASSWORD {
        let message = format!("the file does not hold {what}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Secret::new(line.to_owned()))
}

impl Config {
    /// Checks that the store fits the rest of the config. A config that was read from a file is valid.
    /// Call this after you change the store of a config.
    ///
    /// # Errors
    /// If the store is shared and there is no `hash_secret`, or if a user has no password. The error
    /// has the problem and the remedy.
    ///
    /// ```
    /// # use tollgate_config::{Store, parse};
    /// let mut config = parse("rules.yaml", "version: 1\nrules: []\n", &|_| None)?;
    /// assert!(config.check_store().is_ok());
    /// config.store.override_by(Store::from_flag("redis://localhost")?);
    /// assert!(config.check_store().unwrap_err().contains("openssl rand -hex 32"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_store(&self) -> Result<(), String> {
        for (_, redis) in self.redis_stores() {
            if self.subjects.hash_secret.is_none() {
                return Err(format!("{NO_SECRET}; {SECRET_HELP}"));
            }
            let mut logins = redis.urls.iter().map(|url| redis.login_at(url));
            if logins.any(|it| it.username.is_some() && it.password.is_none()) {
                return Err(format!("{USER_ALONE}; {USER_ALONE_HELP}"));
            }
        }
        Ok(())
    }

    /// Returns every Redis that keeps state, each with its name: `None` for the Redis of the `store` section.
    pub fn redis_stores(&self) -> impl Iterator<Item = (Option<&Arc<str>>, &Redis)> {
        let default = match &self.store {
            Store::Memory => None,
            Store::Redis(redis) => Some((None, &**redis)),
        };
        let named = self.stores.iter().map(|it| (Some(&it.name), &*it.redis));
        default.into_iter().chain(named)
    }
}
