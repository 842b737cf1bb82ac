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

/// Injects faults under load, and checks that the limiter keeps its promises.
#[derive(Parser)]
struct Cli {
    /// Run each fault for a short time, as a smoke test
    #[arg(long)]
    quick: bool,
    /// Run only this fault
    #[arg(long, value_name = "NAME", value_parser = named)]
    only: Option<Fault>,
    /// Write the report to this file
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    write: Option<PathBuf>,
}

fn named(name: &str) -> Result<Fault, String> {
    let fault = fault::ALL.into_iter().find(|fault| fault.name == name);
    fault.ok_or_else(|| {
        let names: Vec<&str> = fault::ALL.iter().map(|fault| fault.name).collect();
        format!("unknown fault; choose one of {}", names.join(", "))
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

/// Runs a fault. Repeats the run a few times if a busy machine may be the reason for a broken promise.
async fn find(fault: Fault, pace: Pace) -> Result<Finding, RunError> {
    let mut runs = 0;
    loop {
        runs += 1;
        let observed = run(&fault, pace).await?;
        let rows = judge(&fault, &observed);
        let finding = Finding {
            fault,
            observed,
            rows,
            runs,
        };
        println!("{}", in_brief(&finding));
        if runs == RUNS || !finding.may_be_the_machine() {
            return Ok(finding);
        }
    }
}

/// Runs all faults, and returns whether all promises were kept.
fn run_all(cli: &Cli) -> Result<bool, Box<dyn Error>> {
    let pace = if cli.quick { Pace::QUICK } else { Pace::FULL };
    // One thread for everything, so that a scheduling delay affects the decisions and the probe alike.
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
