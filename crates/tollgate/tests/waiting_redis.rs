//! Requests of two instances that wait for one bucket on a real Redis.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{Ask, Attributes, Engine, HasLimiter, Span, WaitOutcome};
use tollgate_rig::Redis;

const LONG: Span = Span::from_secs(30);

async fn instance(redis: &Redis, rules: &str) -> Arc<Engine> {
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ url: \"{}\", timeout: 5s, connect_timeout: 5s }} }}\n\
         rules:\n{rules}",
        redis.url()
    );
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    Arc::new(Engine::start(&config).await.unwrap())
}

/// Returns how many requests an instance has sent to Redis.
fn sent(engine: &Engine) -> u64 {
    let stores = engine.redis_stores();
    stores
        .map(|(_, store, _)| store.metrics().batches().sum)
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_two_instances_are_all_served_with_few_questions() {
    let redis = Redis::start();
    let rules = "- { id: all, algorithm: gcra, rate: 100/s, burst: 1, max_wait: 30s }";
    let instances = [instance(&redis, rules).await, instance(&redis, rules).await];
    let mut requests = JoinSet::new();
    let before: u64 = instances.iter().map(|it| sent(it)).sum();
    for number in 0..100 {
        let engine = Arc::clone(&instances[number % 2]);
        requests.spawn(async move {
            let nobody = Attributes::new();
            engine.ask_or_wait(&nobody, Ask::Exactly(1), LONG).await
        });
    }
    let mut waited = Span::ZERO;
    while let Some(decision) = requests.join_next().await {
        let decision = decision.unwrap();
        assert!(decision.is_allowed());
        waited = waited.max(decision.waited());
    }
    // The rule admits 100 requests in 0.99 s. They were not all admitted at once.
    assert!(waited >= Span::from_millis(900), "{waited}");
    let questions = instances.iter().map(|it| sent(it)).sum::<u64>() - before;
    // Each request asks when it comes, unless others wait already. Then only the first of each instance asks:
    // for each of the 100 units one instance is admitted, and the other may be denied.
    assert!(questions <= 500, "{questions} questions");
    for engine in &instances {
        let room = engine.waiting_room();
        assert_eq!((room.waiting(), room.queues()), (0, 0));
        let (counts, _) = engine
            .metrics()
            .waits(0)
            .unwrap()
            .ended(WaitOutcome::Admitted);
        assert!(counts.iter().sum::<u64>() >= 40, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_request_gets_its_units_back_on_redis() {
    let redis = Redis::start();
    // The second rule tells how many units were taken in all.
    let rules = "- { id: all, algorithm: gcra, rate: 200/s, burst: 1, max_wait: 30s }\n\
                 - { id: total, algorithm: fixed-window, limit: 1000000, window: 30d }";
    let engine = instance(&redis, rules).await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut admitted = 0;
    for _ in 0..150 {
        let asking = Arc::clone(&engine);
        let request = tokio::spawn(async move {
            let nobody = Attributes::new();
            asking.ask_or_wait(&nobody, Ask::Exactly(1), LONG).await
        });
        // A request that waits is dropped at some moment: before, during or after its question.
        while !request.is_finished() && engine.waiting_room().waiting() == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_micros(random.u64(0..7_000))).await;
        request.abort();
        if let Ok(decision) = request.await {
            admitted += u64::from(decision.is_allowed());
        }
    }
    assert!((1..150).contains(&admitted), "{admitted}");
    let room = engine.waiting_room();
    assert_eq!((room.waiting(), room.queues()), (0, 0));
    // Units are given back after the request has gone.
    for _ in 0..200 {
        let looked = engine.peek(&Attributes::new(), Ask::Exactly(0)).await;
        let total = looked.rules().find(|it| it.rule().id() == "total");
        if total.unwrap().remaining() == Some(1_000_000 - admitted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("units of dropped requests are missing");
}
