//! The modes through the doors: `tollgate serve` as a process, with the load of 100,000 keys with a Zipf distribution.

use std::error::Error;
use std::path::PathBuf;

use tollgate_bench::table::Bar;
use tollgate_bench::workload::api_keys;
use tollgate_rig::Redis;

use super::{Zipf, row};
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
        tollgate: &std::path::Path,
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
        match self {
            Load::Http(requests) => requests.run(server, IN_FLIGHT, seconds),
            Load::Rls(calls) => {
                let cpu_before = server.cpu_micros()?;
                let load = versus::load(server.address(), calls, pace, seconds)?.output()?;
                let cpu = server.cpu_micros()? - cpu_before;
                Round::read(server.name(), &load, cpu)
            }
        }
    }
}

/// Measures all modes through both doors, and adds rows to `table`.
pub(super) fn measure(
    length: Length,
    table: &mut tollgate_bench::table::Table,
) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = length.rounds();
    let (scratch, tollgate) = (Scratch::new()?, tollgate::beside()?);
    let (all, zipf) = (api_keys(KEYS), Zipf::new(KEYS));
    let mut random = fastrand::Rng::with_seed(1);
    let drawn = (0..REQUESTS).map(|_| all[zipf.pick(&mut random)].clone());
    let keys: Vec<String> = drawn.collect();
    for (name, door) in [("HTTP", Door::Http), ("RLS", Door::Grpc)] {
        let load = Load::new(&scratch, door, &keys, name)?;
        let started = MODES.map(|mode| Side::start(&tollgate, &scratch, mode, door));
        let mut sides = started.into_iter().collect::<Result<Vec<Side>, _>>()?;
        let closed = Pace::InFlight(IN_FLIGHT);
        let measured = alternate(rounds, &mut sides, |side| {
            load.run(&side.server, closed, seconds)
        })?;
        let rates: Vec<f64> = measured.iter().map(Rounds::per_second).collect();
        for (side, rate) in sides.iter().zip(&rates) {
            let told = format!("{name}, {}: 1000 checks/s", side.name);
            row(table, &told, rate / 1000.0, Bar::None);
        }
        let to_memory = |index: usize| rates[index] / rates[0];
        row(
            table,
            &format!("{name}, leased to memory"),
            to_memory(1),
            RATE,
        );
        row(
            table,
            &format!("{name}, async to memory"),
            to_memory(2),
            Bar::None,
        );
        row(
            table,
            &format!("{name}, exact to memory"),
            to_memory(3),
            Bar::None,
        );
        if let Door::Grpc = door {
            let open = Pace::PerSecond(PER_SECOND);
            let measured = alternate(rounds, &mut sides[..2], |side| {
                load.run(&side.server, open, seconds)
            })?;
            let p99: Vec<f64> = measured.iter().map(Rounds::p99_millis).collect();
            row(table, "RLS, p99 at 10,000/s, memory, ms", p99[0], Bar::None);
            row(table, "RLS, p99 at 10,000/s, leased, ms", p99[1], Bar::None);
            let told = "RLS, p99 at 10,000/s, leased to memory";
            row(table, told, p99[1] / p99[0], P99);
            commands(
                &load,
                &sides[2..],
                "100,000 keys",
                Bar::None,
                seconds,
                table,
            )?;
            let hot = Load::new(&scratch, door, &all[..100], "hot")?;
            commands(&hot, &sides[2..], "100 busy keys", COMMANDS, seconds, table)?;
        }
    }
    Ok(())
}

/// Compares the script calls that Redis runs for each decision in mode async with those in mode exact.
fn commands(
    load: &Load,
    sides: &[Side],
    keys: &str,
    bar: Bar,
    seconds: u32,
    table: &mut tollgate_bench::table::Table,
) -> Result<(), Box<dyn Error>> {
    let mut per_decision = Vec::new();
    for side in sides {
        let pace = Pace::InFlight(IN_FLIGHT);
        load.run(&side.server, pace, seconds)?;
        let before = side.commands();
        let round = load.run(&side.server, pace, seconds)?;
        let decisions = round.per_second * f64::from(seconds);
        per_decision.push((side.commands() - before) / decisions);
        let told = format!("Redis commands per decision, {}, {keys}", side.name);
        row(
            table,
            &told,
            per_decision[per_decision.len() - 1],
            Bar::None,
        );
    }
    let told = format!("Redis commands per decision, async to exact, {keys}");
    row(table, &told, per_decision[0] / per_decision[1], bar);
    Ok(())
}
