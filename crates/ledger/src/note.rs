//! A line of the trail: who changed what. Kept beside the books, and no part of any sum.

use std::sync::Arc;

use tollgate_core::Time;

use crate::entry::{EntryError, EntryId, MOST_NAME, MOST_RECORD, MOST_TEXT, check_text};

/// Something that somebody has changed. Never changed, never deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which note: the same one is kept once, however often it is written.
    pub id: EntryId,
    /// When it happened.
    pub at: Time,
    /// The deployment that it is of.
    pub namespace: Arc<str>,
    /// Who did it.
    pub who: Arc<str>,
    /// What was done, in words with dots between them: `override.set`.
    pub what: Arc<str>,
    /// All that is known of it. The ledger keeps this text and does not read it.
    pub text: Arc<str>,
}

impl Note {
    /// Whether it can be kept. The ledger asks before it takes a note.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check(&self) -> Result<(), EntryError> {
        check_text("namespace", &self.namespace, MOST_NAME)?;
        check_text("who", &self.who, MOST_TEXT)?;
        check_text("what", &self.what, MOST_NAME)?;
        check_text("text", &self.text, MOST_RECORD)
    }
}

/// Which notes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrailQuery {
    /// Of this deployment.
    pub namespace: Arc<str>,
    /// By this one only.
    pub who: Option<Arc<str>>,
    /// About this only, or all that begins with this and a dot.
    pub what: Option<Arc<str>>,
    /// Not before this.
    pub since: Time,
    /// This many at most; 0 for as many as one answer may have, [`MOST_ROWS`](crate::MOST_ROWS).
    pub most: usize,
}
