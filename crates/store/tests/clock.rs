//! Clocks that are wrong by decades.

use tollgate_conformance::{Kind, key};
use tollgate_core::{Charge, HoldId, Span, Tag, Time, Token};
use tollgate_store::{
    Answer, Ask, ManualClock, MemoryStore, NewHold, Purpose, Settle, Store, StoreError,
};

const KINDS: [Kind; 11] = [
    Kind::FixedWindow,
    Kind::SlidingLog,
    Kind::SlidingCounter,
    Kind::TwoWindow,
    Kind::TokenBucket,
    Kind::Gcra,
    Kind::LeakyPolice,
    Kind::LeakyShape,
    Kind::LeakyShapeInTime,
    Kind::Backoff,
    Kind::Quota,
];

fn is_error<T>(answer: Answer<'_, Result<T, StoreError>>) -> bool {
    matches!(answer, Answer::Now(Err(StoreError::Unavailable(why))) if why.contains("2112"))
}

/// From the year 2112 on, times are not exact, and the clock of the store stands still. Then a window would
/// never end, or end with every request.
#[test]
fn a_clock_beyond_2112_is_an_error_and_never_admits() {
    for kind in KINDS {
        let clock = ManualClock::at(Time::MAX);
        let store = MemoryStore::with_clock(1000, clock.clone());
        let limit = kind.limit(3, Span::SECOND);
        let charge = Charge::new(key(1), &limit);
        let both = [charge, Charge::new(key(2), &limit)];
        for charges in [&[charge][..], &both] {
            for _ in 0..10 {
                assert!(!store.apply(charges, Ask::Exactly(1)).allowed, "{kind:?}");
                assert!(!store.apply(charges, Ask::UpTo(9)).allowed, "{kind:?}");
                assert!(is_error(Store::apply(&store, charges, Ask::Exactly(1))));
                assert!(is_error(Store::peek(&store, charges, Ask::Exactly(1))));
            }
            assert!(is_error(Store::refund(&store, charges, 1, Time::MAX)));
        }
        assert!(is_error(Store::adjust(&store, &charge, 1, 0)));
        assert!(is_error(Store::balance(&store, &charge)));
        let hold = NewHold {
            id: HoldId::new(7, Tag::default()),
            ttl: Span::MINUTE,
            purpose: Purpose::Reservation,
            token: Token::NONE,
            owner: "",
            memo: "",
            idempotency_key: None,
            fingerprint: 0,
            wait: None,
            bound: None,
        };
        assert!(is_error(Store::hold(&store, &both, 1, &hold)));
        assert!(is_error(Store::settle(&store, hold.id, Settle::Release)));
        assert!(is_error(Store::extend(&store, hold.id, Span::MINUTE, None)));
        // When the clock is right again, requests are decided. Nothing was taken before.
        clock.set(Time::from_micros(1_000_000_000_000_000));
        let applied = store.apply(&[charge], Ask::Exactly(1));
        assert!(applied.allowed, "{kind:?}: {applied:?}");
        assert_eq!(
            store.usage().keys,
            u64::from(kind != Kind::Backoff),
            "{kind:?}"
        );
    }
}

/// In the last second before the end of time, limits still hold.
#[test]
fn limits_hold_until_the_end_of_time() {
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::Backoff) {
        let clock = ManualClock::at(Time::MAX - Span::SECOND);
        let store = MemoryStore::with_clock(1000, clock.clone());
        let limit = kind.limit(3, Span::from_secs(30));
        let charge = Charge::new(key(1), &limit);
        let mut admitted = 0;
        for step in 0..1000 {
            clock.set(Time::MAX - Span::from_micros(1000 - step));
            admitted += store.apply(&[charge], Ask::Exactly(1)).granted;
        }
        let most = match kind {
            // The capacity of a quota includes its grace.
            Kind::Quota => limit.capacity(),
            _ => 3,
        };
        assert!(admitted <= most, "{kind:?}: {admitted} of {most}");
    }
}

/// A request converts a state to new numbers, under which the state is empty, and also has a new key in the
/// same shard. The search for expired states must not drop the converted state before it is written. That
/// state has seen a later instant: after a step back of the clock, charges count at that instant.
#[test]
fn a_new_key_does_not_drop_another_state_of_its_request() {
    for kind in [
        Kind::SlidingCounter,
        Kind::SlidingLog,
        Kind::TwoWindow,
        Kind::FixedWindow,
    ] {
        let long = kind.limit(25, Span::from_secs(30));
        let short = kind.limit(3, Span::from_micros(7010));
        let reset_at = |with_new_key: bool| {
            let start = Time::from_micros(1_700_000_000_000_000);
            let clock = ManualClock::at(start);
            // A store of this size has one shard.
            let store = MemoryStore::with_clock(1000, clock.clone());
            let before = Charge::new(key(1), &long);
            store.apply(&[before], Ask::Exactly(1));
            let latest = start + Span::from_secs(25);
            clock.set(latest);
            store.apply(&[before], Ask::Exactly(1));
            store.refund(&[before], 1, latest);
            clock.set(start + Span::from_secs(5));
            let charges = [Charge::new(key(1), &short), Charge::new(key(2), &short)];
            let charges = if with_new_key {
                &charges[..]
            } else {
                &charges[..1]
            };
            store.apply(charges, Ask::Exactly(1)).outcomes[0].reset_at
        };
        assert_eq!(reset_at(true), reset_at(false), "{kind:?}");
    }
}
