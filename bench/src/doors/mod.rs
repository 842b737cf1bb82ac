//! Doors measured: each against the least that could stand in its place, on the same runtime.

pub(crate) mod grpc;
pub(crate) mod resp;

use std::error::Error;

use clap::ValueEnum;

/// A door that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Door {
    /// ShouldRateLimit, against a no-op tonic server
    Grpc,
    /// CL.THROTTLE, by redis-benchmark
    Resp,
}

impl Door {
    pub(crate) const ALL: [Door; 2] = [Door::Resp, Door::Grpc];
}

pub(crate) fn run(quick: bool, doors: &[Door]) -> Result<(), Box<dyn Error>> {
    for door in doors {
        match door {
            Door::Grpc => grpc::run(quick)?,
            Door::Resp => resp::run(quick)?,
        }
    }
    Ok(())
}
