//! Replays logs: merges them by time, and calls back for each request.
//!
//! Most logs tell time in whole seconds. The requests of one second are then spread evenly over the second, among those
//! of the same second whose time has a fraction. A line whose time is before that of an earlier line gets the time of
//! that line: time never goes backwards. A time that is more than a day after those of the lines around it is wrong: the
//! line counts as malformed.

use std::io;

use tollgate::{Attributes, Config, Span, Time};

use super::entry::{Fields, Format, LineReader};
use super::lines::{RawLine, Source};
use super::time::Stamp;

/// The places of this many malformed lines are kept.
const KEPT: usize = 5;
/// At most this many requests of one second are spread together, and so many bytes of their lines.
const MOST_IN_SECOND: usize = 100_000;
const MOST_BYTES: usize = 64 << 20;
/// The format of a log is guessed from so many lines.
const FIRST_LINES: usize = 10;
/// If a time is later than the one before by more than `JUMP`, the next lines have to confirm it. Of the next `VOTERS`
/// lines, the first `VOTES` that have a time are asked.
const JUMP: u64 = 86_400_000_000;
const VOTES: usize = 3;
const VOTERS: usize = 8;
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
    /// The latest time so far.
    latest: Option<u64>,
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
    /// Another config, if it gives requests other attributes.
    old: Option<&'c Config>,
    fields: Fields,
    logs: Vec<Open>,
    summary: LogSummary,
}

impl std::fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").finish_non_exhaustive()
    }
}

/// Lines of one second, which are decided together.
#[derive(Default)]
struct Batch {
    text: String,
    lines: Vec<InBatch>,
    /// How many of them have a time without a fraction.
    whole: u64,
    second: u64,
}

/// A line of a batch.
#[derive(Clone, Copy)]
struct InBatch {
    /// Its time; `None` if it is known only to the second.
    micros: Option<u64>,
    /// Where its text starts and ends.
    text: (usize, usize),
    /// The log that it comes from, and its number there.
    log: usize,
    number: u64,
}

impl Batch {
    fn add(&mut self, log: usize, next: &Next, micros: Option<u64>) {
        let start = self.text.len();
        self.text += &next.text;
        self.whole += u64::from(micros.is_none());
        self.lines.push(InBatch {
            micros,
            text: (start, self.text.len()),
            log,
            number: next.number,
        });
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= MOST_IN_SECOND || self.text.len() >= MOST_BYTES
    }
}

/// A function that is called for each request. It gets the time, the attributes, and the attributes by the routes and
/// networks of the config to compare with.
pub type EachRequest<'e> = dyn FnMut(Time, &Attributes<'_>, &Attributes<'_>) + 'e;

impl<'c> Replay<'c> {
    /// Prepares to replay `logs`. The routes of `config` set the actions of requests.
    #[must_use]
    pub fn new(config: &'c Config, fields: Fields, logs: Vec<Source>) -> Replay<'c> {
        let open = |source| Open {
            source,
            reader: None,
            latest: None,
            next: None,
        };
        Replay {
            config,
            old: None,
            fields,
            logs: logs.into_iter().map(open).collect(),
            summary: LogSummary::default(),
        }
    }

    /// Also finds the attributes of requests by the routes and networks of `old`, for [`Replay::run_both`].
    #[must_use]
    pub fn against(mut self, old: &'c Config) -> Replay<'c> {
        let is_same = old.routes == self.config.routes
            && old.subjects.internal == self.config.subjects.internal
            && old.subjects.ipv6_prefix == self.config.subjects.ipv6_prefix;
        self.old = (!is_same).then_some(old);
        self
    }

    /// Calls `each` with the time and the attributes of every request, in the order of time.
    ///
    /// # Errors
    /// If a log cannot be read, or has no field that an attribute comes from.
    pub fn run(self, each: &mut dyn FnMut(Time, &Attributes<'_>)) -> Result<LogSummary, io::Error> {
        self.run_both(&mut |time, attributes, _| each(time, attributes))
    }

    /// Calls `each` with the time of every request, and with its attributes by both configs, in the order of time.
    ///
    /// # Errors
    /// If a log cannot be read, or has no field that an attribute comes from.
    pub fn run_both(mut self, each: &mut EachRequest<'_>) -> Result<LogSummary, io::Error> {
        for log in 0..self.logs.len() {
            self.advance(log)?;
        }
        let mut batch = Batch::default();
        // The time of the last line, and that of the last request that was decided.
        let (mut last, mut decided) = (0, 0);
        while let Some((log, stamp)) = self.earliest() {
            let mut micros = stamp.micros;
            // A whole second is not before a fraction of the same second.
            let is_before = match stamp.is_whole {
                true => micros / SECOND < last / SECOND,
                false => micros < last,
            };
            if is_before {
                self.summary.out_of_order += 1;
                let back = Span::from_micros(last - micros);
                self.summary.furthest_back = self.summary.furthest_back.max(back);
            }
            micros = micros.max(last);
            let second = micros / SECOND;
            if !batch.lines.is_empty() && (batch.second != second || batch.is_full()) {
                let is_over = batch.second != second;
                decided = self.flush(&mut batch, decided, is_over, each);
                micros = micros.max(decided);
            }
            let Some(next) = self.logs[log].next.take() else {
                continue;
            };
            self.summary.whole_seconds |= stamp.is_whole;
            if stamp.is_whole {
                batch.second = second;
                batch.add(log, &next, None);
                last = micros;
            } else if batch.lines.is_empty() {
                self.decide((log, next.number), &next.text, micros, each);
                (last, decided) = (micros, micros);
            } else {
                batch.add(log, &next, Some(micros));
                last = micros;
            }
            // The text is used again for the next line.
            self.logs[log].next = Some(next);
            self.advance(log)?;
        }
        self.flush(&mut batch, decided, true, each);
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
        if open.reader.is_none() {
            let format = match self.fields.format {
                Some(format) => format,
                None => Format::of_lines(&open.source.peek(FIRST_LINES)?),
            };
            let reader = LineReader::new(format, &self.fields).map_err(io::Error::other)?;
            open.reader = Some(reader);
        }
        let Some(reader) = &open.reader else {
            return Ok(());
        };
        loop {
            let problem = match open.source.next()? {
                None => return Ok(()),
                Some(RawLine::Bad(problem)) => problem,
                Some(RawLine::Text(line)) => match reader.stamp(line) {
                    Err(problem) => problem,
                    Ok(stamp) => {
                        text.clear();
                        text += line;
                        let number = open.source.number();
                        let jump = open.latest.map_or(0, |latest| latest.saturating_add(JUMP));
                        if stamp.micros <= jump
                            || is_confirmed(&mut open.source, reader, stamp.micros, open.latest)?
                        {
                            open.latest = open.latest.max(Some(stamp.micros));
                            open.next = Some(Next {
                                stamp,
                                text,
                                number,
                            });
                            return Ok(());
                        }
                        "the time is more than a day after those of the next lines"
                    }
                },
            };
            let bad = BadLine {
                log: open.source.name.clone(),
                line: open.source.number(),
                problem,
            };
            note(&mut self.summary, bad);
        }
    }

    /// Decides the requests of a batch. Those without a fraction of a second are spread over the second, or over half of
    /// what is left of it if more requests of the second may follow. Returns the time of the last one.
    fn flush(
        &mut self,
        batch: &mut Batch,
        decided: u64,
        is_over: bool,
        each: &mut EachRequest<'_>,
    ) -> u64 {
        let start = (batch.second * SECOND).max(decided);
        let rest = ((batch.second + 1) * SECOND).saturating_sub(start);
        let rest = if is_over { rest } else { rest / 2 };
        let mut lines = std::mem::take(&mut batch.lines);
        let has_fractions = batch.whole < lines.len() as u64;
        for (line, place) in lines
            .iter_mut()
            .filter(|it| it.micros.is_none())
            .zip(0_u64..)
        {
            line.micros = Some(start + rest * place / batch.whole);
        }
        if has_fractions {
            lines.sort_by_key(|line| line.micros);
        }
        let text = std::mem::take(&mut batch.text);
        let mut at = decided;
        for line in &lines {
            at = line.micros.unwrap_or(at).max(at);
            let (from, to) = line.text;
            self.decide((line.log, line.number), &text[from..to], at, each);
        }
        lines.clear();
        *batch = Batch {
            text,
            lines,
            ..Batch::default()
        };
        batch.text.clear();
        at
    }

    fn decide(
        &mut self,
        (log, number): (usize, u64),
        line: &str,
        micros: u64,
        each: &mut EachRequest<'_>,
    ) {
        let open = &self.logs[log];
        let Some(reader) = &open.reader else { return };
        match reader.read(line) {
            Ok(entry) => {
                self.summary.requests += 1;
                let time = Time::from_micros(micros);
                reader.with_attributes(&entry, self.config, |attributes| match self.old {
                    None => each(time, attributes, attributes),
                    Some(old) => {
                        reader.with_attributes(&entry, old, |old| each(time, attributes, old));
                    }
                });
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

/// Whether the next lines of a log confirm a time that is long after the `latest` one. They do, unless most of them go
/// back.
fn is_confirmed(
    source: &mut Source,
    reader: &LineReader,
    micros: u64,
    latest: Option<u64>,
) -> io::Result<bool> {
    let lines = source.peek(VOTERS)?;
    let times = lines.iter().filter_map(|line| reader.stamp(line).ok());
    // Times before the latest one are out of order themselves.
    let from = latest.map_or(0, |latest| latest.saturating_sub(JUMP));
    let goes_back =
        |stamp: &Stamp| stamp.micros >= from && stamp.micros.saturating_add(JUMP) < micros;
    let votes: Vec<bool> = times.take(VOTES).map(|stamp| goes_back(&stamp)).collect();
    let against = votes.iter().filter(|it| **it).count();
    Ok(against * 2 <= votes.len())
}

fn note(summary: &mut LogSummary, bad: BadLine) {
    summary.malformed += 1;
    if summary.first_malformed.len() < KEPT {
        summary.first_malformed.push(bad);
    }
}
