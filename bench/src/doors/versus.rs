//! Tollgate beside its peers: servers that get the same work in alternating rounds.

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_bench::report::{Figures, Report};
use tollgate_bench::table::{Bar, Table, figure};
use tollgate_bench::workload::api_keys;
use tollgate_rig::Redis;

use super::Setting;
use crate::load::calls::Calls;
use crate::peers::wire::{DOMAIN, rls};
use crate::peers::{self, LIMIT, Peer, Work};
use crate::round::{Round, Rounds, alternate};
use crate::server::Server;
use crate::tollgate::{self, Door};

/// The keys of the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    Many,
    Hot,
}

impl Keys {
    pub(super) fn name(self) -> &'static str {
        match self {
            Keys::Many => "100,000 keys",
            Keys::Hot => "one hot key",
        }
    }

    pub(super) fn values(self) -> Vec<String> {
        api_keys(match self {
            Keys::Many => 100_000,
            Keys::Hot => 1,
        })
    }
}

/// The pace of the requests.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    InFlight(u32),
    PerSecond(f64),
}

/// Where the state is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Memory,
    /// Each side has a Redis of its own.
    Redis,
}

/// A server, and its Redis if it has one.
pub(super) struct Side {
    /// `None` is Tollgate.
    pub(super) peer: Option<Peer>,
    pub(super) server: Server,
    redis: Option<Redis>,
    /// The file of the requests.
    calls: PathBuf,
}

impl Side {
    pub(super) fn name(&self) -> &'static str {
        self.peer.map_or("tollgate", Peer::name)
    }

    /// Sets the requests of the next rounds.
    fn set_calls(&mut self, setting: &Setting, calls: &Calls) -> Result<(), Box<dyn Error>> {
        let name = format!("{}.calls", self.server.address().port());
        self.calls = setting.scratch.file(&name, &calls.to_bytes())?;
        Ok(())
    }

    /// Returns the command that sends the requests.
    pub(super) fn load(&self, pace: Pace, seconds: u32) -> Result<Command, Box<dyn Error>> {
        load(self.server.address(), &self.calls, pace, seconds)
    }

    pub(super) fn run(&self, pace: Pace, seconds: u32) -> Result<Round, Box<dyn Error>> {
        let redis_before = self.redis_micros();
        let cpu_before = self.server.cpu_micros()?;
        let load = self.load(pace, seconds)?.output()?;
        let cpu = self.server.cpu_micros()? - cpu_before;
        let redis = self.redis_micros() - redis_before;
        Ok(Round::read(self.name(), &load, cpu)?.with_redis(&load, redis))
    }

    fn redis_micros(&self) -> f64 {
        // Microseconds of a run are exact in a double.
        #[allow(clippy::cast_precision_loss)]
        let micros = |redis: &Redis| redis.cpu_micros() as f64;
        self.redis.as_ref().map_or(f64::NAN, micros)
    }
}

/// Returns the command that sends the requests in `calls` to a gRPC server.
pub(crate) fn load(
    server: SocketAddr,
    calls: &Path,
    pace: Pace,
    seconds: u32,
) -> Result<Command, Box<dyn Error>> {
    let mut load = Command::new(std::env::current_exe()?);
    load.args(["load-grpc", "--grpc", &server.to_string()]);
    load.arg("--calls").arg(calls);
    match pace {
        Pace::InFlight(number) => load.args(["--in-flight", &number.to_string()]),
        Pace::PerSecond(rate) => load.args(["--per-second", &rate.to_string()]),
    };
    load.args(["--seconds", &seconds.to_string()]);
    Ok(load)
}

/// Tollgate and those of its peers that are installed.
pub(super) struct Sides {
    work: Work,
    sides: Vec<Side>,
    /// The peers that are not, and why.
    absent: Vec<(Peer, String)>,
}

impl Sides {
    /// Starts Tollgate and `peers` with the limits of `work`.
    pub(super) fn start(
        setting: &Setting,
        peers: &[Peer],
        work: Work,
        state: State,
    ) -> Result<Sides, Box<dyn Error>> {
        let redis = || (state == State::Redis).then(Redis::start);
        let (mut sides, mut absent) = (Vec::new(), Vec::new());
        let own = redis();
        let config = config(work, own.as_ref());
        let (tollgate, scratch) = (&setting.tollgate, &setting.scratch);
        sides.push(Side {
            peer: None,
            server: tollgate::start(tollgate, scratch, &config, Door::Grpc)?,
            redis: own,
            calls: PathBuf::new(),
        });
        for peer in peers {
            let program = match setting.peers.get(*peer) {
                Ok(program) => program,
                Err(reason) => {
                    absent.push((*peer, reason.to_owned()));
                    continue;
                }
            };
            let own = redis();
            let url = own.as_ref().map(Redis::url);
            let server = peers::start_grpc(*peer, program, scratch, work, url.as_deref())?;
            sides.push(Side {
                peer: Some(*peer),
                server,
                redis: own,
                calls: PathBuf::new(),
            });
        }
        Ok(Sides {
            work,
            sides,
            absent,
        })
    }

    /// Sets the keys of the next rounds.
    pub(super) fn set_keys(&mut self, setting: &Setting, keys: Keys) -> Result<(), Box<dyn Error>> {
        let values = keys.values();
        for side in &mut self.sides {
            let calls = match side.peer {
                None => Some(rls(self.work, &values)),
                Some(peer) => peers::calls(peer, self.work, &values),
            };
            let name = side.name();
            let calls = calls.ok_or_else(|| format!("{name} cannot be asked this"))?;
            side.set_calls(setting, &calls)?;
        }
        Ok(())
    }

    pub(super) fn all(&self) -> &[Side] {
        &self.sides
    }

    /// Runs alternating rounds.
    pub(super) fn measure(
        &mut self,
        rounds: u32,
        seconds: u32,
        pace: Pace,
    ) -> Result<Measured, Box<dyn Error>> {
        let measured = alternate(rounds, &mut self.sides, |side| side.run(pace, seconds))?;
        let sides = self.sides.iter().map(|side| side.peer).zip(measured);
        Ok(Measured {
            sides: sides.collect(),
            absent: self.absent.clone(),
        })
    }
}

/// The figures of one case.
pub(super) struct Measured {
    pub(super) sides: Vec<(Option<Peer>, Rounds)>,
    pub(super) absent: Vec<(Peer, String)>,
}

impl Measured {
    /// The figures of Tollgate.
    pub(super) fn ours(&self) -> Rounds {
        self.of(None)
    }

    /// The figures of a peer; none if it is not installed.
    pub(super) fn theirs(&self, peer: Peer) -> Rounds {
        self.of(Some(peer))
    }

    fn of(&self, peer: Option<Peer>) -> Rounds {
        let mut sides = self.sides.iter();
        let side = sides.find(|(it, _)| *it == peer);
        side.map(|(_, rounds)| rounds.clone()).unwrap_or_default()
    }

    /// Adds a row for each server to `table`, and a row for each peer to the first table of the document.
    pub(super) fn add(
        &self,
        setting: &Setting,
        case: &str,
        table: &mut Table,
        report: &mut Report,
    ) {
        let ours = self.ours();
        for (peer, rounds) in &self.sides {
            table.row([
                case.to_owned(),
                peer.map_or("tollgate", Peer::name).to_owned(),
                figure(rounds.per_second(), 0),
                figure(rounds.p50_millis(), 2),
                figure(rounds.p99_millis(), 2),
                figure(rounds.cpu_micros(), 1),
                figure(rounds.redis_micros(), 1),
                figure(rounds.all_micros() / ours.all_micros(), 2),
            ]);
            if let Some(peer) = peer {
                let name = setting.peers.describe(&[*peer]);
                report.against(case, &name, figures(&ours), Ok(figures(rounds)));
            }
        }
        for (peer, reason) in &self.absent {
            let mut row = vec![case.to_owned(), peer.name().to_owned()];
            row.extend(vec!["-".to_owned(); 5]);
            row.push(format!("not measured: {reason}"));
            table.push(row);
            report.against(case, peer.name(), figures(&ours), Err(reason));
        }
    }
}

fn figures(rounds: &Rounds) -> Figures {
    Figures {
        cpu_micros: rounds.all_micros(),
        p99_millis: rounds.p99_millis(),
    }
}

/// Returns the table of [`Measured::add`].
pub(super) fn table(heading: &str) -> Table {
    Table::new([
        heading,
        "server",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "CPU us",
        "Redis CPU us",
        "all CPU, times Tollgate's",
    ])
}

/// Returns a table of bars.
pub(super) fn bars() -> Table {
    Table::new(["", "ratio", "bar", ""])
}

/// Adds a row to [`bars`].
pub(super) fn bar(table: &mut Table, name: &str, ratio: f64, bar: Bar) {
    table.row([
        name.to_owned(),
        figure(ratio, 2),
        bar.to_string(),
        bar.verdict(ratio),
    ]);
}

/// Returns a config of Tollgate with the limits of `work`: gcra in memory, fixed windows in Redis. These are what the
/// peers have in memory and in Redis.
pub(super) fn config(work: Work, redis: Option<&Redis>) -> String {
    let mut config = format!("version: 1\nnamespace: {DOMAIN}\n");
    if let Some(redis) = redis {
        // A long timeout: the machine is fully loaded, and no request must fail.
        let url = redis.url();
        config += &format!("store: {{ redis: {{ url: \"{url}\", timeout: 10s }} }}\n");
        config += "subjects: { hash_secret: the secret of a benchmark }\n";
    }
    config += "rules:\n";
    for attribute in work.attributes() {
        let numbers = match redis {
            Some(_) => format!("algorithm: fixed-window, limit: {LIMIT}, window: 1h"),
            None => format!("algorithm: gcra, rate: 1/s, burst: {LIMIT}"),
        };
        config += &format!("  - {{ id: {attribute}, per: [{attribute}], {numbers} }}\n");
    }
    config
}
