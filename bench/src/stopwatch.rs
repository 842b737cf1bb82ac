//! How long something took. The only file here that reads a clock.

use std::time::{Duration, Instant};

/// Started when it is made.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[allow(
        clippy::disallowed_methods,
        reason = "a benchmark is about the machine's time"
    )]
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
