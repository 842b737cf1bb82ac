//! The state that all connections of a listener share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Engine, RequestOrigin};
use tollgate_config::{Password, Resp, Secret, ThrottleFailure};

use super::bounds;
use super::conversation::Conversation;
use crate::backend::Backend;

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

/// The only user.
const USER: &[u8] = b"default";

/// A listener's backend, settings and counts.
pub struct Door {
    pub(super) backend: Backend,
    pub(super) on_store_failure: ThrottleFailure,
    pub(super) idle_timeout: Duration,
    /// The hash of the password. Comparing hashes takes the same time for every password.
    password: Option<blake3::Hash>,
    pub(super) opened_at: Instant,
    pub(super) counts: Counts,
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
        let password = options.password.as_ref();
        Arc::new(Door {
            backend: Backend::new(engine),
            on_store_failure: options.on_store_failure,
            idle_timeout: options.idle_timeout,
            password: password.map(|it| blake3::hash(it.expose())),
            opened_at: Instant::now(),
            counts: Counts::default(),
        })
    }

    /// Starts the conversation with a new client.
    #[must_use]
    pub fn conversation(self: &Arc<Door>) -> Conversation {
        Conversation::new(Arc::clone(self))
    }

    pub(super) fn wants_password(&self) -> bool {
        self.password.is_some()
    }

    /// Returns whether this user has this password. Without a configured password, any password is
    /// right.
    pub(super) fn admits(&self, user: &[u8], password: &[u8]) -> bool {
        // The hash is computed for every user, so that the time does not show whether the user is
        // right.
        let given = blake3::hash(password);
        let right = self.password.is_none_or(|wanted| wanted == given);
        right && user == USER
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
