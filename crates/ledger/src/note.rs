//! Notes of administrative changes: who changed what. They are stored beside the entries and do not count
//! in any sum.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_core::Time;

use crate::entry::{EntryError, EntryId, MOST_NAME, MOST_RECORD, MOST_TEXT, check_text};
use crate::json::micros;

/// One change that a person or a program has made. Never changed, never deleted.
///
/// In the spill file its id is the field `note`, which no entry has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The id. Writing a note again under the same id changes nothing.
    #[serde(rename = "note")]
    pub id: EntryId,
    /// The time of the change.
    #[serde(with = "micros")]
    pub at: Time,
    /// The deployment.
    pub namespace: Arc<str>,
    /// The person or program that made the change.
    pub who: Arc<str>,
    /// The kind of change, as words with dots between them: `override.set`.
    pub what: Arc<str>,
    /// The details. The ledger stores this text and does not read it.
    pub text: Arc<str>,
}

impl Note {
    /// Checks that the note can be stored.
    ///
    /// # Errors
    /// If a text is too long or has a NUL character.
    pub fn check(&self) -> Result<(), EntryError> {
        check_text("namespace", &self.namespace, MOST_NAME)?;
        check_text("who", &self.who, MOST_TEXT)?;
        check_text("what", &self.what, MOST_NAME)?;
        check_text("text", &self.text, MOST_RECORD)
    }
}

/// Which notes to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrailQuery {
    /// The deployment.
    pub namespace: Arc<str>,
    /// Only changes by this person or program.
    pub who: Option<Arc<str>>,
    /// Only changes of this kind, or of kinds that start with it and a dot.
    pub what: Option<Arc<str>>,
    /// Only changes at this time or later.
    pub since: Time,
    /// At most this many; 0 for the maximum of one answer, [`MOST_ROWS`](crate::MOST_ROWS).
    pub most: usize,
}
