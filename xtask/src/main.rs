//! Developer commands: `cargo xtask test` checks everything, `cargo xtask bench` measures, and
//! `cargo xtask faults` injects faults into the store.
//!
//! CI (`.ci/run`) runs `cargo xtask test`, so a green run here means a green run there.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool reports on the terminal"
)]

mod bench;
mod compare;
mod components;
mod demo;
mod faults;
mod shell;
mod stopwatch;
mod tally;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of Tollgate.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check everything: format, lints, tests, features, packages, docs
    ///
    /// Installs missing programs, then runs the steps in order and stops at the first that fails. The last line
    /// is the sum of all test runs: `N passed, N failed, N skipped`.
    Test(test::Options),
    /// Run a benchmark, and compare the figures with the targets of the project
    ///
    /// Absolute figures of a busy machine mean little. The ratios come from alternating rounds of one run. A
    /// missed target fails the command, after everything is measured and written.
    Bench {
        #[command(subcommand)]
        bench: bench::Bench,
    },
    /// Inject faults into the store under load, and check the promises of the limiter
    ///
    /// Runs every fault for every failure policy on real servers, and writes the results to docs/faults.md. A
    /// broken promise fails the command, after the report is written.
    Faults(faults::Options),
    /// Run an experiment that shows what Tollgate is for
    Demo {
        #[command(subcommand)]
        demo: demo::Demo,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Test(options) => test::run(&options),
        Command::Bench { bench } => shell::report(bench::run(&bench)),
        Command::Faults(options) => shell::report(faults::run(&options)),
        Command::Demo { demo } => shell::report(demo::run(&demo)),
    }
}
