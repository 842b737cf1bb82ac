//! A simulation decides as a live limiter does, with the same requests at the same times: a limiter on a real
//! Redis whose clock is the caller's. All algorithms, several rules of a request, random requests.
//!
//! An instance in mode leased or async decides busy subjects by itself. Within a period, fixed windows and quotas are
//! decided as in the simulation then too, and in mode leased over its end. Other algorithms may admit less, and never more
//! than a simulation in mode exact.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed helper fails its test"
)]

use std::io::Cursor;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use std::sync::Arc;

use tollgate::{
    Ask, Attributes, Clock, Config, Engine, Limiter, ManualClock, Prepaid, Reported, Span, Store,
    SystemClock, Time,
};
use tollgate_redis::{Address, ClockSource, Options, RedisStore, Servers};
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
  - { id: leased, match: { action: leased }, per: [user], algorithm: gcra, rate: 10/h, burst: 3, mode: leased }
  - { id: async, match: { action: async }, per: [user], algorithm: sliding-log, limit: 4, window: 20m, mode: async }
";
const ACTIONS: [&str; 14] = [
    "fixed", "log", "counter", "two", "bucket", "gcra", "leaky", "shape", "quota", "backoff",
    "pair", "counts", "leased", "async",
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
        mapped: ["action", "group"]
            .map(|name| (name.to_owned(), name.to_owned()))
            .to_vec(),
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
    // A request every few seconds is more than the rules allow; after a pause, they allow again.
    let gap = prop_oneof![99 => 0_u64..12, 1 => 300_u64..1_200];
    let user = prop_oneof![9 => Just(0_u8), 1 => Just(1)];
    let requests = prop::collection::vec((gap, 0..ACTIONS.len(), user), 400);
    let cases = Cases {
        cases: 12,
        failure_persistence: None,
        ..Cases::default()
    };
    let cases_seen = std::cell::Cell::new(0_u64);
    // By action: all requests, and those that were denied.
    let counts = std::cell::RefCell::new([(0_u64, 0_u64); ACTIONS.len()]);
    TestRunner::new(cases)
        .run(&requests, |requests: Vec<Request>| {
            let case = cases_seen.get() + 1;
            cases_seen.set(case);
            // In the future, so that no wait is told from a later time than that of the request.
            let start = SystemClock::new().now() + Span::HOUR;
            let (mut at, mut log, mut said) = (start, String::new(), Vec::new());
            for (seconds, place, user) in requests {
                at = at + Span::from_secs(seconds);
                // Each case has users of its own, so that it starts without usage.
                let (action, user) = (ACTIONS[place], format!("{case}-{user}"));
                let (micros, group) = (at.as_micros(), case.to_string());
                log += &format!(
                    "{{\"time\":{micros},\"user\":\"{user}\",\"action\":\"{action}\",\"group\":\"{group}\"}}\n"
                );
                let attributes = Attributes::from([
                    ("user", user.as_str()),
                    ("action", action),
                    ("group", group.as_str()),
                ]);
                let snapshot = engine.snapshot().at(at);
                let decision = runtime.block_on(snapshot.ask(&attributes, Ask::Exactly(1)));
                prop_assert!(!decision.store_failed());
                let (all, denied) = &mut counts.borrow_mut()[place];
                *all += 1;
                *denied += u64::from(!decision.is_allowed());
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
    // Requests that are all allowed would prove little.
    let counts = counts.into_inner();
    for (action, (all, denied)) in ACTIONS.iter().zip(counts) {
        assert!(20 * denied >= all, "{action}: {denied} of {all} denied");
    }
    let all: u64 = counts.iter().map(|(all, _)| all).sum();
    let denied: u64 = counts.iter().map(|(_, denied)| denied).sum();
    assert!(5 * denied >= all, "{denied} of {all} denied");
}

/// The limits of busy subjects, and whether they have periods.
const BUSY: [(&str, bool); 6] = [
    ("algorithm: fixed-window, limit: 40, window: 2s", true),
    ("algorithm: quota, limit: 90, period: year", true),
    ("algorithm: gcra, rate: 50/s, burst: 40", false),
    ("algorithm: token-bucket, capacity: 40, refill: 30/s", false),
    ("algorithm: leaky-bucket, rate: 60/s, queue: 30", false),
    ("algorithm: sliding-log, limit: 40, window: 2s", false),
];

fn busy(rule: &str, mode: &str) -> Config {
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: a secret of this test }}\n\
         rules: [{{ id: api, per: [user], {rule}, {mode} }}]\n"
    );
    tollgate::parse("rules.yaml", &text, &|_| None).unwrap()
}

/// An instance on Redis, with the wrappers of its modes. All clocks are one manual clock.
struct Live {
    limiter: Limiter<Arc<dyn Store>>,
    store: Arc<Reported<Prepaid<RedisStore>>>,
    redis: RedisStore,
    clock: ManualClock,
}

impl Live {
    async fn start(redis: &Redis, config: &Config, start: Time) -> Live {
        let clock = ManualClock::at(start);
        let host = Address {
            host: "127.0.0.1".to_owned(),
            port: redis.port(),
        };
        let mut options = Options::new(Servers::Standalone(host));
        options.timeout = Duration::from_secs(10);
        // Redis expires keys by its own clock.
        options.margin = Span::HOUR;
        options.clock = ClockSource::Caller(Arc::new(clock.clone()));
        let redis = RedisStore::connect(options).await.unwrap();
        let own: Arc<dyn Clock> = Arc::new(clock.clone());
        let prepaid = Prepaid::new(redis.clone(), Arc::clone(&own), 1);
        let store = Arc::new(Reported::new(prepaid, own));
        let limiter = Limiter::builder(config, Arc::clone(&store) as Arc<dyn Store>)
            .clock(clock.clone())
            .build();
        Live {
            limiter,
            store,
            redis,
            clock,
        }
    }

    /// Sends what is due, and waits until draws, refunds and reports have their answers.
    async fn settle(&self) {
        self.store.sweep();
        for _ in 0..3 {
            tokio::task::yield_now().await;
            while self.redis.in_flight() > 0 {
                tokio::time::sleep(Duration::from_micros(50)).await;
            }
        }
    }

    async fn ask(&self, at: Time, user: &str) -> bool {
        self.clock.set(at);
        self.settle().await;
        let attributes = Attributes::from([("user", user)]);
        let decision = self.limiter.check(&attributes).await;
        assert!(!decision.store_failed());
        self.settle().await;
        decision.is_allowed()
    }
}

/// Returns which requests a simulation allows.
fn allowed(config: &Config, times: &[Time], user: &str) -> Vec<bool> {
    let limiter = VirtualLimiter::new(config, times[0]);
    let ask = |at: &Time| {
        limiter.set_time(*at);
        let attributes = Attributes::from([("user", user)]);
        limiter.ask_now(&attributes, Ask::Exactly(1)).is_allowed()
    };
    times.iter().map(ask).collect()
}

/// Returns how many requests were allowed up to each.
fn sums(allowed: &[bool]) -> Vec<usize> {
    let sum = |sum: &mut usize, it: &bool| {
        *sum += usize::from(*it);
        Some(*sum)
    };
    allowed.iter().scan(0, sum).collect()
}

#[test]
fn busy_subjects_of_one_instance_in_each_mode() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let gaps = prop::collection::vec(prop_oneof![9 => 0_u64..30, 1 => 300_u64..1500], 250);
    let cases = Cases {
        cases: 2,
        failure_persistence: None,
        ..Cases::default()
    };
    let runs = std::cell::Cell::new(0_u64);
    for (rule, has_periods) in BUSY {
        for mode in ["mode: leased, slice: 100ms", "mode: async, flush: 100ms"] {
            let decided_here = std::cell::Cell::new(0);
            // In mode async, units that are reported after the end of a period count in the next one. The quota has only
            // one period here.
            let is_same = has_periods && (mode.contains("leased") || rule.contains("quota"));
            let property = |gaps: Vec<u64>| {
                runs.set(runs.get() + 1);
                let user = format!("user-{}", runs.get());
                let mut at = SystemClock::new().now() + Span::HOUR;
                let times = gaps.iter().map(|gap| {
                    at = at + Span::from_millis(*gap);
                    at
                });
                let times: Vec<Time> = times.collect();
                let config = busy(rule, mode);
                let live = runtime.block_on(async {
                    let live = Live::start(&redis, &config, times[0]).await;
                    let mut said = Vec::new();
                    for at in &times {
                        said.push(live.ask(*at, &user).await);
                    }
                    let usage = live.store.reported_usage().decided;
                    let usage = usage + live.store.store().prepaid_usage().covered;
                    decided_here.set(decided_here.get() + usage);
                    said
                });
                let exact = allowed(&busy(rule, "mode: exact"), &times, &user);
                let simulated = allowed(&config, &times, &user);
                if is_same {
                    prop_assert_eq!(&live, &simulated, "{}, {}", rule, mode);
                    prop_assert_eq!(&exact, &simulated);
                }
                let both = sums(&live).into_iter().zip(sums(&exact));
                for (place, (live, exact)) in both.enumerate() {
                    prop_assert!(
                        live <= exact,
                        "{}, {}: {} instead of {} after {} requests",
                        rule,
                        mode,
                        live,
                        exact,
                        place + 1
                    );
                }
                Ok(())
            };
            TestRunner::new(cases.clone()).run(&gaps, property).unwrap();
            // Otherwise this test would compare the store with itself.
            assert!(decided_here.get() > 50, "{rule}, {mode}");
        }
    }
}
