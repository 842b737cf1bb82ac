//! A simulation decides as a real server does, with the same requests at the same times: `tollgate serve` on a Redis whose
//! clock is the caller's, and a header with the time of each request.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::process::Stdio;

use common::Serving;
use serde_json::{Value, json};
use tollgate::{
    Acquire, AcquireOutcome, Ask, Attributes, Clock, Config, Decision, SystemClock, Time,
};
use tollgate_rig::Redis;
use tollgate_simulate::VirtualLimiter;
use ureq::Agent;

/// A rule of each algorithm, rules that apply together, plans, costs, shadow, back-off, and fair shares.
const RULES: &str = "
default_plan: free
plans:
  free: { tiered: { rate: 2/s, burst: 2 } }
  pro: { tiered: { rate: 5/s, burst: 5 } }
tenants: { t0: { plan: pro }, t1: { overrides: { tiered: { burst: 3 } } } }
rules:
  - { id: fixed, match: { action: [fixed, both] }, per: [tenant], algorithm: fixed-window, limit: 4, window: 2s, cost: 'int(units)' }
  - { id: log, match: { action: [log, both] }, per: [tenant], algorithm: sliding-log, limit: 5, window: 3s, cost: 'int(units)' }
  - { id: counter, match: { action: counter }, per: [tenant], algorithm: sliding-counter, limit: 6, window: 3s, buckets: 10 }
  - { id: two, match: { action: two }, per: [tenant], algorithm: sliding-counter, limit: 6, window: 3s, estimate: two-window }
  - { id: bucket, match: { action: [bucket, both] }, per: [tenant], algorithm: token-bucket, capacity: 5, refill: 2/s, cost: 'int(units)' }
  - { id: gcra, match: { action: gcra }, per: [tenant], algorithm: gcra, rate: 2/s, burst: 3 }
  - { id: leaky, match: { action: leaky }, per: [tenant], algorithm: leaky-bucket, rate: 2/s, queue: 2 }
  - { id: shape, match: { action: shape }, per: [tenant], algorithm: leaky-bucket, rate: 2/s, queue: 2, shape: true }
  - { id: quota, match: { action: quota }, per: [tenant], algorithm: quota, limit: 30, period: year, cost: 'int(units)' }
  - { id: backoff, match: { action: backoff }, per: [tenant], algorithm: gcra, rate: 1/s, burst: 2, backoff: { after: 1, base: 2s, max: 8s } }
  - { id: tiered, match: { action: tiered }, per: [tenant], algorithm: gcra, rate: 1/s, burst: 1 }
  - { id: shadow, match: { action: [gcra, fixed] }, per: [tenant], algorithm: fixed-window, limit: 1, window: 2s, state: shadow }
  - { id: fair, match: { action: fair }, algorithm: token-bucket, capacity: 6, refill: 3/s, fair: { per: [tenant], weights: { plan: { free: 1, pro: 3 } } } }
  - { id: slots, match: { action: slots }, per: [tenant], algorithm: concurrency, limit: 2, lease: 1h }
";
const ACTIONS: [&str; 13] = [
    "fixed", "log", "both", "counter", "two", "bucket", "gcra", "leaky", "shape", "quota",
    "backoff", "tiered", "fair",
];
const TENANTS: u64 = 3;
/// How far the times reach back, in milliseconds. The server accepts times of the last minute.
const BACK: u64 = 45_000;

fn rules(store: &str) -> String {
    format!(
        "version: 1\nstore: {store}\n\
         subjects: {{ hash_secret: a secret of this test, trusted_proxies: [127.0.0.0/8], time_header: X-Request-Start, max_time_skew: 1m }}\n{RULES}"
    )
}

fn config() -> Config {
    let text = rules("memory").replace(", time_header: X-Request-Start, max_time_skew: 1m", "");
    tollgate::parse("rules.yaml", &text, &|_| None).unwrap()
}

/// A real server, and the limiter of a simulation.
struct Both {
    _redis: Redis,
    _folder: tempfile::TempDir,
    server: Serving,
    agent: Agent,
    simulated: VirtualLimiter,
}

impl Both {
    fn start() -> Both {
        let redis = Redis::start();
        let folder = tempfile::tempdir().unwrap();
        let store = format!(
            "{{ redis: {{ url: \"{}\", clock: caller, timeout: 10s, denial_cache: off }} }}",
            redis.url()
        );
        let file = folder.path().join("rules.yaml");
        std::fs::write(&file, rules(&store)).unwrap();
        let args = ["--config", file.to_str().unwrap(), "--log", "off"];
        let agent = Agent::config_builder().http_status_as_error(false).build();
        Both {
            server: Serving::start_with(&args, Stdio::null()),
            _redis: redis,
            _folder: folder,
            agent: agent.into(),
            simulated: VirtualLimiter::new(&config(), Time::default()),
        }
    }

    fn post(&self, path: &str, millis: u64, body: &Value) -> Value {
        let url = format!("{}{path}", self.server.url);
        let request = self.agent.post(&url);
        let request = request.header("x-request-start", millis.to_string());
        let mut response = request.send_json(body).unwrap();
        response.body_mut().read_json().unwrap()
    }
}

/// Returns whether each rule allows, and which one denies.
fn simulated_words(decision: &Decision) -> Vec<String> {
    let rules = decision
        .rules()
        .map(|rule| format!("{} {}", rule.rule().id(), rule.is_allowed()));
    let deciding = (!decision.is_allowed()).then(|| decision.rule().unwrap().rule().id());
    let first = format!("{} {}", decision.is_allowed(), deciding.unwrap_or("-"));
    std::iter::once(first).chain(rules).collect()
}

fn served_words(answer: &Value) -> Vec<String> {
    let is_allowed = answer["allowed"].as_bool().unwrap();
    let rules = answer["rules"].as_array().unwrap().iter();
    let rules = rules.map(|rule| {
        let id = rule["ruleId"].as_str().unwrap();
        format!("{id} {}", rule["allowed"])
    });
    let deciding = if is_allowed {
        "-"
    } else {
        answer["ruleId"].as_str().unwrap()
    };
    std::iter::once(format!("{is_allowed} {deciding}"))
        .chain(rules)
        .collect()
}

/// Returns the next of a row of numbers that look random.
fn next(random: &mut u64) -> u64 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

#[test]
fn server_decides_as_the_simulation() {
    let both = Both::start();
    let mut millis = SystemClock::new().now().as_micros() / 1_000 - BACK;
    let (mut random, mut denied) = (20_261_118, std::collections::BTreeSet::new());
    for place in 0..1_500 {
        // Most requests come in bursts, with pauses between them.
        millis += if next(&mut random).is_multiple_of(40) {
            600
        } else {
            next(&mut random) % 12
        };
        let action = ACTIONS[usize::try_from(next(&mut random)).unwrap() % ACTIONS.len()];
        let tenant = format!("t{}", next(&mut random) % TENANTS);
        let units = (next(&mut random) % 3 + 1).to_string();
        let pairs = [("action", action), ("tenant", &tenant), ("units", &units)];
        both.simulated.set_time(Time::from_micros(millis * 1_000));
        let decision = both
            .simulated
            .ask_now(&Attributes::from(pairs), Ask::Exactly(1));
        let attributes: Value = pairs.iter().map(|(name, value)| (*name, *value)).collect();
        let answer = both.post("/v1/check", millis, &json!({ "attributes": attributes }));
        assert_eq!(answer["decidedAtEpochMicros"], millis * 1_000, "{answer}");
        let (simulated, served) = (simulated_words(&decision), served_words(&answer));
        assert_eq!(served, simulated, "request {place}: {pairs:?} {answer}");
        if !decision.is_allowed() {
            denied.insert(action);
        }
    }
    // The test would show little if a rule denied nothing.
    let expected: std::collections::BTreeSet<&str> = ACTIONS.into_iter().collect();
    assert_eq!(denied, expected);
}

#[test]
fn server_gives_slots_as_the_simulation() {
    let both = Both::start();
    let millis = SystemClock::new().now().as_micros() / 1_000;
    both.simulated.set_time(Time::from_micros(millis * 1_000));
    // The slots that are held: in the simulation, and at the server.
    let (mut held, mut random, mut outcomes) = (Vec::new(), 7, [0, 0]);
    for place in 0..200 {
        if !held.is_empty() && next(&mut random).is_multiple_of(2) {
            let at = usize::try_from(next(&mut random)).unwrap() % held.len();
            let ((id, token), (served, served_token)): (_, (Value, Value)) = held.swap_remove(at);
            both.simulated.free_now(&id, token).unwrap();
            let url = format!("{}/v1/leases/{}", both.server.url, served.as_str().unwrap());
            let freed = both
                .agent
                .delete(&url)
                .header("lease-token", served_token.as_str().unwrap());
            assert!(freed.call().unwrap().status().is_success());
            continue;
        }
        let tenant = format!("t{}", next(&mut random) % TENANTS);
        let pairs = [("action", "slots"), ("tenant", &tenant)];
        let acquired = both
            .simulated
            .try_acquire_now(&Attributes::from(pairs), &Acquire::default(), None)
            .unwrap();
        let attributes: Value = pairs.iter().map(|(name, value)| (*name, *value)).collect();
        let answer = both.post("/v1/leases", millis, &json!({ "attributes": attributes }));
        let is_granted = matches!(acquired, AcquireOutcome::Granted { .. });
        assert_eq!(answer["allowed"], is_granted, "request {place}: {answer}");
        outcomes[usize::from(is_granted)] += 1;
        if let AcquireOutcome::Granted { lease, token, .. } = acquired {
            held.push((
                (lease.id, token),
                (answer["id"].clone(), answer["token"].clone()),
            ));
        }
    }
    assert!(outcomes[0] > 10 && outcomes[1] > 50, "{outcomes:?}");
}
