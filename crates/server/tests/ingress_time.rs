//! The time of a request, brought by a trusted proxy, on a real Redis with `clock: caller`.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;
#[path = "common/grpc.rs"]
mod grpc;
#[path = "common/own.rs"]
mod own;

use common::{Answer, Running};
use grpc::{Grpc, descriptor, request};
use own::{TollgateClient, check};
use tollgate::{Clock, SystemClock};
use tollgate_rig::Redis;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tonic::metadata::AsciiMetadataValue;

/// One request in each second of the clock.
fn rules(redis: &Redis, trusted: &str) -> String {
    format!(
        "version: 1\n\
         subjects:\n  hash_secret: 0123456789abcdef\n  trusted_proxies: [{trusted}]\n  \
         time_header: X-Request-Start\n  max_time_skew: 1m\n\
         store: {{ redis: {{ url: \"{}\", clock: caller, timeout: 5s, connect_timeout: 5s }} }}\n\
         rules:\n\
         - {{ id: api, per: [user], algorithm: fixed-window, limit: 1, window: 1s }}\n\
         - {{ id: daily, match: {{ user: '*' }}, per: [user], algorithm: quota, limit: 100, period: day }}\n",
        redis.url()
    )
}

/// Returns the start of a second, 30 seconds ago, in milliseconds.
fn some_seconds_ago() -> u64 {
    let now = SystemClock::new().now().as_micros() / 1_000_000;
    (now - 30) * 1000
}

fn ask(server: &Running, user: &str, millis: u64) -> Answer {
    let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
    let time = millis.to_string();
    server.post_with("/v1/check", &body, &[("x-request-start", &time)])
}

#[test]
fn check_is_decided_at_the_time_that_a_trusted_proxy_brings() {
    let redis = Redis::start();
    let server = Running::start(&rules(&redis, "127.0.0.0/8"));
    let start = some_seconds_ago();
    let allowed = ask(&server, "ann", start);
    assert_eq!(allowed.status, 200, "{}", allowed.text);
    assert_eq!(allowed.json()["decidedAtEpochMicros"], start * 1000);
    let denied = ask(&server, "ann", start + 999);
    assert_eq!(denied.status, 429);
    // The retry time has passed already: nothing is told that is not true any more.
    assert_eq!(denied.json()["retryAfterMillis"], 0);
    assert_eq!(denied.json()["remaining"], serde_json::Value::Null);
    for later in [1000, 2000, 3000] {
        assert_eq!(ask(&server, "ann", start + later).status, 200, "{later}");
    }
    // A time that is too old is not used.
    let old = ask(&server, "bob", start - 60_000).json();
    assert!(old["decidedAtEpochMicros"].as_u64().unwrap() > start * 1000);
}

#[test]
fn forward_auth_takes_the_time_of_its_proxy() {
    let redis = Redis::start();
    let server = Running::start(&rules(&redis, "127.0.0.0/8"));
    let start = some_seconds_ago();
    let auth = |millis: u64| {
        let seconds = format!("t={}.{:03}", millis / 1000, millis % 1000);
        let headers = [
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-user-id", "ann"),
            ("x-request-start", seconds.as_str()),
        ];
        server.get_with("/auth", &headers).status
    };
    assert_eq!(
        [0, 500, 1000, 1001].map(|later| auth(start + later)),
        [200, 429, 200, 429]
    );
}

#[test]
fn time_of_a_stranger_is_not_used() {
    let redis = Redis::start();
    let server = Running::start(&rules(&redis, "192.0.2.0/24"));
    let start = some_seconds_ago();
    let answer = ask(&server, "ann", start).json();
    assert!(answer["decidedAtEpochMicros"].as_u64().unwrap() > start * 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_grpc_services_take_the_time_of_a_trusted_proxy() {
    let redis = Redis::start();
    let server = Grpc::start(&rules(&redis, "127.0.0.0/8")).await;
    let start = some_seconds_ago();
    let mut own = TollgateClient::new(server.channel().await);
    let mut envoy = server.client().await;
    let at = |millis: u64| AsciiMetadataValue::try_from(millis.to_string()).unwrap();
    for (later, allowed) in [(0, true), (999, false), (1000, true)] {
        let mut asked = tonic::Request::new(check([("user", "ann")]));
        asked
            .metadata_mut()
            .insert("x-request-start", at(start + later));
        let decision = own.check(asked).await.unwrap().into_inner();
        assert_eq!(decision.allowed, allowed, "{later}");
        let mut asked = tonic::Request::new(request([descriptor([("user", "bob")])]));
        asked
            .metadata_mut()
            .insert("x-request-start", at(start + later));
        let answer = envoy.0.should_rate_limit(asked).await.unwrap().into_inner();
        assert_eq!(answer.overall_code() == Code::Ok, allowed, "{later}");
    }
}
