//! Benchmarks of the doors, each against a no-op server on the same runtime, and against peers.

mod comparison;
mod cost;
pub(crate) mod grpc;
pub(crate) mod http;
mod machine;
mod memory;
mod open;
mod p99;
mod redis;
pub(crate) mod resp;
mod rls;
pub(crate) mod versus;

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use tollgate_bench::report::Report;

use crate::length::Length;
use crate::peers::Peers;
use crate::server::Scratch;
use crate::tollgate;

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Envoy's rate limit service with state in Redis, against peers
    Rls,
    /// The latency of Envoy's rate limit service with state in Redis at a fixed rate, against peers
    Open,
    /// ShouldRateLimit, against a no-op server and peers
    Grpc,
    /// POST /v1/check, against a no-op server and peers
    Http,
    /// CL.THROTTLE by redis-benchmark, against a no-op server and throttlecrab
    Resp,
    /// Latency of CL.THROTTLE at half of the highest rate, against a no-op server
    P99,
    /// The HTTP and the gRPC door with state in Redis, against the no-ops
    Redis,
    /// System calls and allocations per request
    Cost,
    /// Resident memory, idle and with a million keys
    Memory,
}

impl Part {
    pub(crate) const ALL: [Part; 9] = [
        Part::Rls,
        Part::Open,
        Part::Grpc,
        Part::Http,
        Part::Resp,
        Part::P99,
        Part::Redis,
        Part::Cost,
        Part::Memory,
    ];

    fn name(self) -> &'static str {
        match self {
            Part::Rls => "rls",
            Part::Open => "open",
            Part::Grpc => "grpc",
            Part::Http => "http",
            Part::Resp => "resp",
            Part::P99 => "p99",
            Part::Redis => "redis",
            Part::Cost => "cost",
            Part::Memory => "memory",
        }
    }

    fn run(self, setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
        match self {
            Part::Rls => rls::run(setting, report),
            Part::Open => open::run(setting, report),
            Part::Grpc => grpc::run(setting, report),
            Part::Http => http::run(setting, report),
            Part::Resp => resp::run(setting, report),
            Part::P99 => p99::run(setting, report),
            Part::Redis => redis::run(setting, report),
            Part::Cost => cost::run(setting, report),
            Part::Memory => memory::run(setting, report),
        }
    }
}

/// The settings of all parts.
struct Setting {
    length: Length,
    scratch: Scratch,
    tollgate: PathBuf,
    peers: Peers,
}

/// Measures the parts one after the other. If a part fails, the next parts are still measured. Returns the bars that
/// were missed.
pub(crate) fn run(
    length: Length,
    write: Option<&Path>,
    parts: &[Part],
) -> Result<Vec<String>, Box<dyn Error>> {
    let setting = Setting {
        length,
        scratch: Scratch::new()?,
        tollgate: tollgate::beside()?,
        peers: Peers::default(),
    };
    let machine = machine::describe();
    let (mut failures, mut missed) = (Vec::new(), Vec::new());
    for part in parts {
        let name = part.name();
        let mut report = Report::new(&format!("doors {name}"));
        println!("== {name}\n");
        report.say(&machine);
        let measured = part.run(&setting, &mut report);
        let written = measured.and_then(|()| write.map_or(Ok(()), |file| report.write(file)));
        if let Err(error) = written {
            eprintln!("{name}: {error}\n");
            failures.push(format!("{name}: {error}"));
        }
        missed.extend(report.missed().iter().map(|bar| format!("{name}: {bar}")));
    }
    match failures.is_empty() {
        true => Ok(missed),
        false => Err([failures, missed].concat().join("\n").into()),
    }
}
