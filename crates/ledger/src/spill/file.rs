//! One spill file. Lines are appended at its end and read from its start. When the database has all lines,
//! the file is emptied.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tollgate_core::Time;

use super::line::{self, MOST_LINE, Spilled, Unreadable};
use crate::entry::{Entry, Note};
use crate::error::SpillError;
use crate::private_file;

/// How many bytes are read at a time.
const CHUNK: usize = 64 * 1024;

/// A spill file that this process has locked.
#[derive(Debug)]
pub(super) struct SpillFile {
    pub(super) path: PathBuf,
    file: File,
    /// All lines before this offset are in the database. They still use disk space.
    pub(super) start: u64,
    /// The end of the last whole line.
    pub(super) end: u64,
    /// How many lines are between `start` and `end`, including damaged ones.
    pub(super) entries: u64,
    /// A time at or before that of the first line between `start` and `end`.
    pub(super) oldest: Option<Time>,
    /// Whether the file has bytes after `end` that must be cut off before the next append.
    is_torn: bool,
    /// Whether a line could not be read, so that the file must be kept for an operator.
    is_damaged: bool,
    /// Whether moving the damaged file aside failed.
    is_stuck: bool,
}

/// Entries and notes read from the start of a file.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) entries: Vec<Entry>,
    pub(crate) notes: Vec<Note>,
    /// The size of these entries and notes in the file, in bytes.
    pub(super) bytes: u64,
    /// The number of lines that were read.
    pub(super) lines: u64,
    damaged: u64,
    /// The end of the file when it was read. `waiting` is how many lines waited in the file at that time.
    end: u64,
    waiting: u64,
}

/// Returns the time of the last entry, or of the last note if there is no entry.
pub(crate) fn last_at(entry: Option<&Entry>, note: Option<&Note>) -> Option<Time> {
    entry.map(|it| it.at).or(note.map(|it| it.at))
}

impl SpillFile {
    /// Opens and locks the file. Returns `None` if another process has locked it, or if it does not exist and
    /// `create` is false.
    pub(super) fn open(path: &Path, create: bool) -> Result<Option<SpillFile>, SpillError> {
        let failed = |action, error| SpillError::io(action, path, error);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(create)
            .truncate(false);
        let opened = private_file::open(&mut options, path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !create => return Ok(None),
            Err(error) => return Err(failed("open", error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed("lock", error)),
        }
        let metadata = file.metadata().map_err(|error| failed("read", error))?;
        if !metadata.is_file() {
            let error = io::Error::other("it is not a regular file");
            return Err(failed("use", error));
        }
        let mut file = SpillFile {
            path: path.to_owned(),
            file,
            start: 0,
            end: metadata.len(),
            entries: 0,
            oldest: None,
            is_torn: false,
            is_damaged: false,
            is_stuck: false,
        };
        file.scan().map_err(|error| failed("read", error))?;
        Ok(Some(file))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Appends lines and syncs them to disk. After an error, none of them is in the file.
    pub(super) fn append(&mut self, lines: &[u8], entries: u64, first: Time) -> io::Result<()> {
        if self.is_empty() && self.start > 0 && !self.is_damaged {
            // An earlier attempt to empty the file has failed. Try again.
            self.empty();
        }
        if self.is_torn {
            self.file.set_len(self.end)?;
            self.is_torn = false;
        }
        let written = self.file.write_all_at(lines, self.end);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            // Cut off the part that was written. If that fails too, the next append does it first.
            self.is_torn = self.file.set_len(self.end).is_err();
            return Err(error);
        }
        if self.is_empty() {
            self.oldest = Some(first);
        }
        self.end += lines.len() as u64;
        self.entries += entries;
        Ok(())
    }

    /// Reads up to `most` entries from the start. They stay in the file until [`SpillFile::advance`].
    pub(super) fn read(&self, most: usize) -> io::Result<Read> {
        let mut read = Read {
            end: self.end,
            waiting: self.entries,
            ..Read::default()
        };
        self.lines(self.start, |line, bytes| {
            read.bytes += bytes;
            read.lines += 1;
            match line::decode(line) {
                Ok(Spilled::Entry(entry)) => read.entries.push(entry),
                Ok(Spilled::Note(note)) => read.notes.push(note),
                Err(_) => read.damaged += 1,
            }
            read.entries.len() + read.notes.len() < most
        })?;
        Ok(read)
    }

    /// Marks all of `read` as stored in the database. Returns how many entries were lost because another
    /// program truncated the file.
    pub(super) fn advance(&mut self, read: &Read) -> u64 {
        let mut lost = 0;
        if read.damaged > 0 {
            self.is_damaged = true;
            let path = self.path.display();
            let lines = read.damaged;
            tracing::error!(%path, lines, "skipped lines of the spill file that are damaged or of a newer version; the file is kept");
        }
        if read.bytes == 0 {
            // The file is shorter than expected. Skip the missing lines, or every later read would find
            // nothing.
            let (path, entries) = (self.path.display(), read.waiting);
            tracing::error!(%path, entries, "another program has truncated the spill file: the entries that waited in it are lost");
            // Lines that were appended after the read are still in the file.
            self.start = read.end.min(self.end);
            self.entries = self.entries.saturating_sub(read.waiting);
            lost = read.waiting;
        }
        let last = last_at(read.entries.last(), read.notes.last());
        self.pass(read.bytes, read.lines, last);
        lost
    }

    /// Marks the next `lines` lines, with `bytes` bytes in total, as stored in the database.
    pub(super) fn pass(&mut self, bytes: u64, lines: u64, last: Option<Time>) {
        self.start = (self.start + bytes).min(self.end);
        self.entries = self.entries.saturating_sub(lines);
        self.oldest = last.or(self.oldest);
        if self.is_empty() && !self.is_damaged {
            self.empty();
        }
    }

    /// Frees the disk space. If that fails, the lines are written again after a restart, which is harmless.
    fn empty(&mut self) {
        match self.file.set_len(0).and_then(|()| self.file.sync_data()) {
            Ok(()) => (self.start, self.end) = (0, 0),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot empty the spill file; it is read again at the next start");
            }
        }
        (self.entries, self.oldest) = (0, None);
    }

    /// Moves a damaged file aside once all readable lines were read. Returns whether the file was
    /// moved.
    pub(super) fn set_aside(&mut self) -> bool {
        if !(self.is_damaged && self.is_empty()) || self.is_stuck {
            return false;
        }
        let name = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".damaged-{number}"));
            PathBuf::from(name)
        };
        let aside = (1..=u32::MAX).map(name).find(|path| !path.exists());
        let Some(aside) = aside else { return false };
        match fs::rename(&self.path, &aside) {
            Ok(()) => {
                let path = aside.display();
                tracing::error!(%path, "moved a damaged spill file aside: some of its lines were not written to the ledger");
                true
            }
            Err(error) => {
                let path = self.path.display();
                tracing::error!(%path, %error, "cannot move a damaged spill file aside");
                self.is_stuck = true;
                false
            }
        }
    }

    /// Counts the lines, and cuts off a last line that is incomplete after a crash.
    fn scan(&mut self) -> io::Result<()> {
        let (mut entries, mut whole, mut oldest) = (0, 0, None);
        let mut last_is_whole = true;
        let mut before_last = 0;
        self.lines(0, |line, bytes| {
            before_last = whole;
            entries += 1;
            whole += bytes;
            let content = line::decode(line);
            last_is_whole = content != Err(Unreadable::Checksum);
            oldest = oldest.or(content.ok().map(|it| match it {
                Spilled::Entry(entry) => entry.at,
                Spilled::Note(note) => note.at,
            }));
            true
        })?;
        if !last_is_whole {
            // A disk may write the end of a line before its beginning, so the last line may be damaged.
            entries -= 1;
            whole = before_last;
        }
        if whole < self.end {
            let (path, bytes) = (self.path.display(), self.end - whole);
            tracing::warn!(%path, bytes, "a crash left the last line of the spill file incomplete; the line was dropped");
            self.end = whole;
            self.is_torn = self.file.set_len(whole).is_err();
        }
        (self.entries, self.oldest) = (entries, oldest);
        Ok(())
    }

    /// Calls `visit` with each line from offset `from` on, until `visit` returns false. The text is without
    /// the line end, and the length includes the line end.
    fn lines(&self, from: u64, mut visit: impl FnMut(&[u8], u64) -> bool) -> io::Result<()> {
        let mut offset = from;
        let mut buffer: Vec<u8> = Vec::new();
        let mut chunk = vec![0; CHUNK];
        // How many bytes of a line that is too long were skipped.
        let mut skipped = 0;
        while offset < self.end {
            let most = usize::try_from(self.end - offset).map_or(CHUNK, |left| left.min(CHUNK));
            let got = self.file.read_at(&mut chunk[..most], offset)?;
            if got == 0 {
                return Ok(());
            }
            offset += got as u64;
            buffer.extend_from_slice(&chunk[..got]);
            let mut seen = 0;
            while let Some(end) = buffer[seen..].iter().position(|byte| *byte == b'\n') {
                let line = &buffer[seen..seen + end];
                seen += end + 1;
                if !visit(line, skipped + end as u64 + 1) {
                    return Ok(());
                }
                skipped = 0;
            }
            buffer.drain(..seen);
            if buffer.len() > MOST_LINE {
                skipped += buffer.len() as u64;
                buffer.clear();
            }
        }
        Ok(())
    }
}
