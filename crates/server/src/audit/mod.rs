//! The audit trail: who changed what, when, and why. A file of JSON lines that only grows.
//!
//! * [`Audit`] writes: one thread appends what it is handed through a bounded queue, so that nobody who
//!   decides requests waits for a disk.
//! * [`read`] finds entries again, the newest first, in bounded memory.
//!
//! With a ledger, the trail is there, too, as that of all instances which share it: see `kept`.
//!
//! No entry names a raw subject: hashes only. What a crash has torn off is skipped by readers, and the
//! next entry starts on a line of its own.

mod file;
mod kept;
mod read;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tollgate::{Clock, Decision, Engine, Span, SystemClock, Time};
use utoipa::ToSchema;

use self::kept::Kept;
pub use self::read::{Query, QueryError, Trail, read};

/// What an entry is about: another config was put in force.
pub const CONFIG_RELOAD: &str = "config.reload";
/// A config was refused, and the one before stayed.
pub const CONFIG_REFUSED: &str = "config.refused";
/// An override was set.
pub const OVERRIDE_SET: &str = "override.set";
/// An override was cleared.
pub const OVERRIDE_CLEAR: &str = "override.clear";
/// The time of an override was over.
pub const OVERRIDE_EXPIRED: &str = "override.expired";
/// What subjects have used was forgotten.
pub const RESET: &str = "reset";
/// Something was given back to subjects.
pub const REFUND: &str = "refund";
/// Somebody has set right what is used.
pub const LEDGER_CORRECTION: &str = "ledger.correction";
/// Somebody has given more to use.
pub const LEDGER_GRANT: &str = "ledger.grant";
/// Counters or the ledger were repaired.
pub const LEDGER_RECONCILE: &str = "ledger.reconcile";

/// The name of the file in its directory.
pub const FILE: &str = "audit.jsonl";

/// The longest reason that somebody may give, in bytes.
pub const MAX_WHY: usize = 500;

/// How many rules an entry names at most.
pub const MAX_NAMED: usize = 50;

/// How many entries wait to be written at most.
const QUEUE: usize = 1024;

/// How many look for entries at a time: each may read a lot of the file.
const READERS: usize = 2;

/// How much of the file one question reads at most.
const MOST_READ: u64 = 64 * 1024 * 1024;

/// How often trouble with the file is logged at most.
const LOG_EVERY: Span = Span::SECOND;

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AuditEntry)]
#[non_exhaustive]
pub struct Entry {
    /// When: RFC 3339, UTC, to the millisecond.
    #[schema(format = "date-time")]
    pub at: String,
    /// Who: the name of a token; `file`, `signal` or `clock` where nobody asked by name, `anonymous` where the
    /// door has no tokens.
    pub who: String,
    /// What: `config.reload`, `config.refused`, `override.set`, `override.clear`, `override.expired`,
    /// `reset`, `refund`, `ledger.correction`, `ledger.grant`, `ledger.reconcile`.
    pub what: String,
    /// What was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub from: Option<Value>,
    /// What is now, or would have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub to: Option<Value>,
    /// The reason that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub why: Option<String>,
    /// The rules that it concerns, at most 50 of them, and whose allowance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub rules: Vec<Concerned>,
}

/// A rule that an entry concerns, and whose allowance under it.
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
    /// `who` has done `what`. When is told by whoever writes it.
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
        }
    }

    /// What was before, and what is now.
    #[must_use]
    pub fn change(mut self, from: impl Into<Value>, to: impl Into<Value>) -> Entry {
        self.from = Some(from.into());
        self.to = Some(to.into());
        self
    }

    /// The reason, if one was given; its beginning, if it is too long.
    #[must_use]
    pub fn because(mut self, why: Option<&str>) -> Entry {
        self.why = why.map(|why| why[..why.floor_char_boundary(MAX_WHY)].to_owned());
        self
    }

    /// The rules and the hashed subjects of a decision.
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

/// Writes the trail, and finds entries in it. Cheap to clone.
#[derive(Clone)]
pub struct Audit(Option<Arc<Writer>>);

struct Writer {
    path: PathBuf,
    queue: mpsc::Sender<Letter>,
    trouble: Arc<Trouble>,
    readers: Semaphore,
    kept: Option<Arc<Kept>>,
}

/// An entry on its way, and who waits for it to be written. One without an entry is for those that wait
/// for what was handed over before.
struct Letter {
    entry: Option<Entry>,
    written: Option<oneshot::Sender<()>>,
}

/// What could not be written.
struct Trouble {
    clock: Arc<dyn Clock>,
    errors: AtomicU64,
    logged_at: AtomicU64,
}

impl Audit {
    /// A trail in `directory`, which is made when the first entry is written.
    ///
    /// # Errors
    /// If the system gives no thread to write it.
    pub fn start(directory: &Path) -> io::Result<Audit> {
        Audit::with_clock(directory, Arc::new(SystemClock::new()))
    }

    /// The same, and in the ledger of `engine`, if it has one.
    ///
    /// # Errors
    /// As above.
    pub fn of(directory: &Path, engine: &Engine) -> io::Result<Audit> {
        let kept = engine.accounts().map(|accounts| {
            let ledger = accounts.ledger().clone();
            Arc::new(Kept::new(ledger, &engine.live().config().namespace))
        });
        Audit::open(directory, Arc::new(SystemClock::new()), kept)
    }

    /// The same on another clock.
    ///
    /// # Errors
    /// As above.
    pub fn with_clock(directory: &Path, clock: Arc<dyn Clock>) -> io::Result<Audit> {
        Audit::open(directory, clock, None)
    }

    fn open(directory: &Path, clock: Arc<dyn Clock>, kept: Option<Arc<Kept>>) -> io::Result<Audit> {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let path = directory.join(FILE);
        let trouble = Arc::new(Trouble {
            clock,
            errors: AtomicU64::new(0),
            logged_at: AtomicU64::new(0),
        });
        let (file, met, ledger) = (path.clone(), Arc::clone(&trouble), kept.clone());
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(inbox, &file, &met, ledger.as_deref()))?;
        Ok(Audit(Some(Arc::new(Writer {
            path,
            queue,
            trouble,
            readers: Semaphore::new(READERS),
            kept,
        }))))
    }

    /// No trail: what is recorded is dropped. For programs that embed the doors and keep their own.
    #[must_use]
    pub fn nowhere() -> Audit {
        Audit(None)
    }

    /// Hands an entry over, and waits for nothing. If too many wait to be written, it is counted as an
    /// error and lost.
    pub fn record(&self, entry: Entry) {
        let Some(writer) = &self.0 else { return };
        let letter = Letter {
            entry: Some(entry),
            written: None,
        };
        if writer.queue.try_send(letter).is_err() {
            writer.trouble.meet(1, "too many entries wait");
        }
    }

    /// Hands an entry over, and waits until it is in the file, or cannot be: that is counted and logged.
    pub async fn write(&self, entry: Entry) {
        self.hand_over(Some(entry)).await;
    }

    /// Waits until all that was handed over is in the file, or cannot be. To be called before the process
    /// ends: what is recorded later may be lost.
    pub async fn close(&self) {
        self.hand_over(None).await;
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
            writer.trouble.meet(entries, "its thread has ended");
        }
        // An error says that it could not be written, which has been told where it happened.
        let _ = is_written.await;
    }

    /// The entries that `query` wants, the newest first: those of the file, and with a ledger those of all
    /// instances. If the ledger does not answer, there may be more.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub async fn find(&self, query: Query) -> io::Result<Trail> {
        let Some(writer) = &self.0 else {
            return Ok(Trail::default());
        };
        let path = writer.path.clone();
        // Closed never.
        let _place = writer.readers.acquire().await;
        let wanted = query.clone();
        let reading = tokio::task::spawn_blocking(move || read(&path, &wanted, MOST_READ));
        let mut file = reading.await.map_err(io::Error::other)??;
        let Some(kept) = &writer.kept else {
            return Ok(file);
        };
        match kept.find(&query).await {
            Ok(ledger) => Ok(kept::union(ledger, file, query.limit)),
            Err(error) => {
                tracing::warn!(target: "tollgate::audit", %error, "only the trail of this instance is found");
                file.is_cut = true;
                Ok(file)
            }
        }
    }

    /// How many entries are missing from the trail.
    #[must_use]
    pub fn errors(&self) -> u64 {
        let writer = self.0.as_ref();
        writer.map_or(0, |it| it.trouble.errors.load(Ordering::Relaxed))
    }
}

/// Writes what comes, until nobody can send any more.
fn write(mut inbox: mpsc::Receiver<Letter>, path: &Path, trouble: &Trouble, ledger: Option<&Kept>) {
    while let Some(first) = inbox.blocking_recv() {
        let (mut lines, mut waiting, mut count) = (Vec::new(), Vec::new(), 0);
        let mut next = Some(first);
        while let Some(Letter { entry, written }) = next {
            if let Some(mut entry) = entry {
                let now = trouble.clock.now();
                entry.at = instant(now);
                if let Some(ledger) = ledger {
                    ledger.note(&entry, now);
                }
                // Maps with texts for keys can always be written.
                if serde_json::to_writer(&mut lines, &entry).is_ok() {
                    lines.push(b'\n');
                }
                count += 1;
            }
            waiting.extend(written);
            next = inbox.try_recv().ok();
        }
        let appended = match count {
            0 => Ok(()),
            _ => file::append(path, &lines),
        };
        match appended {
            Ok(()) => {
                for waiting in waiting {
                    // Who does not wait any more need not be told.
                    let _ = waiting.send(());
                }
            }
            Err(error) => {
                let path = path.display();
                trouble.meet(count, &format!("cannot write {path}: {error}"));
            }
        }
    }
}

impl Trouble {
    /// Counts entries that are lost, and says so now and then.
    fn meet(&self, entries: u64, error: &str) {
        let lost = self.errors.fetch_add(entries, Ordering::Relaxed) + entries;
        let now = self.clock.now().as_micros();
        let last = self.logged_at.load(Ordering::Relaxed);
        let is_due = now.abs_diff(last) >= LOG_EVERY.as_micros();
        let order = Ordering::Relaxed;
        let claims = || self.logged_at.compare_exchange(last, now, order, order);
        if is_due && claims().is_ok() {
            tracing::error!(target: "tollgate::audit", error, lost, "entries of the audit trail are lost");
        }
    }
}

/// An instant as it is written: RFC 3339, UTC, to the millisecond.
#[must_use]
pub fn instant(time: Time) -> String {
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let instant = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    format!("{instant:.3}")
}

#[cfg(test)]
mod tests;
