//! Envoy's `ShouldRateLimit` with state in Redis, against peers with the same limits: fixed windows of an hour.

use std::error::Error;

use tollgate_bench::report::Report;
use tollgate_bench::table::Bar;

use super::Setting;
use super::versus::{self, Keys, Pace, Sides, State};
use crate::load::CONNECTIONS;
use crate::peers::{Peer, Work};

pub(super) const PEERS: [Peer; 2] = [Peer::Ratelimit, Peer::Limitador];
const IN_FLIGHT: [u32; 2] = [64, 256];
/// The CPU time of Redis for four rules, relative to the peer's.
const FOUR_RULES: Bar = Bar::Below(1.0);

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.length.rounds();
    let mut table = versus::table("RLS on Redis");
    let mut bars = versus::bars();
    let cases = [
        (Work::One, "one descriptor", &[Keys::Many, Keys::Hot][..]),
        (Work::Four, "four descriptors", &[Keys::Many]),
    ];
    for (work, what, all_keys) in cases {
        let mut sides = Sides::start(setting, &PEERS, work, State::Redis)?;
        for keys in all_keys {
            sides.set_keys(setting, *keys)?;
            for in_flight in IN_FLIGHT {
                let measured = sides.measure(rounds, seconds, Pace::InFlight(in_flight))?;
                let case = format!(
                    "RLS on Redis, {what}, {in_flight} in flight, {}",
                    keys.name()
                );
                measured.add(setting, &case, &mut table, report);
                if work == Work::Four {
                    let (ours, theirs) = (measured.ours(), measured.theirs(Peer::Ratelimit));
                    let name = format!(
                        "Redis CPU of four descriptors, {in_flight} in flight, to {}'s",
                        Peer::Ratelimit.name()
                    );
                    let ratio = ours.redis_micros() / theirs.redis_micros();
                    versus::bar(&mut bars, &name, ratio, FOUR_RULES);
                }
            }
        }
    }
    report.section(
        &format!(
            "`ShouldRateLimit` with state in Redis, one Redis for each server; {}. Each descriptor has one \
             limit,\na fixed window of an hour. {CONNECTIONS} connections; medians of {rounds} alternating \
             rounds of {seconds} s.",
            setting.peers.describe(&PEERS)
        ),
        &[table, bars],
    );
    Ok(())
}
