//! The HTTP and the gRPC door with state in Redis on the same machine, against the no-op servers.

use std::error::Error;

use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table};
use tollgate_rig::Redis;

use super::{Setting, comparison, grpc, http};
use crate::engine::FIVE_RULES;
use crate::round::{Round, Rounds, alternate};
use crate::server::Server;

/// The number of concurrent requests: few in one measurement, many in another.
const FEW: u32 = 64;
const MANY: u32 = 256;
/// The least requests per second, relative to the no-op server.
const RATE: Bar = Bar::AtLeast(0.5);
/// The least throughput with many concurrent requests, relative to that with few.
const GROWTH: Bar = Bar::AtLeast(1.0);

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.length.rounds();
    let redis = Redis::start();
    // A long timeout: the machine is fully loaded, and no request must fail.
    let config = format!(
        "{FIVE_RULES}\nsubjects: {{ hash_secret: the secret of a benchmark }}\n\
         store: {{ redis: {{ url: \"{}\", timeout: 2s }} }}\n",
        redis.url()
    );
    let mut table = comparison::table("door, in flight");
    let mut growth = Table::new(["door", "256 in flight to 64", "bar", ""]);
    {
        let pair = http::Pair::start(setting, &config)?;
        let all = each(rounds, &pair.tollgate, &pair.noop, |server, connections| {
            pair.measure(server, connections, seconds)
        })?;
        rows("HTTP", &all, &mut table, &mut growth);
    }
    {
        let pair = grpc::Pair::start(setting, &config)?;
        let all = each(rounds, &pair.tollgate, &pair.noop, |server, in_flight| {
            pair.measure(server, in_flight, seconds)
        })?;
        rows("gRPC", &all, &mut table, &mut growth);
    }
    report.section(
        &format!(
            "Redis {} decides every request. There are five rules, of which two match. The CPU time of\nRedis \
             is not included. Medians of {rounds} alternating rounds of {seconds} s.",
            redis.info("server")["redis_version"]
        ),
        &[table],
    );
    report.section(
        "More requests in flight must not lower the rate. If both rates are about the same, noise decides \
         whether\nthe ratio is below or above 1.",
        &[growth],
    );
    Ok(())
}

/// Measures Tollgate and the no-op server with few concurrent requests, then with many.
fn each(
    rounds: u32,
    tollgate: &Server,
    noop: &Server,
    measure: impl Fn(&Server, u32) -> Result<Round, Box<dyn Error>>,
) -> Result<Vec<Rounds>, Box<dyn Error>> {
    let mut sides = [(tollgate, FEW), (noop, FEW), (tollgate, MANY), (noop, MANY)];
    alternate(rounds, &mut sides, |(server, at_a_time)| {
        measure(server, *at_a_time)
    })
}

fn rows(door: &str, all: &[Rounds], table: &mut Table, growth: &mut Table) {
    let [ours_few, _, ours_many, _] = all else {
        return;
    };
    let bars = (RATE, Bar::None);
    comparison::row(table, &format!("{door}, {FEW}"), &all[..2], bars);
    comparison::row(table, &format!("{door}, {MANY}"), &all[2..], bars);
    let ratio = ours_many.per_second() / ours_few.per_second();
    growth.row([
        door.to_owned(),
        format!("{ratio:.2}"),
        GROWTH.to_string(),
        GROWTH.verdict(ratio),
    ]);
}
