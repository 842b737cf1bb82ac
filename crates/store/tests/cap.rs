//! Checks the bound on keys. Invented subjects fill the store up to the bound, do not reset other subjects,
//! and are forgotten when they expire.
//!
//! # Bytes
//! The tests count the memory of a full store with `max_keys: 1000000`. For each key of the bound, the store
//! takes at most this many bytes:
//!
//! | algorithm | bytes |
//! |---|---|
//! | token bucket, GCRA, leaky bucket | 61 |
//! | fixed window | 70 |
//! | two-window counter | 87 |
//! | sliding counter | 60 |
//! | sliding log | 101 |
//!
//! States of the sliding counter and the sliding log have memory of their own, so fewer of them fit. Tables
//! grow in powers of two, so with other bounds they are more or less full. When keys come and go, a table
//! may double once: it takes at most 128 bytes per key.

mod common;

use std::cell::Cell;

use common::{START, charge, store};
use tollgate_conformance::{Kind, key};
use tollgate_core::{Charge, Limit, OnDenied, Outcome, Rate, Span};
use tollgate_store::{Ask, GRACE, ManualClock, MemoryStore, Usage};

type Store = MemoryStore<ManualClock>;

const MAX_KEYS: u64 = 1_000_000;
const SHARDS: u64 = 64;
/// The number of the first invented subject, far from the numbers of other subjects.
const INVENTED: u64 = 1 << 40;
const CAPACITY: u64 = 10;

fn one_of(store: &Store, charge: Charge<'_>) -> bool {
    store.apply(&[charge], Ask::Exactly(1)).allowed
}

fn left(store: &Store, charge: Charge<'_>) -> u64 {
    store.peek(&[charge], Ask::Exactly(0)).outcomes[0].remaining
}

/// Makes one request for each of `count` invented subjects from number `first` on, and returns how many
/// were admitted.
fn flood(store: &Store, limit: &Limit, first: u64, count: u64) -> u64 {
    let numbers = INVENTED + first..INVENTED + first + count;
    numbers
        .map(|number| u64::from(one_of(store, charge(number, limit))))
        .sum()
}

/// Returns the bytes that are allocated after `run`, and the most that were allocated during `run`.
fn allocated(run: impl FnOnce()) -> (u64, u64) {
    let info = allocation_counter::measure(run);
    (info.bytes_current.unsigned_abs(), info.bytes_max)
}

/// Sends requests of twenty million subjects to a store for a million keys. The store takes at most 64 bytes
/// per key, and never has more keys than the bound. Only subjects with their own state, and the shared
/// states, admit requests.
#[test]
fn twenty_million_invented_subjects_fill_a_million_keys_and_no_more() {
    let limit = Kind::Gcra.limit(CAPACITY, Span::HOUR);
    let usage = Cell::new(Usage::default());
    let kept = Cell::new(None);
    let (bytes, peak) = allocated(|| {
        let store = store(MAX_KEYS);
        let victim = charge(1, &limit);
        assert_eq!(
            store.apply(&[victim], Ask::UpTo(u64::MAX)).granted,
            CAPACITY
        );
        let mut admitted = 0;
        for millions in 0..20 {
            admitted += flood(&store, &limit, millions * 1_000_000, 1_000_000);
            assert!(
                !one_of(&store, victim),
                "forgiven after {millions} millions"
            );
        }
        let now = store.usage();
        // Every subject with its own state was admitted once. The other subjects shared one state per shard.
        let own = now.keys - SHARDS - 1;
        assert_eq!(admitted, own + SHARDS * CAPACITY);
        assert_eq!(now.shared, 20_000_000 - own);
        usage.set(now);
        kept.set(Some(store));
    });
    let usage = usage.get();
    assert!(usage.keys <= MAX_KEYS + SHARDS, "{usage:?}");
    assert!(usage.keys > MAX_KEYS - MAX_KEYS / 100, "{usage:?}");
    assert!(bytes <= 64 * MAX_KEYS, "{bytes} bytes");
    assert!(peak <= 66 * MAX_KEYS, "{peak} bytes at most");
    let difference = usage.bytes.abs_diff(bytes);
    assert!(difference < 1_000, "says {}, has {bytes}", usage.bytes);
    println!("gcra: {usage:?}, allocator: {bytes} now, {peak} at most");
}

/// Checks the size of a store that is full with a million keys of one algorithm.
#[test]
fn every_algorithm_stays_within_its_bytes() {
    // The numbers are bytes per state, and bytes per key of the bound. They differ if a state has heap
    // memory, because it then counts as several keys.
    for (kind, per_state, per_key) in [
        (Kind::FixedWindow, 70, 70),
        (Kind::SlidingLog, 201, 101),
        (Kind::SlidingCounter, 140, 60),
        (Kind::TwoWindow, 87, 87),
        (Kind::TokenBucket, 61, 61),
        (Kind::Gcra, 61, 61),
        (Kind::LeakyPolice, 61, 61),
        (Kind::LeakyShape, 61, 61),
    ] {
        let limit = kind.limit(CAPACITY, Span::HOUR);
        let usage = Cell::new(Usage::default());
        let kept = Cell::new(None);
        let (bytes, peak) = allocated(|| {
            let store = store(MAX_KEYS);
            let mut first = 0;
            while store.usage().shared < 10_000 {
                flood(&store, &limit, first, 20_000);
                first += 20_000;
            }
            usage.set(store.usage());
            kept.set(Some(store));
        });
        let usage = usage.get();
        println!(
            "{kind:?}: {} states, {:.1} bytes each, {:.1} per key of the bound, {:.1} at most",
            usage.keys,
            bytes as f64 / usage.keys as f64,
            bytes as f64 / MAX_KEYS as f64,
            peak as f64 / MAX_KEYS as f64,
        );
        assert!(
            usage.bytes.abs_diff(bytes) < 1_000,
            "{kind:?}: {usage:?}, {bytes}"
        );
        assert!(
            bytes <= per_state * usage.keys,
            "{kind:?}: {bytes} of {usage:?}"
        );
        assert!(
            bytes <= per_key * MAX_KEYS,
            "{kind:?}: {bytes} of {usage:?}"
        );
    }
}

/// Removed keys may leave marks in a table, which can make the table double. It must double at most once. The
/// test uses bounds of several sizes, because tables grow in powers of two.
#[test]
fn keys_that_come_and_go_take_at_most_128_bytes() {
    let limit = Kind::Gcra.limit(CAPACITY, Span::from_secs(100));
    for max_keys in [60_000, 75_000, 90_000, 100_000, 114_000] {
        let store = store(max_keys);
        // A state lasts for eleven rounds, and is forgotten one or two rounds later. So there is always room
        // if each round brings a sixteenth of the bound.
        let newcomers = max_keys / 16;
        for round in 0..300 {
            flood(&store, &limit, round * newcomers, newcomers);
            store.clock().advance(Span::SECOND);
        }
        let usage = store.usage();
        println!(
            "come and go: {usage:?}, {:.1} bytes per key of the bound",
            usage.bytes as f64 / max_keys as f64
        );
        assert_eq!(usage.shared, 0, "there was always room");
        assert!(usage.bytes <= 128 * max_keys, "{max_keys}: {usage:?}");
    }
}

#[test]
fn a_denied_subject_stays_denied_during_and_after_a_flood() {
    for kind in Kind::ALL {
        let store = store(4_096);
        let limit = kind.limit(CAPACITY, Span::HOUR);
        let victims: Vec<_> = (0..100).map(|number| charge(number, &limit)).collect();
        for victim in &victims {
            assert_eq!(
                store.apply(&[*victim], Ask::UpTo(u64::MAX)).granted,
                CAPACITY
            );
        }
        for round in 0..20 {
            flood(&store, &limit, round * 1_000, 1_000);
            store.sweep(10);
            for victim in &victims {
                assert!(!one_of(&store, *victim), "{kind:?}, round {round}");
            }
        }
        assert!(store.usage().keys <= 4_096 + 4, "{kind:?}");
    }
}

/// Returns a store of `keys` states in one shard, full of subjects of `kind` that last an hour.
fn full_of(keys: u64, kind: Kind) -> (Store, Limit) {
    let store = store(keys);
    let limit = kind.limit(CAPACITY, Span::HOUR);
    let mut number = 0;
    while store.usage().shared == 0 {
        // Use the overflow key of another rule, so that the shared state of the tests stays unused.
        let filler = Charge {
            overflow: key(u64::MAX - 1),
            ..charge(INVENTED + number, &limit)
        };
        one_of(&store, filler);
        number += 1;
    }
    (store, limit)
}

#[test]
fn new_subjects_share_one_state_while_the_store_is_full() {
    for kind in Kind::ALL {
        let (store, limit) = full_of(100, kind);
        let keys = store.usage().keys;
        let admitted = (0..50)
            .filter(|n| one_of(&store, charge(*n, &limit)))
            .count();
        assert_eq!(admitted as u64, CAPACITY, "{kind:?}");
        assert_eq!(
            store.usage().keys,
            keys + 1,
            "{kind:?}: one shared state more"
        );
        assert!(!store.peek(&[charge(99, &limit)], Ask::Exactly(1)).allowed);
        // New subjects of another rule share another state.
        let other = Charge {
            overflow: key(u64::MAX - 2),
            ..charge(99, &limit)
        };
        assert_eq!(
            store.apply(&[other], Ask::UpTo(50)).granted,
            CAPACITY,
            "{kind:?}"
        );
    }
}

/// A full store does not count strikes of new subjects, so that no subject is blocked for the denials of
/// others. The watched limit still acts.
#[test]
fn strikes_of_new_subjects_are_not_shared_while_the_store_is_full() {
    let (store, limit) = full_of(100, Kind::Gcra);
    let blocks = Kind::Backoff.limit(0, Span::HOUR);
    let pair = |number| {
        let watching = Charge {
            on_denied: OnDenied::Strike(0),
            ..charge(number, &blocks)
        };
        [charge(number, &limit), watching]
    };
    // This subject has its own state, and most of its allowance left.
    let known = INVENTED;
    assert_eq!(store.apply(&pair(1), Ask::UpTo(50)).granted, CAPACITY);
    let keys = store.usage().keys;
    for number in 1..20 {
        let refused = store.apply(&pair(number), Ask::Exactly(1));
        let told = refused.outcomes.iter().map(Outcome::is_allowed);
        assert_eq!(told.collect::<Vec<_>>(), [false, true]);
    }
    assert_eq!(store.usage().keys, keys);
    assert!(store.apply(&pair(known), Ask::Exactly(1)).allowed);
    // When there is room, strikes are counted.
    for number in 1..9 {
        store.reset(&[charge(INVENTED + number, &limit)]);
    }
    let refused = store.apply(&pair(known), Ask::Exactly(1 << 40));
    assert!(!refused.outcomes[1].is_allowed());
    assert!(!store.apply(&pair(known), Ask::Exactly(1)).allowed);
    assert!(store.usage().keys <= keys);
}

#[test]
fn two_new_subjects_of_one_request_are_decided_together_by_the_shared_state() {
    for kind in Kind::ALL {
        let (store, limit) = full_of(100, kind);
        assert_eq!(
            store.apply(&[charge(1, &limit)], Ask::Exactly(9)).granted,
            9
        );
        let two = [charge(2, &limit), charge(3, &limit)];
        assert!(!store.apply(&two, Ask::Exactly(1)).allowed, "{kind:?}");
        assert!(one_of(&store, charge(4, &limit)), "{kind:?}");
        assert!(!one_of(&store, charge(5, &limit)), "{kind:?}");
    }
}

#[test]
fn a_subject_that_leaves_the_shared_state_gains_nothing() {
    for kind in Kind::ALL {
        let (store, limit) = full_of(100, kind);
        let newcomer = charge(1, &limit);
        assert_eq!(
            store.apply(&[newcomer], Ask::Exactly(7)).granted,
            7,
            "{kind:?}"
        );
        // Remove the states of a hundred other subjects, so that there is room.
        for number in 0..100 {
            store.reset(&[charge(INVENTED + number, &limit)]);
        }
        assert_eq!(left(&store, newcomer), 3, "{kind:?}");
        let keys = store.usage().keys;
        let more = store.apply(&[newcomer], Ask::UpTo(u64::MAX)).granted;
        assert_eq!(store.usage().keys, keys + 1, "{kind:?}: a state of its own");
        assert_eq!(7 + more, CAPACITY, "{kind:?}");
        assert!(!one_of(&store, newcomer), "{kind:?}");
        // Another new subject also starts from the shared state, because it may have used that state.
        assert_eq!(
            store
                .apply(&[charge(2, &limit)], Ask::UpTo(u64::MAX))
                .granted,
            3
        );
    }
}

#[test]
fn new_subjects_get_their_own_states_again_in_time() {
    for kind in Kind::ALL {
        let (store, limit) = full_of(5_000, kind);
        flood(&store, &limit, 1 << 20, 1_000);
        let shared = store.usage().shared;
        store.clock().advance(Span::from_secs(3 * 3600));
        assert_eq!(flood(&store, &limit, 1 << 30, 2_000), 2_000, "{kind:?}");
        assert_eq!(store.usage().shared, shared, "{kind:?}: nobody shares");
    }
}

/// Fills the store with states of each algorithm. New subjects get their own states again when these expire.
#[test]
fn new_subjects_get_their_own_states_again_after_any_algorithm_filled_the_store() {
    for kind in Kind::ALL {
        for newcomer in Kind::ALL {
            let (store, _) = full_of(2_000, kind);
            let shared = store.usage().shared;
            store.clock().advance(Span::from_secs(3 * 3600));
            let limit = newcomer.limit(CAPACITY, Span::HOUR);
            assert_eq!(flood(&store, &limit, 1 << 30, 500), 500);
            let now = store.usage().shared;
            assert_eq!(now, shared, "{newcomer:?} in a store full of {kind:?}");
        }
    }
}

#[test]
fn a_sweep_forgets_expired_states_and_frees_memory() {
    for kind in Kind::ALL {
        let store = store(100_000);
        let limit = kind.limit(CAPACITY, Span::SECOND);
        flood(&store, &limit, 0, 30_000);
        let full = store.usage();
        assert_eq!(full.keys, 30_000, "{kind:?}");
        store.sweep(usize::MAX);
        assert_eq!(store.usage().keys, 30_000, "{kind:?}: all are live");
        store.clock().advance(Span::from_secs(3));
        store.clock().advance(GRACE);
        store.sweep(usize::MAX);
        let empty = store.usage();
        assert_eq!(empty.keys, 0, "{kind:?}");
        assert!(
            empty.bytes < full.bytes / 8,
            "{kind:?}: {empty:?} after {full:?}"
        );
    }
}

/// A sliding log in a full store merges its newest entries instead of growing. Merged entries may count a
/// little too long, but never too short.
#[test]
fn sliding_logs_do_not_grow_in_a_full_store() {
    const LIMIT: u64 = 5_000;
    const SUBJECTS: usize = 20;
    let store = store(1_024);
    let limit = Limit::sliding_log(LIMIT, Span::HOUR).unwrap();
    let mut admitted = [0; SUBJECTS];
    let mut most = 0;
    for _ in 0..LIMIT + 100 {
        for (subject, admitted) in (0..).zip(&mut admitted) {
            *admitted += u64::from(one_of(&store, charge(subject, &limit)));
        }
        store.clock().advance(Span::from_micros(1));
        most = most.max(store.usage().bytes);
    }
    assert_eq!(admitted, [LIMIT; SUBJECTS]);
    // The bound is 64 bytes for each of the 1,024 keys. A log that doubles in the last step may exceed it.
    assert!(most <= 2 * 64 * 1_024, "{most} bytes");
    // Merged entries leave the window together, when the last of them leaves.
    store.clock().set(START + Span::HOUR);
    assert!(left(&store, charge(0, &limit)) <= 1);
}

/// If the numbers of a limit change with every request, the old numbers are forgotten.
#[test]
fn changing_numbers_of_one_key_do_not_pile_up() {
    let store = store(100_000);
    for burst in 1..50_000 {
        let limit = Limit::gcra(Rate::new(1, Span::SECOND).unwrap(), burst).unwrap();
        store.apply(&[charge(1, &limit)], Ask::Exactly(1));
    }
    let usage = store.usage();
    // If the old numbers were not forgotten, the store would have some megabytes.
    assert!(usage.bytes < 128 * 1_024, "{usage:?}");
}
