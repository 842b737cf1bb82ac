//! What the database does not take now, on the disk: a file of lines that only this process appends to.
//!
//! **Order.** What is spilled is written to the database before anything that was recorded later: while
//! there is a spill, new entries go behind it. Entries leave the file only when the database has them. A
//! crash in between leads to entries that are written twice, which their ids make harmless.
//!
//! **Crashes.** Every append ends with a sync. A last line that is not whole is cut off at the next start;
//! its entry was never said to be safe. A damaged line before it is passed over, and the file is kept aside.
//!
//! **Several processes.** Each has a file of its own: the first of `NAME`, `NAME.1`, `NAME.2`, … that
//! nobody has locked, made when it is first needed. A lock ends with its process. So a file that can be
//! locked and has lines was left by a process that has ended, and is adopted, at the start and later while
//! nothing else waits: written to the database before what comes then, and emptied. Files are emptied and not
//! removed, so that a name and a lock always mean the same file.
//!
//! **Bounds.** What waits is bounded. A file gives its space back when all of it was drained, which does not
//! happen while as much is added as leaves: so one that was drained for a while is not added to any more, and
//! what comes next goes to another. On the disk is never much more than twice what may wait.

mod file;
mod line;

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tollgate_core::Time;

pub(crate) use self::file::Read;
use self::file::SpillFile;
use crate::entry::Entry;
use crate::error::SpillError;
use crate::note::Note;

/// How many processes may spill beside each other.
pub(crate) const MOST_FILES: usize = 64;

/// When so much of a file was drained, the next lines go to another, so that this one can be emptied.
const MOST_DRAINED: u64 = 16 << 20;

/// Lines to be appended.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    entries: u64,
    first: Option<Time>,
}

impl Lines {
    pub(crate) fn push(&mut self, entry: &Entry) {
        line::encode(entry, &mut self.bytes);
        self.entries += 1;
        self.first = self.first.or(Some(entry.at));
    }

    pub(crate) fn push_note(&mut self, note: &Note) {
        line::encode_note(note, &mut self.bytes);
        self.entries += 1;
        self.first = self.first.or(Some(note.at));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }
}

/// The files, the oldest first; the last may be the one that is appended to.
#[derive(Debug)]
pub(crate) struct Spill {
    name: Option<PathBuf>,
    most: u64,
    files: VecDeque<SpillFile>,
    /// Whether the last of them is ours to append to.
    has_own: bool,
    appended: u64,
    drained: u64,
    /// Those of others that cannot be read, so that each is told of once.
    unread: HashSet<PathBuf>,
}

impl Spill {
    /// A spill at `name`, where up to `most` bytes may wait. Without a name it takes nothing.
    pub(crate) fn new(name: Option<PathBuf>, most: u64) -> Spill {
        Spill {
            name,
            most,
            files: VecDeque::new(),
            has_own: false,
            appended: 0,
            drained: 0,
            unread: HashSet::new(),
        }
    }

    /// Takes over what processes that are gone have left. A file that cannot be read is told of once, and left
    /// alone.
    pub(crate) fn adopt(&mut self) {
        let Some(name) = &self.name else { return };
        // What is adopted goes before what this process appends.
        let own = self.has_own.then(|| self.files.pop_back()).flatten();
        for number in 0..MOST_FILES {
            let path = numbered(name, number);
            match SpillFile::open(&path, false) {
                Ok(Some(file)) if !file.is_empty() => {
                    let (path, entries) = (file.path().display(), file.entries());
                    tracing::info!(%path, entries, "a spill file was left and is written to the ledger");
                    self.appended += entries;
                    self.files.push_back(file);
                }
                Ok(_) => {}
                Err(error) if self.unread.insert(path) => {
                    tracing::error!(%error, "a spill file may have been left");
                }
                Err(_) => {}
            }
        }
        // A process that had two has used their names by turns.
        let files = self.files.make_contiguous();
        files.sort_by_key(SpillFile::oldest);
        self.files.extend(own);
    }

    /// How many entries wait.
    pub(crate) fn entries(&self) -> u64 {
        self.files.iter().map(SpillFile::entries).sum()
    }

    /// How many bytes wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(SpillFile::bytes).sum()
    }

    /// How old the first that waits is, or older.
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.files.iter().find_map(SpillFile::oldest)
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.iter().all(SpillFile::is_empty)
    }

    /// How many entries were ever appended or adopted.
    pub(crate) fn appended(&self) -> u64 {
        self.appended
    }

    /// How many of them are in the database.
    pub(crate) fn drained(&self) -> u64 {
        self.drained
    }

    /// Appends lines. After an error, none of them is there.
    pub(crate) fn append(&mut self, lines: &Lines) -> Result<(), SpillError> {
        let Some(first) = lines.first else {
            return Ok(());
        };
        let most = self.most;
        // This one first: it may find what another has left, which waits too.
        self.own()?;
        let waiting = self.bytes().saturating_add(lines.bytes.len() as u64);
        let own = self.own()?;
        if waiting > most {
            let path = own.path().to_owned();
            return Err(SpillError::Full { path, most });
        }
        let appended = own.append(&lines.bytes, lines.entries, first);
        appended.map_err(|error| SpillError::Io {
            action: "write",
            path: own.path().to_owned(),
            error,
        })?;
        self.appended += lines.entries;
        Ok(())
    }

    /// Up to `most` entries from the front. They stay until [`Spill::advance`].
    pub(crate) fn read(&self, most: usize) -> Result<Read, SpillError> {
        let Some(file) = self.files.iter().find(|file| !file.is_empty()) else {
            return Ok(Read::default());
        };
        file.read(most).map_err(|error| SpillError::Io {
            action: "read",
            path: file.path().to_owned(),
            error,
        })
    }

    /// What was read is in the database.
    pub(crate) fn advance(&mut self, read: &Read) {
        if let Some(file) = self.files.iter_mut().find(|file| !file.is_empty()) {
            let before = file.entries();
            file.advance(read);
            self.drained += before - file.entries();
        }
        self.tidy();
        // Here, and not when something is appended: lines that are to be passed over are in the file that
        // is appended to.
        let most = MOST_DRAINED.min(self.most / 4);
        let is_worn = |file: &SpillFile| file.drained() >= most && !file.is_empty();
        if self.files.back().is_some_and(is_worn) {
            self.has_own = false;
        }
    }

    /// The first lines, which were appended as `lines`, are in the database.
    pub(crate) fn pass(&mut self, lines: &Lines, last: Option<Time>) {
        if let Some(file) = self.files.back_mut().filter(|_| self.has_own) {
            file.pass(lines.bytes.len() as u64, lines.entries, last);
            self.drained += lines.entries;
        }
        self.tidy();
    }

    /// Lets go of files that are done with.
    fn tidy(&mut self) {
        let own = self.has_own.then(|| self.files.pop_back()).flatten();
        // Damaged ones are set aside; the lock of the others ends, and they are free for anybody. What the disk
        // does not let go of stays ours, or it would be adopted again and again.
        self.files
            .retain_mut(|file| !file.set_aside() && !file.is_free());
        self.has_own = false;
        if let Some(mut own) = own
            && !own.set_aside()
        {
            self.files.push_back(own);
            self.has_own = true;
        }
    }

    /// The file to append to.
    fn own(&mut self) -> Result<&mut SpillFile, SpillError> {
        let name = self.name.as_ref().ok_or(SpillError::Nowhere)?;
        if !self.has_own {
            // Adopted ones are locked, by us: what is added goes behind them all. What another process has
            // left since is adopted, too, and never added to: only our own lines may be passed over.
            let file = loop {
                let file = (0..MOST_FILES)
                    .find_map(|number| SpillFile::open(&numbered(name, number), true).transpose());
                let file = file.ok_or_else(|| SpillError::TooMany { path: name.clone() })??;
                if file.is_empty() {
                    break file;
                }
                self.appended += file.entries();
                self.files.push_back(file);
            };
            sync_directory(file.path()).map_err(|error| SpillError::Io {
                action: "make",
                path: file.path().to_owned(),
                error,
            })?;
            self.appended += file.entries();
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

/// A new file is there after a crash only if its directory is written too.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests;
