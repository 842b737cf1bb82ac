//! In every denial, each field agrees with `Retry-After` or is left out, at every door: HTTP, forward
//! auth, gRPC, Envoy's rate limit service and RESP. No denial says that the limit is reset now.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

#[path = "common/doors.rs"]
mod doors;
#[path = "common/own.rs"]
mod own;

use std::net::SocketAddr;

use doors::Server;
use own::{TollgateClient, attributes, pb};
use serde_json::{Value, json};
use tollgate_rig::{Redis, Reply, Resp};
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate_server::grpc::proto::envoy::r#type::v3::RateLimitUnit;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use tonic::transport::Channel;
use tonic::{Code, Status};

const RULES: &str = r#"
headers: { families: [ietf, ratelimit, x-ratelimit] }
routes: [{ path: /closed, action: closed }, { path: /none, action: none }, { path: /small, action: small }]
rules:
  - { id: closed, match: { action: closed }, algorithm: fixed-window, limit: 3, window: 10m, message: Too many attempts., on_store_failure: fail-closed }
  - { id: none, match: { action: none }, algorithm: gcra, rate: 3/h, message: Too many attempts. }
  - { id: small, match: { action: small }, algorithm: token-bucket, capacity: 3, refill: 1/h, cost: 4, message: Too many attempts. }
  - { id: missing, match: { action: missing }, per: [user], missing: deny, algorithm: quota, limit: 3, period: month, message: Too many attempts. }
  - { id: zero, match: { action: zero }, algorithm: fixed-window, limit: 0, window: 365d }
  - { id: month, match: { action: month }, algorithm: quota, limit: 0, period: month }
  - { id: sliding, match: { action: sliding }, algorithm: sliding-log, limit: 5, window: 1h }
  - { id: open, match: { action: open }, algorithm: gcra, rate: unlimited }
"#;

/// The header fields that describe the state of a limit.
const STATE: [&str; 8] = [
    "ratelimit-policy",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

/// A denial as a door tells it: the fields of the JSON body, and the header fields.
struct Denial {
    status: u16,
    body: Value,
    headers: Vec<(String, String)>,
}

impl Denial {
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| known == name)
            .map(|(_, it)| it.as_str())
    }

    /// Returns the state fields that the denial has.
    fn state(&self) -> Vec<&str> {
        let has = |name: &&str| self.header(name).is_some();
        STATE.into_iter().filter(has).collect()
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into()
}

fn denial(mut response: ureq::http::Response<ureq::Body>) -> Denial {
    let headers = response.headers().iter();
    let headers = headers.map(|(name, value)| {
        let value = value.to_str().unwrap().to_owned();
        (name.as_str().to_owned(), value)
    });
    Denial {
        status: response.status().as_u16(),
        headers: headers.collect(),
        body: response.body_mut().read_json().unwrap(),
    }
}

fn check(server: SocketAddr, action: &str) -> Denial {
    let asked = agent().post(format!("http://{server}/v1/check"));
    let body = json!({ "attributes": { "action": action } });
    denial(asked.send_json(body).unwrap())
}

fn forward_auth(server: SocketAddr, action: &str) -> Denial {
    let asked = agent()
        .get(format!("http://{server}/auth"))
        .header("x-forwarded-method", "GET")
        .header("x-forwarded-uri", format!("/{action}"))
        .header("x-forwarded-host", "example.com")
        .header("x-forwarded-for", "203.0.113.1");
    denial(asked.call().unwrap())
}

/// Returns the fields of a `TG.CHECK` by name; null if a field is null.
fn resp(client: &mut Resp, action: &str) -> Value {
    let fields = client.command(&["TG.CHECK", "action", action]).items();
    let fields = fields.chunks(2).map(|pair| {
        let value = match &pair[1] {
            Reply::Int(number) => json!(number),
            Reply::Bulk(text) => json!(String::from_utf8_lossy(text)),
            _ => Value::Null,
        };
        (pair[0].clone().text(), value)
    });
    Value::Object(fields.collect())
}

async fn channel(server: &Server) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
    endpoint.connect().await.unwrap()
}

async fn envoy(
    server: &Server,
    action: &str,
    limit: Option<RateLimitOverride>,
) -> Result<RateLimitResponse, Status> {
    let mut client = RateLimitServiceClient::new(channel(server).await);
    let entry = Entry {
        key: "action".to_owned(),
        value: action.to_owned(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        limit,
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "any".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    };
    let answer = client.should_rate_limit(request).await;
    answer.map(tonic::Response::into_inner)
}

async fn grpc(server: &Server, action: &str) -> pb::Decision {
    let mut client = TollgateClient::new(channel(server).await);
    let request = pb::CheckRequest {
        attributes: attributes([("action", action)]),
        ..pb::CheckRequest::default()
    };
    client.check(request).await.unwrap().into_inner()
}

/// Returns the names and values of the header fields of an answer to Envoy.
fn envoy_headers(answer: &RateLimitResponse) -> Vec<(&str, &str)> {
    let headers = answer.response_headers_to_add.iter();
    headers
        .map(|it| (it.key.as_str(), it.value.as_str()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_while_redis_is_stopped_say_only_when_to_retry() {
    let redis = Redis::start();
    let store = format!(
        "{{ redis: {{ url: \"{}\", timeout: 1s, connect_timeout: 1s }} }}",
        redis.url()
    );
    let server = Server::start(RULES, &store, "down").await;
    redis.kill();
    let text = "Limits cannot be checked at the moment. Try again in 5 s.";
    let (http, resp_door) = (server.http, server.resp);
    let asking = tokio::task::spawn_blocking(move || {
        let mut client = Resp::connect(&resp_door.to_string()).unwrap();
        for (action, status, code) in [
            ("closed", 429, "STORE_FAILED"),
            ("none", 503, "STORE_UNAVAILABLE"),
        ] {
            let checked = check(http, action);
            let rules = checked.body["rules"].as_array().unwrap().clone();
            for told in [&checked, &forward_auth(http, action)] {
                assert_eq!(told.status, status, "{action}");
                assert_eq!(told.header("retry-after"), Some("5"));
                assert_eq!(told.state(), Vec::<&str>::new(), "{action}");
                assert_eq!(told.body["code"], code);
            }
            let forwarded = forward_auth(http, action).body;
            for body in [&checked.body, &forwarded, &resp(&mut client, action)] {
                assert_eq!(body["message"], text, "{body}");
            }
            for body in [
                &checked.body,
                &forwarded,
                &rules[0],
                &resp(&mut client, action),
            ] {
                assert_eq!(body["limit"], 3);
                assert_eq!(body["retryAfterMillis"], 5000);
                assert_eq!(body["remaining"], Value::Null, "{body}");
                assert_eq!(body["resetAtEpochMillis"], Value::Null, "{body}");
            }
        }
    });
    asking.await.unwrap();

    for action in ["closed", "none"] {
        let told = grpc(&server, action).await;
        assert_eq!(told.message.as_deref(), Some(text));
        assert_eq!(told.retry_after_millis, Some(5000));
        let rule = &told.rules[0];
        assert_eq!((told.remaining, told.reset_at_epoch_millis), (None, None));
        assert_eq!((rule.remaining, rule.reset_at_epoch_millis), (None, None));
    }

    let closed = envoy(&server, "closed", None).await.unwrap();
    assert_eq!(envoy_headers(&closed), [("retry-after", "5")]);
    let over_limit = DescriptorStatus {
        code: closed.overall_code,
        ..DescriptorStatus::default()
    };
    assert_eq!(closed.statuses, [over_limit]);
    let none = envoy(&server, "none", None).await.unwrap_err();
    assert_eq!(none.code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_that_no_wait_helps_have_no_reset() {
    let server = Server::start(RULES, "memory", "never").await;
    let text = "The request costs more than this limit ever allows at once.";
    let (http, resp_door) = (server.http, server.resp);
    let asking = tokio::task::spawn_blocking(move || {
        let checked = check(http, "small");
        let forwarded = forward_auth(http, "small");
        for told in [&checked, &forwarded] {
            assert_eq!(told.status, 429);
            assert_eq!(told.header("retry-after"), None);
            let has = told.state();
            let resets = has.iter().filter(|name| name.ends_with("reset")).count();
            assert_eq!((has.len(), resets), (6, 0), "{has:?}");
            assert_eq!(told.header("ratelimit"), Some("\"small\";r=3"));
            assert_eq!(told.header("x-ratelimit-remaining"), Some("3"));
        }
        let mut client = Resp::connect(&resp_door.to_string()).unwrap();
        let by_resp = resp(&mut client, "small");
        for body in [&checked.body, &forwarded.body, &by_resp] {
            assert_eq!(body["message"], text);
        }
        for body in [
            &checked.body,
            &forwarded.body,
            &by_resp,
            &checked.body["rules"][0],
        ] {
            assert_eq!((&body["limit"], &body["remaining"]), (&json!(3), &json!(3)));
            assert_eq!(body["retryAfterMillis"], Value::Null);
            assert_eq!(body["resetAtEpochMillis"], Value::Null, "{body}");
        }

        let missing = check(http, "missing");
        assert_eq!(missing.status, 429);
        assert_eq!(
            (missing.header("retry-after"), missing.state().len()),
            (None, 0)
        );
        assert_eq!(missing.body["remaining"], Value::Null);
        assert_eq!(missing.body["resetAtEpochMillis"], Value::Null);
        let says = "The request lacks an attribute it must carry.";
        assert_eq!(missing.body["message"], says);
    });
    asking.await.unwrap();

    let told = grpc(&server, "small").await;
    let rule = &told.rules[0];
    assert_eq!(
        (told.remaining, told.reset_at_epoch_millis),
        (Some(3), None)
    );
    assert_eq!(
        (rule.remaining, rule.reset_at_epoch_millis),
        (Some(3), None)
    );

    // Envoy would show an absent reset as 0.
    let told = envoy(&server, "small", None).await.unwrap();
    let over_limit = DescriptorStatus {
        code: told.overall_code,
        ..DescriptorStatus::default()
    };
    assert_eq!(told.statuses, [over_limit]);
    let headers = envoy_headers(&told);
    assert!(headers.contains(&("ratelimit", "\"small\";r=3")));
    let is_reset = |(name, _): &(&str, &str)| name.ends_with("reset");
    assert!(!headers.iter().any(is_reset), "{headers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_learns_the_end_of_an_empty_window_and_that_nothing_is_limited() {
    let server = Server::start(RULES, "memory", "envoy").await;
    let nothing = RateLimitOverride {
        requests_per_unit: 0,
        unit: RateLimitUnit::Day as i32,
    };
    for (action, limit, longest) in [
        ("zero", None, 365 * 86_400),
        ("month", None, 31 * 86_400),
        ("sliding", Some(nothing), 86_400),
    ] {
        let told = envoy(&server, action, limit).await.unwrap();
        let status = &told.statuses[0];
        let current = status.current_limit.as_ref().unwrap();
        assert_eq!((current.requests_per_unit, status.limit_remaining), (0, 0));
        let seconds = status.duration_until_reset.unwrap().seconds;
        assert!((1..=longest).contains(&seconds), "{action}: {seconds}");
    }

    let told = envoy(&server, "open", None).await.unwrap();
    let unlimited = DescriptorStatus {
        code: told.overall_code,
        limit_remaining: u32::MAX,
        ..DescriptorStatus::default()
    };
    assert_eq!(told.statuses, [unlimited]);
}
