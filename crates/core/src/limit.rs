//! A limit: any algorithm with its numbers. Rules hold limits, and stores apply them.

use crate::backoff::{self, Backoff, Schedule};
use crate::calendar::{Anchor, Calendar, Unit, Zone};
use crate::concurrency::{self, Concurrency};
use crate::fair::{self, Fair, Lane};
use crate::fixed_window::{self, FixedWindow};
use crate::leaky_bucket::{self, Leaky, LeakyBucket};
use crate::limiting::Limiting;
use crate::meter::Meter;
use crate::quota::{self, Quota};
use crate::sliding_counter::{self, SlidingCounter};
use crate::sliding_log::{self, SlidingLog};
use crate::two_window::{self, TwoWindow};
use crate::units::{Rate, Scale, Span};
use crate::{Outcome, ParamError, gcra, token_bucket};

/// An algorithm with validated numbers.
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
    /// Accompanies another limit. See [`crate::backoff`].
    Backoff(Backoff),
    /// See [`crate::quota`].
    Quota(Quota),
    /// See [`crate::concurrency`].
    Concurrency(Concurrency),
    /// A token bucket with fair shares. See [`crate::fair`].
    Fair(Fair),
    /// Admits everything, and counts nothing.
    Unlimited(Algorithm),
}

/// The constructor of each algorithm describes its errors.
#[allow(clippy::missing_errors_doc)]
impl Limit {
    /// See [`fixed_window::new`].
    pub fn fixed_window(limit: u64, window: Span) -> Result<Limit, ParamError> {
        fixed_window::new(limit, window).map(Limit::FixedWindow)
    }

    /// See [`sliding_log::new`].
    pub fn sliding_log(limit: u64, window: Span) -> Result<Limit, ParamError> {
        sliding_log::new(limit, window).map(Limit::SlidingLog)
    }

    /// See [`sliding_counter::new`].
    pub fn sliding_counter(limit: u64, window: Span, buckets: u32) -> Result<Limit, ParamError> {
        sliding_counter::new(limit, window, buckets).map(Limit::SlidingCounter)
    }

    /// See [`two_window::new`].
    pub fn two_window(limit: u64, window: Span) -> Result<Limit, ParamError> {
        two_window::new(limit, window).map(Limit::TwoWindow)
    }

    /// See [`token_bucket::new`].
    pub fn token_bucket(capacity: u64, refill: Rate) -> Result<Limit, ParamError> {
        token_bucket::new(capacity, refill).map(Limit::TokenBucket)
    }

    /// See [`gcra::new`].
    pub fn gcra(rate: Rate, burst: u64) -> Result<Limit, ParamError> {
        gcra::new(rate, burst).map(Limit::Gcra)
    }

    /// See [`leaky_bucket::new`].
    pub fn leaky_bucket(rate: Rate, queue: u64, leaky: Leaky) -> Result<Limit, ParamError> {
        leaky_bucket::new(rate, queue, leaky).map(Limit::LeakyBucket)
    }

    /// See [`backoff::new`].
    pub fn backoff(schedule: Schedule) -> Result<Limit, ParamError> {
        backoff::new(schedule).map(Limit::Backoff)
    }

    /// See [`quota::new`].
    pub fn quota(
        limit: u64,
        grace: u64,
        rollover: u64,
        calendar: Calendar,
    ) -> Result<Limit, ParamError> {
        quota::new(limit, grace, rollover, calendar).map(Limit::Quota)
    }

    /// See [`fair::with_lanes`].
    pub fn fair(capacity: u64, refill: Rate, lanes: &[Lane]) -> Result<Limit, ParamError> {
        fair::with_lanes(capacity, refill, lanes).map(Limit::Fair)
    }

    /// See [`concurrency::new`].
    pub fn concurrency(limit: u64, lease: Span) -> Result<Limit, ParamError> {
        concurrency::new(limit, lease).map(Limit::Concurrency)
    }
}

impl Limit {
    /// Returns a limit that admits everything, for a rule of `algorithm`.
    #[must_use]
    pub fn unlimited(algorithm: Algorithm) -> Limit {
        Limit::Unlimited(algorithm)
    }

    /// Scales the limit to `numerator / denominator`: the share of an instance that shares the limit with
    /// other instances. The result is rounded down to whole units and whole ticks of refill. It is at least
    /// 1 unless the limit is 0. A back-off stays as it is.
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
            Limit::Quota(it) => Limit::Quota(it.scaled(scale)),
            Limit::Concurrency(it) => Limit::Concurrency(it.scaled(scale)),
            Limit::Fair(it) => Limit::Fair(it.scaled(scale)),
            Limit::Backoff(_) | Limit::Unlimited(_) => self.clone(),
        }
    }

    /// Returns into how many parts the limit can be split, of at most `wanted`: each part has at least one
    /// unit, and refills at an exact rate. Slots, fair shares and back-offs cannot be split.
    #[must_use]
    pub fn parts(&self, wanted: u64) -> u64 {
        let most = match self {
            Limit::TokenBucket(it) | Limit::Gcra(it) => it.most_parts(),
            Limit::LeakyBucket(it) => it.meter().most_parts(),
            Limit::Backoff(_) | Limit::Concurrency(_) | Limit::Fair(_) | Limit::Unlimited(_) => 1,
            Limit::Quota(it) if it.is_closed() => 1,
            _ => u64::MAX,
        };
        wanted.min(most).min(self.capacity()).max(1)
    }

    /// Returns part `index` of the limit, split into as many parts as [`parts`](Self::parts) says. All parts
    /// together have the units and the rate of the limit.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Span};
    /// let limit = Limit::fixed_window(10, Span::MINUTE)?;
    /// let parts = [0, 1, 2].map(|index| limit.part(index, 3).capacity());
    /// assert_eq!(parts, [4, 3, 3]);
    /// # Ok::<(), tollgate_core::ParamError>(())
    /// ```
    #[must_use]
    pub fn part(&self, index: u64, of: u64) -> Limit {
        let of = of.max(1);
        let scaled = self.scaled(1, u32::try_from(of).unwrap_or(u32::MAX));
        let share = |amount: u64| amount / of + u64::from(index < amount % of);
        let part = match (self, &scaled) {
            (Limit::TokenBucket(it), Limit::TokenBucket(part)) => {
                Ok(Limit::TokenBucket(part.with_capacity(share(it.capacity()))))
            }
            (Limit::Gcra(it), Limit::Gcra(part)) => {
                Ok(Limit::Gcra(part.with_capacity(share(it.capacity()))))
            }
            (Limit::LeakyBucket(it), Limit::LeakyBucket(part)) => {
                Ok(Limit::LeakyBucket(part.with_capacity(share(it.capacity()))))
            }
            (Limit::Quota(it), _) => {
                let [limit, grace, rollover] = it.numbers().map(share);
                Limit::quota(limit, grace, rollover, it.calendar().clone())
            }
            (
                Limit::FixedWindow(_)
                | Limit::SlidingLog(_)
                | Limit::SlidingCounter(_)
                | Limit::TwoWindow(_),
                _,
            ) => self.renumbered(share(self.capacity()), self.window()),
            _ => Ok(scaled.clone()),
        };
        part.unwrap_or(scaled)
    }

    /// Returns the same algorithm with other numbers: `amount` in each `period`. A token bucket or GCRA
    /// refills at this rate and holds `amount`. A leaky bucket leaks at this rate and keeps its queue. The
    /// number of sub-buckets and shaping stay as they are. An amount of 0 admits nothing. A back-off has no
    /// amount, and stays as it is.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Rate, Span};
    /// let limit = Limit::gcra(Rate::new(90, Span::MINUTE)?, 30)?;
    /// let other = limit.renumbered(5, Span::SECOND)?;
    /// assert_eq!(other, Limit::gcra(Rate::new(5, Span::SECOND)?, 5)?);
    /// # Ok::<(), tollgate_core::ParamError>(())
    /// ```
    ///
    /// # Errors
    /// If the numbers are out of range, or cannot be counted exactly.
    pub fn renumbered(&self, amount: u64, period: Span) -> Result<Limit, ParamError> {
        // A rate of 0 is not valid. With an amount of 0, the capacity of 0 already admits nothing.
        let rate = || Rate::new(amount.max(1), period);
        match self {
            Limit::FixedWindow(_) | Limit::Unlimited(Algorithm::FixedWindow) => {
                Limit::fixed_window(amount, period)
            }
            Limit::SlidingLog(_) | Limit::Unlimited(Algorithm::SlidingLog) => {
                Limit::sliding_log(amount, period)
            }
            Limit::SlidingCounter(it) => {
                let buckets = u32::try_from(it.parts().1).unwrap_or(u32::MAX);
                Limit::sliding_counter(amount, period, buckets)
            }
            Limit::Unlimited(Algorithm::SlidingCounter) => {
                Limit::sliding_counter(amount, period, sliding_counter::DEFAULT_BUCKETS)
            }
            Limit::TwoWindow(_) => Limit::two_window(amount, period),
            Limit::TokenBucket(_) | Limit::Unlimited(Algorithm::TokenBucket) => {
                Limit::token_bucket(amount, rate()?)
            }
            Limit::Fair(it) => it.renumbered(amount, rate()?).map(Limit::Fair),
            Limit::Gcra(_) | Limit::Unlimited(Algorithm::Gcra) => Limit::gcra(rate()?, amount),
            Limit::Backoff(_) | Limit::Unlimited(Algorithm::Backoff) => Ok(self.clone()),
            Limit::Quota(it) => it.with_limit(amount).map(Limit::Quota),
            Limit::Concurrency(it) => Limit::concurrency(amount, it.lease()),
            // An unlimited rule has no calendar and no lease. Use days in UTC as the calendar, and the period
            // as the lease.
            Limit::Unlimited(Algorithm::Quota) => {
                let days = Calendar::new(1, Unit::Day, Anchor::First, Zone::utc())?;
                Limit::quota(amount, 0, 0, days)
            }
            Limit::Unlimited(Algorithm::Concurrency) => Limit::concurrency(amount, period),
            Limit::LeakyBucket(it) => it.renumbered(amount, period).map(Limit::LeakyBucket),
            Limit::Unlimited(Algorithm::LeakyBucket) => {
                let strict = leaky_bucket::new(Rate::new(1, period)?, 0, Leaky::Police)?;
                strict.renumbered(amount, period).map(Limit::LeakyBucket)
            }
        }
    }

    /// Returns whether the limit only watches another limit, as a back-off does. A request takes nothing from
    /// such a limit.
    #[must_use]
    pub fn is_companion(&self) -> bool {
        matches!(self, Limit::Backoff(_))
    }

    /// Returns whether a request takes its cost from the limit. This is false for two limits: a request takes
    /// nothing from a back-off, and a hold takes one slot of a concurrency limit, whatever its cost.
    #[must_use]
    pub fn has_amount(&self) -> bool {
        !matches!(self, Limit::Backoff(_) | Limit::Concurrency(_))
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limit::FixedWindow(_) => Algorithm::FixedWindow,
            Limit::SlidingLog(_) => Algorithm::SlidingLog,
            Limit::SlidingCounter(_) | Limit::TwoWindow(_) => Algorithm::SlidingCounter,
            Limit::TokenBucket(_) | Limit::Fair(_) => Algorithm::TokenBucket,
            Limit::Gcra(_) => Algorithm::Gcra,
            Limit::LeakyBucket(_) => Algorithm::LeakyBucket,
            Limit::Backoff(_) => Algorithm::Backoff,
            Limit::Quota(_) => Algorithm::Quota,
            Limit::Concurrency(_) => Algorithm::Concurrency,
            Limit::Unlimited(algorithm) => *algorithm,
        }
    }

    /// Returns the most that can be admitted at once; [`Outcome::UNLIMITED`] without a limit.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        match self {
            Limit::FixedWindow(it) => it.capacity(),
            Limit::SlidingLog(it) => it.capacity(),
            Limit::SlidingCounter(it) => it.capacity(),
            Limit::TwoWindow(it) => it.capacity(),
            Limit::TokenBucket(it) | Limit::Gcra(it) => it.capacity(),
            Limit::LeakyBucket(it) => it.capacity(),
            Limit::Backoff(it) => it.capacity(),
            Limit::Quota(it) => it.capacity(),
            Limit::Concurrency(it) => it.limit(),
            Limit::Fair(it) => it.capacity(),
            Limit::Unlimited(_) => Outcome::UNLIMITED,
        }
    }

    /// Returns the amount above which a quota warns: the limit without the grace. For other limits, returns
    /// the capacity.
    #[must_use]
    pub fn soft_limit(&self) -> u64 {
        match self {
            Limit::Quota(it) => it.limit(),
            _ => self.capacity(),
        }
    }

    /// Returns the time in which a spent allowance comes back; zero without a limit.
    #[must_use]
    #[inline]
    pub fn window(&self) -> Span {
        match self {
            Limit::FixedWindow(it) => it.window(),
            Limit::SlidingLog(it) => it.window(),
            Limit::SlidingCounter(it) => it.window(),
            Limit::TwoWindow(it) => it.window(),
            Limit::TokenBucket(it) | Limit::Gcra(it) => it.window(),
            Limit::LeakyBucket(it) => it.window(),
            Limit::Backoff(it) => it.window(),
            Limit::Quota(it) => it.window(),
            Limit::Concurrency(it) => it.lease(),
            Limit::Fair(it) => it.window(),
            Limit::Unlimited(_) => Span::ZERO,
        }
    }
}

/// The algorithms.
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
    /// [`crate::backoff`]: accompanies another limit.
    Backoff,
    /// [`crate::quota`]
    Quota,
    /// [`crate::concurrency`]
    Concurrency,
}

impl Algorithm {
    /// All variants.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingCounter,
        Algorithm::TokenBucket,
        Algorithm::Gcra,
        Algorithm::LeakyBucket,
        Algorithm::Backoff,
        Algorithm::Quota,
        Algorithm::Concurrency,
    ];

    /// Returns the name in rules files, answers and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::SlidingCounter => "sliding-counter",
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::Gcra => "gcra",
            Algorithm::LeakyBucket => "leaky-bucket",
            Algorithm::Backoff => "backoff",
            Algorithm::Quota => "quota",
            Algorithm::Concurrency => "concurrency",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_numbers_keep_the_algorithm_and_its_other_settings() {
        const SHAPE: Leaky = Leaky::Shape { max_wait: None };
        type New = fn(u64, Span) -> Result<Limit, ParamError>;
        let limits: [New; 7] = [
            Limit::fixed_window,
            Limit::sliding_log,
            |amount, period| Limit::sliding_counter(amount, period, 6),
            Limit::two_window,
            |amount, period| Limit::token_bucket(amount, Rate::new(amount, period)?),
            |amount, period| Limit::gcra(Rate::new(amount, period)?, amount),
            |amount, period| Limit::leaky_bucket(Rate::new(amount, period)?, 3, SHAPE),
        ];
        for limit in limits {
            let renumbered = limit(1, Span::DAY).unwrap().renumbered(7, Span::MINUTE);
            assert_eq!(renumbered, limit(7, Span::MINUTE));
        }
    }

    #[test]
    fn every_algorithm_takes_new_numbers_and_an_amount_of_0() {
        let counting = |it: &Algorithm| *it != Algorithm::Backoff;
        for algorithm in Algorithm::ALL.into_iter().filter(counting) {
            let unlimited = Limit::unlimited(algorithm);
            let some = unlimited.renumbered(5, Span::HOUR).unwrap();
            assert_eq!(some.algorithm(), algorithm);
            assert_ne!(some.capacity(), Outcome::UNLIMITED);
            for limit in [unlimited, some] {
                let none = limit.renumbered(0, Span::HOUR).unwrap();
                assert_eq!((none.algorithm(), none.capacity()), (algorithm, 0));
            }
        }
    }

    #[test]
    fn a_back_off_has_no_amount_to_change() {
        let backoff = Limit::backoff(Schedule {
            after: 3,
            base: Span::SECOND,
            factor: 2,
            max: Span::MINUTE,
            forget: Span::HOUR,
            penalty: Span::ZERO,
        })
        .unwrap();
        assert!(backoff.is_companion());
        assert_eq!(backoff.scaled(1, 3), backoff);
        assert_eq!(backoff.renumbered(7, Span::DAY).unwrap(), backoff);
        assert_eq!(backoff.algorithm().name(), "backoff");
        assert_eq!(backoff.capacity(), 3);
    }

    #[test]
    fn inexact_numbers_are_rejected() {
        let limit = Limit::gcra(Rate::new(1, Span::SECOND).unwrap(), 1).unwrap();
        assert!(limit.renumbered(999_999_937, Span::DAY).is_err());
        assert!(limit.renumbered(1, Span::ZERO).is_err());
    }
}
