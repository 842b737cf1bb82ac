//! Checks holds that many threads use at once, and the bounds on holds.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use common::{START, charge, store};
use tollgate_conformance::Kind;
use tollgate_core::{HoldId, Limit, Span, Tag, Token};
use tollgate_store::{
    Clock, Held, HoldState, MemoryStore, NewHold, Purpose, RETAIN, Settle, Settled, StoreError,
    Wait,
};

const TTL: Span = Span::MINUTE;

fn lease(number: u128) -> NewHold<'static> {
    NewHold {
        id: HoldId::new(number, Tag::default()),
        ttl: TTL,
        purpose: Purpose::Lease,
        token: Token::new(number),
        owner: "worker",
        memo: "",
        idempotency_key: None,
        fingerprint: 1,
        wait: None,
        bound: None,
    }
}

fn reservation(number: u128) -> NewHold<'static> {
    NewHold {
        purpose: Purpose::Reservation,
        token: Token::NONE,
        ..lease(number)
    }
}

#[test]
fn sixty_four_threads_hold_at_most_three_slots_and_all_get_one() {
    let store = MemoryStore::new(100_000);
    let limit = Limit::concurrency(3, TTL).unwrap();
    let (inside, most, fences) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for worker in 0..64_u128 {
            let (store, limit, inside, most, fences) = (&store, &limit, &inside, &most, &fences);
            scope.spawn(move || {
                for round in 0..20_u128 {
                    let number = worker * 1000 + round + 1;
                    let new = NewHold {
                        wait: Some(Wait {
                            ticket: number,
                            patience: Span::MINUTE,
                        }),
                        ..lease(number)
                    };
                    let fence = loop {
                        match store.hold(&[charge(1, limit)], 1, &new).unwrap() {
                            Held::Taken { record, .. } => break record.fence,
                            Held::Denied { ahead, .. } => assert!(ahead.is_some()),
                            other => panic!("{other:?}"),
                        }
                        thread::yield_now();
                    };
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    fences.fetch_max(fence, Ordering::SeqCst);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    let token = new.token;
                    let done = store.settle(new.id, Settle::ReleaseLease { token });
                    assert!(matches!(done, Settled::Done(_)), "{done:?}");
                }
            });
        }
    });
    assert_eq!(most.into_inner(), 3);
    assert_eq!(store.holders(&charge(1, &limit), 9), []);
}

#[test]
fn concurrent_duplicates_are_one_hold() {
    let store = store(100_000);
    let limit = Kind::FixedWindow.limit(1_000_000, Span::DAY);
    for number in 1..=200 {
        let (taken, done) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let held = store.hold(&[charge(1, &limit)], 10, &reservation(number));
                    match held.unwrap() {
                        Held::Taken { .. } => _ = taken.fetch_add(1, Ordering::SeqCst),
                        Held::Repeated(_) => {}
                        other => panic!("{other:?}"),
                    }
                    match store.settle(reservation(number).id, Settle::Commit { actual: 4 }) {
                        Settled::Done(_) => _ = done.fetch_add(1, Ordering::SeqCst),
                        Settled::Already(record) => assert_eq!(record.actual, Some(4)),
                        other => panic!("{other:?}"),
                    }
                });
            }
        });
        assert_eq!((taken.into_inner(), done.into_inner()), (1, 1));
    }
    let left = store.peek(&[charge(1, &limit)], tollgate_store::Ask::Exactly(0));
    assert_eq!(left.outcomes[0].remaining, 1_000_000 - 200 * 4);
}

#[test]
fn an_open_hold_is_never_forgotten_to_make_room() {
    let store = store(160);
    let (mut made, mut refused) = (Vec::new(), 0);
    for number in 1..=400 {
        match store.hold(&[], 1, &reservation(number)) {
            Ok(Held::Taken { record, .. }) => made.push(record.id),
            Err(StoreError::TooManyHolds) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((made.len(), refused), (160, 240));
    assert!(made.iter().all(|id| store.find_hold(*id).is_some()));
    for id in &made {
        let done = store.settle(*id, Settle::Release);
        assert!(matches!(done, Settled::Done(_)), "{done:?}");
    }
    // An ended hold makes room for a new hold.
    for number in 1_001..=1_160 {
        let held = store.hold(&[], 1, &reservation(number));
        assert!(matches!(held, Ok(Held::Taken { .. })), "{held:?}");
    }
}

#[test]
fn an_ended_hold_is_kept_for_a_while_and_an_open_one_until_it_ends() {
    let store = store(10_000);
    for number in 1..=20 {
        store.hold(&[], 1, &reservation(number)).unwrap();
    }
    for number in 1..=10 {
        store.settle(reservation(number).id, Settle::Commit { actual: 1 });
    }
    let known = |number| store.find_hold(reservation(number).id);
    store.clock().set(START + TTL + RETAIN);
    store.sweep(0);
    assert!((1..=10).all(|it| known(it).is_none()));
    assert!((11..=20).all(|it| known(it).is_some_and(|it| it.is_open())));
    assert_eq!(store.due_holds(100).len(), 10);
    for id in store.due_holds(100) {
        let Settled::Done(record) = store.settle(id, Settle::Expire) else {
            panic!("{id} is due at {:?}", store.clock().now());
        };
        assert_eq!(record.state, HoldState::Expired);
    }
    assert_eq!(store.due_holds(100), []);
    assert!(store.usage().bytes > 0);
}

#[test]
fn new_subjects_share_slots_while_the_store_is_full() {
    let store = store(16);
    let window = Kind::FixedWindow.limit(1, Span::DAY);
    for number in 100..200 {
        store.apply(&[charge(number, &window)], tollgate_store::Ask::Exactly(1));
    }
    let limit = Limit::concurrency(2, TTL).unwrap();
    let take = |subject, number| {
        store
            .hold(&[charge(subject, &limit)], 1, &lease(number))
            .unwrap()
    };
    assert!(matches!(take(1, 1), Held::Taken { .. }));
    assert!(matches!(take(2, 2), Held::Taken { .. }));
    assert!(matches!(take(3, 3), Held::Denied { .. }));
    let token = Token::new(1);
    store.settle(lease(1).id, Settle::ReleaseLease { token });
    assert!(matches!(take(3, 3), Held::Taken { .. }));
    assert!(matches!(take(1, 4), Held::Denied { .. }));
}
