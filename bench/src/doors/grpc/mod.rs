//! Decisions per second of Envoy's `ShouldRateLimit` with state in memory, against a server with a constant answer,
//! and against peers.
//!
//! All servers are separate processes, and answer the same load in alternating rounds. The load generator shares the
//! machine, so only the ratios are meaningful.

pub(crate) mod noop;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use tollgate_bench::report::Report;
use tollgate_bench::table::Bar;
use tollgate_bench::workload::api_keys;

use super::versus::{self, Keys, Pace, Sides, State};
use super::{Setting, comparison};
use crate::engine::FIVE_RULES;
use crate::load::CONNECTIONS;
use crate::load::calls::Calls;
use crate::peers::wire::Message;
use crate::peers::{Peer, Work};
use crate::round::{Round, alternate};
use crate::server::{Scratch, Server};
use crate::tollgate::{self, Door};

/// The address to listen on.
#[derive(Args)]
pub(crate) struct Listen {
    #[arg(long)]
    grpc: SocketAddr,
}

const IN_FLIGHT: [u32; 2] = [64, 256];
const KEYS: usize = 10_000;
const KEYS_PER_TENANT: usize = 100;
/// The CPU time, relative to the peer's.
const TO_THROTTLECRAB: Bar = Bar::Below(1.0);
const TO_LIMITADOR: Bar = Bar::AtMost(0.75);

/// Tollgate and the no-op server, under five rules of which two match.
pub(super) struct Pair {
    pub(super) tollgate: Server,
    pub(super) noop: Server,
    calls: PathBuf,
}

impl Pair {
    /// Starts Tollgate with this config, and the no-op server.
    pub(super) fn start(setting: &Setting, config: &str) -> Result<Pair, Box<dyn Error>> {
        let scratch = &setting.scratch;
        let this = std::env::current_exe()?;
        Ok(Pair {
            tollgate: tollgate::start(&setting.tollgate, scratch, config, Door::Grpc)?,
            noop: Server::start("no-op", |address| {
                let mut command = Command::new(this);
                command.args(["noop-grpc", "--grpc", &address.to_string()]);
                command
            })?,
            calls: five_rules(scratch)?,
        })
    }

    pub(super) fn measure(
        &self,
        server: &Server,
        in_flight: u32,
        seconds: u32,
    ) -> Result<Round, Box<dyn Error>> {
        let cpu_before = server.cpu_micros()?;
        let pace = Pace::InFlight(in_flight);
        let load = versus::load(server.address(), &self.calls, pace, seconds)?.output()?;
        let cpu = server.cpu_micros()? - cpu_before;
        Round::read(server.name(), &load, cpu)
    }
}

/// Returns the file of the requests with one descriptor of three entries.
pub(super) fn five_rules(scratch: &Scratch) -> Result<PathBuf, Box<dyn Error>> {
    let keys = api_keys(KEYS);
    let messages = keys.iter().enumerate().map(|(number, key)| {
        let tenant = format!("tenant-{}", number / KEYS_PER_TENANT);
        let entries = [("tenant", &*tenant), ("api_key", key), ("action", "search")];
        let mut descriptor = Message::default();
        for (key, value) in entries {
            let entry = Message::default().bytes(1, key).bytes(2, value);
            descriptor = descriptor.bytes(1, entry.done());
        }
        let request = Message::default().bytes(1, "bench");
        request.bytes(2, descriptor.done()).done()
    });
    let rls = crate::peers::wire::rls(Work::One, &[]);
    let calls = Calls::new(&rls.path, &rls.allowed, messages);
    Ok(scratch.file("five-rules.calls", &calls.to_bytes())?)
}

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.length.rounds();
    {
        let pair = Pair::start(setting, FIVE_RULES)?;
        let mut table = comparison::table("in flight");
        for in_flight in IN_FLIGHT {
            let mut sides = [&pair.tollgate, &pair.noop];
            let measured = alternate(rounds, &mut sides, |server| {
                pair.measure(server, in_flight, seconds)
            })?;
            let bars = (comparison::RATE, comparison::CPU);
            comparison::row(&mut table, &in_flight.to_string(), &measured, bars);
        }
        report.section(
            &format!(
                "`ShouldRateLimit` of one descriptor, five rules of which two match, state in memory, \
                 {CONNECTIONS}\nconnections; medians of {rounds} alternating rounds of {seconds} s."
            ),
            &[table],
        );
    }
    peers(setting, report)
}

/// Measures one limit, then four limits in one request.
fn peers(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.length.rounds();
    let mut table = versus::table("gRPC in memory");
    let mut bars = versus::bars();
    let one = [Peer::Throttlecrab, Peer::Gubernator, Peer::Limitador];
    let cases = [
        (Work::One, "one limit", &one[..]),
        (Work::Four, "four limits", &one[1..]),
    ];
    for (work, what, peers) in cases {
        let mut sides = Sides::start(setting, peers, work, State::Memory)?;
        sides.set_keys(setting, Keys::Many)?;
        for in_flight in IN_FLIGHT {
            let measured = sides.measure(rounds, seconds, Pace::InFlight(in_flight))?;
            let case = format!("gRPC in memory, {what}, {in_flight} in flight");
            measured.add(setting, &case, &mut table, report);
            if work == Work::One {
                for (peer, bar) in [
                    (Peer::Throttlecrab, TO_THROTTLECRAB),
                    (Peer::Limitador, TO_LIMITADOR),
                ] {
                    let theirs = measured.theirs(peer).cpu_micros();
                    let name = format!("CPU, {in_flight} in flight, to {}'s", peer.name());
                    versus::bar(&mut bars, &name, measured.ours().cpu_micros() / theirs, bar);
                }
            }
        }
    }
    report.section(
        &format!(
            "Against peers, each through its own gRPC service: {}.\nState in memory, {}, {CONNECTIONS} \
             connections; medians of {rounds} alternating rounds of\n{seconds} s. throttlecrab has no requests \
             with several limits.",
            setting.peers.describe(&one),
            Keys::Many.name(),
        ),
        &[table, bars],
    );
    Ok(())
}
