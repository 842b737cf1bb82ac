//! Checks that a decision on known keys does not allocate memory. The tests try every algorithm, one to six
//! charges, allowed and denied requests, shadows, and `Ask::UpTo`. They count the allocations of this thread
//! only.

mod common;

use common::{START, charge, store};
use tollgate_conformance::Kind;
use tollgate_core::{Charge, Enforcement, OnDenied, Span};
use tollgate_store::{Ask, ManualClock, MemoryStore};

/// The time between requests. Every second has the same number of requests.
const PACE: Span = Span::from_millis(5);

fn allocations(run: impl FnOnce()) -> u64 {
    allocation_counter::measure(run).count_total
}

/// Makes requests during two windows. Some are allowed, and some are denied.
fn two_windows(store: &MemoryStore<ManualClock>, charges: &[Charge<'_>], ask: Ask) {
    let (mut allowed, mut refused) = (0, 0);
    for _ in 0..400 {
        match store.apply(charges, ask).allowed {
            true => allowed += 1,
            false => refused += 1,
        }
        store.clock().advance(PACE);
    }
    assert!(allowed > 0 && refused > 0, "{allowed} and {refused}");
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn one_charge_of_any_algorithm_allocates_nothing() {
    for kind in Kind::ALL.into_iter().chain([Kind::LeakyShapeInTime]) {
        let store = store(100_000);
        let limit = kind.limit(50, Span::SECOND);
        for ask in [Ask::Exactly(1), Ask::UpTo(3)] {
            let charges = [charge(1, &limit)];
            two_windows(&store, &charges, ask);
            let count = allocations(|| two_windows(&store, &charges, ask));
            assert_eq!(count, 0, "{kind:?}, {ask:?}");
        }
    }
}

#[test]
fn up_to_six_charges_of_mixed_algorithms_allocate_nothing() {
    let limits = Kind::ALL.map(|kind| kind.limit(50, Span::SECOND));
    for count in 2..=6 {
        for first in 0..limits.len() {
            let store = store(100_000);
            let mut charges: Vec<_> = (0..count)
                .map(|i| charge(1 + i as u64, &limits[(first + i) % limits.len()]))
                .collect();
            charges[count - 1].enforcement = Enforcement::Shadow;
            two_windows(&store, &charges, Ask::Exactly(1));
            let allocated = allocations(|| two_windows(&store, &charges, Ask::Exactly(1)));
            assert_eq!(allocated, 0, "{count} charges from number {first}");
        }
    }
}

#[test]
fn counting_denied_requests_allocates_nothing() {
    for kind in Kind::ALL {
        let store = store(100_000);
        let limit = kind.limit(50, Span::SECOND);
        let mut counting = charge(1, &limit);
        counting.on_denied = OnDenied::Charge;
        let refuse = || {
            let mut refused = 0;
            for _ in 0..400 {
                refused += u64::from(!store.apply(&[counting], Ask::Exactly(1)).allowed);
                store.clock().advance(PACE);
            }
            assert!(refused > 200, "{refused}");
        };
        refuse();
        assert_eq!(allocations(refuse), 0, "{kind:?}");
    }
}

#[test]
fn a_hundred_thousand_warm_keys_allocate_nothing() {
    let store = store(1_000_000);
    for kind in Kind::ALL {
        let limit = kind.limit(5, Span::HOUR);
        let all = || {
            for number in 0..100_000 {
                store.apply(&[charge(number, &limit)], Ask::Exactly(1));
            }
        };
        all();
        assert_eq!(allocations(all), 0, "{kind:?}");
        store.clock().set(START);
    }
}
