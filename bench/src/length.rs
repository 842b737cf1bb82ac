//! How long a benchmark runs.

use clap::Args;

/// How long a benchmark runs.
#[derive(Args, Clone, Copy)]
pub(crate) struct Length {
    /// Run for a short time, as a smoke test; a missed bar does not fail the command
    #[arg(long)]
    quick: bool,
    /// Run more and longer rounds
    #[arg(long, conflicts_with = "quick")]
    long: bool,
}

impl Length {
    pub(crate) fn is_quick(self) -> bool {
        self.quick
    }

    /// Returns the value for a smoke test, for an ordinary run, or for a long one.
    pub(crate) fn pick<T>(self, quick: T, usual: T, long: T) -> T {
        match (self.quick, self.long) {
            (true, _) => quick,
            (false, true) => long,
            (false, false) => usual,
        }
    }

    /// Returns the number of alternating rounds, and the seconds of each.
    pub(crate) fn rounds(self) -> (u32, u32) {
        self.pick((1, 1), (3, 2), (7, 3))
    }
}
