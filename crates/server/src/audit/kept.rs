//! The trail in the ledger, beside the file: that of all instances that share it.
//!
//! Every entry is handed to the ledger as it is written to the file. The ledger has it within its flush
//! interval, or in its spill file. What is found is the union of both: the file has what the ledger does
//! not know of, as from before there was one, and the ledger what others did.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Time;
use tollgate_ledger::{EntryId, Ledger, LedgerError, MOST_RECORD, Note, TrailQuery};

use super::{Entry, Query, Trail};

pub(super) struct Kept {
    ledger: Ledger,
    namespace: Arc<str>,
    /// Tells notes of this process from those of others.
    instance: u64,
    written: AtomicU64,
}

impl Kept {
    pub(super) fn new(ledger: Ledger, namespace: &str) -> Kept {
        Kept {
            ledger,
            namespace: namespace.into(),
            instance: fastrand::u64(..),
            written: AtomicU64::new(0),
        }
    }

    /// Hands an entry over. It is in the file, whatever becomes of it here.
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
            tracing::warn!(target: "tollgate::audit", %error, "an entry of the audit trail is in its file alone");
        }
    }

    /// An id that no other note has.
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

    /// The entries that `query` wants, the newest first.
    pub(super) async fn find(&self, query: &Query) -> Result<Trail, LedgerError> {
        let asked = TrailQuery {
            namespace: Arc::clone(&self.namespace),
            who: query.who.as_deref().map(Into::into),
            what: query.what.as_deref().map(Into::into),
            since: query.since.unwrap_or_default(),
            // One more tells whether there are more.
            most: query.limit + 1,
        };
        let notes = self.ledger.trail(&asked).await?;
        let is_cut = notes.len() > query.limit;
        let entries = notes.iter().take(query.limit);
        // One of a later program may say what this one cannot read.
        let entries = entries.filter_map(|note| serde_json::from_str(&note.text).ok());
        Ok(Trail {
            entries: entries.collect(),
            is_cut,
        })
    }
}

/// An entry as the ledger keeps it; of one that is too long, without what was before and what is now.
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

/// What is in one or the other, the newest first, once.
pub(super) fn union(ledger: Trail, file: Trail, limit: usize) -> Trail {
    let mut both = ledger.entries;
    let mut unmatched: Vec<bool> = vec![true; both.len()];
    let mut others = Vec::new();
    for entry in file.entries {
        // What was done twice at one instant is there twice in both.
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
    // Times as they are written are in the order of their letters. Those of one instant stay as they are.
    both.sort_by(|one, other| other.at.cmp(&one.at));
    let is_cut = ledger.is_cut || file.is_cut || both.len() > limit;
    both.truncate(limit);
    Trail {
        entries: both,
        is_cut,
    }
}

/// Whether both are about the same change. The ledger may have less of one that is long.
fn is_same(kept: &Entry, entry: &Entry) -> bool {
    let is_shortened = kept.from.is_none() && kept.to.is_none();
    kept.at == entry.at
        && (kept == entry
            || is_shortened
                && (&kept.who, &kept.what, &kept.why) == (&entry.who, &entry.what, &entry.why))
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
    fn both_are_one_trail() {
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
    fn a_long_entry_is_kept_without_its_details() {
        let long = Entry::new("config.reload", "ops").change("a", "x".repeat(MOST_RECORD));
        let kept: Entry = serde_json::from_str(&text(&long).unwrap()).unwrap();
        assert_eq!((&kept.from, &kept.to), (&None, &None));
        assert!(is_same(&kept, &long));
        let short = Entry::new("reset", "ops").change(json!({ "a": 1 }), json!({ "a": 2 }));
        let kept: Entry = serde_json::from_str(&text(&short).unwrap()).unwrap();
        assert_eq!(kept, short);
    }
}
