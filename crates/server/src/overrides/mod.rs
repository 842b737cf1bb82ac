//! Overrides: kept where every instance finds them, put in force, and ended when they are over.
//!
//! On Redis they are in the store, and every instance looks several times a second whether something
//! has changed there; a store that does not answer leaves in force what was. With state in memory they
//! are in a file of the data directory, for the next start. Every change is an entry of the
//! [audit trail](crate::audit).

mod file;
mod kept;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex as Shortly;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;
use tollgate::{Clock, Engine, Override, StoreError, SystemClock};
use tollgate_redis::SharedValues;

use self::kept::Kept;
pub use self::kept::Known;
use crate::audit::{self, Audit, Entry};
use crate::keeper::{Problem, Refused};

/// The name of the file in its directory.
pub const FILE: &str = "overrides.json";

/// Who ends an override whose time is over.
pub const CLOCK: &str = "clock";

/// How many there may be.
pub const MAX_OVERRIDES: usize = 1000;

/// A longer text is not whole in the trail, and is no override.
const MAX_TOLD: usize = 16 * 1024;

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
    /// Those of them that cannot be read.
    unreadable: Shortly<Vec<Arc<Known>>>,
}

/// Where they are kept.
enum Place {
    /// In this process alone.
    Here,
    File(PathBuf),
    Store(Box<SharedValues>),
}

/// Why an override was not set or cleared. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// It is not an override.
    #[error("{0}")]
    Wrong(Refused),
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
    /// The file that keeps them cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, #[source] io::Error),
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
        let place = match engine.shared_values() {
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
            unreadable: Shortly::default(),
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

    /// Those that are kept and cannot be read, by name: they have no effect, and can be cleared.
    #[must_use]
    pub fn unreadable(&self) -> Vec<Arc<Known>> {
        self.unreadable.lock().clone()
    }

    /// Sets the override that `text` asks for, in the place of the one of its name, for `who`.
    ///
    /// # Errors
    /// If it is none, has no effect under the rules in force, or cannot be kept.
    pub async fn set(&self, text: &str, who: &str) -> Result<Arc<Override>, OverrideError> {
        let now = self.now();
        let wanted = Override::parse_request(text, now);
        let wanted = wanted.map_err(|error| OverrideError::Wrong((&error).into()))?;
        let wanted = wanted.by(who);
        if let Some(why) = wanted.misfit(&self.engine.live().config().policy) {
            return Err(OverrideError::Misfit(why));
        }
        let set = keepable(&wanted, now)?;
        let (name, text) = (wanted.name(), wanted.to_json().to_string());
        let known = Known {
            name: name.clone(),
            text,
            read: Ok(Arc::clone(&set)),
        };
        let mut kept = self.kept.lock().await;
        self.catch_up(&mut kept).await?;
        let before = kept.known.get(&name);
        if before.is_none() && kept.known.len() >= MAX_OVERRIDES {
            return Err(OverrideError::TooMany);
        }
        let before = before.map_or(Value::Null, |it| told(&it.text));
        match &self.place {
            Place::Store(shelf) => {
                if !shelf.put(&name, &known.text, MAX_OVERRIDES).await? {
                    return Err(OverrideError::TooMany);
                }
            }
            Place::File(path) => {
                let written = file::write(path, kept.with(&known)).await;
                written.map_err(|error| OverrideError::File(path.clone(), error))?;
            }
            Place::Here => {}
        }
        let entry = Entry::new(audit::OVERRIDE_SET, who)
            .change(before, told(&known.text))
            .because(Some(set.reason()));
        tracing::info!(target: "tollgate::admin", who, name, effect = set.effect(), "override set");
        kept.known.insert(name, Arc::new(known));
        self.put_in_force(&kept).await;
        self.audit.write(entry).await;
        Ok(set)
    }

    /// Ends the override of this name, for `who`, also if it cannot be read. What it was.
    ///
    /// # Errors
    /// If there is none, or it cannot be told to where it is kept.
    pub async fn clear(
        &self,
        name: &str,
        who: &str,
        why: Option<&str>,
    ) -> Result<Arc<Known>, OverrideError> {
        let mut kept = self.kept.lock().await;
        self.catch_up(&mut kept).await?;
        let not_found = || OverrideError::NotFound(name.to_owned());
        let cleared = kept.known.get(name).cloned().ok_or_else(not_found)?;
        let was_there = self.remove(&mut kept, name, None).await?;
        self.put_in_force(&kept).await;
        if !was_there {
            // Another instance was faster, and has told of it.
            return Err(not_found());
        }
        let entry = Entry::new(audit::OVERRIDE_CLEAR, who);
        let entry = entry.change(told(&cleared.text), Value::Null).because(why);
        tracing::info!(target: "tollgate::admin", who, name, "override cleared");
        self.audit.write(entry).await;
        Ok(cleared)
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
                let written = file::write(path, kept.without(name)).await;
                written.map_err(|error| OverrideError::File(path.clone(), error))?;
                true
            }
        };
        kept.known.remove(name);
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
        let looked = self.look(&mut kept).await;
        // Whether or not there was an answer: what is over has no effect any more.
        self.put_in_force(&kept).await;
        let was_failing = kept.failed;
        kept.failed = looked.is_err();
        match looked {
            Ok(()) => self.end_what_is_over(&mut kept).await,
            Err(error) if !was_failing => {
                tracing::warn!(%error, "overrides cannot be read: those known stay in force");
            }
            Err(_) => {}
        }
    }

    /// Puts in force what others have changed, so that what is changed next is what is kept.
    async fn catch_up(&self, kept: &mut Kept) -> Result<(), OverrideError> {
        self.look(kept).await?;
        self.put_in_force(kept).await;
        Ok(())
    }

    /// Reads them if they are not what they were.
    async fn look(&self, kept: &mut Kept) -> Result<(), OverrideError> {
        match &self.place {
            Place::Here => {}
            Place::File(path) => {
                if !kept.read {
                    let texts = file::load(path).await;
                    let failed = |error| OverrideError::Unreadable(path.clone(), error);
                    kept.take(texts.map_err(failed)?, self.now());
                }
            }
            Place::Store(shelf) => {
                if !kept.read || shelf.edition().await? != kept.edition {
                    let (edition, texts) = shelf.all(MAX_OVERRIDES).await?;
                    kept.edition = edition;
                    kept.take(texts, self.now());
                }
            }
        }
        Ok(())
    }

    /// Ends those whose time is over where they are kept. They have no effect any more.
    async fn end_what_is_over(&self, kept: &mut Kept) {
        let now = self.now();
        let over = kept.known.values().filter(|it| it.is_over(now));
        let over: Vec<Arc<Known>> = over.cloned().collect();
        for known in over {
            let Known { name, text, .. } = &*known;
            // Every instance sees its end; one of them ends it where it is kept.
            match self.remove(kept, name, Some(text)).await {
                Ok(true) => {
                    let entry = Entry::new(audit::OVERRIDE_EXPIRED, CLOCK);
                    self.audit.record(entry.change(told(text), Value::Null));
                    tracing::info!(target: "tollgate::admin", name, "override is over");
                }
                Ok(false) => {}
                Err(error) => {
                    // Whether it is still kept is not known: that is looked at when there is an answer.
                    kept.read = false;
                    tracing::debug!(%error, name, "an override that is over may still be kept");
                    return;
                }
            }
        }
    }

    /// Puts those that hold in force, if others are. Rules with many tenants take their time to be
    /// worked out.
    async fn put_in_force(&self, kept: &Kept) {
        let now = self.now();
        let mut overrides: Vec<Arc<Override>> = Vec::with_capacity(kept.known.len());
        let mut unreadable = Vec::new();
        for known in kept.known.values() {
            match &known.read {
                Ok(it) if it.is_over(now) => {}
                Ok(it) => overrides.push(Arc::clone(it)),
                Err(_) => unreadable.push(Arc::clone(known)),
            }
        }
        *self.unreadable.lock() = unreadable;
        let live = self.engine.live();
        let mut both = live.overrides().iter().zip(&overrides);
        let is_same_length = live.overrides().len() == overrides.len();
        if is_same_length && both.all(|(one, other)| Arc::ptr_eq(one, other)) {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let put = move || engine.set_overrides(overrides.into());
        // A panic in there would have been logged; what was in force stays.
        let _ = tokio::task::spawn_blocking(put).await;
    }
}

/// What will be read from the text that is kept of `wanted`.
///
/// That text is JSON, and read as YAML, which has other ideas of some characters: one that would not be
/// the same again would have no effect, or another.
fn keepable(wanted: &Override, now: u64) -> Result<Arc<Override>, OverrideError> {
    let written = wanted.to_json();
    match Override::parse(&written.to_string(), now) {
        Ok(read) if read.to_json() == written => Ok(Arc::new(read)),
        Ok(_) => Err(OverrideError::Wrong(Refused::because(Problem {
            at: "override".to_owned(),
            message: "it would not be read as it is written".to_owned(),
            help: Some("leave out control characters and unusual ends of lines".to_owned()),
        }))),
        Err(error) => Err(OverrideError::Wrong((&error).into())),
    }
}

/// What is kept, as a value of the trail: its beginning, if it is larger than any override.
fn told(text: &str) -> Value {
    match text.len() {
        ..=MAX_TOLD => value(text),
        _ => Value::String(text[..text.floor_char_boundary(audit::MAX_WHY)].to_owned()),
    }
}

/// What is kept, as JSON.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
