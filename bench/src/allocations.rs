//! Serves the doors of a config for a time, and prints how often this process has allocated memory meanwhile. Part
//! of `cargo xtask bench doors cost`.
//!
//! One thread serves everything, because allocations are counted by thread.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool reports on the terminal"
)]

use std::error::Error;
use std::future::pending;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};

/// Serves for a time, and prints `allocations COUNT BYTES`.
#[derive(Parser)]
struct Cli {
    #[arg(long)]
    config: PathBuf,
    #[arg(long)]
    seconds: f64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut served = Ok(());
    let seen = allocation_counter::measure(|| served = serve(&cli));
    match served {
        Ok(()) => {
            println!("allocations {} {}", seen.count_total, seen.bytes_total);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tollgate-bench-allocations: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let name = cli.config.display().to_string();
    let text = std::fs::read_to_string(&cli.config)?;
    let config = tollgate_config::parse(&name, &text, &|_| None)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let engine = Arc::new(Engine::start(&config).await?);
        let doors = Doors::open(&config).await?;
        let control = Arc::new(ControlPlane::of(engine));
        let limit = Duration::from_secs_f64(cli.seconds);
        // The time ends the server: nothing else stops it.
        let _ = tokio::time::timeout(limit, doors.serve(control, pending())).await;
        Ok(())
    })
}
