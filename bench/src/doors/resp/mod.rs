//! Decisions per second of `CL.THROTTLE`, against a no-op server, and against throttlecrab.
//!
//! The servers are separate processes, and answer the same load in alternating rounds. The load generator shares
//! the machine, so only the ratios are meaningful.

pub(crate) mod client;
pub(crate) mod load;
pub(crate) mod noop;
pub(crate) mod paced;

use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;

use clap::Args;
use tollgate_bench::report::{Figures, Report};
use tollgate_bench::table::{Bar, Table, figure};

use self::client::{Client, Dialect};
use self::load::{Limits, Load};
use super::Setting;
use crate::engine::FIVE_RULES;
use crate::peers::{Peer, throttlecrab};
use crate::round::{Rounds, alternate};
use crate::server::Server;
use crate::tollgate::{self, Door};

/// The address to listen on.
#[derive(Args)]
pub(crate) struct Listen {
    #[arg(long)]
    resp: SocketAddr,
}

/// The commands in flight per connection, and the least decisions per second relative to the no-op server.
const BARS: [(u32, f64); 3] = [(1, 0.9), (16, 0.75), (64, 0.5)];
/// The least decisions per second at the deepest pipeline.
const LEAST: Bar = Bar::AtLeast(800_000.0);
/// The least decisions per second, relative to the peer.
const PEER: Bar = Bar::AtLeast(1.0);

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.length.pick((1, 0.3), (3, 2.0), (7, 3.0));
    let tollgate = start(setting)?;
    let noop = start_noop()?;
    let peer = setting.peers.get(Peer::Throttlecrab).ok();
    let peer = peer.map(|peer| throttlecrab::start(peer, throttlecrab::Door::Resp));
    let peer = peer.transpose()?;
    expect_answers(&tollgate, Dialect::Cell)?;
    expect_answers(&noop, Dialect::Cell)?;
    if let Some(peer) = &peer {
        expect_answers(peer, Dialect::Throttlecrab)?;
    }
    let mut speed = Table::new([
        "pipeline, answers",
        "tollgate/s",
        "no-op/s",
        "ratio",
        "bar",
        "",
        "throttlecrab/s",
        "ratio",
        "bar",
        "",
    ]);
    let mut cost = Table::new([
        "pipeline, answers",
        "p99 ms",
        "no-op",
        "throttlecrab",
        "CPU us",
        "no-op",
        "throttlecrab",
    ]);
    let mut fastest = f64::NAN;
    for (depth, least) in BARS {
        for limits in Limits::ALL {
            let mut sides = vec![
                Load::new(&tollgate, Dialect::Cell, depth, limits),
                Load::new(&noop, Dialect::Cell, depth, limits),
            ];
            let peer = peer.as_ref();
            sides.extend(peer.map(|it| Load::new(it, Dialect::Throttlecrab, depth, limits)));
            let mut measured = alternate(rounds, &mut sides, |it| it.run(seconds))?.into_iter();
            let mut next = || measured.next().unwrap_or_default();
            let (ours, theirs, peers) = (next(), next(), next());
            if limits == Limits::Wide {
                fastest = ours.per_second();
            }
            let name = format!("{depth}, {}", limits.name());
            let least = Bar::AtLeast(least);
            let (ratio, over_peer) = (
                ours.per_second() / theirs.per_second(),
                ours.per_second() / peers.per_second(),
            );
            speed.row([
                name.clone(),
                figure(ours.per_second(), 0),
                figure(theirs.per_second(), 0),
                figure(ratio, 2),
                least.to_string(),
                least.verdict(ratio),
                figure(peers.per_second(), 0),
                figure(over_peer, 2),
                PEER.to_string(),
                PEER.verdict(over_peer),
            ]);
            if limits == Limits::Wide {
                let work = format!("RESP in memory, a pipeline of {depth}");
                let figures = |rounds: &Rounds| Figures {
                    cpu_micros: rounds.cpu_micros(),
                    p99_millis: rounds.p99_millis(),
                };
                let name = setting.peers.describe(&[Peer::Throttlecrab]);
                let theirs = setting.peers.get(Peer::Throttlecrab);
                let theirs = theirs.map(|_| figures(&peers));
                report.against(&work, &name, figures(&ours), theirs);
            }
            cost.row([
                name,
                figure(ours.p99_millis(), 2),
                figure(theirs.p99_millis(), 2),
                figure(peers.p99_millis(), 2),
                figure(ours.cpu_micros(), 2),
                figure(theirs.cpu_micros(), 2),
                figure(peers.cpu_micros(), 2),
            ]);
        }
    }
    report.section(
        &format!(
            "`CL.THROTTLE` by redis-benchmark, 50 connections, random keys of 100,000, state in memory; \
             {};\nmedians of {rounds} alternating rounds of about {seconds} s.",
            setting.peers.describe(&[Peer::Throttlecrab]),
        ),
        &[speed, cost],
    );
    let (deepest, _) = BARS[BARS.len() - 1];
    let mut most = Table::new(["", "decisions/s", "bar", ""]);
    most.row([
        format!("a pipeline of {deepest}"),
        figure(fastest, 0),
        LEAST.to_string(),
        LEAST.verdict(fastest),
    ]);
    report.section("The most decisions a second.", &[most]);
    Ok(())
}

/// Tollgate with its RESP door open.
pub(super) fn start(setting: &Setting) -> Result<Server, Box<dyn Error>> {
    tollgate::start(&setting.tollgate, &setting.scratch, FIVE_RULES, Door::Resp)
}

pub(super) fn start_noop() -> Result<Server, Box<dyn Error>> {
    let this = std::env::current_exe()?;
    Server::start("no-op", |address| {
        let mut command = Command::new(this);
        command.args(["noop-resp", "--resp", &address.to_string()]);
        command
    })
}

/// Sends one request, which must be allowed. redis-benchmark would count errors as answers.
fn expect_answers(server: &Server, dialect: Dialect) -> Result<(), Box<dyn Error>> {
    let mut client = Client::connect(server.address(), dialect)?;
    let allowed = client.ask(["first".to_owned()], Limits::Wide.numbers())?;
    match allowed {
        1 => Ok(()),
        _ => Err(format!("{} denied the first request", server.name()).into()),
    }
}
