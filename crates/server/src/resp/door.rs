//! The state that all connections of a listener share.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Engine, RequestOrigin};
use tollgate_config::{Password, Resp, Secret, ThrottleFailure};

use super::bounds;
use super::conversation::Conversation;
use crate::access::attempts::Attempts;
use crate::access::token::{Hash, Tokens};
use crate::access::{Access, Client, DataDoor};
use crate::backend::Backend;
use crate::door_metrics::DoorMetrics;
use crate::net::Memory;

/// The settings of a listener.
#[derive(Clone, Debug)]
pub struct Options {
    /// The password of the user `default`. Without a password, clients need not log in.
    pub password: Option<Secret>,
    /// The answer of `CL.THROTTLE` if the store does not answer.
    pub on_store_failure: ThrottleFailure,
    /// How long a client may be silent.
    pub idle_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            password: None,
            on_store_failure: ThrottleFailure::Error,
            idle_timeout: bounds::IDLE_TIMEOUT,
        }
    }
}

/// The name of this door in traces.
pub(super) const DOOR: &str = "resp";

/// Where all requests of this door come from. The protocol cannot name a trace.
pub(super) const ORIGIN: RequestOrigin = RequestOrigin {
    door: DOOR,
    trace: None,
};

impl Options {
    /// Takes the settings from a config. Reads the password file, if there is one.
    ///
    /// # Errors
    /// If that file cannot be read.
    pub fn of(config: &Resp) -> io::Result<Options> {
        let password = config.password.as_ref();
        Ok(Options {
            password: password.map(Password::read).transpose()?,
            on_store_failure: config.on_store_failure,
            ..Options::default()
        })
    }
}

/// How a client has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    None,
    /// With the password of the door, which allows everything.
    Password,
    /// With the token that has this hash.
    Token(Hash),
}

/// The user of the password. Each token is also a user.
const USER: &[u8] = b"default";

/// A listener's backend, settings and counts.
pub struct Door {
    pub(super) backend: Backend,
    pub(super) on_store_failure: ThrottleFailure,
    pub(super) idle_timeout: Duration,
    /// The tokens of clients, and their wrong tokens and passwords.
    pub(super) access: Access,
    /// The hash of the password. Comparing hashes takes the same time for every password.
    password: Option<blake3::Hash>,
    pub(super) opened_at: Instant,
    pub(super) draining: AtomicBool,
    pub(super) counts: Counts,
    /// What the clients hold.
    pub(super) memory: Memory,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

impl Door {
    /// Opens a door to `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, options: &Options) -> Arc<Door> {
        Door::counting_in(engine, options, Arc::default(), Arc::default())
    }

    /// Opens a door to `engine` that counts in `metrics`, and wrong tokens and passwords in `attempts`.
    pub(super) fn counting_in(
        engine: Arc<Engine>,
        options: &Options,
        attempts: Arc<Attempts>,
        metrics: Arc<DoorMetrics>,
    ) -> Arc<Door> {
        let password = options.password.as_ref();
        Arc::new(Door {
            access: Access::new(DataDoor::Resp, Arc::clone(&engine), attempts),
            backend: Backend::new(engine, metrics),
            on_store_failure: options.on_store_failure,
            idle_timeout: options.idle_timeout,
            password: password.map(|it| blake3::hash(it.expose())),
            opened_at: Instant::now(),
            draining: AtomicBool::new(false),
            counts: Counts::default(),
            memory: Memory::default(),
        })
    }

    /// Starts the conversation with a new client. The answers to its wrong passwords do not wait.
    #[must_use]
    pub fn conversation(self: &Arc<Door>) -> Conversation {
        Conversation::new(Arc::clone(self), None)
    }

    /// Starts the conversation with a new client at `peer`.
    pub(super) fn conversation_with(self: &Arc<Door>, peer: IpAddr) -> Conversation {
        Conversation::new(Arc::clone(self), Some(peer))
    }

    /// Returns whether clients need to log in.
    pub(super) fn wants_login(&self, tokens: &Tokens<Client>) -> bool {
        self.password.is_some() || !tokens.is_empty()
    }

    /// Logs a user in with the password of the door, or with a token. A token belongs to its name, and to
    /// the user `default`. If clients need not log in, any password is right.
    pub(super) fn log_in(
        &self,
        tokens: &Tokens<Client>,
        user: &[u8],
        secret: &[u8],
    ) -> Option<Login> {
        // Both hashes are computed for every user, so that the time does not show whether the user is
        // right.
        let given = blake3::hash(secret);
        let is_password = self.password.is_some_and(|wanted| wanted == given);
        let token = tokens.find(secret);
        if is_password && user == USER {
            return Some(Login::Password);
        }
        match token {
            Some((hash, client)) if user == USER || user == client.name.as_bytes() => {
                Some(Login::Token(hash))
            }
            Some(_) => None,
            None => (user == USER && !self.wants_login(tokens)).then_some(Login::None),
        }
    }

    /// Makes the id of the next client.
    pub(super) fn next_id(&self) -> u64 {
        self.counts.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Counters. All connections write the counters and read the fields beside them, so the counters
/// have their own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts {
    /// All connections so far.
    connections: AtomicU64,
    commands: AtomicU64,
    /// Open connections.
    open: AtomicU64,
}

impl Counts {
    pub(super) fn commands(&self, count: u64) {
        self.commands.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns open connections, all connections, and all commands.
    pub(super) fn read(&self) -> [u64; 3] {
        [&self.open, &self.connections, &self.commands].map(|it| it.load(Ordering::Relaxed))
    }
}

/// Counts as an open connection until it is dropped.
pub(super) struct OpenConnection(Arc<Door>);

impl OpenConnection {
    pub(super) fn new(door: &Arc<Door>) -> OpenConnection {
        door.counts.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(door))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}
