//! Makes random numbers for each algorithm: tiny numbers that reach every edge, everyday numbers, and the
//! largest numbers that the crate accepts.

use proptest::prelude::*;
use tollgate_core::{
    Leaky, MAX_AMOUNT, Rate, Span, fixed_window, gcra, leaky_bucket, meter, sliding_counter,
    sliding_log, token_bucket, two_window,
};

use super::Proven;
use crate::model::bucket::{Bucket, Name};
use crate::model::fixed_window::FixedWindow;
use crate::model::leaky_bucket::{LeakyBucket, Sense};
use crate::model::sliding_counter::SlidingCounter;
use crate::model::sliding_log::SlidingLog;
use crate::model::two_window::TwoWindow;

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..=5u64,
        4 => 1..=30u64,
        2 => 1..=100_000u64,
        1 => 1..=MAX_AMOUNT,
    ]
}

fn span() -> impl Strategy<Value = u64> {
    let day = Span::DAY.as_micros();
    prop_oneof![
        5 => 1..=60u64,
        3 => 1..=20_000u64,
        3 => prop::sample::select(vec![1000, 1_000_000, 60_000_000, 3_600_000_000, day]),
        1 => (1..=day).prop_map(|millis| millis * 1000),
        1 => 1..=Span::MAX.as_micros(),
    ]
    .prop_map(|micros| micros.min(Span::MAX.as_micros()))
}

fn refill() -> impl Strategy<Value = (u64, u64)> {
    let everyday = vec![1, 3, 7, 100, 333, 1_000_000, 999_983, 999_999_937];
    let amount = prop_oneof![
        4 => 1..=10u64,
        2 => 1..=1000u64,
        2 => prop::sample::select(everyday),
        1 => 1..=u64::from(u32::MAX),
    ];
    (amount, span())
}

fn accepted<N: Proven>(numbers: impl Strategy<Value = N>) -> impl Strategy<Value = N> {
    numbers.prop_filter("the crate rejects these numbers", |numbers| {
        numbers.limit().is_some()
    })
}

pub(crate) fn fixed_window() -> impl Strategy<Value = FixedWindow> {
    accepted((amount(), span()).prop_map(|(limit, window)| FixedWindow { limit, window }))
}

pub(crate) fn sliding_log() -> impl Strategy<Value = SlidingLog> {
    accepted((amount(), span()).prop_map(|(limit, window)| SlidingLog { limit, window }))
}

pub(crate) fn sliding_counter() -> impl Strategy<Value = SlidingCounter> {
    let buckets = prop_oneof![2..=4u32, Just(10u32), 2..=60u32];
    accepted(
        (amount(), span(), buckets).prop_map(|(limit, window, buckets)| SlidingCounter {
            limit,
            window,
            buckets,
        }),
    )
}

pub(crate) fn two_window() -> impl Strategy<Value = TwoWindow> {
    accepted((amount(), span()).prop_map(|(limit, window)| TwoWindow { limit, window }))
}

fn bucket(name: Name) -> impl Strategy<Value = Bucket> {
    let numbers = (amount(), refill());
    accepted(
        numbers.prop_map(move |(capacity, (amount, period))| Bucket {
            name,
            capacity,
            amount,
            period,
        }),
    )
}

pub(crate) fn token_bucket() -> impl Strategy<Value = Bucket> {
    bucket(Name::TokenBucket)
}

pub(crate) fn gcra() -> impl Strategy<Value = Bucket> {
    bucket(Name::Gcra)
}

fn leaky(sense: impl Strategy<Value = Sense>) -> impl Strategy<Value = LeakyBucket> {
    let room = bucket(Name::Gcra).prop_filter("a queue has room for one", |it| it.capacity > 0);
    accepted((room, sense).prop_map(|(room, sense)| LeakyBucket { room, sense }))
}

pub(crate) fn policing() -> impl Strategy<Value = LeakyBucket> {
    leaky(Just(Sense::Police))
}

pub(crate) fn shaping() -> impl Strategy<Value = LeakyBucket> {
    let max_wait = prop::option::of(span());
    leaky(max_wait.prop_map(|max_wait| Sense::Shape { max_wait }))
}

impl Proven for FixedWindow {
    type Limit = fixed_window::FixedWindow;

    fn limit(&self) -> Option<Self::Limit> {
        fixed_window::new(self.limit, Span::from_micros(self.window)).ok()
    }

    fn resized(&self, limit: u64) -> FixedWindow {
        FixedWindow {
            limit,
            ..self.clone()
        }
    }
}

impl Proven for SlidingLog {
    type Limit = sliding_log::SlidingLog;

    fn limit(&self) -> Option<Self::Limit> {
        sliding_log::new(self.limit, Span::from_micros(self.window)).ok()
    }

    fn resized(&self, limit: u64) -> SlidingLog {
        SlidingLog {
            limit,
            ..self.clone()
        }
    }
}

impl Proven for SlidingCounter {
    type Limit = sliding_counter::SlidingCounter;

    fn limit(&self) -> Option<Self::Limit> {
        let window = Span::from_micros(self.window);
        sliding_counter::new(self.limit, window, self.buckets).ok()
    }

    fn resized(&self, limit: u64) -> SlidingCounter {
        SlidingCounter {
            limit,
            ..self.clone()
        }
    }
}

impl Proven for TwoWindow {
    type Limit = two_window::TwoWindow;

    fn limit(&self) -> Option<Self::Limit> {
        two_window::new(self.limit, Span::from_micros(self.window)).ok()
    }

    fn resized(&self, limit: u64) -> TwoWindow {
        // A limit that counts in milliseconds rounds more than one that counts in microseconds. So the new
        // limit has to count in the same tick as before.
        let most_in_micros = ((1 << 52) - 1) / self.window;
        TwoWindow {
            limit: match self.grain() {
                1 => limit.min(most_in_micros),
                _ => limit.max(most_in_micros + 1),
            },
            ..self.clone()
        }
    }
}

impl Proven for Bucket {
    type Limit = meter::Meter;

    fn limit(&self) -> Option<Self::Limit> {
        let rate = Rate::new(self.amount, Span::from_micros(self.period)).ok()?;
        match self.name {
            Name::TokenBucket => token_bucket::new(self.capacity, rate).ok(),
            Name::Gcra => gcra::new(rate, self.capacity).ok(),
        }
    }

    fn resized(&self, capacity: u64) -> Bucket {
        Bucket {
            capacity,
            ..self.clone()
        }
    }
}

impl Proven for LeakyBucket {
    type Limit = leaky_bucket::LeakyBucket;

    fn limit(&self) -> Option<Self::Limit> {
        let rate = Rate::new(self.room.amount, Span::from_micros(self.room.period)).ok()?;
        let queue = self.room.capacity.checked_sub(1)?;
        let leaky = match self.sense {
            Sense::Police => Leaky::Police,
            Sense::Shape { max_wait } => Leaky::Shape {
                max_wait: max_wait.map(Span::from_micros),
            },
        };
        leaky_bucket::new(rate, queue, leaky).ok()
    }

    fn resized(&self, capacity: u64) -> LeakyBucket {
        LeakyBucket {
            room: self.room.resized(capacity),
            ..self.clone()
        }
    }
}
