//! Any algorithm with its numbers: what a rule holds and a store applies.

use crate::fixed_window::{self, FixedWindow};
use crate::leaky_bucket::{self, Leaky, LeakyBucket};
use crate::limiting::Limiting;
use crate::meter::Meter;
use crate::sliding_counter::{self, SlidingCounter};
use crate::sliding_log::{self, SlidingLog};
use crate::two_window::{self, TwoWindow};
use crate::units::{Rate, Scale, Span};
use crate::{Outcome, ParamError, gcra, token_bucket};

/// A validated limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// See [`crate::fixed_window`].
    FixedWindow(FixedWindow),
    /// See [`crate::sliding_log`].
    SlidingLog(SlidingLog),
    /// See [`crate::sliding_counter`].
    SlidingCounter(SlidingCounter),
    /// See [`crate::two_window`].
    TwoWindow(TwoWindow),
    /// See [`crate::token_bucket`].
    TokenBucket(Meter),
    /// See [`crate::gcra`].
    Gcra(Meter),
    /// See [`crate::leaky_bucket`].
    LeakyBucket(LeakyBucket),
    /// Everything passes, and nothing is counted.
    Unlimited(Algorithm),
}

impl Limit {
    /// See [`fixed_window::new`].
    #[allow(missing_docs, clippy::missing_errors_doc)]
    pub fn fixed_window(limit: u64, window: Span) -> Result<Limit, ParamError> {
        fixed_window::new(limit, window).map(Limit::FixedWindow)
    }

    /// See [`sliding_log::new`].
    #[allow(clippy::missing_errors_doc)]
    pub fn sliding_log(limit: u64, window: Span) -> Result<Limit, ParamError> {
        sliding_log::new(limit, window).map(Limit::SlidingLog)
    }

    /// See [`sliding_counter::new`].
    #[allow(clippy::missing_errors_doc)]
    pub fn sliding_counter(limit: u64, window: Span, buckets: u32) -> Result<Limit, ParamError> {
        sliding_counter::new(limit, window, buckets).map(Limit::SlidingCounter)
    }

    /// See [`two_window::new`].
    #[allow(clippy::missing_errors_doc)]
    pub fn two_window(limit: u64, window: Span) -> Result<Limit, ParamError> {
        two_window::new(limit, window).map(Limit::TwoWindow)
    }

    /// See [`token_bucket::new`].
    #[allow(clippy::missing_errors_doc)]
    pub fn token_bucket(capacity: u64, refill: Rate) -> Result<Limit, ParamError> {
        token_bucket::new(capacity, refill).map(Limit::TokenBucket)
    }

    /// See [`gcra::new`].
    #[allow(clippy::missing_errors_doc)]
    pub fn gcra(rate: Rate, burst: u64) -> Result<Limit, ParamError> {
        gcra::new(rate, burst).map(Limit::Gcra)
    }

    /// See [`leaky_bucket::new`].
    #[allow(clippy::missing_errors_doc)]
    pub fn leaky_bucket(rate: Rate, queue: u64, leaky: Leaky) -> Result<Limit, ParamError> {
        leaky_bucket::new(rate, queue, leaky).map(Limit::LeakyBucket)
    }

    /// A limit of `algorithm` that is none.
    #[must_use]
    pub fn unlimited(algorithm: Algorithm) -> Limit {
        Limit::Unlimited(algorithm)
    }

    /// The same limit at `numerator / denominator` of its size, rounded down to whole units and to
    /// whole ticks of refill, and at least 1: what one of several may allow where all together may
    /// allow this.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Rate, Span};
    /// let limit = Limit::gcra(Rate::new(90, Span::MINUTE)?, 30)?;
    /// assert_eq!(limit.scaled(1, 3), Limit::gcra(Rate::new(30, Span::MINUTE)?, 10)?);
    /// # Ok::<(), tollgate_core::ParamError>(())
    /// ```
    #[must_use]
    pub fn scaled(&self, numerator: u32, denominator: u32) -> Limit {
        let scale = Scale::new(numerator, denominator);
        match self {
            Limit::FixedWindow(it) => Limit::FixedWindow(it.scaled(scale)),
            Limit::SlidingLog(it) => Limit::SlidingLog(it.scaled(scale)),
            Limit::SlidingCounter(it) => Limit::SlidingCounter(it.scaled(scale)),
            Limit::TwoWindow(it) => Limit::TwoWindow(it.scaled(scale)),
            Limit::TokenBucket(it) => Limit::TokenBucket(it.scaled(scale)),
            Limit::Gcra(it) => Limit::Gcra(it.scaled(scale)),
            Limit::LeakyBucket(it) => Limit::LeakyBucket(it.scaled(scale)),
            Limit::Unlimited(algorithm) => Limit::Unlimited(*algorithm),
        }
    }

    /// Which algorithm this is.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limit::FixedWindow(_) => Algorithm::FixedWindow,
            Limit::SlidingLog(_) => Algorithm::SlidingLog,
            Limit::SlidingCounter(_) | Limit::TwoWindow(_) => Algorithm::SlidingCounter,
            Limit::TokenBucket(_) => Algorithm::TokenBucket,
            Limit::Gcra(_) => Algorithm::Gcra,
            Limit::LeakyBucket(_) => Algorithm::LeakyBucket,
            Limit::Unlimited(algorithm) => *algorithm,
        }
    }

    /// The most that can be admitted at once; [`Outcome::UNLIMITED`] if there is no bound.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        match self {
            Limit::FixedWindow(it) => it.capacity(),
            Limit::SlidingLog(it) => it.capacity(),
            Limit::SlidingCounter(it) => it.capacity(),
            Limit::TwoWindow(it) => it.capacity(),
            Limit::TokenBucket(it) | Limit::Gcra(it) => it.capacity(),
            Limit::LeakyBucket(it) => it.capacity(),
            Limit::Unlimited(_) => Outcome::UNLIMITED,
        }
    }

    /// The time in which a drained allowance comes back; zero if there is no bound.
    #[must_use]
    pub fn window(&self) -> Span {
        match self {
            Limit::FixedWindow(it) => it.window(),
            Limit::SlidingLog(it) => it.window(),
            Limit::SlidingCounter(it) => it.window(),
            Limit::TwoWindow(it) => it.window(),
            Limit::TokenBucket(it) | Limit::Gcra(it) => it.window(),
            Limit::LeakyBucket(it) => it.window(),
            Limit::Unlimited(_) => Span::ZERO,
        }
    }
}

/// The algorithms, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// [`crate::fixed_window`]
    FixedWindow,
    /// [`crate::sliding_log`]
    SlidingLog,
    /// [`crate::sliding_counter`] and [`crate::two_window`]
    SlidingCounter,
    /// [`crate::token_bucket`]
    TokenBucket,
    /// [`crate::gcra`]
    Gcra,
    /// [`crate::leaky_bucket`]
    LeakyBucket,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
        Algorithm::TokenBucket,
        Algorithm::Gcra,
        Algorithm::LeakyBucket,
    ];

    /// The name in rules files, answers and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::SlidingCounter => "sliding-counter",
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::Gcra => "gcra",
            Algorithm::LeakyBucket => "leaky-bucket",
        }
    }
}
