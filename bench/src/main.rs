//! The benchmarks. `cargo xtask bench` runs them.
//!
//! * The engine against governor, and the doors against no-op servers and peers.
//! * The Redis store against scripts of one check each, and against a peer.
//! * The memory of Redis by kind of rule.
//! * The journal of denials under a flood.
//! * Quotas with and without a ledger.
//! * Leased and async mode against exact checks.
//! * Fair shares against the same rule without them.
//! * The gateway against nginx.
//! * Approximate algorithms against the exact one.
//! * The dashboard, and simulations of access logs.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool reports on the terminal"
)]

mod accuracy;
mod doors;
mod engine;
mod fair;
mod gateway;
mod journal;
mod length;
mod load;
mod modes;
mod peers;
mod quota;
mod redis;
mod round;
mod rules;
mod see;
mod server;
mod sizes;
mod tollgate;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tollgate_bench::report::clear_peers;

use self::length::Length;

/// The exit code of a benchmark that could not measure. A missed bar is 1.
const BROKEN: u8 = 2;

/// Measures Tollgate. A missed bar fails the command, after everything is measured.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// A benchmark whose figures are in a document.
#[derive(Args)]
struct Written {
    #[command(flatten)]
    length: Length,
    /// Write the figures to this document, between their markers
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// The store and the whole limiter against governor's keyed limiter, in nanoseconds per check
    Engine(Written),
    /// Each door against a no-op server and peers (needs wrk, redis-server and redis-benchmark)
    Doors {
        #[command(flatten)]
        written: Written,
        /// Empty the table of peers in the document first
        #[arg(long, requires = "write")]
        fresh: bool,
        /// The parts to measure
        #[arg(value_enum, default_values_t = doors::Part::ALL)]
        parts: Vec<doors::Part>,
    },
    /// The Redis store against redis-benchmark with scripts of one check each (needs both programs), and against
    /// redis_rate
    Redis(Written),
    /// The memory of Redis for each subject and hold, by kind of rule (needs redis-server)
    Sizes(Written),
    /// The sliding counters against the exact log on synthetic traffic
    Accuracy(Length),
    /// The same request under few and many rules, and with many tenants
    Rules(Written),
    /// The dashboard in Chromium, what a viewer costs, and simulations of access logs (needs chromium, node, wrk)
    See(Written),
    /// Checks with a ledger, reservations, and the ledger itself (needs redis-server and PostgreSQL)
    Quota(Written),
    /// Leased and async mode on Redis against the memory store and exact checks (needs redis-server and wrk)
    Modes(Written),
    /// A rule with fair shares against the same rule without them, in memory and on Redis (needs redis-server)
    Fair(Written),
    /// The journal of denials: its cost for a check, 100,000 denials a second, and `tollgate why` over a full journal
    Journal(Written),
    /// The gateway against nginx (needs nginx, redis-server and wrk)
    Gateway(Written),
    /// The no-op HTTP server
    #[command(hide = true)]
    NoopHttp(doors::http::noop::Options),
    /// The no-op gRPC server
    #[command(hide = true)]
    NoopGrpc(doors::grpc::Listen),
    /// The no-op RESP server
    #[command(hide = true)]
    NoopResp(doors::resp::Listen),
    /// Copies bytes to another server
    #[command(hide = true)]
    Copy(gateway::Copy),
    /// An HTTP server whose answers never end
    #[command(hide = true)]
    Hold(gateway::Hold),
    /// The load generator of gRPC servers
    #[command(hide = true)]
    LoadGrpc(load::Options),
    /// The load generator of the HTTP door, at a fixed rate
    #[command(hide = true)]
    LoadHttp(doors::http::paced::Options),
    /// The load generator of the RESP door, at a fixed rate
    #[command(hide = true)]
    LoadResp(doors::resp::paced::Options),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match run(&command) {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            eprintln!("missed bars:\n{}", missed.join("\n"));
            match command.length().is_some_and(Length::is_quick) {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("tollgate-bench: {error}");
            ExitCode::from(BROKEN)
        }
    }
}

impl Command {
    fn length(&self) -> Option<Length> {
        match self {
            Command::Engine(it)
            | Command::Redis(it)
            | Command::Sizes(it)
            | Command::Rules(it)
            | Command::Quota(it)
            | Command::Modes(it)
            | Command::Fair(it)
            | Command::Gateway(it)
            | Command::See(it)
            | Command::Journal(it)
            | Command::Doors { written: it, .. } => Some(it.length),
            Command::Accuracy(length) => Some(*length),
            _ => None,
        }
    }
}

/// Returns the bars that were missed.
fn run(command: &Command) -> Result<Vec<String>, Box<dyn Error>> {
    match command {
        Command::Engine(it) => return engine::run(it.length, it.write.as_deref()),
        Command::Redis(it) => return redis::run(it.length, it.write.as_deref()),
        Command::Rules(it) => return rules::run(it.length, it.write.as_deref()),
        Command::Quota(it) => return quota::run(it.length, it.write.as_deref()),
        Command::Doors {
            written,
            fresh,
            parts,
        } => {
            let write = written.write.as_deref();
            if let (true, Some(file)) = (fresh, write) {
                clear_peers(file)?;
            }
            return doors::run(written.length, write, parts);
        }
        Command::Sizes(it) => sizes::run(it.length, it.write.as_deref())?,
        Command::Accuracy(length) => accuracy::run(*length)?,
        Command::Modes(it) => return modes::run(it.length, it.write.as_deref()),
        Command::See(it) => return see::run(it.length, it.write.as_deref()),
        Command::Fair(it) => return fair::run(it.length, it.write.as_deref()),
        Command::Journal(it) => return journal::run(it.length, it.write.as_deref()),
        Command::Gateway(it) => return gateway::run(it.length, it.write.as_deref()),
        Command::Copy(it) => it.run()?,
        Command::Hold(it) => it.run()?,
        Command::NoopHttp(options) => doors::http::noop::run(options)?,
        Command::NoopGrpc(listen) => doors::grpc::noop::run(listen)?,
        Command::NoopResp(listen) => doors::resp::noop::run(listen)?,
        Command::LoadGrpc(options) => load::run(options)?,
        Command::LoadHttp(options) => doors::http::paced::run(options)?,
        Command::LoadResp(options) => doors::resp::paced::run(options)?,
    }
    Ok(Vec::new())
}
