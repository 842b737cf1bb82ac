//! Rounds of load that alternate between servers, and their figures.

use std::error::Error;
use std::process::Output;

use tollgate_bench::table::median;

/// The figures of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) per_second: f64,
    /// Not a number if it was not measured.
    pub(crate) p50_millis: f64,
    pub(crate) p99_millis: f64,
    /// The CPU time of the server per request.
    pub(crate) cpu_micros: f64,
    /// The CPU time of Redis per request; not a number if there is no Redis.
    pub(crate) redis_micros: f64,
}

impl Round {
    /// Reads what a load generator has printed. `cpu` is the CPU time of the server in microseconds.
    pub(crate) fn read(name: &str, load: &Output, cpu: f64) -> Result<Round, Box<dyn Error>> {
        let text = String::from_utf8_lossy(&load.stdout);
        let result = Round::parse(&text, cpu);
        result.map_err(|error| {
            let errors = String::from_utf8_lossy(&load.stderr);
            format!("the load of {name}: {error}\n{text}{errors}").into()
        })
    }

    /// Reads the `result` line: the requests, the microseconds of the run, the 50th and the 99th percentile of the
    /// latency in microseconds, and the failures. There must be no failures.
    fn parse(text: &str, cpu: f64) -> Result<Round, &'static str> {
        let figures = text.lines().find_map(|line| line.strip_prefix("result "));
        let figures = figures.map(|line| line.split_whitespace().map(str::parse).collect());
        let Some(Ok::<Vec<f64>, _>(figures)) = figures else {
            return Err("no result");
        };
        match figures[..] {
            [requests, micros, p50, p99, 0.0] if requests > 0.0 => Ok(Round {
                per_second: requests / micros * 1e6,
                p50_millis: p50 / 1000.0,
                p99_millis: p99 / 1000.0,
                cpu_micros: cpu / requests,
                redis_micros: f64::NAN,
            }),
            _ => Err("requests failed"),
        }
    }

    /// Returns the number of requests in what a load generator has printed.
    pub(crate) fn requests(text: &str) -> Option<f64> {
        let figures = text.lines().find_map(|line| line.strip_prefix("result "))?;
        figures.split_whitespace().next()?.parse().ok()
    }

    /// Adds the CPU time of Redis, in microseconds of the whole round.
    pub(crate) fn with_redis(self, load: &Output, cpu: f64) -> Round {
        let requests = Round::requests(&String::from_utf8_lossy(&load.stdout));
        Round {
            redis_micros: cpu / requests.unwrap_or(f64::NAN),
            ..self
        }
    }
}

/// The rounds of one server. Each figure is a median.
#[derive(Clone, Default)]
pub(crate) struct Rounds(Vec<Round>);

impl Rounds {
    pub(crate) fn per_second(&self) -> f64 {
        self.middle(|round| round.per_second)
    }

    pub(crate) fn p50_millis(&self) -> f64 {
        self.middle(|round| round.p50_millis)
    }

    pub(crate) fn p99_millis(&self) -> f64 {
        self.middle(|round| round.p99_millis)
    }

    pub(crate) fn cpu_micros(&self) -> f64 {
        self.middle(|round| round.cpu_micros)
    }

    pub(crate) fn redis_micros(&self) -> f64 {
        self.middle(|round| round.redis_micros)
    }

    /// The CPU time of the server and of its Redis, if it has one.
    pub(crate) fn all_micros(&self) -> f64 {
        match self.redis_micros() {
            redis if redis.is_nan() => self.cpu_micros(),
            redis => self.cpu_micros() + redis,
        }
    }

    fn middle(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.0.iter().map(figure).collect())
    }
}

/// Runs a round on each of `sides` in turn: once to warm up, then `times` times.
pub(crate) fn alternate<S>(
    times: u32,
    sides: &mut [S],
    mut run: impl FnMut(&mut S) -> Result<Round, Box<dyn Error>>,
) -> Result<Vec<Rounds>, Box<dyn Error>> {
    let mut all = vec![Rounds::default(); sides.len()];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_line_is_read() {
        let text = "Running 1s test\nresult 2000 1000000 300 1500 0\n";
        let round = Round::parse(text, 50_000.0).unwrap();
        let figures = [
            round.per_second,
            round.p50_millis,
            round.p99_millis,
            round.cpu_micros,
        ];
        assert_eq!(figures, [2000.0, 0.3, 1.5, 25.0]);
        assert!(round.redis_micros.is_nan());
        assert_eq!(Round::requests(text), Some(2000.0));
    }

    #[test]
    fn failed_requests_and_missing_results_are_errors() {
        assert_eq!(
            Round::parse("result 10 10 1 1 3\n", 0.0),
            Err("requests failed")
        );
        assert_eq!(
            Round::parse("result 0 10 0 0 0\n", 0.0),
            Err("requests failed")
        );
        assert_eq!(Round::parse("connection refused\n", 0.0), Err("no result"));
    }
}
