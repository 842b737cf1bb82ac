//! The command behind `cargo xtask faults`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool reports on the terminal"
)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tollgate_faults::fault::{self, Fault};
use tollgate_faults::judge::judge;
use tollgate_faults::report::{Finding, RUNS, document, in_brief, section};
use tollgate_faults::run::{Pace, RunError, run};

/// Brings about faults under load, and compares what is seen with what is promised.
#[derive(Parser)]
struct Cli {
    /// A short run of each, to see that it works
    #[arg(long)]
    quick: bool,
    /// Only this fault
    #[arg(long, value_name = "NAME", value_parser = named)]
    only: Option<Fault>,
    /// Where to write the report
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    write: Option<PathBuf>,
}

fn named(name: &str) -> Result<Fault, String> {
    let fault = fault::ALL.into_iter().find(|fault| fault.name == name);
    fault.ok_or_else(|| {
        let names: Vec<&str> = fault::ALL.iter().map(|fault| fault.name).collect();
        format!("there is no such fault; there are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    match run_all(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tollgate-faults: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a fault, and once more, a few times, if it may have been the machine that broke a promise.
async fn find(fault: Fault, pace: Pace) -> Result<Finding, RunError> {
    let mut runs = 0;
    loop {
        runs += 1;
        let seen = run(&fault, pace).await?;
        let rows = judge(&fault, &seen);
        let finding = Finding {
            fault,
            seen,
            rows,
            runs,
        };
        println!("{}", in_brief(&finding));
        if runs == RUNS || !finding.may_be_the_machine() {
            return Ok(finding);
        }
    }
}

/// Whether all promises were kept.
fn run_all(cli: &Cli) -> Result<bool, Box<dyn Error>> {
    let pace = if cli.quick { Pace::QUICK } else { Pace::FULL };
    // One thread for all of it: what delays a decision is then what delays the probe.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut findings = Vec::new();
    for fault in fault::ALL {
        if cli.only.is_some_and(|only| only.name != fault.name) {
            continue;
        }
        let finding = runtime
            .block_on(find(fault, pace))
            .map_err(|error| format!("{}: {error}", fault.name))?;
        if cli.only.is_some() {
            println!("{}", section(&finding));
        }
        findings.push(finding);
    }
    if let Some(path) = &cli.write {
        std::fs::write(path, document(&findings))?;
        println!("\nwritten: {}", path.display());
    }
    let broken = findings.iter().filter(|it| !it.is_kept()).count();
    match broken {
        0 => println!("\nall promises kept in {} faults", findings.len()),
        _ => println!("\npromises broken in {broken} of {} faults", findings.len()),
    }
    Ok(broken == 0)
}
