//! The latency of Envoy's `ShouldRateLimit` with state in Redis, at a fixed rate that is far below the most. And what
//! Redis itself takes for the least that a check can send it at that rate.

use std::error::Error;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use redis::{Client, Connection, RedisResult};
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, figure, median};
use tollgate_rig::{Redis, Stopwatch};

use super::Setting;
use super::rls::PEERS;
use super::versus::{self, Keys, Pace, Sides, State};
use crate::load::CONNECTIONS;
use crate::peers::{Peer, Work};

const PER_SECOND: f64 = 2_000.0;
/// The 99th percentile, relative to the peer's.
const P99: Bar = Bar::AtMost(0.5);
/// The CPU time of Redis, relative to the peer's.
const REDIS: Bar = Bar::AtMost(1.0);

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    // CPU time is counted in hundredths of a second, so short rounds would be too coarse.
    let (rounds, seconds) = setting.length.pick((1, 1), (3, 4), (7, 5));
    let mut sides = Sides::start(setting, &PEERS, Work::One, State::Redis)?;
    sides.set_keys(setting, Keys::Many)?;
    let measured = sides.measure(rounds, seconds, Pace::PerSecond(PER_SECOND))?;
    let mut table = versus::table("open loop");
    let case = format!("RLS on Redis, one descriptor, {PER_SECOND} a second, 100,000 keys");
    measured.add(setting, &case, &mut table, report);
    let (ours, theirs) = (measured.ours(), measured.theirs(Peer::Ratelimit));
    let peer = Peer::Ratelimit.name();
    let mut bars = versus::bars();
    for (name, ratio, bar) in [
        ("p99", ours.p99_millis() / theirs.p99_millis(), P99),
        (
            "Redis CPU",
            ours.redis_micros() / theirs.redis_micros(),
            REDIS,
        ),
    ] {
        let name = format!("{name} at {PER_SECOND} a second, to {peer}'s");
        versus::bar(&mut bars, &name, ratio, bar);
    }
    report.section(
        &format!(
            "{PER_SECOND} requests a second leave at random instants over {CONNECTIONS} connections, whether \
             earlier ones are\nanswered or not. A latency starts when its request was due. {}; medians of \
             {rounds}\nalternating rounds of {seconds} s.",
            setting.peers.describe(&PEERS)
        ),
        &[table, bars, floor(rounds, seconds)?],
    );
    Ok(())
}

/// Measures Redis with two plain commands, and with a script that does nothing. No atomic check is cheaper than the
/// script: it has to look at the state before it charges, and only a script does both in one step.
fn floor(rounds: u32, seconds: u32) -> Result<Table, Box<dyn Error>> {
    let redis = Redis::start();
    let mut connection = Client::open(redis.url())?.get_connection()?;
    let script: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg("return 0")
        .query(&mut connection)?;
    let plain = |connection: &mut Connection, key: usize| {
        let mut pipe = redis::pipe();
        pipe.cmd("INCRBY").arg(key).arg(1);
        pipe.cmd("EXPIRE").arg(key).arg(3600);
        pipe.query(connection)
    };
    let empty = |connection: &mut Connection, key: usize| {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&script).arg(1).arg(key).arg(1).query(connection)
    };
    let (mut two_commands, mut scripts) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        two_commands.push(cost(&redis, &mut connection, seconds, plain)?);
        scripts.push(cost(&redis, &mut connection, seconds, empty)?);
    }
    let mut table = Table::new(["what Redis is sent at this rate", "Redis CPU us"]);
    for (name, micros) in [
        ("INCRBY and EXPIRE, in one write", two_commands),
        ("a script that only returns 0", scripts),
    ] {
        table.row([name.to_owned(), figure(median(micros), 1)]);
    }
    Ok(table)
}

/// Returns the CPU time of Redis for each request, in microseconds. Requests are due at random instants.
fn cost(
    redis: &Redis,
    connection: &mut Connection,
    seconds: u32,
    send: impl Fn(&mut Connection, usize) -> RedisResult<()>,
) -> Result<f64, Box<dyn Error>> {
    let (mut random, clock) = (Rng::with_seed(1), Stopwatch::start());
    let (mut due, mut sent, before) = (0.0, 0_u32, redis.cpu_micros());
    while due < f64::from(seconds) {
        due -= random.f64().max(f64::MIN_POSITIVE).ln() / PER_SECOND;
        if let Some(pause) = Duration::from_secs_f64(due).checked_sub(clock.elapsed()) {
            thread::sleep(pause);
        }
        send(connection, random.usize(..100_000))?;
        sent += 1;
    }
    // Microseconds of a round are exact in a double.
    #[allow(clippy::cast_precision_loss)]
    let used = (redis.cpu_micros() - before) as f64;
    Ok(used / f64::from(sent))
}
