//! The config in force, the overrides over it, and all that was made of it, replaced as a whole.
//!
//! A request takes hold of one [`ActiveConfig`] and asks nothing else until it is answered, so that it never
//! sees half of a change; one that began before a change ends with what it began with. What has to
//! outlive a change is handed on from one to the next: the secret of the subjects, and the counts of
//! rules that keep their id. The state of stores is not touched: its keys do not depend on numbers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tollgate_config::{Config, Durability, Override, RuleSet, Server};
use tollgate_core::{Charge, Keyring};
use tollgate_store::Applied;

use crate::batch::Told;
use crate::entry::Entry;
use crate::events::{Events, Taken, has_quotas};
use crate::fallback::Plans;
#[cfg(feature = "redis")]
use crate::holds::Names;
use crate::metrics::{Metrics, Throttles};
use crate::parties::Party;

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
    /// Whether a rule wants to see what it admits in the database before anybody is answered.
    has_strict: bool,
    plans: Plans,
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

    /// Tells of the quotas that a request brought near their end which the store has let pass.
    #[inline]
    pub(crate) fn notice<'p>(
        &self,
        charges: &[Charge<'_>],
        applied: &Applied,
        party: impl Fn(usize) -> Party<'p>,
    ) {
        if self.has_quotas && applied.allowed {
            let taken = Taken {
                units: applied.granted,
                now: applied.now,
            };
            let outcomes = applied.outcomes.iter().map(Some);
            self.events.notice(charges, outcomes, taken, party);
        }
    }

    /// The same of what was told by a store, or in its place.
    pub(crate) fn notice_told<'p>(
        &self,
        charges: &[Charge<'_>],
        told: &Told,
        party: impl Fn(usize) -> Party<'p>,
    ) {
        if self.has_quotas && told.allowed {
            let taken = Taken {
                units: told.granted,
                now: told.now,
            };
            let entries = told.entries.iter().map(Option::as_ref);
            let outcomes = entries.map(|entry| entry.and_then(Entry::counted));
            self.events.notice(charges, outcomes, taken, party);
        }
    }

    /// Whether a rule wants to see what it admits in the database before anybody is answered.
    pub(crate) fn has_strict(&self) -> bool {
        self.has_strict
    }

    /// What they do when the store fails.
    pub(crate) fn plans(&self) -> &Plans {
        &self.plans
    }
}

/// The one [`ActiveConfig`] that new requests take hold of.
pub(crate) struct Current {
    live: ArcSwap<ActiveConfig>,
    keyring: Keyring,
    #[cfg(feature = "redis")]
    names: Names,
    /// Whether there is a ledger for what the rules want to be kept.
    keeps_books: AtomicBool,
    /// Held while one is made from another.
    changing: Mutex<()>,
}

impl Current {
    /// `keyring` hashes the subjects from now on.
    pub(crate) fn new(
        config: &Config,
        keyring: Keyring,
        throttles: Arc<Throttles>,
        plans: Plans,
    ) -> Current {
        let rules = without_ledger(config).compile(keyring.clone(), &[]);
        let live = ActiveConfig {
            generation: 0,
            config: Arc::new(config.clone()),
            overrides: Arc::default(),
            metrics: Arc::new(Metrics::new(&rules, throttles)),
            events: Arc::new(Events::new(&config.events.near_limit)),
            has_quotas: has_quotas(&rules),
            has_strict: has_strict(&rules),
            rules: Arc::new(rules),
            plans,
        };
        Current {
            live: ArcSwap::from_pointee(live),
            #[cfg(feature = "redis")]
            names: Names::new(&keyring),
            keyring,
            keeps_books: AtomicBool::new(false),
            changing: Mutex::new(()),
        }
    }

    /// From now on there is a ledger.
    #[cfg(feature = "redis")]
    pub(crate) fn keep_books(&self, plan: impl Fn(&Config) -> Plans) {
        self.keeps_books.store(true, Ordering::Relaxed);
        let overrides = Arc::clone(self.live.load().overrides());
        self.set_overrides(overrides, plan);
    }

    /// Makes names for reservations and leases.
    #[cfg(feature = "redis")]
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// For a request that is answered at once.
    #[inline]
    pub(crate) fn load(&self) -> Guard<Arc<ActiveConfig>> {
        self.live.load()
    }

    /// To keep.
    pub(crate) fn hold(&self) -> Arc<ActiveConfig> {
        self.live.load_full()
    }

    /// Puts `config` in force, as far as that can be done now. `plan` says what its rules do when the
    /// store fails.
    pub(crate) fn reload(&self, config: &Config, plan: impl Fn(&Config) -> Plans) -> Reloaded {
        let _alone = self.changing.lock();
        let running = self.live.load_full();
        let (config, needs_restart) = within_reach(config, &running.config);
        let version = config.policy.version.clone();
        let overrides = Arc::clone(&running.overrides);
        self.replace(&running, Arc::new(config), overrides, plan);
        Reloaded {
            version,
            needs_restart,
        }
    }

    /// Puts `overrides` in force, instead of those that were.
    pub(crate) fn set_overrides(
        &self,
        overrides: Arc<[Arc<Override>]>,
        plan: impl Fn(&Config) -> Plans,
    ) {
        let _alone = self.changing.lock();
        let running = self.live.load_full();
        self.replace(&running, Arc::clone(&running.config), overrides, plan);
    }

    fn replace(
        &self,
        running: &ActiveConfig,
        config: Arc<Config>,
        overrides: Arc<[Arc<Override>]>,
        plan: impl Fn(&Config) -> Plans,
    ) {
        let keyring = self.keyring.clone();
        let rules = match self.keeps_books.load(Ordering::Relaxed) {
            true => config.compile(keyring, &overrides),
            false => without_ledger(&config).compile(keyring, &overrides),
        };
        let places: HashMap<&str, usize> = ids(&running.rules).zip(0..).collect();
        let places = ids(&rules).map(|id| places.get(id).copied());
        let metrics = running.metrics.followed_by(&rules, places);
        running.events.keep(&rules);
        self.live.store(Arc::new(ActiveConfig {
            generation: running.generation + 1,
            plans: plan(&config),
            config,
            overrides,
            metrics: Arc::new(metrics),
            events: Arc::clone(&running.events),
            has_quotas: has_quotas(&rules),
            has_strict: has_strict(&rules),
            rules: Arc::new(rules),
        }));
    }
}

fn has_strict(rules: &RuleSet) -> bool {
    let mut rules = rules.rules().iter();
    rules.any(|rule| rule.durability() == Durability::Strict)
}

/// What the rules are made of where nobody keeps books: nothing would ever be restored.
fn without_ledger(config: &Config) -> Config {
    let mut config = config.clone();
    config.ledger = None;
    config
}

fn ids(rules: &RuleSet) -> impl Iterator<Item = &str> {
    rules.rules().iter().map(tollgate_rules::Rule::id)
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
