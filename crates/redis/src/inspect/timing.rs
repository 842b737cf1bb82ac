//! Compares clocks, and measures latency.

use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;
use tollgate_core::{Charge, Key, Limit, Span, Tag};
use tollgate_store::{Ask, Clock, Store, SystemClock};

use super::finding::{Finding, Level};
use super::{ask, show};
use crate::options::ClockSource;
use crate::store::RedisStore;

/// How often a clock is read.
const READINGS: usize = 5;
/// If clocks differ by more than this, times in answers are wrong.
const APART: Duration = Duration::from_millis(100);
/// If clocks differ by more than this, and instances decide by their own clocks, limits are wrong.
const FAR_APART: Duration = Duration::from_secs(2);

/// How many answers are measured.
const ROUNDS: usize = 50;
/// How long all measurements may take in total.
const LONGEST: Duration = Duration::from_secs(2);

/// Compares the clock of the server with the clock of this host. If the store decides by another clock,
/// compares with that clock.
pub(super) async fn clock(connection: &mut MultiplexedConnection, source: &ClockSource) -> Finding {
    let host = SystemClock::new();
    let (here, by_caller): (&dyn Clock, bool) = match source {
        ClockSource::Store => (&host, false),
        ClockSource::Caller(clock) => (clock.as_ref(), true),
    };
    let mut readings = Vec::with_capacity(READINGS);
    for _ in 0..READINGS {
        match read(connection, here).await {
            Ok(reading) => readings.push(reading),
            Err(error) => {
                let found = format!("cannot be read: {error}");
                return Finding::bad("clock", found, "give the user +time");
            }
        }
    }
    readings.sort_unstable_by_key(|reading| reading.ahead);
    judge_clock(readings[READINGS / 2], by_caller)
}

/// One reading of a clock.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// How many microseconds the server is ahead.
    ahead: i64,
    /// The possible error in microseconds: half of the round trip.
    error: u64,
}

async fn read(
    connection: &mut MultiplexedConnection,
    here: &dyn Clock,
) -> Result<Reading, RedisError> {
    let (before, sent) = (here.now(), Instant::now());
    let (seconds, micros): (u64, u64) = ask(connection, &["TIME"]).await?;
    let error = u64::try_from(sent.elapsed().as_micros() / 2).unwrap_or(u64::MAX);
    let there = seconds.saturating_mul(1_000_000).saturating_add(micros);
    let here = before.as_micros().saturating_add(error);
    let ahead = there.checked_signed_diff(here).unwrap_or(i64::MAX);
    Ok(Reading { ahead, error })
}

fn judge_clock(Reading { ahead, error }: Reading, by_caller: bool) -> Finding {
    let apart = ahead.unsigned_abs();
    let found = format!(
        "{} {} this host's clock, ± {}",
        show(Duration::from_micros(apart)),
        if ahead < 0 { "behind" } else { "ahead of" },
        show(Duration::from_micros(error))
    );
    // The difference that is certain, without the possible error.
    let apart = Duration::from_micros(apart.saturating_sub(error));
    let (level, help) = if apart <= APART {
        (Level::Ok, "")
    } else if !by_caller {
        let help = "run NTP on both hosts: times in answers are those of the server";
        (Level::Warn, help)
    } else if apart <= FAR_APART {
        let help = "run NTP on all hosts: with `clock: caller`, each instance refills limits by its own clock";
        (Level::Warn, help)
    } else {
        let help = "run NTP on all hosts, or let the server's clock decide: `clock: store`";
        (Level::Bad, help)
    };
    Finding::new(level, "clock", found, help)
}

/// Measures how long the server takes to answer `PING`.
pub(super) async fn ping(connection: &mut MultiplexedConnection, timeout: Duration) -> Finding {
    let mut times = Vec::with_capacity(ROUNDS);
    let start = Instant::now();
    while times.len() < ROUNDS && start.elapsed() < LONGEST {
        let sent = Instant::now();
        if let Err(error) = ask::<String>(connection, &["PING"]).await {
            return unanswered("ping", &error.to_string());
        }
        times.push(sent.elapsed());
    }
    judge_latency("ping", &mut times, timeout)
}

/// Measures how long a decision takes through the store, on a key that does not exist.
pub(super) async fn peek(store: &RedisStore, tag: Tag, timeout: Duration) -> Finding {
    let Ok(limit) = Limit::fixed_window(1, Span::SECOND) else {
        return Finding::ok("decision", "not measured");
    };
    let charge = Charge {
        rule: "doctor",
        tag,
        ..Charge::new(Key::from_bits(fastrand::u128(..)), &limit)
    };
    let mut times = Vec::with_capacity(ROUNDS);
    let start = Instant::now();
    // The first round opens the connection of the store and is not measured.
    for round in 0..=ROUNDS {
        let asked = Instant::now();
        if let Err(error) = store.peek(&[charge], Ask::Exactly(1)).await {
            return unanswered("decision", &error.to_string());
        }
        if round > 0 {
            times.push(asked.elapsed());
            if start.elapsed() > LONGEST {
                break;
            }
        }
    }
    judge_latency("decision", &mut times, timeout)
}

fn unanswered(check: &'static str, error: &str) -> Finding {
    let help = "see the log of the server, and the findings before this one";
    Finding::bad(check, format!("no answer: {error}"), help)
}

fn judge_latency(check: &'static str, times: &mut [Duration], timeout: Duration) -> Finding {
    times.sort_unstable();
    let (p50, p99) = (percentile(times, 50), percentile(times, 99));
    let found = format!(
        "p50 {}, p99 {} of {} answers; `timeout` is {}",
        show(p50),
        show(p99),
        times.len(),
        show(timeout)
    );
    let (level, help) = if p50 > timeout {
        let help =
            "most decisions would fail: raise `timeout`, or run Tollgate closer to the server";
        (Level::Bad, help)
    } else if p99 > timeout / 2 {
        let help = "answers come close to `timeout`: see `SLOWLOG GET` and the load of both hosts, or raise it";
        (Level::Warn, help)
    } else {
        (Level::Ok, "")
    };
    Finding::new(level, check, found, help)
}

/// Returns a percentile by nearest rank; 0 for an empty list.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    let value = sorted.get(rank.saturating_sub(1));
    value.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_be_100_ms_apart() {
        let judge =
            |ahead, error, by_caller| judge_clock(Reading { ahead, error }, by_caller).level;
        assert_eq!(judge(100_000, 0, true), Level::Ok);
        assert_eq!(judge(-100_000, 0, false), Level::Ok);
        assert_eq!(judge(100_001, 0, false), Level::Warn);
        assert_eq!(judge(-100_001, 0, true), Level::Warn);
        assert_eq!(judge(2_000_001, 0, true), Level::Bad);
        assert_eq!(judge(-2_000_001, 0, false), Level::Warn);
    }

    #[test]
    fn a_long_round_trip_is_not_skew() {
        let slow = Reading {
            ahead: 300_000,
            error: 250_000,
        };
        let found = judge_clock(slow, true);
        assert_eq!(found.level, Level::Ok);
        assert_eq!(found.found, "300 ms ahead of this host's clock, ± 250 ms");
    }

    #[test]
    fn answers_are_compared_with_the_timeout() {
        let millis = Duration::from_millis;
        let judge = |slowest: u64, others: u64| {
            let mut times = [vec![millis(slowest)], vec![millis(others); 49]].concat();
            judge_latency("ping", &mut times, millis(50))
        };
        assert_eq!(judge(25, 1).level, Level::Ok);
        assert_eq!(judge(26, 1).level, Level::Warn);
        assert_eq!(judge(60, 50).level, Level::Warn);
        let slow = judge(60, 51);
        assert_eq!(slow.level, Level::Bad);
        assert_eq!(
            slow.found,
            "p50 51 ms, p99 60 ms of 50 answers; `timeout` is 50 ms"
        );
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let micros = |n| Duration::from_micros(n);
        let times: Vec<Duration> = (1..=200).map(micros).collect();
        assert_eq!(percentile(&times, 50), micros(100));
        assert_eq!(percentile(&times, 99), micros(198));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
