//! Finds entries: from the end of the file to its beginning, a block at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate::{Span, Time};
use tollgate_ledger::private_file;
use utoipa::ToSchema;

use super::Entry;

/// How much is read at a time.
const BLOCK: usize = 64 * 1024;

/// Longer lines are not entries, and are skipped.
const MAX_LINE: usize = 64 * 1024;

/// How many entries are returned: the default and the maximum.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// Entries may be out of order by this much, because clocks are adjusted and several instances may
/// write.
const DISORDER: Span = Span::MINUTE;

/// A query for entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The most entries: 100 unless given.
    pub limit: usize,
    /// Only entries of this kind: `reset`, or a prefix such as `config`.
    pub what: Option<String>,
    /// Only entries of this author.
    pub who: Option<String>,
    /// Only entries since this time.
    pub since: Option<Time>,
}

impl Default for Query {
    fn default() -> Query {
        Query {
            limit: DEFAULT_LIMIT,
            what: None,
            who: None,
            since: None,
        }
    }
}

/// Entries of the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AuditBody)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Trail {
    /// The entries, the newest first.
    pub entries: Vec<Entry>,
    /// Whether there may be more entries, further back.
    pub is_cut: bool,
}

/// Why a query is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// `limit` is out of range.
    #[error("limit must be a number from 1 to {MAX_LIMIT}, not {0:?}")]
    Limit(String),
    /// `since` is not a time.
    #[error(
        "since {0:?} is not a time: write one such as 2026-01-31T12:00:00Z, or how long ago, such as 90s, 15m, 1h or 7d"
    )]
    Since(String),
    /// There is no such parameter.
    #[error("unknown parameter {0:?}; use limit, what, who and since")]
    Unknown(String),
}

impl Query {
    /// Sets the parameter `name` from `text`, at `now`. An empty text counts as not given.
    ///
    /// # Errors
    /// If there is no such parameter, or the text is not a valid value.
    pub fn set(&mut self, name: &str, text: &str, now: Time) -> Result<(), QueryError> {
        let given = (!text.is_empty()).then_some(text);
        match name {
            "limit" => {
                let limit = given.map_or(Ok(DEFAULT_LIMIT), usize::from_str);
                let limit = limit.ok().filter(|it| (1..=MAX_LIMIT).contains(it));
                self.limit = limit.ok_or_else(|| QueryError::Limit(shown(text)))?;
            }
            "what" => self.what = given.map(str::to_owned),
            "who" => self.who = given.map(str::to_owned),
            "since" => {
                let since = given.map(|text| {
                    let since = ago(text, now).or_else(|| time(text));
                    since.ok_or_else(|| QueryError::Since(shown(text)))
                });
                self.since = since.transpose()?;
            }
            _ => return Err(QueryError::Unknown(shown(name))),
        }
        Ok(())
    }

    pub(super) fn wants(&self, entry: &Entry) -> bool {
        let is_about = |what: &String| {
            let rest = entry.what.strip_prefix(what.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let is_new = |since| time(&entry.at).is_some_and(|at| at >= since);
        self.what.as_ref().is_none_or(is_about)
            && self.who.as_ref().is_none_or(|who| *who == entry.who)
            && self.since.is_none_or(is_new)
    }

    /// Returns whether all entries before `entry` are older than the query wants.
    fn ends_at(&self, entry: &Entry) -> bool {
        let since = self.since.zip(time(&entry.at));
        since.is_some_and(|(since, at)| at + DISORDER < since)
    }
}

/// Returns the first 80 characters of a text.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Parses a text such as `15m` as the time that long before `now`.
pub(crate) fn ago(text: &str, now: Time) -> Option<Time> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_number.then(|| number.parse().ok())??;
    let micros = number.checked_mul(seconds)?.checked_mul(1_000_000)?;
    Some(Time::from_micros(now.as_micros().saturating_sub(micros)))
}

/// Parses a time as in RFC 3339.
pub(crate) fn time(text: &str) -> Option<Time> {
    let instant = jiff::Timestamp::from_str(text).ok()?;
    let micros = u64::try_from(instant.as_microsecond()).ok()?;
    Some(Time::from_micros(micros))
}

/// Returns the entries of the file at `path` that `query` wants, the newest first. Reads at most
/// `most` bytes. A missing file has no entries.
///
/// # Errors
/// If the file exists but cannot be read.
pub fn read(path: &Path, query: &Query, most: u64) -> io::Result<Trail> {
    let file = match private_file::open(OpenOptions::new().read(true), path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Trail::default()),
        file => file?,
    };
    let mut trail = Trail::default();
    let mut lines = Backwards::new(file, most)?;
    while trail.entries.len() < query.limit {
        let Some(line) = lines.next_line()? else {
            trail.is_cut = lines.is_cut();
            return Ok(trail);
        };
        // A line that is not an entry was cut short by a crash, or written by another program.
        let Ok(entry) = serde_json::from_slice::<Entry>(&line) else {
            continue;
        };
        if query.ends_at(&entry) {
            return Ok(trail);
        }
        if query.wants(&entry) {
            trail.entries.push(entry);
        }
    }
    trail.is_cut = true;
    Ok(trail)
}

/// The lines of a file, the last first.
struct Backwards {
    file: File,
    /// Where the part that was read begins.
    start: u64,
    /// Reading stops at this position.
    end: u64,
    /// The part that was read and not yet returned.
    rest: Vec<u8>,
    /// Whether the end of `rest` belongs to a line that is too long.
    is_long: bool,
    is_done: bool,
}

impl Backwards {
    fn new(mut file: File, most: u64) -> io::Result<Backwards> {
        let start = file.seek(SeekFrom::End(0))?;
        Ok(Backwards {
            file,
            start,
            end: start.saturating_sub(most),
            rest: Vec::new(),
            is_long: false,
            is_done: false,
        })
    }

    /// Returns whether the search stopped before the beginning of the file.
    fn is_cut(&self) -> bool {
        self.is_done && self.start > 0
    }

    fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(newline) = self.rest.iter().rposition(|byte| *byte == b'\n') {
                let line = self.rest.split_off(newline + 1);
                self.rest.pop();
                if !std::mem::take(&mut self.is_long) && !line.is_empty() {
                    return Ok(Some(line));
                }
            } else if self.start > self.end {
                if self.rest.len() > MAX_LINE {
                    self.rest.clear();
                    self.is_long = true;
                }
                self.read_block()?;
            } else if self.is_done {
                return Ok(None);
            } else {
                self.is_done = true;
                let line = std::mem::take(&mut self.rest);
                // At the start of the file this is a complete line. Elsewhere it is a part of a line.
                if !self.is_long && self.start == 0 && !line.is_empty() {
                    return Ok(Some(line));
                }
            }
        }
    }

    fn read_block(&mut self) -> io::Result<()> {
        let size = (self.start - self.end).min(BLOCK as u64);
        self.start -= size;
        self.file.seek(SeekFrom::Start(self.start))?;
        let mut block = Vec::with_capacity(BLOCK + self.rest.len());
        // Reads at most the bytes that exist: the file may have been truncated meanwhile.
        (&mut self.file).take(size).read_to_end(&mut block)?;
        block.append(&mut self.rest);
        self.rest = block;
        Ok(())
    }
}
