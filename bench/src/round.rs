//! Rounds of load that alternate between servers, and their figures.

use std::error::Error;
use std::process::Output;

use tollgate_bench::table::median;

use crate::server::Server;

/// The figures of one round.
pub(crate) struct Round {
    pub(crate) per_second: f64,
    pub(crate) p99_millis: f64,
    /// The CPU time of the server per request.
    pub(crate) cpu_micros: f64,
}

impl Round {
    /// Reads the `result` line of a load generator: the requests, the microseconds of the run, the 99th
    /// percentile of the latency in microseconds, and the failures. There must be no failures.
    pub(crate) fn read(server: &Server, load: &Output, cpu: f64) -> Result<Round, Box<dyn Error>> {
        let (name, text) = (server.name(), String::from_utf8_lossy(&load.stdout));
        let figures = text.lines().find_map(|line| line.strip_prefix("result "));
        let figures = figures.map(|line| line.split_whitespace().map(str::parse).collect());
        let Some(Ok::<Vec<f64>, _>(figures)) = figures else {
            let errors = String::from_utf8_lossy(&load.stderr);
            return Err(format!("the load of {name} gave no result\n{text}{errors}").into());
        };
        match figures[..] {
            [requests, micros, p99, 0.0] if requests > 0.0 => Ok(Round {
                per_second: requests / micros * 1e6,
                p99_millis: p99 / 1000.0,
                cpu_micros: cpu / requests,
            }),
            _ => Err(format!("requests to {name} failed\n{text}").into()),
        }
    }
}

/// The rounds of one server. Each figure is a median.
#[derive(Default)]
pub(crate) struct Rounds(Vec<Round>);

impl Rounds {
    pub(crate) fn per_second(&self) -> f64 {
        self.middle(|round| round.per_second)
    }

    pub(crate) fn p99_millis(&self) -> f64 {
        self.middle(|round| round.p99_millis)
    }

    pub(crate) fn cpu_micros(&self) -> f64 {
        self.middle(|round| round.cpu_micros)
    }

    fn middle(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.0.iter().map(figure).collect())
    }
}

/// Runs a round on each of `sides` in turn: once to warm up, then `times` times.
pub(crate) fn alternate<S, const N: usize>(
    times: u32,
    mut sides: [S; N],
    mut run: impl FnMut(&mut S) -> Result<Round, Box<dyn Error>>,
) -> Result<[Rounds; N], Box<dyn Error>> {
    let mut all = std::array::from_fn(|_| Rounds::default());
    for time in 0..=times {
        for (side, rounds) in sides.iter_mut().zip(&mut all) {
            let round = run(side)?;
            if time > 0 {
                rounds.0.push(round);
            }
        }
    }
    Ok(all)
}
