//! Where state lives: in this process, or in a Redis that several instances share.
//!
//! Plain data, validated: whoever connects need not check it again. Nothing here connects.

mod flag;
mod login;
mod raw;
mod url;
mod urls;
mod validate;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tollgate_core::Span;

use crate::config::Config;
use crate::secrets::Secret;
use tollgate_rules::document::words;

pub(crate) use raw::RawStore;
pub(crate) use url::{PORT, Parts, SENTINEL_PORT, address, decode};
pub use url::{RedisUrl, UrlError};
pub(crate) use validate::store;

/// The most addresses that a config may list: the others of a cluster are found through them.
pub(crate) const MAX_URLS: usize = 32;
/// Longer files hold no password.
const MAX_PASSWORD: u64 = 64 * 1024;

pub(crate) const MASTER_HELP: &str =
    "use the name of the Sentinels' configuration: letters, digits, `.`, `_` and `-`";
pub(crate) const SECRET_HELP: &str = "add `subjects: { hash_secret: \"${TOLLGATE_SECRET}\" }` with 32 random bytes, \
     such as `openssl rand -hex 32` prints";
pub(crate) const NO_SECRET: &str =
    "a shared store needs a `hash_secret`: instances that share it must hash subjects alike";
pub(crate) const NO_SECRET_OF_BOOKS: &str = "a ledger needs a `hash_secret`: it keeps subjects hashed, and finds them \
     again after a restart";
pub(crate) const LONELY_USER: &str = "there is a user without a password";
pub(crate) const LONELY_USER_HELP: &str = "add `password` or `password_file`; a URL with a password and no user is redis://:password@host";

/// Where state lives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// In the memory of this process.
    Memory,
    /// In a Redis.
    Redis(Box<Redis>),
}

/// A Redis that keeps state, and how to treat it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redis {
    /// What the addresses are addresses of: one Redis unless given.
    pub mode: Mode,
    /// The addresses: exactly one of a standalone Redis, 1 to 32 otherwise. All are with TLS, or
    /// none is.
    pub urls: Vec<RedisUrl>,
    /// Who to be. What it says wins over the URL: see [`Redis::login_at`].
    pub login: Login,
    /// Who to be for the Sentinels. Nobody, in other modes.
    pub sentinel_login: Login,
    /// The certificate authority to believe; only with TLS.
    pub tls_ca: Option<PathBuf>,
    /// How long a decision waits for the store in all: 50 ms unless given.
    pub timeout: Span,
    /// How long a connection may take to open: 200 ms unless given.
    pub connect_timeout: Span,
    /// After how long without use a connection is closed: 30 s unless given.
    pub idle_timeout: Span,
    /// How many connections there are at most, to each server: 4 unless given.
    pub max_connections: usize,
    /// How many requests wait for the store at most: 10,000 unless given.
    pub max_in_flight: usize,
    /// How many requests one call of a script decides at most: 64 unless given.
    pub batch: usize,
    /// Whose time counts: the store's unless given.
    pub clock: ClockSource,
    /// What every key starts with: `tg` unless given.
    pub key_prefix: String,
    /// When the store is left alone for a while.
    pub circuit_breaker: CircuitBreaker,
    /// How many instances of Tollgate share the store: 1 unless given.
    pub replicas: u32,
    /// How much of its share of a limit an instance allows by itself, in hundredths of a percent:
    /// 10,000 unless given.
    pub fallback_factor: u32,
    /// How long a refusal is remembered here at most: 1 s unless given; `None` if it is not.
    pub denial_cache: Option<Span>,
}

/// What the addresses of a Redis are addresses of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The Redis itself.
    Standalone,
    /// Sentinels, which know where the Redis is.
    Sentinel {
        /// The name by which they know it.
        master: String,
    },
    /// Some nodes of a cluster.
    Cluster,
}

/// Who to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; without one, the user `default`.
    pub username: Option<String>,
    /// The password; without one, no login is made.
    pub password: Option<Password>,
}

/// A password, or where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// The password itself.
    Text(Secret),
    /// A file whose content it is.
    File(PathBuf),
}

words! {
    /// Whose time counts.
    pub enum ClockSource is "a clock" {
        /// The time of the Redis that keeps a key: one time for all instances.
        Store = "store",
        /// The time of the instance that asks.
        Caller = "caller",
    }
}

/// When a store that fails is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CircuitBreaker {
    /// After how many failures in a row: 5 unless given.
    pub consecutive_failures: u32,
    /// For how long: 30 s unless given.
    pub timeout_duration: Span,
    /// How many requests then try it again at once: 3 unless given.
    pub half_open_max_requests: u32,
}

/// Whether `name` may be what Sentinels call a master.
pub(crate) fn is_master(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.bytes().all(allowed)
}

impl Store {
    /// Does as the command line says: `flag`, of [`Store::from_flag`], instead of what the file
    /// says. Of a Redis it replaces where it is and whatever login the flag names; the rest of the
    /// file stays.
    ///
    /// Use [`Config::check_store`] afterwards.
    pub fn override_by(&mut self, flag: Store) {
        match (&mut *self, flag) {
            (Store::Redis(file), Store::Redis(flag)) => file.move_to(*flag),
            (store, flag) => *store = flag,
        }
    }
}

impl Redis {
    /// A Redis at these addresses, with defaults.
    pub(crate) fn new(mode: Mode, urls: Vec<RedisUrl>) -> Redis {
        Redis {
            mode,
            urls,
            login: Login::default(),
            sentinel_login: Login::default(),
            tls_ca: None,
            timeout: Span::from_millis(50),
            connect_timeout: Span::from_millis(200),
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
        }
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn tls(&self) -> bool {
        self.urls.iter().any(|url| url.tls)
    }

    /// Who to be at `url`, one of [`urls`](Redis::urls): what the config says apart from the URL,
    /// and else what the URL says. Through Sentinels, this is for the Redis that they name.
    #[must_use]
    pub fn login_at(&self, url: &RedisUrl) -> Login {
        let of_url = || url.password.clone().map(Password::Text);
        Login {
            username: self.login.username.clone().or_else(|| url.username.clone()),
            password: self.login.password.clone().or_else(of_url),
        }
    }

    fn move_to(&mut self, flag: Redis) {
        // Who is named on the command line is meant; who is not may stay in the file.
        if flag.urls.iter().any(|url| url.username.is_some()) {
            self.login.username = None;
        }
        if flag.urls.iter().any(|url| url.password.is_some()) {
            self.login.password = None;
        }
        if !flag.tls() {
            self.tls_ca = None;
        }
        if !matches!(flag.mode, Mode::Sentinel { .. }) {
            self.sentinel_login = Login::default();
        }
        self.mode = flag.mode;
        self.urls = flag.urls;
    }
}

impl Login {
    /// Whether there is a user that cannot log in.
    pub(crate) fn is_lonely(&self) -> bool {
        self.username.is_some() && self.password.is_none()
    }
}

impl Password {
    /// The password: reads the file, if it is in one. A line break at its end does not count.
    ///
    /// # Errors
    /// If the file cannot be read, holds nothing, or is no text.
    pub fn read(&self) -> io::Result<Secret> {
        let path = match self {
            Password::Text(secret) => return Ok(secret.clone()),
            Password::File(path) => path,
        };
        read_secret_file(path, "a password")
    }
}

/// What a file holds that is nothing but a secret. A line break at its end does not count.
pub(crate) fn read_secret_file(path: &Path, what: &str) -> io::Result<Secret> {
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(MAX_PASSWORD + 1)
        .read_to_string(&mut text)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || text.len() as u64 > MAX_PASSWORD {
        let message = format!("the file does not hold {what}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Secret::new(line.to_owned()))
}

impl Config {
    /// Whether the store fits the rest of the config. A config that was read is right; this is for
    /// one whose store was changed afterwards.
    ///
    /// # Errors
    /// If the store is shared and there is no `hash_secret`, or if a user has no password: what is
    /// wrong, and what would be right.
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
        let Store::Redis(redis) = &self.store else {
            return Ok(());
        };
        if self.subjects.hash_secret.is_none() {
            return Err(format!("{NO_SECRET}; {SECRET_HELP}"));
        }
        if redis.urls.iter().any(|url| redis.login_at(url).is_lonely()) {
            return Err(format!("{LONELY_USER}; {LONELY_USER_HELP}"));
        }
        Ok(())
    }
}
