//! Where the servers are, how to log in, and how long to wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Span;
use tollgate_store::{BreakerOptions, Clock, GRACE};

/// Everything a store needs to know. [`Options::new`] fills in what most deployments leave alone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Which servers, and what they are to each other.
    pub servers: Servers,
    /// How to log in to the servers that keep the data.
    pub login: Login,
    /// The database: 0 in a cluster.
    pub database: u32,
    /// How to encrypt; none for plain connections.
    pub tls: Option<Tls>,
    /// How long a decision waits at most.
    pub timeout: Duration,
    /// How long connecting takes at most.
    pub connect_timeout: Duration,
    /// A connection that nothing has used for so long is closed.
    pub idle_timeout: Duration,
    /// Connections to a server at most. Each carries one call at a time.
    pub max_connections: usize,
    /// Requests that wait for the store at most. Those beyond are answered at once.
    pub max_in_flight: usize,
    /// Requests in one call at most.
    pub batch: usize,
    /// Whose clock decides.
    pub clock: ClockSource,
    /// What all keys begin with.
    pub key_prefix: String,
    /// Whose holds are swept together: instances of another namespace do not see when these are due.
    pub namespace: String,
    /// When to stop asking a failing server.
    pub breaker: BreakerOptions,
    /// How long a state is kept after it has expired.
    pub margin: Span,
}

impl Options {
    /// The servers, and defaults for the rest.
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
        }
    }
}

/// Which servers, and what they are to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    Standalone(Address),
    /// The server that Sentinels call the master.
    Sentinel {
        /// Where the Sentinels are.
        sentinels: Vec<Address>,
        /// What they call it.
        master: String,
        /// How to log in to the Sentinels.
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
    /// The user; the server's default user if none is given.
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

/// How to encrypt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whom to trust besides the system's authorities, in PEM.
    pub ca: Option<Vec<u8>>,
}

/// Whose clock decides.
#[derive(Clone, Default)]
pub enum ClockSource {
    /// The server's: all instances agree.
    #[default]
    Store,
    /// This one: instances agree as far as their clocks do.
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
