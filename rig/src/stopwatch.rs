//! How long something took. The only file here that reads a clock.

use std::time::{Duration, Instant};

/// Started when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts at zero.
    #[allow(
        clippy::disallowed_methods,
        reason = "servers and sockets live in the machine's time"
    )]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
