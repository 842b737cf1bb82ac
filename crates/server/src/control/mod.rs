//! Keeps the config in force up to date: reads its file again when the file changes, or on request.
//!
//! A config is read and compiled first, and then put in force as a whole. A bad config changes nothing:
//! its problems are logged, counted, shown by `/readyz`, and returned to the caller. Every change,
//! and every rejected config, is an entry of the [audit trail](crate::audit).
//!
//! * `config_source`: the file, and whether it has changed.
//! * `rule_changes`: the differences between two sets of rules.

mod config_source;
mod rule_changes;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tollgate::{Clock, Engine, SystemClock, Time};
use utoipa::ToSchema;

use self::config_source::Stamps;
pub use self::config_source::{Problem, RejectedConfig, Source};
pub use self::rule_changes::{Changes, Named};
use crate::audit::{self, Audit, Entry, MAX_NAMED, MAX_WHY};
use crate::events::Webhook;
use crate::journal::Journal;
use crate::net::Peers;
use crate::overrides::Overrides;

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
    webhook: Option<Webhook>,
    journal: Option<Journal>,
    clock: SystemClock,
    /// The state of the files when they were last read. Locked while they are read.
    reading: tokio::sync::Mutex<Stamps>,
    status: Mutex<Status>,
    /// How often the file was read, in the order of [`OUTCOMES`].
    reloads: [AtomicU64; OUTCOMES.len()],
    wrong_tokens: AtomicU64,
    refusals: OnceLock<Vec<(&'static str, Arc<Peers>)>>,
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
            }),
            clock,
            reloads: Default::default(),
            wrong_tokens: AtomicU64::new(0),
            refusals: OnceLock::new(),
        }
    }

    /// Stores overrides in the engine's store or, if it has none, in `directory`.
    #[must_use]
    pub fn with_overrides(mut self, directory: &Path) -> ControlPlane {
        let engine = Arc::clone(&self.engine);
        self.overrides = Overrides::new(engine, directory, self.audit.clone());
        self
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
        self.status.lock().clone()
    }

    /// Returns how often the file was read, by outcome.
    #[must_use]
    pub fn reloads(&self) -> [(&'static str, u64); 3] {
        std::array::from_fn(|at| (OUTCOMES[at], self.reloads[at].load(Ordering::Relaxed)))
    }

    /// Counts a wrong token at the admin door.
    pub(crate) fn count_wrong_token(&self) {
        self.wrong_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many wrong tokens were sent to the admin door.
    pub(crate) fn wrong_tokens(&self) -> u64 {
        self.wrong_tokens.load(Ordering::Relaxed)
    }

    /// Sets the doors whose refused connections are shown. Only the first call has an effect.
    pub(crate) fn show_refusals(&self, doors: Vec<(&'static str, Arc<Peers>)>) {
        let _ = self.refusals.set(doors);
    }

    /// Returns how many connections each door refused because their client had too many.
    pub(crate) fn refused_connections(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let doors = self.refusals.get().into_iter().flatten();
        doors.map(|(door, peers)| (*door, peers.refused()))
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
    /// change, and `why` the reason, for the audit trail.
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

    async fn read(
        &self,
        source: Arc<Source>,
        who: &str,
        why: Option<&str>,
    ) -> Result<Change, ReloadError> {
        let engine = Arc::clone(&self.engine);
        let before = engine.rules();
        // A large config takes long to compile, and would block other requests.
        let applied = tokio::task::spawn_blocking(move || apply(&engine, &source)).await;
        let applied = applied.unwrap_or_else(|error| Err(error.into()));
        let from = before.version();
        let entry = |what| Entry::new(what, who).because(why);
        let version = json!({ "version": from });
        match applied {
            Ok(mut change) => {
                self.note(&mut change);
                if change.outcome == Outcome::Applied {
                    log_change(&change, who, from);
                    let to = json!({
                        "version": change.version,
                        "rules": change.changes,
                        "differences": change.differences,
                    });
                    let entry = entry(audit::CONFIG_RELOAD).change(version, to);
                    self.audit.write(entry).await;
                }
                Ok(change)
            }
            Err(rejected) => {
                self.reloads[REFUSED].fetch_add(1, Ordering::Relaxed);
                self.status.lock().refused = Some(rejected.first());
                rejected.log(who);
                let entry = entry(audit::CONFIG_REFUSED).change(version, rejected.first());
                self.audit.write(entry).await;
                Err(ReloadError::Rejected(rejected))
            }
        }
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

/// Reads `source`, and puts it in force if it is new.
fn apply(engine: &Engine, source: &Source) -> Result<Change, RejectedConfig> {
    let config = source.load()?;
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
        change.changes = Changes::between(&live.config().policy.rules, &config.policy.rules);
        let differences = tollgate_config::diff(live.config(), &config);
        let differences = differences.iter().take(MAX_NAMED).map(|it| {
            let mut text = it.to_string();
            text.truncate(text.floor_char_boundary(MAX_WHY));
            text
        });
        change.differences = differences.collect();
        change.needs_restart = engine.reload(&config).needs_restart;
    }
    Ok(change)
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
