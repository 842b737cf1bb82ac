//! Rollbacks: an older version of the config is put in force, on every instance.
//!
//! The config file is never written. A rollback is stored beside the overrides, so that every instance
//! follows it, also after a restart. The rollback says which version of the file it replaces. While the file of
//! an instance has that version, the older version is in force there. The rollback ends on an instance when the
//! file of this instance changes, or when the instance is told to reload. Then the rollback is removed from where
//! it is stored; the other instances keep the older version until their own files change.

use std::sync::Arc;

use serde_json::json;
use tollgate::Config;

use super::{Change, ControlPlane, RejectedConfig, ReloadError, Source};
use crate::audit::{self, Entry};
use crate::outbound::Seldom;
use crate::overrides::{OverrideError, Rollback};

/// The author of a change in the audit trail, if an instance follows a rollback.
pub const ROLLBACK: &str = "rollback";

/// The rollback that an instance knows.
#[derive(Default)]
pub(super) struct KnownRollback {
    /// The version of the config file, when it was last read without a problem.
    pub(super) file: String,
    /// The rollback in force, if the file has the version that the rollback replaces.
    current: Option<Rollback>,
    /// The rollback that this instance has ended.
    ended: Option<Rollback>,
    failures: Seldom,
}

impl KnownRollback {
    pub(super) fn new(file: &str) -> KnownRollback {
        KnownRollback {
            file: file.to_owned(),
            ..KnownRollback::default()
        }
    }

    /// Returns the rollback that holds an older version in force here.
    pub(super) fn held(&self) -> Option<&Rollback> {
        let current = self.current.as_ref();
        current.filter(|it| it.instead_of == self.file)
    }
}

/// Why a rollback was not made. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RollbackError {
    /// The server runs without a file.
    #[error("there is no config file: the server was started without one")]
    NoFile,
    /// There is no such version.
    #[error("there is no version `{0}`")]
    NotFound(String),
    /// The config file has this version.
    #[error("the config file has the version `{0}`: reload it instead")]
    InFile(String),
    /// The text of the version is not known.
    #[error(
        "the text of the version `{0}` is too long and was not kept: put it into the config file"
    )]
    NoText(String),
    /// Secrets of the version are not in the config file any more.
    #[error(
        "the version `{version}` has {missing} secrets that the config file does not have: copy its text into the file. To avoid this, write secrets as ${{VAR}}"
    )]
    Secrets {
        /// The version.
        version: String,
        /// How many secrets.
        missing: usize,
    },
    /// The older text has problems.
    #[error("{0}")]
    Rejected(RejectedConfig),
    /// The versions or the rollback cannot be read or stored.
    #[error(transparent)]
    Storage(#[from] OverrideError),
}

impl From<ReloadError> for RollbackError {
    fn from(error: ReloadError) -> RollbackError {
        match error {
            ReloadError::NoFile => RollbackError::NoFile,
            ReloadError::Rejected(rejected) => RollbackError::Rejected(rejected),
        }
    }
}

impl ControlPlane {
    /// Puts an older version of the config in force, here and on every instance whose file has the same
    /// version as the file of this one. `who` is the author, and `why` the reason.
    ///
    /// Runs to its end even if the caller stops waiting.
    ///
    /// # Errors
    /// If the version is not known or is not valid any more. Then nothing has changed.
    pub async fn rollback(
        self: &Arc<Self>,
        version: &str,
        who: &str,
        why: &str,
    ) -> Result<Change, RollbackError> {
        let source = self.source.clone().ok_or(RollbackError::NoFile)?;
        let control = Arc::clone(self);
        let (version, who, why) = (version.to_owned(), who.to_owned(), why.to_owned());
        let rolling = tokio::spawn(async move {
            let _reading = control.reading.lock().await;
            let instead_of = control.known.lock().file.clone();
            if instead_of == version {
                return Err(RollbackError::InFile(version));
            }
            let (config, text) = control.older(&source, &version).await?;
            let mut rollback = Rollback::new(&version, &instead_of, &who, &why);
            control.overrides.set_rollback(&mut rollback).await?;
            control.known.lock().current = Some(rollback);
            let what = audit::CONFIG_ROLLBACK;
            Ok(control
                .enforce(config, &text, what, &who, Some(&why))
                .await?)
        });
        let rolled = rolling.await;
        rolled.unwrap_or_else(|error| Err(RollbackError::Rejected(error.into())))
    }

    /// Reads the text of an older version, with the secrets of the config file.
    pub(super) async fn older(
        &self,
        source: &Arc<Source>,
        version: &str,
    ) -> Result<(Config, String), RollbackError> {
        let found = self.versions.find(version).await?;
        let found = found.ok_or_else(|| RollbackError::NotFound(version.to_owned()))?;
        let no_text = || RollbackError::NoText(version.to_owned());
        let masked = found.text.ok_or_else(no_text)?;
        let (source, rules) = (Arc::clone(source), self.engine.rules());
        let version = version.to_owned();
        let reading = tokio::task::spawn_blocking(move || {
            let current = source.text().unwrap_or_default();
            let name = |secret: &str| super::name_of_secret(&rules, secret);
            let text = tollgate_config::unmask(&masked, &current, &name);
            let text = text.map_err(|missing| RollbackError::Secrets { version, missing })?;
            let config = source.parse(&text).map_err(RollbackError::Rejected)?;
            Ok((config, text))
        });
        let read = reading.await;
        read.unwrap_or_else(|error| Err(RollbackError::Rejected(error.into())))
    }

    /// Runs once: puts overrides and rollbacks of other instances in force, and removes expired overrides.
    pub async fn refresh(&self) {
        self.overrides.refresh().await;
        let (Some(source), Some(stored)) = (&self.source, self.overrides.rollback().await) else {
            return;
        };
        let is_ended = {
            let known = self.known.lock();
            if known.current.as_ref() == Some(&stored) {
                return;
            }
            known.ended.as_ref() == Some(&stored)
        };
        if is_ended {
            // An earlier attempt to remove it has failed.
            let _ = self.overrides.end_rollback(&stored).await;
            return;
        }
        let _reading = self.reading.lock().await;
        if let Err(error) = self.follow(source, &stored).await
            && self.known.lock().failures.due().is_some()
        {
            tracing::error!(target: "tollgate::config", %error, version = stored.version, "failed to follow a rollback");
        }
    }

    /// Puts the version of a rollback in force, if the file has the version that the rollback replaces.
    async fn follow(&self, source: &Arc<Source>, stored: &Rollback) -> Result<(), RollbackError> {
        if self.known.lock().file == stored.instead_of {
            let (config, text) = self.older(source, &stored.version).await?;
            let (what, why) = (audit::CONFIG_RELOAD, Some(&*stored.reason));
            self.enforce(config, &text, what, ROLLBACK, why).await?;
        }
        self.known.lock().current = Some(stored.clone());
        Ok(())
    }

    /// Puts the version in force that a rollback holds instead of the file, which was read again.
    pub(super) async fn hold(
        &self,
        source: &Arc<Source>,
        held: &Rollback,
    ) -> Result<Change, ReloadError> {
        let older = self.older(source, &held.version).await;
        let (config, text) = older.map_err(|error| {
            let at = source.path().display().to_string();
            let message = format!("a rollback to {} is in force: {error}", held.version);
            ReloadError::Rejected(RejectedConfig::because(at, message, None))
        })?;
        let (what, why) = (audit::CONFIG_RELOAD, Some(&*held.reason));
        self.enforce(config, &text, what, ROLLBACK, why).await
    }

    /// Ends the rollback that held an older version in force here.
    pub(super) async fn end_rollback(&self, held: Rollback, who: &str, why: Option<&str>) {
        {
            let mut known = self.known.lock();
            known.current = None;
            known.ended = Some(held.clone());
        }
        match self.overrides.end_rollback(&held).await {
            Ok(true) => {
                let from = json!({ "version": held.version, "insteadOf": held.instead_of });
                let entry = Entry::new(audit::CONFIG_ROLLBACK_ENDED, who);
                let entry = entry.change(from, serde_json::Value::Null).because(why);
                self.audit.write(entry).await;
            }
            // Another instance has removed it.
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(target: "tollgate::config", %error, "failed to remove a rollback that has ended; trying again");
            }
        }
    }
}
