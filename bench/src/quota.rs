//! The cost of a ledger. Compares a check with a ledger with a check without one, reserve and commit with one
//! check, and the ledger with a plain insert of the same rows.

mod checks;
mod ingest;
mod plain;
mod through_http;

use std::error::Error;
use std::path::Path;

use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table};

use crate::length::Length;

/// The most that a check may cost with an asynchronous ledger, relative to one without.
const MOST_OF_LEDGER: f64 = 1.3;
/// The most that reserve and commit may cost, in checks.
const MOST_OF_RESERVATION: f64 = 2.2;
/// The least speed of the ledger on SQLite, relative to a plain insert.
const LEAST_OF_INGEST: f64 = 0.5;

struct Effort {
    rounds: usize,
    requests: usize,
    entries: usize,
}

/// A pair of figures, in the unit of its table.
struct Pair {
    name: &'static str,
    ours: f64,
    theirs: f64,
    bar: Bar,
}

pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let (rounds, requests, entries) = length.pick(
        (2, 2_000, 5_000),
        (5, 50_000, 100_000),
        (9, 50_000, 100_000),
    );
    let effort = Effort {
        rounds,
        requests,
        entries,
    };
    let mut report = Report::new("quota");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (ledgered, mut reserved) = checks::measure(&effort).await?;
        reserved.push(through_http::measure(&effort)?);
        report.section(
            &format!(
                "Microseconds, medians of {rounds} rounds: a check of a quota with a ledger, against one without."
            ),
            &[table(["store", "with", "without"], &ledgered, 2)],
        );
        report.section(
            "Microseconds: reserve and commit, against one check of the same rules.",
            &[table(["store", "reserve + commit", "check"], &reserved, 2)],
        );
        let written = ingest::measure(&effort).await?;
        report.section(
            &format!(
                "Thousands of rows a second, {entries} rows: the ledger, against a plain batched insert."
            ),
            &[table(["database", "ledger", "plain"], &written, 1)],
        );
        Ok::<_, Box<dyn Error>>(())
    })?;
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

fn table([first, ours, theirs]: [&str; 3], pairs: &[Pair], digits: usize) -> Table {
    let mut table = Table::new([first, ours, theirs, "ratio", "bar", ""]);
    for pair in pairs {
        let ratio = pair.ours / pair.theirs;
        table.row([
            pair.name.to_owned(),
            format!("{:.digits$}", pair.ours),
            format!("{:.digits$}", pair.theirs),
            format!("{ratio:.2}"),
            pair.bar.to_string(),
            pair.bar.verdict(ratio),
        ]);
    }
    table
}
