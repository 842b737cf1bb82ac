//! Random requests to three instances with slices, or with an allowance that is split over several keys.
//!
//! What the instances admit together, an exact store with one key and the numbers of the rule admits too.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Arc;

use common::{Flaky, START};
use tollgate::{
    Ask, Charge, Key, Leaky, Limit, ManualClock, MemoryStore, Mode, Prepaid, Rate, Sharded, Span,
    Store,
};
use tollgate_conformance::{block_on, seed};

const STEPS: u64 = 5_000;
const SLICE: Span = Span::from_millis(100);

/// A generator of numbers (xorshift), whose seed a failure shows.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn limits() -> [Limit; 7] {
    let rate = Rate::new(500, Span::SECOND).unwrap();
    [
        Limit::gcra(rate, 300).unwrap(),
        Limit::token_bucket(333, rate).unwrap(),
        Limit::leaky_bucket(rate, 200, Leaky::Police).unwrap(),
        Limit::fixed_window(400, Span::SECOND).unwrap(),
        Limit::sliding_log(400, Span::from_secs(10)).unwrap(),
        Limit::sliding_counter(400, Span::from_secs(10), 10).unwrap(),
        Limit::sliding_counter(77, Span::MINUTE, 6).unwrap(),
    ]
}

/// Returns the limit that counts exactly what `limit` promises: a sliding counter promises what a log does.
fn promised(limit: &Limit) -> Limit {
    match limit {
        Limit::SlidingCounter(_) => Limit::sliding_log(limit.capacity(), limit.window()).unwrap(),
        _ => limit.clone(),
    }
}

/// Sends random requests to the instances. An exact store has to admit all that they admit. Returns how many units
/// they and an exact store admit.
fn admitted<S: Store>(
    limit: &Limit,
    charge: Charge<'_>,
    open: impl Fn(Flaky, ManualClock) -> S,
    random: &mut Random,
) -> (u64, u64) {
    let clock = ManualClock::at(START);
    let memory = || MemoryStore::with_clock(10_000, clock.clone());
    let store = Flaky {
        store: Arc::new(memory()),
        down: Arc::default(),
        asked: Arc::default(),
    };
    let instances = [0; 3].map(|_| open(store.clone(), clock.clone()));
    let promised = promised(limit);
    let key = Key::from_bits(7);
    let (judge, alone) = (memory(), memory());
    let (mut units, mut units_alone) = (0, 0);
    for step in 0..STEPS {
        // Busy for a while, then idle for a while.
        let most = if step / 500 % 2 == 0 { 2_000 } else { 50_000 };
        clock.advance(Span::from_micros(random.below(most)));
        // The first instance has most of the requests.
        let instance = &instances[usize::try_from(random.below(6).saturating_sub(3)).unwrap()];
        let ask = Ask::Exactly(1 + random.below(3));
        let charges = [charge];
        let answer = instance.apply(&charges, ask).into_future();
        if block_on(answer).unwrap().allowed {
            let judged = judge.apply(&[Charge::new(key, &promised)], ask);
            assert!(
                judged.allowed,
                "step {step}: {ask:?} is too much for {limit:?}"
            );
            units += ask.units();
        }
        if alone.apply(&[Charge::new(key, limit)], ask).allowed {
            units_alone += ask.units();
        }
        if step % 100 == 0 {
            instance.sweep();
        }
    }
    (units, units_alone)
}

#[test]
fn instances_with_slices_admit_what_an_exact_store_admits() {
    let mut random = Random(seed(11));
    for limit in &limits() {
        let Some((prepaid, slice)) = limit.prepaid(SLICE) else {
            panic!("{limit:?} has room for slices");
        };
        let charge = Charge {
            mode: Mode::Leased { slice },
            ..Charge::new(Key::from_bits(7), &prepaid)
        };
        let open = |store, clock| Prepaid::new(store, Arc::new(clock), 3);
        let (units, alone) = admitted(limit, charge, open, &mut random);
        assert!(units * 100 >= alone * 80, "{units} of {alone}: {limit:?}");
    }
}

#[test]
fn split_allowances_admit_what_one_key_admits() {
    let mut random = Random(seed(12));
    for limit in &limits() {
        let charge = Charge {
            shards: 4,
            ..Charge::new(Key::from_bits(7), limit)
        };
        let open = |store, _| Sharded::new(store);
        let (units, alone) = admitted(limit, charge, open, &mut random);
        assert!(units * 100 >= alone * 80, "{units} of {alone}: {limit:?}");
    }
}
