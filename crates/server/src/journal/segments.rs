//! The journal's files.
//!
//! A directory has segments: files that begin with a header and contain records, one after the other. Only the
//! newest segment grows. The oldest segments are removed when all together would be larger than the config
//! allows, or when they are too old. A segment is a sixteenth of both bounds at most, so that little more than
//! necessary is removed.
//!
//! A process that ends in the middle of a record leaves a part of it. The next process cuts that part off. Damaged
//! records elsewhere are skipped.
//!
//! Nothing waits for the disk: records reach it when the system writes its buffers.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tollgate::{Span, Time};
use tollgate_ledger::private_file;

use super::query::Query;
use super::record::{Head, RecordedDenial, VERSION, decode, head, is_intact};

/// The first bytes of a segment, before the version.
const MAGIC: [u8; 12] = *b"TG-DENIALS\r\n";
/// The length of a segment's header: the magic bytes and the version.
const HEADER: usize = 16;

const PREFIX: &str = "denials-";
const SUFFIX: &str = ".journal";
const LOCK: &str = "denials.lock";

/// Into how many segments the bounds are divided.
const PARTS: u64 = 16;
/// The sizes of a segment.
const MIN_SEGMENT: u64 = 64 << 10;
const MAX_SEGMENT: u64 = 64 << 20;

/// The most bytes that are added in one step. A step never fills more than one segment.
pub(super) const MAX_STEP: usize = 48 << 10;

/// The most records in a row that are missing from a segment, because the disk could not be written.
const MAX_GAP: u64 = 1 << 32;

/// Records may be out of order by this much, because clocks are adjusted.
const DISORDER: Span = Span::MINUTE;

/// Why the journal's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system does not permit it.
    #[error("cannot use the journal of denials in {}: {error}", path.display())]
    Io {
        /// The directory or the file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Another process uses the directory.
    #[error(
        "another server writes the journal of denials in {}: give each instance its own telemetry.denials.directory",
        path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// A newer version has written the file.
    #[error(
        "{} has version {version} of the format, and this build reads version {VERSION}: use the newer build, or move the \
         directory away to start a new journal",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of the file.
        version: u32,
    },
    /// The file is not a segment.
    #[error("{} is not a part of a journal of denials: move it away", path.display())]
    NotASegment {
        /// The file.
        path: PathBuf,
    },
    /// The thread that writes the journal cannot be started.
    #[error("cannot start the thread of the journal of denials: {0}")]
    Thread(io::Error),
}

/// The bounds of the files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) max_size: u64,
    pub(super) max_age: Span,
}

impl Bounds {
    fn segment_size(&self) -> u64 {
        (self.max_size / PARTS).clamp(MIN_SEGMENT, MAX_SEGMENT)
    }

    fn segment_age(&self) -> Span {
        Span::from_micros(self.max_age.as_micros() / PARTS)
    }
}

/// The segments of a directory, for the one process that writes them.
pub(super) struct Segments {
    directory: PathBuf,
    bounds: Bounds,
    /// The segments that do not grow any more, the oldest first.
    closed: Vec<Closed>,
    open: Option<Open>,
    /// The bytes of all segments.
    size: u64,
    /// The sequence number after the last record.
    next: u64,
    _lock: File,
}

struct Closed {
    path: PathBuf,
    size: u64,
    last_at: Time,
}

struct Open {
    path: PathBuf,
    file: File,
    size: u64,
    first_at: Time,
    last_at: Time,
}

impl Segments {
    /// Opens the directory, and creates it if necessary. Cuts off a record that is not whole.
    pub(super) fn open(directory: &Path, bounds: Bounds) -> Result<Segments, JournalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| JournalError::Io { path, error }
        };
        private_file::create_directory(directory).map_err(failed(directory))?;
        let lock = lock(directory)?;
        let mut paths = list(directory).map_err(failed(directory))?;
        let mut segments = Segments {
            directory: directory.to_owned(),
            bounds,
            closed: Vec::new(),
            open: None,
            size: 0,
            next: 1,
            _lock: lock,
        };
        let last = paths.pop();
        for (_, path) in paths {
            let file = open_segment(&path)?;
            let metadata = file.metadata().map_err(failed(&path))?;
            let modified = metadata.modified().map_err(failed(&path))?;
            segments.size += metadata.len();
            segments.closed.push(Closed {
                path,
                size: metadata.len(),
                last_at: to_time(modified),
            });
        }
        if let Some((first, path)) = last {
            let mut file = open_segment(&path)?;
            let resumed = resume(&mut file, &path, first).map_err(failed(&path))?;
            segments.next = resumed.next;
            if let Some((first_at, last_at)) = resumed.times {
                segments.size += resumed.size;
                segments.open = Some(Open {
                    path,
                    file,
                    size: resumed.size,
                    first_at,
                    last_at,
                });
            } else {
                // The process ended before the first record was whole.
                fs::remove_file(&path).map_err(failed(&path))?;
            }
        }
        segments.make_room(0).map_err(failed(directory))?;
        Ok(segments)
    }

    /// Returns the sequence number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the bytes of all segments.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Adds whole records, at most [`MAX_STEP`] bytes and one record more. The first has the sequence number
    /// [`next`](Self::next). On an error, the records are lost, and the segments stay as they were.
    pub(super) fn append(&mut self, records: &[u8], count: u64, now: Time) -> io::Result<()> {
        let first = self.next;
        self.next += count;
        let step = records.len() as u64;
        if self
            .open
            .as_ref()
            .is_some_and(|open| self.is_full(open, step, now))
        {
            self.close();
        }
        self.make_room(step + HEADER as u64)?;
        if self.open.is_none() {
            self.open = Some(create(&self.directory, first, now)?);
            self.size += HEADER as u64;
        }
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        if let Err(error) = open.file.write_all(records) {
            // A part may have been written.
            let undone = open.file.set_len(open.size);
            let undone = undone.and_then(|()| open.file.seek(SeekFrom::Start(open.size)));
            if undone.is_err() {
                self.close();
            }
            return Err(error);
        }
        open.size += step;
        open.last_at = now;
        self.size += step;
        Ok(())
    }

    fn is_full(&self, open: &Open, step: u64, now: Time) -> bool {
        open.size + step > self.bounds.segment_size()
            || now.since(open.first_at) > self.bounds.segment_age()
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.closed.push(Closed {
                path: open.path,
                size: open.size,
                last_at: open.last_at,
            });
        }
    }

    /// Removes the oldest segments until `more` bytes fit.
    fn make_room(&mut self, more: u64) -> io::Result<()> {
        while self.size + more > self.bounds.max_size && !self.closed.is_empty() {
            self.remove_oldest()?;
        }
        Ok(())
    }

    /// Removes the segments whose records are all too old.
    pub(super) fn remove_old(&mut self, now: Time) -> io::Result<()> {
        if let Some(open) = &self.open
            && now.since(open.first_at) > self.bounds.segment_age()
        {
            self.close();
        }
        let max_age = self.bounds.max_age;
        while let Some(oldest) = self.closed.first()
            && now.since(oldest.last_at) > max_age
        {
            self.remove_oldest()?;
        }
        Ok(())
    }

    fn remove_oldest(&mut self) -> io::Result<()> {
        let oldest = &self.closed[0];
        match fs::remove_file(&oldest.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.size -= oldest.size;
        self.closed.remove(0);
        Ok(())
    }
}

/// The end of the newest segment.
struct Resumed {
    /// The sequence number after the last record.
    next: u64,
    size: u64,
    /// The times of the first and the last record; `None` if there is no record.
    times: Option<(Time, Time)>,
}

/// Finds the end of the last whole record of a segment that begins with the sequence number `first`, and cuts
/// off the rest. Damaged records before it stay, and are skipped by readers.
fn resume(file: &mut File, path: &Path, first: u64) -> io::Result<Resumed> {
    let bytes = read_all(file)?;
    let (mut next, mut end, mut times, mut whole) = (first, HEADER, None, HEADER);
    for (place, head) in Records::new(&bytes, first) {
        let after = place + head.length;
        if !is_intact(&bytes[place..after]) {
            continue;
        }
        next = head.seq + 1;
        end = after;
        whole += head.length;
        let first_at = times.map_or(head.at, |(first_at, _)| first_at);
        times = Some((first_at, head.at));
    }
    let (damaged, cut) = (end - whole, bytes.len() - end);
    if damaged > 0 {
        tracing::warn!(path = %path.display(), damaged, "the journal of denials has damaged records; they are skipped");
    }
    if cut > 0 {
        tracing::warn!(
            path = %path.display(),
            cut,
            "the journal of denials ends with a record that is not whole; cutting it off"
        );
        file.set_len(end as u64)?;
    }
    file.seek(SeekFrom::Start(end as u64))?;
    let size = end as u64;
    Ok(Resumed { next, size, times })
}

/// The records of a segment, each with its place. A record may be damaged, but the records after it are found.
///
/// The sequence numbers of a segment go on by one, except where the disk could not be written. So a head with the
/// expected number is believed, and its checksum is left to those that need the record. Any other head must be that
/// of an intact record; if it is not, the next intact one is searched byte by byte.
struct Records<'b> {
    bytes: &'b [u8],
    /// The place of the last record, and where the next one should be.
    last: usize,
    place: usize,
    /// The expected sequence number.
    seq: u64,
}

impl<'b> Records<'b> {
    /// Returns the records of a segment whose first record should have the sequence number `first`.
    fn new(bytes: &'b [u8], first: u64) -> Records<'b> {
        let place = HEADER.min(bytes.len());
        Records {
            bytes,
            last: place,
            place,
            seq: first,
        }
    }

    /// Returns the head of a record at `place` whose number may be right.
    fn head(&self, place: usize) -> Option<Head> {
        let head = head(self.bytes.get(place..)?)?;
        let ahead = head.seq.checked_sub(self.seq)?;
        let is_whole = || is_intact(&self.bytes[place..place + head.length]);
        (ahead == 0 || ahead < MAX_GAP && is_whole()).then_some(head)
    }

    /// Returns the place and the head of the next intact record.
    fn search(&self) -> Option<(usize, Head)> {
        // If the last record is damaged, its length may be wrong.
        let last = self.bytes.get(self.last..self.place).unwrap_or_default();
        let start = match last.is_empty() || is_intact(last) {
            true => self.place,
            false => self.last + 1,
        };
        let places = start..self.bytes.len();
        let mut heads = places.filter_map(|place| Some((place, self.head(place)?)));
        heads.find(|(place, head)| is_intact(&self.bytes[*place..*place + head.length]))
    }
}

impl Iterator for Records<'_> {
    type Item = (usize, Head);

    fn next(&mut self) -> Option<(usize, Head)> {
        let here = self.head(self.place).map(|head| (self.place, head));
        let (place, head) = here.or_else(|| self.search())?;
        self.last = place;
        self.place = place + head.length;
        self.seq = head.seq + 1;
        Some((place, head))
    }
}

/// Returns the records of the segments in `directory` that `query` wants and whose sequence number is below
/// `before`, the newest first, at most `limit`. Reads one segment at a time.
pub(super) fn find(
    directory: &Path,
    query: &Query,
    before: u64,
    limit: usize,
) -> io::Result<Vec<RecordedDenial>> {
    let mut found = Vec::new();
    for (first, path) in list(directory)?.into_iter().rev() {
        if first >= before {
            continue;
        }
        let mut file = match private_file::open(OpenOptions::new().read(true), &path) {
            // The segment was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let bytes = read_all(&mut file)?;
        let mut records = Records::new(&bytes, first);
        let intact = records.find(|(place, head)| is_intact(&bytes[*place..*place + head.length]));
        let first_at = intact.map(|(_, head)| head.at);
        if let (Some(first_at), Some(until)) = (first_at, query.until)
            && first_at > until + DISORDER
        {
            continue;
        }
        find_in(&bytes, first, query, before, limit, &mut found);
        if found.len() == limit {
            break;
        }
        // All earlier segments are older than the first record of this one.
        if let (Some(first_at), Some(since)) = (first_at, query.since)
            && first_at + DISORDER < since
        {
            break;
        }
    }
    Ok(found)
}

/// Adds the records of one segment to `found`, the newest first, until it has `limit`.
fn find_in(
    bytes: &[u8],
    first: u64,
    query: &Query,
    before: u64,
    limit: usize,
    found: &mut Vec<RecordedDenial>,
) {
    let mut places = Vec::new();
    for (place, head) in Records::new(bytes, first) {
        if head.seq >= before {
            break;
        }
        if query.may_want(&head, &bytes[place..place + head.length]) {
            places.push(place);
        }
    }
    let denials = places.into_iter().rev();
    let denials = denials.filter_map(|place| decode(&bytes[place..]));
    let denials = denials.filter(|denial| query.wants(denial));
    found.extend(denials.take(limit - found.len()));
}

/// Locks the directory for this process. The system frees the lock when the process ends.
fn lock(directory: &Path) -> Result<File, JournalError> {
    let path = directory.join(LOCK);
    let failed = |error| JournalError::Io {
        path: path.clone(),
        error,
    };
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = private_file::open(&mut options, &path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::Locked {
            path: directory.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Returns the segments, the oldest first, each with the sequence number of its first record.
fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        if let Some(first) = number.and_then(|number| number.parse().ok()) {
            paths.push((first, path));
        }
    }
    paths.sort();
    Ok(paths)
}

fn create(directory: &Path, first: u64, now: Time) -> io::Result<Open> {
    let path = directory.join(format!("{PREFIX}{first:020}{SUFFIX}"));
    let mut file = private_file::open(OpenOptions::new().write(true).create_new(true), &path)?;
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
    header[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
    if let Err(error) = file.write_all(&header) {
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok(Open {
        path,
        file,
        size: HEADER as u64,
        first_at: now,
        last_at: now,
    })
}

/// Opens a segment for reading and writing, and checks its header. A header that is cut short counts as one of
/// this version: the process ended before it was whole.
fn open_segment(path: &Path) -> Result<File, JournalError> {
    let failed = |error| JournalError::Io {
        path: path.to_owned(),
        error,
    };
    let mut options = OpenOptions::new();
    let mut file = private_file::open(options.read(true).write(true), path).map_err(failed)?;
    let mut header = Vec::with_capacity(HEADER);
    let limited = (&mut file).take(HEADER as u64).read_to_end(&mut header);
    limited.map_err(failed)?;
    if header.len() == HEADER {
        let mut version = [0; 4];
        version.copy_from_slice(&header[MAGIC.len()..]);
        let version = u32::from_le_bytes(version);
        if header[..MAGIC.len()] != MAGIC {
            let path = path.to_owned();
            return Err(JournalError::NotASegment { path });
        }
        if version != VERSION {
            let path = path.to_owned();
            return Err(JournalError::Newer { path, version });
        }
    }
    Ok(file)
}

/// Returns the whole content of a file, with at least the length of a header.
fn read_all(file: &mut File) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(0))?;
    // A segment that another process has replaced is not read beyond the largest size.
    let most = MAX_SEGMENT + MAX_STEP as u64;
    let length = file.metadata()?.len().min(most);
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(most).read_to_end(&mut bytes)?;
    if bytes.len() < HEADER {
        bytes.resize(HEADER, 0);
    }
    Ok(bytes)
}

fn to_time(modified: std::time::SystemTime) -> Time {
    let since = modified.duration_since(std::time::UNIX_EPOCH);
    let micros = since.map_or(0, |it| u64::try_from(it.as_micros()).unwrap_or(0));
    Time::from_micros(micros)
}
