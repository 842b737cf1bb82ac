//! The stored overrides: their texts, each parsed once.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::Override;

use super::rollback;
use crate::control::RejectedConfig;

/// A stored override.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoredOverride {
    /// The name that the override is stored and cleared by.
    pub name: String,
    /// The stored text.
    pub text: String,
    /// The parsed override, or why it cannot be parsed. Such an override has no effect.
    pub read: Result<Arc<Override>, Arc<str>>,
}

impl StoredOverride {
    /// Whether the override is a block. A block that cannot be parsed is known by its name.
    #[must_use]
    pub fn is_block(&self) -> bool {
        match &self.read {
            Ok(it) => it.is_block(),
            Err(_) => self.name.starts_with("block:"),
        }
    }

    /// Parses a text that was stored as `name`.
    fn read(name: String, text: String, now: u64) -> StoredOverride {
        let read = match Override::parse(&text, now) {
            Ok(it) if it.name() == name => Ok(Arc::new(it)),
            // The override could replace another one, and could not be cleared by its own name.
            Ok(it) => Err(format!("it is stored under another name than `{}`", it.name()).into()),
            Err(error) => Err(RejectedConfig::from(&error).first().into()),
        };
        if let Err(why) = &read {
            tracing::warn!(target: "tollgate::admin", name, %why, "a stored override cannot be read, and has no effect");
        }
        StoredOverride { name, text, read }
    }
}

/// All stored overrides.
#[derive(Default)]
pub(super) struct StoredOverrides {
    /// The edition of the shared values that was read last.
    pub(super) edition: u64,
    /// Whether the shared values were ever read. If not, they are read even if their edition has not
    /// changed.
    pub(super) read: bool,
    /// Whether the last read failed.
    pub(super) failed: bool,
    /// By name.
    pub(super) by_name: BTreeMap<String, Arc<StoredOverride>>,
    /// The text of the rollback, which is stored among the overrides.
    pub(super) rollback: Option<String>,
}

impl StoredOverrides {
    /// Replaces all overrides. Known texts are not parsed again.
    pub(super) fn take(&mut self, texts: impl IntoIterator<Item = (String, String)>, now: u64) {
        let mut before = std::mem::take(&mut self.by_name);
        self.rollback = None;
        for (name, text) in texts {
            if name == rollback::NAME {
                self.rollback = Some(text);
                continue;
            }
            let known = match before.remove(&name) {
                Some(known) if known.text == text => known,
                _ => Arc::new(StoredOverride::read(name.clone(), text, now)),
            };
            self.by_name.insert(name, known);
        }
        self.read = true;
    }

    /// Returns how many blocks there are, or how many other overrides.
    pub(super) fn count(&self, blocks: bool) -> usize {
        let is_block = |it: &&Arc<StoredOverride>| it.is_block() == blocks;
        self.by_name.values().filter(is_block).count()
    }

    /// Returns all names and texts except the one of this name.
    pub(super) fn without<'t>(
        &'t self,
        name: &'t str,
    ) -> impl Iterator<Item = (&'t str, &'t str)> + 't {
        let texts = self.by_name.values();
        let texts = texts.map(|it| (it.name.as_str(), it.text.as_str()));
        let rollback = self.rollback.iter();
        let texts = texts.chain(rollback.map(|text| (rollback::NAME, text.as_str())));
        texts.filter(move |(other, _)| *other != name)
    }
}
