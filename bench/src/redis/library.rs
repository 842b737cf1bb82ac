//! The store as a library against redis_rate, a library for Go: gcra, one key per check, many callers.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tollgate_bench::report::{Figures, Report};
use tollgate_bench::table::{Table, figure, median};
use tollgate_core::Limit;
use tollgate_rig::Redis;

use super::callers::Side;
use super::traffic::{SUBJECTS, Traffic};
use super::{Round, middle};
use crate::length::Length;
use crate::peers::{Peer, Peers, Program, redis_rate};
use crate::round;

const CALLERS: [usize; 2] = [64, 256];

/// The rounds of the peer: its own figures, which include its CPU time and that of Redis.
type Theirs = Vec<round::Round>;

pub(super) fn run(
    side: &Side<'_>,
    redis: &Redis,
    limit: &Limit,
    length: Length,
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = length.rounds();
    let peers = Peers::default();
    let peer = peers.get(Peer::RedisRate);
    let name = peers.describe(&[Peer::RedisRate]);
    let traffic = Arc::new(Traffic::single(limit.clone()));
    let mut table = Table::new([
        "gcra as a library",
        "",
        "checks/s",
        "p50 ms",
        "p99 ms",
        "CPU us",
        "Redis CPU us",
    ]);
    for callers in CALLERS {
        let (mut ours, mut theirs): (Vec<Round>, Theirs) = (Vec::new(), Vec::new());
        for number in 0..=rounds {
            let our = side.run(&traffic, callers, Duration::from_secs(seconds.into()))?;
            let their = peer.map(|it| measure(it, redis, callers, seconds)).ok();
            // The first round is a warm-up.
            if number > 0 {
                ours.push(our);
                theirs.extend(their.transpose()?);
            }
        }
        let case = format!("gcra as a library on Redis, {callers} callers");
        let row = |name: &str, figures: [f64; 5]| {
            let [rate, p50, p99, cpu, redis] = figures;
            [
                format!("{callers} callers"),
                name.to_owned(),
                figure(rate, 0),
                figure(p50, 2),
                figure(p99, 2),
                figure(cpu, 1),
                figure(redis, 1),
            ]
        };
        let our = |figure: fn(&Round) -> f64| middle(&ours, figure);
        let their = |figure: fn(&round::Round) -> f64| median(theirs.iter().map(figure).collect());
        table.row(row(
            "tollgate",
            [
                our(|it| it.per_second),
                our(|it| it.p50_millis),
                our(|it| it.p99_millis),
                our(|it| it.our_cpu),
                our(|it| it.redis_cpu),
            ],
        ));
        table.row(row(
            &name,
            [
                their(|it| it.per_second),
                their(|it| it.p50_millis),
                their(|it| it.p99_millis),
                their(|it| it.cpu_micros),
                their(|it| it.redis_micros),
            ],
        ));
        let figures = Figures {
            cpu_micros: our(|it| it.our_cpu) + our(|it| it.redis_cpu),
            p99_millis: our(|it| it.p99_millis),
        };
        let of_peer = peer.map(|_| Figures {
            cpu_micros: their(|it| it.cpu_micros) + their(|it| it.redis_micros),
            p99_millis: their(|it| it.p99_millis),
        });
        report.against(&case, &name, figures, of_peer);
    }
    report.section(
        &format!(
            "The store as a library, against {name}: each caller has one check in flight, {SUBJECTS} random \
             keys.\nCPU is the time of the process that calls the library. Medians of {rounds} alternating rounds of \
             {seconds} s."
        ),
        &[table],
    );
    Ok(())
}

/// Runs a round of the peer.
fn measure(
    program: &Program,
    redis: &Redis,
    callers: usize,
    seconds: u32,
) -> Result<round::Round, Box<dyn Error>> {
    let before = redis.cpu_micros();
    let url = redis.url();
    let load = redis_rate::run(program, &url, callers, SUBJECTS, seconds.into())?;
    let used = (redis.cpu_micros() - before) as f64;
    let cpu = own_cpu(&String::from_utf8_lossy(&load.stdout)).unwrap_or(f64::NAN);
    let round = round::Round::read(Peer::RedisRate.name(), &load, cpu)?;
    Ok(round.with_redis(&load, used))
}

/// Returns the CPU time that the peer's program has printed, in microseconds.
fn own_cpu(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read() {
        assert_eq!(own_cpu("result 1 2 3 4 0\ncpu 1500\n"), Some(1500.0));
        assert_eq!(own_cpu("result 1 2 3 4 0\n"), None);
    }
}
