//! Reads lines of bounded length from plain and compressed files.

use std::collections::VecDeque;
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
    line: Line,
    /// Lines that were read before their turn.
    ahead: VecDeque<Line>,
    /// How many lines were read.
    count: u64,
}

/// A line with its number, from 1, and why it cannot be used.
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    number: u64,
    problem: Option<&'static str>,
}

impl Line {
    fn text(&self) -> RawLine<'_> {
        if let Some(problem) = self.problem {
            return RawLine::Bad(problem);
        }
        match std::str::from_utf8(self.bytes.trim_ascii_end()) {
            Ok(text) => RawLine::Text(text),
            Err(_) => RawLine::Bad("the line is not UTF-8"),
        }
    }
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
            line: Line::default(),
            ahead: VecDeque::new(),
            count: 0,
        })
    }

    /// Returns the number of the current line.
    pub(super) fn number(&self) -> u64 {
        self.line.number
    }

    /// Reads the next line that is not empty; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<RawLine<'_>>> {
        if let Some(line) = self.ahead.pop_front() {
            self.line = line;
            return Ok(Some(self.line.text()));
        }
        let mut line = std::mem::take(&mut self.line);
        let is_there = self.read(&mut line)?;
        self.line = line;
        Ok(is_there.then(|| self.line.text()))
    }

    /// Returns the next `count` lines that are not empty, or those that are left, without the ones that cannot be used.
    /// They stay to be read.
    pub(super) fn peek(&mut self, count: usize) -> io::Result<Vec<&str>> {
        while self.ahead.len() < count {
            let mut line = Line::default();
            if !self.read(&mut line)? {
                break;
            }
            self.ahead.push_back(line);
        }
        let lines = self.ahead.iter().take(count);
        let texts = lines.filter_map(|line| match line.text() {
            RawLine::Text(text) => Some(text),
            RawLine::Bad(_) => None,
        });
        Ok(texts.collect())
    }

    /// Reads the next line that is not empty. Returns whether there is one.
    fn read(&mut self, line: &mut Line) -> io::Result<bool> {
        line.problem = None;
        loop {
            line.bytes.clear();
            let mut limited = self.reader.by_ref().take(MAX_LINE as u64 + 1);
            if limited.read_until(b'\n', &mut line.bytes)? == 0 {
                return Ok(false);
            }
            self.count += 1;
            line.number = self.count;
            if line.bytes.len() > MAX_LINE && line.bytes.last() != Some(&b'\n') {
                self.skip_rest()?;
                line.problem = Some("the line is longer than 64 KiB");
                return Ok(true);
            }
            if !line.bytes.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
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
