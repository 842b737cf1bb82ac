//! Measures elapsed time. The only file of this crate that reads a clock.

use std::time::{Duration, Instant};

pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[allow(
        clippy::disallowed_methods,
        reason = "a step takes time of the machine"
    )]
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
