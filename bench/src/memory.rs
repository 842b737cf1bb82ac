//! Bytes per key at a million keys. Part of `cargo xtask bench engine`.
//!
//! The bytes are counted in two ways: as the store reports them, and as bytes that were requested from the
//! allocator and not freed. Neither includes the overhead of the allocator per block. The overhead would
//! affect governor more than the store: governor has a block per key, the store a few large blocks.

#![allow(
    clippy::print_stderr,
    reason = "a command line tool reports on the terminal"
)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table};
use tollgate_bench::workload;
use tollgate_core::{Key, Limit, Rate, Span};
use tollgate_store::{Ask, MemoryStore};

const MOST: f64 = 64.0;

/// Measures bytes per key.
#[derive(Parser)]
struct Cli {
    /// Use fewer keys, as a smoke test
    #[arg(long)]
    quick: bool,
    /// Accepted for `cargo xtask bench engine --long`; the figures do not depend on it
    #[arg(long)]
    long: bool,
    /// Write the figures to this document, between their markers
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(missed) if missed.is_empty() || cli.quick => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("missed bars:\n{}", missed.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tollgate-bench-memory: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<Vec<String>, Box<dyn Error>> {
    let count = if cli.quick { 100_000 } else { 1_000_000 };
    let api_keys = workload::api_keys(count);
    let keys = workload::hashed(&api_keys);
    let per_key = |bytes: f64| bytes / api_keys.len() as f64;

    let governor = per_key(governor_bytes(&api_keys)?);
    let refill = Rate::new(1, Span::SECOND)?;
    let limits = [
        ("gcra", workload::gcra()?),
        (
            "token-bucket",
            Limit::token_bucket(u64::from(workload::BURST), refill)?,
        ),
    ];

    let mut table = Table::new([
        "bytes per key",
        "governor",
        "reported",
        "allocated",
        "bar",
        "",
    ]);
    for (name, limit) in &limits {
        let (reported, allocated) = store_bytes(&keys, limit);
        let (reported, allocated) = (per_key(reported), per_key(allocated));
        let bar = Bar::AtMost(MOST.min(governor));
        table.row([
            format!("store, {name}"),
            format!("{governor:.1}"),
            format!("{reported:.1}"),
            format!("{allocated:.1}"),
            format!("<= {MOST} and below governor"),
            bar.verdict(reported.max(allocated)),
        ]);
    }
    let mut report = Report::part("engine", "bytes");
    report.section(
        &format!("Bytes per key at {count} keys of 16 characters, as the store reports and as the allocator counts."),
        &[table],
    );
    if let Some(file) = &cli.write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

/// Returns the bytes as the store reports them, and as the allocator counts them.
fn store_bytes(keys: &[Key], limit: &Limit) -> (f64, f64) {
    let mut kept = None;
    let seen = allocation_counter::measure(|| {
        let store = MemoryStore::new(10 * keys.len());
        for key in keys {
            store.apply(&[workload::charge(*key, limit)], Ask::Exactly(1));
        }
        kept = Some(store);
    });
    let reported = kept.map_or(0, |store| store.usage().bytes);
    (reported as f64, seen.bytes_current as f64)
}

fn governor_bytes(api_keys: &[String]) -> Result<f64, &'static str> {
    let mut kept = None;
    let seen = allocation_counter::measure(|| {
        kept = workload::governor().inspect(|limiter| {
            for key in api_keys {
                std::hint::black_box(limiter.check_key(key).is_ok());
            }
        });
    });
    kept.map(|_| seen.bytes_current as f64)
        .ok_or("governor rejects the quota")
}
