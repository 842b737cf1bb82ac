//! Lost scripts, connections, answers and memory, and a lost server. A decision is made exactly once, or
//! fails within its time limit. The store works again as soon as the server does.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_conformance::Kind;
use tollgate_core::Limit;
use tollgate_redis::{BreakerState, Options, RedisStore};
use tollgate_rig::{Fault, Proxy, Redis, Stopwatch, wait};
use tollgate_store::{Ask, Store, StoreError};

use common::{LIMIT, LONG, RUNTIME, block_on, charge, errors, left, take};

/// The timeout of an impatient store. `SLACK` is how much longer a busy machine may take.
const TIMEOUT: Duration = Duration::from_millis(50);
const SLACK: Duration = Duration::from_millis(500);

/// Returns options with the default timeout, and a breaker that never opens.
fn impatient(mut options: Options) -> Options {
    options.timeout = TIMEOUT;
    options.connect_timeout = 4 * TIMEOUT;
    options.breaker.consecutive_failures = u32::MAX;
    options
}

/// Panics unless the answer comes within the timeout.
fn in_time<T>(ask: impl Future<Output = T>) -> T {
    let stopwatch = Stopwatch::start();
    let answer = block_on(ask);
    let elapsed = stopwatch.elapsed();
    assert!(elapsed < TIMEOUT + SLACK, "an answer took {elapsed:?}");
    answer
}

/// Waits until a request is answered.
fn wait_for_an_answer(store: &RedisStore, limit: &Limit) {
    wait::until("an answer", LIMIT, || {
        block_on(take(store, 0, limit)).is_ok()
    });
}

#[test]
fn a_flushed_script_is_sent_again_and_charges_once() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut resp = redis.connect();
            while !over.load(Ordering::Relaxed) {
                resp.command(&["SCRIPT", "FLUSH"]);
            }
        });
        for (number, kind) in (0..).zip(Kind::ALL) {
            let limit = kind.limit(400, LONG);
            let admitted = block_on(common::admitted(&store, number, &limit, 16, 50));
            assert_eq!(admitted, 400, "{kind:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(errors(&store, "noscript") > 0);
    assert_eq!(errors(&store, "script"), 0);
}

#[test]
fn a_restarted_server_fails_one_request() {
    let redis = Redis::start();
    let mut options = common::options(&redis);
    options.max_connections = 16;
    let store = common::connect(options);
    let limit = Kind::Gcra.limit(100, LONG);
    // Send enough requests that all workers are used.
    for _ in 0..16 {
        block_on(take(&store, 1, &limit)).unwrap();
    }
    assert!(
        redis.info("clients")["connected_clients"]
            .parse::<u32>()
            .unwrap()
            > 16
    );
    redis.restart();
    let answers: Vec<_> = (0..32).map(|_| block_on(take(&store, 1, &limit))).collect();
    let failed = answers.iter().filter(|it| it.is_err()).count();
    assert_eq!(failed, 1, "{answers:?}");
    assert!(
        matches!(&answers[0], Err(StoreError::Disconnected(_))),
        "{answers:?}"
    );
    assert_eq!(block_on(left(&store, 1, &limit)), 100 - 31);
    assert_eq!(store.breakers()[0].1, BreakerState::Closed);
}

#[test]
fn a_silent_server_is_not_asked_for_a_while() {
    let redis = Redis::start();
    let mut options = common::options(&redis);
    options.timeout = TIMEOUT;
    options.breaker.timeout_duration = Duration::from_secs(1);
    let store = common::connect(options);
    let limit = Kind::Gcra.limit(1_000, LONG);
    let state = || store.breakers()[0].1;
    redis.pause();
    for _ in 0..5 {
        assert_eq!(state(), BreakerState::Closed);
        assert_eq!(in_time(take(&store, 1, &limit)), Err(StoreError::Timeout));
    }
    assert_eq!(state(), BreakerState::Open);
    for _ in 0..100 {
        let answer = in_time(take(&store, 1, &limit));
        assert_eq!(answer, Err(StoreError::BreakerOpen));
    }
    // After a second one probe is sent. It fails, so no more requests are sent.
    wait::until("probes", LIMIT, || state() == BreakerState::HalfOpen);
    assert_eq!(in_time(take(&store, 1, &limit)), Err(StoreError::Timeout));
    assert_eq!(state(), BreakerState::Open);
    let counted = ["timeout", "breaker_open"].map(|kind| errors(&store, kind));
    assert_eq!(counted, [6, 100]);
    redis.resume();
    wait::until("answers", LIMIT, || {
        block_on(take(&store, 1, &limit)).is_ok() && state() == BreakerState::Closed
    });
}

#[test]
fn waiting_requests_are_bounded() {
    let redis = Redis::start();
    let mut options = common::options(&redis);
    options.max_in_flight = 10;
    let store = common::connect(options);
    let limit = Kind::Gcra.limit(100, LONG);
    redis.pause();
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let (store, limit) = (store.clone(), limit.clone());
            RUNTIME.spawn(async move { take(&store, 1, &limit).await })
        })
        .collect();
    wait::until("ten requests wait", LIMIT, || store.in_flight() == 10);
    assert_eq!(
        in_time(take(&store, 1, &limit)),
        Err(StoreError::Overloaded)
    );
    assert_eq!(store.in_flight(), 10);
    redis.resume();
    for task in waiting {
        assert!(block_on(task).unwrap().unwrap().allowed);
    }
    assert_eq!(block_on(left(&store, 1, &limit)), 90);
    assert_eq!(errors(&store, "overloaded"), 1);
}

#[test]
fn a_caller_that_stops_before_the_request_is_sent_is_not_charged() {
    let redis = Redis::start();
    let limit = Kind::Gcra.limit(100, LONG);
    let mut options = common::options(&redis);
    options.max_connections = 1;
    let give_up = |store: &RedisStore, others: usize| {
        let (asking, limit) = (store.clone(), limit.clone());
        let task = RUNTIME.spawn(async move { take(&asking, 1, &limit).await });
        wait::until("a request waits", LIMIT, || store.in_flight() == others + 1);
        task.abort();
        wait::until("the caller has stopped waiting", LIMIT, || {
            store.in_flight() == others
        });
    };

    // The caller stops waiting while its request is queued behind another.
    let store = common::connect(options.clone());
    redis.pause();
    let (asking, its_limit) = (store.clone(), limit.clone());
    let first = RUNTIME.spawn(async move { take(&asking, 1, &its_limit).await });
    wait::until("a request waits", LIMIT, || store.in_flight() == 1);
    give_up(&store, 1);
    redis.resume();
    assert!(block_on(first).unwrap().unwrap().allowed);
    assert_eq!(block_on(left(&store, 1, &limit)), 99);

    // The caller stops waiting while the connection is opened.
    redis.pause();
    let store = block_on(async { RedisStore::unchecked(options) });
    give_up(&store, 0);
    redis.resume();
    assert_eq!(block_on(left(&store, 1, &limit)), 99);
}

#[test]
fn a_full_server_charges_all_or_nothing() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    let limits = Kind::ALL.map(|kind| kind.limit(10, LONG));
    let charges: Vec<_> = (0..)
        .zip(&limits)
        .map(|(n, limit)| charge(n, limit))
        .collect();
    let (known, new) = charges.split_at(charges.len() / 2);
    let apply = |charges, units| block_on(store.apply(charges, Ask::Exactly(units))).unwrap();
    let names = || -> Vec<String> { common::contents(&redis).into_keys().collect() };
    assert!(apply(known, 1).allowed);
    let before = names();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(apply(known, 1).allowed);
    assert_eq!(names(), before);
    // The known subjects have 8 units left, so a request for 9 units is denied. New subjects are not charged
    // either, although they have more left.
    let contents = common::contents(&redis);
    assert!(!apply(&charges, 9).allowed);
    assert_eq!(common::contents(&redis), contents);
    // New subjects share a state: one for each algorithm of the rule. GCRA and token bucket count as one
    // algorithm.
    assert!(apply(new, 1).allowed);
    let keys = names().into_iter().filter(|it| it.starts_with("tg:v1:{"));
    let is_shared = |name: &String| name.contains(&"0".repeat(32)) || name.contains(":shared:");
    let (shared, own): (Vec<_>, Vec<_>) = keys.partition(is_shared);
    assert_eq!(own, before);
    assert!((2..=4).contains(&shared.len()), "{shared:?}");
}

#[test]
fn a_replica_makes_no_decision() {
    let primary = Redis::start();
    let port = primary.port().to_string();
    let replica = Redis::with()
        .args(["--replicaof", "127.0.0.1", &port])
        .start();
    let store = block_on(async { RedisStore::unchecked(common::options(&replica)) });
    let limit = Kind::Gcra.limit(10, LONG);
    let answer = block_on(take(&store, 1, &limit));
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
    assert_eq!(block_on(left(&store, 1, &limit)), 10);
}

#[test]
fn a_broken_network_fails_in_time_and_is_used_again() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis.address());
    let store = common::connect(impatient(common::options_at(&proxy.address())));
    let limit = Kind::Gcra.limit(1_000, LONG);
    for fault in [Fault::BlackHole, Fault::Reset, Fault::Latency(4 * TIMEOUT)] {
        proxy.set(fault);
        for _ in 0..6 {
            let error = in_time(take(&store, 1, &limit)).unwrap_err();
            match fault {
                Fault::Reset => assert!(
                    matches!(
                        error,
                        StoreError::Disconnected(_) | StoreError::Unavailable(_)
                    ),
                    "{error}"
                ),
                _ => assert_eq!(error, StoreError::Timeout),
            }
        }
        proxy.set(Fault::None);
        wait_for_an_answer(&store, &limit);
    }
    proxy.set(Fault::Reset);
    proxy.set(Fault::Refuse);
    for _ in 0..6 {
        in_time(take(&store, 1, &limit)).unwrap_err();
    }
    proxy.set(Fault::None);
    wait_for_an_answer(&store, &limit);
}

#[test]
fn a_late_answer_does_not_reach_another_request() {
    let redis = Redis::start();
    let mut options = impatient(common::options(&redis));
    options.max_connections = 1;
    let store = common::connect(options);
    let late = Kind::FixedWindow.limit(1_000, LONG);
    for round in 0..10 {
        redis.pause();
        assert_eq!(in_time(take(&store, 1, &late)), Err(StoreError::Timeout));
        redis.resume();
        // The next request gets its own answer, not a late answer to an earlier request.
        let limit = Kind::FixedWindow.limit(10, LONG);
        let subject = 100 + round;
        wait::until("an answer", LIMIT, || {
            match block_on(take(&store, subject, &limit)) {
                Ok(applied) => {
                    assert!(applied.allowed);
                    assert!(applied.outcomes[0].remaining < 10);
                    true
                }
                Err(error) => {
                    assert_ne!(error.kind(), "script", "{error}");
                    false
                }
            }
        });
    }
}
