//! Decisions per second of Envoy's `ShouldRateLimit`, against a tonic server that answers a constant.
//!
//! Both servers are processes of their own with the same runtime, and answer the same load in
//! alternating rounds. The load generator shares the machine, so only the ratio means something.

pub(crate) mod load;
pub(crate) mod noop;
pub(crate) mod served;

use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;

use clap::Args;
use tollgate_bench::table::{Bar, Table, median};

use crate::server::{Scratch, Server};

/// Where to listen.
#[derive(Args)]
pub(crate) struct Listen {
    #[arg(long)]
    grpc: SocketAddr,
}

const IN_FLIGHT: [u32; 2] = [64, 256];
/// The least share of the no-op's requests per second.
const RATE: Bar = Bar::AtLeast(0.85);
/// The most of the no-op's processor time per request.
const CPU: Bar = Bar::AtMost(1.25);

/// What one round measured.
struct Round {
    per_second: f64,
    p99_millis: f64,
    /// The server's processor time per request.
    cpu_micros: f64,
}

pub(crate) fn run(quick: bool) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = if quick { (1, 1) } else { (7, 3) };
    let this = std::env::current_exe()?;
    let scratch = Scratch::new()?;
    let tollgate = Server::start("tollgate", |address| {
        let mut command = Command::new(&this);
        command.args(["serve-grpc", "--grpc", &address.to_string()]);
        command
    })?;
    // The no-op answers what Tollgate answers, so both write as much.
    let answer = load::first_answer(tollgate.address())?;
    let constant = scratch.file("answer.bin", &answer)?;
    let noop = Server::start("no-op", |address| {
        let mut command = Command::new(&this);
        command.args(["noop-grpc", "--grpc", &address.to_string()]);
        command.arg("--answer").arg(&constant);
        command
    })?;
    load::first_answer(noop.address())?;

    println!(
        "ShouldRateLimit of one descriptor, five rules of which two match, state in memory, an answer \
         of {} bytes;\n{} connections; medians of {rounds} alternating rounds of {seconds} s\n",
        answer.len(),
        load::CONNECTIONS,
    );
    let mut table = Table::new([
        "in flight",
        "tollgate/s",
        "no-op/s",
        "ratio",
        "bar",
        "",
        "p99 ms",
        "no-op",
        "CPU us",
        "no-op",
        "ratio",
        "bar",
        "",
    ]);
    for in_flight in IN_FLIGHT {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let pair = [&tollgate, &noop].map(|server| measure(server, in_flight, seconds));
            let [our, their] = pair;
            let (our, their) = (our?, their?);
            // The first round only warms up.
            if round > 0 {
                ours.push(our);
                theirs.push(their);
            }
        }
        let both = |figure: fn(&Round) -> f64| {
            let middle = |rounds: &[Round]| median(rounds.iter().map(figure).collect());
            (middle(&ours), middle(&theirs))
        };
        let (our_rate, their_rate) = both(|round| round.per_second);
        let (our_p99, their_p99) = both(|round| round.p99_millis);
        let (our_cpu, their_cpu) = both(|round| round.cpu_micros);
        let (rate, cpu) = (our_rate / their_rate, our_cpu / their_cpu);
        table.row([
            in_flight.to_string(),
            format!("{our_rate:.0}"),
            format!("{their_rate:.0}"),
            format!("{rate:.2}"),
            RATE.to_string(),
            RATE.verdict(rate),
            format!("{our_p99:.2}"),
            format!("{their_p99:.2}"),
            format!("{our_cpu:.1}"),
            format!("{their_cpu:.1}"),
            format!("{cpu:.2}"),
            CPU.to_string(),
            CPU.verdict(cpu),
        ]);
    }
    println!("{table}");
    Ok(())
}

fn measure(server: &Server, in_flight: u32, seconds: u32) -> Result<Round, Box<dyn Error>> {
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
