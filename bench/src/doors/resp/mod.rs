//! Decisions per second of `CL.THROTTLE`, against a server that only reads and answers.
//!
//! Both servers are processes of their own with the same runtime, and answer the same load in
//! alternating rounds. The load generator shares the machine, so only the ratio means something.

mod load;
pub(crate) mod noop;
pub(crate) mod served;

use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;

use clap::Args;
use tollgate_bench::table::{Bar, Table, median};

use self::load::{Limits, Load, Round};
use crate::server::Server;

/// Where to listen.
#[derive(Args)]
pub(crate) struct Listen {
    #[arg(long)]
    resp: SocketAddr,
}

/// How many commands a connection has in flight, and the least share of the no-op's decisions per
/// second.
const BARS: [(u32, f64); 3] = [(1, 0.9), (16, 0.75), (64, 0.5)];
/// The least decisions per second at the deepest pipeline.
const LEAST: f64 = 800_000.0;

pub(crate) fn run(quick: bool) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = if quick { (1, 0.3) } else { (5, 3.0) };
    let load = Load::new()?;
    let this = std::env::current_exe()?;
    let start = |name, subcommand: &str| {
        Server::start(name, |address| {
            let mut command = Command::new(&this);
            command
                .arg(subcommand)
                .args(["--resp", &address.to_string()]);
            command
        })
    };
    let tollgate = start("tollgate", "serve-resp")?;
    let noop = start("no-op", "noop-resp")?;
    println!(
        "CL.THROTTLE by redis-benchmark, 50 connections, 100,000 keys, state in memory;\n\
         medians of {rounds} alternating rounds of about {seconds} s\n"
    );
    let mut table = Table::new([
        "pipeline",
        "answers",
        "tollgate/s",
        "no-op/s",
        "ratio",
        "bar",
        "",
        "p99 ms",
        "CPU us",
        "no-op CPU us",
    ]);
    let mut fastest = f64::NAN;
    for (depth, bar) in BARS {
        for limits in Limits::ALL {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            let mut requests = load.requests_for(&noop, depth, limits, seconds)?;
            for round in 0..=rounds {
                let our = load.run(&tollgate, depth, limits, requests)?;
                let their = load.run(&noop, depth, limits, requests)?;
                // The first round only warms up.
                if round > 0 {
                    ours.push(our);
                    theirs.push(their);
                } else {
                    requests = their.requests_in(seconds);
                }
            }
            let middle = |rounds: &[Round], figure: fn(&Round) -> f64| {
                median(rounds.iter().map(figure).collect())
            };
            let per_second = |rounds: &[Round]| middle(rounds, |round| round.per_second);
            let ratio = per_second(&ours) / per_second(&theirs);
            let bar = Bar::AtLeast(bar);
            if limits == Limits::Wide {
                fastest = per_second(&ours);
            }
            table.row([
                depth.to_string(),
                limits.name().to_owned(),
                format!("{:.0}", per_second(&ours)),
                format!("{:.0}", per_second(&theirs)),
                format!("{ratio:.2}"),
                bar.to_string(),
                bar.verdict(ratio),
                format!("{:.2}", middle(&ours, |round| round.p99_millis)),
                format!("{:.2}", middle(&ours, |round| round.cpu_micros)),
                format!("{:.2}", middle(&theirs, |round| round.cpu_micros)),
            ]);
        }
    }
    println!("{table}");
    let (deepest, _) = BARS[BARS.len() - 1];
    let least = Bar::AtLeast(LEAST);
    println!(
        "{fastest:.0} decisions/s at a pipeline of {deepest}, bar {least}: {}",
        least.verdict(fastest)
    );
    Ok(())
}
