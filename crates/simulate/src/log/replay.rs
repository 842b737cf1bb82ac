//! Replays logs: merges them by time, and calls back for each request.
//!
//! Most logs tell time in whole seconds. The requests of one second are then spread evenly over the second.
//! A line whose time is before that of an earlier line gets the time of that line: time never goes backwards.

use std::io;

use tollgate::{Attributes, Config, Span, Time};

use super::entry::{Fields, Format, LineReader};
use super::lines::{RawLine, Source};
use super::time::Stamp;

/// The places of this many malformed lines are kept.
const KEPT: usize = 5;
/// At most this many requests of one second are spread together.
const MOST_IN_SECOND: usize = 100_000;
const SECOND: u64 = 1_000_000;

/// What was found in the logs.
#[derive(Clone, Debug, Default)]
pub struct LogSummary {
    /// The lines that became requests.
    pub requests: u64,
    /// The lines that could not be read.
    pub malformed: u64,
    /// The first malformed lines.
    pub first_malformed: Vec<BadLine>,
    /// The lines whose time was before that of an earlier line.
    pub out_of_order: u64,
    /// By how much, at most.
    pub furthest_back: Span,
    /// Whether a time without a fraction of a second was found.
    pub whole_seconds: bool,
    /// The format of each log, in their order.
    pub formats: Vec<Format>,
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// The name of the log.
    pub log: String,
    /// The number of the line, from 1.
    pub line: u64,
    /// What is wrong.
    pub problem: &'static str,
}

/// A log with its next line.
struct Open {
    source: Source,
    reader: Option<LineReader>,
    /// The next line; `None` at the end.
    next: Option<Next>,
}

/// A line that was read, but not yet decided.
struct Next {
    stamp: Stamp,
    text: String,
    number: u64,
}

/// Replays logs through a callback.
pub struct Replay<'c> {
    config: &'c Config,
    fields: Fields,
    logs: Vec<Open>,
    summary: LogSummary,
}

impl std::fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").finish_non_exhaustive()
    }
}

/// The lines of one second.
#[derive(Default)]
struct Batch {
    text: String,
    /// The end of each line in `text`, the log that it comes from, and its number there.
    lines: Vec<(usize, usize, u64)>,
    second: u64,
}

impl<'c> Replay<'c> {
    /// Prepares to replay `logs`. The routes of `config` set the actions of requests.
    #[must_use]
    pub fn new(config: &'c Config, fields: Fields, logs: Vec<Source>) -> Replay<'c> {
        let open = |source| Open {
            source,
            reader: None,
            next: None,
        };
        Replay {
            config,
            fields,
            logs: logs.into_iter().map(open).collect(),
            summary: LogSummary::default(),
        }
    }

    /// Calls `each` with the time and the attributes of every request, in the order of time.
    ///
    /// # Errors
    /// If a log cannot be read, or has no field that an attribute comes from.
    pub fn run(
        mut self,
        each: &mut dyn FnMut(Time, &Attributes<'_>),
    ) -> Result<LogSummary, io::Error> {
        for log in 0..self.logs.len() {
            self.advance(log)?;
        }
        let mut batch = Batch::default();
        let mut last = 0;
        while let Some((log, stamp)) = self.earliest() {
            let mut micros = stamp.micros;
            if micros < last {
                self.summary.out_of_order += 1;
                let back = Span::from_micros(last - micros);
                self.summary.furthest_back = self.summary.furthest_back.max(back);
                micros = last;
            }
            let second = micros / SECOND;
            if !batch.lines.is_empty()
                && (batch.second != second
                    || !stamp.is_whole
                    || batch.lines.len() >= MOST_IN_SECOND)
            {
                last = self.flush(&mut batch, last, each);
                micros = micros.max(last);
            }
            let Some(next) = self.logs[log].next.take() else {
                continue;
            };
            if stamp.is_whole {
                self.summary.whole_seconds = true;
                batch.second = second;
                batch.text += &next.text;
                batch.lines.push((batch.text.len(), log, next.number));
                last = last.max(second * SECOND);
            } else {
                self.decide((log, next.number), &next.text, micros, each);
                last = micros;
            }
            // The text is used again for the next line.
            self.logs[log].next = Some(next);
            self.advance(log)?;
        }
        self.flush(&mut batch, last, each);
        let formats = self.logs.iter().filter_map(|log| log.reader.as_ref());
        self.summary.formats = formats.map(LineReader::format).collect();
        Ok(self.summary)
    }

    /// Returns the log whose next line is the earliest.
    fn earliest(&self) -> Option<(usize, Stamp)> {
        let next = self.logs.iter().enumerate();
        let next = next.filter_map(|(log, open)| Some((log, open.next.as_ref()?.stamp)));
        next.min_by_key(|(_, stamp)| stamp.micros)
    }

    /// Reads the next good line of a log.
    fn advance(&mut self, log: usize) -> io::Result<()> {
        let open = &mut self.logs[log];
        let mut text = open.next.take().map(|it| it.text).unwrap_or_default();
        loop {
            let problem = match open.source.next()? {
                None => return Ok(()),
                Some(RawLine::Bad(problem)) => problem,
                Some(RawLine::Text(line)) => {
                    let reader = match &open.reader {
                        Some(reader) => reader,
                        None => {
                            let format = self.fields.format.unwrap_or_else(|| Format::of(line));
                            let reader = LineReader::new(format, &self.fields);
                            open.reader.insert(reader.map_err(io::Error::other)?)
                        }
                    };
                    match reader.stamp(line) {
                        Ok(stamp) => {
                            text.clear();
                            text += line;
                            open.next = Some(Next {
                                stamp,
                                text,
                                number: open.source.number(),
                            });
                            return Ok(());
                        }
                        Err(problem) => problem,
                    }
                }
            };
            let bad = BadLine {
                log: open.source.name.clone(),
                line: open.source.number(),
                problem,
            };
            note(&mut self.summary, bad);
        }
    }

    /// Decides the requests of a second, spread over it. Returns the time of the last one.
    fn flush(
        &mut self,
        batch: &mut Batch,
        last: u64,
        each: &mut dyn FnMut(Time, &Attributes<'_>),
    ) -> u64 {
        let count = batch.lines.len() as u64;
        let start = (batch.second * SECOND).max(last);
        // The rest of the second, if earlier requests already used a part of it.
        let rest = ((batch.second + 1) * SECOND).saturating_sub(start);
        let (mut from, mut at) = (0, last);
        let text = std::mem::take(&mut batch.text);
        for (place, (end, log, number)) in (0_u64..).zip(batch.lines.drain(..)) {
            at = start + rest * place / count;
            self.decide((log, number), &text[from..end], at, each);
            from = end;
        }
        batch.text = text;
        batch.text.clear();
        at
    }

    fn decide(
        &mut self,
        (log, number): (usize, u64),
        line: &str,
        micros: u64,
        each: &mut dyn FnMut(Time, &Attributes<'_>),
    ) {
        let open = &self.logs[log];
        let Some(reader) = &open.reader else { return };
        match reader.read(line) {
            Ok(entry) => {
                self.summary.requests += 1;
                let time = Time::from_micros(micros);
                reader.with_attributes(&entry, self.config, |attributes| each(time, attributes));
            }
            Err(problem) => {
                let bad = BadLine {
                    log: open.source.name.clone(),
                    line: number,
                    problem,
                };
                note(&mut self.summary, bad);
            }
        }
    }
}

fn note(summary: &mut LogSummary, bad: BadLine) {
    summary.malformed += 1;
    if summary.first_malformed.len() < KEPT {
        summary.first_malformed.push(bad);
    }
}
