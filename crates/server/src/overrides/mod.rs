//! Overrides: stored where every instance finds them, put in force, and removed when they expire. Blocks
//! are overrides too, and a [rollback](rollback::Rollback) of the config is stored beside them.
//!
//! With Redis, overrides are in the store, and every instance checks several times a second for
//! changes. If the store does not answer, the known overrides stay in force. With state in memory,
//! overrides are in a file of the data directory, for the next start. Every change is an entry of
//! the [audit trail](crate::audit).

pub(crate) mod file;
mod rollback;
mod stored;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex as SyncMutex;
use serde_json::Value;
use tokio::sync::Mutex;
use tollgate::{Clock, Engine, NamedSubject, Override, StoreError, SystemClock};
use tollgate_redis::SharedValues;
use tollgate_rules::Previewed;

pub use self::rollback::Rollback;
pub use self::stored::StoredOverride;
use self::stored::StoredOverrides;
use crate::audit::{self, Audit, Entry};
use crate::control::RejectedConfig;

/// The name of the file in its directory.
pub const FILE: &str = "overrides.json";

/// The author of a change in the audit trail, if an override has expired.
pub const CLOCK: &str = "clock";

/// The most overrides, without blocks.
pub const MAX_OVERRIDES: usize = 1000;

/// The most blocks.
pub const MAX_BLOCKS: usize = 10_000;

/// The most values of a preview.
const MAX_PREVIEWED: usize = 50;

/// The most texts that are stored: overrides, blocks and a rollback.
const MAX_TEXTS: usize = MAX_OVERRIDES + MAX_BLOCKS + 1;

/// The audit trail shows only the beginning of a stored text that is longer than this. No valid
/// override is that long.
const MAX_TEXT: usize = 16 * 1024;

/// How often overrides are checked for changes. A change of another instance takes effect within a
/// second.
pub(crate) const REFRESH_EVERY: Duration = Duration::from_millis(250);

const _: () = assert!(2 * REFRESH_EVERY.as_millis() < 1000);

/// The overrides of an engine.
pub struct Overrides {
    engine: Arc<Engine>,
    storage: Storage,
    audit: Audit,
    clock: Arc<dyn Clock>,
    /// Locked while overrides change.
    stored: Mutex<StoredOverrides>,
    /// Stored overrides that cannot be parsed.
    unreadable: SyncMutex<Vec<Arc<StoredOverride>>>,
}

impl std::fmt::Debug for Overrides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Overrides").finish_non_exhaustive()
    }
}

/// What an override or a block would change if it were set.
#[derive(Debug)]
#[non_exhaustive]
pub struct Preview {
    /// The override or block.
    pub wanted: Arc<Override>,
    /// The one that it would replace.
    pub replaces: Option<Arc<Override>>,
    /// The values that would change: at most 50.
    pub changes: Vec<Previewed>,
    /// Whether more values would change.
    pub is_cut: bool,
}

/// Where overrides are stored.
enum Storage {
    /// In this process only.
    Process,
    File(PathBuf),
    Store(Box<SharedValues>),
}

/// Why an override was not set or cleared. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The text is not a valid override.
    #[error("{0}")]
    Wrong(RejectedConfig),
    /// The override would have no effect under the rules in force.
    #[error("{0}")]
    Misfit(String),
    /// There are too many overrides.
    #[error("there are already {MAX_OVERRIDES} overrides: clear some first")]
    TooMany,
    /// There are too many blocks.
    #[error("there are already {MAX_BLOCKS} blocks: unblock some first, or block a network")]
    TooManyBlocks,
    /// The subject is not written as `attribute=value`. Has the problem and the remedy.
    #[error("{0}; {1}")]
    BadSubject(String, String),
    /// The subject is not blocked.
    #[error("this subject is not blocked")]
    NotBlocked,
    /// Without a secret, the hash of a subject changes at every start.
    #[error(
        "without subjects.hash_secret, a restart would forget this subject: set the secret in the config, and restart the server"
    )]
    NoSecret,
    /// There is no override of that name.
    #[error("there is no override `{0}`")]
    NotFound(String),
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, #[source] io::Error),
    /// The file cannot be written.
    #[error("cannot write {0}: {1}")]
    File(PathBuf, #[source] io::Error),
}

impl Overrides {
    /// Keeps overrides in this process only, without an audit trail.
    #[must_use]
    pub fn of(engine: Arc<Engine>) -> Overrides {
        Overrides::at(engine, Storage::Process, Audit::nowhere())
    }

    /// Keeps overrides in the engine's store or, if it has none, in `directory`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, directory: &Path, audit: Audit) -> Overrides {
        let storage = match engine.shared_values() {
            Some(values) => Storage::Store(Box::new(values)),
            None => Storage::File(directory.join(FILE)),
        };
        Overrides::at(engine, storage, audit)
    }

    fn at(engine: Arc<Engine>, storage: Storage, audit: Audit) -> Overrides {
        Overrides {
            engine,
            storage,
            audit,
            clock: Arc::new(SystemClock::new()),
            stored: Mutex::default(),
            unreadable: SyncMutex::default(),
        }
    }

    /// Uses another clock.
    #[must_use]
    pub fn by(mut self, clock: Arc<dyn Clock>) -> Overrides {
        self.clock = clock;
        self
    }

    fn now(&self) -> u64 {
        self.clock.now().as_millis_ceil()
    }

    /// Returns the stored overrides that cannot be parsed, by name. Such overrides have no effect,
    /// and can be cleared.
    #[must_use]
    pub fn unreadable(&self) -> Vec<Arc<StoredOverride>> {
        self.unreadable.lock().clone()
    }

    /// Sets the override that `text` describes. It replaces an override of the same name. `who` is its
    /// author.
    ///
    /// # Errors
    /// If the text is not a valid override, has no effect under the rules in force, or cannot be
    /// stored.
    pub async fn set(&self, text: &str, who: &str) -> Result<Arc<Override>, OverrideError> {
        let now = self.now();
        let wanted = Override::parse_request(text, now, self.engine.rules().keyring());
        let wanted = wanted.map_err(|error| OverrideError::Wrong((&error).into()))?;
        self.put(wanted.by(who), now, who).await
    }

    /// Sets the block that `text` describes. It replaces a block of the same subject. `who` is its author.
    ///
    /// # Errors
    /// If the text is not a valid block, or the block cannot be stored.
    pub async fn block(&self, text: &str, who: &str) -> Result<Arc<Override>, OverrideError> {
        let now = self.now();
        let wanted = Override::parse_block(text, now, self.engine.rules().keyring());
        let wanted = wanted.map_err(|error| OverrideError::Wrong((&error).into()))?;
        self.put(wanted.by(who), now, who).await
    }

    /// Sets the override or the block of the stored text again, unless it has expired meanwhile. It replaces an
    /// override of the same name. `who` is its author.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub async fn restore(&self, text: &str, who: &str) -> Result<Arc<Override>, OverrideError> {
        let now = self.now();
        let wanted = Override::parse(text, now);
        let wanted = wanted.map_err(|error| OverrideError::Wrong((&error).into()))?;
        if wanted.is_over(now) {
            return Err(OverrideError::Misfit("it has expired meanwhile".to_owned()));
        }
        self.put(wanted.by(who), now, who).await
    }

    /// Returns what the override of `text` would change. Changes nothing.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub async fn preview(&self, text: &str, who: &str) -> Result<Preview, OverrideError> {
        let now = self.now();
        let wanted = Override::parse_request(text, now, self.engine.rules().keyring());
        let wanted = wanted.map_err(|error| OverrideError::Wrong((&error).into()))?;
        self.compare(wanted.by(who), now).await
    }

    /// Returns what the block of `text` would change. Changes nothing.
    ///
    /// # Errors
    /// As for [`block`](Self::block).
    pub async fn preview_block(&self, text: &str, who: &str) -> Result<Preview, OverrideError> {
        let now = self.now();
        let wanted = Override::parse_block(text, now, self.engine.rules().keyring());
        let wanted = wanted.map_err(|error| OverrideError::Wrong((&error).into()))?;
        self.compare(wanted.by(who), now).await
    }

    async fn compare(&self, wanted: Override, now: u64) -> Result<Preview, OverrideError> {
        let wanted = self.checked(&wanted, now)?;
        let live = self.engine.active();
        let name = wanted.name();
        let replaces = live.overrides().iter().find(|it| it.name() == name);
        let replaces = replaces.cloned();
        let then = Arc::clone(&wanted);
        // Many rules and tenants take long to compare, and would block other requests.
        let comparing = tokio::task::spawn_blocking(move || {
            let (policy, keyring) = (&live.config().policy, live.rules().keyring());
            tollgate_rules::preview(policy, live.overrides(), &then, keyring, MAX_PREVIEWED)
        });
        // A panic was logged. The list is then empty and cut.
        let (changes, is_cut) = comparing.await.unwrap_or((Vec::new(), true));
        Ok(Preview {
            wanted,
            replaces,
            changes,
            is_cut,
        })
    }

    /// Returns the override that would be stored for `wanted`.
    fn checked(&self, wanted: &Override, now: u64) -> Result<Arc<Override>, OverrideError> {
        let is_hashed = wanted.subject().is_some_and(|it| it.hash().is_some());
        let active = self.engine.active();
        let has_secret = active.config().subjects.hash_secret.is_some();
        if let Storage::File(_) = self.storage
            && is_hashed
            && !has_secret
        {
            return Err(OverrideError::NoSecret);
        }
        if let Some(why) = wanted.misfit(&active.config().policy) {
            return Err(OverrideError::Misfit(why));
        }
        round_trip(wanted, now)
    }

    async fn put(
        &self,
        wanted: Override,
        now: u64,
        who: &str,
    ) -> Result<Arc<Override>, OverrideError> {
        let set = self.checked(&wanted, now)?;
        let (name, text) = (wanted.name(), wanted.to_json().to_string());
        let known = StoredOverride {
            name: name.clone(),
            text,
            read: Ok(Arc::clone(&set)),
        };
        let mut stored = self.stored.lock().await;
        self.catch_up(&mut stored).await?;
        let before = stored.by_name.get(&name);
        let (is_block, most, full, what, logged) = match set.is_block() {
            true => (
                true,
                MAX_BLOCKS,
                OverrideError::TooManyBlocks,
                audit::BLOCK_SET,
                "subject blocked",
            ),
            false => (
                false,
                MAX_OVERRIDES,
                OverrideError::TooMany,
                audit::OVERRIDE_SET,
                "override set",
            ),
        };
        if before.is_none() && stored.count(is_block) >= most {
            return Err(full);
        }
        let before = before.map_or(Value::Null, |it| audit_value(&it.text));
        match &self.storage {
            Storage::Store(values) => {
                if !values.put(&name, &known.text, MAX_TEXTS).await? {
                    return Err(full);
                }
            }
            Storage::File(path) => {
                let others = stored.without(&name);
                file::write(path, others.chain([(&*name, &*known.text)])).await?;
            }
            Storage::Process => {}
        }
        let entry = Entry::new(what, who)
            .change(before, audit_value(&known.text))
            .because(Some(set.reason()));
        tracing::info!(target: "tollgate::admin", who, name, effect = set.effect(), "{logged}");
        stored.by_name.insert(name, Arc::new(known));
        self.put_in_force(&stored).await;
        self.audit.write(entry).await;
        Ok(set)
    }

    /// Removes the override of this name, even if it cannot be parsed. Returns the removed
    /// override.
    ///
    /// # Errors
    /// If there is none, or it cannot be removed from where it is stored.
    pub async fn clear(
        &self,
        name: &str,
        who: &str,
        why: Option<&str>,
    ) -> Result<Arc<StoredOverride>, OverrideError> {
        let mut stored = self.stored.lock().await;
        self.catch_up(&mut stored).await?;
        let not_found = || OverrideError::NotFound(name.to_owned());
        let cleared = stored.by_name.get(name).cloned().ok_or_else(not_found)?;
        let was_there = self.remove(&mut stored, name, None).await?;
        self.put_in_force(&stored).await;
        if !was_there {
            // Another instance removed it first, and wrote the audit entry.
            return Err(not_found());
        }
        let (what, logged) = match cleared.is_block() {
            true => (audit::BLOCK_CLEAR, "subject unblocked"),
            false => (audit::OVERRIDE_CLEAR, "override cleared"),
        };
        let entry = Entry::new(what, who)
            .change(audit_value(&cleared.text), Value::Null)
            .because(why);
        tracing::info!(target: "tollgate::admin", who, name, "{logged}");
        self.audit.write(entry).await;
        Ok(cleared)
    }

    /// Removes the block of a subject, written as `attribute=value`.
    ///
    /// # Errors
    /// If the subject is not blocked, or the block cannot be removed from where it is stored.
    pub async fn unblock(
        &self,
        subject: &str,
        who: &str,
        why: Option<&str>,
    ) -> Result<Arc<StoredOverride>, OverrideError> {
        let subject = NamedSubject::parse(subject, self.engine.rules().keyring());
        let subject = subject.map_err(|bad| OverrideError::BadSubject(bad.message, bad.help))?;
        let cleared = self.clear(&Override::block_name(&subject), who, why).await;
        cleared.map_err(|error| match error {
            OverrideError::NotFound(_) => OverrideError::NotBlocked,
            error => error,
        })
    }

    /// Returns the stored rollback of the config, as of the last refresh.
    pub(crate) async fn rollback(&self) -> Option<Rollback> {
        let stored = self.stored.lock().await;
        Rollback::read(stored.rollback.as_deref()?)
    }

    /// Stores a rollback of the config, instead of the stored one.
    pub(crate) async fn set_rollback(&self, rollback: &mut Rollback) -> Result<(), OverrideError> {
        rollback.set_at_epoch_millis = self.now();
        let text = serde_json::json!(rollback).to_string();
        let mut stored = self.stored.lock().await;
        self.catch_up(&mut stored).await?;
        match &self.storage {
            Storage::Process => {}
            Storage::Store(values) => {
                // There is always room for the rollback.
                let most = MAX_TEXTS.saturating_add(1);
                values.put(rollback::NAME, &text, most).await?;
            }
            Storage::File(path) => {
                let others = stored.without(rollback::NAME);
                file::write(path, others.chain([(rollback::NAME, &*text)])).await?;
            }
        }
        stored.rollback = Some(text);
        Ok(())
    }

    /// Removes the stored rollback, if it is `ended`. Returns whether it was removed.
    pub(crate) async fn end_rollback(&self, ended: &Rollback) -> Result<bool, OverrideError> {
        let mut stored = self.stored.lock().await;
        self.read_if_changed(&mut stored).await?;
        let Some(text) = stored.rollback.clone() else {
            return Ok(false);
        };
        if Rollback::read(&text).as_ref() != Some(ended) {
            return Ok(false);
        }
        let removed = match &self.storage {
            Storage::Process => true,
            Storage::Store(values) => values.remove(rollback::NAME, Some(&text)).await?,
            Storage::File(path) => {
                file::write(path, stored.without(rollback::NAME)).await?;
                true
            }
        };
        stored.rollback = None;
        Ok(removed)
    }

    /// Removes one stored override. If `only` is given, removes it only if its text equals `only`.
    /// Returns whether an override was removed.
    async fn remove(
        &self,
        stored: &mut StoredOverrides,
        name: &str,
        only: Option<&str>,
    ) -> Result<bool, OverrideError> {
        let removed = match &self.storage {
            Storage::Process => true,
            Storage::Store(values) => values.remove(name, only).await?,
            Storage::File(path) => {
                file::write(path, stored.without(name)).await?;
                true
            }
        };
        stored.by_name.remove(name);
        Ok(removed)
    }

    /// Runs once: puts changes of other instances in force, and removes expired overrides.
    pub async fn refresh(&self) {
        let mut stored = self.stored.lock().await;
        let looked = self.read_if_changed(&mut stored).await;
        // Expired overrides end even if the store did not answer.
        self.put_in_force(&stored).await;
        let was_failing = stored.failed;
        stored.failed = looked.is_err();
        match looked {
            Ok(()) => self.remove_expired(&mut stored).await,
            Err(error) if !was_failing => {
                tracing::warn!(%error, "failed to read overrides; the known ones stay in force");
            }
            Err(_) => {}
        }
    }

    /// Puts changes of other instances in force, so that the next change starts from what is
    /// stored.
    async fn catch_up(&self, stored: &mut StoredOverrides) -> Result<(), OverrideError> {
        self.read_if_changed(stored).await?;
        self.put_in_force(stored).await;
        Ok(())
    }

    /// Reads the overrides if they have changed.
    async fn read_if_changed(&self, stored: &mut StoredOverrides) -> Result<(), OverrideError> {
        match &self.storage {
            Storage::Process => {}
            Storage::File(path) => {
                if !stored.read {
                    stored.take(file::load(path).await?, self.now());
                }
            }
            Storage::Store(values) => {
                if !stored.read || values.edition().await? != stored.edition {
                    let (edition, texts) = values.all(MAX_TEXTS).await?;
                    stored.edition = edition;
                    stored.take(texts, self.now());
                }
            }
        }
        Ok(())
    }

    /// Removes expired overrides from where they are stored. Expired overrides have no effect any
    /// more.
    async fn remove_expired(&self, stored: &mut StoredOverrides) {
        let now = self.now();
        let mut over: Vec<_> = stored.by_name.values().cloned().collect();
        over.retain(|known| known.read.as_ref().is_ok_and(|it| it.is_over(now)));
        for known in over {
            let StoredOverride { name, text, .. } = &*known;
            // Every instance sees the expired override, and one of them removes it.
            match self.remove(stored, name, Some(text)).await {
                Ok(true) => {
                    let (what, logged) = match known.is_block() {
                        true => (audit::BLOCK_EXPIRED, "block expired"),
                        false => (audit::OVERRIDE_EXPIRED, "override expired"),
                    };
                    let entry = Entry::new(what, CLOCK);
                    let entry = entry.change(audit_value(text), Value::Null);
                    self.audit.record(entry);
                    tracing::info!(target: "tollgate::admin", name, "{logged}");
                }
                Ok(false) => {}
                Err(error) => {
                    // It is not known whether the override is still stored. The next read of the store
                    // will show it.
                    stored.read = false;
                    tracing::debug!(%error, name, "an expired override may still be stored");
                    return;
                }
            }
        }
    }

    /// Puts the current overrides in force, if they have changed. Runs on a blocking thread,
    /// because rules with many tenants take long to compile.
    async fn put_in_force(&self, stored: &StoredOverrides) {
        let now = self.now();
        let mut overrides: Vec<Arc<Override>> = Vec::with_capacity(stored.by_name.len());
        let mut unreadable = Vec::new();
        for known in stored.by_name.values() {
            match &known.read {
                Ok(it) if it.is_over(now) => {}
                Ok(it) => overrides.push(Arc::clone(it)),
                Err(_) => unreadable.push(Arc::clone(known)),
            }
        }
        *self.unreadable.lock() = unreadable;
        let live = self.engine.active();
        if live
            .overrides()
            .iter()
            .map(Arc::as_ptr)
            .eq(overrides.iter().map(Arc::as_ptr))
        {
            return;
        }
        let engine = Arc::clone(&self.engine);
        let put = move || engine.set_overrides(overrides.into());
        // A panic was logged, and the previous overrides stay in force.
        let _ = tokio::task::spawn_blocking(put).await;
    }
}

/// Returns the override that the stored text of `wanted` will be parsed into.
///
/// The stored text is JSON, and is parsed as YAML, which treats some characters differently. An
/// override that would change by this is rejected.
fn round_trip(wanted: &Override, now: u64) -> Result<Arc<Override>, OverrideError> {
    let written = wanted.to_json();
    match Override::parse(&written.to_string(), now) {
        Ok(read) if read.to_json() == written => Ok(Arc::new(read)),
        Ok(_) => Err(OverrideError::Wrong(RejectedConfig::because(
            "override".to_owned(),
            "the override has characters that cannot be stored".to_owned(),
            Some("leave out control characters and unusual line ends".to_owned()),
        ))),
        Err(error) => Err(OverrideError::Wrong((&error).into())),
    }
}

/// Converts a stored text into a value for the audit trail. Cuts a text that is longer than any valid
/// override.
fn audit_value(text: &str) -> Value {
    match text.len() {
        ..=MAX_TEXT => value(text),
        _ => Value::String(text[..text.floor_char_boundary(audit::MAX_WHY)].to_owned()),
    }
}

/// Converts a stored text into JSON.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
