//! Doors measured: each against the least that could stand in its place, on the same runtime.

pub(crate) mod resp;

use std::error::Error;

use clap::ValueEnum;

/// A door that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Door {
    /// CL.THROTTLE, by redis-benchmark
    Resp,
}

impl Door {
    pub(crate) const ALL: [Door; 1] = [Door::Resp];
}

pub(crate) fn run(quick: bool, doors: &[Door]) -> Result<(), Box<dyn Error>> {
    for door in doors {
        match door {
            Door::Resp => resp::run(quick)?,
        }
    }
    Ok(())
}
