//! The load generator of gRPC servers: HTTP/2 frames by hand, so that most of the machine is left to the
//! server. It does not decode headers. An answer counts if it has a message, and the message allows.
//!
//! * `frames`: one connection as a state machine, without a socket.
//! * `closed`: a number of requests in flight.
//! * `open`: requests at a fixed rate, whether earlier ones are answered or not.
//! * [`calls`]: the requests of a run, and the file that brings them to the load generator.

pub(crate) mod calls;
mod closed;
mod frames;
mod open;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use self::calls::Calls;

pub(crate) const CONNECTIONS: u32 = 4;

/// The server and the load.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    grpc: SocketAddr,
    /// The file with the requests
    #[arg(long)]
    calls: PathBuf,
    /// The number of requests in flight
    #[arg(
        long,
        conflicts_with = "per_second",
        required_unless_present = "per_second"
    )]
    in_flight: Option<u32>,
    /// Send this many requests per second, at random instants
    #[arg(long)]
    per_second: Option<f64>,
    #[arg(long)]
    seconds: f64,
}

/// What a run has measured.
#[derive(Default)]
struct Tally {
    latencies: Vec<Duration>,
    failed: u64,
    elapsed: Duration,
}

impl Tally {
    fn add(&mut self, answer: &frames::Answer, now: Duration) {
        self.latencies.push(now.saturating_sub(answer.started));
        self.failed += u64::from(!answer.is_allowed);
    }
}

/// Sends requests, and prints a line for [`Round::read`](crate::round::Round::read).
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let calls = Calls::read(&options.calls)?;
    let limit = Duration::from_secs_f64(options.seconds);
    let mut tally = match (options.in_flight, options.per_second) {
        (Some(in_flight), _) => closed::run(options.grpc, &calls, in_flight, limit)?,
        (None, Some(per_second)) => open::run(options.grpc, &calls, per_second, limit)?,
        (None, None) => return Err("--in-flight or --per-second is missing".into()),
    };
    tally.latencies.sort_unstable();
    let at = |percent: usize| {
        let latency = tally.latencies.get(tally.latencies.len() * percent / 100);
        latency.map_or(0, Duration::as_micros)
    };
    println!(
        "result {} {} {} {} {}",
        tally.latencies.len(),
        tally.elapsed.as_micros(),
        at(50),
        at(99),
        tally.failed
    );
    Ok(())
}
