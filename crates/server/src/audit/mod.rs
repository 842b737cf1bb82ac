//! The audit trail: who changed what, when, and why. A file of JSON lines that only grows.
//!
//! * [`Audit`] writes: one thread appends the entries of a bounded queue, so that no request waits
//!   for a disk.
//! * [`read`] finds entries again, the newest first, in bounded memory.
//!
//! With Redis, the trail of all instances that share it is in the store too: see `in_store`. With a ledger,
//! it is in the ledger too: see `in_ledger`.
//!
//! No entry has a raw subject, only hashes. Readers skip a line that a crash has cut short, and the
//! next entry starts on its own line.

mod in_ledger;
mod in_store;
mod read;

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tollgate::{Clock, Decision, Engine, SystemClock, Time};
use tollgate_ledger::private_file;
use utoipa::ToSchema;

use self::in_ledger::InLedger;
use self::in_store::InStore;
pub use self::in_store::MAX_STORED;
pub use self::read::{Query, QueryError, Trail, read};
pub(crate) use self::read::{ago, shown, time};
use crate::outbound::Seldom;

/// A new config was put in force.
pub const CONFIG_RELOAD: &str = "config.reload";
/// A config was rejected, and the previous one stayed in force.
pub const CONFIG_REFUSED: &str = "config.refused";
/// An override was set.
pub const OVERRIDE_SET: &str = "override.set";
/// An override was cleared.
pub const OVERRIDE_CLEAR: &str = "override.clear";
/// An override expired.
pub const OVERRIDE_EXPIRED: &str = "override.expired";
/// A subject was blocked.
pub const BLOCK_SET: &str = "block.set";
/// The block of a subject was removed.
pub const BLOCK_CLEAR: &str = "block.clear";
/// The block of a subject expired.
pub const BLOCK_EXPIRED: &str = "block.expired";
/// An older version of the config was put in force.
pub const CONFIG_ROLLBACK: &str = "config.rollback";
/// A rollback has ended: the config file counts again.
pub const CONFIG_ROLLBACK_ENDED: &str = "config.rollback.ended";
/// The usage of subjects was reset.
pub const RESET: &str = "reset";
/// Units were given back to subjects.
pub const REFUND: &str = "refund";
/// Recorded usage was corrected.
pub const LEDGER_CORRECTION: &str = "ledger.correction";
/// More units were granted.
pub const LEDGER_GRANT: &str = "ledger.grant";
/// Counters or the ledger were repaired.
pub const LEDGER_RECONCILE: &str = "ledger.reconcile";

/// The name of the file in its directory.
pub const FILE: &str = "audit.jsonl";

/// The longest reason, in bytes.
pub const MAX_WHY: usize = 500;

/// The most rules that an entry names.
pub const MAX_NAMED: usize = 50;

/// The most entries that wait to be written.
const QUEUE: usize = 1024;

/// The most concurrent queries, because each may read much of the file.
const READERS: usize = 2;

/// How much of the file a query reads at most.
const MOST_READ: u64 = 64 * 1024 * 1024;

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AuditEntry)]
#[non_exhaustive]
pub struct Entry {
    /// The time, as in RFC 3339, in UTC, to the millisecond.
    #[schema(format = "date-time")]
    pub at: String,
    /// The author: the name of a token, or `file`, `signal` or `clock` if no person asked, or
    /// `anonymous` if the door has no tokens.
    pub who: String,
    /// The change: `config.reload`, `config.refused`, `config.rollback`, `config.rollback.ended`,
    /// `override.set`, `override.clear`, `override.expired`, `block.set`, `block.clear`, `block.expired`,
    /// `reset`, `refund`, `ledger.correction`, `ledger.grant`, `ledger.reconcile`.
    pub what: String,
    /// The value before the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub from: Option<Value>,
    /// The value after the change, or the rejected value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub to: Option<Value>,
    /// The given reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub why: Option<String>,
    /// The affected rules and subjects, at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub rules: Vec<Concerned>,
    /// The version of the form of entries: 1.
    #[serde(default = "first_form")]
    pub v: u32,
}

/// Entries from before there were versions have the first form.
fn first_form() -> u32 {
    1
}

/// A rule and a subject that an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Concerned {
    /// The rule's id.
    pub rule: String,
    /// The hashed subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub subject: Option<String>,
}

impl Entry {
    /// Makes an entry about `what`, done by `who`. The time is set when the entry is written.
    #[must_use]
    pub fn new(what: &str, who: &str) -> Entry {
        Entry {
            at: String::new(),
            who: who.to_owned(),
            what: what.to_owned(),
            from: None,
            to: None,
            why: None,
            rules: Vec::new(),
            v: first_form(),
        }
    }

    /// Sets the values before and after.
    #[must_use]
    pub fn change(mut self, from: impl Into<Value>, to: impl Into<Value>) -> Entry {
        self.from = Some(from.into());
        self.to = Some(to.into());
        self
    }

    /// Sets the reason, if one was given, cut to the longest length.
    #[must_use]
    pub fn because(mut self, why: Option<&str>) -> Entry {
        self.why = why.map(|why| why[..why.floor_char_boundary(MAX_WHY)].to_owned());
        self
    }

    /// Adds the rules and the hashed subjects of a decision.
    #[must_use]
    pub fn about(mut self, decision: &Decision) -> Entry {
        let rules = decision.rules().take(MAX_NAMED).map(|rule| Concerned {
            rule: rule.rule().id().to_owned(),
            subject: rule.subject().map(|subject| subject.to_string()),
        });
        self.rules = rules.collect();
        self
    }
}

/// Writes the audit trail, and finds entries in it. Cheap to clone.
#[derive(Clone)]
pub struct Audit(Option<Arc<Writer>>);

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").finish_non_exhaustive()
    }
}

struct Writer {
    path: PathBuf,
    queue: mpsc::Sender<Letter>,
    lost: Arc<Lost>,
    readers: Semaphore,
    copies: Copies,
}

/// Where entries go in addition to the file.
#[derive(Clone, Default)]
struct Copies {
    store: Option<Arc<InStore>>,
    ledger: Option<Arc<InLedger>>,
}

/// An entry to write, and the caller that waits for it. Without an entry, the caller waits for all
/// earlier entries.
struct Letter {
    entry: Option<Entry>,
    written: Option<oneshot::Sender<()>>,
}

/// How many entries were lost.
#[derive(Default)]
struct Lost {
    entries: AtomicU64,
    log: Seldom,
}

impl Lost {
    /// Counts lost entries, and logs them from time to time.
    fn add(&self, entries: u64, error: &str) {
        let lost = self.entries.fetch_add(entries, Ordering::Relaxed) + entries;
        if self.log.due().is_some() {
            tracing::error!(target: "tollgate::audit", error, lost, "entries of the audit trail were lost");
        }
    }
}

impl Audit {
    /// Keeps an audit trail in `directory`, which is created with the first entry.
    ///
    /// # Errors
    /// If the system cannot start the writing thread.
    pub fn start(directory: &Path) -> io::Result<Audit> {
        Audit::open(directory, Arc::new(SystemClock::new()), Copies::default())
    }

    /// Keeps an audit trail in `directory`, and also in the Redis and in the ledger of `engine`, if the engine
    /// has them.
    ///
    /// # Errors
    /// If the system cannot start the writing thread.
    pub fn of(directory: &Path, engine: &Engine) -> io::Result<Audit> {
        let ledger = engine.accounts().map(|accounts| {
            let ledger = accounts.ledger().clone();
            Arc::new(InLedger::new(ledger, &engine.active().config().namespace))
        });
        let store = engine.shared_log().and_then(InStore::start).map(Arc::new);
        let copies = Copies { store, ledger };
        Audit::open(directory, Arc::new(SystemClock::new()), copies)
    }

    fn open(directory: &Path, clock: Arc<dyn Clock>, copies: Copies) -> io::Result<Audit> {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let path = directory.join(FILE);
        let lost: Arc<Lost> = Arc::default();
        let (file, counts, further) = (path.clone(), Arc::clone(&lost), copies.clone());
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(inbox, &file, &*clock, &counts, &further))?;
        Ok(Audit(Some(Arc::new(Writer {
            path,
            queue,
            lost,
            readers: Semaphore::new(READERS),
            copies,
        }))))
    }

    /// Drops every entry. For programs that embed the doors and keep their own trail.
    #[must_use]
    pub fn nowhere() -> Audit {
        Audit(None)
    }

    /// Queues an entry without waiting. If the queue is full, the entry is lost and counted as an
    /// error.
    pub fn record(&self, entry: Entry) {
        let Some(writer) = &self.0 else { return };
        let letter = Letter {
            entry: Some(entry),
            written: None,
        };
        if writer.queue.try_send(letter).is_err() {
            writer.lost.add(1, "too many entries wait to be written");
        }
    }

    /// Queues an entry, and waits until it is in the file. A failure is counted and logged.
    pub async fn write(&self, entry: Entry) {
        self.hand_over(Some(entry)).await;
    }

    /// Waits until all queued entries are in the file. Call it before the process ends: later
    /// entries may be lost.
    pub async fn close(&self) {
        self.hand_over(None).await;
        if let Some(store) = self.0.as_ref().and_then(|it| it.copies.store.as_ref()) {
            store.close().await;
        }
    }

    async fn hand_over(&self, entry: Option<Entry>) {
        let Some(writer) = &self.0 else { return };
        let (written, is_written) = oneshot::channel();
        let entries = u64::from(entry.is_some());
        let letter = Letter {
            entry,
            written: Some(written),
        };
        if writer.queue.send(letter).await.is_err() {
            writer.lost.add(entries, "the writing thread has ended");
        }
        // An error means that entries could not be written. They are counted as lost already.
        let _ = is_written.await;
    }

    /// Returns the entries that `query` wants, the newest first. They come from the file and, with Redis or a
    /// ledger, also from the other instances. If these do not answer, entries of other instances may be
    /// missing.
    ///
    /// # Errors
    /// If the file exists but cannot be read.
    pub async fn find(&self, query: Query) -> io::Result<Trail> {
        let Some(writer) = &self.0 else {
            return Ok(Trail::default());
        };
        let path = writer.path.clone();
        // The semaphore is never closed.
        let _place = writer.readers.acquire().await;
        let wanted = query.clone();
        let reading = tokio::task::spawn_blocking(move || read(&path, &wanted, MOST_READ));
        let mut file = reading.await.map_err(io::Error::other)??;
        if let Some(store) = &writer.copies.store {
            match store.find(&query).await {
                Ok(found) => file = in_ledger::union(found, file, query.limit),
                Err(error) => {
                    tracing::warn!(target: "tollgate::audit", %error, "the store does not answer; entries of other instances may be missing");
                    file.is_cut = true;
                }
            }
        }
        let Some(ledger) = &writer.copies.ledger else {
            return Ok(file);
        };
        match ledger.find(&query).await {
            Ok(found) => Ok(in_ledger::union(found, file, query.limit)),
            Err(error) => {
                tracing::warn!(target: "tollgate::audit", %error, "the ledger does not answer; entries of other instances may be missing");
                file.is_cut = true;
                Ok(file)
            }
        }
    }

    /// Returns how many entries are missing from the trail.
    #[must_use]
    pub fn errors(&self) -> u64 {
        let writer = self.0.as_ref();
        writer.map_or(0, |it| it.lost.entries.load(Ordering::Relaxed))
    }
}

/// Writes entries until every sender is gone.
fn write(
    mut inbox: mpsc::Receiver<Letter>,
    path: &Path,
    clock: &dyn Clock,
    lost: &Lost,
    copies: &Copies,
) {
    while let Some(first) = inbox.blocking_recv() {
        let (mut lines, mut waiting, mut count) = (Vec::new(), Vec::new(), 0);
        let mut next = Some(first);
        while let Some(Letter { entry, written }) = next {
            if let Some(mut entry) = entry {
                let now = clock.now();
                entry.at = instant(now);
                if let Some(ledger) = &copies.ledger {
                    ledger.note(&entry, now);
                }
                if let Some(store) = &copies.store {
                    store.note(&entry);
                }
                // An entry always becomes JSON: all keys of its maps are strings.
                if serde_json::to_writer(&mut lines, &entry).is_ok() {
                    lines.push(b'\n');
                }
                count += 1;
            }
            waiting.extend(written);
            next = inbox.try_recv().ok();
        }
        if count > 0
            && let Err(error) = append(path, &lines)
        {
            let path = path.display();
            lost.add(count, &format!("cannot write {path}: {error}"));
            continue;
        }
        for waiting in waiting {
            // A caller that stopped waiting needs no answer.
            let _ = waiting.send(());
        }
    }
}

/// Appends `lines`, each with its line end, in one write. The file is opened for each write, so
/// that entries go to a new file after the old one was moved away.
fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let mut file = match (private_file::open(&mut options, path), path.parent()) {
        (Err(error), Some(directory)) if error.kind() == io::ErrorKind::NotFound => {
            private_file::create_directory(directory)?;
            private_file::open(&mut options, path)?
        }
        (opened, _) => opened?,
    };
    let mut last = *b"\n";
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != *b"\n" {
        // A crash has cut the last line short: that line stays in the file, as a line of its own.
        return file.write_all(&[b"\n", lines].concat());
    }
    file.write_all(lines)
}

/// Formats a time as in RFC 3339, in UTC, to the millisecond.
#[must_use]
pub fn instant(time: Time) -> String {
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let instant = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    format!("{instant:.3}")
}

#[cfg(test)]
mod tests;
