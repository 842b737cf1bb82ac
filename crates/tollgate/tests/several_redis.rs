//! Two Redis servers as stores of one config, and one of them killed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use tollgate::{Ask, Attributes, Config, Engine, Guarantee, Reserve, ReserveOutcome, Span};
use tollgate_rig::Redis;

fn config(default: &Redis, abuse: &Redis) -> Config {
    let settings = "timeout: 5s, connect_timeout: 5s, denial_cache: off, \
                    circuit_breaker: { timeout_duration: 1h }";
    let (default, abuse) = (default.url(), abuse.url());
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ url: \"{default}\", {settings} }} }}\n\
         stores: {{ abuse: {{ redis: {{ url: \"{abuse}\", {settings} }} }} }}\n\
         rules:\n  \
         - {{ id: near, per: [user], store: local, algorithm: fixed-window, limit: 9, window: 30d }}\n  \
         - {{ id: main, per: [user], algorithm: fixed-window, limit: 6, window: 30d, on_store_failure: fail-closed }}\n  \
         - {{ id: far, per: [user], store: abuse, algorithm: fixed-window, limit: 4, window: 30d, on_store_failure: fail-open }}\n"
    );
    tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap()
}

fn ann() -> Attributes<'static> {
    Attributes::from([("user", "ann")])
}

/// Returns what each rule has left.
async fn left(engine: &Engine) -> Vec<(String, Option<u64>)> {
    let decision = engine.peek(&ann(), Ask::Exactly(1)).await;
    let rules = decision.rules();
    rules
        .map(|it| (it.rule().id().to_owned(), it.remaining()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_store_decides_when_one_is_killed() {
    let (default, abuse) = (Redis::start(), Redis::start());
    let engine = Engine::start(&config(&default, &abuse)).await.unwrap();
    let names: Vec<_> = engine.redis_stores().map(|(name, ..)| name).collect();
    assert_eq!(names, [None, Some("abuse")]);
    let places: Vec<_> = engine.fingerprint_mismatches().collect();
    assert_eq!(places, [("redis", false), ("redis abuse", false)]);
    for _ in 0..4 {
        let decision = engine.check(&ann()).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.guarantee(), Guarantee::Compensated);
    }
    let denied = engine.check(&ann()).await;
    assert_eq!(denied.rule().unwrap().rule().id(), "far");
    let found = left(&engine).await;
    let expected = [("near", 5), ("main", 2), ("far", 0)];
    let expected = expected.map(|(rule, left)| (rule.to_owned(), Some(left)));
    assert_eq!(found, expected);
    // A reservation over all stores is denied, and leaves nothing behind.
    let reserve = Reserve {
        units: 1,
        ttl: Some(Span::MINUTE),
        ..Reserve::default()
    };
    let reserved = engine.reserve(&ann(), &reserve).await;
    assert!(matches!(reserved, Ok(ReserveOutcome::Denied(_))));
    assert_eq!(left(&engine).await, expected);

    abuse.kill();
    // `far` fails open. The rules of the healthy stores decide, and are charged once.
    for left in [1, 0] {
        let decision = engine.check(&ann()).await;
        assert!(decision.is_allowed());
        let main = decision.rules().find(|it| it.rule().id() == "main");
        assert_eq!(main.unwrap().remaining(), Some(left));
    }
    let denied = engine.check(&ann()).await;
    assert_eq!(denied.rule().unwrap().rule().id(), "main");
    engine.close().await;
}
