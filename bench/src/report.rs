//! A report that is printed at once, and written into a document at the end.
//!
//! It remembers the bars that were missed, and the rows for the first table of the document: Tollgate against
//! each peer.

use std::error::Error;
use std::path::Path;

use crate::table::{Table, figure};

const END: &str = "<!-- end of what it wrote -->\n";
const PEERS: &str =
    "<!-- written by every benchmark with peers; `cargo xtask bench all --write` -->\n";
const HEADINGS: &str = "\
| the same work | peer | CPU us a request: Tollgate | peer | times | p99 ms: Tollgate | peer | times |
|---|---|---|---|---|---|---|---|
";

/// The figures of one side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The CPU time of the server and its Redis per request, in microseconds.
    pub cpu_micros: f64,
    /// The 99th percentile of the latency, in milliseconds.
    pub p99_millis: f64,
}

/// A report of one benchmark.
#[derive(Debug)]
pub struct Report {
    /// The marker before the report in the document.
    begin: String,
    text: String,
    missed: Vec<String>,
    /// Rows for the table of peers.
    peers: Vec<String>,
}

impl Report {
    /// Returns the report of `cargo xtask bench <bench> --write`.
    #[must_use]
    pub fn new(bench: &str) -> Report {
        Report {
            begin: format!("<!-- written by `cargo xtask bench {bench} --write` -->\n"),
            text: String::new(),
            missed: Vec::new(),
            peers: Vec::new(),
        }
    }

    /// Returns a report of `part`, in another place than the rest of the benchmark.
    #[must_use]
    pub fn part(bench: &str, part: &str) -> Report {
        let begin = format!("<!-- {part}, written by `cargo xtask bench {bench} --write` -->\n");
        Report {
            begin,
            ..Report::new(bench)
        }
    }

    /// Adds a paragraph.
    #[allow(clippy::print_stdout, reason = "a report is for the terminal")]
    pub fn say(&mut self, about: &str) {
        println!("{about}\n");
        self.text += &format!("\n{about}\n");
    }

    /// Adds a paragraph and tables.
    #[allow(clippy::print_stdout, reason = "a report is for the terminal")]
    pub fn section(&mut self, about: &str, tables: &[Table]) {
        self.say(about);
        for table in tables {
            println!("{table}");
            self.text += &format!("\n{}", table.markdown());
            self.missed.extend(table.missed());
        }
    }

    /// Adds a row to the table of peers. `theirs` is an error if the peer was not measured.
    pub fn against(
        &mut self,
        work: &str,
        peer: &str,
        ours: Figures,
        theirs: Result<Figures, &str>,
    ) {
        let cells = match theirs {
            Ok(theirs) => [
                figure(ours.cpu_micros, 1),
                figure(theirs.cpu_micros, 1),
                figure(theirs.cpu_micros / ours.cpu_micros, 2),
                figure(ours.p99_millis, 2),
                figure(theirs.p99_millis, 2),
                figure(theirs.p99_millis / ours.p99_millis, 2),
            ],
            Err(reason) => [
                figure(ours.cpu_micros, 1),
                format!("not measured: {reason}"),
                "-".to_owned(),
                figure(ours.p99_millis, 2),
                "-".to_owned(),
                "-".to_owned(),
            ],
        };
        let row = format!("| {work} | {peer} | {} |\n", cells.join(" | "));
        self.peers.push(row);
    }

    /// Returns the bars that were missed.
    #[must_use]
    pub fn missed(&self) -> &[String] {
        &self.missed
    }

    /// Replaces the report of an earlier run in `file`, and its rows in the table of peers.
    ///
    /// # Errors
    /// If the file cannot be read or written, or lacks the markers.
    pub fn write(&self, file: &Path) -> Result<(), Box<dyn Error>> {
        let old = std::fs::read_to_string(file)?;
        let new = self.merge(&old);
        let new = new.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(std::fs::write(file, new)?)
    }

    fn merge(&self, old: &str) -> Result<String, String> {
        let new = replace(old, &self.begin, |_| format!("{}\n", self.text))?;
        match self.peers.is_empty() {
            true => Ok(new),
            false => replace(&new, PEERS, |rows| peers(rows, &self.peers)),
        }
    }
}

/// Empties the table of peers in `file`.
///
/// # Errors
/// If the file cannot be read or written, or lacks the markers.
pub fn clear_peers(file: &Path) -> Result<(), Box<dyn Error>> {
    let old = std::fs::read_to_string(file)?;
    let new = replace(&old, PEERS, |_| peers("", &[]))?;
    Ok(std::fs::write(file, new)?)
}

/// Replaces the text between a marker and the next end.
fn replace(
    document: &str,
    begin: &str,
    text: impl FnOnce(&str) -> String,
) -> Result<String, String> {
    let parts = document.split_once(begin).and_then(|(before, rest)| {
        let (old, after) = rest.split_once(END)?;
        Some((before, old, after))
    });
    let (before, old, after) = parts.ok_or(format!("these markers are missing:\n{begin}{END}"))?;
    Ok([before, begin, &text(old), END, after].concat())
}

/// Returns the table of peers: `old` with `rows` in the places of rows with the same work and peer. Others are
/// added at the end.
fn peers(old: &str, rows: &[String]) -> String {
    let old = old.lines().filter(|line| line.starts_with('|')).skip(2);
    let mut all: Vec<String> = old.map(|line| format!("{line}\n")).collect();
    for row in rows {
        match all.iter_mut().find(|it| key(it) == key(row)) {
            Some(place) => place.clone_from(row),
            None => all.push(row.clone()),
        }
    }
    format!("\n{HEADINGS}{}\n", all.concat())
}

/// Returns what a row is about: the work, and the name of the peer without its version.
fn key(row: &str) -> Option<(&str, &str)> {
    let mut cells = row.split('|').map(str::trim).skip(1);
    let (work, peer) = (cells.next()?, cells.next()?);
    Some((work, peer.split(' ').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Bar;

    const OURS: Figures = Figures {
        cpu_micros: 20.0,
        p99_millis: 1.0,
    };
    const THEIRS: Figures = Figures {
        cpu_micros: 50.0,
        p99_millis: 4.0,
    };

    fn document() -> String {
        let begin = Report::new("x").begin;
        format!("# Title\n\n{PEERS}{END}\nProse.\n\n{begin}old\n{END}\nEnd.\n")
    }

    #[test]
    fn report_replaces_its_part_and_keeps_the_prose() {
        let mut report = Report::new("x");
        report.say("New.");
        let new = report.merge(&document()).unwrap();
        let begin = &report.begin;
        assert!(
            new.ends_with(&format!("Prose.\n\n{begin}\nNew.\n\n{END}\nEnd.\n")),
            "{new}"
        );
        assert!(Report::new("y").merge(&new).is_err());
    }

    #[test]
    fn row_of_a_peer_replaces_its_older_row() {
        let mut first = Report::new("x");
        first.against("RLS", "gubernator v1", OURS, Err("no network"));
        first.against("HTTP", "gubernator v1", OURS, Ok(THEIRS));
        let document = first.merge(&document()).unwrap();
        assert!(document.contains("| RLS | gubernator v1 | 20.0 | not measured: no network |"));
        let mut second = Report::new("x");
        second.against("RLS", "gubernator v2", OURS, Ok(THEIRS));
        let document = second.merge(&document).unwrap();
        let rows: Vec<&str> = document.lines().filter(|it| it.starts_with("| ")).collect();
        assert_eq!(
            rows[1..],
            [
                "| RLS | gubernator v2 | 20.0 | 50.0 | 2.50 | 1.00 | 4.00 | 4.00 |",
                "| HTTP | gubernator v1 | 20.0 | 50.0 | 2.50 | 1.00 | 4.00 | 4.00 |",
            ]
        );
    }

    #[test]
    fn missed_bars_are_remembered() {
        let mut table = Table::new(["", "ratio", "bar", ""]);
        for (name, ratio) in [("good", 0.5), ("bad", 2.0)] {
            let bar = Bar::AtMost(1.0);
            table.row([
                name.to_owned(),
                ratio.to_string(),
                bar.to_string(),
                bar.verdict(ratio),
            ]);
        }
        let mut report = Report::new("x");
        report.section("About.", &[table]);
        assert_eq!(report.missed(), ["bad: 2, bar <= 1"]);
    }
}
