//! What is known of the overrides: their texts, and what was read from them, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::Override;

use crate::keeper::Refused;

/// An override as it is kept.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Known {
    /// What it is kept as, and cleared by.
    pub name: String,
    /// The text that is kept.
    pub text: String,
    /// What it says, or why it cannot be read. Then it has no effect.
    pub read: Result<Arc<Override>, Arc<str>>,
}

impl Known {
    /// Reads a text that was kept as `name`.
    fn read(name: String, text: String, now: u64) -> Known {
        let read = match Override::parse(&text, now) {
            Ok(it) if it.name() == name => Ok(Arc::new(it)),
            // Else it could take the place of another, and not be cleared by its own name.
            Ok(it) => Err(format!("it is kept as another than `{}`", it.name()).into()),
            Err(error) => Err(Refused::from(&error).first().into()),
        };
        if let Err(why) = &read {
            tracing::warn!(target: "tollgate::admin", name, %why, "an override cannot be read, and has no effect");
        }
        Known { name, text, read }
    }

    /// Whether its time is over.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.read.as_ref().is_ok_and(|it| it.is_over(now))
    }
}

/// What is known of all of them.
#[derive(Default)]
pub(super) struct Kept {
    /// The edition of the shelf that was read last.
    pub(super) edition: u64,
    /// Whether they are to be read anew, whatever the edition, if not.
    pub(super) read: bool,
    /// Whether that failed the last time.
    pub(super) failed: bool,
    /// By name.
    pub(super) known: BTreeMap<String, Arc<Known>>,
}

impl Kept {
    /// Takes over what is kept. Texts that were known before are not read again.
    pub(super) fn take(&mut self, texts: impl IntoIterator<Item = (String, String)>, now: u64) {
        let mut before = std::mem::take(&mut self.known);
        for (name, text) in texts {
            let known = match before.remove(&name) {
                Some(known) if known.text == text => known,
                _ => Arc::new(Known::read(name.clone(), text, now)),
            };
            self.known.insert(name, known);
        }
        self.read = true;
    }

    /// The texts by name, and `other` in the place of the one of its name.
    pub(super) fn with<'t>(
        &'t self,
        other: &'t Known,
    ) -> impl Iterator<Item = (&'t str, &'t str)> + 't {
        let own = self.without(&other.name);
        own.chain([(other.name.as_str(), other.text.as_str())])
    }

    /// The texts by name, but for the one of this name.
    pub(super) fn without<'t>(
        &'t self,
        name: &'t str,
    ) -> impl Iterator<Item = (&'t str, &'t str)> + 't {
        let texts = self.known.values();
        let texts = texts.map(|it| (it.name.as_str(), it.text.as_str()));
        texts.filter(move |(other, _)| *other != name)
    }
}
