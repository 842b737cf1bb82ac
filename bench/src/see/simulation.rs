//! Simulations: a million lines of an access log through five rules, in seconds of CPU time and bytes of memory.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Cursor;

use tollgate_bench::process::{cpu_micros, resident_bytes};
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, median};
use tollgate_config::parse;
use tollgate_simulate::Simulation;
use tollgate_simulate::log::{Fields, Progress, Replay, Source};

use crate::length::Length;

/// The most seconds of CPU for a million lines.
const MOST_SECONDS: f64 = 3.0;
const RULES: &str = include_str!("../five-rules.yaml");
/// The routes give requests the action and the attributes that two of the rules match.
const ROUTES: &str = "routes:\n  - { path: \"/search*\", action: search }\n  - { action: other }\n";

/// Adds a table of both formats of logs to the report.
pub(super) fn measure(length: Length, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (lines, rounds) = length.pick((10_000, 1), (1_000_000, 3), (1_000_000, 7));
    let mut table = Table::new([
        "log",
        "CPU s a million lines",
        "bar",
        "",
        "resident MB more",
    ]);
    for (name, line) in [("combined", combined as fn(u64) -> String), ("json", json)] {
        let mut log = String::new();
        for number in 0..lines {
            log += &line(number);
        }
        let (mut seconds, mut memory) = (Vec::new(), 0.0_f64);
        for _ in 0..rounds {
            let (micros, bytes) = replay(&log, lines)?;
            seconds.push(micros / lines as f64);
            memory = memory.max(bytes);
        }
        let (seconds, bar) = (median(seconds), Bar::AtMost(MOST_SECONDS));
        table.row([
            name.to_owned(),
            format!("{seconds:.2}"),
            bar.to_string(),
            bar.verdict(seconds),
            format!("{:.0}", memory / 1e6),
        ]);
    }
    report.section(
        &format!(
            "`tollgate simulate`: {lines} lines of 10,000 clients and 200 tenants through five rules, medians of {rounds} rounds."
        ),
        &[table],
    );
    Ok(())
}

/// Replays a log. Returns the CPU time in microseconds, and by how many bytes the process grew.
fn replay(log: &str, lines: u64) -> Result<(f64, f64), Box<dyn Error>> {
    let config = parse("rules.yaml", &format!("{RULES}{ROUTES}"), &|_| None)?;
    let source = Source::new(
        "log",
        Cursor::new(log.as_bytes().to_vec()),
        &Progress::default(),
    )?;
    let fields = Fields {
        format: None,
        mapped: vec![("tenant".to_owned(), "user".to_owned())],
        fixed: Vec::new(),
    };
    let process = std::process::id();
    let (cpu, memory) = (cpu_micros(process)?, resident_bytes(process)?);
    let mut simulation = Simulation::new(&config, None, false);
    let log = Replay::new(&config, fields, vec![source]);
    let summary = log.run(&mut |time, attributes| simulation.decide(time, attributes, 1))?;
    let report = simulation.finish();
    if (summary.requests, report.requests) != (lines, lines) {
        return Err(format!("only {} of {lines} lines were read", summary.requests).into());
    }
    Ok((
        cpu_micros(process)? - cpu,
        resident_bytes(process)? - memory,
    ))
}

/// A client, its tenant, and the second of a request: 500 requests a second.
fn request(number: u64) -> (u64, u64, u64) {
    // A large odd factor spreads clients without a random number.
    let client = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (client % 10_000, client % 200, number / 500)
}

fn combined(number: u64) -> String {
    let (client, tenant, second) = request(number);
    let (high, low) = (client / 250, client % 250);
    let mut line = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        line,
        "192.0.{high}.{low} - tenant{tenant} [10/Oct/2026:{:02}:{:02}:{:02} +0000] \"GET /search?q={client} HTTP/1.1\" \
         200 5120 \"https://www.example.com/\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\"",
        second / 3600 % 24,
        second / 60 % 60,
        second % 60,
    );
    line
}

fn json(number: u64) -> String {
    let (client, tenant, second) = request(number);
    let micros = (1_791_665_736 + second) * 1_000_000 + number % 500 * 2_000;
    format!(
        "{{\"time\":{micros},\"remote_addr\":\"192.0.{}.{}\",\"user\":\"tenant{tenant}\",\"method\":\"GET\",\"path\":\"/search?q={client}\",\
         \"status\":200,\"bytes\":5120,\"referer\":\"https://www.example.com/\"}}\n",
        client / 250,
        client % 250
    )
}
