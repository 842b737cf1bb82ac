//! The memory that `plan` and `advise` tell for Redis, against a real Redis that counts its own bytes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::sync::Arc;

use tokio::task::JoinSet;
use tollgate::{Acquire, AcquireOutcome, Attributes, Config, Engine};
use tollgate_rig::Redis;
use tollgate_simulate::redis_bytes;

/// Tasks that ask at the same time.
const CALLERS: usize = 32;
const GCRA: &str = "algorithm: gcra, rate: 1/m, burst: 1000000";
const LOG: &str = "algorithm: sliding-log, limit: 1000000, window: 1d";

/// Redis keeps tables of keys, and each key has a part of them. With 9,000 keys the tables are as full as on average.
///
/// The id of a rule, its other fields, how many requests each subject makes, and how many subjects there are: so many that
/// the buffers of Redis hardly count.
const RULES: [(&str, &str, u64, usize); 18] = [
    ("per-api-key", GCRA, 1, 9_000),
    ("r", GCRA, 1, 9_000),
    ("search-requests-of-a-tenant-in-a-minute", GCRA, 1, 9_000),
    (
        "bucket",
        "algorithm: token-bucket, capacity: 1000, refill: 1/m",
        1,
        9_000,
    ),
    (
        "leaky",
        "algorithm: leaky-bucket, rate: 1/h, queue: 100",
        1,
        9_000,
    ),
    (
        "shape",
        "algorithm: leaky-bucket, rate: 1/h, queue: 100, shape: true",
        1,
        9_000,
    ),
    (
        "window",
        "algorithm: fixed-window, limit: 1000, window: 1d",
        1,
        9_000,
    ),
    (
        "two",
        "algorithm: sliding-counter, limit: 1000, window: 1d, estimate: two-window",
        1,
        12_000,
    ),
    (
        "ten",
        "algorithm: sliding-counter, limit: 1000, window: 1d, buckets: 10",
        1,
        12_000,
    ),
    (
        "sixty",
        "algorithm: sliding-counter, limit: 1000, window: 1d, buckets: 60",
        1,
        12_000,
    ),
    (
        "quota",
        "algorithm: quota, limit: 1000, period: year",
        1,
        12_000,
    ),
    (
        "backoff",
        "algorithm: token-bucket, capacity: 1000, refill: 1/m, backoff: { base: 1h }",
        1,
        9_000,
    ),
    (
        "slots",
        "algorithm: concurrency, limit: 5, lease: 1h",
        1,
        6_000,
    ),
    ("log-1", LOG, 1, 12_000),
    ("log-5", LOG, 5, 6_000),
    ("log-30", LOG, 30, 2_000),
    ("log-100", LOG, 100, 500),
    ("log-300", LOG, 300, 200),
];

fn config(redis: &Redis, id: &str, rule: &str) -> Config {
    let text = format!(
        "version: 1\nstore: {{ redis: {{ url: \"{}\", timeout: 10s }} }}\n\
         subjects: {{ hash_secret: a secret of a test }}\n\
         rules: [{{ id: {id}, per: [tenant], {rule} }}]\n",
        redis.url()
    );
    tollgate::parse("rules.yaml", &text, &|_| None).unwrap()
}

/// Lets each subject make its requests.
async fn ask(engine: &Arc<Engine>, prefix: &'static str, subjects: usize, requests: u64) {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let engine = Arc::clone(engine);
        callers.spawn(async move {
            for subject in (caller..subjects).step_by(CALLERS) {
                let tenant = format!("{prefix}-{subject}");
                let attributes = Attributes::from([("tenant", tenant.as_str())]);
                for _ in 0..requests {
                    one(&engine, &attributes).await;
                }
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
}

async fn one(engine: &Engine, attributes: &Attributes<'_>) {
    let rules = engine.rules();
    if rules.rules()[0].algorithm().name() != "concurrency" {
        assert!(engine.check(attributes).await.is_allowed());
        return;
    }
    let acquired = engine.acquire(attributes, &Acquire::default()).await;
    let AcquireOutcome::Granted { .. } = acquired.unwrap() else {
        panic!("a lease was denied");
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn estimates_are_within_a_tenth_of_what_redis_counts() {
    let mut wrong = Vec::new();
    for (id, rule, requests, subjects) in RULES {
        let redis = Redis::start();
        let config = config(&redis, id, rule);
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        // Connections, scripts and buffers are there before the first reading.
        ask(&engine, "warm", 2 * CALLERS, requests).await;
        let before = redis.used_memory();
        ask(&engine, "subject", subjects, requests).await;
        let measured = (redis.used_memory() - before) as f64 / subjects as f64;
        let estimate = redis_bytes(&config.policy.rules[0], requests) as f64;
        engine.close().await;
        let ratio = estimate / measured;
        if !(0.9..=1.1).contains(&ratio) {
            wrong.push(format!(
                "{id}: {estimate} instead of {measured:.0} ({ratio:.2})"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
