//! One spill file: appended to at its end, read from its start, emptied when all was read.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tollgate_core::Time;

use super::line::{self, MOST_LINE, Spilled};
use crate::entry::Entry;
use crate::error::SpillError;
use crate::note::Note;

/// How much is read at a time.
const CHUNK: usize = 64 * 1024;

/// A spill file that this process has locked.
#[derive(Debug)]
pub(super) struct SpillFile {
    path: PathBuf,
    file: File,
    /// What is before is in the database.
    start: u64,
    /// What is behind is torn.
    end: u64,
    /// How many entries are between, damaged ones included.
    entries: u64,
    /// At least how old the first of them is.
    oldest: Option<Time>,
    /// Whether something behind `end` has to be cut off before anything is appended.
    is_torn: bool,
    /// Whether a line was not right, so that the file is worth keeping.
    is_damaged: bool,
    /// Whether it was tried in vain to move it aside.
    is_stuck: bool,
}

/// Entries from the start of a file.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) entries: Vec<Entry>,
    pub(crate) notes: Vec<Note>,
    /// What they take up in the file.
    pub(super) bytes: u64,
    /// How many lines that is.
    pub(super) lines: u64,
    damaged: u64,
    /// Where the file ended then, and how many entries waited in it.
    end: u64,
    waiting: u64,
}

impl SpillFile {
    /// The file, locked; `None` if another process has it, or if it is not there and is not to be made.
    pub(super) fn open(path: &Path, make: bool) -> Result<Option<SpillFile>, SpillError> {
        let failed = |action, error| SpillError::Io {
            action,
            path: path.to_owned(),
            error,
        };
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(make)
            .truncate(false)
            .open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !make => return Ok(None),
            Err(error) => return Err(failed("open", error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed("lock", error)),
        }
        let metadata = file.metadata().map_err(|error| failed("read", error))?;
        if !metadata.is_file() {
            let error = io::Error::other("it is no regular file");
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

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// How much of it is in the database, and takes up the disk all the same.
    pub(super) fn drained(&self) -> u64 {
        self.start
    }

    pub(super) fn oldest(&self) -> Option<Time> {
        self.oldest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether it has nothing, on the disk either.
    pub(super) fn is_free(&self) -> bool {
        self.end == 0
    }

    /// Appends lines and waits until the disk has them. After an error, none of them is there.
    pub(super) fn append(&mut self, lines: &[u8], entries: u64, first: Time) -> io::Result<()> {
        if self.is_empty() && self.start > 0 && !self.is_damaged {
            // The disk may let us now.
            self.empty();
        }
        if self.is_torn {
            self.file.set_len(self.end)?;
            self.is_torn = false;
        }
        let written = self.file.write_all_at(lines, self.end);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            // What cannot be cut off now is cut off before the next lines.
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

    /// Up to `most` entries from the start. They stay until [`SpillFile::advance`].
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
                Some(Spilled::Entry(entry)) => read.entries.push(entry),
                Some(Spilled::Note(note)) => read.notes.push(note),
                None => read.damaged += 1,
            }
            read.entries.len() + read.notes.len() < most
        })?;
        Ok(read)
    }

    /// What was read is in the database.
    pub(super) fn advance(&mut self, read: &Read) {
        if read.damaged > 0 {
            self.is_damaged = true;
            let path = self.path.display();
            let lines = read.damaged;
            tracing::error!(%path, lines, "lines of the spill file are damaged and were passed over; the file is kept");
        }
        if read.bytes == 0 {
            // To read on would find nothing again and again.
            let (path, entries) = (self.path.display(), read.waiting);
            tracing::error!(%path, entries, "somebody has cut off the spill file: entries that waited in it are gone");
            // What was appended since is still there.
            self.start = read.end.min(self.end);
            self.entries = self.entries.saturating_sub(read.waiting);
        }
        let last = read.entries.last().map(|it| it.at);
        let last = last.or_else(|| read.notes.last().map(|it| it.at));
        self.pass(read.bytes, read.lines, last);
    }

    /// What is before is in the database.
    pub(super) fn pass(&mut self, bytes: u64, lines: u64, last: Option<Time>) {
        self.start = (self.start + bytes).min(self.end);
        self.entries = self.entries.saturating_sub(lines);
        self.oldest = last.or(self.oldest);
        if self.is_empty() && !self.is_damaged {
            self.empty();
        }
    }

    /// Gives the space back; if the disk does not let us, what is there is written again after a restart,
    /// which changes nothing.
    fn empty(&mut self) {
        match self.file.set_len(0).and_then(|()| self.file.sync_data()) {
            Ok(()) => (self.start, self.end) = (0, 0),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "the spill file cannot be emptied; it is read again at the next start");
            }
        }
        (self.entries, self.oldest) = (0, None);
    }

    /// Moves a damaged file aside when all else of it was read. Whether it was.
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
                tracing::error!(%path, "a damaged spill file was set aside: see what its other lines were");
                true
            }
            Err(error) => {
                let path = self.path.display();
                tracing::error!(%path, %error, "a damaged spill file cannot be set aside");
                self.is_stuck = true;
                false
            }
        }
    }

    /// Counts the lines, and cuts off a last one that a crash has torn.
    fn scan(&mut self) -> io::Result<()> {
        let (mut entries, mut whole, mut oldest) = (0, 0, None);
        let mut last_is_right = true;
        let mut before_last = 0;
        self.lines(0, |line, bytes| {
            before_last = whole;
            entries += 1;
            whole += bytes;
            let entry = line::decode(line);
            last_is_right = entry.is_some();
            oldest = oldest.or(entry.map(|it| it.at()));
            true
        })?;
        if !last_is_right {
            // Its end was written, and what is before was not: disks may do that.
            entries -= 1;
            whole = before_last;
        }
        if whole < self.end {
            let (path, bytes) = (self.path.display(), self.end - whole);
            tracing::warn!(%path, bytes, "the last line of the spill file was torn by a crash and is dropped");
            self.end = whole;
            self.is_torn = self.file.set_len(whole).is_err();
        }
        (self.entries, self.oldest) = (entries, oldest);
        Ok(())
    }

    /// Shows lines from `from` on, without their ends and with their length, until `look` has seen enough.
    fn lines(&self, from: u64, mut look: impl FnMut(&[u8], u64) -> bool) -> io::Result<()> {
        let mut place = from;
        let mut buffer: Vec<u8> = Vec::new();
        let mut chunk = vec![0; CHUNK];
        // Bytes of a line that is too long to be kept.
        let mut passed = 0;
        while place < self.end {
            let most = usize::try_from(self.end - place).map_or(CHUNK, |left| left.min(CHUNK));
            let got = self.file.read_at(&mut chunk[..most], place)?;
            if got == 0 {
                return Ok(());
            }
            place += got as u64;
            buffer.extend_from_slice(&chunk[..got]);
            let mut seen = 0;
            while let Some(end) = buffer[seen..].iter().position(|byte| *byte == b'\n') {
                let line = &buffer[seen..seen + end];
                seen += end + 1;
                if !look(line, passed + end as u64 + 1) {
                    return Ok(());
                }
                passed = 0;
            }
            buffer.drain(..seen);
            if buffer.len() > MOST_LINE {
                passed += buffer.len() as u64;
                buffer.clear();
            }
        }
        Ok(())
    }
}
