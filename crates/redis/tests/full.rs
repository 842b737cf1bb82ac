//! A server without room for new subjects: out of memory, or at the bound on keys. Subjects that have a state are
//! decided as before, and new subjects of a rule share a state.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, block_on, charge, connect, errors, left, options, take};
use futures_util::future::join_all;
use tollgate_conformance::{Kind, TTL, hold_id, reservation};
use tollgate_core::fair::{Client, Lane};
use tollgate_core::{Algorithm, Balance, Charge, Limit, OnDenied, Outcome, Rate, Recorded, Span};
use tollgate_redis::{BreakerState, RedisStore};
use tollgate_rig::versions::{Version, fetch};
use tollgate_rig::{Redis, Reply, wait};
use tollgate_store::{Ask, Held, NewHold, OpenBound, Settle, Settled, Store, StoreError, Wait};

const CAPACITY: u64 = 10;
/// The number of the first invented subject.
const INVENTED: u64 = 1 << 40;

fn start(version: Version) -> Redis {
    Redis::with().binary(fetch(version)).start()
}

/// Lets the server run out of memory. It evicts nothing, and rejects commands that may need memory.
fn fill(redis: &Redis) {
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let reply = redis.connect().command(&["SET", "key", "value"]);
    assert!(matches!(reply, Reply::Error(error) if error.starts_with("OOM")));
}

/// Gives the server enough memory, and waits until the store knows.
fn empty(redis: &Redis, store: &RedisStore) {
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    wait::until("a count of the memory", common::LIMIT, || {
        store.census().servers[0].max_memory == 0
    });
}

fn count_keys(redis: &Redis) -> u64 {
    let keys = redis.connect().command(&["DBSIZE"]).int();
    u64::try_from(keys).unwrap()
}

fn is_calm(store: &RedisStore) -> bool {
    let breakers = store.breakers();
    breakers
        .iter()
        .all(|(_, state)| *state == BreakerState::Closed)
}

/// Takes `most` units one by one; returns how many were admitted.
async fn drain(store: &RedisStore, subject: u64, limit: &Limit, most: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..most {
        admitted += u64::from(take(store, subject, limit).await.unwrap().allowed);
    }
    admitted
}

#[test]
fn subjects_with_a_state_are_decided_exactly_while_the_server_is_out_of_memory() {
    for version in Version::ALL {
        for kind in Kind::ALL {
            let redis = start(version);
            let store = connect(options(&redis));
            let limit = kind.limit(CAPACITY, LONG);
            block_on(async {
                let (denied, known) = (1, 2);
                assert_eq!(drain(&store, denied, &limit, CAPACITY).await, CAPACITY);
                assert_eq!(drain(&store, known, &limit, 3).await, 3);
                fill(&redis);
                let state = |what: &str| format!("{version}, {kind:?}: {what}");
                for round in 0..5 {
                    let again = take(&store, denied, &limit).await.unwrap();
                    assert!(!again.allowed, "{}", state("forgiven"));
                    // New subjects share one state.
                    let invented = INVENTED + 100 * round..INVENTED + 100 * round + 20;
                    let asked = invented.map(|subject| take(&store, subject, &limit));
                    let asked = join_all(asked).await.into_iter();
                    let admitted = asked.filter(|it| it.as_ref().unwrap().allowed).count();
                    let fresh = if round == 0 { CAPACITY } else { 0 };
                    assert_eq!(admitted as u64, fresh, "{}", state("shared"));
                }
                assert_eq!(
                    drain(&store, known, &limit, 9).await,
                    7,
                    "{}",
                    state("known")
                );
                assert_eq!(left(&store, known, &limit).await, 0);
                assert!(is_calm(&store), "{}", state("breaker"));
                assert_eq!(errors(&store, "unavailable") + errors(&store, "full"), 0);
                assert_eq!(store.shared_decisions(), 100);
                // When there is room again, a subject that shared a state gains nothing by getting its own.
                empty(&redis, &store);
                assert_eq!(
                    drain(&store, INVENTED, &limit, 2).await,
                    0,
                    "{}",
                    state("own")
                );
                assert_eq!(drain(&store, denied, &limit, 1).await, 0);
            });
        }
    }
}

/// Once there is room again, a new subject starts with a copy of the shared state, and its charge is written.
#[test]
fn a_copy_of_a_shared_state_is_a_state_of_its_own() {
    for kind in Kind::ALL {
        let redis = Redis::start();
        let store = connect(options(&redis));
        let limit = kind.limit(CAPACITY, LONG);
        block_on(async {
            take(&store, 1, &limit).await.unwrap();
            fill(&redis);
            assert_eq!(drain(&store, INVENTED, &limit, 3).await, 3, "{kind:?}");
            empty(&redis, &store);
            for left_after in [6, 5] {
                let applied = take(&store, INVENTED, &limit).await.unwrap();
                assert!(applied.allowed, "{kind:?}");
                assert_eq!(applied.outcomes[0].remaining, left_after, "{kind:?}");
                assert_eq!(left(&store, INVENTED, &limit).await, left_after, "{kind:?}");
            }
        });
        common::every_key_expires(&redis);
    }
}

/// A request is all or nothing, even if one of its subjects is new and shares a state.
#[test]
fn requests_stay_all_or_nothing_while_the_server_is_out_of_memory() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let (wide, narrow) = (
        Limit::fixed_window(100, LONG).unwrap(),
        Limit::sliding_log(2, LONG).unwrap(),
    );
    let other = |number, limit| Charge {
        rule: "other",
        ..charge(number, limit)
    };
    block_on(async {
        take(&store, 1, &wide).await.unwrap();
        fill(&redis);
        for (number, allowed) in [
            (INVENTED, true),
            (INVENTED + 1, true),
            (INVENTED + 2, false),
        ] {
            let both = [charge(1, &wide), other(number, &narrow)];
            let applied = store.apply(&both, Ask::Exactly(1)).await.unwrap();
            assert_eq!(applied.allowed, allowed, "{number}");
        }
        assert_eq!(left(&store, 1, &wide).await, 97);
        // Two new subjects of one request draw on the same shared state.
        let two = [charge(INVENTED, &wide), charge(INVENTED + 1, &wide)];
        let applied = store.apply(&two, Ask::Exactly(51)).await.unwrap();
        assert!(!applied.allowed);
        let applied = store.apply(&two, Ask::Exactly(50)).await.unwrap();
        assert!(applied.allowed);
        assert_eq!(applied.outcomes[1].remaining, 0);
        // A refund of a subject with a state.
        let refunded = store
            .refund(&[charge(1, &wide)], 3, applied.now)
            .await
            .unwrap();
        assert_eq!(refunded.outcomes[0].remaining, 100);
        assert!(is_calm(&store));
    });
}

/// If there is no room, strikes of a new subject are not counted. A back-off is never shared.
#[test]
fn strikes_of_new_subjects_are_not_counted_while_the_server_is_out_of_memory() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let limit = Limit::fixed_window(1, LONG).unwrap();
    let blocks = Kind::Backoff.limit(0, Span::HOUR);
    let watched = |number| {
        let watching = Charge {
            rule: "blocks",
            on_denied: OnDenied::Strike(0),
            ..charge(number, &blocks)
        };
        [charge(number, &limit), watching]
    };
    block_on(async {
        assert!(take(&store, 1, &limit).await.unwrap().allowed);
        fill(&redis);
        let applied = store.apply(&watched(1), Ask::Exactly(1)).await.unwrap();
        let verdicts: Vec<_> = applied.outcomes.iter().map(Outcome::is_allowed).collect();
        assert_eq!(verdicts, [false, true]);
        empty(&redis, &store);
        let applied = store.apply(&watched(1), Ask::Exactly(1)).await.unwrap();
        let verdicts: Vec<_> = applied.outcomes.iter().map(Outcome::is_allowed).collect();
        assert_eq!(verdicts, [false, false]);
    });
}

/// A flood of subjects makes no more keys than `max_keys`, and the known subjects keep their states.
#[test]
fn a_flood_of_subjects_stays_within_max_keys() {
    for kind in [
        Kind::FixedWindow,
        Kind::Gcra,
        Kind::SlidingLog,
        Kind::TwoWindow,
    ] {
        let redis = Redis::start();
        redis.cli(&["SET", "of-another-program", "1"]);
        let mut options = options(&redis);
        options.max_keys = 1000;
        let store = connect(options);
        let limit = kind.limit(CAPACITY, LONG);
        block_on(async {
            assert_eq!(drain(&store, 1, &limit, CAPACITY).await, CAPACITY);
            let mut admitted = 0;
            for round in 0..40 {
                let asked = (0..100).map(|it| take(&store, INVENTED + 100 * round + it, &limit));
                let asked = join_all(asked).await.into_iter();
                admitted += asked.filter(|it| it.as_ref().unwrap().allowed).count() as u64;
                assert!(!take(&store, 1, &limit).await.unwrap().allowed, "{kind:?}");
            }
            let keys = u64::try_from(redis.connect().keys().len()).unwrap();
            // The bound is approximate, because the keys are counted in the background.
            assert!((1000..=1100).contains(&keys), "{kind:?}: {keys} keys");
            // Each subject with its own state gets one unit. All others share the capacity of the shared
            // state.
            assert!(admitted <= keys + CAPACITY, "{kind:?}: {admitted}");
            assert_eq!(
                store.usage().await.unwrap().shared,
                store.shared_decisions()
            );
            assert!(store.shared_decisions() >= 2900, "{kind:?}");
            wait::until("a count of the keys", common::LIMIT, || {
                let census = store.census();
                census
                    .rules
                    .get("rule")
                    .is_some_and(|rule| rule.keys >= 900 && rule.bytes > 50_000)
            });
        });
    }
}

fn fair(client: u64, capacity: u64) -> Limit {
    let rate = Rate::new(capacity, LONG).unwrap();
    match Limit::fair(capacity, rate, &[Lane::ONLY]).unwrap() {
        Limit::Fair(bucket) => Limit::Fair(bucket.for_client(Client {
            id: client,
            weight: 1,
            lane: 0,
        })),
        other => other,
    }
}

/// A flood of clients of one fair bucket makes no more keys than `max_keys`. Further clients share a mark, and the total
/// stays exact.
#[test]
fn a_flood_of_clients_of_a_fair_bucket_stays_within_max_keys() {
    const LARGE: u64 = 100_000;
    let redis = Redis::start();
    let mut options = options(&redis);
    options.max_keys = 1000;
    let store = connect(options);
    block_on(async {
        let mut admitted = 0;
        for round in 0..40 {
            let limits: Vec<Limit> = (0..100).map(|it| fair(100 * round + it, LARGE)).collect();
            let asked = join_all(limits.iter().map(|limit| take(&store, 1, limit))).await;
            let asked = asked.into_iter();
            admitted += asked.filter(|it| it.as_ref().unwrap().allowed).count() as u64;
        }
        let keys = redis.connect().keys().len();
        assert!((1000..=1100).contains(&keys), "{keys} keys");
        assert!(admitted >= 2000, "{admitted}");
        let limit = fair(7, LARGE);
        let level = store.report(&charge(1, &limit), 0).await.unwrap().unwrap();
        assert_eq!(level.left, i64::try_from(LARGE - admitted).unwrap());
        assert_eq!(store.shared_decisions(), 0);
        wait::until("a count of the keys", common::LIMIT, || {
            let census = store.census();
            let rule = census.rules.get("rule");
            rule.is_some_and(|rule| rule.keys >= 900)
        });
        // A reset deletes the bucket. The marks that are left mean nothing to the next one.
        store.reset(&[charge(1, &limit)]).await.unwrap();
        let level = store.report(&charge(1, &limit), 0).await.unwrap().unwrap();
        assert_eq!(level.left, i64::try_from(LARGE).unwrap());
    });
    common::every_key_expires(&redis);
}

#[test]
fn clients_of_a_fair_bucket_share_a_mark_while_the_server_is_out_of_memory() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    block_on(async {
        let known = fair(1, CAPACITY);
        assert!(take(&store, 1, &known).await.unwrap().allowed);
        fill(&redis);
        let mut admitted = 1;
        for client in 2..20 {
            let applied = take(&store, 1, &fair(client, CAPACITY)).await.unwrap();
            admitted += i64::from(applied.allowed);
        }
        let level = store.report(&charge(1, &known), 0).await.unwrap().unwrap();
        assert_eq!(level.left, i64::try_from(CAPACITY).unwrap() - admitted);
        assert!(admitted > 1);
        assert_eq!(redis.connect().keys().len(), 2);
        assert_eq!(errors(&store, "unavailable") + errors(&store, "full"), 0);
        assert!(is_calm(&store));
    });
    common::every_key_expires(&redis);
}

#[test]
fn anonymous_subjects_have_a_bound_of_their_own() {
    let redis = Redis::start();
    let mut options = options(&redis);
    (options.max_keys, options.max_anonymous_keys) = (5000, 300);
    let store = connect(options);
    let limit = Limit::fixed_window(CAPACITY, LONG).unwrap();
    let anonymous = |number| Charge {
        rule: "by-address",
        anonymous: true,
        ..charge(number, &limit)
    };
    block_on(async {
        for number in 0..900 {
            let charges = [anonymous(INVENTED + number)];
            store.apply(&charges, Ask::Exactly(1)).await.unwrap();
        }
        let keys = redis.connect().keys().len();
        assert!((300..=330).contains(&keys), "{keys} keys");
        for number in 0..500 {
            assert_eq!(drain(&store, number, &limit, 2).await, 2);
        }
        assert!(redis.connect().keys().len() >= keys + 500);
    });
}

/// New holds need a key, and fail. Open holds can still be settled.
#[test]
fn a_full_server_settles_holds_and_makes_none() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let limit = Limit::fixed_window(100, LONG).unwrap();
    block_on(async {
        let charges = [charge(1, &limit)];
        let held = store.hold(&charges, 10, &reservation(1)).await.unwrap();
        assert!(matches!(held, Held::Taken { .. }), "{held:?}");
        fill(&redis);
        let failed = store.hold(&charges, 10, &reservation(2)).await;
        assert_eq!(failed.unwrap_err(), StoreError::Full);
        let settled = store.settle(hold_id(1), Settle::Commit { actual: 4 }).await;
        let settled = settled.unwrap();
        assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
        assert_eq!(left(&store, 1, &limit).await, 96);
        assert!(is_calm(&store));
    });
}

/// Reservations and leases share no state. Beyond the bound, those of new subjects fail.
#[test]
fn holds_of_new_subjects_stay_within_max_keys() {
    const MOST: u64 = 1000;
    let slots = Limit::concurrency(2, TTL).unwrap();
    let plain = Limit::fixed_window(100, LONG).unwrap();
    let log = Limit::sliding_log(100, LONG).unwrap();
    let quota = Kind::Quota.limit(100, LONG);
    let unlimited = Limit::unlimited(Algorithm::FixedWindow);
    for limit in [&slots, &plain, &log, &quota, &unlimited] {
        let redis = Redis::start();
        let mut options = options(&redis);
        options.max_keys = MOST;
        let store = connect(options);
        let hold = async |number: u64, id: u64| {
            let charges = [charge(number, limit)];
            let new = NewHold {
                bound: Some(OpenBound {
                    subject: number.into(),
                    most: 10,
                }),
                ..reservation(id.into())
            };
            store.hold(&charges, 1, &new).await
        };
        block_on(async {
            assert!(matches!(hold(1, 1).await, Ok(Held::Taken { .. })));
            let mut full = 0;
            for number in 2..3 * MOST {
                match hold(number, number).await {
                    Ok(held) => assert!(matches!(held, Held::Taken { .. }), "{held:?}"),
                    Err(error) => {
                        assert_eq!(error, StoreError::Full);
                        full += 1;
                    }
                }
            }
            // A hold has up to three keys, and the keys are counted in the background.
            let keys = count_keys(&redis);
            assert!(
                (MOST..=MOST + 200).contains(&keys),
                "{limit:?}: {keys} keys"
            );
            assert!(full > MOST, "{limit:?}: {full}");
            assert_eq!(errors(&store, "full"), full);
            // A subject with a state gets further holds.
            let held = hold(1, u64::MAX).await.unwrap();
            assert!(matches!(held, Held::Taken { .. }), "{limit:?}: {held:?}");
            assert!(is_calm(&store));
        });
    }
}

/// At the bound, a limit that is used up still denies holds of new subjects. Other holds of new subjects fail. Neither
/// makes a key.
#[test]
fn a_used_up_limit_denies_holds_of_new_subjects_at_max_keys() {
    const KNOWN: u64 = 2;
    let all = Limit::concurrency(2, TTL).unwrap();
    let slots = Limit::concurrency(9, TTL).unwrap();
    let plain = Limit::fixed_window(100, LONG).unwrap();
    let log = Limit::sliding_log(100, LONG).unwrap();
    let bucket = fair(7, 100);
    let quota = Kind::Quota.limit(100, LONG);
    let blocks = Kind::Backoff.limit(0, Span::HOUR);
    let ledger = Some(Recorded::default());
    for (limit, on_denied, recorded) in [
        (&slots, OnDenied::Nothing, None),
        (&plain, OnDenied::Charge, None),
        (&log, OnDenied::Charge, None),
        (&bucket, OnDenied::Note, None),
        (&quota, OnDenied::Nothing, ledger),
    ] {
        let hold = async |store: &RedisStore, number: u64, id: u64, cost: u64| {
            let of_user = Charge {
                rule: "user",
                cost,
                on_denied,
                // The state of the known subject is not restored: its first hold makes it.
                recorded: recorded.filter(|_| number != KNOWN),
                ..charge(number, limit)
            };
            let strikes = Charge {
                rule: "blocks",
                on_denied: OnDenied::Strike(0),
                ..charge(number + 1, &blocks)
            };
            let new = NewHold {
                wait: Some(Wait {
                    ticket: id.into(),
                    patience: Span::HOUR,
                }),
                ..reservation(id.into())
            };
            let charges = [charge(1, &all), of_user, strikes];
            store.hold(&charges, 1, &new).await
        };
        let redis = Redis::start();
        let with_room = connect(options(&redis));
        let mut options = options(&redis);
        options.max_keys = 1;
        let store = connect(options);
        wait::until("a count of the keys", common::LIMIT, || {
            !store.census().servers.is_empty()
        });
        block_on(async {
            let held = hold(&with_room, KNOWN, 1, 1).await.unwrap();
            assert!(matches!(held, Held::Taken { .. }), "{limit:?}: {held:?}");
            let keys = count_keys(&redis);
            let failed = hold(&store, INVENTED, 2, 1).await;
            assert_eq!(failed.unwrap_err(), StoreError::Full, "{limit:?}");
            if on_denied != OnDenied::Nothing {
                // The limit of the new subject denies a cost above it.
                let held = hold(&store, INVENTED, 3, 1000).await.unwrap();
                let is_denied = matches!(held, Held::Denied { ahead: None, .. });
                assert!(is_denied, "{limit:?}: {held:?}");
            }
            assert_eq!(count_keys(&redis), keys, "{limit:?}");

            let held = hold(&store, KNOWN, 4, 1).await.unwrap();
            assert!(matches!(held, Held::Taken { .. }), "{limit:?}: {held:?}");
            let keys = count_keys(&redis);
            for number in 0..3 {
                let held = hold(&store, INVENTED + 10 * number, 10 + number, 1).await;
                let Ok(Held::Denied { applied, ahead }) = held else {
                    panic!("{limit:?}: {held:?}");
                };
                assert!(!applied.outcomes[0].is_allowed(), "{limit:?}");
                // A subject that cannot have slots does not queue for them.
                assert_eq!(ahead, None, "{limit:?}");
            }
            assert_eq!(count_keys(&redis), keys, "{limit:?}");
            assert_eq!(errors(&store, "full"), 1);
            let held = hold(&store, KNOWN, 20, 1).await.unwrap();
            let is_queued = matches!(held, Held::Denied { ahead: Some(0), .. });
            assert!(is_queued, "{limit:?}: {held:?}");
        });
    }
}

#[test]
fn restored_quotas_of_new_subjects_stay_within_max_keys() {
    const MOST: u64 = 1000;
    let quota = Kind::Quota.limit(100, LONG);
    let redis = Redis::start();
    let mut options = options(&redis);
    options.max_keys = MOST;
    let store = connect(options);
    block_on(async {
        let applied = take(&store, 1, &quota).await.unwrap();
        let known = applied.outcomes[0].remaining;
        let balance = Balance {
            ends_at: applied.outcomes[0].reset_at,
            used: 7,
            extra: 0,
        };
        let restore = async |number| store.restore(&[charge(number, &quota)], &[balance]).await;
        let mut full = 0;
        for number in 2..3 * MOST {
            match restore(number).await {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, StoreError::Full);
                    full += 1;
                }
            }
        }
        let keys = redis.connect().keys().len() as u64;
        assert!((MOST..=MOST + 100).contains(&keys), "{keys} keys");
        assert!(full > MOST, "{full}");
        // A count that exists stays, and is no error.
        restore(1).await.unwrap();
        assert_eq!(left(&store, 1, &quota).await, known);
    });
}
