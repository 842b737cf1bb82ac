//! Compares the Redis store with scripts of one check each. Many tasks of one process call the store, and
//! `redis-benchmark` calls the scripts.
//!
//! Both sides call the same server with the same number of random keys, in alternating rounds. Client and server
//! share the machine, so only the ratio of throughputs is meaningful. The CPU time of the server is more stable.

mod callers;
mod cluster;
mod latency;
mod library;
mod memory;
mod reference;
mod traffic;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, median};
use tollgate_core::Limit;
use tollgate_rig::Redis;

use self::callers::Side;
use self::latency::{Latency, Percentiles};
use self::reference::Reference;
use self::traffic::{Rule, SUBJECTS, Traffic};
use crate::length::Length;

/// Concurrent tasks.
const CALLERS: usize = 256;

const THROUGHPUT: Bar = Bar::AtLeast(1.3);
const CPU: Bar = Bar::AtMost(0.6);
const FOUR_RULES: Bar = Bar::AtMost(2.5);
const LATENCY: Bar = Bar::AtMost(1.5);
const MEMORY: Bar = Bar::AtMost(1.2);
const MEMORY_OF_FIXED_WINDOW: Bar = Bar::AtMost(1.3);

struct Effort {
    rounds: usize,
    round: Duration,
    /// The number of keys when bytes per key are measured.
    keys: usize,
}

/// The figures of one round. CPU time is in microseconds per request.
#[derive(Clone, Copy, Default)]
struct Round {
    per_second: f64,
    redis_cpu: f64,
    our_cpu: f64,
    /// Requests in one call of the script.
    batch: f64,
    p50_millis: f64,
    p99_millis: f64,
}

pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let (rounds, millis, keys) =
        length.pick((2, 300, 50_000), (3, 1000, 500_000), (7, 1000, 1_000_000));
    let effort = Effort {
        rounds,
        round: Duration::from_millis(millis),
        keys,
    };
    let servers = [Redis::start()];
    let mut report = Report::new("redis");
    report.say(&format!(
        "Redis {}, {CALLERS} callers unless a table says otherwise, {SUBJECTS} random keys; medians of {} \
         alternating rounds of {:?}.",
        servers[0].info("server")["redis_version"],
        effort.rounds,
        effort.round
    ));
    let side = Side::new(&servers)?;
    let limits = traffic::limits()?;
    let most = algorithms(&side, &servers[0], &limits, &effort, &mut report)?;
    rules(&side, &limits, &effort, &mut report)?;
    library::run(&side, &servers[0], &limits[0].1, length, &mut report)?;
    drop(side);
    latency_at_low_load(&servers[0], &limits[0].1, most, &effort, &mut report)?;
    drop(servers);
    bytes(&limits, &effort, &mut report)?;
    cluster::run(&limits[0].1, &effort, &mut report)?;
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

/// Measures every algorithm, and compares it with its reference if there is one. Returns the throughput of
/// the first algorithm.
fn algorithms(
    side: &Side<'_>,
    redis: &Redis,
    limits: &[(&str, Limit)],
    effort: &Effort,
    report: &mut Report,
) -> Result<f64, Box<dyn Error>> {
    let mut throughput = Table::new(["checks/s", "tollgate", "reference", "ratio", "bar", ""]);
    let mut cpu = Table::new([
        "Redis CPU, us a check",
        "tollgate",
        "reference",
        "ratio",
        "bar",
        "",
    ]);
    let mut calls = Table::new(["calls", "checks in a call", "our CPU, us a check"]);
    let mut first = None;
    for (name, limit) in limits {
        let traffic = Arc::new(Traffic::single(limit.clone()));
        side.fill(&traffic, SUBJECTS)?;
        let reference = reference::of(name);
        let (ours, theirs) = alternate(side, redis, &traffic, reference.as_ref(), effort)?;
        let our = |figure: fn(&Round) -> f64| middle(&ours, figure);
        let their = |figure: fn(&Round) -> f64| middle(&theirs, figure);
        let per_second = our(|it| it.per_second);
        first.get_or_insert(per_second);
        throughput.row(against(
            name,
            0,
            (per_second, their(|it| it.per_second)),
            THROUGHPUT,
        ));
        cpu.row(against(
            name,
            2,
            (our(|it| it.redis_cpu), their(|it| it.redis_cpu)),
            CPU,
        ));
        calls.row([
            (*name).to_owned(),
            format!("{:.0}", our(|it| it.batch)),
            format!("{:.1}", our(|it| it.our_cpu)),
        ]);
    }
    report.section(
        "One rule per request. The reference makes one check per call, with 16 calls in a pipeline and \
         50 pipelines.",
        &[throughput, cpu, calls],
    );
    Ok(first.unwrap_or_default())
}

fn alternate(
    side: &Side<'_>,
    redis: &Redis,
    traffic: &Arc<Traffic>,
    reference: Option<&Reference>,
    effort: &Effort,
) -> Result<(Vec<Round>, Vec<Round>), Box<dyn Error>> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut checks = 3 * SUBJECTS as u64;
    for round in 0..=effort.rounds {
        let our = side.run(traffic, CALLERS, effort.round)?;
        let their = reference.map(|it| it.run(redis, checks)).transpose()?;
        if let Some(their) = their {
            // The next round gets as many checks as fit into its time.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let fit = (their.per_second * effort.round.as_secs_f64()) as u64;
            checks = fit.max(1000);
        }
        // The first round is a warm-up.
        if round > 0 {
            ours.push(our);
            theirs.extend(their);
        }
    }
    Ok((ours, theirs))
}

/// Returns a row that compares two figures, if both exist.
fn against(name: &str, digits: usize, (our, their): (f64, f64), bar: Bar) -> [String; 6] {
    let absent = || "-".to_owned();
    if their.is_nan() {
        let (name, our) = (name.to_owned(), format!("{our:.digits$}"));
        return [name, our, absent(), absent(), absent(), absent()];
    }
    let ratio = our / their;
    [
        name.to_owned(),
        format!("{our:.digits$}"),
        format!("{their:.digits$}"),
        format!("{ratio:.2}"),
        bar.to_string(),
        bar.verdict(ratio),
    ]
}

/// Measures requests under four rules against requests under one.
fn rules(
    side: &Side<'_>,
    limits: &[(&str, Limit)],
    effort: &Effort,
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    let gcra = || limits[0].1.clone();
    let kinds = [
        ("one rule", Traffic::single(gcra())),
        (
            "four rules: for all, per tenant, per user, per key",
            Traffic::new(vec![
                Rule::new("all", gcra(), 1),
                Rule::new("tenant", gcra(), 1_000),
                Rule::new("user", gcra(), SUBJECTS),
                Rule::new("bench", gcra(), SUBJECTS),
            ]),
        ),
        (
            "four rules, all per key",
            Traffic::new(vec![
                Rule::new("second", gcra(), SUBJECTS),
                Rule::new("minute", gcra(), SUBJECTS),
                Rule::new("hour", gcra(), SUBJECTS),
                Rule::new("bench", gcra(), SUBJECTS),
            ]),
        ),
        (
            "four rules per key, with four algorithms",
            Traffic::new(vec![
                Rule::new("bench", gcra(), SUBJECTS),
                Rule::new("bench", limits[2].1.clone(), SUBJECTS),
                Rule::new("bench", limits[4].1.clone(), SUBJECTS),
                Rule::new("bench", limits[6].1.clone(), SUBJECTS),
            ]),
        ),
    ];
    let kinds = kinds.map(|(name, traffic)| (name, Arc::new(traffic)));
    for (_, traffic) in &kinds {
        side.fill(traffic, SUBJECTS)?;
    }
    let mut tables = Vec::new();
    for callers in [1, 16, CALLERS] {
        let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); kinds.len()];
        for round in 0..=effort.rounds {
            for ((_, traffic), seen) in kinds.iter().zip(&mut rounds) {
                let it = side.run(traffic, callers, effort.round / 2)?;
                if round > 0 {
                    seen.push(it);
                }
            }
        }
        let one = middle(&rounds[0], |it| it.redis_cpu);
        let heading = match callers {
            1 => "1 caller".to_owned(),
            callers => format!("{callers} callers"),
        };
        let mut table = Table::new([
            &heading,
            "requests/s",
            "Redis CPU, us a request",
            "times one rule's",
            "bar",
            "",
        ]);
        for (number, ((name, _), seen)) in kinds.iter().zip(&rounds).enumerate() {
            let cpu = middle(seen, |it| it.redis_cpu);
            let bar = match number {
                1 | 2 => FOUR_RULES,
                _ => Bar::None,
            };
            table.row([
                (*name).to_owned(),
                format!("{:.0}", middle(seen, |it| it.per_second)),
                format!("{cpu:.2}"),
                format!("{:.2}", cpu / one),
                bar.to_string(),
                bar.verdict(cpu / one),
            ]);
        }
        tables.push(table);
    }
    report.section("Four rules per request, in one atomic call.", &tables);
    Ok(())
}

/// Measures the latency of the algorithm `limit` at a fifth of `most`, its throughput.
fn latency_at_low_load(
    redis: &Redis,
    limit: &Limit,
    most: f64,
    effort: &Effort,
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    let per_second = most / 5.0;
    let latency = Latency::new(redis)?;
    let traffic = Arc::new(Traffic::single(limit.clone()));
    let (mut checks, mut pings) = (Vec::new(), Vec::new());
    for round in 0..=effort.rounds {
        let check = latency.of_checks(&traffic, per_second, effort.round)?;
        let ping = latency.of_pings(per_second, effort.round)?;
        if round > 0 {
            checks.push(check);
            pings.push(ping);
        }
    }
    let mut table = Table::new(["us", "gcra", "PING", "ratio", "bar", ""]);
    let of = |seen: &[Percentiles], figure: fn(&Percentiles) -> f64| {
        median(seen.iter().map(figure).collect())
    };
    let (check, ping) = (of(&checks, |it| it.p50), of(&pings, |it| it.p50));
    table.row(against("p50", 0, (check, ping), Bar::None));
    let (check, ping) = (of(&checks, |it| it.p99), of(&pings, |it| it.p99));
    table.row(against("p99", 0, (check, ping), LATENCY));
    report.section(
        &format!(
            "Latency at a fifth of gcra's checks/s in the first table: {per_second:.0} requests a second are \
             sent at random times.\nThe peer is a bare PING through the same client library at the same rate."
        ),
        &[table],
    );
    Ok(())
}

fn bytes(
    limits: &[(&str, Limit)],
    effort: &Effort,
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    // Measure two lengths of key names, because they are in different size classes of the allocator.
    let mut tables = Vec::new();
    for rule in ["bench", "per-api-key"] {
        let mut sizes = Vec::new();
        for (_, limit) in limits {
            sizes.push(memory::of_states(rule, limit, effort.keys)?);
        }
        let length = sizes.first().map_or(0, |(_, length)| *length);
        let plain = memory::of_plain(length, effort.keys)?;
        let what = format!("names of {length} bytes");
        let mut table = Table::new([&what, "bytes a key", "plain key", "ratio", "bar", ""]);
        for ((name, _), (state, _)) in limits.iter().zip(sizes) {
            let bar = match *name {
                "gcra" | "token-bucket" => MEMORY,
                "fixed-window" => MEMORY_OF_FIXED_WINDOW,
                _ => Bar::None,
            };
            table.row(against(name, 0, (state, plain), bar));
        }
        tables.push(table);
    }
    report.section(
        &format!(
            "Bytes per key, after one request for each of {} keys. A plain key has a name of the same length, \
             the\nvalue 1 and a TTL.",
            effort.keys
        ),
        &tables,
    );
    Ok(())
}

fn middle(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(figure).collect())
}
