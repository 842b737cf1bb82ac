//! Reads lines of bounded length from plain and compressed files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

/// Longer lines are skipped and counted as malformed.
pub(super) const MAX_LINE: usize = 64 * 1024;
const BUFFER: usize = 256 * 1024;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// How many bytes of the files were read so far. Clones share the number.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Returns the bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A reader that counts its bytes.
struct Counted<R> {
    inner: R,
    progress: Progress,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.progress.0.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A log: its name, and its lines.
pub struct Source {
    pub(super) name: String,
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A line, or why it cannot be used.
pub(super) enum RawLine<'s> {
    Text(&'s str),
    Bad(&'static str),
}

impl Source {
    /// Opens a file, compressed with gzip or not; `-` is the standard input.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn open(path: &Path, progress: &Progress) -> io::Result<Source> {
        if path == Path::new("-") {
            return Source::new("standard input", io::stdin(), progress);
        }
        let file = File::open(path)?;
        Source::new(&path.display().to_string(), file, progress)
    }

    /// Reads lines from any reader, compressed with gzip or not.
    ///
    /// # Errors
    /// If the first bytes cannot be read.
    pub fn new(name: &str, reader: impl Read + 'static, progress: &Progress) -> io::Result<Source> {
        let counted = Counted {
            inner: reader,
            progress: progress.clone(),
        };
        let mut reader = BufReader::with_capacity(BUFFER, counted);
        let is_gzip = reader.fill_buf()?.starts_with(&GZIP);
        let reader: Box<dyn BufRead> = match is_gzip {
            true => {
                let decoder = MultiGzDecoder::new(reader);
                Box::new(BufReader::with_capacity(BUFFER, decoder))
            }
            false => Box::new(reader),
        };
        Ok(Source {
            name: name.to_owned(),
            reader,
            line: Vec::new(),
            number: 0,
        })
    }

    /// Returns the number of the line that was read last.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Reads the next line that is not empty; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<RawLine<'_>>> {
        loop {
            self.line.clear();
            let mut limited = self.reader.by_ref().take(MAX_LINE as u64 + 1);
            if limited.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.line.len() > MAX_LINE && self.line.last() != Some(&b'\n') {
                self.skip_rest()?;
                return Ok(Some(RawLine::Bad("the line is longer than 64 KiB")));
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        let text = std::str::from_utf8(self.line.trim_ascii_end());
        Ok(Some(match text {
            Ok(text) => RawLine::Text(text),
            Err(_) => RawLine::Bad("the line is not UTF-8"),
        }))
    }

    /// Skips the rest of a line that is too long.
    fn skip_rest(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            match buffer.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    self.reader.consume(end + 1);
                    return Ok(());
                }
                None => {
                    let all = buffer.len();
                    self.reader.consume(all);
                }
            }
        }
    }
}
