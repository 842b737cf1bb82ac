//! Keeps the config in force up to date: reads its file again when the file changes, or on request.
//!
//! A config is read and compiled first, and then put in force as a whole. A bad config changes nothing:
//! its problems are logged, counted, shown by `/readyz`, and returned to the caller. Every change,
//! and every rejected config, is an entry of the [audit trail](crate::audit).
//!
//! * `config_source`: the file, and whether it has changed.
//! * `rule_changes`: the differences between two sets of rules.
//! * `versions`: the texts that were in force. `rolling_back` puts one of them in force again.

mod config_source;
mod rolling_back;
mod rule_changes;
mod versions;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tollgate::{Clock, Config, Engine, RuleSet, SystemClock, Time};
use utoipa::ToSchema;

use self::config_source::Stamps;
pub use self::config_source::{Problem, RejectedConfig, Source};
use self::rolling_back::KnownRollback;
pub use self::rolling_back::{ROLLBACK, RollbackError};
pub use self::rule_changes::{Changes, Named};
use self::versions::Versions;
pub use self::versions::{ConfigVersion, MAX_VERSIONS};
use crate::audit::{self, Audit, Entry, MAX_NAMED, MAX_WHY};
use crate::door_metrics::{RequestCounts, ShownDoor};
use crate::events::Webhook;
use crate::fleet::Fleet;
use crate::identity::Authenticators;
use crate::journal::Journal;
use crate::overrides::{self, OverrideError, Overrides, Rollback};

/// The author of a change in the audit trail, if the file has changed.
pub const FILE: &str = "file";
/// The author of a change in the audit trail, if a signal asked for it.
pub const SIGNAL: &str = "signal";

/// How often the file is checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file must stay the same for this long before it is read, because it may still be written.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// A file that keeps changing is read after this many waits.
const SETTLED_AT_LAST: u32 = 10;

/// Keeps the config of an engine up to date.
pub struct ControlPlane {
    engine: Arc<Engine>,
    source: Option<Arc<Source>>,
    audit: Audit,
    overrides: Overrides,
    authenticators: Arc<Authenticators>,
    webhook: Option<Webhook>,
    journal: Option<Journal>,
    clock: SystemClock,
    /// The state of the files when they were last read. Locked while they are read.
    reading: tokio::sync::Mutex<Stamps>,
    status: Mutex<Status>,
    versions: Versions,
    fleet: Fleet,
    known: Mutex<KnownRollback>,
    /// How often the file was read, in the order of [`OUTCOMES`].
    reloads: [AtomicU64; OUTCOMES.len()],
    doors: OnceLock<Vec<ShownDoor>>,
}

/// The names in metrics for the results of reading the file: the two of [`Outcome`], and one for a
/// rejected file.
const OUTCOMES: [&str; 3] = ["applied", "unchanged", "refused"];
const REFUSED: usize = 2;

/// The config in force, compared with its file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// When the config was put in force.
    pub loaded_at: Time,
    /// Why the current file was rejected, with the position of the problem. `None` if the file is in
    /// force.
    pub refused: Option<String>,
    /// Sections of the file whose changes need a restart.
    pub needs_restart: Vec<&'static str>,
    /// The rollback that holds an older version in force instead of the file.
    pub rollback: Option<Rollback>,
}

/// The result of reading the config file again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ReloadedBody)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Change {
    /// `applied`, or `unchanged` if the file was in force already.
    #[schema(value_type = String)]
    pub outcome: Outcome,
    /// The version of the config in force.
    #[serde(rename = "configVersion")]
    pub version: String,
    /// How many rules this config has.
    pub rules: usize,
    /// The rules that have changed.
    pub changes: Changes,
    /// The differences in words: at most 50.
    pub differences: Vec<String>,
    /// Sections whose changes need a restart.
    pub needs_restart: Vec<&'static str>,
}

/// A config compared with the one in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ConfigDiff {
    /// The version of the config in force.
    pub in_force: String,
    /// The version of the other config.
    #[serde(rename = "configVersion")]
    pub version: String,
    /// How many rules the other config has.
    pub rules: usize,
    /// The rules that would change.
    pub changes: Changes,
    /// The differences in words: at most 50.
    pub differences: Vec<String>,
    /// Sections whose changes need a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Whether a config that was read was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The config was put in force.
    Applied,
    /// The config was in force already.
    Unchanged,
}

/// Why the previous config stays in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The server runs without a file.
    #[error("there is no config file to read: the server was started without one")]
    NoFile,
    /// The file has problems.
    #[error("{0}")]
    Rejected(RejectedConfig),
}

impl ControlPlane {
    /// Keeps the config that `engine` has, without a file and without an audit trail.
    #[must_use]
    pub fn of(engine: Arc<Engine>) -> ControlPlane {
        ControlPlane::new(engine, None, Audit::nowhere())
    }

    /// Keeps the config of `engine` up to date with `source`. `engine` must have been started with
    /// the config of `source`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, source: Option<Source>, audit: Audit) -> ControlPlane {
        let clock = SystemClock::new();
        let config = Arc::clone(engine.active().config());
        let first = source.as_ref().map(|source| source.first(&config));
        ControlPlane {
            overrides: Overrides::of(Arc::clone(&engine)),
            fleet: Fleet::new(&engine),
            authenticators: Arc::new(Authenticators::new(&engine)),
            engine,
            reading: tokio::sync::Mutex::new(first.unwrap_or_default()),
            source: source.map(Arc::new),
            audit,
            webhook: None,
            journal: None,
            status: Mutex::new(Status {
                loaded_at: clock.now(),
                refused: None,
                needs_restart: Vec::new(),
                rollback: None,
            }),
            versions: Versions::Nowhere,
            known: Mutex::new(KnownRollback::new(&config.policy.version)),
            clock,
            reloads: Default::default(),
            doors: OnceLock::new(),
        }
    }

    /// Stores overrides, and versions of the config, in the engine's store or, if it has none, in
    /// `directory`.
    #[must_use]
    pub fn with_overrides(mut self, directory: &Path) -> ControlPlane {
        let engine = Arc::clone(&self.engine);
        self.versions = Versions::new(&engine, directory);
        self.overrides = Overrides::new(engine, directory, self.audit.clone());
        self
    }

    /// Returns the instances of the deployment.
    pub(crate) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Sets the webhook that sends events.
    #[must_use]
    pub fn with_webhook(mut self, webhook: Option<Webhook>) -> ControlPlane {
        self.webhook = webhook;
        self
    }

    /// Returns the webhook that sends events, if there is one.
    #[must_use]
    pub fn webhook(&self) -> Option<&Webhook> {
        self.webhook.as_ref()
    }

    /// Sets the journal of denials.
    #[must_use]
    pub fn with_journal(mut self, journal: Journal) -> ControlPlane {
        self.journal = Some(journal);
        self
    }

    /// Returns the journal of denials, if there is one.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Returns the overrides.
    #[must_use]
    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// Returns what verifies the credentials of requests.
    pub(crate) fn authenticators(&self) -> &Arc<Authenticators> {
        &self.authenticators
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the audit trail.
    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Returns the current time, as entries of the audit trail use it.
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Compares the config in force with its file.
    #[must_use]
    pub fn status(&self) -> Status {
        let rollback = self.known.lock().held().cloned();
        let status = self.status.lock().clone();
        Status { rollback, ..status }
    }

    /// Returns the versions of the config that are kept, the one that was put in force last first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn versions(&self) -> Result<Vec<ConfigVersion>, OverrideError> {
        self.versions.list().await
    }

    /// Returns a version of the config, with its text.
    ///
    /// # Errors
    /// If the versions cannot be read.
    pub async fn version(&self, version: &str) -> Result<Option<ConfigVersion>, OverrideError> {
        self.versions.find(version).await
    }

    /// Keeps the text of the config in force, if it is the text of the file. Call this once, after the
    /// start.
    pub async fn keep_first_version(&self) {
        let Some(source) = self.source.clone() else {
            return;
        };
        let reading = tokio::task::spawn_blocking(move || {
            let text = source.text().ok()?;
            let config = source.parse(&text).ok()?;
            Some((config.policy.version, text))
        });
        if let Ok(Some((version, text))) = reading.await
            && version == self.known.lock().file
        {
            self.keep_version(&version, &text, FILE, None, true).await;
        }
    }

    /// Keeps the text of a config, with masks in place of its secrets. A failure is logged.
    async fn keep_version(
        &self,
        version: &str,
        text: &str,
        who: &str,
        why: Option<&str>,
        only_new: bool,
    ) {
        let (rules, text) = (self.engine.rules(), text.to_owned());
        // A large text takes long to parse, and would block other requests.
        let masking = tokio::task::spawn_blocking(move || {
            tollgate_config::mask(&text, &|secret| name_of_secret(&rules, secret))
        });
        let Ok(masked) = masking.await else { return };
        let version = ConfigVersion {
            at: audit::instant(self.clock.now()),
            who: who.to_owned(),
            why: why.map(str::to_owned),
            ..ConfigVersion::new(version, masked)
        };
        if let Err(error) = self.versions.record(&version, only_new).await {
            tracing::warn!(target: "tollgate::config", %error, version = version.version, "the text of this version was not kept, so it cannot be put in force again later");
        }
    }

    /// Keeps overrides and rollbacks up to date. Never returns.
    pub async fn follow_overrides(&self) {
        let mut ticks = tokio::time::interval(overrides::REFRESH_EVERY);
        // Ticks that were missed while the machine slept are skipped.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.refresh().await;
        }
    }

    /// Returns how often the file was read, by outcome.
    #[must_use]
    pub fn reloads(&self) -> [(&'static str, u64); 3] {
        std::array::from_fn(|at| (OUTCOMES[at], self.reloads[at].load(Ordering::Relaxed)))
    }

    /// Sets the doors that the page of metrics shows. Only the first call has an effect.
    pub(crate) fn show_doors(&self, doors: Vec<ShownDoor>) {
        let _ = self.doors.set(doors);
    }

    /// Returns the doors that the page of metrics shows.
    pub(crate) fn doors(&self) -> &[ShownDoor] {
        self.doors.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the requests at all doors by what was decided.
    pub(crate) fn requests(&self) -> RequestCounts {
        let mut all = RequestCounts::default();
        for door in self.doors() {
            all += door.metrics.requests();
        }
        all
    }

    /// Checks the file once a second, and reads it when it has changed. Never returns.
    pub async fn watch(self: &Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        // Ticks that were missed while the machine slept are skipped.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // The result was logged already.
            let _ = self.look().await;
        }
    }

    /// Reads the file if it has changed since it was last read and is not being written any more.
    /// Returns `None` if it has not changed.
    pub async fn look(self: &Arc<Self>) -> Option<Result<Change, ReloadError>> {
        let source = self.source.as_ref()?;
        let mut stamp = source.stamps().await;
        if *self.reading.lock().await == stamp {
            return None;
        }
        for _ in 0..SETTLED_AT_LAST {
            tokio::time::sleep(SETTLED_AFTER).await;
            let now = source.stamps().await;
            if now == stamp {
                break;
            }
            stamp = now;
        }
        // Another caller may have read the file meanwhile.
        if *self.reading.lock().await == stamp {
            return None;
        }
        Some(self.reload(FILE, None).await)
    }

    /// Reads the file, and puts it in force if it is valid and new. `who` is the author of the
    /// change, and `why` the reason, for the audit trail. Ends a rollback, unless `who` is [`FILE`] and the
    /// file still has the version that the rollback replaces.
    ///
    /// Runs to its end even if the caller stops waiting.
    ///
    /// # Errors
    /// If there is no file, or the file has problems. The previous config then stays in force.
    pub async fn reload(
        self: &Arc<Self>,
        who: &str,
        why: Option<&str>,
    ) -> Result<Change, ReloadError> {
        let source = self.source.clone().ok_or(ReloadError::NoFile)?;
        let control = Arc::clone(self);
        let (who, why) = (who.to_owned(), why.map(str::to_owned));
        let reloading = tokio::spawn(async move {
            let mut reading = control.reading.lock().await;
            // The stamps are taken before the file is read, so that a change in between is seen the
            // next time.
            *reading = source.find_files().await;
            control.read(source, &who, why.as_deref()).await
        });
        let reloaded = reloading.await;
        reloaded.unwrap_or_else(|error| Err(ReloadError::Rejected(error.into())))
    }

    /// Compares the config file, or an older version, with the config in force. Changes nothing.
    ///
    /// # Errors
    /// If there is no file, or no such version, or if the text has problems.
    pub async fn diff(&self, version: Option<&str>) -> Result<ConfigDiff, RollbackError> {
        let source = self.source.clone().ok_or(RollbackError::NoFile)?;
        let config = match version {
            Some(version) => Some(self.older(&source, version).await?.0),
            None => None,
        };
        let engine = Arc::clone(&self.engine);
        // A large config takes long to parse and to compare, and would block other requests.
        let comparing = tokio::task::spawn_blocking(move || {
            let config = match config {
                Some(config) => config,
                None => source.parse(&source.text()?)?,
            };
            let live = engine.active();
            let (changes, differences) = compare(live.config(), &config);
            Ok(ConfigDiff {
                in_force: live.rules().version().to_owned(),
                version: config.policy.version.clone(),
                rules: config.policy.rules.len(),
                changes,
                differences,
                needs_restart: live.needs_restart(&config),
            })
        });
        let compared = comparing.await.unwrap_or_else(|error| Err(error.into()));
        compared.map_err(RollbackError::Rejected)
    }

    async fn read(
        &self,
        source: Arc<Source>,
        who: &str,
        why: Option<&str>,
    ) -> Result<Change, ReloadError> {
        let file = Arc::clone(&source);
        // A large config takes long to parse, and would block other requests.
        let loading = tokio::task::spawn_blocking(move || {
            let text = file.text()?;
            Ok((file.parse(&text)?, text))
        });
        let loaded = loading.await.unwrap_or_else(|error| Err(error.into()));
        let (config, text) = match loaded {
            Ok(loaded) => loaded,
            Err(rejected) => return Err(self.reject(rejected, who, why).await),
        };
        let (held, holds) = {
            let mut known = self.known.lock();
            let held = known.held().cloned();
            known.file.clone_from(&config.policy.version);
            (held, known.held().cloned())
        };
        if who == FILE
            && let Some(rollback) = &holds
        {
            return self.hold(&source, rollback).await;
        }
        let change = self
            .enforce(config, &text, audit::CONFIG_RELOAD, who, why)
            .await?;
        if let Some(ended) = held.or(holds) {
            self.end_rollback(ended, who, why).await;
        }
        Ok(change)
    }

    /// Logs and counts a rejected config.
    async fn reject(&self, rejected: RejectedConfig, who: &str, why: Option<&str>) -> ReloadError {
        self.reloads[REFUSED].fetch_add(1, Ordering::Relaxed);
        self.status.lock().refused = Some(rejected.first());
        rejected.log(who);
        let version = json!({ "version": self.engine.rules().version() });
        let entry = Entry::new(audit::CONFIG_REFUSED, who).because(why);
        let entry = entry.change(version, rejected.first());
        self.audit.write(entry).await;
        ReloadError::Rejected(rejected)
    }

    /// Puts a config in force if it is new. `what` is the change in the audit trail.
    async fn enforce(
        &self,
        config: Config,
        text: &str,
        what: &str,
        who: &str,
        why: Option<&str>,
    ) -> Result<Change, ReloadError> {
        let engine = Arc::clone(&self.engine);
        let before = engine.rules();
        // A large config takes long to compile, and would block other requests.
        let applied = tokio::task::spawn_blocking(move || apply(&engine, &config)).await;
        let mut change = match applied {
            Ok(change) => change,
            Err(error) => return Err(self.reject(error.into(), who, why).await),
        };
        self.note(&mut change);
        if change.outcome == Outcome::Applied {
            log_change(&change, who, before.version());
            let to = json!({
                "version": change.version,
                "rules": change.changes,
                "differences": change.differences,
            });
            let entry = Entry::new(what, who).because(why);
            let entry = entry.change(json!({ "version": before.version() }), to);
            self.audit.write(entry).await;
            self.keep_version(&change.version, text, who, why, false)
                .await;
        }
        Ok(change)
    }

    fn note(&self, change: &mut Change) {
        self.reloads[change.outcome as usize].fetch_add(1, Ordering::Relaxed);
        let mut status = self.status.lock();
        status.refused = None;
        match change.outcome {
            Outcome::Applied => {
                status.loaded_at = self.clock.now();
                status.needs_restart.clone_from(&change.needs_restart);
            }
            // The config was applied earlier, and the same sections still wait for a restart.
            Outcome::Unchanged => change.needs_restart.clone_from(&status.needs_restart),
        }
    }
}

/// Names a secret of a config, without revealing it.
fn name_of_secret(rules: &RuleSet, secret: &str) -> String {
    // No attribute has this name.
    let kind = rules.keyring().kind(["@secret of a config"]);
    kind.subject([secret]).to_string()
}

/// Puts a config in force if it is new.
fn apply(engine: &Engine, config: &Config) -> Change {
    let live = engine.active();
    let mut change = Change {
        outcome: Outcome::Unchanged,
        version: config.policy.version.clone(),
        rules: config.policy.rules.len(),
        changes: Changes::default(),
        differences: Vec::new(),
        needs_restart: Vec::new(),
    };
    if live.rules().version() != change.version {
        change.outcome = Outcome::Applied;
        (change.changes, change.differences) = compare(live.config(), config);
        change.needs_restart = engine.reload(config).needs_restart;
    }
    change
}

/// Returns the rules that differ, and the differences in words.
fn compare(old: &Config, new: &Config) -> (Changes, Vec<String>) {
    let changes = Changes::between(&old.policy.rules, &new.policy.rules);
    let differences = tollgate_config::diff(old, new);
    let differences = differences.iter().take(MAX_NAMED).map(|it| {
        let mut text = it.to_string();
        text.truncate(text.floor_char_boundary(MAX_WHY));
        text
    });
    (changes, differences.collect())
}

fn log_change(change: &Change, who: &str, from: &str) {
    tracing::info!(
        target: "tollgate::config",
        who,
        from,
        to = change.version,
        added = change.changes.added.count,
        removed = change.changes.removed.count,
        changed = change.changes.changed.count,
        "a new config is in force"
    );
    if !change.needs_restart.is_empty() {
        let sections = change.needs_restart.join(", ");
        tracing::warn!(
            target: "tollgate::config",
            sections,
            "these sections have changed; restart the server to apply them"
        );
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let control = &mut f.debug_struct("ControlPlane");
        control.field("status", &*self.status.lock());
        control.finish_non_exhaustive()
    }
}
