//! Decisions per second of Envoy's `ShouldRateLimit`, against a tonic server that answers a constant.
//!
//! Both servers are processes of their own with the same runtime, and answer the same load in
//! alternating rounds. The load generator shares the machine, so only the ratio means something.

pub(crate) mod load;
pub(crate) mod noop;

use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;

use clap::Args;

use super::{Setting, versus};
use crate::engine::FIVE_RULES;
use crate::report::Report;
use crate::round::{Round, alternate};
use crate::server::Server;
use crate::subject::{self, Door};

/// Where to listen.
#[derive(Args)]
pub(crate) struct Listen {
    #[arg(long)]
    grpc: SocketAddr,
}

const IN_FLIGHT: [u32; 2] = [64, 256];

/// Tollgate and the no-op.
pub(super) struct Pair {
    pub(super) tollgate: Server,
    pub(super) noop: Server,
    /// The bytes of an answer.
    answer: usize,
}

impl Pair {
    /// Starts Tollgate with this config, and the no-op.
    pub(super) fn start(setting: &Setting, config: &str) -> Result<Pair, Box<dyn Error>> {
        let scratch = &setting.scratch;
        let tollgate = subject::start(&setting.tollgate, scratch, config, Door::Grpc)?;
        // The no-op answers what Tollgate answers, so both write as much.
        let answer = load::first_answer(tollgate.address())?;
        let constant = scratch.file("answer.bin", &answer)?;
        let this = std::env::current_exe()?;
        let noop = Server::start("no-op", |address| {
            let mut command = Command::new(this);
            command.args(["noop-grpc", "--grpc", &address.to_string()]);
            command.arg("--answer").arg(&constant);
            command
        })?;
        load::first_answer(noop.address())?;
        Ok(Pair {
            tollgate,
            noop,
            answer: answer.len(),
        })
    }
}

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.effort();
    let pair = Pair::start(setting, FIVE_RULES)?;
    let mut table = versus::table("in flight");
    for in_flight in IN_FLIGHT {
        let [ours, theirs] = alternate(rounds, [&pair.tollgate, &pair.noop], |server| {
            measure(server, in_flight, seconds)
        })?;
        let bars = (versus::RATE, versus::CPU);
        versus::row(&mut table, &in_flight.to_string(), &ours, &theirs, bars);
    }
    report.section(
        &format!(
            "`ShouldRateLimit` of one descriptor, five rules of which two match, state in memory, an \
             answer\nof {} bytes; {} connections; medians of {rounds} alternating rounds of {seconds} s.",
            pair.answer,
            load::CONNECTIONS,
        ),
        &[table],
    );
    Ok(())
}

pub(super) fn measure(
    server: &Server,
    in_flight: u32,
    seconds: u32,
) -> Result<Round, Box<dyn Error>> {
    let cpu_before = server.cpu_micros()?;
    let load = Command::new(std::env::current_exe()?)
        .args(["load-grpc", "--grpc", &server.address().to_string()])
        .args(["--in-flight", &in_flight.to_string()])
        .args(["--seconds", &seconds.to_string()])
        .output()?;
    let cpu = server.cpu_micros()? - cpu_before;
    let text = String::from_utf8_lossy(&load.stdout);
    let Some([requests, micros, p99, failed]) = load::figures(&text) else {
        let complaint = String::from_utf8_lossy(&load.stderr);
        return Err(format!("the load gave no result\n{text}{complaint}").into());
    };
    if failed > 0.0 || requests == 0.0 {
        let name = server.name();
        return Err(format!("{failed} of {requests} requests to {name} failed").into());
    }
    Ok(Round {
        per_second: requests / micros * 1e6,
        p99_millis: p99 / 1000.0,
        cpu_micros: cpu / requests,
    })
}
