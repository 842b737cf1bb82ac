//! The algorithms under test, with numbers of the caller's choice.

use tollgate_core::backoff::Schedule;
use tollgate_core::fair::Lane;
use tollgate_core::{Anchor, Calendar, Leaky, Limit, ParamError, Rate, Span, Unit, Zone};

/// An algorithm. Modes that decide differently are separate variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A fixed window.
    FixedWindow,
    /// A sliding log.
    SlidingLog,
    /// A sliding counter of ten sub-buckets.
    SlidingCounter,
    /// A sliding counter that estimates from two windows.
    TwoWindow,
    /// A token bucket.
    TokenBucket,
    /// GCRA.
    Gcra,
    /// A leaky bucket that denies requests that do not fit.
    LeakyPolice,
    /// A leaky bucket that makes requests wait.
    LeakyShape,
    /// A leaky bucket that makes requests wait for at most half the window.
    LeakyShapeInTime,
    /// A back-off that watches another charge.
    Backoff,
    /// A quota. The window chooses its calendar.
    Quota,
    /// A quota with usage that is also recorded in a ledger.
    LedgeredQuota,
    /// A fair bucket. The capacity chooses its lanes.
    Fair,
}

impl Kind {
    /// The kinds that admit their whole capacity at once.
    pub const ALL: [Kind; 8] = [
        Kind::FixedWindow,
        Kind::SlidingLog,
        Kind::SlidingCounter,
        Kind::TwoWindow,
        Kind::TokenBucket,
        Kind::Gcra,
        Kind::LeakyPolice,
        Kind::LeakyShape,
    ];

    /// Returns a limit of this kind: `capacity` units that come back in `window`.
    ///
    /// A leaky bucket has a capacity of at least 1. A back-off has `capacity` free denials, and forgets
    /// after one window. A quota has periods of hours or days in some time zone. The two numbers also
    /// decide whether a back-off has a penalty, and whether a quota has grace or a rollover.
    #[must_use]
    pub fn limit(self, capacity: u64, window: Span) -> Limit {
        let rate = Rate::new(capacity.max(1), window);
        let queue = capacity.saturating_sub(1);
        let limit = match self {
            Kind::FixedWindow => Limit::fixed_window(capacity, window),
            Kind::SlidingLog => Limit::sliding_log(capacity, window),
            Kind::SlidingCounter => Limit::sliding_counter(capacity, window, 10),
            Kind::TwoWindow => Limit::two_window(capacity, window),
            Kind::TokenBucket => rate.and_then(|rate| Limit::token_bucket(capacity, rate)),
            Kind::Gcra => rate.and_then(|rate| Limit::gcra(rate, capacity)),
            Kind::LeakyPolice => {
                rate.and_then(|rate| Limit::leaky_bucket(rate, queue, Leaky::Police))
            }
            Kind::LeakyShape => {
                let leaky = Leaky::Shape { max_wait: None };
                rate.and_then(|rate| Limit::leaky_bucket(rate, queue, leaky))
            }
            Kind::LeakyShapeInTime => {
                let half = Span::from_micros(window.as_micros() / 2);
                let leaky = Leaky::Shape {
                    max_wait: Some(half),
                };
                rate.and_then(|rate| Limit::leaky_bucket(rate, queue, leaky))
            }
            Kind::Backoff => Limit::backoff(schedule(capacity, window)),
            Kind::Quota | Kind::LedgeredQuota => quota(capacity, window),
            Kind::Fair => rate.and_then(|rate| Limit::fair(capacity, rate, lanes(capacity))),
        };
        limit.expect("numbers that core accepts")
    }

    /// Returns whether the allowance refills steadily, and not at the end of a window.
    #[must_use]
    pub fn is_meter(self) -> bool {
        !matches!(
            self,
            Kind::FixedWindow
                | Kind::SlidingLog
                | Kind::SlidingCounter
                | Kind::TwoWindow
                | Kind::Backoff
                | Kind::Quota
                | Kind::LedgeredQuota
        )
    }

    /// Returns whether the capacity can be 0.
    #[must_use]
    pub fn can_be_zero(self) -> bool {
        !matches!(
            self,
            Kind::LeakyPolice | Kind::LeakyShape | Kind::LeakyShapeInTime
        )
    }
}

/// Returns a quota for random sequences. `capacity` and `window` also decide its other numbers. Periods may
/// be days, because random sequences jump to promised instants.
fn quota(capacity: u64, window: Span) -> Result<Limit, ParamError> {
    let (every, unit, zone) = match window.as_micros() {
        0..1_000 => (1, Unit::Hour, "UTC"),
        1_000..5_000 => (2, Unit::Hour, "Australia/Lord_Howe"),
        5_000..1_000_000 => (1, Unit::Day, "Europe/Berlin"),
        _ => (3, Unit::Day, "Asia/Kathmandu"),
    };
    let calendar = Calendar::new(every, unit, Anchor::First, Zone::named(zone)?)?;
    let grace = if capacity.is_multiple_of(2) {
        capacity / 5
    } else {
        0
    };
    let rollover = if capacity > 5 { capacity / 3 } else { 0 };
    Limit::quota(capacity - grace, grace, rollover, calendar)
}

/// Returns the lanes of a fair bucket for random sequences.
fn lanes(capacity: u64) -> &'static [Lane] {
    const fn lane(share: u32, strict: bool) -> Lane {
        Lane { share, strict }
    }
    const TWO: [Lane; 2] = [lane(6_000, false), lane(4_000, false)];
    const STRICT: [Lane; 2] = [lane(3_333, false), lane(6_667, true)];
    const THREE: [Lane; 3] = [lane(5_000, false), lane(2_500, true), lane(2_500, false)];
    match capacity % 5 {
        0 | 1 => &[Lane::ONLY],
        2 => &TWO,
        3 => &STRICT,
        _ => &THREE,
    }
}

fn schedule(after: u64, window: Span) -> Schedule {
    let part = |of: u64| Span::from_micros((window.as_micros() / of).max(1));
    Schedule {
        after: u32::try_from(after).unwrap_or(u32::MAX),
        base: part(10),
        factor: 3,
        max: Span::from_micros(2 * window.as_micros()),
        forget: window,
        penalty: if after.is_multiple_of(2) {
            Span::ZERO
        } else {
            part(50)
        },
    }
}
