//! Compares the formulas in Lua and in Rust: after every step, both give the same reply and the same state.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use fastrand::Rng;
use tollgate_conformance::{Kind, seed};
use tollgate_core::fair::{Client, Fair};
use tollgate_core::{
    Admission, CarryOver, Charge, Limit, Limiting, MAX_AMOUNT, OnDenied, Outcome, Span, Time,
};
use tollgate_rig::{Redis, Resp};
use tollgate_store::{AllowanceLevel, Ask, ManualClock, Store};

/// A state as plain numbers.
type Numbers = Vec<u64>;

/// The state of one subject in Rust, with the limit that it was written under.
struct Model<A: Limiting> {
    kept: Option<(A, A::State)>,
    numbers_of: fn(&A::State) -> Numbers,
}

impl<A: Limiting> Model<A> {
    fn copy(&self) -> Model<A> {
        Model {
            kept: self.kept.clone(),
            numbers_of: self.numbers_of,
        }
    }

    fn forget_expired(&mut self, now: Time) {
        let expired = |(limit, state): &(A, A::State)| limit.expires_at(state) <= now;
        if self.kept.as_ref().is_some_and(expired) {
            self.kept = None;
        }
    }

    /// Returns the state under `limit`, carried over if it was written under another.
    fn state(&mut self, limit: &A, how: CarryOver, now: Time) -> &mut A::State {
        let (from, state) = self
            .kept
            .get_or_insert_with(|| (limit.clone(), A::State::default()));
        if from != limit {
            limit.carry_over(from, state, how, now);
            *from = limit.clone();
        }
        state
    }

    fn apply(&mut self, limit: &A, how: CarryOver, cost: u64, now: Time) -> Outcome {
        let state = self.state(limit, how, now);
        let verdict = limit.decide(state, cost, now);
        if cost > 0 && verdict.is_allowed() {
            limit.charge(state, cost, now);
        }
        self.outcome(limit, verdict.admission, now)
    }

    fn refund(
        &mut self,
        limit: &A,
        how: CarryOver,
        cost: u64,
        charged_at: Time,
        now: Time,
    ) -> Outcome {
        // The state stays in the numbers that it was written under, and the answer is in those of the caller.
        if let Some((from, state)) = &mut self.kept
            && (from == limit || how != CarryOver::Reset)
        {
            from.asked_by(limit).refund(state, cost, charged_at, now);
        }
        let mut copy = self.copy();
        let admission = limit.decide(copy.state(limit, how, now), 0, now).admission;
        let outcome = copy.outcome(limit, admission, now);
        self.forget_expired(now);
        outcome
    }

    fn report(&mut self, limit: &A, how: CarryOver, cost: u64, now: Time) -> AllowanceLevel {
        let before = limit.level(self.copy().state(limit, how, now), now);
        let fresh = || (limit.clone(), A::State::default());
        let (from, state) = self.kept.get_or_insert_with(fresh);
        if cost > 0 {
            from.asked_by(limit).overdraw(state, cost, MAX_AMOUNT, now);
        }
        let mut copy = self.copy();
        let state = copy.state(limit, how, now);
        let (left, reset_at) = (limit.level(state, now), limit.resets_at(state).max(now));
        self.forget_expired(now);
        AllowanceLevel::after(cost, before, left, now, reset_at)
    }

    fn outcome(&mut self, limit: &A, admission: Admission, now: Time) -> Outcome {
        let state = self.state(limit, CarryOver::Keep, now);
        let outcome = Outcome {
            admission,
            limit: limit.capacity(),
            remaining: limit.decide(state, 0, now).available,
            reset_at: limit.resets_at(state).max(now),
        };
        self.forget_expired(now);
        outcome
    }

    fn numbers(&self) -> Option<Numbers> {
        self.kept
            .as_ref()
            .map(|(_, state)| (self.numbers_of)(state))
    }
}

/// Runs the same random steps in Lua and in Rust, and compares after each step.
fn same_in_both<A: Limiting>(
    kind: Kind,
    inner: fn(&Limit) -> &A,
    numbers_of: fn(&A::State) -> Numbers,
    decode: fn(&[u8]) -> Numbers,
) {
    let redis = Redis::start();
    let clock = ManualClock::at(Time::from_micros(1_700_000_000_000_000));
    let store = common::connect(common::by_clock(common::options(&redis), &clock));
    let mut resp = redis.connect();
    let mut random = Rng::with_seed(seed(kind as u64));
    let mut limit = random_limit(kind, &mut random);
    let mut how = CarryOver::Keep;
    let mut model = Model {
        kept: None,
        numbers_of,
    };
    let mut taken: Vec<(u64, Time)> = Vec::new();
    for step in 0..common::steps() {
        if random.u8(..) < 20 {
            limit = random_limit(kind, &mut random);
            how = CarryOver::ALL[random.usize(0..3)];
        }
        // Quotas have periods of hours or days.
        let scale = if kind == Kind::Quota { 20_000 } else { 1 };
        clock.advance(Span::from_micros(match random.u8(0..10) {
            0..4 => 0,
            4..7 => random.u64(0..50),
            7..9 => random.u64(0..3_000),
            _ => random.u64(0..2_000_000) * scale,
        }));
        let now = tollgate_store::Clock::now(&clock);
        // Expired states are dropped here; Redis may still have them.
        model.forget_expired(now);
        let charge = Charge {
            carry_over: how,
            ..common::charge(1, &limit)
        };
        if model.kept.is_none() {
            common::block_on(store.reset(&[charge])).unwrap();
        }
        let numbers = inner(&limit);
        if random.u8(0..12) == 0 {
            let cost = random_cost(&limit, &mut random).min(1 << 40);
            let answer = common::block_on(store.report(&charge, cost)).unwrap();
            let expected = model.report(numbers, how, cost, now);
            assert_eq!(answer, Some(expected), "the level of step {step}");
            if let Some(numbers) = model.numbers() {
                let kept = stored(&mut resp).map(|bytes| decode(&bytes));
                assert_eq!(kept, Some(numbers), "the state after step {step}");
            }
            continue;
        }
        let (expected, answer) = if random.u8(0..10) > 0 || taken.is_empty() {
            let cost = random_cost(&limit, &mut random);
            let answer = common::block_on(store.apply(&[charge], Ask::Exactly(cost))).unwrap();
            if answer.granted > 0 {
                taken.push((cost, now));
            }
            (model.apply(numbers, how, cost, now), answer)
        } else {
            let (cost, at) = taken.swap_remove(random.usize(0..taken.len()));
            let answer = common::block_on(store.refund(&[charge], cost, at)).unwrap();
            (model.refund(numbers, how, cost, at, now), answer)
        };
        assert_eq!(answer.outcomes[0], expected, "the reply of step {step}");
        // An expired state in Redis equals no state.
        if let Some(numbers) = model.numbers() {
            let kept = stored(&mut resp).map(|bytes| decode(&bytes));
            assert_eq!(kept, Some(numbers), "the state after step {step}");
        }
    }
}

/// Defines `inner`, which returns the numbers of a limit of this variant.
macro_rules! inner {
    ($variant:ident, $numbers:ty) => {
        fn inner(limit: &Limit) -> &$numbers {
            match limit {
                Limit::$variant(it) => it,
                other => panic!("{other:?}"),
            }
        }
    };
}

/// Returns the value of the only key.
fn stored(resp: &mut Resp) -> Option<Vec<u8>> {
    let keys = resp.keys();
    assert!(keys.len() <= 1, "{keys:?}");
    keys.first().and_then(|key| resp.get(key))
}

fn random_limit(kind: Kind, random: &mut Rng) -> Limit {
    // With the largest capacity, products need more than 53 bits, so carrying over cannot simply multiply
    // doubles.
    let largest = match kind {
        Kind::FixedWindow | Kind::SlidingLog | Kind::SlidingCounter => MAX_AMOUNT - 12,
        // The rollover adds to the limit, so the limit must be smaller.
        Kind::Quota => MAX_AMOUNT / 4 * 3 - 12,
        _ => 150_000_001,
    };
    let capacity = [0, 1, 3, 7, 10, 10, 25, 999_983, largest][random.usize(0..9)];
    let window = [10, 1_000, 7_001, 1_000_000, 30_000_000][random.usize(0..5)];
    match kind.limit(capacity, Span::from_micros(window)) {
        Limit::Quota(quota) if random.u8(0..8) == 0 => Limit::Quota(quota.closed()),
        limit => limit,
    }
}

/// Returns a small cost, or a part of the capacity.
fn random_cost(limit: &Limit, random: &mut Rng) -> u64 {
    let small = [0, 1, 1, 1, 2, 3, 5, 40][random.usize(0..8)];
    match random.u8(0..3) {
        0 => limit.capacity() / 7 * random.u64(0..8),
        _ => small,
    }
}

/// Reads the little-endian number of `width` bytes at `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut whole = [0; 8];
    whole[..width].copy_from_slice(&bytes[at..at + width]);
    u64::from_le_bytes(whole)
}

/// Reads the number at `at` that is in groups of 7 bits, the lowest first. Returns it and the place after it.
fn groups(bytes: &[u8], mut at: usize) -> (u64, usize) {
    let (mut sum, mut shift) = (0, 0);
    loop {
        sum |= u64::from(bytes[at] % 128) << shift;
        (at, shift) = (at + 1, shift + 7);
        if bytes[at - 1] < 128 {
            return (sum, at);
        }
    }
}

/// Returns how many bytes a number needs.
fn number_width(number: u64) -> usize {
    (1..8).find(|width| number < 1 << (8 * width)).unwrap()
}

mod meter {
    use tollgate_core::leaky_bucket::LeakyBucket;
    use tollgate_core::meter::Meter;

    use super::*;

    fn decode(bytes: &[u8]) -> Numbers {
        assert!(bytes[0] >= 128, "{bytes:?}");
        let fraction = match bytes[0] % 4 {
            0 | 1 => 0,
            _ => number(bytes, 8, 4),
        };
        vec![number(bytes, 1, 7), fraction]
    }

    fn parts(state: &tollgate_core::meter::State) -> Numbers {
        let (full_at, fraction) = state.parts();
        vec![full_at, u64::from(fraction)]
    }

    macro_rules! bucket {
        ($name:ident, $kind:ident, $variant:ident, $numbers:ty) => {
            #[test]
            fn $name() {
                inner!($variant, $numbers);
                same_in_both(Kind::$kind, inner, parts, decode);
            }
        };
    }

    bucket!(token_bucket, TokenBucket, TokenBucket, Meter);
    bucket!(gcra, Gcra, Gcra, Meter);
    bucket!(
        leaky_bucket_that_polices,
        LeakyPolice,
        LeakyBucket,
        LeakyBucket
    );
    bucket!(
        leaky_bucket_that_shapes,
        LeakyShape,
        LeakyBucket,
        LeakyBucket
    );
    bucket!(
        leaky_bucket_that_shapes_in_time,
        LeakyShapeInTime,
        LeakyBucket,
        LeakyBucket
    );
}

/// A fair bucket and its clients are several keys, so only the replies are compared. Each reply shows what the state
/// has: the level of the lane, the share of the client, and when the bucket is full.
#[test]
fn fair_bucket() {
    let redis = Redis::start();
    let clock = ManualClock::at(Time::from_micros(1_700_000_000_000_000));
    let store = common::connect(common::by_clock(common::options(&redis), &clock));
    let mut random = Rng::with_seed(seed(Kind::Fair as u64));
    let fair = |random: &mut Rng| match random_limit(Kind::Fair, random) {
        Limit::Fair(it) => it,
        other => panic!("{other:?}"),
    };
    let (mut numbers, mut how) = (fair(&mut random), CarryOver::Keep);
    let mut model = Model::<Fair> {
        kept: None,
        numbers_of: |_| Numbers::new(),
    };
    let mut taken: Vec<(u64, Time)> = Vec::new();
    for step in 0..2 * common::steps() {
        if random.u8(..) < 5 {
            (numbers, how) = (fair(&mut random), CarryOver::ALL[random.usize(0..3)]);
        }
        clock.advance(Span::from_micros(match random.u8(0..20) {
            0..8 => 0,
            8..14 => random.u64(0..50),
            14..18 => random.u64(0..3_000),
            18 => random.u64(0..2_000_000),
            // New generations begin, and clients are forgotten.
            _ => random.u64(0..70_000_000),
        }));
        if random.u8(0..20) == 0 {
            // The clock goes back, sometimes into an earlier epoch or generation.
            let most = [50, 3_000, 2_000_000, 40_000_000][random.usize(0..4)];
            let earlier = tollgate_store::Clock::now(&clock).as_micros() - random.u64(0..most);
            clock.set(Time::from_micros(earlier));
        }
        let now = tollgate_store::Clock::now(&clock);
        model.forget_expired(now);
        numbers = numbers.for_client(Client {
            id: random.u64(0..6) * 0x0123_4567_89AB_CDEF,
            weight: [1, 1, 2, 5, 1000][random.usize(0..5)],
            lane: random.u8(0..3),
        });
        let limit = Limit::Fair(numbers.clone());
        let charge = Charge {
            carry_over: how,
            on_denied: OnDenied::Note,
            ..common::charge(1, &limit)
        };
        if model.kept.is_none() {
            common::block_on(store.reset(&[charge])).unwrap();
        }
        let cost = random_cost(&limit, &mut random);
        if random.u8(0..12) == 0 {
            let cost = cost.min(1 << 40);
            let answer = common::block_on(store.report(&charge, cost)).unwrap();
            let expected = model.report(&numbers, how, cost, now);
            assert_eq!(
                answer,
                Some(expected),
                "the level of step {step}: {numbers:?}"
            );
            continue;
        }
        let (expected, answer) = if random.u8(0..10) > 0 || taken.is_empty() {
            let answer = common::block_on(store.apply(&[charge], Ask::Exactly(cost))).unwrap();
            if answer.granted > 0 {
                taken.push((cost, now));
            }
            let state = model.state(&numbers, how, now);
            let verdict = numbers.decide(state, cost, now);
            if cost > 0 && !verdict.is_allowed() {
                numbers.note_denied(state, cost, now);
                let verdict = numbers.decide(state, cost, now).after_denial(now);
                (model.outcome(&numbers, verdict.admission, now), answer)
            } else {
                (model.apply(&numbers, how, cost, now), answer)
            }
        } else {
            let (cost, at) = taken.swap_remove(random.usize(0..taken.len()));
            let answer = common::block_on(store.refund(&[charge], cost, at)).unwrap();
            (model.refund(&numbers, how, cost, at, now), answer)
        };
        assert_eq!(
            answer.outcomes[0], expected,
            "the reply of step {step}: {numbers:?}"
        );
    }
}

#[test]
fn fixed_window() {
    inner!(FixedWindow, tollgate_core::fixed_window::FixedWindow);
    let parts = |state: &tollgate_core::fixed_window::State| {
        let (ends_at, used) = state.parts();
        vec![ends_at, used]
    };
    let decode = |bytes: &[u8]| {
        assert!(bytes[0] >= 128, "{bytes:?}");
        let (_, at) = groups(bytes, 1);
        let (window, at) = groups(bytes, at);
        let window = window * 10_u64.pow(u32::from(bytes[0] % 16));
        let width = number_width((1 << 54) / window);
        let end = number(bytes, at, width) * window;
        vec![end, number(bytes, at + width, bytes.len() - at - width)]
    };
    same_in_both(Kind::FixedWindow, inner, parts, decode);
}

#[test]
fn quota() {
    inner!(Quota, tollgate_core::quota::Quota);
    let parts = |state: &tollgate_core::quota::State| {
        let (starts_at, ends_at, used, extra) = state.parts();
        vec![ends_at, used, extra, starts_at]
    };
    let decode = |bytes: &[u8]| [29, 36, 43, 50].map(|at| number(bytes, at, 7)).to_vec();
    same_in_both(Kind::Quota, inner, parts, decode);
}

#[test]
fn two_window() {
    inner!(TwoWindow, tollgate_core::two_window::TwoWindow);
    let parts = |state: &tollgate_core::two_window::State| {
        let (number, current, previous) = state.parts();
        vec![number, current, previous]
    };
    let decode = |bytes: &[u8]| [15, 22, 29].map(|at| number(bytes, at, 7)).to_vec();
    same_in_both(Kind::TwoWindow, inner, parts, decode);
}

#[test]
fn sliding_counter() {
    inner!(
        SlidingCounter,
        tollgate_core::sliding_counter::SlidingCounter
    );
    let parts = |state: &tollgate_core::sliding_counter::State| {
        state
            .counts()
            .flat_map(|(number, count)| [number, count])
            .collect()
    };
    let decode = |bytes: &[u8]| {
        let width = if bytes[0] == b'n' { 4 } else { 7 };
        let (buckets, newest) = (u64::from(bytes[1]), number(bytes, 16, 7));
        let counts = (0..=buckets).map(|i| {
            let at = 23 + width * usize::try_from(i).unwrap();
            [newest - buckets + i, number(bytes, at, width)]
        });
        counts.filter(|[_, count]| *count > 0).flatten().collect()
    };
    same_in_both(Kind::SlidingCounter, inner, parts, decode);
}

#[test]
fn sliding_log() {
    inner!(SlidingLog, tollgate_core::sliding_log::SlidingLog);
    let parts = |state: &tollgate_core::sliding_log::State| {
        state.entries().flat_map(|(at, cost)| [at, cost]).collect()
    };
    let decode = |bytes: &[u8]| {
        let (mut sum, gone, count) = (
            number(bytes, 22, 7),
            number(bytes, 29, 4),
            number(bytes, 33, 4),
        );
        let entries = (gone..count).map(|i| {
            let at = 37 + 14 * usize::try_from(i).unwrap();
            let before = std::mem::replace(&mut sum, number(bytes, at + 7, 7));
            [number(bytes, at, 7), sum - before]
        });
        entries.flatten().collect()
    };
    same_in_both(Kind::SlidingLog, inner, parts, decode);
}

/// A back-off changes only with the charge that it watches. Here it watches a window that denies everything,
/// or one that allows everything.
#[test]
fn backoff() {
    use tollgate_core::backoff::Backoff;
    use tollgate_core::{OnDenied, backoff::Schedule};

    inner!(Backoff, Backoff);
    let redis = Redis::start();
    let clock = ManualClock::at(Time::from_micros(1_700_000_000_000_000));
    let store = common::connect(common::by_clock(common::options(&redis), &clock));
    let mut resp = redis.connect();
    let mut random = Rng::with_seed(seed(7));
    let shut = Kind::FixedWindow.limit(0, Span::HOUR);
    let open = Kind::FixedWindow.limit(1 << 40, Span::HOUR);
    let random_schedule = |random: &mut Rng| {
        let span = |random: &mut Rng| {
            let most = [40, 5_000, 3_000_000, Span::MAX.as_micros()][random.usize(0..4)];
            Span::from_micros(random.u64(1..=most))
        };
        let base = span(random);
        Limit::backoff(Schedule {
            after: [0, 1, 2, 5, u32::MAX][random.usize(0..5)],
            base,
            factor: [1, 2, 3, 7, 100][random.usize(0..5)],
            max: span(random).max(base),
            forget: span(random),
            penalty: [Span::ZERO, span(random)][random.usize(0..2)],
        })
        .unwrap()
    };
    let mut limit = random_schedule(&mut random);
    let mut how = CarryOver::Keep;
    let mut model = Model {
        kept: None,
        numbers_of: |state: &tollgate_core::backoff::State| {
            let (strikes, blocked_until, last_denial) = state.parts();
            vec![strikes.into(), blocked_until, last_denial]
        },
    };
    let decode = |bytes: &[u8]| {
        let parts = [(34, 4), (38, 7), (45, 7)];
        parts.map(|(at, width)| number(bytes, at, width)).to_vec()
    };
    for step in 0..common::steps() {
        if random.u8(..) < 16 {
            limit = random_schedule(&mut random);
            how = CarryOver::ALL[random.usize(0..3)];
        }
        clock.advance(Span::from_micros(match random.u8(0..10) {
            0..4 => 0,
            4..7 => random.u64(0..50),
            7..9 => random.u64(0..3_000),
            _ => random.u64(0..5_000_000),
        }));
        let now = tollgate_store::Clock::now(&clock);
        model.forget_expired(now);
        let denied = random.u8(0..3) > 0;
        let watched = common::charge(2, if denied { &shut } else { &open });
        let watcher = Charge {
            on_denied: OnDenied::Strike(0),
            carry_over: how,
            ..common::charge(1, &limit)
        };
        if model.kept.is_none() {
            common::block_on(store.reset(&[watcher])).unwrap();
        }
        let answer = common::block_on(store.apply(&[watched, watcher], Ask::Exactly(1))).unwrap();
        let numbers = inner(&limit);
        let state = model.state(numbers, how, now);
        let mut verdict = numbers.decide(state, 1, now);
        if denied || !verdict.is_allowed() {
            numbers.overdraw(state, 1, 0, now);
            verdict = numbers.decide(state, 1, now);
        }
        let expected = model.outcome(numbers, verdict.admission, now);
        assert_eq!(answer.outcomes[1], expected, "the reply of step {step}");
        if let Some(numbers) = model.numbers() {
            let keys = resp.keys();
            let key = keys.iter().find(|key| key.ends_with(b":o"));
            let kept = key.and_then(|key| resp.get(key));
            let kept = kept.map(|bytes| decode(&bytes));
            assert_eq!(kept, Some(numbers), "the state after step {step}");
        }
    }
}
