//! The load generator: redis-benchmark with random keys.

use std::error::Error;
use std::net::SocketAddr;
use std::process::Command;

use super::client::{Dialect, Numbers};
use crate::round::Round;
use crate::server::Server;

const CONNECTIONS: &str = "50";
const KEYS: &str = "100000";
/// The number of requests in the first round, per command in flight.
const FIRST: u64 = 20_000;

/// The limits in the commands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limits {
    /// All requests are allowed.
    Wide,
    /// Nearly all requests are denied.
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

    pub(crate) fn numbers(self) -> Numbers {
        match self {
            Limits::Wide => Numbers {
                at_once: 1_000_001,
                count: 1_000_000,
                period: 1,
            },
            // Not 1, because throttlecrab never denies with a burst of one.
            Limits::Narrow => Numbers {
                at_once: 2,
                count: 1,
                period: 3600,
            },
        }
    }
}

/// The load of one server.
pub(crate) struct Load<'a> {
    server: &'a Server,
    dialect: Dialect,
    /// The commands in flight per connection.
    depth: u32,
    limits: Limits,
    /// The number of requests that takes about one round.
    requests: u64,
}

impl<'a> Load<'a> {
    pub(crate) fn new(
        server: &'a Server,
        dialect: Dialect,
        depth: u32,
        limits: Limits,
    ) -> Load<'a> {
        Load {
            server,
            dialect,
            depth,
            limits,
            requests: FIRST * u64::from(depth),
        }
    }

    /// Runs a round of about `seconds`. Each round sets the number of requests of the next one.
    pub(crate) fn run(&mut self, seconds: f64) -> Result<Round, Box<dyn Error>> {
        let (server, requests) = (self.server, self.requests);
        let cpu_before = server.cpu_micros()?;
        let output = command(
            server.address(),
            self.dialect,
            self.depth,
            self.limits,
            requests,
        )
        .output()
        .map_err(|error| cannot_run(&error))?;
        let cpu = server.cpu_micros()? - cpu_before;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some([per_second, p50_millis, p99_millis]) = figures(&text) else {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(format!("redis-benchmark gave no result\n{text}{complaint}").into());
        };
        // The number is a few million at most.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let fit = (per_second * seconds) as u64;
        self.requests = fit.max(1000);
        // Millions are exact in a double.
        #[allow(clippy::cast_precision_loss)]
        let cpu_micros = cpu / requests as f64;
        Ok(Round {
            per_second,
            p50_millis,
            p99_millis,
            cpu_micros,
            redis_micros: f64::NAN,
        })
    }
}

/// Returns the command that sends this many requests.
pub(in crate::doors) fn command(
    server: SocketAddr,
    dialect: Dialect,
    depth: u32,
    limits: Limits,
    requests: u64,
) -> Command {
    let mut command = Command::new("redis-benchmark");
    command
        .args(["-h", &server.ip().to_string()])
        .args(["-p", &server.port().to_string()])
        .args(["-c", CONNECTIONS, "-r", KEYS, "-P", &depth.to_string()])
        .args(["-n", &requests.to_string(), "--csv"])
        .args([dialect.command(), "key:__rand_int__"])
        .args(limits.numbers().words(dialect));
    command
}

fn cannot_run(error: &std::io::Error) -> String {
    let install = "install: sudo apt-get install -y redis-tools";
    format!("redis-benchmark does not run: {error}\n    {install}")
}

/// Returns the requests per second and the 50th and the 99th percentile of the latency from the last line:
/// `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",…`
fn figures(text: &str) -> Option<[f64; 3]> {
    let line = text.lines().last()?;
    // The test is a command, and may have commas.
    let fields = line.rsplit(',').map(|field| field.trim_matches('"'));
    let fields: Vec<&str> = fields.collect();
    // From the end: max, p99, p95, p50, min, average, requests per second.
    let at = |place: usize| fields.get(place)?.parse().ok();
    Some([at(6)?, at(3)?, at(1)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_redis_benchmark_are_found() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
            \"CL.THROTTLE key, 1\",\"81967.21\",\"0.309\",\"0.096\",\"0.303\",\"0.359\",\"0.519\",\"1.063\"\n";
        assert_eq!(figures(text), Some([81967.21, 0.303, 0.519]));
        assert_eq!(figures("Could not connect"), None);
    }
}
