//! Benchmarks of the doors, each against a no-op server on the same runtime.

mod comparison;
pub(crate) mod grpc;
mod http;
mod machine;
mod memory;
mod p99;
mod peer;
mod redis;
pub(crate) mod resp;

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use self::peer::Peer;
use crate::report::Report;
use crate::server::Scratch;
use crate::tollgate;

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// CL.THROTTLE by redis-benchmark, against a no-op and throttlecrab
    Resp,
    /// Latency of CL.THROTTLE at half of the highest rate, against a no-op server
    P99,
    /// ShouldRateLimit, against a no-op tonic server
    Grpc,
    /// POST /v1/check, against a no-op axum server
    Http,
    /// The HTTP and the gRPC door with state in Redis, against the no-ops
    Redis,
    /// Resident memory, idle and with a million keys
    Memory,
}

impl Part {
    pub(crate) const ALL: [Part; 6] = [
        Part::Resp,
        Part::P99,
        Part::Grpc,
        Part::Http,
        Part::Redis,
        Part::Memory,
    ];

    fn name(self) -> &'static str {
        match self {
            Part::Resp => "resp",
            Part::P99 => "p99",
            Part::Grpc => "grpc",
            Part::Http => "http",
            Part::Redis => "redis",
            Part::Memory => "memory",
        }
    }

    fn needs_peer(self) -> bool {
        matches!(self, Part::Resp | Part::Memory)
    }
}

/// The settings of all parts.
struct Setting {
    quick: bool,
    scratch: Scratch,
    tollgate: PathBuf,
    /// throttlecrab; `None` if it is not needed, or cannot be installed.
    peer: Option<Peer>,
}

impl Setting {
    /// Returns the number of rounds, and the seconds of each.
    fn effort(&self) -> (u32, u32) {
        if self.quick { (1, 1) } else { (7, 3) }
    }
}

/// Measures the parts one after the other. If a part fails, the next parts are still measured.
pub(crate) fn run(quick: bool, write: Option<&Path>, parts: &[Part]) -> Result<(), Box<dyn Error>> {
    let mut failures = Vec::new();
    let mut setting = Setting {
        quick,
        scratch: Scratch::new()?,
        tollgate: tollgate::beside()?,
        peer: None,
    };
    if parts.iter().any(|part| part.needs_peer()) {
        match Peer::install() {
            Ok(peer) => setting.peer = Some(peer),
            Err(error) => failures.push(format!("{}: {error}", peer::NAME)),
        }
    }
    let machine = machine::describe();
    for part in parts {
        let name = part.name();
        let mut report = Report::new(&format!("doors {name}"));
        println!("== {name}\n");
        report.say(&machine);
        let measured = match part {
            Part::Resp => resp::run(&setting, &mut report),
            Part::P99 => p99::run(&setting, &mut report),
            Part::Grpc => grpc::run(&setting, &mut report),
            Part::Http => http::run(&setting, &mut report),
            Part::Redis => redis::run(&setting, &mut report),
            Part::Memory => memory::run(&setting, &mut report),
        };
        let written = measured.and_then(|()| write.map_or(Ok(()), |file| report.write(file)));
        if let Err(error) = written {
            eprintln!("{name}: {error}\n");
            failures.push(format!("{name}: {error}"));
        }
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("\n").into()),
    }
}
