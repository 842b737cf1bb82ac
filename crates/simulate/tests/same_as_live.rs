//! A simulation decides as a live limiter does, with the same requests at the same times: a limiter on a real
//! Redis whose clock is the caller's. All algorithms, several rules of a request, random requests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed helper fails its test"
)]

use std::io::Cursor;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use tollgate::{Ask, Attributes, Clock, Config, Engine, Span, SystemClock, Time};
use tollgate_rig::Redis;
use tollgate_simulate::VirtualLimiter;
use tollgate_simulate::log::{Fields, Progress, Replay, Source};

/// The rules, with long windows: a real Redis forgets by its own clock. Each action has one or two of them.
const RULES: &str = "
  - { id: fixed, match: { action: [fixed, both] }, per: [user], algorithm: fixed-window, limit: 4, window: 10m }
  - { id: log, match: { action: [log, both] }, per: [user], algorithm: sliding-log, limit: 5, window: 20m }
  - { id: counter, match: { action: counter }, per: [user], algorithm: sliding-counter, limit: 6, window: 20m, buckets: 10 }
  - { id: two, match: { action: two }, per: [user], algorithm: sliding-counter, limit: 6, window: 20m, estimate: two-window }
  - { id: bucket, match: { action: [bucket, pair] }, per: [user], algorithm: token-bucket, capacity: 5, refill: 6/h }
  - { id: gcra, match: { action: [gcra, pair] }, per: [user], algorithm: gcra, rate: 10/h, burst: 3 }
  - { id: leaky, match: { action: leaky }, per: [user], algorithm: leaky-bucket, rate: 12/h, queue: 2 }
  - { id: shape, match: { action: shape }, per: [user], algorithm: leaky-bucket, rate: 12/h, queue: 2, shape: true }
  - { id: quota, match: { action: quota }, per: [user], algorithm: quota, limit: 7, period: hour }
  - { id: backoff, match: { action: backoff }, per: [user], algorithm: gcra, rate: 6/h, burst: 2, backoff: { after: 1, base: 10m, max: 1h } }
  - { id: strict, match: { action: [gcra, fixed] }, per: [user], algorithm: fixed-window, limit: 2, window: 10m, state: shadow }
  - { id: counts, match: { action: counts }, per: [user], algorithm: fixed-window, limit: 3, window: 10m, charge_denied: true }
";
const ACTIONS: [&str; 12] = [
    "fixed", "log", "counter", "two", "bucket", "gcra", "leaky", "shape", "quota", "backoff",
    "pair", "counts",
];

fn config(store: &str) -> Config {
    let text = format!(
        "version: 1\nstore: {store}\nsubjects: {{ hash_secret: a secret of this test }}\nrules:{RULES}"
    );
    tollgate::parse("rules.yaml", &text, &|_| None).unwrap()
}

/// A request: the seconds since the one before, the action and the user.
type Request = (u64, usize, u8);

/// Returns what each rule said about the requests in a log, by simulation.
fn simulated(config: &Config, log: String) -> Vec<String> {
    let progress = Progress::default();
    let source = Source::new("log", Cursor::new(log.into_bytes()), &progress).unwrap();
    let fields = Fields {
        format: None,
        mapped: vec![("action".to_owned(), "action".to_owned())],
        fixed: Vec::new(),
    };
    let limiter = VirtualLimiter::new(config, Time::default());
    let mut said = Vec::new();
    Replay::new(config, fields, vec![source])
        .run(&mut |time, attributes| {
            limiter.set_time(time);
            said.push(describe(&limiter.ask_now(attributes, Ask::Exactly(1))));
        })
        .unwrap();
    said
}

fn describe(decision: &tollgate::Decision) -> String {
    let rules: Vec<String> = decision
        .rules()
        .map(|rule| {
            let delay = rule.delay();
            format!(
                "{} {:?} {:?} {delay}",
                rule.rule().id(),
                rule.remaining(),
                rule.retry_after()
            )
        })
        .collect();
    format!("{} {}", decision.is_allowed(), rules.join(", "))
}

#[test]
fn simulation_decides_as_a_live_limiter_on_redis() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = format!(
        "{{ redis: {{ url: \"{}\", clock: caller, timeout: 10s, denial_cache: off }} }}",
        redis.url()
    );
    let live = config(&store);
    let engine = runtime.block_on(Engine::start(&live)).unwrap();
    let offline = config("memory");
    let requests = prop::collection::vec((0_u64..400, 0..ACTIONS.len(), 0_u8..2), 40);
    let cases = Cases {
        cases: 12,
        failure_persistence: None,
        ..Cases::default()
    };
    let cases_seen = std::cell::Cell::new(0_u64);
    TestRunner::new(cases)
        .run(&requests, |requests: Vec<Request>| {
            let case = cases_seen.get() + 1;
            cases_seen.set(case);
            // In the future, so that no wait is told from a later time than that of the request.
            let start = SystemClock::new().now() + Span::HOUR;
            let (mut at, mut log, mut said) = (start, String::new(), Vec::new());
            for (seconds, action, user) in requests {
                at = at + Span::from_secs(seconds);
                // Each case has users of its own, so that it starts without usage.
                let (action, user) = (ACTIONS[action], format!("{case}-{user}"));
                let micros = at.as_micros();
                log +=
                    &format!("{{\"time\":{micros},\"user\":\"{user}\",\"action\":\"{action}\"}}\n");
                let attributes = Attributes::from([("user", user.as_str()), ("action", action)]);
                let snapshot = engine.snapshot().at(at);
                let decision = runtime.block_on(snapshot.ask(&attributes, Ask::Exactly(1)));
                prop_assert!(!decision.store_failed());
                said.push((at, decision));
            }
            let live: Vec<String> = said
                .iter()
                .map(|(_, decision)| describe(decision))
                .collect();
            prop_assert_eq!(live, simulated(&offline, log));
            Ok(())
        })
        .unwrap();
}
