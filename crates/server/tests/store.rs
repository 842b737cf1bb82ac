//! The HTTP door in front of a Redis that comes and goes.

mod common;

use common::Running;
use tollgate_rig::Redis;

/// Returns a config with a rule for each failure policy. Each rule allows 3 in 10 minutes, and has the
/// name of its policy.
fn config(redis: &Redis) -> String {
    let policies = [
        ("fail-open", ""),
        ("fail-closed", ""),
        ("local-fallback", ""),
        ("degraded", ""),
        ("cached", ""),
        ("emergency-limit", ", emergency_limit: 2/m"),
    ];
    let rule = |name: &str, more: &str| {
        format!(
            "  - {{ id: {name}, match: {{ action: {name} }}, per: [user], \
             algorithm: fixed-window, limit: 3, window: 10m{more} }}\n"
        )
    };
    let rules =
        policies.map(|(policy, more)| rule(policy, &format!(", on_store_failure: {policy}{more}")));
    format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ url: \"{}\", denial_cache: off, timeout: 1s, connect_timeout: 1s, \
         circuit_breaker: {{ timeout_duration: 1ms }} }} }}\nrules:\n{}{}",
        redis.url(),
        rules.concat(),
        rule("none", "")
    )
}

fn body(action: &str) -> String {
    format!(r#"{{"attributes":{{"action":"{action}","user":"ann"}}}}"#)
}

#[test]
fn each_policy_answers_while_redis_is_down_and_redis_decides_afterwards() {
    let redis = Redis::start();
    let server = Running::start(&config(&redis));
    let first = server.post("/v1/check", &body("cached"));
    assert_eq!(first.status, 200);
    assert_eq!(first.json()["fallback"], serde_json::Value::Null);
    assert_eq!(first.json()["guarantee"], "atomic");
    redis.kill();

    let open = server.post("/v1/check", &body("fail-open"));
    assert_eq!(
        (open.status, &open.json()["fallback"]),
        (200, &"fail-open".into())
    );

    let closed = server.post("/v1/check", &body("fail-closed"));
    assert_eq!(closed.status, 429);
    assert_eq!(closed.header("retry-after"), "5");
    assert_eq!(closed.json()["code"], "STORE_FAILED");

    let none = server.post("/v1/check", &body("none"));
    assert_eq!(none.status, 503);
    assert_eq!(none.header("retry-after"), "5");
    assert_eq!(none.json()["code"], "STORE_UNAVAILABLE");

    let degraded = server.post("/v1/check", &body("degraded"));
    assert_eq!(
        (degraded.status, &degraded.json()["degraded"]),
        (200, &true.into())
    );

    let statuses = |action: &str| [(); 4].map(|()| server.post("/v1/check", &body(action)).status);
    assert_eq!(statuses("local-fallback"), [200, 200, 200, 429]);
    assert_eq!(statuses("cached"), [200, 200, 429, 429]);
    assert_eq!(statuses("emergency-limit"), [200, 200, 429, 429]);

    let refund = server.post("/v1/refund", &body("cached"));
    assert_eq!(refund.status, 503);
    assert_eq!(refund.json()["code"], "STORE_UNAVAILABLE");
    assert!(!refund.text.contains("127.0.0.1"), "{}", refund.text);

    redis.restart();
    tollgate_rig::wait::until(
        "Redis decides again",
        std::time::Duration::from_secs(10),
        || {
            let answer = server.post("/v1/check", &body("fail-open"));
            answer.json()["fallback"] == serde_json::Value::Null
        },
    );
    assert_eq!(server.post("/v1/check", &body("none")).status, 200);
}

#[test]
fn metrics_page_shows_the_state_of_redis() {
    let redis = Redis::start();
    let server = Running::start(&config(&redis));
    server.post("/v1/check", &body("none"));
    redis.kill();
    server.post("/v1/check", &body("fail-open"));
    let page = server.get("/metrics").text;
    for line in [
        r#"rate_limit_redis_latency_ms_count{script="fixed-window",outcome="ok"} 1"#,
        r#"rate_limit_redis_batch_size_bucket{le="1"}"#,
        r#"rate_limit_fallback_total{policy="fail-open"} 1"#,
        r#"rate_limit_breaker_state{server="#,
        "rate_limit_store_in_flight 0",
        "rate_limit_script_errors_total{script=\"fixed-window\",error_type=",
        "rate_limit_known_denials_total 0",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

#[test]
fn batch_travels_together() {
    let redis = Redis::start();
    let server = Running::start(&config(&redis));
    let requests = vec![body("none"); 5].join(",");
    let answer = server.post(
        "/v1/check/batch",
        &format!(r#"{{"requests":[{requests}]}}"#),
    );
    let allowed = answer.json()["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|decision| decision["allowed"] == true)
        .count();
    assert_eq!(allowed, 3);
}
