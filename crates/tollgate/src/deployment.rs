//! Whether a store and a ledger belong to this deployment.
//!
//! Instances that share a store must hash subjects in the same way. Otherwise each instance would count for
//! itself and admit the whole limit. So Redis and the ledger each keep a *record* of their namespace. Its
//! texts are:
//!
//! * `key`: the fingerprint of the keyring that hashes subjects;
//! * `layout` and `clock` (only Redis): the version of the names of keys, and whose time counts;
//! * `sealed:<fingerprint>`: the keyring, encrypted with the secret of that fingerprint.
//!
//! The first instance writes the record. If the config of an instance does not match the record, the instance
//! does not start. A running instance reads the record every few seconds, writes it again if it is lost, and
//! reports a record that has changed.
//!
//! A change of `hash_secret` does not change the keyring, as long as the new config lists the old secret: the
//! keyring of the record is sealed with the new secret. So all state stays where it is, and old and new instances
//! can run side by side. `docs/decisions/0014-fingerprint-and-rotation.md` has the reasons.

use std::borrow::Cow;
#[cfg(feature = "redis")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tollgate_config::Config;
use tollgate_core::Keyring;
#[cfg(feature = "ledger")]
use tollgate_ledger::{Claim, Ledger, LedgerError};
#[cfg(feature = "redis")]
use tollgate_redis::{Finding, RedisStore};
#[cfg(feature = "redis")]
use tollgate_store::StoreError;

use crate::start::StartError;

type Texts = Vec<(String, String)>;

/// The keyrings of the secrets that a config knows.
#[derive(Debug)]
struct Secrets {
    /// The keyring of `hash_secret`.
    current: Keyring,
    /// The keyrings of `previous_hash_secrets`, the latest first.
    previous: Vec<Keyring>,
}

impl Secrets {
    fn of(config: &Config) -> Secrets {
        let subjects = &config.subjects;
        let keyring = |secret: &[u8]| Keyring::new(secret, &config.namespace);
        let current = subjects.hash_secret.as_ref();
        let previous = subjects.previous_hash_secrets.iter();
        Secrets {
            current: keyring(current.map_or(&[], |secret| secret.expose())),
            previous: previous.map(|secret| keyring(secret.expose())).collect(),
        }
    }

    /// Returns the keyring of a deployment without a record: that of its first secret, because a later secret
    /// does not change the keyring.
    fn first(&self) -> &Keyring {
        self.previous.last().unwrap_or(&self.current)
    }

    /// Returns the keyring of a record; `None` if no secret of this config leads to it.
    fn find(&self, record: &Texts) -> Option<Keyring> {
        let wanted = text(record, KEY)?;
        let mut known = std::iter::once(&self.current).chain(&self.previous);
        known.find_map(|secret| {
            if secret.fingerprint() == wanted {
                return Some(secret.clone());
            }
            secret.unseal(text(record, &sealed_by(secret))?, wanted)
        })
    }

    /// Returns the texts of a record about `keyring`.
    fn record(&self, keyring: &Keyring) -> Texts {
        let mut record = vec![(KEY.to_owned(), keyring.fingerprint())];
        if self.current.fingerprint() != keyring.fingerprint() {
            record.push((sealed_by(&self.current), self.current.seal(keyring)));
        }
        record
    }
}

/// The text with the fingerprint of the keyring.
const KEY: &str = "key";

/// Returns the name of the text that holds the keyring, sealed with `secret`.
fn sealed_by(secret: &Keyring) -> String {
    format!("sealed:{}", secret.fingerprint())
}

fn text<'r>(record: &'r Texts, name: &str) -> Option<&'r str> {
    let found = record.iter().find(|(it, _)| it == name);
    found.map(|(_, text)| text.as_str())
}

/// A part of a deployment that outlives its instances.
#[derive(Debug)]
enum Place {
    #[cfg(feature = "ledger")]
    Ledger(Ledger, String),
    #[cfg(feature = "redis")]
    /// A store, its name if it is not the default one, and its record.
    Redis(
        RedisStore,
        Option<Arc<str>>,
        Box<tollgate_redis::Deployment>,
    ),
}

/// How to change a record.
#[derive(Clone, Copy)]
enum Change {
    /// Write it if there is none.
    Claim,
    /// Add texts with new names.
    Add,
    Replace,
}

impl Place {
    fn name(&self) -> Cow<'static, str> {
        match self {
            #[cfg(feature = "ledger")]
            Place::Ledger(..) => "ledger".into(),
            #[cfg(feature = "redis")]
            Place::Redis(_, None, _) => "redis".into(),
            #[cfg(feature = "redis")]
            Place::Redis(_, Some(name), _) => format!("redis {name}").into(),
        }
    }

    /// Returns where the record is, for messages.
    fn location(&self) -> String {
        match self {
            #[cfg(feature = "ledger")]
            Place::Ledger(ledger, _) => format!("the ledger {}", ledger.database().location()),
            #[cfg(feature = "redis")]
            Place::Redis(_, None, record) => format!("Redis (key {})", record.name()),
            #[cfg(feature = "redis")]
            Place::Redis(_, Some(name), record) => {
                format!("the Redis of the store {name} (key {})", record.name())
            }
        }
    }

    /// Returns the texts that do not depend on secrets.
    fn own(&self) -> Texts {
        match self {
            #[cfg(feature = "ledger")]
            Place::Ledger(..) => Vec::new(),
            #[cfg(feature = "redis")]
            Place::Redis(_, _, record) => record.own().into(),
        }
    }

    async fn read(&self) -> Result<Texts, StartError> {
        match self {
            #[cfg(feature = "ledger")]
            Place::Ledger(ledger, namespace) => {
                let record = ledger.deployment(namespace).await;
                record.map_err(|error| ledger_error(&error))
            }
            #[cfg(feature = "redis")]
            Place::Redis(_, _, record) => {
                let read = record.read().await;
                read.map_err(|error| redis_error(record, &error))
            }
        }
    }

    async fn change(&self, texts: &Texts, how: Change) -> Result<Texts, StartError> {
        match self {
            #[cfg(feature = "ledger")]
            Place::Ledger(ledger, namespace) => {
                let how = match how {
                    Change::Claim => Claim::IfNew,
                    Change::Add => Claim::Add,
                    Change::Replace => Claim::Replace,
                };
                let record = ledger.claim(namespace, texts, how).await;
                record.map_err(|error| ledger_error(&error))
            }
            #[cfg(feature = "redis")]
            Place::Redis(_, _, record) => {
                let changed = match how {
                    Change::Claim => record.claim(texts).await,
                    Change::Add => record.add(texts).await,
                    Change::Replace => record.replace(texts).await,
                };
                changed.map_err(|error| redis_error(record, &error))
            }
        }
    }

    /// Returns how `record` differs from this config, with the remedy; `None` if it matches. `secret` says
    /// whether the keyring of the record is the right one.
    fn mismatch(&self, record: &Texts, secret: bool) -> Option<String> {
        let mut differences = Vec::new();
        let mut remedies = Vec::new();
        if !secret {
            differences.push("`subjects.hash_secret`".to_owned());
            remedies.push(
                "use the same secret as the other instances; or, to keep the counts, add the old secret to \
                 `subjects.previous_hash_secrets`"
                    .to_owned(),
            );
        }
        for (name, here) in self.own() {
            let there = text(record, &name).unwrap_or("unknown");
            if there != here {
                let what = match name.as_str() {
                    "clock" => "`store.redis.clock`",
                    _ => "layout of keys",
                };
                differences.push(format!("{what} ({there} there, {here} here)"));
                remedies.push(match name.as_str() {
                    "clock" => format!("set `clock: {there}`"),
                    _ => "run the same Tollgate version as the other instances".to_owned(),
                });
            }
        }
        if differences.is_empty() {
            return None;
        }
        let (location, differences) = (self.location(), differences.join(" and another "));
        let remedies = remedies.join("; ");
        Some(format!(
            "{location} belongs to instances with another {differences}\n\
             help: {remedies}; or stop all instances and run `tollgate adopt` with this config; state under \
             secrets that the config does not list is lost"
        ))
    }
}

#[cfg(feature = "ledger")]
fn ledger_error(error: &LedgerError) -> StartError {
    let passing = !matches!(error, LedgerError::Damaged { .. });
    StartError::passing(format!("ledger: {error}"), passing)
}

#[cfg(feature = "redis")]
fn redis_error(record: &tollgate_redis::Deployment, error: &StoreError) -> StartError {
    let passing = !matches!(error, StoreError::Foreign(_) | StoreError::Script(_));
    let what = format!(
        "store.redis: cannot read or write {}: {error}",
        record.name()
    );
    StartError::of_store(what, passing)
}

/// The store and the ledger of an instance, and how the instance hashes subjects there.
#[derive(Debug)]
pub(crate) struct Deployment {
    secrets: Secrets,
    keyring: Mutex<Keyring>,
    places: Vec<Checked>,
}

/// A place, and the result of its last check.
#[derive(Debug)]
struct Checked {
    place: Place,
    /// The name of the place in metrics and logs.
    label: Cow<'static, str>,
    /// Whether the record has matched at any time.
    was_right: AtomicBool,
    mismatch: Mutex<Option<String>>,
}

impl Deployment {
    /// Returns the deployment of a config, without reading its records. Add the store and the ledger next.
    pub(crate) fn new(config: &Config) -> Deployment {
        let secrets = Secrets::of(config);
        Deployment {
            keyring: Mutex::new(secrets.first().clone()),
            secrets,
            places: Vec::new(),
        }
    }

    #[cfg(feature = "ledger")]
    pub(crate) fn add_ledger(&mut self, ledger: &Ledger, namespace: &str) {
        self.add(Place::Ledger(ledger.clone(), namespace.to_owned()));
    }

    #[cfg(feature = "redis")]
    pub(crate) fn add_redis(
        &mut self,
        name: Option<&Arc<str>>,
        redis: &RedisStore,
        namespace: &str,
    ) {
        let record = Box::new(redis.deployment(namespace));
        self.add(Place::Redis(redis.clone(), name.cloned(), record));
    }

    fn add(&mut self, place: Place) {
        self.places.push(Checked {
            label: place.name(),
            place,
            was_right: AtomicBool::new(false),
            mismatch: Mutex::default(),
        });
    }

    /// Returns whether there is a store or a ledger that outlives the instance.
    pub(crate) fn is_shared(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns the keyring that hashes subjects.
    pub(crate) fn keyring(&self) -> Keyring {
        self.keyring.lock().clone()
    }

    /// Finds the keyring of the deployment. Writes the records that are missing.
    ///
    /// # Errors
    /// If a record does not match the config, or cannot be read or written.
    pub(crate) async fn join(&self) -> Result<(), StartError> {
        let (mut records, mut found) = (Vec::new(), None);
        for Checked { place, .. } in &self.places {
            let record = place.read().await?;
            let keyring = self.secrets.find(&record);
            if !record.is_empty()
                && let Some(mismatch) = place.mismatch(&record, keyring.is_some())
            {
                return Err(StartError::new(mismatch));
            }
            records.push(record);
            found = found.or(keyring);
        }
        if let Some(keyring) = found {
            *self.keyring.lock() = keyring;
        }
        for (checked, mut record) in self.places.iter().zip(records) {
            let place = &checked.place;
            if record.is_empty() {
                // Another instance may have written a record since the first look.
                record = place.change(&self.record(place), Change::Claim).await?;
            }
            if let Some(mismatch) = place.mismatch(&record, self.is_ours(&record)) {
                return Err(StartError::new(mismatch));
            }
            let sealed = self.secrets.record(&self.keyring());
            if sealed.iter().any(|(name, _)| text(&record, name).is_none()) {
                place.change(&sealed, Change::Add).await?;
            }
            checked.was_right.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Rewrites the records so that they match this config. Returns where they are. If a secret of the config
    /// leads to the keyring of a record, this keyring stays in use.
    ///
    /// # Errors
    /// If a record cannot be read or written.
    pub(crate) async fn adopt(&self) -> Result<Vec<String>, StartError> {
        let (mut found, mut is_new) = (None, true);
        for Checked { place, .. } in &self.places {
            let record = place.read().await?;
            is_new &= record.is_empty();
            found = found.or(self.secrets.find(&record));
        }
        // If there are only records of other secrets, all state starts from zero, under the current secret.
        *self.keyring.lock() = match found {
            Some(keyring) => keyring,
            None if is_new => self.secrets.first().clone(),
            None => self.secrets.current.clone(),
        };
        let mut locations = Vec::new();
        for Checked { place, .. } in &self.places {
            place.change(&self.record(place), Change::Replace).await?;
            locations.push(place.location());
        }
        Ok(locations)
    }

    /// Returns the whole record for `place`.
    fn record(&self, place: &Place) -> Texts {
        let mut record = self.secrets.record(&self.keyring());
        record.extend(place.own());
        record
    }

    fn is_ours(&self, record: &Texts) -> bool {
        text(record, KEY) == Some(self.keyring().fingerprint().as_str())
    }

    /// Reads the records again, and writes those that are lost. Logs a record that no longer matches, and a
    /// record that matches again. Returns the keyring to hash with from now on, if this instance started
    /// without its store and finds the right keyring only now.
    pub(crate) async fn check(&self) -> Option<Keyring> {
        let mut learnt = None;
        for checked in &self.places {
            let place = &checked.place;
            let read = match place.read().await {
                Ok(record) if record.is_empty() => {
                    place.change(&self.record(place), Change::Claim).await
                }
                read => read,
            };
            let record = match read {
                Ok(record) => record,
                Err(error) => {
                    // Requests report that the store or the ledger does not answer.
                    tracing::debug!(%error, "cannot read the deployment record");
                    continue;
                }
            };
            let was_right = |it: &Checked| it.was_right.load(Ordering::Relaxed);
            if !self.is_ours(&record)
                && !self.places.iter().any(was_right)
                && let Some(keyring) = self.secrets.find(&record)
            {
                *self.keyring.lock() = keyring.clone();
                learnt = Some(keyring);
            }
            checked.note(place.mismatch(&record, self.is_ours(&record)));
        }
        learnt
    }

    /// Compares the records with the config for an operator, and changes nothing.
    #[cfg(feature = "redis")]
    pub(crate) async fn inspect(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for Checked { place, .. } in &self.places {
            let Ok(record) = place.read().await else {
                continue;
            };
            let is_known = self.secrets.find(&record).is_some();
            let mismatch = place.mismatch(&record, is_known);
            findings.push(match &mismatch {
                _ if record.is_empty() => Finding::ok(
                    "fingerprint",
                    "not written yet: the first server that starts writes it",
                ),
                None => Finding::ok("fingerprint", "matches this config"),
                Some(problem) => {
                    let (found, help) = problem.split_once("\nhelp: ").unwrap_or((problem, ""));
                    Finding::bad("fingerprint", found, help)
                }
            });
        }
        findings
    }

    /// Returns for each place whether its record did not match at the last check.
    pub(crate) fn mismatches(&self) -> impl Iterator<Item = (&str, bool)> + '_ {
        let places = self.places.iter();
        places.map(|it| (&*it.label, it.mismatch.lock().is_some()))
    }
}

impl Checked {
    /// Remembers the result of a check, and logs a change.
    fn note(&self, mismatch: Option<String>) {
        let mut known = self.mismatch.lock();
        match &mismatch {
            None if known.is_some() => {
                tracing::info!(
                    place = %self.label,
                    "the deployment record matches again"
                );
            }
            Some(problem) if *known != mismatch => {
                tracing::error!(place = %self.label, "{problem}");
            }
            _ => {}
        }
        if mismatch.is_none() {
            self.was_right.store(true, Ordering::Relaxed);
        }
        match &self.place {
            // If the record never matched, a check at the start would have stopped this instance. So it must
            // not use the store.
            #[cfg(feature = "redis")]
            Place::Redis(redis, _, _) => {
                let was_right = self.was_right.load(Ordering::Relaxed);
                redis.refuse(mismatch.as_deref().filter(|_| !was_right));
            }
            #[cfg(feature = "ledger")]
            Place::Ledger(..) => {}
        }
        *known = mismatch;
    }
}
