//! The config in force, the overrides over it, and all that was made of it, replaced as a whole.
//!
//! A request takes hold of one [`ActiveConfig`] and asks nothing else until it is answered, so that it never
//! sees half of a change; one that began before a change ends with what it began with. What has to
//! outlive a change is handed on from one to the next: the secret of the subjects, and the counts of
//! rules that keep their id. The state of stores is not touched: its keys do not depend on numbers.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tollgate_config::{Attributes, Config, Override, RuleSet, Server};
use tollgate_core::{Charge, Keyring};

use crate::events::{Events, has_quotas};
use crate::fallback::{Plans, Share};
use crate::metrics::{Metrics, Throttles};
use crate::reply::Reply;

/// A config in force, and what was made of it.
pub struct ActiveConfig {
    generation: u64,
    config: Arc<Config>,
    overrides: Arc<[Arc<Override>]>,
    rules: Arc<RuleSet>,
    metrics: Arc<Metrics>,
    events: Arc<Events>,
    /// Whether there is anything that may have events.
    has_quotas: bool,
    plans: Plans,
}

impl fmt::Debug for ActiveConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveConfig")
            .field("generation", &self.generation)
            .field("version", &self.config.policy.version)
            .finish_non_exhaustive()
    }
}

/// What became of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Names the rules that are in force now.
    pub version: String,
    /// The sections of the config that say something new which only a restart can bring about. They
    /// are in force as they were.
    pub needs_restart: Vec<&'static str>,
}

impl ActiveConfig {
    /// Counts the changes of one limiter: no two of its configs have the same.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The config. What needs a restart is in it as it is in force, whatever the file says.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// The overrides in force.
    #[must_use]
    pub fn overrides(&self) -> &Arc<[Arc<Override>]> {
        &self.overrides
    }

    /// Its rules.
    #[must_use]
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// What they have decided so far, in the order of [`rules`](Self::rules).
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Tells when what they allow is nearly used up. The same over all changes.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Tells of the quotas that an admitted request brought near their end. Usage that failure policies
    /// have admitted is not in the count, and is not told. `attributes` are those of the request that a
    /// charge belongs to, by its place.
    #[inline]
    pub(crate) fn notice<'q, 'a: 'q>(
        &self,
        charges: &[Charge<'_>],
        reply: &Reply,
        attributes: impl Fn(usize) -> &'q Attributes<'a>,
    ) {
        if self.has_quotas && reply.policies.is_none() {
            self.events.notice(charges, &reply.applied, attributes);
        }
    }

    /// What they do when the store fails.
    pub(crate) fn plans(&self) -> &Plans {
        &self.plans
    }
}

/// The one [`ActiveConfig`] that new requests see.
pub(crate) struct CurrentConfig {
    active: ArcSwap<ActiveConfig>,
    keyring: Keyring,
    /// Whether a ledger records usage.
    records_usage: bool,
    /// The share of each limit that is counted here while the store does not answer; `None` if the store
    /// cannot fail.
    share: Option<Share>,
    /// Held while one config is made from another.
    changing: Mutex<()>,
}

/// The current config, for a request that is answered soon. Cheaper than an [`Arc`] of it.
pub struct Loaded(Guard<Arc<ActiveConfig>>);

impl Deref for Loaded {
    type Target = ActiveConfig;

    #[inline]
    fn deref(&self) -> &ActiveConfig {
        &self.0
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl CurrentConfig {
    /// `keyring` hashes the subjects from now on.
    pub(crate) fn new(
        config: &Config,
        keyring: Keyring,
        throttles: Arc<Throttles>,
        records_usage: bool,
        share: Option<Share>,
    ) -> CurrentConfig {
        let rules = compile(config, keyring.clone(), &[], records_usage);
        let active = ActiveConfig {
            generation: 0,
            config: Arc::new(config.clone()),
            overrides: Arc::default(),
            metrics: Arc::new(Metrics::new(&rules, throttles)),
            events: Arc::new(Events::new(&config.events.near_limit)),
            has_quotas: has_quotas(&rules),
            rules: Arc::new(rules),
            plans: Plans::new(config, share),
        };
        CurrentConfig {
            active: ArcSwap::from_pointee(active),
            keyring,
            records_usage,
            share,
            changing: Mutex::new(()),
        }
    }

    /// The current config, for a request that is answered soon.
    #[inline]
    pub(crate) fn load(&self) -> Loaded {
        Loaded(self.active.load())
    }

    /// Returns an owned handle to the current config.
    pub(crate) fn get(&self) -> Arc<ActiveConfig> {
        self.active.load_full()
    }

    /// Puts `config` in force, as far as that is possible without a restart.
    pub(crate) fn reload(&self, config: &Config) -> Reloaded {
        let _alone = self.changing.lock();
        let running = self.active.load_full();
        let (config, needs_restart) = within_reach(config, &running.config);
        let version = config.policy.version.clone();
        let overrides = Arc::clone(&running.overrides);
        self.replace(&running, Arc::new(config), overrides);
        Reloaded {
            version,
            needs_restart,
        }
    }

    /// Puts `overrides` in force, instead of the current ones.
    pub(crate) fn set_overrides(&self, overrides: Arc<[Arc<Override>]>) {
        let _alone = self.changing.lock();
        let running = self.active.load_full();
        self.replace(&running, Arc::clone(&running.config), overrides);
    }

    fn replace(
        &self,
        running: &ActiveConfig,
        config: Arc<Config>,
        overrides: Arc<[Arc<Override>]>,
    ) {
        let rules = compile(
            &config,
            self.keyring.clone(),
            &overrides,
            self.records_usage,
        );
        let places: HashMap<&str, usize> = ids(&running.rules).zip(0..).collect();
        let places = ids(&rules).map(|id| places.get(id).copied());
        let metrics = running.metrics.followed_by(&rules, places);
        running.events.keep(&rules);
        self.active.store(Arc::new(ActiveConfig {
            generation: running.generation + 1,
            plans: Plans::new(&config, self.share),
            config,
            overrides,
            metrics: Arc::new(metrics),
            events: Arc::clone(&running.events),
            has_quotas: has_quotas(&rules),
            rules: Arc::new(rules),
        }));
    }
}

/// The rules of a config. Without a ledger nothing would ever be restored, so the rules must not ask for
/// that.
fn compile(
    config: &Config,
    keyring: Keyring,
    overrides: &[Arc<Override>],
    records_usage: bool,
) -> RuleSet {
    if records_usage {
        return config.compile(keyring, overrides);
    }
    let mut config = config.clone();
    config.ledger = None;
    config.compile(keyring, overrides)
}

fn ids(rules: &RuleSet) -> impl Iterator<Item = &str> {
    rules.rules().iter().map(tollgate_config::Rule::id)
}

/// `wanted` with what needs a restart as it is in `running`, and the names of what differs there.
fn within_reach(wanted: &Config, running: &Config) -> (Config, Vec<&'static str>) {
    let mut config = wanted.clone();
    config.namespace.clone_from(&running.namespace);
    let secret = &running.subjects.hash_secret;
    config.subjects.hash_secret.clone_from(secret);
    config.subjects.max_keys = running.subjects.max_keys;
    config.store = running.store.clone();
    config.server = reachable_doors(&wanted.server, &running.server);
    config.telemetry = running.telemetry.clone();
    config.keep_in(running.ledger.clone());
    config.events = running.events.clone();
    let differs = [
        ("namespace", config.namespace != wanted.namespace),
        (
            "subjects.hash_secret",
            config.subjects.hash_secret != wanted.subjects.hash_secret,
        ),
        (
            "subjects.max_keys",
            config.subjects.max_keys != wanted.subjects.max_keys,
        ),
        ("store", config.store != wanted.store),
        ("server", config.server != wanted.server),
        ("telemetry", config.telemetry != wanted.telemetry),
        ("ledger", config.ledger != wanted.ledger),
        ("events", config.events != wanted.events),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    (config, differs.map(|(name, _)| name).collect())
}

/// Doors stay where they are. Who may enter that of operators, and what Envoy is told of unknown
/// domains, can change.
fn reachable_doors(wanted: &Server, running: &Server) -> Server {
    let mut server = running.clone();
    if let (Some(grpc), Some(wanted)) = (&mut server.grpc, &wanted.grpc) {
        grpc.unknown_domain = wanted.unknown_domain;
    }
    if let (Some(admin), Some(wanted)) = (&mut server.admin, &wanted.admin) {
        // No tokens are right where only this machine can connect, and that is decided by where the
        // door is, and not by where it is wanted.
        if !wanted.tokens.is_empty() || admin.listen.is_loopback() {
            admin.tokens.clone_from(&wanted.tokens);
        }
    }
    server
}
