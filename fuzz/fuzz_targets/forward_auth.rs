//! Sends any headers to `/auth`, from a trusted and from an untrusted peer. Nothing may panic. The answer
//! tells an untrusted peer only that it is untrusted. Every denial is JSON.
//!
//! The first byte selects the peer and the path. Then come headers: a byte selects the name, a byte is the length
//! of the value, and the value follows.

#![no_main]

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Request};
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use tollgate::Engine;
use tollgate_config::normal_path;
use tollgate_server::ControlPlane;
use tollgate_server::http::router;
use tollgate_server::net::Peer;
use tower::ServiceExt;

const RULES: &str = r#"
version: 1
subjects:
  trusted_proxies: [10.0.0.0/8, "fd00::/8"]
  internal: [192.0.2.0/24]
  test_header: x-test
routes:
  - { method: [GET, HEAD], host: "api.*", path: "/s*h", action: search }
  - { path: ["/a/*", "*?b"], action: other }
rules:
  - { id: subject, per: [subject], algorithm: gcra, rate: 100/s }
  - { id: ip, match: { action: "*" }, per: [ip], algorithm: sliding-log, limit: 5, window: 1s }
  - { id: path, per: [host, path, method], algorithm: fixed-window, limit: 9, window: 1s }
"#;

const NAMES: [&str; 18] = [
    "x-forwarded-method",
    "x-forwarded-uri",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-original-host",
    "x-original-proto",
    "host",
    "x-api-key",
    "x-user-id",
    "x-tenant-id",
    "x-test",
    "accept",
];

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
    let Some((first, mut rest)) = bytes.split_first() else {
        return;
    };
    let trusted = first & 1 == 0;
    let peer = if trusted {
        [10, 0, 0, 1]
    } else {
        [203, 0, 113, 1]
    };
    let path = ["/auth", "/auth/", "/auth/s/../%73h?q", "/auth?x=y"][usize::from(first >> 1) % 4];
    let mut request = Request::get(path).extension(Peer(SocketAddr::from((peer, 1234))));
    while let [name, length, after @ ..] = rest {
        let (value, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        if let Ok(value) = HeaderValue::from_bytes(value) {
            request = request.header(NAMES[usize::from(*name) % NAMES.len()], value);
        }
        if let Some(normal) = normal_path(value) {
            assert_eq!(normal_path(normal.as_bytes()), Some(normal.clone()));
        }
    }
    let request = request.body(Body::empty()).expect("a request");
    RUNTIME.block_on(async {
        let response = ROUTER.clone().oneshot(request).await.expect("an answer");
        let status = response.status().as_u16();
        let body = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        if trusted {
            assert!(matches!(status, 200 | 400 | 414 | 429 | 431), "{status}");
        } else {
            assert_eq!(status, 403);
        }
        if status == 200 {
            assert!(body.is_empty());
        } else {
            let _: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        }
    });
});
