//! The audit trail in the store, in addition to the file: the trail of all instances that share the store.
//!
//! Every entry goes to the store after it was written to the file. A task sends it, so that no change waits
//! for the store. While the store does not answer, a bounded number of entries waits. The list in the store
//! has a bound too: the oldest entries are removed. A query returns the union of both trails.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tollgate::StoreError;
use tollgate_redis::SharedLog;

use super::{Entry, Query, Trail};
use crate::outbound::Seldom;

/// The most entries in the store. The oldest ones are removed.
pub const MAX_STORED: usize = 10_000;

/// A longer entry is stored without the fields `from` and `to`.
const MAX_TEXT: usize = 8 * 1024;

/// The most entries that wait for the store.
const QUEUE: usize = 1024;

/// The most entries in one command.
const BATCH: usize = 64;

/// How many entries are read at a time.
const PAGE: usize = 500;

/// How long to wait after a failed attempt.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// How long the end of the process waits for the store.
const PATIENCE: Duration = Duration::from_secs(2);

/// The version of the stored form.
const FORM: u32 = 1;

/// An entry in the store.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The version of this form.
    v: u32,
    /// Identifies the entry. An entry may be sent twice, if the answer to the first attempt was lost.
    id: String,
    entry: Entry,
}

/// A text to send, or a caller that waits for all earlier texts.
enum Letter {
    Text(String),
    Flush(oneshot::Sender<()>),
}

pub(super) struct InStore {
    log: Arc<SharedLog>,
    queue: mpsc::Sender<Letter>,
    lost: Seldom,
}

impl InStore {
    /// Starts the task that sends entries. `None` outside a Tokio runtime.
    pub(super) fn start(log: SharedLog) -> Option<InStore> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (queue, inbox) = mpsc::channel(QUEUE);
        let log = Arc::new(log);
        runtime.spawn(send(Arc::clone(&log), inbox));
        Some(InStore {
            log,
            queue,
            lost: Seldom::default(),
        })
    }

    /// Passes an entry on to the store, without waiting. The entry is in the file already.
    pub(super) fn note(&self, entry: &Entry) {
        let Some(text) = text(entry) else { return };
        if self.queue.try_send(Letter::Text(text)).is_err()
            && let Some(more) = self.lost.due()
        {
            tracing::warn!(target: "tollgate::audit", more, "an entry of the audit trail is only in its file: too many entries wait for the store");
        }
    }

    /// Waits for a short time until all entries are in the store.
    pub(super) async fn close(&self) {
        let (done, is_done) = oneshot::channel();
        let flushing = async {
            if self.queue.send(Letter::Flush(done)).await.is_ok() {
                let _ = is_done.await;
            }
        };
        let _ = timeout(PATIENCE, flushing).await;
    }

    /// Returns the entries that `query` wants, the newest first.
    pub(super) async fn find(&self, query: &Query) -> Result<Trail, StoreError> {
        let (mut trail, mut seen, mut skipped) = (Trail::default(), HashSet::new(), 0);
        loop {
            let page = self.log.read(skipped, PAGE).await?;
            skipped += page.len();
            for text in &page {
                // An entry of a newer version may not be readable here.
                let Ok(record) = serde_json::from_str::<Record>(text) else {
                    continue;
                };
                if !seen.insert(record.id) || !query.wants(&record.entry) {
                    continue;
                }
                if trail.entries.len() == query.limit {
                    trail.is_cut = true;
                    return Ok(trail);
                }
                trail.entries.push(record.entry);
            }
            if page.len() < PAGE {
                return Ok(trail);
            }
        }
    }
}

/// Sends entries until every sender is gone.
async fn send(log: Arc<SharedLog>, mut inbox: mpsc::Receiver<Letter>) {
    let (failures, mut texts) = (Seldom::default(), Vec::new());
    while let Some(first) = inbox.recv().await {
        let mut next = Some(first);
        let mut waiting = None;
        while let Some(letter) = next {
            match letter {
                Letter::Text(text) => texts.push(text),
                Letter::Flush(done) => waiting = Some(done),
            }
            let is_full = texts.len() == BATCH || waiting.is_some();
            next = if is_full { None } else { inbox.try_recv().ok() };
        }
        while !texts.is_empty() {
            match log.append(&texts, MAX_STORED).await {
                Ok(()) => texts.clear(),
                Err(error) => {
                    if failures.due().is_some() {
                        tracing::warn!(target: "tollgate::audit", %error, "the store does not take entries of the audit trail; they are in the file, and wait");
                    }
                    sleep(RETRY_AFTER).await;
                }
            }
        }
        if let Some(done) = waiting {
            // A caller that stopped waiting needs no answer.
            let _ = done.send(());
        }
    }
}

/// Returns the text of an entry for the store. If the text would be too long, it lacks the fields `from` and
/// `to`.
fn text(entry: &Entry) -> Option<String> {
    let record = |entry: Entry| Record {
        v: FORM,
        id: format!("{:032x}", fastrand::u128(..)),
        entry,
    };
    let text = serde_json::to_string(&record(entry.clone())).ok()?;
    if text.len() <= MAX_TEXT {
        return Some(text);
    }
    let short = Entry {
        from: None,
        to: None,
        ..entry.clone()
    };
    serde_json::to_string(&record(short)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_entry_is_stored_without_details() {
        let long = Entry::new("config.reload", "ops").change("a", "x".repeat(MAX_TEXT));
        let stored: Record = serde_json::from_str(&text(&long).unwrap()).unwrap();
        assert_eq!((&stored.entry.from, &stored.entry.to), (&None, &None));
        assert_eq!(stored.v, FORM);
    }

    #[test]
    fn a_record_without_new_fields_is_read() {
        let old = r#"{"v":1,"id":"a","entry":{"at":"2026-01-01T00:00:00.000Z","who":"ops","what":"reset"}}"#;
        let record: Record = serde_json::from_str(old).unwrap();
        assert_eq!(record.entry.what, "reset");
    }
}
