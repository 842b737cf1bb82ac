//! What a round of load measured, and rounds that alternate between servers.

use std::error::Error;

use tollgate_bench::table::median;

/// What one round measured.
pub(crate) struct Round {
    pub(crate) per_second: f64,
    pub(crate) p99_millis: f64,
    /// The server's processor time per request.
    pub(crate) cpu_micros: f64,
}

/// The rounds of one server; each figure of them is a median.
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

/// Runs a round on each of `sides` in turn, `times` times and once before, to warm up.
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
