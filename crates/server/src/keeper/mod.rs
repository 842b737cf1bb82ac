//! Keeps the config in force up to date: reads its file again when that changes, or when somebody asks.
//!
//! A config is read and compiled aside, and put in force as a whole. One that is not right changes
//! nothing: what is wrong with it is logged, counted, shown by `/readyz`, and told to who asked.
//! Every change, and every refusal, is an entry of the [audit trail](crate::audit).
//!
//! * `source`: the file, and whether it has changed.
//! * `changes`: what is new about rules.

mod changes;
mod source;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tollgate::{Clock, Engine, SystemClock, Time};
use tollgate_rules::Difference;

pub use self::changes::{Changes, Named};
use self::source::Stamps;
pub use self::source::{Problem, Refused, Source};
use crate::audit::{self, Audit, Entry, MAX_NAMED, MAX_WHY};
use crate::events::Webhook;
use crate::overrides::Overrides;

/// Who changes a config whose file has changed.
pub const FILE: &str = "file";
/// Who changes it when the process is told to by a signal.
pub const SIGNAL: &str = "signal";

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file is read when it has been the same for so long: who writes it may not be done.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// How long that is waited for at most, in times as long.
const SETTLED_AT_LAST: u32 = 10;

/// Keeps the config of an engine.
pub struct Keeper {
    engine: Arc<Engine>,
    source: Option<Arc<Source>>,
    audit: Audit,
    overrides: Overrides,
    webhook: Option<Webhook>,
    clock: Arc<dyn Clock>,
    /// What the file was like when it was last read. Held while it is read.
    reading: tokio::sync::Mutex<Stamps>,
    status: Mutex<Status>,
    applied: AtomicU64,
    unchanged: AtomicU64,
    refused: AtomicU64,
}

/// How the config in force stands to its file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Since when it is in force.
    pub loaded_at: Time,
    /// Why the file as it is now is not in force: where, and what is wrong there.
    pub refused: Option<String>,
    /// The sections of the file that say something new which a restart would bring about.
    pub needs_restart: Vec<&'static str>,
}

/// What came of reading the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// What became of it.
    pub outcome: Outcome,
    /// Names the config in force.
    pub version: String,
    /// How many rules it has.
    pub rules: usize,
    /// What is new about them.
    pub changes: Changes,
    /// What is different, and for whom, in words: at most 50 of them.
    pub differences: Vec<String>,
    /// The sections that say something new which only a restart would bring about.
    pub needs_restart: Vec<&'static str>,
}

/// What became of a config that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in force.
    Applied,
    /// It was in force before.
    Unchanged,
}

impl Outcome {
    /// Its name in answers and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Applied => "applied",
            Outcome::Unchanged => "unchanged",
        }
    }
}

/// Why the config in force is the one from before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// There is nothing to read.
    #[error("there is no config file to read: the server was started without one")]
    NoFile,
    /// The file is not right.
    #[error("{0}")]
    Refused(Refused),
}

impl Keeper {
    /// Keeps the config that `engine` has: there is no file, and no trail.
    #[must_use]
    pub fn of(engine: Arc<Engine>) -> Keeper {
        Keeper::new(engine, None, Audit::nowhere())
    }

    /// Keeps the config of `source`, which `engine` was started with.
    #[must_use]
    pub fn new(engine: Arc<Engine>, source: Option<Source>, audit: Audit) -> Keeper {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let config = Arc::clone(engine.live().config());
        let first = source.as_ref().map(|source| source.first(&config));
        let first = first.unwrap_or_default();
        Keeper {
            overrides: Overrides::of(Arc::clone(&engine)),
            engine,
            reading: tokio::sync::Mutex::new(first),
            source: source.map(Arc::new),
            audit,
            webhook: None,
            status: Mutex::new(Status {
                loaded_at: clock.now(),
                refused: None,
                needs_restart: Vec::new(),
            }),
            clock,
            applied: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The same, with overrides in the engine's store, or else in `directory`.
    #[must_use]
    pub fn with_overrides(mut self, directory: &Path) -> Keeper {
        let engine = Arc::clone(&self.engine);
        self.overrides = Overrides::new(engine, directory, self.audit.clone());
        self
    }

    /// The same with what sends its events, if anything does.
    #[must_use]
    pub fn with_webhook(mut self, webhook: Option<Webhook>) -> Keeper {
        self.webhook = webhook;
        self
    }

    /// What sends events, if anything does.
    #[must_use]
    pub fn webhook(&self) -> Option<&Webhook> {
        self.webhook.as_ref()
    }

    /// The overrides.
    #[must_use]
    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The trail.
    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The time, as the entries of the trail tell it.
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// How the config in force stands to its file.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// How often the file was read, by what became of it.
    #[must_use]
    pub fn reloads(&self) -> [(&'static str, u64); 3] {
        [
            (Outcome::Applied.name(), &self.applied),
            (Outcome::Unchanged.name(), &self.unchanged),
            ("refused", &self.refused),
        ]
        .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
    }

    /// Looks at the file once a second, and reads it when it has changed. Never ends.
    pub async fn watch(self: &Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        // A machine that slept has nothing to catch up with.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // What came of it is told where it happens.
            let _ = self.look().await;
        }
    }

    /// Reads the file if it is not what it was when it was last read, and has settled. `None` if it is
    /// the same.
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
        // Somebody may have asked meanwhile.
        if *self.reading.lock().await == stamp {
            return None;
        }
        Some(self.reload(FILE, None).await)
    }

    /// Reads the file, and puts it in force if it is right and not in force already. `who` asks for
    /// that, and may say why.
    ///
    /// It is done whether or not somebody waits for it to end.
    ///
    /// # Errors
    /// If there is no file, or it is not right: nothing has changed then.
    pub async fn reload(
        self: &Arc<Self>,
        who: &str,
        why: Option<&str>,
    ) -> Result<Change, ReloadError> {
        let Some(source) = self.source.clone() else {
            return Err(ReloadError::NoFile);
        };
        let keeper = Arc::clone(self);
        let (who, why) = (who.to_owned(), why.map(str::to_owned));
        let reloading = tokio::spawn(async move {
            let mut reading = keeper.reading.lock().await;
            // Looked at before it is read: what changes meanwhile is seen the next time.
            *reading = source.stamps_anew().await;
            keeper.read(source, &who, why.as_deref()).await
        });
        match reloading.await {
            Ok(change) => change,
            Err(error) => Err(ReloadError::Refused(Refused::unreadable(&error))),
        }
    }

    async fn read(
        &self,
        source: Arc<Source>,
        who: &str,
        why: Option<&str>,
    ) -> Result<Change, ReloadError> {
        let engine = Arc::clone(&self.engine);
        let before = engine.rules();
        // Large configs take their time, and others have none.
        let applied = tokio::task::spawn_blocking(move || apply(&engine, &source)).await;
        let applied = applied.unwrap_or_else(|error| Err(Refused::unreadable(&error)));
        let entry = |what| Entry::new(what, who).because(why);
        let from = before.version();
        match applied {
            Ok(mut change) => {
                self.note(&mut change);
                if change.outcome == Outcome::Applied {
                    told(&change, who, from);
                    let to = json!({
                        "version": change.version,
                        "rules": change.changes,
                        "differences": change.differences,
                    });
                    let from = json!({ "version": from });
                    let entry = entry(audit::CONFIG_RELOAD).change(from, to);
                    self.audit.write(entry).await;
                }
                Ok(change)
            }
            Err(refused) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                self.status.lock().refused = Some(refused.first());
                refused.log(who);
                let from = json!({ "version": from });
                let entry = entry(audit::CONFIG_REFUSED).change(from, refused.first());
                self.audit.write(entry).await;
                Err(ReloadError::Refused(refused))
            }
        }
    }

    fn note(&self, change: &mut Change) {
        let count = match change.outcome {
            Outcome::Applied => &self.applied,
            Outcome::Unchanged => &self.unchanged,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut status = self.status.lock();
        status.refused = None;
        match change.outcome {
            Outcome::Applied => {
                status.loaded_at = self.clock.now();
                status.needs_restart.clone_from(&change.needs_restart);
            }
            // What it says has waited for a restart since it was applied.
            Outcome::Unchanged => change.needs_restart.clone_from(&status.needs_restart),
        }
    }
}

/// Reads `source`, and puts it in force if that is something new.
fn apply(engine: &Engine, source: &Source) -> Result<Change, Refused> {
    let config = source.load()?;
    let live = engine.live();
    if live.rules().version() == config.policy.version {
        return Ok(Change {
            outcome: Outcome::Unchanged,
            version: config.policy.version,
            rules: live.rules().rules().len(),
            changes: Changes::default(),
            differences: Vec::new(),
            needs_restart: Vec::new(),
        });
    }
    let changes = Changes::between(&live.config().policy.rules, &config.policy.rules);
    let differences = tollgate_config::diff(live.config(), &config);
    let differences = differences.iter().take(MAX_NAMED).map(in_short);
    let differences = differences.collect();
    let reloaded = engine.reload(&config);
    Ok(Change {
        outcome: Outcome::Applied,
        version: reloaded.version,
        rules: config.policy.rules.len(),
        changes,
        differences,
        needs_restart: reloaded.needs_restart,
    })
}

/// A difference in words, or the beginning of it.
fn in_short(it: &Difference) -> String {
    let mut text = it.to_string();
    text.truncate(text.floor_char_boundary(MAX_WHY));
    text
}

/// Tells whoever reads the log.
fn told(change: &Change, who: &str, from: &str) {
    let Changes {
        added,
        removed,
        changed,
    } = &change.changes;
    tracing::info!(
        target: "tollgate::config",
        who,
        from,
        to = change.version,
        added = added.count,
        removed = removed.count,
        changed = changed.count,
        "another config is in force"
    );
    if !change.needs_restart.is_empty() {
        let sections = change.needs_restart.join(", ");
        tracing::warn!(
            target: "tollgate::config",
            sections,
            "these sections have changed, and stay as they were until a restart"
        );
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keeper = &mut f.debug_struct("Keeper");
        keeper.field("status", &*self.status.lock());
        keeper.finish_non_exhaustive()
    }
}
