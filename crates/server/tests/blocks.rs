//! A subject that is blocked at one instance is denied at every door of every instance.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

#[path = "common/own.rs"]
mod own;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use own::{TollgateClient, attributes, check, pb};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_rig::{Redis, Reply, Resp};
use tollgate_server::audit::{Audit, Query};
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_server::{ControlPlane, Doors};
use tonic::transport::Channel;

const RULES: &str = "
subjects: { hash_secret: 0123456789abcdef, trusted_proxies: [127.0.0.0/8] }
rules:
  - { id: address, per: [ip], algorithm: fixed-window, limit: 1000, window: 365d }
  - { id: slots, match: { action: work }, per: [ip], algorithm: concurrency, limit: 100, lease: 1h }
";

struct Instance {
    doors: Vec<(&'static str, SocketAddr)>,
    control: Arc<ControlPlane>,
    _stop: oneshot::Sender<()>,
}

struct Answer {
    status: u16,
    retry_after: Option<String>,
    body: Value,
}

impl Instance {
    async fn start(store: &str, data: &Path) -> Instance {
        let server = "server: { http: \"127.0.0.1:0\", grpc: \"127.0.0.1:0\", resp: \"127.0.0.1:0\", admin: \"127.0.0.1:0\" }";
        let yaml = format!("version: 1\n{store}\n{server}\n{RULES}");
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        let doors = Doors::open(&config).await.unwrap();
        let addresses = doors.addresses().unwrap();
        let audit = Audit::of(data, &engine).unwrap();
        let control = ControlPlane::new(engine, None, audit).with_overrides(data);
        let control = Arc::new(control);
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(doors.serve(Arc::clone(&control), async {
            drop(stopped.await);
            Duration::ZERO
        }));
        Instance {
            doors: addresses.iter().map(|it| (it.door, it.address)).collect(),
            control,
            _stop: stop,
        }
    }

    fn door(&self, door: &str) -> SocketAddr {
        let found = self.doors.iter().find(|(name, _)| *name == door);
        found.unwrap().1
    }

    /// Sends a request, and a JSON body if there is one.
    fn send(&self, door: &str, method: &str, path: &str, body: Option<Value>) -> Answer {
        let url = format!("http://{}{path}", self.door(door));
        let request = ureq::http::Request::builder().method(method).uri(url);
        let request = request.header("x-forwarded-method", "GET");
        let request = request.header("x-forwarded-uri", "/");
        let request = request.header("x-forwarded-for", BLOCKED);
        let text = body.map(|it| it.to_string()).unwrap_or_default();
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .build()
            .into();
        let mut answer = match method {
            "POST" => agent.run(request.body(text).unwrap()).unwrap(),
            _ => agent.run(request.body(()).unwrap()).unwrap(),
        };
        let retry_after = answer.headers().get("retry-after");
        let retry_after = retry_after.map(|it| it.to_str().unwrap().to_owned());
        let text = answer.body_mut().read_to_string().unwrap();
        Answer {
            status: answer.status().as_u16(),
            retry_after,
            body: serde_json::from_str(&text).unwrap_or(Value::Null),
        }
    }

    fn check(&self, ip: &str) -> Answer {
        let body = json!({ "attributes": { "ip": ip } });
        self.send("http", "POST", "/v1/check", Some(body))
    }
}

const BLOCKED: &str = "203.0.113.7";
const SECRET_REASON: &str = "fraud ring 17";

fn is_blocked(answer: &Answer) {
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert_eq!(answer.body["code"], "BLOCKED");
    let seconds: u64 = answer.retry_after.as_ref().unwrap().parse().unwrap();
    assert!((3000..=3600).contains(&seconds), "{seconds}");
    let millis = answer.body["retryAfterMillis"].as_u64().unwrap();
    assert_eq!(millis.div_ceil(1000), seconds);
    assert!(!answer.body.to_string().contains(SECRET_REASON));
    assert_eq!(answer.body["ruleId"], Value::Null);
}

fn envoy_request(ips: &[&str]) -> RateLimitRequest {
    let descriptors = ips.iter().map(|ip| RateLimitDescriptor {
        entries: vec![Entry {
            key: "ip".to_owned(),
            value: (*ip).to_owned(),
        }],
        ..RateLimitDescriptor::default()
    });
    RateLimitRequest {
        domain: "any".to_owned(),
        descriptors: descriptors.collect(),
        hits_addend: 1,
    }
}

fn field(fields: &[Reply], name: &str) -> Reply {
    let named = |pair: &&[Reply]| pair[0].clone().text() == name;
    let pair = fields.chunks(2).find(named);
    pair.unwrap_or_else(|| panic!("no {name}"))[1].clone()
}

/// Checks that every door of an instance denies the blocked address, and admits another one.
async fn every_door_denies(instance: &Instance) {
    let work = json!({ "attributes": { "ip": BLOCKED, "action": "work" } });
    for path in ["/v1/check", "/v1/reservations", "/v1/leases"] {
        is_blocked(&instance.send("http", "POST", path, Some(work.clone())));
    }
    is_blocked(&instance.send("http", "GET", "/auth", None));
    let peeked = instance.send("http", "POST", "/v1/peek", Some(work.clone()));
    assert_eq!(
        (peeked.status, &peeked.body["code"]),
        (200, &json!("BLOCKED"))
    );
    let batch = json!({ "requests": [work, { "attributes": { "ip": "192.0.2.1" } }] });
    let batch = instance
        .send("http", "POST", "/v1/check/batch", Some(batch))
        .body;
    assert_eq!(batch["decisions"][0]["code"], "BLOCKED");
    assert_eq!(batch["decisions"][1]["allowed"], true);
    assert_eq!(instance.check("192.0.2.1").status, 200);

    let channel = Channel::from_shared(format!("http://{}", instance.door("grpc")));
    let channel = channel.unwrap().connect().await.unwrap();
    let mut client = TollgateClient::new(channel.clone());
    let pairs = [("ip", BLOCKED), ("action", "work")];
    let decision = client.check(check(pairs)).await.unwrap().into_inner();
    let told = (
        decision.allowed,
        decision.code.as_deref(),
        decision.reason.as_deref(),
    );
    assert_eq!(told, (false, Some("BLOCKED"), Some("blocked")));
    assert!(decision.retry_after_millis.unwrap() > 3_000_000);
    let reserve = pb::ReserveRequest {
        attributes: attributes(pairs),
        ..pb::ReserveRequest::default()
    };
    let reserved = client.reserve(reserve).await.unwrap().into_inner();
    assert_eq!(reserved.decision.unwrap().code.as_deref(), Some("BLOCKED"));
    let acquire = pb::AcquireLeaseRequest {
        attributes: attributes(pairs),
        wait_millis: 30_000,
        ..pb::AcquireLeaseRequest::default()
    };
    // A blocked client does not wait.
    let acquired = client.acquire_lease(acquire).await.unwrap().into_inner();
    assert_eq!(acquired.decision.unwrap().code.as_deref(), Some("BLOCKED"));

    let mut envoy = RateLimitServiceClient::new(channel);
    let request = envoy_request(&["192.0.2.1", BLOCKED]);
    let answer = envoy.should_rate_limit(request).await.unwrap().into_inner();
    assert_eq!(answer.overall_code, Code::OverLimit as i32);
    let codes: Vec<i32> = answer.statuses.iter().map(|it| it.code).collect();
    assert_eq!(codes, [Code::Ok as i32, Code::OverLimit as i32]);
    let mut headers = answer.response_headers_to_add.iter();
    let retry_after = headers.find(|it| it.key == "retry-after").unwrap();
    assert!((3000..=3600).contains(&retry_after.value.parse::<u64>().unwrap()));

    let mut resp = Resp::connect(&instance.door("resp").to_string()).unwrap();
    for command in ["TG.CHECK", "TG.RESERVE", "TG.ACQUIRE"] {
        let fields = resp
            .command(&[command, "ip", BLOCKED, "action", "work"])
            .items();
        assert_eq!(field(&fields, "code").text(), "BLOCKED", "{command}");
        assert_eq!(field(&fields, "reason").text(), "blocked");
    }
    let numbers = resp
        .command(&["CL.THROTTLE", "user:bob", "15", "30", "60"])
        .items();
    let numbers: Vec<Reply> = numbers.into_iter().collect();
    assert!(
        matches!(numbers[..2], [Reply::Int(1), Reply::Int(16)]),
        "{numbers:?}"
    );
    let Reply::Int(retry) = numbers[3] else {
        panic!("{numbers:?}");
    };
    assert!((3000..=3600).contains(&retry), "{retry}");
}

async fn block_at_one_and_ask_the_other(store: &str, other_follows: bool) {
    let data = tempfile::tempdir().unwrap();
    let one = Instance::start(store, &data.path().join("one")).await;
    let other = match other_follows {
        true => Instance::start(store, &data.path().join("other")).await,
        false => Instance::start(store, &data.path().join("unused")).await,
    };
    assert_eq!(one.check(BLOCKED).status, 200);
    for subject in ["key=user:bob", &*format!("ip={BLOCKED}")] {
        let block = json!({ "subject": subject, "for": "1h", "reason": SECRET_REASON });
        let set = one.send("admin", "POST", "/v1/blocks", Some(block));
        assert_eq!(set.status, 200, "{}", set.body);
    }
    every_door_denies(&one).await;
    if other_follows {
        // One refresh suffices, and a server refreshes several times a second.
        other.control.overrides().refresh().await;
        assert_eq!(other.check(BLOCKED).status, 403);
        every_door_denies(&other).await;
    }
    let explain = json!({ "attributes": { "ip": BLOCKED } });
    let explained = one.send("admin", "POST", "/v1/explain", Some(explain)).body;
    let words = explained["block"].as_str().unwrap();
    assert!(
        words.starts_with("block:ip:203.0.113.7/32 denies for "),
        "{words}"
    );
    assert!(
        words.ends_with(&format!("by anonymous: {SECRET_REASON}")),
        "{words}"
    );
    assert_eq!(explained["decision"]["code"], "BLOCKED");
    let listed = one.send("admin", "GET", "/v1/blocks", None).body;
    assert_eq!(listed["blocks"].as_array().unwrap().len(), 2);
    assert_eq!(listed["blocks"][0]["network"], "203.0.113.7/32");
    assert!(!listed.to_string().contains("bob"), "{listed}");
    let overrides = one.send("admin", "GET", "/v1/overrides", None).body;
    assert_eq!(overrides["overrides"], json!([]));
    let metrics = format!("http://{}/metrics", one.door("http"));
    let metrics = ureq::get(&metrics)
        .call()
        .unwrap()
        .body_mut()
        .read_to_string()
        .unwrap();
    let series =
        "rate_limit_rejected_total{rule=\"\",subject_type=\"ip\",reason=\"blocked\",kind=\"\"} ";
    let line = metrics
        .lines()
        .find(|line| line.starts_with(series))
        .unwrap();
    assert!(line[series.len()..].parse::<u64>().unwrap() >= 10, "{line}");

    let path = format!("/v1/blocks?subject=ip={BLOCKED}&reason=over");
    assert_eq!(one.send("admin", "DELETE", &path, None).status, 200);
    let again = one.send("admin", "DELETE", &path, None);
    assert_eq!(
        (again.status, &again.body["code"]),
        (404, &json!("NOT_BLOCKED"))
    );
    assert_eq!(one.check(BLOCKED).status, 200);
    other.control.overrides().refresh().await;
    assert_eq!(other.check(BLOCKED).status, 200);
    let trail = one.control.audit().find(Query::default()).await.unwrap();
    let whats: Vec<&str> = trail.entries.iter().map(|it| &*it.what).collect();
    assert_eq!(whats, ["block.clear", "block.set", "block.set"]);
    assert_eq!(trail.entries[0].why.as_deref(), Some("over"));
    assert!(!format!("{trail:?}").contains("user:bob"));
    if other_follows {
        // The other instance made no change, and sees the trail of the fleet.
        let other = other.control.audit();
        for _ in 0..2000 {
            if other.find(Query::default()).await.unwrap().entries.len() == 3 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(
            other.find(Query::default()).await.unwrap().entries,
            trail.entries
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_on_redis_deny_a_blocked_subject_at_every_door() {
    let redis = Redis::start();
    let store = format!(
        "store: {{ redis: {{ url: \"{}\", timeout: 10s, connect_timeout: 10s }} }}",
        redis.url()
    );
    block_at_one_and_ask_the_other(&store, true).await;
    // Redis has hashes and networks only.
    let keys = redis.cli(&["KEYS", "*:overrides:*"]);
    let stored = redis.cli(&["HGETALL", keys.trim()]);
    assert!(!stored.contains("bob"), "{stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_subject_is_denied_at_every_door_with_state_in_memory() {
    block_at_one_and_ask_the_other("store: memory", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_outlives_a_restart_with_state_in_memory() {
    let data = tempfile::tempdir().unwrap();
    let one = Instance::start("store: memory", data.path()).await;
    let block = json!({ "subject": "user=ann", "forever": true, "reason": "abuse" });
    let set = one.send("admin", "POST", "/v1/blocks", Some(block));
    assert_eq!(set.status, 200, "{}", set.body);
    drop(one);
    let file = std::fs::read_to_string(data.path().join("overrides.json")).unwrap();
    assert!(!file.contains("ann"), "{file}");
    let again = Instance::start("store: memory", data.path()).await;
    again.control.refresh().await;
    let ann = json!({ "attributes": { "user": "ann", "ip": "192.0.2.1" } });
    let answer = again.send("http", "POST", "/v1/check", Some(ann));
    assert_eq!(answer.status, 403);
    // Without an end, waiting does not help.
    assert_eq!(
        (answer.retry_after, &answer.body["retryAfterMillis"]),
        (None, &Value::Null)
    );
    assert_eq!(answer.body["message"], "Access is blocked.");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_blocks_are_rejected_with_a_remedy() {
    let data = tempfile::tempdir().unwrap();
    let one = Instance::start("store: memory", data.path()).await;
    for (body, status, code) in [
        (
            json!({ "subject": "ann", "for": "1h", "reason": "x" }),
            422,
            "BAD_OVERRIDE",
        ),
        (
            json!({ "subject": "user=ann", "reason": "x" }),
            422,
            "BAD_OVERRIDE",
        ),
        (
            json!({ "subject": "user=ann", "for": "1h" }),
            422,
            "BAD_OVERRIDE",
        ),
        (json!([]), 422, "BAD_OVERRIDE"),
    ] {
        let answer = one.send("admin", "POST", "/v1/blocks", Some(body.clone()));
        assert_eq!(
            (answer.status, &answer.body["code"]),
            (status, &json!(code)),
            "{body}"
        );
        assert!(
            answer.body["problems"][0]["help"].is_string(),
            "{}",
            answer.body
        );
    }
    for body in [
        json!({}),
        json!({ "subject": "ann" }),
        json!({ "name": "tenant:a/*" }),
        json!({ "x": 1 }),
        json!({ "subject": "ip=203.0.113.9", "reason": "x".repeat(501) }),
    ] {
        let answer = one.send("admin", "POST", "/v1/blocks/remove", Some(body.clone()));
        assert_eq!(
            (answer.status, &answer.body["code"]),
            (400, &json!("BAD_REQUEST")),
            "{body}"
        );
    }
    for path in [
        "/v1/blocks",
        "/v1/blocks?subject=ann",
        "/v1/blocks?name=tenant:a/*",
        "/v1/blocks?x=1",
    ] {
        let answer = one.send("admin", "DELETE", path, None);
        assert_eq!(
            (answer.status, &answer.body["code"]),
            (400, &json!("BAD_REQUEST")),
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_secret_only_networks_are_blocked_for_good() {
    let rules = "version: 1\nrules: [{ id: all, algorithm: fixed-window, limit: 5, window: 1d }]";
    let config = tollgate_config::parse("rules.yaml", rules, &|_| None).unwrap();
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let data = tempfile::tempdir().unwrap();
    let audit = Audit::start(data.path()).unwrap();
    let control = ControlPlane::new(engine, None, audit).with_overrides(data.path());
    let block = |subject: &str| format!(r#"{{"subject":"{subject}","for":"1h","reason":"x"}}"#);
    let refused = control.overrides().block(&block("user=ann"), "ops").await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("subjects.hash_secret"), "{error}");
    let network = control
        .overrides()
        .block(&block("ip=10.0.0.0/8"), "ops")
        .await;
    assert_eq!(network.unwrap().name(), "block:ip:10.0.0.0/8");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_blocks_is_bounded() {
    let redis = Redis::start();
    let store = format!(
        "store: {{ redis: {{ url: \"{}\", timeout: 10s }} }}",
        redis.url()
    );
    let data = tempfile::tempdir().unwrap();
    let one = Instance::start(&store, data.path()).await;
    let first = json!({ "subject": "ip=10.0.0.1", "for": "1h", "reason": "x" });
    assert_eq!(
        one.send("admin", "POST", "/v1/blocks", Some(first.clone()))
            .status,
        200
    );
    let key = redis.cli(&["KEYS", "*:overrides:*"]);
    // Another instance has set the other blocks.
    let script = "local text = redis.call('HGET', KEYS[1], 'block:ip:10.0.0.1/32') \
        for place = 1, 9999 do \
          local ip = '10.1.' .. math.floor(place / 250) .. '.' .. place % 250 .. '/32' \
          redis.call('HSET', KEYS[1], 'block:ip:' .. ip, (text:gsub('10.0.0.1/32', ip))) \
        end return redis.call('HINCRBY', KEYS[1], '#', 1)";
    redis.cli(&["EVAL", script, "1", key.trim()]);
    let more = json!({ "subject": "ip=10.2.0.1", "for": "1h", "reason": "x" });
    let full = one.send("admin", "POST", "/v1/blocks", Some(more));
    assert_eq!(
        (full.status, &full.body["code"]),
        (409, &json!("TOO_MANY_BLOCKS")),
        "{}",
        full.body
    );
    // A known block can be replaced, and overrides have their own bound.
    assert_eq!(
        one.send("admin", "POST", "/v1/blocks", Some(first)).status,
        200
    );
    let scale = json!({ "scale": "50%", "for": "1h", "reason": "x" });
    assert_eq!(
        one.send("admin", "POST", "/v1/overrides", Some(scale))
            .status,
        200
    );
    assert_eq!(one.check("10.1.7.7").status, 403);
    assert_eq!(one.check("10.3.7.7").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_blocks_and_replaced_overrides_are_restored() {
    let data = tempfile::tempdir().unwrap();
    let one = Instance::start("store: memory", data.path()).await;
    let post = |path: &str, body: Value| {
        let answer = one.send("admin", "POST", path, Some(body));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    };
    let ann = "/v1/blocks?subject=user%3Dann";
    let block = json!({ "subject": "user=ann", "for": "1h", "reason": "abuse" });
    let ends = post("/v1/blocks", block)["expiresAtEpochMillis"].clone();
    let removed = one.send("admin", "DELETE", ann, None).body;
    let stored = removed["stored"].clone();
    assert!(!stored.to_string().contains("ann\""), "{removed}");
    post("/v1/overrides/restore", json!({ "stored": stored }));
    let blocks = one.send("admin", "GET", "/v1/blocks", None).body;
    let again = &blocks["blocks"][0];
    assert_eq!(
        (&again["reason"], &again["expiresAtEpochMillis"]),
        (&json!("abuse"), &ends)
    );

    let numbers =
        json!({ "rule": "address", "numbers": { "limit": 50 }, "for": "1h", "reason": "less" });
    post("/v1/overrides", numbers);
    let scale = json!({ "rule": "address", "scale": "10%", "for": "1h", "reason": "fire" });
    let preview = post("/v1/overrides/preview", scale.clone());
    post("/v1/overrides", scale);
    let replaced = preview["replaces"]["stored"].clone();
    post("/v1/overrides/restore", json!({ "stored": replaced }));
    let overrides = one.send("admin", "GET", "/v1/overrides", None).body;
    assert_eq!(overrides["overrides"].as_array().unwrap().len(), 1);
    assert_eq!(overrides["overrides"][0]["effect"], "limit 50");

    let mut expired = replaced;
    expired["expiresAtEpochMillis"] = json!(1);
    for (wrong, status) in [
        (json!({ "stored": expired }), 422),
        (json!({ "stored": {} }), 422),
        (json!({ "stored": 5 }), 422),
        (json!({}), 400),
    ] {
        let answer = one.send(
            "admin",
            "POST",
            "/v1/overrides/restore",
            Some(wrong.clone()),
        );
        assert_eq!(answer.status, status, "{wrong}: {}", answer.body);
    }
}
