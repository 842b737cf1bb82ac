//! The reference: `redis-benchmark` with a simple script for one check.

use std::error::Error;
use std::process::Command;

use tollgate_rig::Redis;

use super::Round;
use super::traffic::{SUBJECTS, numbers};

/// A script and its arguments.
pub(super) struct Reference {
    /// The last character of the script's keys.
    letter: char,
    script: &'static str,
    args: [&'static str; 3],
}

/// Returns the reference of an algorithm, if it has one.
pub(super) fn of(algorithm: &str) -> Option<Reference> {
    let (letter, script, args) = match algorithm {
        "gcra" => (
            'g',
            include_str!("gcra.lua"),
            [numbers::MICROS_PER_UNIT, numbers::CAPACITY, "1"],
        ),
        "token-bucket" => (
            't',
            include_str!("token_bucket.lua"),
            [numbers::CAPACITY, numbers::MICROS_PER_UNIT, "1"],
        ),
        "fixed-window" => (
            'f',
            include_str!("fixed_window.lua"),
            [numbers::CAPACITY, numbers::WINDOW_MILLIS, "1"],
        ),
        _ => return None,
    };
    Some(Reference {
        letter,
        script,
        args,
    })
}

impl Reference {
    /// Runs this many checks: 50 connections, 16 requests in each pipeline, and random keys with names as long as
    /// those of Tollgate.
    pub(super) fn run(&self, redis: &Redis, checks: u64) -> Result<Round, Box<dyn Error>> {
        let sha = redis.connect().command(&["SCRIPT", "LOAD", self.script]);
        // redis-benchmark replaces `__rand_int__` by twelve digits.
        let digits = format!("{:020}__rand_int__", 0);
        let name = format!("tg:v1:{{00000000}}:bench:{digits}:{}", self.letter);
        let cpu_before = redis.cpu_micros();
        let output = Command::new("redis-benchmark")
            .args(["-p", &redis.port().to_string(), "--csv"])
            .args(["-c", "50", "-P", "16"])
            .args(["-r", &SUBJECTS.to_string(), "-n", &checks.to_string()])
            .args(["EVALSHA", &sha.text(), "1", &name])
            .args(self.args)
            .output()
            .map_err(|error| cannot_run(&error))?;
        let cpu = redis.cpu_micros() - cpu_before;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(per_second) = rate(&text).filter(|_| output.status.success()) else {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(format!("redis-benchmark gave no result\n{text}{complaint}").into());
        };
        Ok(Round {
            per_second,
            redis_cpu: cpu as f64 / checks as f64,
            ..Round::default()
        })
    }
}

fn cannot_run(error: &std::io::Error) -> String {
    let install = "install: sudo apt-get install -y redis-tools";
    format!("redis-benchmark does not run: {error}\n    {install}")
}

/// Returns the requests per second in the last line, which has the test, the rate, and six latencies.
fn rate(text: &str) -> Option<f64> {
    let field = text.lines().last()?.rsplit(',').nth(6)?;
    field.trim_matches('"').parse().ok()
}
