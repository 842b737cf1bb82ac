//! The production limiter on a store in memory, with a clock that the caller sets.

use std::fmt;

use tollgate::{Config, Limiter, ManualClock, MemoryStore, Time};
use tollgate_config::{Secret, Store};

/// The secret of a config without one. It is public: it only makes two runs pick the same subjects for a
/// `rollout`.
const SECRET: &str = "tollgate on a virtual clock";

/// A limiter in memory, at a time that the caller sets.
///
/// ```
/// use tollgate::{Attributes, Span, Time};
/// use tollgate_simulate::VirtualLimiter;
///
/// let config = tollgate::parse("rules.yaml", "
/// version: 1
/// rules: [{ id: api, per: [user], algorithm: fixed-window, limit: 1, window: 1m }]
/// ", &|_| None)?;
/// let start = Time::from_micros(1_800_000_000_000_000);
/// let limiter = VirtualLimiter::new(&config, start);
/// let ann = Attributes::from([("user", "ann")]);
/// assert!(limiter.check_now(&ann).is_allowed());
/// assert!(!limiter.check_now(&ann).is_allowed());
/// limiter.set_time(start + Span::MINUTE);
/// assert!(limiter.check_now(&ann).is_allowed());
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub struct VirtualLimiter {
    limiter: Limiter<MemoryStore<ManualClock>>,
    clock: ManualClock,
}

impl fmt::Debug for VirtualLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualLimiter").finish_non_exhaustive()
    }
}

impl VirtualLimiter {
    /// Returns a limiter with the rules of `config` and no usage, at `start`. The store and the ledger that
    /// the config names are not used.
    #[must_use]
    pub fn new(config: &Config, start: Time) -> VirtualLimiter {
        let config = offline(config);
        let clock = ManualClock::at(start);
        let store = MemoryStore::with_clock(config.subjects.max_keys, clock.clone());
        let limiter = Limiter::builder(&config, store)
            .clock(clock.clone())
            .build();
        VirtualLimiter { limiter, clock }
    }

    /// Sets the time, which may be earlier than the current time.
    pub fn set_time(&self, now: Time) {
        self.clock.set(now);
    }
}

impl std::ops::Deref for VirtualLimiter {
    type Target = Limiter<MemoryStore<ManualClock>>;

    fn deref(&self) -> &Self::Target {
        &self.limiter
    }
}

/// Returns the same rules for a store in memory: without the stores, the ledger and the secret that the
/// config names.
#[must_use]
pub fn offline(config: &Config) -> Config {
    let mut config = config.clone();
    config.store = Store::Memory;
    config.stores.clear();
    config.keep_in(None);
    config.subjects.hash_secret = Some(Secret::new(SECRET.to_owned()));
    config.subjects.previous_hash_secrets.clear();
    config
}
