//! A request is charged completely or not at all, and never above the limit: with many callers, with several
//! processes, with many requests in one call, and next to values of other programs.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::process::Stdio;

use tollgate_conformance::Kind;
use tollgate_core::{Charge, Limit, Time};
use tollgate_redis::RedisStore;
use tollgate_rig::{Redis, Resp, wait};
use tollgate_store::{Applied, Ask, Store, StoreError};

use common::{LIMIT, LONG, charge, take};

#[test]
fn many_callers_get_exactly_the_limit() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    for (number, kind) in (0..).zip(Kind::ALL) {
        let limit = kind.limit(1_000, LONG);
        let attempts = common::admitted(&store, number, &limit, 64, 10_000 / 64 + 1);
        assert_eq!(common::block_on(attempts), 1_000, "{kind:?}");
    }
    let batches = store.metrics().batches();
    assert!(batches.count < batches.sum, "nothing shared a call");
}

#[test]
fn two_processes_get_exactly_the_limit() {
    let redis = Redis::start();
    let processes = [(); 2].map(|()| {
        let mut process = common::process("a_process_with_many_callers", &redis.address());
        process.stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut resp = redis.connect();
    wait::until("two processes", LIMIT, || {
        resp.get("ready") == Some(b"2".to_vec())
    });
    resp.command(&["SET", "go", "1"]);
    let mut admitted = 0;
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let said = said.lines().find_map(|line| line.strip_prefix("admitted "));
        let count: u64 = said.unwrap().parse().unwrap();
        assert!(count > 0, "one process had it all: they did not meet");
        admitted += count;
    }
    assert_eq!(admitted, 5_000);
}

#[test]
fn a_process_with_many_callers() {
    let Some(address) = common::argument() else {
        return;
    };
    let store = common::connect(common::options_at(&address));
    let mut resp = Resp::connect(&address).unwrap();
    resp.command(&["INCR", "ready"]);
    wait::until("the other process", LIMIT, || resp.get("go").is_some());
    let limit = Kind::Gcra.limit(5_000, LONG);
    let admitted = common::block_on(common::admitted(&store, 1, &limit, 32, 200));
    println!("\nadmitted {admitted}");
}

#[test]
fn a_denial_changes_no_state() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    let limits = Kind::ALL.map(|kind| kind.limit(10, LONG));
    let numbered = (0..).zip(&limits);
    let charges: Vec<_> = numbered.map(|(n, limit)| charge(n, limit)).collect();
    let apply = |charges: &[Charge<'_>], units| -> Applied {
        common::block_on(store.apply(charges, Ask::Exactly(units))).unwrap()
    };
    assert!(apply(&charges, 4).allowed);
    for spent in &charges {
        // After this, `spent` has 4 units left, and the other limits have 6.
        let taken = apply(&[*spent], 2);
        assert!(taken.allowed);
        let (before, changes) = (common::contents(&redis), common::changes(&redis));
        assert_eq!(before.len(), charges.len());
        assert!(!apply(&charges, 5).allowed);
        assert!(!apply(&[*spent], 5).allowed);
        assert_eq!(common::contents(&redis), before);
        assert_eq!(common::changes(&redis), changes, "not even a time to live");
        common::block_on(store.refund(&[*spent], 2, taken.now)).unwrap();
    }
    common::every_key_expires(&redis);
}

#[test]
fn a_request_with_many_charges_is_one_call() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    let limit = Kind::Gcra.limit(2, LONG);
    for count in [200, 256, 300, 1_000] {
        let charges: Vec<_> = (0..count)
            .map(|n| charge(1_000 * count + n, &limit))
            .collect();
        let apply = || common::block_on(store.apply(&charges, Ask::Exactly(1))).unwrap();
        for left in [1, 0] {
            let applied = apply();
            assert!(applied.allowed, "{count} charges");
            assert_eq!(applied.outcomes.len(), charges.len());
            assert!(applied.outcomes.iter().all(|it| it.remaining == left));
        }
        assert!(!apply().allowed);
    }
}

#[test]
fn requests_of_one_call_see_each_other() {
    let redis = Redis::start();
    let mut options = common::options(&redis);
    options.max_connections = 1;
    let store = common::connect(options);
    for (number, kind) in (0..).zip(Kind::ALL) {
        let (hot, limit) = (1_000 * number, kind.limit(10, LONG));
        // A hot key among others.
        let subjects = (1..=30).flat_map(|other| [hot, hot + other]);
        let requests = subjects.map(|subject| {
            let (store, limit) = (store.clone(), limit.clone());
            async move { take(&store, subject, &limit).await.unwrap() }
        });
        let answers = common::at_once(&redis, &store, requests);
        let allowed = answers.iter().filter(|it| it.allowed).count();
        assert_eq!(allowed, 10 + 30, "{kind:?}");
        // Each answer has its own remaining units.
        let allowed = answers.iter().filter(|it| it.allowed);
        let left = allowed.map(|it| it.outcomes[0].remaining);
        let mut left: Vec<u64> = left.filter(|left| *left < 9).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2, 3, 4, 5, 6, 7, 8], "{kind:?}");
    }
    let batches = store.metrics().batches();
    assert!(batches.sum >= 20 * batches.count, "{batches:?}");
}

#[test]
fn values_of_other_programs_fail_alone_and_stay() {
    let redis = Redis::start();
    let mut options = common::options(&redis);
    options.max_connections = 1;
    let store = common::connect(options);
    let mut counted = 0;
    for (number, kind) in (0..).zip(Kind::ALL) {
        let (subject, limit) = (100 * number, kind.limit(10, LONG));
        let (name, state) = state_of(&redis, &store, subject, &limit);
        for (round, put) in (1..).zip(foreign(&name, &state)) {
            let mut resp = redis.connect();
            resp.command(&["DEL", &name]);
            resp.command(&put);
            let before = resp.dump(&name);
            fails_among_others(&redis, &store, subject, 10 * round, &limit);
            fails_whatever_is_asked(&store, subject, &limit);
            assert_eq!(resp.dump(&name), before, "{kind:?}");
            assert_eq!(resp.pttl(&name), -1, "{kind:?}");
            counted += 2 + 5;
            assert_eq!(common::errors(&store, "foreign_data"), counted);
        }
    }
}

/// Returns the name and the bytes of the state after a request.
fn state_of(redis: &Redis, store: &RedisStore, subject: u64, limit: &Limit) -> (String, Vec<u8>) {
    let mut resp = redis.connect();
    let before = resp.keys();
    assert!(
        common::block_on(take(store, subject, limit))
            .unwrap()
            .allowed
    );
    let name = resp.keys().into_iter().find(|key| !before.contains(key));
    let name = name.unwrap();
    let state = resp.get(&name).unwrap();
    (String::from_utf8(name).unwrap(), state)
}

/// Returns commands that each put a value that is not a state under this name.
fn foreign(name: &str, state: &[u8]) -> [Vec<Vec<u8>>; 4] {
    let mut of_another_kind = state.to_vec();
    of_another_kind[0] = b'z';
    [
        vec!["HSET".into(), name.into(), "field".into(), "value".into()],
        vec!["RPUSH".into(), name.into(), "element".into()],
        vec!["SET".into(), name.into(), "something else".into()],
        vec!["SET".into(), name.into(), of_another_kind],
    ]
}

/// Sends requests for `subject` and for other subjects in one call. Checks that only the requests for
/// `subject` fail. The other subjects are numbered from `subject + other`.
fn fails_among_others(redis: &Redis, store: &RedisStore, subject: u64, other: u64, limit: &Limit) {
    let subjects = [other, other + 1, 0, other + 2, 0].map(|it| subject + it);
    let requests = subjects.map(|subject| {
        let (store, limit) = (store.clone(), limit.clone());
        async move { take(&store, subject, &limit).await }
    });
    for (answer, asked) in common::at_once(redis, store, requests).iter().zip(subjects) {
        match answer {
            Ok(applied) => assert!(asked != subject && applied.allowed),
            Err(error) => assert!(asked == subject && is_foreign(error), "{error}"),
        }
    }
}

fn fails_whatever_is_asked(store: &RedisStore, subject: u64, limit: &Limit) {
    let other_limit = Kind::FixedWindow.limit(10, LONG);
    let (here, other) = (charge(subject, limit), charge(subject + 99, &other_limit));
    let answers = common::block_on(async {
        [
            store.apply(&[other, here], Ask::Exactly(1)).await.map(drop),
            store.apply(&[here, other], Ask::UpTo(3)).await.map(drop),
            store.peek(&[here], Ask::Exactly(1)).await.map(drop),
            store.refund(&[here], 1, Time::default()).await.map(drop),
            store.reset(&[here]).await,
        ]
    });
    for answer in answers {
        assert!(answer.is_err_and(|error| is_foreign(&error)), "{limit:?}");
    }
    let left = common::left(store, subject + 99, &other_limit);
    assert_eq!(common::block_on(left), 10);
}

fn is_foreign(error: &StoreError) -> bool {
    matches!(error, StoreError::Foreign(_))
}
