//! The keys of a server with its own clock: their names, their expiry, and the answers from them.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

mod common;

use tollgate_conformance::Kind;
use tollgate_core::{
    Admission, Charge, Denial, Key, Keyring, Limit, OnDenied, Outcome, Span, Tag, Time,
};
use tollgate_redis::RedisStore;
use tollgate_rig::{Redis, Resp};
use tollgate_store::{Applied, Ask, GRACE, Store};

use common::{LONG, block_on, charge, left};

/// Returns all algorithms, each with the number of its own subject.
fn kinds() -> impl Iterator<Item = (u64, Kind)> {
    (0..).zip(Kind::ALL)
}

fn apply(store: &RedisStore, charges: &[Charge<'_>], units: u64) -> Applied {
    block_on(store.apply(charges, Ask::Exactly(units))).unwrap()
}

/// Returns when a denied request may be repeated.
fn retry_at(outcome: &Outcome) -> Time {
    match outcome.admission {
        Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => at,
        other => panic!("no instant in {other:?}"),
    }
}

#[test]
fn the_first_request_above_the_limit_gets_a_retry_time() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    for (number, kind) in kinds() {
        let limit = kind.limit(10, LONG);
        let one = [charge(number, &limit)];
        for taken in 1..=10 {
            let applied = apply(&store, &one, 1);
            assert!(applied.allowed, "{kind:?}: number {taken}");
            assert_eq!(applied.outcomes[0].remaining, 10 - taken, "{kind:?}");
        }
        let denied = apply(&store, &one, 1);
        assert!(!denied.allowed, "{kind:?}");
        let (at, full) = (retry_at(&denied.outcomes[0]), denied.outcomes[0].reset_at);
        assert!(denied.now < at && at <= full, "{kind:?}: {denied:?}");
        // Other subjects do not have to wait.
        assert!(apply(&store, &[charge(1_000 + number, &limit)], 1).allowed);
    }
    common::every_key_expires(&redis);
}

#[test]
fn a_weight_is_charged_whole_or_not_at_all() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    for (number, kind) in kinds() {
        let limit = kind.limit(10, LONG);
        let (mut heavy, other) = (charge(number, &limit), charge(1_000 + number, &limit));
        heavy.cost = 3;
        assert!(apply(&store, &[heavy, other], 2).allowed, "{kind:?}");
        assert!(!apply(&store, &[heavy, other], 2).allowed, "{kind:?}");
        assert!(!apply(&store, &[other, heavy], 2).allowed, "{kind:?}");
        assert_eq!(block_on(left(&store, number, &limit)), 4, "{kind:?}");
        assert_eq!(
            block_on(left(&store, 1_000 + number, &limit)),
            8,
            "{kind:?}"
        );
        let never = apply(&store, &[heavy], 4).outcomes[0].admission;
        assert_eq!(never, Admission::Denied(Denial::Never), "{kind:?}");
        assert!(apply(&store, &[heavy, other], 1).allowed, "{kind:?}");
        assert_eq!(block_on(left(&store, number, &limit)), 1, "{kind:?}");
    }
    common::every_key_expires(&redis);
}

#[test]
fn a_state_expires_soon_after_it_is_needed() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    let mut resp = redis.connect();
    for (number, kind) in kinds() {
        for (round, window) in (0..).zip([Span::from_millis(50), Span::SECOND, Span::HOUR, LONG]) {
            for units in [1, 3, 10] {
                let limit = kind.limit(10, window);
                let subject = 1_000 * number + 100 * round + units;
                let before = resp.keys();
                let applied = apply(&store, &[charge(subject, &limit)], units);
                assert!(applied.allowed);
                let name = resp.keys().into_iter().find(|key| !before.contains(key));
                let name = name.unwrap();
                let (earliest, latest) = expiry(&mut resp, &name);
                let full = applied.outcomes[0].reset_at;
                assert!(latest >= full + GRACE, "{kind:?}, {window:?}: too soon");
                let needed = full.since(applied.now).as_micros() + GRACE.as_micros();
                let kept = 2 * needed + 5_000;
                assert!(
                    earliest <= applied.now + Span::from_micros(kept),
                    "{kind:?}, {window:?}: {units} units are kept for {:?}",
                    earliest.since(applied.now)
                );
            }
        }
    }
}

/// Returns the earliest and the latest time at which the server may expire a key.
fn expiry(resp: &mut Resp, name: &[u8]) -> (Time, Time) {
    let earliest = server_time(resp);
    let left = resp.pttl(name);
    let latest = server_time(resp);
    let left = Span::from_millis(u64::try_from(left).expect("a key that expires"));
    // The server rounds to milliseconds.
    (earliest + left, latest + left + Span::from_millis(2))
}

fn server_time(resp: &mut Resp) -> Time {
    let parts = resp.command(&["TIME"]).items().into_iter();
    let parts: Vec<u64> = parts.map(|it| it.text().parse().unwrap()).collect();
    Time::from_micros(parts[0] * 1_000_000 + parts[1])
}

#[test]
fn a_name_has_tag_rule_and_hashed_subject() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    let keyring = Keyring::new(b"a secret of sixteen", "prod");
    let subject = keyring.kind(["email"]).subject(["ann@example.com"]);
    let salt = keyring.rule("login");
    let letters = ['f', 'l', 'c', 'w', 'm', 'm', 'b', 'b'];
    // A backoff without denials has no state.
    let blocks = Kind::Backoff.limit(1, LONG);
    let mut watching = charge(1, &blocks);
    watching.on_denied = OnDenied::Strike(1);
    let open = Kind::Gcra.limit(1, LONG);
    assert!(apply(&store, &[watching, charge(1, &open)], 1).allowed);
    assert_eq!(redis.connect().keys().len(), 1);
    assert!(!apply(&store, &[watching, charge(1, &open)], 1).allowed);
    let ends = redis.connect().keys().into_iter();
    let mut ends: Vec<u8> = ends.filter_map(|key| key.last().copied()).collect();
    ends.sort_unstable();
    assert_eq!(ends, b"mo");
    common::every_key_expires(&redis);
    block_on(store.reset(&[watching, charge(1, &open)])).unwrap();
    for (kind, letter) in Kind::ALL.into_iter().zip(letters) {
        let limit = kind.limit(10, LONG);
        let charge = Charge {
            overflow: Key::overflow(salt),
            rule: "login",
            tag: Tag::new(0xbeef),
            ..Charge::new(Key::new(salt, subject), &limit)
        };
        assert!(apply(&store, &[charge], 1).allowed);
        let name = format!("tg:v1:{{0000beef}}:login:{subject}:{letter}");
        let found = redis.connect().keys();
        assert_eq!(found, [name.as_bytes()], "{kind:?}");
        let kept = redis.connect().get(&name).unwrap();
        for bytes in [name.as_bytes(), &kept] {
            let shown = String::from_utf8_lossy(bytes);
            assert!(
                !shown.contains("ann") && !shown.contains("example"),
                "{shown}"
            );
        }
        block_on(store.reset(&[charge])).unwrap();
        assert!(redis.connect().keys().is_empty(), "{kind:?}");
    }
}

#[test]
fn stores_with_different_prefixes_are_separate() {
    let redis = Redis::start();
    let limit = Kind::Gcra.limit(1, LONG);
    for prefix in ["tg", "a.b_c-D9"] {
        let mut options = common::options(&redis);
        options.key_prefix = prefix.to_owned();
        let store = common::connect(options);
        assert!(apply(&store, &[charge(1, &limit)], 1).allowed);
        assert!(!apply(&store, &[charge(1, &limit)], 1).allowed);
    }
    let keys = redis.connect().keys();
    assert!(keys[0].starts_with(b"a.b_c-D9:v1:{"), "{keys:?}");
    assert!(keys[1].starts_with(b"tg:v1:{"), "{keys:?}");
}

#[test]
fn usage_counts_under_changed_limits() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    for (number, kind) in kinds() {
        let [few, some, many] = [5, 10, 20].map(|capacity| kind.limit(capacity, LONG));
        let ask = |limit: &Limit, units| apply(&store, &[charge(number, limit)], units).allowed;
        assert!(ask(&some, 10), "{kind:?}");
        assert!(!ask(&some, 1), "{kind:?}");
        assert!(ask(&many, 10), "{kind:?}");
        assert!(!ask(&many, 1), "{kind:?}");
        assert!(!ask(&few, 1), "{kind:?}");
        // With another window, usage is neither lost nor counted twice.
        let other = charge(1_000 + number, &some);
        assert!(apply(&store, &[other], 4).allowed);
        let half = Span::from_micros(LONG.as_micros() / 2);
        let shorter = kind.limit(10, half);
        let left = block_on(left(&store, 1_000 + number, &shorter));
        assert_eq!(left, 6, "{kind:?}");
    }
    assert_eq!(redis.connect().keys().len(), 2 * Kind::ALL.len());
    common::every_key_expires(&redis);
}
