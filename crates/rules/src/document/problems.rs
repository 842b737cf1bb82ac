//! The problems of a text: their positions, their messages, and how they are shown.
//!
//! Every problem of a file is collected, in the order of the file. The plain rendering
//! ([`Display`](fmt::Display)) is deterministic; [`ConfigError::render_color`] is for terminals.
//! Neither rendering shows a place that was marked with [`Problems::keep_secret`].

use std::collections::HashSet;
use std::fmt;

use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource};
use tollgate_core::ParamError;

/// Problems after this many are counted, but not shown.
const SHOWN: usize = 50;
/// Longer source lines are cut around the marker.
const LINE_WIDTH: usize = 140;
/// Problems in longer source lines are shown without colours and frames.
const FRAMED_WIDTH: usize = 8 * 1024;

/// A byte range of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Where the place starts.
    pub start: usize,
    /// Where the place ends: the first byte after it.
    pub end: usize,
}

impl Place {
    /// Makes the range from `start` to `end`; empty if `end` is before `start`.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Place {
        let end = end.max(start);
        Place { start, end }
    }
}

/// One problem of a text.
#[derive(Clone, Debug)]
pub struct Problem {
    place: Option<Place>,
    line: usize,
    column: usize,
    message: String,
    help: Option<String>,
}

impl Problem {
    /// The problem in words.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The remedy.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Line and column, counted from 1 in characters; `None` if the file could not be read at all.
    #[must_use]
    pub fn position(&self) -> Option<(usize, usize)> {
        self.place.map(|_| (self.line, self.column))
    }
}

/// Why a value was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// The problem, in words.
    pub message: String,
    /// How to write the value.
    pub help: String,
}

impl BadValue {
    /// Makes the error of a rejected value: its problem in words, and how to write the value.
    pub fn new(message: impl Into<String>, help: impl Into<String>) -> BadValue {
        let (message, help) = (message.into(), help.into());
        BadValue { message, help }
    }
}

impl From<ParamError> for BadValue {
    fn from(error: ParamError) -> BadValue {
        BadValue::new(error.to_string(), error.help())
    }
}

/// Collects the problems of one source while it is read.
#[derive(Debug)]
pub struct Problems<'s> {
    source: &'s str,
    /// Where each line starts.
    lines: Vec<usize>,
    found: Vec<Problem>,
    /// Problems of the environment, not of the text.
    outside: Vec<Problem>,
    secrets: Vec<Place>,
    /// Where secrets start.
    hidden: HashSet<usize>,
}

impl<'s> Problems<'s> {
    /// Starts to collect the problems of `source`.
    #[must_use]
    pub fn new(source: &'s str) -> Problems<'s> {
        Problems {
            source,
            lines: line_starts(source),
            found: Vec::new(),
            outside: Vec::new(),
            secrets: Vec::new(),
            hidden: HashSet::new(),
        }
    }

    /// The text that is read.
    #[must_use]
    pub fn source(&self) -> &'s str {
        self.source
    }

    /// Records a problem and its remedy.
    pub fn report(&mut self, place: Place, message: impl Into<String>, help: impl Into<String>) {
        self.found.push(problem(place, message.into(), help.into()));
    }

    /// Records a problem of the environment that the text is read in, and its remedy. The problem is an
    /// error like any other, unless [`take_outside`](Self::take_outside) removes it.
    pub fn report_outside(
        &mut self,
        place: Place,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.outside
            .push(problem(place, message.into(), help.into()));
    }

    /// Removes and returns the problems of the environment, so that only problems of the text
    /// remain.
    pub fn take_outside(&mut self) -> Vec<Problem> {
        let mut outside = std::mem::take(&mut self.outside);
        self.locate(&mut outside);
        outside
    }

    /// Puts problems into the order of the source, keeps those that are shown, and sets their positions.
    /// Returns how many are not shown.
    fn locate(&self, problems: &mut Vec<Problem>) -> usize {
        problems.sort_by_key(|problem| problem.place.map(|place| place.start));
        let more = problems.len().saturating_sub(SHOWN);
        problems.truncate(SHOWN);
        for problem in problems {
            if let Some(place) = problem.place {
                (problem.line, problem.column) = self.position(place);
            }
        }
        more
    }

    /// Returns the value that was read at `place`, or reports why it was rejected.
    pub fn accept<T>(&mut self, place: Place, value: Result<T, impl Into<BadValue>>) -> Option<T> {
        value
            .map_err(|bad| {
                let bad = bad.into();
                self.report(place, bad.message, bad.help);
            })
            .ok()
    }

    /// Keeps the text at `place` out of every rendering.
    pub fn keep_secret(&mut self, place: Place) {
        self.secrets.push(place);
        self.hidden.insert(place.start);
    }

    /// The places that are kept out of every rendering.
    #[must_use]
    pub fn secrets(&self) -> &[Place] {
        &self.secrets
    }

    /// Whether the text at `place` is secret and must not be quoted.
    pub(super) fn hides(&self, place: Place) -> bool {
        self.hidden.contains(&place.start)
    }

    /// Returns the line where `place` starts, counted from 1.
    #[must_use]
    pub fn line_of(&self, place: Place) -> usize {
        self.position(place).0
    }

    /// Returns the line and the column where `place` starts, counted from 1 in characters.
    #[must_use]
    pub fn position(&self, place: Place) -> (usize, usize) {
        position(self.source, &self.lines, place.start)
    }

    /// How many problems of the text were reported.
    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether nothing was reported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.outside.is_empty()
    }

    /// Whether further problems would be counted but not shown.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= SHOWN
    }

    /// Turns everything that was reported into an error. `name` is the name of the source.
    #[must_use]
    pub fn into_error(mut self, name: &str) -> ConfigError {
        let mut problems = std::mem::take(&mut self.found);
        problems.append(&mut self.outside);
        let more = self.locate(&mut problems);
        ConfigError {
            name: name.to_owned(),
            source: mask(self.source, &self.secrets),
            problems,
            more,
        }
    }
}

fn problem(place: Place, message: String, help: String) -> Problem {
    Problem {
        place: Some(place),
        line: 0,
        column: 0,
        message,
        help: (!help.is_empty()).then_some(help),
    }
}

/// Why a text was rejected: all of its problems.
#[derive(Clone, Debug)]
pub struct ConfigError {
    name: String,
    source: String,
    problems: Vec<Problem>,
    more: usize,
}

impl ConfigError {
    /// Makes the error for a file that could not be read at all.
    #[must_use]
    pub fn unreadable(name: &str, message: String, help: &str) -> ConfigError {
        ConfigError {
            name: name.to_owned(),
            source: String::new(),
            problems: vec![Problem {
                place: None,
                line: 0,
                column: 0,
                message,
                help: Some(help.to_owned()),
            }],
            more: 0,
        }
    }

    /// The name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The problems, in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Renders the problems like `Display`, but with colours and frames, for a terminal.
    #[must_use]
    pub fn render_color(&self) -> String {
        // The frames are drawn with widths that fit into 16 bits.
        if self.source.lines().any(|line| line.len() > FRAMED_WIDTH) {
            return self.to_string();
        }
        let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode());
        let mut out = String::new();
        for problem in &self.problems {
            let mut diagnostic = MietteDiagnostic::new(problem.message.clone());
            if let Some(help) = &problem.help {
                diagnostic = diagnostic.with_help(help.clone());
            }
            let report = match problem.place {
                None => miette::Report::new(diagnostic),
                Some(place) => {
                    let label = LabeledSpan::at(place.start..place.end, "here");
                    let source = NamedSource::new(&self.name, self.source.clone());
                    miette::Report::new(diagnostic.with_label(label)).with_source_code(source)
                }
            };
            if handler.render_report(&mut out, report.as_ref()).is_err() {
                return self.to_string();
            }
        }
        let _ = self.write_more(&mut out);
        out
    }

    fn write_more(&self, out: &mut impl fmt::Write) -> fmt::Result {
        if self.more > 0 {
            write!(out, "\n... and {} more problems", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            match problem.place {
                None => write!(f, "{}: {}", self.name, problem.message)?,
                Some(place) => {
                    let (name, line, column) = (&self.name, problem.line, problem.column);
                    writeln!(f, "{name}:{line}:{column}: {}", problem.message)?;
                    write_line(f, &self.source, place, line, column)?;
                }
            }
            if let Some(help) = &problem.help {
                write!(f, "\n  help: {help}")?;
            }
        }
        self.write_more(f)
    }
}

/// Writes the source line, and a marker under the place.
fn write_line(
    f: &mut fmt::Formatter<'_>,
    source: &str,
    place: Place,
    line: usize,
    column: usize,
) -> fmt::Result {
    let text = source.lines().nth(line - 1).unwrap_or_default();
    let skipped = match text.chars().count() > LINE_WIDTH {
        true => (column - 1).saturating_sub(LINE_WIDTH / 2),
        false => 0,
    };
    let shown: String = text
        .chars()
        .skip(skipped)
        .take(LINE_WIDTH)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let before = column - 1 - skipped;
    let marked = source
        .get(place.start..place.end)
        .and_then(|marked| marked.lines().next())
        .map_or(1, |marked| marked.chars().count());
    let room = shown.chars().count().saturating_sub(before);
    let marker = " ".repeat(before) + &"^".repeat(marked.min(room).max(1));
    let blank = " ".repeat(line.to_string().len());
    let shown = shown.trim_end();
    write!(f, "  {blank} |\n  {line} | {shown}\n  {blank} | {marker}")
}

fn line_starts(source: &str) -> Vec<usize> {
    let after = source.match_indices('\n').map(|(newline, _)| newline + 1);
    std::iter::once(0).chain(after).collect()
}

/// Returns the line and the column of a byte offset, counted from 1.
fn position(source: &str, lines: &[usize], offset: usize) -> (usize, usize) {
    let mut offset = offset.min(source.len());
    while !source.is_char_boundary(offset) {
        offset -= 1;
    }
    let line = lines.partition_point(|start| *start <= offset).max(1);
    let start = lines.get(line - 1).copied().unwrap_or(0);
    (line, source[start..offset].chars().count() + 1)
}

/// Replaces every byte of the secrets in the source, so that offsets do not change.
fn mask(source: &str, secrets: &[Place]) -> String {
    let mut bytes = source.as_bytes().to_vec();
    for place in secrets {
        for byte in bytes.iter_mut().take(place.end).skip(place.start) {
            if *byte != b'\n' {
                *byte = b'*';
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let at = |source: &str, offset| position(source, &line_starts(source), offset);
        assert_eq!(at("", 0), (1, 1));
        assert_eq!(at("a\nbc", 1), (1, 2));
        assert_eq!(at("a\nbc", 2), (2, 1));
        assert_eq!(at("a\nbc", 3), (2, 2));
        assert_eq!(at("äö: x", 4), (1, 3));
        assert_eq!(at("ä", 1), (1, 1));
        assert_eq!(at("a", 99), (1, 2));
    }

    #[test]
    fn secrets_are_masked_in_both_renderings() {
        let source = "a: hunter2, b: x\n";
        let mut problems = Problems::new(source);
        problems.keep_secret(Place::new(3, 10));
        problems.report(Place::new(15, 16), "b is wrong", "leave it out");
        let error = problems.into_error("f.yaml");
        let plain = error.to_string();
        assert!(plain.contains("a: *******, b: x"), "{plain}");
        assert!(!plain.contains("hunter2"));
        assert!(!error.render_color().contains("hunter2"));
    }

    #[test]
    fn long_lines_are_cut_around_the_marker() {
        let source = format!("{}!{}", "a".repeat(1000), "b".repeat(1000));
        let mut problems = Problems::new(&source);
        problems.report(Place::new(1000, 1001), "no", "yes");
        let text = problems.into_error("f").to_string();
        assert!(text.lines().all(|line| line.len() < 200), "{text}");
        assert!(text.contains('!'));
    }
}
