//! The settings of a Redis store: servers, logins, timeouts and bounds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Span;
use tollgate_store::{BreakerOptions, Clock, GRACE};

/// The settings of a store. [`Options::new`] has defaults that suit most deployments.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The servers and their topology.
    pub servers: Servers,
    /// The login for the servers that have the data.
    pub login: Login,
    /// The number of the database; 0 in a cluster.
    pub database: u32,
    /// TLS; `None` for plain connections.
    pub tls: Option<Tls>,
    /// How long a decision may wait.
    pub timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a connection may be unused before it is closed.
    pub idle_timeout: Duration,
    /// The most connections to one server. Each has one call in flight.
    pub max_connections: usize,
    /// The most requests that wait for the store. Further requests fail at once.
    pub max_in_flight: usize,
    /// The most requests in one call.
    pub batch: usize,
    /// The clock that decides.
    pub clock: ClockSource,
    /// The prefix of all keys.
    pub key_prefix: String,
    /// The namespace of holds. Only instances of the same namespace expire these holds.
    pub namespace: String,
    /// When to stop sending requests to a failing server.
    pub breaker: BreakerOptions,
    /// How long Redis keeps a state after it has expired.
    pub margin: Span,
    /// The approximate maximum number of keys. Once it is reached, new subjects of a rule share a state.
    pub max_keys: u64,
    /// The same for the keys of anonymous subjects.
    pub max_anonymous_keys: u64,
}

impl Options {
    /// Returns the default settings for these servers.
    #[must_use]
    pub fn new(servers: Servers) -> Options {
        Options {
            servers,
            login: Login::default(),
            database: 0,
            tls: None,
            timeout: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(200),
            idle_timeout: Duration::from_secs(30),
            max_connections: 4,
            max_in_flight: 10_000,
            batch: 64,
            clock: ClockSource::Store,
            key_prefix: "tg".to_owned(),
            namespace: "default".to_owned(),
            breaker: BreakerOptions::default(),
            margin: GRACE,
            max_keys: u64::MAX,
            max_anonymous_keys: u64::MAX,
        }
    }
}

/// The servers and their topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    Standalone(Address),
    /// The master that Sentinels name.
    Sentinel {
        /// The addresses of the Sentinels.
        sentinels: Vec<Address>,
        /// The name of the master.
        master: String,
        /// The login for the Sentinels.
        login: Login,
    },
    /// A cluster, found through any of its nodes.
    Cluster(Vec<Address>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an IP address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A user and a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; `None` for the default user of the server.
    pub username: Option<String>,
    /// The password.
    pub password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .finish()
    }
}

/// The settings of TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A certificate authority to trust, in PEM; `None` for those of the system.
    pub ca: Option<Vec<u8>>,
}

/// The clock that decides.
#[derive(Clone, Default)]
pub enum ClockSource {
    /// The clock of the server: the same for all instances.
    #[default]
    Store,
    /// This clock: the decisions of instances agree only if their clocks agree.
    Caller(Arc<dyn Clock>),
}

impl fmt::Debug for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClockSource::Store => "Store",
            ClockSource::Caller(_) => "Caller",
        })
    }
}
