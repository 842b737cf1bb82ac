//! Requests that wait for their turn: the memory of each, and what it costs to join a queue and to leave it.
//! `cargo xtask bench waiting` runs it, and so does `cargo xtask bench fair`.
//!
//! The bytes are those that were requested from the allocator and not freed: the task of the request, its future,
//! its attributes and its place in the queue. One thread does everything, because allocations are counted by
//! thread.

#![allow(
    clippy::print_stderr,
    reason = "a command line tool reports on the terminal"
)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tollgate::{Ask, Attributes, HasLimiter, LONGEST_MAX_WAIT, Limiter, Stopwatch};
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, figure};

/// The most bytes of a waiting request.
const MOST: f64 = 2048.0;

/// Measures requests that wait.
#[derive(Parser)]
struct Cli {
    /// Use fewer requests, as a smoke test
    #[arg(long)]
    quick: bool,
    /// Accepted for `cargo xtask bench`; the figures do not depend on it
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
            eprintln!("tollgate-bench-waiting: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<Vec<String>, Box<dyn Error>> {
    let count = if cli.quick { 500 } else { 10_000 };
    // The last request waits for 20 seconds, so all of them may wait.
    let bucket = "algorithm: token-bucket, capacity: 1, refill: 500/s";
    let waits = "max_wait: 30s, max_waiting: 20000";
    let fair = format!("{bucket}, fair: {{ per: [tenant], {waits} }}");
    let rows = [
        ("one queue", format!("{bucket}, {waits}"), 1),
        ("fair shares, 10 clients", fair.clone(), 10),
        ("fair shares, a client each", fair, count),
    ];
    let mut table = Table::new([
        "waiting requests",
        "bytes each",
        "bar",
        "",
        "join, us",
        "leave, us",
    ]);
    for (name, rule, clients) in rows {
        let measured = measure(&rule, count, clients)?;
        table.row([
            name.to_owned(),
            figure(measured.bytes, 0),
            format!("<= {MOST}"),
            Bar::AtMost(MOST).verdict(measured.bytes),
            figure(measured.join_micros, 2),
            figure(measured.leave_micros, 2),
        ]);
    }
    let mut report = Report::part("fair", "waiting");
    report.section(
        &format!("{count} requests that wait for one bucket."),
        &[table],
    );
    if let Some(file) = &cli.write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

/// The figures of one waiting request.
struct Measured {
    bytes: f64,
    join_micros: f64,
    leave_micros: f64,
}

#[allow(clippy::cast_precision_loss)] // Figures for people.
fn measure(rule: &str, count: usize, clients: usize) -> Result<Measured, Box<dyn Error>> {
    let rules = format!("version: 1\nrules: [{{ id: all, {rule} }}]\n");
    let limiter = Arc::new(Limiter::from_yaml("rules.yaml", &rules)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // The first request takes the unit.
    start(&runtime, &limiter, 1, 1);
    let watch = Stopwatch::new();
    let mut waiting = None;
    let mut join_nanos = 0;
    let seen = allocation_counter::measure(|| {
        let started = watch.start();
        waiting = Some(start(&runtime, &limiter, count, clients));
        join_nanos = watch.nanos_since(started);
    });
    let still = limiter.waiting_room().waiting();
    if still < count * 9 / 10 {
        return Err(format!("only {still} of {count} requests wait").into());
    }
    let started = watch.start();
    if let Some(waiting) = &mut waiting {
        runtime.block_on(waiting.shutdown());
    }
    let leave_nanos = watch.nanos_since(started);
    if limiter.waiting_room().waiting() > 0 {
        return Err("requests wait after they were dropped".into());
    }
    let each = |total: f64| total / still as f64;
    Ok(Measured {
        bytes: each(seen.bytes_current as f64),
        join_micros: each(join_nanos as f64 / 1000.0),
        leave_micros: each(leave_nanos as f64 / 1000.0),
    })
}

/// Starts requests, and lets them run until they wait.
fn start(runtime: &Runtime, limiter: &Arc<Limiter>, count: usize, clients: usize) -> JoinSet<bool> {
    let mut requests = JoinSet::new();
    for number in 0..count {
        let limiter = Arc::clone(limiter);
        let tenant = format!("tenant-{:09}", number % clients);
        let asking = async move {
            let attributes = Attributes::from([("tenant", tenant.as_str())]);
            let asking = limiter.ask_or_wait(&attributes, Ask::Exactly(1), LONGEST_MAX_WAIT);
            asking.await.is_allowed()
        };
        requests.spawn_on(asking, runtime.handle());
    }
    // A tenth may be admitted meanwhile.
    runtime.block_on(async {
        while count > 1 && limiter.waiting_room().waiting() < count * 9 / 10 {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
    });
    requests
}
