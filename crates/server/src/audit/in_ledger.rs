//! The audit trail in the ledger, in addition to the file: the trail of all instances that share
//! the ledger.
//!
//! Every entry goes to the ledger when it is written to the file. After the flush interval, the
//! entry is in the ledger or in its spill file. A query returns the union of both trails. The file
//! has entries from before there was a ledger. The ledger has the entries of other instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Time;
use tollgate_ledger::{EntryId, Ledger, LedgerError, MOST_RECORD, Note, TrailQuery};

use super::{Entry, Query, Trail};

pub(super) struct InLedger {
    ledger: Ledger,
    namespace: Arc<str>,
    /// A number that distinguishes the entries of this process from those of other processes.
    instance: u64,
    written: AtomicU64,
}

impl InLedger {
    pub(super) fn new(ledger: Ledger, namespace: &str) -> InLedger {
        InLedger {
            ledger,
            namespace: namespace.into(),
            instance: fastrand::u64(..),
            written: AtomicU64::new(0),
        }
    }

    /// Passes an entry on to the ledger. If that fails, the entry is still in the file.
    pub(super) fn note(&self, entry: &Entry, at: Time) {
        let Some(text) = text(entry) else { return };
        let note = Note {
            id: self.id(&text),
            at,
            namespace: Arc::clone(&self.namespace),
            who: entry.who.as_str().into(),
            what: entry.what.as_str().into(),
            text: text.into(),
        };
        if let Err(error) = self.ledger.audit(note) {
            tracing::warn!(target: "tollgate::audit", %error, "an entry of the audit trail is only in its file, not in the ledger");
        }
    }

    /// Makes a unique id.
    fn id(&self, text: &str) -> EntryId {
        let mut hasher = blake3::Hasher::new_derive_key("tollgate audit id v1");
        let place = self.written.fetch_add(1, Ordering::Relaxed);
        for number in [self.instance, std::process::id().into(), place] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(text.as_bytes());
        let mut half = [0; 16];
        half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        EntryId(u128::from_le_bytes(half))
    }

    /// Returns the entries that `query` wants, the newest first.
    pub(super) async fn find(&self, query: &Query) -> Result<Trail, LedgerError> {
        let asked = TrailQuery {
            namespace: Arc::clone(&self.namespace),
            who: query.who.as_deref().map(Into::into),
            what: query.what.as_deref().map(Into::into),
            since: query.since.unwrap_or_default(),
            // One entry more than the limit shows whether there are further entries.
            most: query.limit + 1,
        };
        let notes = self.ledger.trail(&asked).await?;
        let is_cut = notes.len() > query.limit;
        let entries = notes.iter().take(query.limit);
        // An entry of a newer version may not be readable here.
        let entries = entries.filter_map(|note| serde_json::from_str(&note.text).ok());
        Ok(Trail {
            entries: entries.collect(),
            is_cut,
        })
    }
}

/// Returns the text of an entry for the ledger. If the text would be too long, it lacks the fields
/// `from` and `to`.
fn text(entry: &Entry) -> Option<String> {
    let text = serde_json::to_string(entry).ok()?;
    if text.len() <= MOST_RECORD {
        return Some(text);
    }
    let short = Entry {
        from: None,
        to: None,
        ..entry.clone()
    };
    serde_json::to_string(&short).ok()
}

/// Returns the entries of both trails, the newest first. An entry that is in both trails is returned
/// once. `shared` is the trail in the ledger or in the store, `file` that of this instance.
pub(super) fn union(shared: Trail, file: Trail, limit: usize) -> Trail {
    let mut both = shared.entries;
    let mut unmatched: Vec<bool> = vec![true; both.len()];
    let mut others = Vec::new();
    for entry in file.entries {
        // A shared entry matches one file entry only: two equal changes at one instant are two
        // entries in both trails.
        let same = both
            .iter()
            .zip(&mut unmatched)
            .find(|(it, is_unmatched)| **is_unmatched && is_same(it, &entry));
        match same {
            Some((_, is_unmatched)) => *is_unmatched = false,
            None => others.push(entry),
        }
    }
    both.extend(others);
    // Times in this form sort as text. Entries of one instant keep their order.
    both.sort_by(|one, other| other.at.cmp(&one.at));
    let is_cut = shared.is_cut || file.is_cut || both.len() > limit;
    both.truncate(limit);
    Trail {
        entries: both,
        is_cut,
    }
}

/// Returns whether both entries are about the same change. The entry in the ledger may lack the fields
/// `from` and `to`.
fn is_same(stored: &Entry, entry: &Entry) -> bool {
    let is_shortened = stored.from.is_none() && stored.to.is_none();
    stored.at == entry.at
        && (stored == entry
            || is_shortened
                && (&stored.who, &stored.what, &stored.why)
                    == (&entry.who, &entry.what, &entry.why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn trail(entries: &[(&str, &str)]) -> Trail {
        let entry = |(at, what): &(&str, &str)| Entry {
            at: format!("2026-07-01T00:00:0{at}.000Z"),
            ..Entry::new(what, "ops")
        };
        Trail {
            entries: entries.iter().map(entry).collect(),
            is_cut: false,
        }
    }

    #[test]
    fn ledger_and_file_are_merged() {
        let ledger = trail(&[
            ("5", "theirs"),
            ("4", "twice"),
            ("4", "twice"),
            ("2", "both"),
        ]);
        let file = trail(&[
            ("4", "twice"),
            ("4", "twice"),
            ("3", "file"),
            ("2", "both"),
            ("1", "old"),
        ]);
        let found = union(ledger.clone(), file.clone(), 10);
        let whats: Vec<&str> = found.entries.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(whats, ["theirs", "twice", "twice", "file", "both", "old"]);
        assert!(!found.is_cut);
        let found = union(ledger, file, 2);
        assert_eq!((found.entries.len(), found.is_cut), (2, true));
    }

    #[test]
    fn long_entry_is_stored_without_details() {
        let long = Entry::new("config.reload", "ops").change("a", "x".repeat(MOST_RECORD));
        let stored: Entry = serde_json::from_str(&text(&long).unwrap()).unwrap();
        assert_eq!((&stored.from, &stored.to), (&None, &None));
        assert!(is_same(&stored, &long));
        let short = Entry::new("reset", "ops").change(json!({ "a": 1 }), json!({ "a": 2 }));
        let stored: Entry = serde_json::from_str(&text(&short).unwrap()).unwrap();
        assert_eq!(stored, short);
    }
}
