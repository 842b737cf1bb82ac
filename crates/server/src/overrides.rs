//! Overrides: kept where every instance finds them, put in force, and ended when they are over.
//!
//! On Redis they are in the store, and every instance looks several times a second whether something
//! has changed there; a store that does not answer leaves in force what was. With state in memory they
//! are in a file of the data directory, for the next start. Every change is an entry of the
//! [audit trail](crate::audit).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;
use tollgate::{Clock, ConfigError, Engine, Override, StoreError, SystemClock};
use tollgate_redis::Shelf;

use crate::audit::{self, Audit, Entry};

/// The name of the file in its directory.
pub const FILE: &str = "overrides.json";

/// Who ends an override whose time is over.
pub const CLOCK: &str = "clock";

/// How many there may be.
pub const MAX_OVERRIDES: usize = 1000;

/// How often they are looked after: another instance's act within a second.
const TEND_EVERY: Duration = Duration::from_millis(250);

const _: () = assert!(2 * TEND_EVERY.as_millis() < 1000);

/// Looks after the overrides of an engine.
pub struct Overrides {
    engine: Arc<Engine>,
    place: Place,
    audit: Audit,
    clock: Arc<dyn Clock>,
    /// Held while they change.
    kept: Mutex<Kept>,
}

/// Where they are kept.
enum Place {
    /// In this process alone.
    Here,
    File(PathBuf),
    Store(Box<Shelf>),
}

/// What is known of them.
#[derive(Default)]
struct Kept {
    /// The edition of the shelf that was read last.
    edition: u64,
    /// Whether it has been read, and whether that failed the last time.
    read: bool,
    failed: bool,
    /// By name, as they are kept.
    texts: BTreeMap<String, String>,
}

/// Why an override was not set or cleared. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// It is not an override.
    #[error("{0}")]
    Wrong(Box<ConfigError>),
    /// It would have no effect under the rules in force.
    #[error("{0}")]
    Misfit(String),
    /// There are as many as there may be.
    #[error("there are {MAX_OVERRIDES} overrides already: clear some first")]
    TooMany,
    /// There is none of that name.
    #[error("there is no override `{0}`")]
    NotFound(String),
    /// The store that keeps them does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file that keeps them cannot be written.
    #[error("cannot write {0}: {1}")]
    File(PathBuf, #[source] io::Error),
}

impl Overrides {
    /// Overrides that are kept in this process alone, without a trail.
    #[must_use]
    pub fn of(engine: Arc<Engine>) -> Overrides {
        Overrides::at(engine, Place::Here, Audit::nowhere())
    }

    /// Overrides that are kept in the engine's store, or else in `directory`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, directory: &Path, audit: Audit) -> Overrides {
        let place = match engine.shelf() {
            Some(shelf) => Place::Store(Box::new(shelf)),
            None => Place::File(directory.join(FILE)),
        };
        Overrides::at(engine, place, audit)
    }

    fn at(engine: Arc<Engine>, place: Place, audit: Audit) -> Overrides {
        Overrides {
            engine,
            place,
            audit,
            clock: Arc::new(SystemClock::new()),
            kept: Mutex::default(),
        }
    }

    /// The same by another clock.
    #[must_use]
    pub fn by(mut self, clock: Arc<dyn Clock>) -> Overrides {
        self.clock = clock;
        self
    }

    fn now(&self) -> u64 {
        self.clock.now().as_millis_ceil()
    }

    /// Sets the override that `text` describes, in the place of the one of its name, for `who`.
    ///
    /// # Errors
    /// If it is none, has no effect under the rules in force, or cannot be kept.
    pub async fn set(&self, text: &str, who: &str) -> Result<Arc<Override>, OverrideError> {
        let wanted = Override::parse(text, self.now());
        let wanted = wanted.map_err(|error| OverrideError::Wrong(Box::new(error)))?;
        let wanted = wanted.by(who);
        if let Some(why) = wanted.misfit(self.engine.live().config()) {
            return Err(OverrideError::Misfit(why));
        }
        let mut kept = self.kept.lock().await;
        let (name, text) = (wanted.name(), wanted.to_json().to_string());
        let before = kept.texts.get(&name).cloned();
        if before.is_none() && kept.texts.len() >= MAX_OVERRIDES {
            return Err(OverrideError::TooMany);
        }
        match &self.place {
            Place::Store(shelf) => {
                if !shelf.put(&name, &text, MAX_OVERRIDES).await? {
                    return Err(OverrideError::TooMany);
                }
                kept.texts.insert(name, text.clone());
            }
            Place::File(path) => {
                let mut texts = kept.texts.clone();
                texts.insert(name, text.clone());
                write(path, &texts).await?;
                kept.texts = texts;
            }
            Place::Here => drop(kept.texts.insert(name, text.clone())),
        }
        self.put_in_force(&kept).await;
        let entry = Entry::new(audit::OVERRIDE_SET, who)
            .change(before.map_or(Value::Null, read), read(text))
            .because(Some(wanted.reason()));
        tracing::info!(target: "tollgate::admin", who, name = wanted.name(), effect = wanted.effect(), "override set");
        self.audit.write(entry).await;
        Ok(Arc::new(wanted))
    }

    /// Ends the override of this name, for `who`.
    ///
    /// # Errors
    /// If there is none, or it cannot be told to where it is kept.
    pub async fn clear(
        &self,
        name: &str,
        who: &str,
        why: Option<&str>,
    ) -> Result<Arc<Override>, OverrideError> {
        let mut kept = self.kept.lock().await;
        let Some(text) = kept.texts.get(name).cloned() else {
            return Err(OverrideError::NotFound(name.to_owned()));
        };
        let cleared = Override::parse(&text, self.now());
        let cleared = cleared.map_err(|error| OverrideError::Wrong(Box::new(error)))?;
        self.remove(&mut kept, name, None).await?;
        self.put_in_force(&kept).await;
        let entry = Entry::new(audit::OVERRIDE_CLEAR, who);
        let entry = entry.change(read(text), Value::Null).because(why);
        tracing::info!(target: "tollgate::admin", who, name, "override cleared");
        self.audit.write(entry).await;
        Ok(Arc::new(cleared))
    }

    /// Removes one from where they are kept. Whether it was there, and, if `only` is given, was that one.
    async fn remove(
        &self,
        kept: &mut Kept,
        name: &str,
        only: Option<&str>,
    ) -> Result<bool, OverrideError> {
        let removed = match &self.place {
            Place::Here => true,
            Place::Store(shelf) => shelf.remove(name, only).await?,
            Place::File(path) => {
                let mut texts = kept.texts.clone();
                texts.remove(name);
                write(path, &texts).await?;
                true
            }
        };
        kept.texts.remove(name);
        Ok(removed)
    }

    /// Looks after them, for ever.
    pub async fn keep(&self) {
        let mut ticks = tokio::time::interval(TEND_EVERY);
        // A machine that slept has nothing to catch up with.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tend().await;
        }
    }

    /// Looks after them once: puts in force what others have changed, and ends what is over.
    pub async fn tend(&self) {
        let mut kept = self.kept.lock().await;
        let was_failing = kept.failed;
        match self.look(&mut kept).await {
            Ok(changed) => {
                kept.failed = false;
                if changed {
                    self.put_in_force(&kept).await;
                }
            }
            Err(error) => {
                kept.failed = true;
                if !was_failing {
                    tracing::warn!(%error, "overrides cannot be read: those known stay in force");
                }
            }
        }
        self.end_what_is_over(&mut kept).await;
    }

    /// Reads them if they are not what they were. Whether they are not.
    async fn look(&self, kept: &mut Kept) -> Result<bool, OverrideError> {
        match &self.place {
            Place::Here => {}
            Place::File(path) => {
                if !kept.read {
                    kept.texts = load(path).await?;
                    kept.read = true;
                    return Ok(!kept.texts.is_empty());
                }
            }
            Place::Store(shelf) => {
                if !kept.read || shelf.edition().await? != kept.edition {
                    let (edition, texts) = shelf.all().await?;
                    kept.edition = edition;
                    kept.texts = texts.into_iter().collect();
                    kept.read = true;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    async fn end_what_is_over(&self, kept: &mut Kept) {
        let now = self.now();
        let over: Vec<(String, String)> = kept
            .texts
            .iter()
            .filter(|(_, text)| Override::parse(text, now).is_ok_and(|it| it.is_over(now)))
            .map(|(name, text)| (name.clone(), text.clone()))
            .collect();
        if over.is_empty() {
            return;
        }
        for (name, text) in over {
            // Every instance sees its end; one of them ends it where it is kept.
            match self.remove(kept, &name, Some(&text)).await {
                Ok(true) => {
                    let entry = Entry::new(audit::OVERRIDE_EXPIRED, CLOCK);
                    self.audit.record(entry.change(read(text), Value::Null));
                    tracing::info!(target: "tollgate::admin", name, "override is over");
                }
                Ok(false) => {}
                Err(error) => {
                    // It has no effect any more all the same.
                    kept.texts.remove(&name);
                    tracing::debug!(%error, name, "an override that is over is still kept");
                }
            }
        }
        self.put_in_force(kept).await;
    }

    /// Puts those that hold in force. Rules with many tenants take their time to be worked out.
    async fn put_in_force(&self, kept: &Kept) {
        let now = self.now();
        let mut overrides: Vec<Arc<Override>> = Vec::with_capacity(kept.texts.len());
        for (name, text) in &kept.texts {
            match Override::parse(text, now) {
                Ok(it) if it.is_over(now) => {}
                Ok(it) => overrides.push(Arc::new(it)),
                Err(error) => {
                    tracing::warn!(name, error = %error, "this override cannot be read, and has no effect");
                }
            }
        }
        let engine = Arc::clone(&self.engine);
        let put = move || engine.set_overrides(overrides.into());
        // A panic in there would have been logged; what was in force stays.
        let _ = tokio::task::spawn_blocking(put).await;
    }
}

/// An override as a value of the trail.
fn read(text: impl AsRef<str>) -> Value {
    serde_json::from_str(text.as_ref()).unwrap_or_default()
}

/// What the file keeps; nothing if there is none.
async fn load(path: &Path) -> Result<BTreeMap<String, String>, OverrideError> {
    let owned = path.to_owned();
    let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(owned)).await;
    let failed = |error: io::Error| OverrideError::File(path.to_owned(), error);
    match text.map_err(|error| failed(io::Error::other(error)))? {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(failed(error)),
        Ok(text) => {
            let kept: BTreeMap<String, Value> =
                serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
            let texts = kept.into_iter().map(|(name, it)| (name, it.to_string()));
            Ok(texts.collect())
        }
    }
}

/// Writes the file as a whole: a crash leaves the old one or the new one.
async fn write(path: &Path, texts: &BTreeMap<String, String>) -> Result<(), OverrideError> {
    let values: BTreeMap<&str, Value> =
        texts.iter().map(|(name, it)| (&**name, read(it))).collect();
    let text = serde_json::to_string_pretty(&values).unwrap_or_default();
    let owned = path.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        if let Some(directory) = owned.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let aside = owned.with_extension("json.new");
        std::fs::write(&aside, text)?;
        std::fs::rename(&aside, &owned)
    });
    let written = written
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    written.map_err(|error| OverrideError::File(path.to_owned(), error))
}
