//! The journal of denials at the admin door: denials of every door, found by subject, with roles and bounds.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use common::{Answer, get, post};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_rig::Redis;
use tollgate_server::journal::Journal;
use tollgate_server::{ControlPlane, Doors};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

struct Server {
    http: SocketAddr,
    resp: SocketAddr,
    admin: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    _stop: oneshot::Sender<()>,
}

impl Server {
    fn start(denials: &str) -> Server {
        Server::start_on(denials, "memory")
    }

    /// Starts a server with state in `store`.
    fn start_on(denials: &str, store: &str) -> Server {
        let digest = Sha256::digest("look");
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let yaml = format!(
            "
version: 1
subjects: {{ hash_secret: a secret of sixteen bytes }}
store: {store}
telemetry: {{ denials: {{ {denials} }} }}
server:
  http: 127.0.0.1:0
  resp: 127.0.0.1:0
  admin: {{ address: \"127.0.0.1:0\", tokens: [{{ name: grafana, role: read, sha256: {hash} }}] }}
plans: {{ free: {{ api: {{ limit: 1 }} }} }}
tenants: {{ acme: {{ plan: free }} }}
rules:
  - {{ id: api, match: {{ action: search }}, per: [tenant], log_denials: all, algorithm: fixed-window, limit: 5, window: 300d }}
  - {{ id: key, match: {{ action: search }}, per: [api_key], algorithm: fixed-window, limit: 100, window: 300d }}
  - {{ id: address, match: {{ action: ping }}, per: [ip], on_store_failure: fail-closed, algorithm: fixed-window, limit: 0, window: 300d }}
  - {{ id: slots, match: {{ action: run }}, per: [tenant, user], algorithm: concurrency, limit: 1, lease: 1h }}
"
        );
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let addresses = runtime.block_on(async {
            let engine = Arc::new(Engine::start(&config).await.unwrap());
            let doors = Doors::open(&config).await.unwrap();
            let addresses = doors.addresses().unwrap();
            let journal = Journal::start(&engine).unwrap();
            let control = ControlPlane::of(engine).with_journal(journal);
            tokio::spawn(doors.serve(Arc::new(control), async {
                drop(stopped.await);
                Duration::ZERO
            }));
            addresses
        });
        let of = |door: &str| addresses.iter().find(|it| it.door == door).unwrap().address;
        Server {
            http: of("http"),
            resp: of("resp"),
            admin: of("admin"),
            runtime: Some(runtime),
            _stop: stop,
        }
    }

    fn post(&self, path: &str, attributes: &Value) -> u16 {
        let body = json!({ "attributes": attributes }).to_string();
        let url = format!("http://{}{path}", self.http);
        post(&url, &body, &[("traceparent", TRACE)]).status
    }

    fn search(&self, key: &str) -> u16 {
        let attributes = json!({ "action": "search", "tenant": "acme", "api_key": key });
        self.post("/v1/check", &attributes)
    }

    fn ask(&self, query: &str) -> Answer {
        let url = format!("http://{}/v1/denials{query}", self.admin);
        get(&url, &[("authorization", "Bearer look")])
    }

    fn denials(&self, query: &str) -> Vec<Value> {
        let answer = self.ask(query);
        assert_eq!(answer.status, 200, "{}", answer.text);
        let body = answer.json();
        body["denials"].as_array().unwrap().clone()
    }

    fn command(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(self.resp).unwrap();
        let text = format!("{command}\r\nQUIT\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

#[test]
fn denial_is_found_by_any_subject_of_its_request() {
    let server = Server::start("");
    assert_eq!([server.search("k1"), server.search("k1")], [200, 429]);
    // The rule of the tenant denies, and the rule of the key has also applied.
    let found = server.denials("?subject=api_key%3Dk1");
    assert_eq!(found.len(), 1, "{found:?}");
    let denial = &found[0];
    assert_eq!(
        (&denial["ruleId"], &denial["door"]),
        (&json!("api"), &json!("http"))
    );
    assert_eq!(
        denial["numbersFrom"],
        "limit 1 (plan free), window 300d (rule)"
    );
    assert_eq!(denial["traceId"], TRACE[3..35]);
    assert_eq!(
        (&denial["limit"], &denial["remaining"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(server.denials("?subject=tenant%3Dacme"), found);
    assert_eq!(
        server.denials("?subject=tenant%3Dacme&rule=api&since=1h&until=0s"),
        found
    );
    let hash = denial["subjectHash"].as_str().unwrap();
    assert_eq!(server.denials(&format!("?hash={hash}")), found);
    assert_eq!(server.denials(&format!("?hash={}", &hash[..8])), found);
    for other in [
        "?subject=api_key%3Dk2",
        "?subject=tenant%3Dcorp",
        "?rule=key",
        "?door=resp",
        "?until=1h",
        "?hash=0123456789abcdef0123456789abcdef",
    ] {
        assert_eq!(server.denials(other), [Value::Null; 0], "{other}");
    }
}

#[test]
fn subject_in_a_body_is_in_no_url() {
    let server = Server::start("");
    assert_eq!([server.search("k1"), server.search("k1")], [200, 429]);
    let ask = |query: &str, body: &Value| {
        let url = format!("http://{}/v1/denials{query}", server.admin);
        post(&url, &body.to_string(), &[("authorization", "Bearer look")])
    };
    let found = server.denials("?subject=api_key%3Dk1");
    let k1 = json!({ "attributes": { "api_key": "k1" } });
    let answer = ask("?rule=api&limit=5", &k1).json();
    assert_eq!(answer["denials"], json!(found));
    let follow = format!("?after={}", answer["next"]);
    assert_eq!(ask(&follow, &k1).json()["denials"], json!([]));
    let other = json!({ "attributes": { "api_key": "k2" } });
    assert_eq!(ask("", &other).json()["denials"], json!([]));
    // Without attributes, the body asks for nothing more.
    let all = ask("", &json!({ "attributes": {} }));
    assert_eq!(all.json()["denials"].as_array().unwrap().len(), 1);
    for wrong in [
        json!({}),
        json!({ "subject": "api_key=k1" }),
        json!({ "attributes": { "nobody": "k1" } }),
    ] {
        let answer = ask("", &wrong);
        assert_eq!(answer.status, 400, "{wrong}");
        assert!(!answer.text.contains("k1"), "{}", answer.text);
    }
}

#[test]
fn denials_of_leases_and_of_redis_clients_are_found() {
    let server = Server::start("");
    let run = json!({ "action": "run", "tenant": "acme", "user": "ann" });
    assert_eq!(server.post("/v1/leases", &run), 201);
    assert_eq!(server.post("/v1/leases", &run), 429);
    let found = server.denials("?subject=tenant%3Dacme&subject=user%3Dann");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0]["kind"], &found[0]["subjectType"]),
        (&json!("concurrency"), &json!("tenant+user"))
    );
    let answer = server.command("TG.CHECK action ping ip 192.0.2.7");
    assert!(!answer.is_empty());
    let found = server.denials("?subject=ip%3D192.0.2.7");
    assert_eq!((found.len(), &found[0]["door"]), (1, &json!("resp")));
    for _ in 0..3 {
        server.command("CL.THROTTLE bob 1 1 3600");
    }
    let found = server.denials("?subject=key%3Dbob");
    assert_eq!((found.len(), &found[0]["ruleId"]), (1, &json!("@throttle")));
}

#[test]
fn denials_of_redis_and_of_failure_policies_are_found() {
    let redis = Redis::start();
    let server = Server::start_on("", &format!("{{ redis: {{ url: \"{}\" }} }}", redis.url()));
    assert_eq!([server.search("k1"), server.search("k1")], [200, 429]);
    let found = server.denials("?subject=tenant%3Dacme");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["reason"], "exceeded");
    assert!(found[0]["redisLatencyMillis"].as_f64().unwrap() > 0.0);
    redis.kill();
    let ping = json!({ "action": "ping", "ip": "192.0.2.7" });
    assert_eq!(server.post("/v1/check", &ping), 429);
    let found = server.denials("?subject=ip%3D192.0.2.7");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0]["reason"], &found[0]["policy"]),
        (&json!("store_failed"), &json!("fail-closed"))
    );
    assert_eq!(
        (&found[0]["retryAfterMillis"], found[0].get("remaining")),
        (&json!(5000), None)
    );
}

#[test]
fn reader_follows_with_a_cursor() {
    let server = Server::start("");
    server.search("k1");
    let empty = server.ask("").json();
    assert_eq!((&empty["denials"], &empty["next"]), (&json!([]), &json!(1)));
    for _ in 0..3 {
        server.search("k1");
    }
    let first = server.ask("?after=1&limit=2&wait=30").json();
    let count = first["denials"].as_array().unwrap().len() as u64;
    assert!((1..=2).contains(&count), "{first}");
    assert_eq!(
        (&first["next"], &first["missed"]),
        (&json!(1 + count), &json!(0))
    );
    let mut seen = count;
    while seen < 3 {
        let next = server.ask(&format!("?after={}&wait=30", seen + 1)).json();
        seen += next["denials"].as_array().unwrap().len() as u64;
    }
    let last = server.ask("?after=4").json();
    assert_eq!((&last["denials"], &last["next"]), (&json!([]), &json!(4)));
}

#[test]
fn bad_queries_and_clients_without_a_role_are_refused() {
    let server = Server::start("");
    for (query, expected) in [
        ("?subject=k1-is-secret", "NAME=VALUE"),
        (
            "?subject=nobody%3Dk1-is-secret",
            "subjects of api_key, ip, tenant",
        ),
        ("?subject=a%20b%3Dk1-is-secret", "NAME=VALUE"),
        ("?hash=k1-is-secret", "hexadecimal"),
        ("?since=never", "is not a time"),
        ("?limit=5000", "1 to 1000"),
        ("?wait=5", "needs after"),
        ("?users=k1", "unknown parameter"),
    ] {
        let answer = server.ask(query);
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.text.contains(expected), "{query}: {}", answer.text);
        assert!(!answer.text.contains("k1-is-secret"), "{}", answer.text);
    }
    let url = format!("http://{}/v1/denials", server.admin);
    assert_eq!(get(&url, &[]).status, 401);
    let http = format!("http://{}/v1/denials", server.http);
    assert_eq!(get(&http, &[]).status, 404, "not at the door of clients");
}

#[test]
fn metrics_show_the_journal() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("denials");
    let server = Server::start(&format!("directory: {}", directory.display()));
    server.search("k1");
    server.search("k1");
    assert_eq!(server.denials("").len(), 1);
    let url = format!("http://{}/metrics", server.admin);
    let page = get(&url, &[("authorization", "Bearer look")]).text;
    for line in [
        "rate_limit_journal_written_total 1",
        "rate_limit_journal_dropped_total{cause=\"queue_full\"} 0",
        "rate_limit_journal_dropped_total{cause=\"disk_failed\"} 0",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}\n{page}");
    }
    let files = std::fs::read_dir(&directory).unwrap();
    let size: u64 = files.map(|it| it.unwrap().metadata().unwrap().len()).sum();
    assert!(
        page.contains(&format!("rate_limit_journal_bytes {size}\n")),
        "{page}"
    );
}
