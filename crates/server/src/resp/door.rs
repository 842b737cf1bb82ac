//! What all connections of a listener share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::Engine;
use tollgate_config::{Password, Resp, Secret, ThrottleFailure};

use super::bounds;
use super::conversation::Conversation;
use crate::backend::Backend;

/// How a listener treats its clients.
#[derive(Clone, Debug)]
pub struct Options {
    /// What clients have to know; all are welcome if there is none. The user is `default`.
    pub password: Option<Secret>,
    /// What `CL.THROTTLE` answers when the store does not.
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

/// What this door is called in traces.
pub(super) const DOOR: &str = "resp";

impl Options {
    /// What a config says of this door. Reads the password, if it is in a file.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn of(config: &Resp) -> io::Result<Options> {
        let password = config.password.as_ref();
        Ok(Options {
            password: password.map(Password::read).transpose()?,
            on_store_failure: config.on_store_failure,
            ..Options::default()
        })
    }
}

/// The only user there is.
const USER: &[u8] = b"default";

/// A listener's engine, options and counts.
pub struct Door {
    pub(super) backend: Backend,
    pub(super) on_store_failure: ThrottleFailure,
    pub(super) idle_timeout: Duration,
    /// Not the password: two hashes are compared in the same time whatever they are.
    password: Option<blake3::Hash>,
    pub(super) opened_at: Instant,
    pub(super) counts: Counts,
}

impl Door {
    /// A door to `engine`.
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

    /// Somebody comes in.
    #[must_use]
    pub fn conversation(self: &Arc<Door>) -> Conversation {
        Conversation::new(Arc::clone(self))
    }

    pub(super) fn wants_password(&self) -> bool {
        self.password.is_some()
    }

    /// Whether this user has this password. Where none is wanted, any will do.
    pub(super) fn admits(&self, user: &[u8], password: &[u8]) -> bool {
        // Compared whoever it is, so that the time tells nothing.
        let given = blake3::hash(password);
        let right = self.password.is_none_or(|wanted| wanted == given);
        right && user == USER
    }

    pub(super) fn next_id(&self) -> u64 {
        self.counts.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// What has happened so far. On cache lines of its own: all connections write here, and all read what
/// stands beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts {
    /// Connections there have been.
    connections: AtomicU64,
    commands: AtomicU64,
    /// Connections there are.
    open: AtomicU64,
}

impl Counts {
    pub(super) fn commands(&self, count: u64) {
        self.commands.fetch_add(count, Ordering::Relaxed);
    }

    /// Connections now, connections so far, commands so far.
    pub(super) fn read(&self) -> [u64; 3] {
        [&self.open, &self.connections, &self.commands].map(|it| it.load(Ordering::Relaxed))
    }
}

/// Counts a connection as long as it lives.
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
