//! Decisions per second of Envoy's `ShouldRateLimit`, against a tonic server with a constant answer.
//!
//! Both servers are separate processes with the same runtime, and answer the same load in alternating rounds.
//! The load generator shares the machine, so only the ratio is meaningful.

pub(crate) mod load;
pub(crate) mod noop;

use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;

use clap::Args;

use super::{Setting, comparison};
use crate::engine::FIVE_RULES;
use crate::report::Report;
use crate::round::{Round, alternate};
use crate::server::Server;
use crate::tollgate::{self, Door};

/// The address to listen on.
#[derive(Args)]
pub(crate) struct Listen {
    #[arg(long)]
    grpc: SocketAddr,
}

const IN_FLIGHT: [u32; 2] = [64, 256];

/// Tollgate and the no-op server.
pub(super) struct Pair {
    pub(super) tollgate: Server,
    pub(super) noop: Server,
    /// The length of an answer, in bytes.
    answer: usize,
}

impl Pair {
    /// Starts Tollgate with this config, and the no-op server.
    pub(super) fn start(setting: &Setting, config: &str) -> Result<Pair, Box<dyn Error>> {
        let scratch = &setting.scratch;
        let tollgate = tollgate::start(&setting.tollgate, scratch, config, Door::Grpc)?;
        // The no-op server sends an answer of Tollgate, so both write the same number of bytes.
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
    let mut table = comparison::table("in flight");
    for in_flight in IN_FLIGHT {
        let [ours, theirs] = alternate(rounds, [&pair.tollgate, &pair.noop], |server| {
            measure(server, in_flight, seconds)
        })?;
        let bars = (comparison::RATE, comparison::CPU);
        comparison::row(&mut table, &in_flight.to_string(), &ours, &theirs, bars);
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
    Round::read(server, &load, cpu)
}
