//! The latency of Envoy's `ShouldRateLimit` with state in Redis, at a fixed rate that is far below the most.

use std::error::Error;

use tollgate_bench::report::Report;
use tollgate_bench::table::Bar;

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
        &[table, bars],
    );
    Ok(())
}
