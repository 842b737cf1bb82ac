//! Sends any bytes as the body to each path that accepts a body. Nothing may panic, and every answer is JSON.
//!
//! The first byte selects the path.

#![no_main]

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use tollgate::Engine;
use tollgate_server::ControlPlane;
use tollgate_server::http::router;
use tower::ServiceExt;

const RULES: &str = r#"
version: 1
rules:
  - { id: log, match: { action: "a*" }, per: [user], algorithm: sliding-log, limit: 5, window: 1s }
  - { id: cost, when: 'has(attributes.n)', per: [tenant], missing: deny, algorithm: token-bucket,
      capacity: 1000, refill: 10/s, cost: 'int(n) * 2' }
  - { id: shape, match: { action: [b, c] }, algorithm: leaky-bucket, rate: 3/s, queue: 9, shape: true }
  - { id: counter, per: [user], algorithm: sliding-counter, limit: 9, window: 1s, charge_denied: true }
  - { id: slots, match: { action: job }, algorithm: concurrency, limit: 1000000, lease: 100ms }
  - { id: pair, algorithm: sliding-counter, limit: 999, window: 1s, estimate: two-window, state: shadow }
"#;

static ROUTER: LazyLock<Router> = LazyLock::new(|| {
    let config =
        tollgate_config::parse("fuzz.yaml", RULES, &|_| None).expect("the rules are right");
    let engine = Arc::new(Engine::start_unchecked(&config).expect("the store is in memory"));
    router(Arc::new(ControlPlane::of(engine)))
});

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
});

fuzz_target!(|bytes: &[u8]| {
    let Some((first, body)) = bytes.split_first() else {
        return;
    };
    let paths = [
        "/v1/check",
        "/v1/check/batch",
        "/v1/peek",
        "/v1/refund",
        "/v1/reservations",
        "/v1/reservations/unheld/commit",
        "/v1/reservations/unheld/release",
        "/v1/reservations/h1-00000000-00000000000000000000000000000000/extend",
        "/v1/leases",
        "/v1/leases/h1-00000000-00000000000000000000000000000000/renew",
        "/v1/leases/holders",
    ];
    let mut request = Request::post(paths[usize::from(first & 0x7f) % paths.len()]);
    if first & 0x80 != 0 {
        request = request.header("accept", "application/problem+json");
    }
    let request = request.body(Body::from(body.to_vec())).expect("a request");
    RUNTIME.block_on(async {
        let response = ROUTER.clone().oneshot(request).await.expect("an answer");
        let body = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        let _: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    });
});
