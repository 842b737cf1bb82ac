//! The benchmarks. `cargo xtask bench` runs them.
//!
//! * The engine against governor, and the doors against no-op servers.
//! * The Redis store against scripts of one check each.
//! * The memory of Redis by kind of rule.
//! * The journal of denials under a flood.
//! * Quotas with and without a ledger.
//! * The gateway against nginx.
//! * Approximate algorithms against the exact one.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool reports on the terminal"
)]

mod accuracy;
mod doors;
mod engine;
mod gateway;
mod http;
mod journal;
mod quota;
mod redis;
mod report;
mod round;
mod rules;
mod server;
mod sizes;
mod tollgate;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Tollgate. A missed bar is printed and does not fail the command.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The store and the whole limiter against governor's keyed limiter, in nanoseconds per check
    Engine {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
    },
    /// The server's /v1/check against a no-op handler, in requests per second (needs wrk)
    Http {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
        /// The server to measure [default: the tollgate beside this program]
        #[arg(long, value_name = "PROGRAM")]
        tollgate: Option<PathBuf>,
    },
    /// Each door against a no-op server (needs wrk, redis-server and redis-benchmark)
    Doors {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
        /// Write the figures to this document, between their markers
        #[arg(long, value_name = "FILE")]
        write: Option<PathBuf>,
        /// The parts to measure
        #[arg(value_enum, default_values_t = doors::Part::ALL)]
        parts: Vec<doors::Part>,
    },
    /// The Redis store against redis-benchmark with scripts of one check each (needs both programs)
    Redis {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
        /// Write the figures to this document, between their markers
        #[arg(long, value_name = "FILE")]
        write: Option<PathBuf>,
    },
    /// The memory of Redis for each subject and hold, by kind of rule (needs redis-server)
    Sizes {
        /// Run with few subjects, as a smoke test
        #[arg(long)]
        quick: bool,
        /// Write the figures to this document, between their markers
        #[arg(long, value_name = "FILE")]
        write: Option<PathBuf>,
    },
    /// The sliding counters against the exact log on synthetic traffic
    Accuracy {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
    },
    /// The same request under few and many rules, and with many tenants
    Rules {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
    },
    /// Checks with a ledger, reservations, and the ledger itself (needs redis-server and PostgreSQL)
    Quota {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
    },
    /// The journal of denials under 100,000 denials a second, and `tollgate why` over a full journal
    Journal {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
    },
    /// The gateway against nginx (needs nginx and wrk)
    Gateway {
        /// Run for a short time, as a smoke test
        #[arg(long)]
        quick: bool,
    },
    /// The no-op handler
    #[command(hide = true)]
    NoopHttp(http::noop::Options),
    /// The no-op gRPC server
    #[command(hide = true)]
    NoopGrpc(doors::grpc::noop::Options),
    /// The load generator of the gRPC door
    #[command(hide = true)]
    LoadGrpc(doors::grpc::load::Options),
    /// The no-op RESP server
    #[command(hide = true)]
    NoopResp(doors::resp::Listen),
    /// The load generator of the RESP door, at a fixed rate
    #[command(hide = true)]
    LoadResp(doors::resp::paced::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tollgate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Engine { quick } => engine::run(quick),
        Command::Http { quick, tollgate } => http::run(quick, tollgate),
        Command::Redis { quick, write } => redis::run(quick, write),
        Command::Sizes { quick, write } => sizes::run(quick, write),
        Command::Rules { quick } => rules::run(quick),
        Command::Accuracy { quick } => accuracy::run(quick),
        Command::Quota { quick } => quota::run(quick),
        Command::Journal { quick } => journal::run(quick),
        Command::Gateway { quick } => gateway::run(quick),
        Command::Doors {
            quick,
            write,
            parts,
        } => doors::run(quick, write.as_deref(), &parts),
        Command::NoopHttp(options) => http::noop::run(&options),
        Command::NoopGrpc(options) => doors::grpc::noop::run(&options),
        Command::LoadGrpc(options) => doors::grpc::load::run(&options),
        Command::NoopResp(listen) => doors::resp::noop::run(&listen),
        Command::LoadResp(options) => doors::resp::paced::run(&options),
    }
}
