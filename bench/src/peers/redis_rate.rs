//! redis_rate, from the Go module proxy: a library with state in Redis. A program of our own calls it.

use std::error::Error;
use std::process::{Command, Output};

use super::Program;
use super::install::go_build;

const VERSION: &str = "v10.0.1";
const REQUIRES: &str = "github.com/go-redis/redis_rate/v10@v10.0.1";
const SOURCE: &str = include_str!("redis_rate/main.go");

pub(super) fn install() -> Result<Program, Box<dyn Error>> {
    Ok(Program {
        path: go_build("redis-rate-load", &[("main.go", SOURCE)], REQUIRES)?,
        version: VERSION.to_owned(),
    })
}

/// Runs `callers` tasks that each check one of `keys` random keys after the other. Prints a `result` line, and a
/// line with the CPU time.
pub(crate) fn run(
    program: &Program,
    redis: &str,
    callers: usize,
    keys: usize,
    seconds: f64,
) -> Result<Output, Box<dyn Error>> {
    let output = Command::new(&program.path)
        .args(["-redis", redis, "-callers", &callers.to_string()])
        .args(["-keys", &keys.to_string(), "-seconds", &seconds.to_string()])
        .output()?;
    Ok(output)
}
