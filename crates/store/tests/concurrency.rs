//! Runs 64 threads on the same limits. Exactly the limit is admitted, with one rule and with several rules,
//! while the clock stands still and while it moves. Requests in opposite orders never deadlock. If one rule
//! denies a request, no other rule counts it.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use common::{START, charge, store};
use tollgate_conformance::Kind;
use tollgate_core::{Charge, Limit, Span, Time};
use tollgate_store::{Ask, Clock, ManualClock, MemoryStore};

const THREADS: u8 = 64;
const ATTEMPTS: u64 = 10_000;
const LIMIT: u64 = 1_000;

type Store = MemoryStore<ManualClock>;

/// Starts all threads at once. Each thread calls `attempt` many times, with its own number and the number of
/// the attempt. Returns the sum of the granted units.
fn storm(attempt: impl Fn(u64, u64) -> u64 + Sync) -> u64 {
    let (granted, start) = (AtomicU64::new(0), Barrier::new(usize::from(THREADS)));
    thread::scope(|scope| {
        for number in 0..u64::from(THREADS) {
            let (attempt, granted, start) = (&attempt, &granted, &start);
            scope.spawn(move || {
                start.wait();
                let sum = (0..ATTEMPTS).map(|i| attempt(number, i)).sum();
                granted.fetch_add(sum, Ordering::SeqCst);
            });
        }
    });
    granted.into_inner()
}

/// Moves the clock on by `step` at every sixteenth attempt. The clock always stays before `end`.
fn move_on(store: &Store, i: u64, step: Span, end: Time) {
    let clock = store.clock();
    // All threads may read the same instant, and then each of them moves the clock.
    let margin = Span::from_micros(u64::from(THREADS) * step.as_micros());
    if i.is_multiple_of(16) && clock.now() + margin < end {
        clock.advance(step);
    }
}

fn one_of(store: &Store, charges: &[Charge<'_>]) -> u64 {
    store.apply(charges, Ask::Exactly(1)).granted
}

fn left(store: &Store, charge: Charge<'_>) -> u64 {
    store.peek(&[charge], Ask::Exactly(0)).outcomes[0].remaining
}

/// Returns the charges in an order that depends on `turn`.
fn turned<const N: usize>(mut charges: [Charge<'_>; N], turn: u64) -> [Charge<'_>; N] {
    charges.rotate_left(usize::try_from(turn).map_or(0, |turn| turn % N));
    if turn.is_multiple_of(2) {
        charges.reverse();
    }
    charges
}

#[test]
fn one_rule_admits_exactly_its_limit_while_time_stands_still() {
    for kind in Kind::ALL {
        let (store, limit) = (store(1_000_000), kind.limit(LIMIT, Span::HOUR));
        let one = charge(1, &limit);
        let admitted = storm(|_, _| one_of(&store, &[one]));
        assert_eq!(admitted, LIMIT, "{kind:?}");
        assert_eq!(left(&store, one), 0, "{kind:?}");
    }
}

#[test]
fn one_rule_admits_exactly_its_limit_while_time_moves_by_less_than_refills() {
    for kind in Kind::ALL {
        // A token refills in 3.6 s, and no window ends before `end`. So nothing comes back before `end`.
        let (store, limit) = (store(1_000_000), kind.limit(LIMIT, Span::HOUR));
        let (one, end) = (charge(1, &limit), START + Span::from_micros(3_599_999));
        let admitted = storm(|_, i| {
            move_on(&store, i, Span::from_micros(79), end);
            one_of(&store, &[one])
        });
        store.clock().set(end);
        assert_eq!(admitted + one_of(&store, &[one]), LIMIT, "{kind:?}");
    }
}

#[test]
fn the_tightest_of_several_rules_is_admitted_and_all_count_the_same() {
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        let store = store(1_000_000);
        let other = Kind::ALL[(i + 3) % Kind::ALL.len()];
        let tight = kind.limit(LIMIT, Span::HOUR);
        let loose = other.limit(100 * LIMIT, Span::HOUR);
        let looser = kind.limit(200 * LIMIT, Span::HOUR);
        // The keys are in different shards, and requests name them in every order.
        let charges = [charge(1, &tight), charge(2, &loose), charge(3, &looser)];
        let admitted = storm(|turn, i| one_of(&store, &turned(charges, turn + i)));
        assert_eq!(admitted, LIMIT, "{kind:?} with {other:?}");
        assert_eq!(left(&store, charges[0]), 0, "{kind:?}");
        assert_eq!(
            100 * LIMIT - left(&store, charges[1]),
            admitted,
            "{other:?}"
        );
        assert_eq!(200 * LIMIT - left(&store, charges[2]), admitted, "{kind:?}");
    }
}

#[test]
fn several_rules_count_the_same_while_time_moves() {
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        let store = store(1_000_000);
        let other = Kind::ALL[(i + 5) % Kind::ALL.len()];
        let tight = kind.limit(LIMIT, Span::HOUR);
        // Nothing comes back to this limit while the clock moves.
        let loose = other.limit(2 * LIMIT, Span::from_secs(7200));
        let charges = [charge(1, &tight), charge(2, &loose)];
        let end = START + Span::from_micros(3_599_999);
        let admitted = storm(|turn, i| {
            move_on(&store, i, Span::from_micros(79), end);
            one_of(&store, &turned(charges, turn))
        });
        store.clock().set(end);
        let admitted = admitted + one_of(&store, &charges);
        assert_eq!(admitted, LIMIT, "{kind:?} with {other:?}");
        assert_eq!(2 * LIMIT - left(&store, charges[1]), admitted, "{other:?}");
    }
}

/// Checks algorithms that refill steadily. If the allowance starts empty and never gets full, nothing is
/// lost: exactly the refilled amount is admitted.
#[test]
fn meters_admit_exactly_what_the_time_refills() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_meter()) {
        let (store, limit) = (store(1_000_000), kind.limit(LIMIT, Span::SECOND));
        let (one, end) = (charge(1, &limit), START + Span::from_micros(900_000));
        let drained = store.apply(&[one], Ask::UpTo(u64::MAX)).granted;
        assert_eq!(drained, LIMIT, "{kind:?}");
        let admitted = storm(|_, i| {
            move_on(&store, i, Span::from_micros(37), end);
            one_of(&store, &[one])
        });
        let rest = store.apply(&[one], Ask::UpTo(u64::MAX)).granted;
        let elapsed = store.clock().now().since(START).as_micros();
        assert!(admitted > 0, "{kind:?} in {elapsed}");
        assert_eq!(admitted + rest, elapsed * LIMIT / 1_000_000, "{kind:?}");
    }
}

/// The clock moves to the next window only when the current window is spent. So each window must admit
/// exactly its limit.
#[test]
fn every_fixed_window_admits_exactly_its_limit() {
    let (store, limit) = (
        store(1_000_000),
        Kind::FixedWindow.limit(LIMIT, Span::SECOND),
    );
    let (one, opened) = (charge(1, &limit), Mutex::new(1));
    let admitted = storm(|_, _| {
        let applied = store.apply(&[one], Ask::Exactly(1));
        if !applied.allowed {
            // A denied thread waits here until another thread has opened the next window, or opens it itself.
            // So a window costs each thread at most one denied attempt.
            let mut opened = opened.lock().unwrap();
            if left(&store, one) == 0 {
                store.clock().advance(Span::SECOND);
                *opened += 1;
            }
        }
        applied.granted
    });
    let rest = store.apply(&[one], Ask::UpTo(u64::MAX)).granted;
    let opened = opened.into_inner().unwrap();
    let attempts = u64::from(THREADS) * ATTEMPTS;
    let fewest = attempts / (LIMIT + u64::from(THREADS));
    assert!(opened >= fewest, "{opened} of {fewest} windows");
    assert_eq!(admitted + rest, LIMIT * opened);
}

/// Over a span of several windows, no algorithm admits more than it promises for that span.
#[test]
fn no_algorithm_exceeds_its_bound_while_windows_pass() {
    for kind in Kind::ALL {
        let (store, window) = (store(1_000_000), Span::from_millis(10));
        let limit = kind.limit(LIMIT, window);
        let (one, end) = (charge(1, &limit), START + Span::from_millis(50));
        let admitted = storm(|_, i| {
            move_on(&store, i, Span::from_micros(7), end);
            one_of(&store, &[one])
        });
        let elapsed = store.clock().now().since(START).as_micros();
        let windows = elapsed / window.as_micros() + 1;
        let bound = match kind {
            Kind::TwoWindow => 2 * LIMIT * windows,
            Kind::FixedWindow | Kind::SlidingLog | Kind::SlidingCounter => LIMIT * windows,
            _ => LIMIT + elapsed * LIMIT / window.as_micros(),
        };
        assert!(admitted > LIMIT, "{kind:?}: {admitted} in {elapsed}");
        assert!(admitted <= bound, "{kind:?}: {admitted} above {bound}");
    }
}

/// Requests name the same keys in opposite orders, mixed with sweeps and dumps. The test passes if it
/// ends.
#[test]
fn opposite_orders_never_deadlock() {
    let store = store(1_000_000);
    let kinds = Kind::ALL.into_iter().take(6);
    let limits: Vec<Limit> = kinds.map(|it| it.limit(1 << 20, Span::HOUR)).collect();
    let charges: [Charge<'_>; 6] = std::array::from_fn(|i| charge(i as u64, &limits[i]));
    let admitted = storm(|turn, i| {
        let order = turned(charges, turn + i);
        match i % 16 {
            0 => {
                store.peek(&order, Ask::Exactly(1));
                0
            }
            1 => {
                store.refund(&order, 0, START);
                0
            }
            2 => {
                store.sweep(1);
                store.usage();
                0
            }
            _ => one_of(&store, &order),
        }
    });
    assert_eq!(admitted, u64::from(THREADS) * ATTEMPTS / 16 * 13);
    for charge in charges {
        let used = (1 << 20) - left(&store, charge);
        assert_eq!(used, admitted, "{:?}", charge.limit);
    }
}

/// Tight rules deny most requests. A rule that all requests share counts only the requests that passed.
#[test]
fn a_request_that_one_rule_denies_is_counted_by_no_other() {
    for kind in Kind::ALL {
        let store = store(1_000_000);
        let tight = kind.limit(100, Span::HOUR);
        let loose = kind.limit(10 * LIMIT, Span::HOUR);
        let shared = charge(0, &loose);
        let admitted = storm(|turn, i| {
            let own = charge(1 + turn % 8, &tight);
            one_of(&store, &turned([shared, own], i))
        });
        assert_eq!(admitted, 8 * 100, "{kind:?}");
        assert_eq!(10 * LIMIT - left(&store, shared), admitted, "{kind:?}");
    }
}
