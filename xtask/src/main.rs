//! Developer commands: `cargo xtask test` checks everything, `cargo xtask bench` measures,
//! `cargo xtask faults` sees what happens when the store fails.
//!
//! What runs here also runs in CI (`.ci/run`), so a green run here is a green run there.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool reports on the terminal"
)]

mod bench;
mod compare;
mod components;
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
    /// Check everything: format, lints, tests, docs
    ///
    /// Installs what the tests need and the machine lacks, then runs the steps in order and stops
    /// at the first that fails. The last line is the sum of all test runs:
    /// `N passed, N failed, N skipped`.
    Test(test::Options),
    /// Measure, and compare with the bars the project sets itself
    ///
    /// Figures of a shared or busy machine mean little: compare the ratios, which come from
    /// alternating rounds of one run. A missed bar is printed and does not fail the command.
    Bench {
        #[command(subcommand)]
        bench: bench::Bench,
    },
    /// Let the store fail in every way under load, and compare with what is promised
    ///
    /// Runs every fault for every failure policy on real servers, and writes docs/faults.md: what was
    /// expected, and what was seen. A broken promise fails the command, after the report is written.
    Faults(faults::Options),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Test(options) => test::run(&options),
        Command::Bench { bench } => shell::report(bench::run(&bench)),
        Command::Faults(options) => shell::report(faults::run(&options)),
    }
}
