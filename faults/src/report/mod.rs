//! Writes docs/faults.md: the promises, and for each fault what was expected and observed.

mod introduction;

use std::fmt::Write as _;
use std::time::Duration;

use crate::fault::{Availability, Fault};
use crate::judge::{Back, LEEWAY, Promise, Row};
use crate::load::{QUIET, SUBJECTS};
use crate::policy::LIMIT;
use crate::run::Observed;

/// The most runs of a fault.
pub const RUNS: u32 = 3;

/// The most characters of a line in the report.
const WIDTH: usize = 100;

/// A fault, its observations, and the verdicts.
#[derive(Debug)]
pub struct Finding {
    /// The fault.
    pub fault: Fault,
    /// The observations.
    pub observed: Observed,
    /// The results of each policy.
    pub rows: Vec<Row>,
    /// How often the fault was run, this run included.
    pub runs: u32,
}

impl Finding {
    /// Returns whether all promises were kept.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.rows.iter().all(|row| row.broken.is_empty())
    }

    /// Returns whether promises were broken, but only such that a busy machine can break.
    #[must_use]
    pub fn may_be_the_machine(&self) -> bool {
        let mut broken = self.rows.iter().flat_map(|row| &row.broken);
        !self.is_kept() && broken.all(|it| it.depends_on_machine())
    }

    fn worst(&self, figure: impl Fn(&Row) -> Duration) -> Duration {
        self.rows.iter().map(figure).max().unwrap_or_default()
    }

    fn open_median(&self) -> Option<Duration> {
        self.rows.iter().filter_map(|row| row.open_median).max()
    }

    fn sum(&self, figure: impl Fn(&Row) -> u64) -> u64 {
        self.rows.iter().map(figure).sum()
    }

    /// Returns when the store was back for the last of the policies.
    fn back(&self) -> Back {
        let rank = |back: &Back| match back {
            Back::NeverGone => Duration::ZERO,
            Back::After(after) => *after,
            Back::Never => Duration::MAX,
        };
        let backs = self.rows.iter().map(|row| row.back);
        backs.max_by_key(rank).unwrap_or(Back::NeverGone)
    }
}

impl Promise {
    fn name(self) -> &'static str {
        match self {
            Promise::InTime => "in time",
            Promise::QuickWhenOpen => "quick when open",
            Promise::Opens => "breaker opens",
            Promise::StoreDecides => "store decides",
            Promise::WithinBound => "within bound",
            Promise::NoError => "no error",
            Promise::ComesBack => "comes back",
            Promise::TotalsRight => "totals right",
        }
    }
}

/// Returns a line about a finding for the terminal, and a line for each policy that broke a promise.
#[must_use]
pub fn in_brief(finding: &Finding) -> String {
    let mut line = format!(
        "{:<18} worst {:>6} undelayed {:>6}, open {:>7}, wrong {}, errors {}, back {:>7}: {}",
        finding.fault.name,
        in_millis(finding.worst(|row| row.worst)),
        in_millis(finding.worst(|row| row.worst_undelayed)),
        finding.open_median().map_or("-".to_owned(), in_micros),
        finding.sum(|row| row.wrong),
        finding.sum(|row| row.errors as u64),
        in_words(finding.back()),
        verdict(finding.is_kept()),
    );
    for row in &finding.rows {
        if !row.broken.is_empty() {
            let _ = write!(
                line,
                "\n    {}: {} (fresh: {})",
                row.policy.name(),
                names(&row.broken),
                fresh(row)
            );
        }
    }
    line
}

/// Returns the whole report.
#[must_use]
pub fn document(findings: &[Finding]) -> String {
    let mut text = introduction::text();
    text.push_str(&summary(findings));
    for finding in findings {
        text.push_str(&section(finding));
    }
    wrapped(&text)
}

/// Wraps lines at [`WIDTH`] characters, except in tables and code.
fn wrapped(text: &str) -> String {
    let mut wrapped = String::new();
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        if in_code || line.starts_with('|') {
            wrapped.push_str(line);
        } else {
            let indent = if line.starts_with("- ") { "  " } else { "" };
            let mut column = 0;
            for word in line.split(' ') {
                let length = word.chars().count();
                if column > 0 && column + 1 + length > WIDTH {
                    wrapped.push('\n');
                    wrapped.push_str(indent);
                    column = indent.len();
                } else if column > 0 {
                    wrapped.push(' ');
                    column += 1;
                }
                wrapped.push_str(word);
                column += length;
            }
        }
        wrapped.push('\n');
    }
    wrapped
}

fn summary(findings: &[Finding]) -> String {
    let mut text = String::from(
        "\n## Summary\n\n\
         Each row has the worst value of the seven policies.\n\n\
         | fault | store meanwhile | worst decision | undelayed | median, breaker open | wrong \
         | errors | back after | promises |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for finding in findings {
        let _ = writeln!(
            text,
            "| [{name}](#{name}) | {} | {} | {} | {} | {} | {} | {} | {} |",
            match finding.fault.availability {
                Availability::Gone => "gone",
                Availability::Available => "there",
            },
            in_millis(finding.worst(|row| row.worst)),
            in_millis(finding.worst(|row| row.worst_undelayed)),
            finding.open_median().map_or("-".to_owned(), in_micros),
            finding.sum(|row| row.wrong),
            finding.sum(|row| row.errors as u64),
            in_words(finding.back()),
            verdict(finding.is_kept()),
            name = finding.fault.name,
        );
    }
    text
}

/// Returns the section of one fault.
#[must_use]
pub fn section(finding: &Finding) -> String {
    let Finding {
        fault,
        observed,
        rows,
        ..
    } = finding;
    let mut text = format!(
        "\n## {}\n\n{}\n\n**Expected.** {}\n\n**Seen.** ",
        fault.name, fault.what, fault.expected
    );
    if finding.runs > 1 {
        let _ = write!(text, "This is run {}. ", finding.runs);
    }
    let _ = write!(
        text,
        "The fault lasted {}. ",
        in_seconds(observed.ended - observed.began)
    );
    let errors = observed.errors.iter();
    let errors: Vec<String> = errors
        .map(|(kind, count)| format!("{count} `{kind}`"))
        .collect();
    match errors[..] {
        [] => text.push_str("No call to the store failed. "),
        _ => {
            let _ = write!(
                text,
                "Calls to the store failed with these errors: {}. ",
                errors.join(", ")
            );
        }
    }
    let _ = write!(
        text,
        "A timer of the process was at most {} late. ",
        in_millis(observed.delays.worst())
    );
    let bar = observed.timeout + LEEWAY;
    let late = observed.samples.iter().filter(|it| it.took() > bar).count();
    if late > 0 {
        let _ = write!(
            text,
            "{late} decisions of {} took longer than {} as measured. ",
            observed.samples.len(),
            plainly(bar)
        );
    }
    if finding.is_kept() {
        text.push_str("All promises were kept.\n\n");
    } else {
        let broken = rows.iter().filter(|row| !row.broken.is_empty());
        let broken = broken.map(|row| format!("`{}` {}", row.policy.name(), names(&row.broken)));
        let broken: Vec<String> = broken.collect();
        let _ = write!(text, "**Broken:** {}.\n\n", broken.join("; "));
    }
    text + &table(finding)
}

fn table(finding: &Finding) -> String {
    let mut text = String::from(
        "| policy | requests | by store | by policy | known | worst | undelayed | median, open | above \
         | wrong | errors | back after | fresh | |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in &finding.rows {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.policy.name(),
            row.requests,
            row.by_store,
            row.by_policy,
            row.known_denials,
            in_millis(row.worst),
            in_millis(row.worst_undelayed),
            row.open_median.map_or("-".to_owned(), in_micros),
            row.above,
            row.wrong,
            row.errors,
            in_words(row.back),
            fresh(row),
            verdict(row.broken.is_empty()),
        );
    }
    text
}

fn fresh(row: &Row) -> String {
    let mut text = row.fresh.admitted.to_string();
    if row.fresh.refilled > 0 {
        let _ = write!(
            text,
            " of {}-{}",
            LIMIT.capacity,
            LIMIT.capacity + row.fresh.refilled
        );
    } else {
        let _ = write!(text, " of {}", LIMIT.capacity);
    }
    if !row.fresh.by_store {
        text.push_str(", by the policy");
    }
    if row.wrong_denials > 0 {
        let quiet = SUBJECTS[QUIET].name;
        let _ = write!(text, "; {quiet} denied {} times", row.wrong_denials);
    }
    text
}

fn names(promises: &[Promise]) -> String {
    let names: Vec<&str> = promises.iter().map(|it| it.name()).collect();
    names.join(", ")
}

fn verdict(kept: bool) -> &'static str {
    if kept { "kept" } else { "**BROKEN**" }
}

fn in_words(back: Back) -> String {
    match back {
        Back::NeverGone => "-".to_owned(),
        Back::After(after) => in_millis(after),
        Back::Never => "never".to_owned(),
    }
}

/// Formats a duration that was chosen, not measured: all its digits are shown.
fn plainly(duration: Duration) -> String {
    let text = format!("{duration:?}");
    let unit = text
        .find(|it: char| !it.is_ascii_digit())
        .unwrap_or(text.len());
    format!("{} {}", &text[..unit], &text[unit..])
}

fn in_seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn in_millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1e3;
    let digits = usize::from(millis < 100.0);
    format!("{millis:.digits$} ms")
}

fn in_micros(duration: Duration) -> String {
    format!("{:.1} µs", duration.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_have_the_current_texts() {
        let docs = include_str!("../../../docs/faults.md");
        assert!(
            docs.starts_with(&wrapped(&introduction::text())),
            "write docs/faults.md again"
        );
        for fault in crate::fault::ALL {
            let texts = format!(
                "\n## {}\n\n{}\n\n**Expected.** {}\n",
                fault.name, fault.what, fault.expected
            );
            assert!(docs.contains(&wrapped(&texts)), "{}", fault.name);
        }
    }

    #[test]
    fn only_prose_is_wrapped() {
        let long = "word ".repeat(30).trim_end().to_owned();
        let text = format!("- {long}\n| {long} |\n```\n{long}\n```\n");
        let lines: Vec<String> = wrapped(&text).lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 6);
        assert!(lines[0].len() <= WIDTH && lines[1].starts_with("  word"));
        assert_eq!(lines[2], format!("| {long} |"));
        assert_eq!(lines[4], long);
    }

    #[test]
    fn chosen_duration_is_written_without_decimals() {
        assert_eq!(plainly(Duration::from_millis(5)), "5 ms");
        assert_eq!(plainly(Duration::from_micros(50)), "50 µs");
        assert_eq!(plainly(Duration::from_secs(1)), "1 s");
    }
}
