//! The config in force, its overrides, and all values derived from them. They are replaced together.
//!
//! A request uses one [`ActiveConfig`] until it is answered, so it never sees half of a change. A
//! request that began before a change ends under the config it began with. A reload keeps the secret
//! that hashes subjects, and the counts of rules that keep their id. It also keeps the state in stores,
//! because keys do not contain the numbers of limits.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tollgate_config::{Attributes, Blocks, Config, Override, RuleSet, Server, Telemetry};
use tollgate_core::{Charge, Keyring, Subject};

use crate::adaptive_limits::has_adaptive;
use crate::denial_feed::DenialPaces;
use crate::events::{Events, has_quotas};
use crate::fallback::{RuleFallbacks, Share};
use crate::holds::HoldNames;
use crate::metrics::{Metrics, Throttles};
use crate::reply::Reply;
use crate::throttle::Throttle;

/// A config in force, and the values derived from it.
pub struct ActiveConfig {
    generation: u64,
    config: Arc<Config>,
    overrides: Arc<[Arc<Override>]>,
    blocks: Blocks,
    rules: Arc<RuleSet>,
    metrics: Arc<Metrics>,
    events: Arc<Events>,
    /// Whether a rule is a quota. Only quotas have events.
    has_quotas: bool,
    /// Whether requests may wait under a rule.
    has_waits: bool,
    /// Whether the limit of a rule follows reports.
    has_adaptive: bool,
    fallbacks: Arc<RuleFallbacks>,
    denial_paces: Arc<DenialPaces>,
    keyed: Arc<Keyed>,
}

/// Values that depend on the keyring alone.
pub(crate) struct Keyed {
    pub(crate) names: HoldNames,
    pub(crate) throttle: Throttle,
}

impl Keyed {
    fn new(keyring: &Keyring) -> Keyed {
        Keyed {
            names: HoldNames::new(keyring),
            throttle: Throttle::new(keyring),
        }
    }
}

impl fmt::Debug for ActiveConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveConfig")
            .field("generation", &self.generation)
            .field("version", &self.config.policy.version)
            .finish_non_exhaustive()
    }
}

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// The version of the rules that are in force now.
    pub version: String,
    /// The sections of the config that changed and need a restart. Their old values stay in force.
    pub needs_restart: Vec<&'static str>,
}

impl ActiveConfig {
    /// Returns the number of this config. It grows by one with each change of the same limiter.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the config. Sections that need a restart have the values in force, not the values of the
    /// file.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Returns the sections of `config` that differ from this config and would need a restart.
    #[must_use]
    pub fn needs_restart(&self, config: &Config) -> Vec<&'static str> {
        without_restart(config, &self.config).1
    }

    /// Returns the overrides in force, blocks included.
    #[must_use]
    pub fn overrides(&self) -> &Arc<[Arc<Override>]> {
        &self.overrides
    }

    /// Returns the blocks in force.
    #[inline]
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Returns the decisions so far, counted by rule, in the order of [`rules`](Self::rules).
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns the events of quotas that are nearly used up. All configs of one limiter share them.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Raises an event for each quota that an admitted request brought near its limit. Usage that a
    /// failure policy admitted is not counted, so it has no outcome of a store, and raises no event. `attributes` maps the index of a
    /// charge to the attributes of its request.
    #[inline]
    pub(crate) fn notice<'q, 'a: 'q>(
        &self,
        charges: &[Charge<'_>],
        reply: &Reply,
        attributes: impl Fn(usize) -> &'q Attributes<'a>,
    ) {
        if self.has_quotas {
            self.events.notice(charges, &reply.applied, attributes);
        }
    }

    /// Returns the values that depend on the keyring alone.
    #[inline]
    pub(crate) fn keyed(&self) -> &Keyed {
        &self.keyed
    }

    /// Returns whether the limit of a rule follows reports.
    #[inline]
    pub(crate) fn has_adaptive(&self) -> bool {
        self.has_adaptive
    }

    /// Returns whether a subject is blocked.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Returns the hashed subjects that these attributes make: one for each `per` of a rule whose attributes are
    /// all given, and one for each attribute alone. The attribute `key` also makes the subject of an ad-hoc
    /// limit.
    #[must_use]
    pub fn subjects_of(&self, attributes: &Attributes<'_>) -> Vec<Subject> {
        let subjects = self.rules.subjects_of(attributes).into_iter();
        let key = attributes.get("key");
        let key = key.map(|key| self.keyed.throttle.subject(key.as_bytes()));
        let each = attributes
            .iter()
            .map(|(name, value)| self.rules.single_subject(name, value));
        let mut subjects: Vec<Subject> = subjects.map(|(_, subject)| subject).collect();
        for subject in key.into_iter().chain(each) {
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        subjects
    }

    /// Returns whether a rule lets requests wait for their turn (`max_wait`).
    #[must_use]
    #[inline]
    pub fn has_waits(&self) -> bool {
        self.has_waits
    }

    /// Returns how many denials each rule has recorded in the current second.
    pub(crate) fn denial_paces(&self) -> &DenialPaces {
        &self.denial_paces
    }

    /// Returns how each rule decides while the store fails.
    pub(crate) fn fallbacks(&self) -> &RuleFallbacks {
        &self.fallbacks
    }
}

/// The [`ActiveConfig`] for new requests.
pub(crate) struct CurrentConfig {
    active: ArcSwap<ActiveConfig>,
    /// Whether a ledger records usage.
    records_usage: bool,
    /// The share of each limit that this instance counts while the store does not answer. `None` if the
    /// store is in this process.
    share: Option<Share>,
    /// The keyring. Locked while a new config is made from the current one.
    keyring: Mutex<Keyring>,
}

/// The current config, for a short time. Cheaper than an [`Arc`], and meant for one request.
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
    /// Puts the first config in force. `keyring` hashes the subjects of this config and of all later
    /// configs, until a [`rekey`](Self::rekey).
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
            blocks: Blocks::default(),
            metrics: Arc::new(Metrics::new(&rules, throttles)),
            events: Arc::new(Events::new(&config.events.near_limit)),
            has_quotas: has_quotas(&rules),
            has_waits: has_waits(&rules),
            has_adaptive: has_adaptive(&rules),
            denial_paces: Arc::new(DenialPaces::new(
                &rules,
                config.telemetry.denials.per_second,
            )),
            rules: Arc::new(rules),
            fallbacks: Arc::new(RuleFallbacks::new(config, share)),
            keyed: Arc::new(Keyed::new(&keyring)),
        };
        CurrentConfig {
            active: ArcSwap::from_pointee(active),
            records_usage,
            share,
            keyring: Mutex::new(keyring),
        }
    }

    /// Returns the current config for a short time.
    #[inline]
    pub(crate) fn load(&self) -> Loaded {
        Loaded(self.active.load())
    }

    /// Returns an owned handle to the current config.
    pub(crate) fn get(&self) -> Arc<ActiveConfig> {
        self.active.load_full()
    }

    /// Puts `config` in force, except for the sections that need a restart.
    pub(crate) fn reload(&self, config: &Config) -> Reloaded {
        let keyring = self.keyring.lock();
        let running = self.active.load_full();
        let (config, needs_restart) = without_restart(config, &running.config);
        let version = config.policy.version.clone();
        let overrides = Arc::clone(&running.overrides);
        let keyed = Arc::clone(&running.keyed);
        self.replace(&running, Arc::new(config), overrides, &keyring, keyed);
        Reloaded {
            version,
            needs_restart,
        }
    }

    /// Puts `overrides` in force, instead of the current overrides.
    pub(crate) fn set_overrides(&self, overrides: Arc<[Arc<Override>]>) {
        let keyring = self.keyring.lock();
        let running = self.active.load_full();
        if are_same(of_rules(&running.overrides), of_rules(&overrides)) {
            // Only blocks have changed. They do not concern the rules, which may take long to compile.
            self.active.store(Arc::new(ActiveConfig {
                generation: running.generation + 1,
                config: Arc::clone(&running.config),
                blocks: Blocks::new(&overrides, &keyring),
                overrides,
                rules: Arc::clone(&running.rules),
                metrics: Arc::clone(&running.metrics),
                events: Arc::clone(&running.events),
                has_quotas: running.has_quotas,
                has_waits: running.has_waits,
                has_adaptive: running.has_adaptive,
                fallbacks: Arc::clone(&running.fallbacks),
                denial_paces: Arc::clone(&running.denial_paces),
                keyed: Arc::clone(&running.keyed),
            }));
            return;
        }
        let (config, keyed) = (Arc::clone(&running.config), Arc::clone(&running.keyed));
        self.replace(&running, config, overrides, &keyring, keyed);
    }

    /// Hashes subjects with another keyring from now on. So all states get other names.
    #[cfg(any(feature = "ledger", feature = "redis"))]
    pub(crate) fn rekey(&self, new: Keyring) {
        let mut keyring = self.keyring.lock();
        let running = self.active.load_full();
        let keyed = Arc::new(Keyed::new(&new));
        *keyring = new;
        let config = Arc::clone(&running.config);
        let overrides = Arc::clone(&running.overrides);
        self.replace(&running, config, overrides, &keyring, keyed);
    }

    fn replace(
        &self,
        running: &ActiveConfig,
        config: Arc<Config>,
        overrides: Arc<[Arc<Override>]>,
        keyring: &Keyring,
        keyed: Arc<Keyed>,
    ) {
        let rules = compile(&config, keyring.clone(), &overrides, self.records_usage);
        let places: HashMap<&str, usize> = ids(&running.rules).zip(0..).collect();
        let places = ids(&rules).map(|id| places.get(id).copied());
        let metrics = running.metrics.followed_by(&rules, places.clone());
        let per_second = config.telemetry.denials.per_second;
        let denial_paces = running.denial_paces.followed_by(places, per_second);
        running.events.keep(&rules);
        self.active.store(Arc::new(ActiveConfig {
            generation: running.generation + 1,
            fallbacks: Arc::new(RuleFallbacks::new(&config, self.share)),
            config,
            blocks: Blocks::new(&overrides, keyring),
            overrides,
            metrics: Arc::new(metrics),
            events: Arc::clone(&running.events),
            has_quotas: has_quotas(&rules),
            has_waits: has_waits(&rules),
            has_adaptive: has_adaptive(&rules),
            denial_paces: Arc::new(denial_paces),
            rules: Arc::new(rules),
            keyed,
        }));
    }
}

/// Returns the overrides that change rules: all but blocks.
fn of_rules(overrides: &[Arc<Override>]) -> impl Iterator<Item = &Arc<Override>> {
    overrides.iter().filter(|it| !it.is_block())
}

fn are_same<'o>(
    one: impl Iterator<Item = &'o Arc<Override>>,
    other: impl Iterator<Item = &'o Arc<Override>>,
) -> bool {
    one.map(Arc::as_ptr).eq(other.map(Arc::as_ptr))
}

/// Compiles the rules of a config. Without a ledger no count can be restored, so the rules are compiled
/// without one.
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

fn has_waits(rules: &RuleSet) -> bool {
    rules.rules().iter().any(|rule| rule.waiting().is_some())
}

fn ids(rules: &RuleSet) -> impl Iterator<Item = &str> + Clone {
    rules.rules().iter().map(tollgate_config::Rule::id)
}

/// Returns `wanted` with the sections of `running` that need a restart, and the names of sections that
/// differ.
fn without_restart(wanted: &Config, running: &Config) -> (Config, Vec<&'static str>) {
    let mut config = wanted.clone();
    config.namespace.clone_from(&running.namespace);
    config.subjects.hash_secret = running.subjects.hash_secret.clone();
    let previous = &running.subjects.previous_hash_secrets;
    config.subjects.previous_hash_secrets.clone_from(previous);
    config.subjects.max_keys = running.subjects.max_keys;
    config.subjects.max_anonymous_keys = running.subjects.max_anonymous_keys;
    // The store keeps states for as long as the skew at its start says.
    let subjects = &mut config.subjects;
    subjects
        .time_header
        .clone_from(&running.subjects.time_header);
    subjects.max_time_skew = running.subjects.max_time_skew;
    config.store = running.store.clone();
    config.stores.clone_from(&running.stores);
    config.server = server_without_restart(&wanted.server, &running.server);
    config.telemetry = telemetry_without_restart(&wanted.telemetry, &running.telemetry);
    config.keep_in(running.ledger.clone());
    config.events = running.events.clone();
    let (old, new) = (&config.subjects, &wanted.subjects);
    let differs = [
        ("namespace", config.namespace != wanted.namespace),
        ("subjects.hash_secret", old.hash_secret != new.hash_secret),
        (
            "subjects.previous_hash_secrets",
            old.previous_hash_secrets != new.previous_hash_secrets,
        ),
        ("subjects.max_keys", old.max_keys != new.max_keys),
        (
            "subjects.max_anonymous_keys",
            old.max_anonymous_keys != new.max_anonymous_keys,
        ),
        (
            "subjects.time_header",
            (&old.time_header, old.max_time_skew) != (&new.time_header, new.max_time_skew),
        ),
        ("store", config.store != wanted.store),
        ("stores", config.stores != wanted.stores),
        ("server", config.server != wanted.server),
        ("telemetry", config.telemetry != wanted.telemetry),
        ("ledger", config.ledger != wanted.ledger),
        ("events", config.events != wanted.events),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    (config, differs.map(|(name, _)| name).collect())
}

/// Returns the `telemetry` section to put in force: only the bounds of logged and recorded denials are new.
fn telemetry_without_restart(wanted: &Telemetry, running: &Telemetry) -> Telemetry {
    let mut telemetry = running.clone();
    telemetry.rejections_per_second = wanted.rejections_per_second;
    telemetry.denials.per_second = wanted.denials.per_second;
    telemetry
}

/// Returns the `server` section to put in force. New addresses of doors need a restart. New tokens, a new
/// answer to unknown Envoy domains, and new bounds and exempt paths of the gateway do not.
fn server_without_restart(wanted: &Server, running: &Server) -> Server {
    let mut server = running.clone();
    server.tokens.clone_from(&wanted.tokens);
    server.http.needs_token = wanted.http.needs_token;
    if let (Some(grpc), Some(wanted)) = (&mut server.grpc, &wanted.grpc) {
        grpc.unknown_domain = wanted.unknown_domain;
        grpc.listen.needs_token = wanted.listen.needs_token;
    }
    if let (Some(resp), Some(wanted)) = (&mut server.resp, &wanted.resp) {
        resp.listen.needs_token = wanted.listen.needs_token;
    }
    if let (Some(admin), Some(wanted)) = (&mut server.admin, &wanted.admin) {
        // An admin door without tokens is safe on a loopback address only. The address in force decides
        // this, not the new one.
        if !wanted.tokens.is_empty() || admin.listen.is_loopback() {
            admin.tokens.clone_from(&wanted.tokens);
        }
    }
    if let (Some(gateway), Some(wanted)) = (&mut server.gateway, &wanted.gateway) {
        gateway.exempt.clone_from(&wanted.exempt);
        gateway.max_body = wanted.max_body;
        gateway.max_inspected_body = wanted.max_inspected_body;
    }
    server
}
