//! Entries on disk, while the database does not take them: a file of lines that only this process
//! appends to.
//!
//! **Order.** Spilled entries are written to the database before entries that were recorded later. So while
//! the spill is not empty, new entries are appended to it. Entries leave the file only when the database has
//! them. After a crash some entries are written twice, which is harmless because of their ids.
//!
//! **Crashes.** Every append ends with a sync. An incomplete last line is cut off at the next start;
//! its entry was never reported as safe. A damaged line before it is skipped, and the file is moved
//! aside.
//!
//! **Several processes.** Each process has its own file: the first of `NAME`, `NAME.1`, `NAME.2`, … that is
//! not locked. The file is created when it is first needed. A lock ends with its process, so an unlocked file
//! with lines was left by a process that has ended.
//!
//! This process adopts such files, at the start and later when nothing else waits. It writes their lines to
//! the database before newer lines, and empties the files. Files are emptied and not removed, so that a name
//! and a lock always mean the same file.
//!
//! **Bounds.** The bytes that wait are bounded. A file frees its space only when the database has all of its
//! lines. If new lines arrived as fast as old ones leave, that would never happen. So when much of a file is
//! drained, new lines go to another file. The files need little more than twice the bound on disk.

mod file;
mod line;

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};

use tollgate_core::Time;

use self::file::SpillFile;
pub(crate) use self::file::{Read, last_at};
use crate::error::SpillError;
use crate::pending::Queued;

/// How many processes may have spill files beside each other.
pub(crate) const MOST_FILES: usize = 64;

/// When this many bytes of a file are drained, new lines go to another file, so that the drained file
/// can be emptied.
const MOST_DRAINED: u64 = 16 << 20;

/// Lines to be appended.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    pub(crate) entries: usize,
    first: Option<Time>,
}

impl Lines {
    /// Adds an entry or a note that no caller waits for.
    pub(crate) fn push(&mut self, item: &Queued) {
        match item {
            Queued::One(entry) => line::encode(entry, &mut self.bytes),
            Queued::Note(note) => line::encode(note, &mut self.bytes),
            Queued::Strict(..) | Queued::Flush(_) => return,
        }
        self.entries += 1;
        self.first = self.first.or(item.at());
    }
}

/// The spill files, oldest first. The last may be the file that this process appends to.
#[derive(Debug)]
pub(crate) struct Spill {
    name: Option<PathBuf>,
    most: u64,
    files: VecDeque<SpillFile>,
    /// Whether the last file is the one to append to.
    has_own: bool,
    /// How many entries were ever appended or adopted.
    pub(crate) appended: u64,
    /// How many of the appended entries are in the database.
    pub(crate) drained: u64,
    /// How many of the appended entries were lost, because another program truncated the file.
    pub(crate) lost: u64,
    /// Files of other processes that cannot be read. Each is logged once.
    unreadable: HashSet<PathBuf>,
}

impl Spill {
    /// Returns a spill at `name`, where up to `most` bytes may wait. Without a name, the spill takes
    /// nothing.
    pub(crate) fn new(name: Option<PathBuf>, most: u64) -> Spill {
        Spill {
            name,
            most,
            files: VecDeque::new(),
            has_own: false,
            appended: 0,
            drained: 0,
            lost: 0,
            unreadable: HashSet::new(),
        }
    }

    /// Adopts the files of processes that have ended. A file that cannot be read is logged once and not
    /// touched.
    pub(crate) fn adopt(&mut self) {
        let Some(name) = &self.name else { return };
        // Adopted files come before the file that this process appends to.
        let own = self.has_own.then(|| self.files.pop_back()).flatten();
        for number in 0..MOST_FILES {
            let path = numbered(name, number);
            match SpillFile::open(&path, false) {
                Ok(Some(file)) if !file.is_empty() => {
                    let (path, entries) = (file.path.display(), file.entries);
                    tracing::info!(%path, entries, "found a spill file of an earlier process; writing it to the ledger");
                    self.appended += entries;
                    self.files.push_back(file);
                }
                Ok(_) => {}
                Err(error) if self.unreadable.insert(path) => {
                    tracing::error!(%error, "cannot read a spill file that an earlier process may have left");
                }
                Err(_) => {}
            }
        }
        // The number in a name does not show the age: a process with two files uses their names in turn.
        let files = self.files.make_contiguous();
        files.sort_by_key(|file| file.oldest);
        self.files.extend(own);
    }

    /// Returns how many entries wait.
    pub(crate) fn entries(&self) -> u64 {
        self.files.iter().map(|file| file.entries).sum()
    }

    /// Returns how many bytes wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(SpillFile::bytes).sum()
    }

    /// Returns a time at or before that of the first waiting entry.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.files.iter().find_map(|file| file.oldest)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.iter().all(SpillFile::is_empty)
    }

    /// Appends lines. After an error, none of them is in the file.
    pub(crate) fn append(&mut self, lines: &Lines) -> Result<(), SpillError> {
        let Some(first) = lines.first else {
            return Ok(());
        };
        let most = self.most;
        // `own` may adopt another file. The lines of that file wait too.
        self.own()?;
        let waiting = self.bytes().saturating_add(lines.bytes.len() as u64);
        let own = self.own()?;
        if waiting > most {
            let path = own.path.clone();
            return Err(SpillError::Full { path, most });
        }
        let appended = own.append(&lines.bytes, lines.entries as u64, first);
        appended.map_err(|error| SpillError::io("write", &own.path, error))?;
        self.appended += lines.entries as u64;
        Ok(())
    }

    /// Reads up to `most` entries from the front. They stay in the file until [`Spill::advance`].
    pub(crate) fn read(&self, most: usize) -> Result<Read, SpillError> {
        let Some(file) = self.files.iter().find(|file| !file.is_empty()) else {
            return Ok(Read::default());
        };
        let read = file.read(most);
        read.map_err(|error| SpillError::io("read", &file.path, error))
    }

    /// Marks all of `read` as stored in the database.
    pub(crate) fn advance(&mut self, read: &Read) {
        if let Some(file) = self.files.iter_mut().find(|file| !file.is_empty()) {
            let before = file.entries;
            self.lost += file.advance(read);
            self.drained += before - file.entries;
        }
        self.tidy();
        // This is decided here and not in `append`, because the lines that `pass` skips must be in the file
        // that is appended to.
        let most = MOST_DRAINED.min(self.most / 4);
        let is_mostly_drained = |file: &SpillFile| file.start >= most && !file.is_empty();
        if self.files.back().is_some_and(is_mostly_drained) {
            self.has_own = false;
        }
    }

    /// Marks the first lines of the own file as stored in the database. They were appended as `lines`.
    pub(crate) fn pass(&mut self, lines: &Lines, last: Option<Time>) {
        if let Some(file) = self.files.back_mut().filter(|_| self.has_own) {
            file.pass(lines.bytes.len() as u64, lines.entries as u64, last);
            self.drained += lines.entries as u64;
        }
        self.tidy();
    }

    /// Closes files that are drained.
    fn tidy(&mut self) {
        let own = self.has_own.then(|| self.files.pop_back()).flatten();
        // Damaged files are moved aside. Empty files are unlocked for other processes. A file that could not
        // be emptied stays locked, because otherwise it would be adopted again and again.
        self.files
            .retain_mut(|file| !file.set_aside() && file.end != 0);
        self.has_own = false;
        if let Some(mut own) = own
            && !own.set_aside()
        {
            self.files.push_back(own);
            self.has_own = true;
        }
    }

    /// Returns the file to append to.
    fn own(&mut self) -> Result<&mut SpillFile, SpillError> {
        let name = self.name.as_ref().ok_or(SpillError::Nowhere)?;
        if !self.has_own {
            // A file with lines of another process is adopted and never appended to: `pass` may skip
            // only lines of this process.
            let file = loop {
                let file = (0..MOST_FILES)
                    .find_map(|number| SpillFile::open(&numbered(name, number), true).transpose());
                let file = file.ok_or_else(|| SpillError::TooMany { path: name.clone() })??;
                if file.is_empty() {
                    break file;
                }
                self.appended += file.entries;
                self.files.push_back(file);
            };
            // A new file survives a crash only if its directory is synced too.
            let directory = file.path.parent().filter(|it| !it.as_os_str().is_empty());
            let directory = File::open(directory.unwrap_or(Path::new(".")));
            let synced = directory.and_then(|it| it.sync_all());
            synced.map_err(|error| SpillError::io("create", &file.path, error))?;
            self.appended += file.entries;
            self.files.push_back(file);
            self.has_own = true;
        }
        let path = name.clone();
        self.files.back_mut().ok_or(SpillError::TooMany { path })
    }
}

fn numbered(name: &Path, number: usize) -> PathBuf {
    if number == 0 {
        return name.to_owned();
    }
    let mut name = name.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests;
