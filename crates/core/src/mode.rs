//! The mode of a charge, and the numbers of a limit whose units are drawn in advance.
//!
//! In leased mode an instance draws a *slice*: units that it may use within a time `T` of the draw, without
//! another call. A use can thus come up to `T` after its draw. [`Limit::prepaid`] returns the numbers that
//! leave room for this. If every unit of an allowance is drawn under these numbers, and is used within `T`
//! or not at all, then the uses keep the promise of the limit itself:
//!
//! | limit | prepaid numbers | why the uses keep the promise |
//! |---|---|---|
//! | token bucket, GCRA, policing leaky bucket | capacity `B - ceil(rate × T)` | the uses in `[s, t]` were drawn in `[s - T, t]`: at most `B - rate × T + rate × (t - s + T)` |
//! | sliding log, sliding counter, two windows | `window + T` | the uses in a span of `window` were drawn in a span of `window + T` |
//! | fixed window, quota | the same | a slice ends with its period, so a period's uses were drawn in this period |
//! | concurrency, shaping leaky bucket, back-off | none: always exact | |
//!
//! A draw that is used at once also obeys the table. So an instance may mix slices and single draws.
//!
//! # When there is no room
//! `T` is shortened until a meter keeps at least half of its capacity, and until a sliding window grows by
//! at most 1/64. If `T` would become shorter than [`MIN_SLICE`], there are no prepaid numbers, and the limit
//! is exact. Proof: `docs/modes.md`, the tests below, and the model in
//! `crates/tollgate/src/stores/prepaid/model.rs`.

use crate::leaky_bucket::{Leaky, LeakyBucket};
use crate::limit::Limit;
use crate::limiting::Limiting;
use crate::meter::Meter;
use crate::sliding_counter;
use crate::units::Span;

/// The shortest slice. A call to a store takes about a millisecond, so a shorter slice would save no calls.
pub const MIN_SLICE: Span = Span::from_millis(5);

/// A slice adds at most `1 / WINDOW_PARTS` to a sliding window, so at most this part of the rate is lost.
const WINDOW_PARTS: u64 = 64;

/// Where a charge is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The store decides every request.
    #[default]
    Exact,
    /// An instance decides from units that it has drawn before. The limit of the charge has to be
    /// [prepaid](Limit::prepaid) for this slice.
    Leased {
        /// How long units may be used after their draw.
        slice: Span,
    },
    /// An instance decides from its own counts and the last level that it has read from the store. It reports
    /// what it has admitted. All instances together may exceed the limit: `docs/modes.md` has the bound.
    Async {
        /// How long an admitted unit waits at most before it is reported.
        flush: Span,
    },
}

impl Mode {
    /// Returns the name in rules files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Exact => "exact",
            Mode::Leased { .. } => "leased",
            Mode::Async { .. } => "async",
        }
    }
}

impl Limit {
    /// Returns the numbers under which slices are drawn, and how long a slice may live: `slice`, or less
    /// if the numbers leave no room for it. Returns `None` if the limit has to be exact.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Rate, Span};
    /// let rate = Rate::new(1000, Span::SECOND)?;
    /// let limit = Limit::gcra(rate, 2000)?;
    /// let slice = Span::from_millis(100);
    /// assert_eq!(limit.prepaid(slice), Some((Limit::gcra(rate, 1900)?, slice)));
    /// assert_eq!(Limit::gcra(rate, 1)?.prepaid(slice), None);
    /// # Ok::<(), tollgate_core::ParamError>(())
    /// ```
    #[must_use]
    pub fn prepaid(&self, slice: Span) -> Option<(Limit, Span)> {
        let in_window = |window: Span| {
            let most = Span::from_micros(window.as_micros() / WINDOW_PARTS);
            // Whole milliseconds, so that numbers that need ticks of a millisecond stay exact.
            let millis = slice.min(most).as_micros() / 1000;
            let slice = Span::from_millis(millis);
            (
                Span::from_micros(window.as_micros() + slice.as_micros()),
                slice,
            )
        };
        let (limit, slice) = match self {
            Limit::TokenBucket(it) => {
                meter(it, slice).map(|(it, slice)| (Limit::TokenBucket(it), slice))?
            }
            Limit::Gcra(it) => meter(it, slice).map(|(it, slice)| (Limit::Gcra(it), slice))?,
            Limit::LeakyBucket(it) if it.leaky() == Leaky::Police => {
                let (meter, slice) = meter(it.meter(), slice)?;
                let bucket = LeakyBucket::of_parts(meter, Leaky::Police).ok()?;
                (Limit::LeakyBucket(bucket), slice)
            }
            Limit::SlidingLog(it) => {
                let (window, slice) = in_window(it.window());
                (Limit::sliding_log(it.capacity(), window).ok()?, slice)
            }
            Limit::SlidingCounter(it) => {
                let (window, slice) = in_window(it.window());
                let buckets = u32::try_from(it.parts().1).ok()?;
                let counter = sliding_counter::new(it.capacity(), window, buckets).ok()?;
                (Limit::SlidingCounter(counter), slice)
            }
            Limit::TwoWindow(it) => {
                let (window, slice) = in_window(it.window());
                (Limit::two_window(it.capacity(), window).ok()?, slice)
            }
            Limit::FixedWindow(it) => (self.clone(), slice.min(it.window())),
            Limit::Quota(_) => (self.clone(), slice),
            Limit::LeakyBucket(_)
            | Limit::Backoff(_)
            | Limit::Concurrency(_)
            | Limit::Fair(_)
            | Limit::Unlimited(_) => return None,
        };
        (slice >= MIN_SLICE && limit.capacity() > 0).then_some((limit, slice))
    }

    /// Returns whether instances can decide by themselves and report their use later. Only the store can decide
    /// slots, queues, back-offs and fair shares.
    #[must_use]
    pub fn can_be_async(&self) -> bool {
        match self {
            Limit::LeakyBucket(it) => it.leaky() == Leaky::Police,
            Limit::Backoff(_) | Limit::Concurrency(_) | Limit::Fair(_) | Limit::Unlimited(_) => {
                false
            }
            _ => true,
        }
    }

    /// Returns whether the allowance refills all the time, as that of a bucket does.
    #[must_use]
    pub const fn refills(&self) -> bool {
        matches!(
            self,
            Limit::Gcra(_) | Limit::TokenBucket(_) | Limit::LeakyBucket(_)
        )
    }

    /// Returns whether usage counts in aligned periods, so that a slice must not outlive its period.
    #[must_use]
    pub const fn has_periods(&self) -> bool {
        matches!(self, Limit::FixedWindow(_) | Limit::Quota(_))
    }
}

/// Returns a meter with room for slices of `slice`, or of a shorter time.
fn meter(meter: &Meter, slice: Span) -> Option<(Meter, Span)> {
    let (capacity, per_tick, token, tick) = meter.parts();
    let (rate, token_units) = (u128::from(per_tick), u128::from(token));
    // The longest slice whose refill is at most half of the capacity.
    let longest = u128::from(capacity / 2) * token_units / rate * u128::from(tick.micros());
    let slice =
        u64::try_from(longest).map_or(slice, |longest| slice.min(Span::from_micros(longest)));
    let ticks = u128::from(slice.as_micros().div_ceil(tick.micros()));
    let refill = u64::try_from((ticks * rate).div_ceil(token_units)).ok()?;
    let capacity = capacity.checked_sub(refill)?;
    Some((
        Meter::of_parts(capacity, per_tick, token, tick).ok()?,
        slice,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;
    use crate::backoff::Schedule;
    use crate::fair::Lane;

    const SLICE: Span = Span::from_millis(100);

    fn per_second(amount: u64) -> Rate {
        Rate::new(amount, Span::SECOND).unwrap()
    }

    #[test]
    fn a_meter_loses_the_refill_of_a_slice() {
        for (rate, burst, left) in [(1000, 2000, 1900), (15, 15, 13), (1, 10, 9)] {
            let (limit, slice) = Limit::gcra(per_second(rate), burst)
                .unwrap()
                .prepaid(SLICE)
                .unwrap();
            assert_eq!(
                (limit.capacity(), slice),
                (left, SLICE),
                "{rate}/s, {burst}"
            );
        }
    }

    #[test]
    fn a_slice_shrinks_until_half_of_the_capacity_is_left() {
        let (limit, slice) = Limit::token_bucket(10, per_second(100))
            .unwrap()
            .prepaid(SLICE)
            .unwrap();
        assert_eq!((limit.capacity(), slice), (5, Span::from_millis(50)));
        // Half of the capacity comes back in 1 ms, which is too short for a slice.
        let fast = Limit::token_bucket(10, per_second(5000)).unwrap();
        assert_eq!(fast.prepaid(SLICE), None);
    }

    #[test]
    fn a_sliding_window_grows_by_the_slice_and_by_at_most_a_64th() {
        for (window, grown, shrunk) in [
            (Span::MINUTE, Span::from_millis(60_100), SLICE),
            (Span::SECOND, Span::from_millis(1015), Span::from_millis(15)),
        ] {
            let limits = [
                (Limit::sliding_log(7, window), Limit::sliding_log(7, grown)),
                (Limit::two_window(7, window), Limit::two_window(7, grown)),
                (
                    Limit::sliding_counter(7, window, 6),
                    Limit::sliding_counter(7, grown, 6),
                ),
            ];
            for (limit, prepaid) in limits {
                let expected = Some((prepaid.unwrap(), shrunk));
                assert_eq!(limit.unwrap().prepaid(SLICE), expected);
            }
        }
        assert_eq!(Limit::sliding_log(7, SLICE).unwrap().prepaid(SLICE), None);
    }

    #[test]
    fn periods_keep_their_numbers() {
        let window = Limit::fixed_window(7, Span::MINUTE).unwrap();
        assert_eq!(window.prepaid(SLICE), Some((window.clone(), SLICE)));
        assert!(window.has_periods());
    }

    #[test]
    fn slots_queues_and_fair_shares_are_never_async() {
        let shape = Leaky::Shape { max_wait: None };
        for (limit, can) in [
            (Limit::gcra(per_second(1), 5), true),
            (Limit::leaky_bucket(per_second(1), 5, Leaky::Police), true),
            (Limit::leaky_bucket(per_second(1), 5, shape), false),
            (Limit::concurrency(5, Span::MINUTE), false),
            (Limit::fair(5, per_second(1), &[Lane::ONLY]), false),
        ] {
            assert_eq!(limit.unwrap().can_be_async(), can);
        }
    }

    #[test]
    fn slots_queues_back_offs_and_limits_that_admit_nothing_are_exact() {
        let shape = Leaky::Shape { max_wait: None };
        let schedule = Schedule {
            after: 3,
            base: Span::SECOND,
            factor: 2,
            max: Span::MINUTE,
            forget: Span::HOUR,
            penalty: Span::ZERO,
        };
        for limit in [
            Limit::concurrency(5, Span::MINUTE),
            Limit::leaky_bucket(per_second(1), 50, shape),
            Limit::backoff(schedule),
            Limit::fixed_window(0, Span::MINUTE),
            Limit::leaky_bucket(per_second(1), 0, Leaky::Police),
        ] {
            assert_eq!(limit.unwrap().prepaid(SLICE), None);
        }
    }
}
