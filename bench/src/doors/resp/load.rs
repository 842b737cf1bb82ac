//! The load: redis-benchmark with random keys.

use std::error::Error;
use std::process::Command;

use crate::server::Server;

const CONNECTIONS: &str = "50";
const KEYS: &str = "100000";

pub(super) struct Load;

/// The numbers that come with every command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Limits {
    /// Everything is allowed.
    Wide,
    /// Nearly everything is limited.
    Narrow,
}

impl Limits {
    pub(super) const ALL: [Limits; 2] = [Limits::Wide, Limits::Narrow];

    pub(super) fn name(self) -> &'static str {
        match self {
            Limits::Wide => "allowed",
            Limits::Narrow => "limited",
        }
    }

    fn numbers(self) -> [&'static str; 3] {
        match self {
            Limits::Wide => ["1000000", "1000000", "1"],
            Limits::Narrow => ["1", "1", "3600"],
        }
    }
}

/// What one round measured.
pub(super) struct Round {
    pub(super) per_second: f64,
    pub(super) p99_millis: f64,
    /// The server's processor time per decision.
    pub(super) cpu_micros: f64,
}

impl Round {
    /// How many requests take about so long.
    pub(super) fn requests_in(&self, seconds: f64) -> u64 {
        // A few million at most.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let requests = (self.per_second * seconds) as u64;
        requests.max(1000)
    }
}

impl Load {
    pub(super) fn new() -> Result<Load, Box<dyn Error>> {
        match Command::new("redis-benchmark").arg("--version").output() {
            Ok(_) => Ok(Load),
            Err(error) => {
                let install = "install: sudo apt-get install -y redis-tools";
                let missing = format!("redis-benchmark is needed and does not run: {error}");
                Err(format!("{missing}\n    {install}").into())
            }
        }
    }

    /// How many requests take about so long, as far as a short run can tell.
    pub(super) fn requests_for(
        &self,
        server: &Server,
        depth: u32,
        limits: Limits,
        seconds: f64,
    ) -> Result<u64, Box<dyn Error>> {
        let short = self.run(server, depth, limits, 20_000 * u64::from(depth))?;
        Ok(short.requests_in(seconds))
    }

    pub(super) fn run(
        &self,
        server: &Server,
        depth: u32,
        limits: Limits,
        requests: u64,
    ) -> Result<Round, Box<dyn Error>> {
        let cpu_before = server.cpu_micros()?;
        let output = Command::new("redis-benchmark")
            .args(["-h", &server.address().ip().to_string()])
            .args(["-p", &server.address().port().to_string()])
            .args(["-c", CONNECTIONS, "-r", KEYS, "-P", &depth.to_string()])
            .args(["-n", &requests.to_string(), "--csv"])
            .args(["CL.THROTTLE", "key:__rand_int__"])
            .args(limits.numbers())
            .output()?;
        let cpu = server.cpu_micros()? - cpu_before;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some((per_second, p99_millis)) = figures(&text) else {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(format!("redis-benchmark gave no result\n{text}{complaint}").into());
        };
        // Millions are exact in a double.
        #[allow(clippy::cast_precision_loss)]
        let cpu_micros = cpu / requests as f64;
        Ok(Round {
            per_second,
            p99_millis,
            cpu_micros,
        })
    }
}

/// Requests per second and the 99th percentile of the last line:
/// `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",…`
fn figures(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().last()?;
    let mut fields = line.rsplit(',').map(|field| field.trim_matches('"'));
    // From the end: max, p99, p95, p50, min, average, requests per second.
    let p99 = fields.nth(1)?.parse().ok()?;
    let per_second = fields.nth(4)?.parse().ok()?;
    Some((per_second, p99))
}
