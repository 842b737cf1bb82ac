//! Requests with several plain charges, many of them in one call, with keys that several requests use. Their answers are
//! those of a memory store that gets the same requests one after the other, in some order.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use fastrand::Rng;
use tollgate_conformance::{Kind, START, key, seed};
use tollgate_core::{CarryOver, Charge, Enforcement, Limit, OnDenied, Rate, Span, Time};
use tollgate_redis::RedisStore;
use tollgate_rig::{Redis, Resp};
use tollgate_store::{Applied, Ask, Clock, GRACE, ManualClock, MemoryStore, Store};

use common::{LONG, block_on};

/// One charge of a request, with all that a [`Charge`] borrows.
#[derive(Clone, Debug)]
struct Plain {
    subject: u64,
    rule: usize,
    cost: u64,
    enforces: bool,
    counts_denied: bool,
}

#[derive(Clone, Debug)]
struct Request {
    charges: Vec<Plain>,
    units: u64,
}

/// Rules: their limits, and how their states are carried over.
#[derive(Clone)]
struct Rules {
    limits: Vec<Limit>,
    how: CarryOver,
}

const NAMES: [&str; 4] = ["all", "tenant", "user", "key"];

impl Rules {
    fn random(random: &mut Rng, kinds: &[Kind]) -> Rules {
        let limits = (0..NAMES.len()).map(|_| {
            let window = [10, 1_000, 7_001, 1_000_000, 30_000_000][random.usize(0..5)];
            let capacity = [0, 1, 3, 10, 25, 300, 70_000][random.usize(0..7)];
            let kind = kinds[random.usize(0..kinds.len())];
            kind.limit(capacity, Span::from_micros(window))
        });
        Rules {
            limits: limits.collect(),
            how: CarryOver::ALL[random.usize(0..3)],
        }
    }

    fn charges(&self, request: &Request) -> Vec<Charge<'_>> {
        let charges = request.charges.iter().map(|it| Charge {
            overflow: key(u64::MAX - it.rule as u64),
            rule: NAMES[it.rule],
            cost: it.cost,
            carry_over: self.how,
            enforcement: if it.enforces {
                Enforcement::Enforce
            } else {
                Enforcement::Shadow
            },
            on_denied: if it.counts_denied {
                OnDenied::Charge
            } else {
                OnDenied::Nothing
            },
            ..Charge::new(
                key(it.rule as u64 * 1_000 + it.subject),
                &self.limits[it.rule],
            )
        });
        charges.collect()
    }

    fn request(&self, random: &mut Rng) -> Request {
        let charges = (0..random.usize(1..5)).map(|place| {
            // Sometimes a key comes twice in a request, or at another place than in other requests.
            let rule = if random.u8(0..12) == 0 {
                random.usize(0..NAMES.len())
            } else {
                place
            };
            Plain {
                subject: random.u64(0..[1, 2, 5, 40][rule]),
                rule,
                cost: [1, 1, 1, 1, 2, 7, 0][random.usize(0..7)],
                enforces: random.u8(0..8) > 0,
                counts_denied: random.u8(0..12) == 0,
            }
        });
        Request {
            charges: charges.collect(),
            units: [1, 1, 1, 2][random.usize(0..4)],
        }
    }
}

/// A request that was answered: when, under which rules, and its units.
type Step = (Time, Rules, Request);

/// Returns the answer of a memory store to `next`, after all requests of `before`.
fn replayed(before: &[Step], next: &Step) -> Applied {
    let clock = ManualClock::at(START);
    let store = MemoryStore::with_clock(10_000, clock.clone());
    let apply = |(now, rules, request): &Step| {
        clock.set(*now);
        store.apply(&rules.charges(request), Ask::Exactly(request.units))
    };
    for step in before {
        apply(step);
    }
    apply(next)
}

/// Whether a request may have changed a state.
fn may_change((step, answer): &(Step, Applied)) -> bool {
    let charges = &step.2.charges;
    charges
        .iter()
        .any(|it| it.cost > 0 && (answer.allowed || it.counts_denied))
}

/// Appends the requests to `history` in an order in which a memory store gives these answers. Returns false if there is
/// no such order. `tries` bounds the search.
fn find_order(history: &mut Vec<Step>, left: &[(Step, Applied)], tries: &mut u32) -> bool {
    if left.is_empty() {
        return true;
    }
    let fits = |(_, (step, answer)): &(usize, &(Step, Applied))| {
        let expected = replayed(history, step);
        (expected.allowed, expected.granted, &expected.outcomes)
            == (answer.allowed, answer.granted, &answer.outcomes)
    };
    let fitting: Vec<usize> = left
        .iter()
        .enumerate()
        .filter(fits)
        .map(|it| it.0)
        .collect();
    // A request that changes nothing may come at once. Otherwise each that fits may be the next.
    let harmless = fitting.iter().copied().find(|it| !may_change(&left[*it]));
    let next = harmless.map_or(fitting, |it| vec![it]);
    for index in next {
        *tries = tries.checked_sub(1).expect("an order within the bound");
        let mut rest = left.to_vec();
        history.push(rest.swap_remove(index).0);
        if find_order(history, &rest, tries) {
            return true;
        }
        history.pop();
    }
    false
}

fn answers_are_those_of_some_order(kinds: &[Kind], usual: u64) {
    let redis = Redis::start();
    let clock = ManualClock::at(START);
    let mut options = common::by_clock(common::options(&redis), &clock);
    options.max_connections = 1;
    let store = common::connect(options);
    let mut random = Rng::with_seed(seed(usual));
    let mut allowed = 0;
    for _ in 0..common::steps() / 100 {
        let mut rules = Rules::random(&mut random, kinds);
        redis.connect().command(&["FLUSHALL"]);
        let mut history = Vec::new();
        for _ in 0..6 {
            clock.advance(Span::from_micros(
                [0, 3, 700, 40_000, 2_000_000][random.usize(0..5)],
            ));
            if random.u8(0..4) == 0 {
                // The same algorithms with other numbers: states are carried over.
                let other = Rules::random(&mut random, kinds);
                let same = |(a, b): (&Limit, &Limit)| {
                    std::mem::discriminant(a) == std::mem::discriminant(b)
                };
                if rules.limits.iter().zip(&other.limits).all(same) {
                    rules = other;
                }
            }
            let requests: Vec<Request> = (0..random.usize(2..20))
                .map(|_| rules.request(&mut random))
                .collect();
            let sent = requests.iter().cloned().map(|request| {
                let (store, rules) = (store.clone(), rules.clone());
                async move { apply(&store, &rules, &request).await }
            });
            let answers = common::at_once(&redis, &store, sent);
            allowed += answers.iter().filter(|it| it.allowed).count();
            let now = clock.now();
            let steps = requests.into_iter().map(|it| (now, rules.clone(), it));
            let answered: Vec<_> = steps.zip(answers).collect();
            assert!(
                find_order(&mut history, &answered, &mut 5_000),
                "no order gives these answers: {:#?}",
                answered
                    .iter()
                    .map(|it| (&it.0.2, &it.1))
                    .collect::<Vec<_>>()
            );
        }
    }
    assert!(allowed > 100, "{allowed}");
    let batches = store.metrics().batches();
    assert!(batches.sum >= 3 * batches.count, "{batches:?}");
    common::every_key_expires(&redis);
}

async fn apply(store: &RedisStore, rules: &Rules, request: &Request) -> Applied {
    let charges = rules.charges(request);
    store
        .apply(&charges, Ask::Exactly(request.units))
        .await
        .unwrap()
}

#[test]
fn batches_of_meters_are_decided_as_in_some_order() {
    answers_are_those_of_some_order(&[Kind::Gcra, Kind::TokenBucket], 1);
}

#[test]
fn batches_of_leaky_buckets_are_decided_as_in_some_order() {
    answers_are_those_of_some_order(&[Kind::LeakyPolice], 2);
}

#[test]
fn batches_of_fixed_windows_are_decided_as_in_some_order() {
    answers_are_those_of_some_order(&[Kind::FixedWindow], 3);
}

#[test]
fn batches_of_several_algorithms_are_decided_as_in_some_order() {
    let kinds = [
        Kind::Gcra,
        Kind::TokenBucket,
        Kind::LeakyPolice,
        Kind::FixedWindow,
    ];
    answers_are_those_of_some_order(&kinds, 4);
}

/// The states of a version without grids, and with longer states of fixed windows.
#[test]
fn states_of_older_versions_are_read() {
    let redis = Redis::start();
    let clock = ManualClock::at(Time::from_micros(1_700_000_000_000_000));
    let store = common::connect(common::by_clock(common::options(&redis), &clock));
    let rate = |units, per| Rate::new(units, per).unwrap();
    // 7 units are used in each. The window of a minute ends at 1,700,000,040 s.
    let window: &[u8] = b"f\x00\x87\x93\x03\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x9a\x80\x1a\x24\x0a\x06\x07\x00\x00\x00\x00\x00\x00";
    let cases: [(&str, Limit, &[u8]); 6] = [
        (
            "m",
            Limit::gcra(rate(1, Span::MINUTE), 10).unwrap(),
            b"a\x00\xf1\x26\x31\x24\x0a\x06\x17\x01\x06",
        ),
        (
            "m",
            Limit::token_bucket(10, rate(3, Span::SECOND)).unwrap(),
            b"c\x95\xda\x41\x18\x24\x0a\x06\x01\x00\x00\x00\x16\x01\x01\x03",
        ),
        (
            "m",
            Limit::token_bucket(1_000_000, rate(999_983, Span::DAY)).unwrap(),
            b"d\x5c\x6a\xe5\xcf\x8b\x01\x00\x1c\x5d\x0c\x00\x65\x01\xe0\x06\xaf\x84\x3d",
        ),
        ("f", Limit::fixed_window(10, Span::MINUTE).unwrap(), window),
        // Under other numbers, the state is carried over.
        ("f", Limit::fixed_window(20, Span::MINUTE).unwrap(), window),
        ("f", Limit::fixed_window(10, Span::HOUR).unwrap(), window),
    ];
    for (letter, limit, state) in cases {
        let mut resp = redis.connect();
        let one = common::charge(1, &limit);
        let name = format!("tg:v1:{{00000000}}:rule:{}:{letter}", one.subject());
        let put = ["SET", &name, "", "PX", "10000000"].map(|it| it.as_bytes().to_vec());
        let mut put = put.to_vec();
        put[2] = state.to_vec();
        resp.command(&put);
        let left = block_on(common::left(&store, 1, &limit));
        assert_eq!(left, limit.capacity() - 7, "{limit:?}");
        assert_eq!(resp.get(&name).unwrap(), state, "a peek changes nothing");
        let applied = block_on(common::take(&store, 1, &limit)).unwrap();
        assert_eq!(
            applied.outcomes[0].remaining,
            limit.capacity() - 8,
            "{limit:?}"
        );
        assert!(
            resp.get(&name).unwrap()[0] >= 128,
            "written in the new layout"
        );
        let left = block_on(common::left(&store, 1, &limit));
        assert_eq!(left, limit.capacity() - 8, "{limit:?}");
        resp.command(&["DEL", &name]);
    }
}

/// A key of a fixed window needs at most 1.3 times the memory of a counter with an expiry.
#[test]
fn a_fixed_window_needs_little_more_memory_than_a_counter() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    let mut resp = redis.connect();
    let memory = |resp: &mut Resp, name: &str| {
        resp.command(&["MEMORY", "USAGE", name, "SAMPLES", "0"])
            .int()
    };
    for (limit, window) in [
        (5, Span::SECOND),
        (100, Span::MINUTE),
        (5_000, Span::HOUR),
        (1_000_000, Span::DAY),
        (999_983, Span::DAY),
        (60_000, LONG),
    ] {
        let limit = Limit::fixed_window(limit, window).unwrap();
        for taken in [1, 2] {
            assert!(block_on(common::take(&store, 1, &limit)).unwrap().allowed);
            let name = String::from_utf8(resp.keys().remove(0)).unwrap();
            let used = memory(&mut resp, &name);
            let counter = format!("{}x", &name[..name.len() - 1]);
            resp.command(&["SET", &counter, "1", "PX", "10000000"]);
            let plain = memory(&mut resp, &counter);
            assert!(
                10 * used <= 13 * plain,
                "{limit:?}, {taken} taken: {used} against {plain}"
            );
            resp.command(&["DEL", &counter]);
        }
        resp.command(&["FLUSHALL"]);
    }
}

/// Most writes do not set the expiry of a key. A key still does not expire before its state has.
#[test]
fn a_key_outlives_its_state_however_often_it_is_written() {
    let redis = Redis::start();
    let store = common::connect(common::options(&redis));
    let mut resp = redis.connect();
    let mut random = Rng::with_seed(seed(5));
    for (number, kind) in (0..).zip([Kind::Gcra, Kind::TokenBucket, Kind::LeakyPolice]) {
        for window in [Span::from_secs(2), Span::MINUTE, Span::HOUR, LONG] {
            let limit = kind.limit(1_000, window);
            let mut kept_expiry = 0;
            for _ in 0..100 {
                let before = resp
                    .keys()
                    .first()
                    .map_or(0, |name| expires_at(&mut resp, name));
                let units = random.u64(1..9);
                let one = [common::charge(number, &limit)];
                let applied = block_on(store.apply(&one, Ask::Exactly(units))).unwrap();
                assert!(applied.allowed);
                let name = resp.keys().remove(0);
                let after = expires_at(&mut resp, &name);
                let needed = applied.outcomes[0].reset_at + GRACE;
                assert!(after >= needed.as_micros() / 1_000, "{kind:?}, {window:?}");
                kept_expiry += u32::from(before == after);
            }
            assert!(kept_expiry > 30, "{kind:?}, {window:?}: {kept_expiry}");
            resp.command(&["FLUSHALL"]);
        }
    }
}

/// Returns the time at which a key expires, in milliseconds since the epoch.
fn expires_at(resp: &mut Resp, name: &[u8]) -> u64 {
    let command = [b"PEXPIRETIME".to_vec(), name.to_vec()];
    u64::try_from(resp.command(&command).int()).unwrap()
}
