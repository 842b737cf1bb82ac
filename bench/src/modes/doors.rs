//! The modes through the doors: `tollgate serve` as a process, with the load of 100,000 keys with a Zipf distribution.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_bench::table::{Bar, Table, figure};
use tollgate_bench::workload::api_keys;
use tollgate_rig::Redis;

use super::{HOT, Zipf, row};
use crate::doors::http::load::Requests;
use crate::doors::versus::{self, Pace};
use crate::length::Length;
use crate::peers::Work;
use crate::peers::wire::rls;
use crate::round::{Round, Rounds, alternate};
use crate::server::{Scratch, Server};
use crate::tollgate::{self, Door};

const IN_FLIGHT: u32 = 64;
const KEYS: usize = 100_000;
/// How many requests of the distribution the load generators repeat at random.
const REQUESTS: usize = 200_000;
/// The rate of the open loop.
const PER_SECOND: f64 = 10_000.0;
const RATE: Bar = Bar::AtLeast(0.8);
const P99: Bar = Bar::AtMost(1.3);
const COMMANDS: Bar = Bar::AtMost(0.1);
/// Limitador with cached Redis, relative to a no-op server: measured earlier on a machine like this one.
const LIMITADOR_HTTP: f64 = 0.41;
const LIMITADOR_GRPC: f64 = 0.30;

/// A rule that no run uses up.
const PLENTY: &str = "algorithm: fixed-window, limit: 1000000000, window: 30d";

/// A server in one mode, with its Redis.
struct Side {
    name: &'static str,
    server: Server,
    redis: Option<Redis>,
}

impl Side {
    fn start(
        tollgate: &Path,
        scratch: &Scratch,
        (name, mode): (&'static str, &str),
        door: Door,
    ) -> Result<Side, Box<dyn Error>> {
        let redis = (name != "memory").then(Redis::start);
        let store = redis.as_ref().map_or_else(String::new, |redis| {
            let url = redis.url();
            format!("store: {{ redis: {{ url: \"{url}\", timeout: 10s }} }}\n")
        });
        let config = format!(
            "version: 1\nnamespace: bench\nsubjects: {{ hash_secret: the secret of a benchmark }}\n{store}\
             rules: [{{ id: bench, per: [api_key], {PLENTY}, {mode} }}]\n"
        );
        Ok(Side {
            name,
            server: tollgate::start(tollgate, scratch, &config, door)?,
            redis,
        })
    }

    /// Starts a server with a constant answer.
    fn start_noop(door: Door) -> Result<Side, Box<dyn Error>> {
        let this = std::env::current_exe()?;
        let [command, flag] = match door {
            Door::Http => ["noop-http", "--http"],
            _ => ["noop-grpc", "--grpc"],
        };
        let server = Server::start("no-op", |address| {
            let mut program = Command::new(this);
            program.args([command, flag, &address.to_string()]);
            program
        })?;
        Ok(Side {
            name: "no-op",
            server,
            redis: None,
        })
    }

    /// Returns how many script calls the Redis has run.
    fn commands(&self) -> f64 {
        let calls = |stats: &str| {
            let calls = stats.strip_prefix("calls=")?.split(',').next()?;
            calls.parse::<f64>().ok()
        };
        let stats = self.redis.as_ref().map(|it| it.info("commandstats"));
        let scripts = ["cmdstat_evalsha", "cmdstat_eval"];
        let stats = stats.iter().flat_map(|it| scripts.map(|name| it.get(name)));
        stats.flatten().filter_map(|it| calls(it)).sum()
    }
}

const MODES: [(&str, &str); 4] = [
    ("memory", "mode: exact"),
    ("leased", "mode: leased, slice: 10s"),
    ("async", "mode: async, flush: 500ms"),
    ("exact", "mode: exact"),
];

/// The load of one door.
enum Load {
    Http(Requests),
    Rls(PathBuf),
}

impl Load {
    fn new(
        scratch: &Scratch,
        door: Door,
        keys: &[String],
        name: &str,
    ) -> Result<Load, Box<dyn Error>> {
        Ok(match door {
            Door::Http => {
                let body = |key: &String| format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#);
                let bodies: Vec<String> = keys.iter().map(body).collect();
                Load::Http(Requests::new(scratch, name, "/v1/check", "", &bodies)?)
            }
            _ => {
                let calls = rls(Work::One, keys);
                Load::Rls(scratch.file(&format!("{name}.calls"), &calls.to_bytes())?)
            }
        })
    }

    fn run(&self, server: &Server, pace: Pace, seconds: u32) -> Result<Round, Box<dyn Error>> {
        match (self, pace) {
            (Load::Http(requests), Pace::InFlight(connections)) => {
                requests.run(server, connections, seconds)
            }
            (Load::Http(requests), Pace::PerSecond(rate)) => {
                requests.run_paced(server, rate, seconds)
            }
            (Load::Rls(calls), pace) => {
                let cpu_before = server.cpu_micros()?;
                let load = versus::load(server.address(), calls, pace, seconds)?.output()?;
                let cpu = server.cpu_micros()? - cpu_before;
                Round::read(server.name(), &load, cpu)
            }
        }
    }
}

/// Measures all modes through both doors. Returns a table of figures with bars, and one of ratios to no-op servers.
pub(super) fn measure(length: Length) -> Result<[Table; 2], Box<dyn Error>> {
    let (rounds, seconds) = length.rounds();
    let (scratch, tollgate) = (Scratch::new()?, tollgate::beside()?);
    let (all, zipf) = (api_keys(KEYS), Zipf::new(KEYS));
    let mut random = fastrand::Rng::with_seed(1);
    let drawn = (0..REQUESTS).map(|_| all[zipf.pick(&mut random)].clone());
    let keys: Vec<String> = drawn.collect();
    let mut table = super::table();
    let mut to_noop = Table::new([
        "of a no-op server",
        "memory",
        "leased",
        "async",
        "exact",
        "Limitador, cached Redis",
    ]);
    for (name, door, limitador) in [
        ("HTTP", Door::Http, LIMITADOR_HTTP),
        ("RLS", Door::Grpc, LIMITADOR_GRPC),
    ] {
        let load = Load::new(&scratch, door, &keys, name)?;
        let started = MODES.map(|mode| Side::start(&tollgate, &scratch, mode, door));
        let mut sides = started.into_iter().collect::<Result<Vec<Side>, _>>()?;
        sides.push(Side::start_noop(door)?);
        let closed = Pace::InFlight(IN_FLIGHT);
        let measured = alternate(rounds, &mut sides, |side| {
            load.run(&side.server, closed, seconds)
        })?;
        let rates: Vec<f64> = measured.iter().map(Rounds::per_second).collect();
        for (side, rate) in sides.iter().zip(&rates) {
            let told = format!("{name}, {}: 1000 checks/s", side.name);
            row(&mut table, &told, rate / 1000.0, Bar::None);
        }
        for (index, bar) in [(1, RATE), (2, Bar::None), (3, Bar::None)] {
            let told = format!("{name}, {} to memory", sides[index].name);
            row(&mut table, &told, rates[index] / rates[0], bar);
        }
        let ratios = (0..MODES.len()).map(|index| figure(rates[index] / rates[MODES.len()], 2));
        let cells = std::iter::once(name.to_owned()).chain(ratios);
        to_noop.push(cells.chain([figure(limitador, 2)]).collect());
        let open = Pace::PerSecond(PER_SECOND);
        let measured = alternate(rounds, &mut sides[..2], |side| {
            load.run(&side.server, open, seconds)
        })?;
        let p99: Vec<f64> = measured.iter().map(Rounds::p99_millis).collect();
        for (side, p99) in sides.iter().zip(&p99) {
            let told = format!("{name}, {}: p99 at 10,000/s, ms", side.name);
            row(&mut table, &told, *p99, Bar::None);
        }
        let told = format!("{name}, p99 at 10,000/s, leased to memory");
        row(&mut table, &told, p99[1] / p99[0], P99);
        if let Door::Grpc = door {
            let hot = Load::new(&scratch, door, &all[..1], "one")?;
            let calls = commands(&hot, &sides[1], seconds)?;
            let told = "Redis commands per decision, leased, one busy key";
            row(&mut table, told, calls, HOT);
            let busy = Load::new(&scratch, door, &all[..100], "busy")?;
            for (load, keys, bar) in [
                (&load, "100,000 keys", Bar::None),
                (&busy, "100 busy keys", COMMANDS),
            ] {
                let [ours, exact] = [2, 3].map(|side| commands(load, &sides[side], seconds));
                let (ours, exact) = (ours?, exact?);
                let told = format!("Redis commands per decision, exact, {keys}");
                row(&mut table, &told, exact, Bar::None);
                let told = format!("Redis commands per decision, async, {keys}");
                row(&mut table, &told, ours, Bar::None);
                let told = format!("Redis commands per decision, async to exact, {keys}");
                row(&mut table, &told, ours / exact, bar);
            }
        }
    }
    Ok([table, to_noop])
}

/// Returns the script calls that Redis runs for each decision.
fn commands(load: &Load, side: &Side, seconds: u32) -> Result<f64, Box<dyn Error>> {
    let pace = Pace::InFlight(IN_FLIGHT);
    load.run(&side.server, pace, seconds)?;
    let before = side.commands();
    let round = load.run(&side.server, pace, seconds)?;
    let decisions = round.per_second * f64::from(seconds);
    Ok((side.commands() - before) / decisions)
}
