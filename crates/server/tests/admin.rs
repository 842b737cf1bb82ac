//! The admin door: tokens and roles, and what operators can do.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Answer, get, post, size};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};

const RULES: &str = "
rules:
  - { id: api, match: { action: search }, per: [user], algorithm: gcra, rate: 2/h, burst: 2, on_store_failure: fail-open }
  - { id: all, algorithm: fixed-window, limit: 1000, window: 30d, state: shadow }
  - id: pool
    match: { action: pool }
    algorithm: token-bucket
    capacity: 100
    refill: 1/h
    fair: { per: [user], weights: { plan: { pro: 3 } }, lanes: { by: priority, shares: { high: 60%, low: 40% } } }
";

struct Server {
    http: SocketAddr,
    admin: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    _stop: oneshot::Sender<()>,
}

impl Server {
    fn start(tokens: &[(&str, &str, &str)]) -> Server {
        let tokens = tokens.iter().map(|(name, role, token)| {
            let digest = Sha256::digest(token);
            let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "name": name, "role": role, "sha256": hash })
        });
        let tokens: Vec<_> = tokens.collect();
        let tokens = match tokens.is_empty() {
            true => String::new(),
            false => format!(", tokens: {}", json!(tokens)),
        };
        let yaml = format!(
            "version: 1\nserver:\n  http: 127.0.0.1:0\n  admin: {{ address: \"127.0.0.1:0\"{tokens} }}\n{RULES}"
        );
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let [http, admin] = runtime.block_on(async {
            let engine = Arc::new(Engine::start(&config).await.unwrap());
            let doors = Doors::open(&config).await.unwrap();
            let addresses = doors.addresses().unwrap();
            tokio::spawn(doors.serve(Arc::new(ControlPlane::of(engine)), async {
                drop(stopped.await);
                Duration::ZERO
            }));
            [addresses[0].address, addresses[1].address]
        });
        Server {
            http,
            admin,
            runtime: Some(runtime),
            _stop: stop,
        }
    }

    fn check(&self, user: &str) -> Answer {
        let body = json!({ "attributes": { "action": "search", "user": user } });
        post(
            &format!("http://{}/v1/check", self.http),
            &body.to_string(),
            &[],
        )
    }

    fn ask(&self, token: &str, path: &str, body: &str) -> Answer {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", authorization.as_str())];
        let headers = if token.is_empty() {
            &[][..]
        } else {
            &headers[..]
        };
        let url = format!("http://{}{path}", self.admin);
        match body {
            "" => get(&url, headers),
            body => post(&url, body, headers),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

const TOKENS: [(&str, &str, &str); 3] = [
    ("grafana", "read", "look"),
    ("support", "operate", "act"),
    ("ops", "admin", "all"),
];
const ANN: &str = r#"{"attributes":{"action":"search","user":"ann"}}"#;

#[test]
fn each_path_needs_a_token_with_its_role() {
    let server = Server::start(&TOKENS);
    let shadow = r#"{"rule":"api","state":"shadow","for":"1h","reason":"x"}"#;
    let block = r#"{"subject":"user=ann","for":"1h","reason":"x"}"#;
    let reading = [
        ("/v1/rules", ""),
        ("/v1/rules/api", ""),
        ("/metrics", ""),
        ("/v1/explain", ANN),
        ("/v1/peek", ANN),
    ];
    let operating = [
        ("/v1/reset", ANN),
        ("/v1/refund", ANN),
        ("/v1/overrides/preview", shadow),
        ("/v1/blocks/preview", block),
    ];
    for (paths, allowed) in [
        (&reading[..], [true; 3]),
        (&operating[..], [false, true, true]),
    ] {
        for (path, body) in paths {
            for wrong in ["", "nonsense", "look act"] {
                let answer = server.ask(wrong, path, body);
                assert_eq!(answer.status, 401, "{path} with {wrong:?}");
                assert_eq!(answer.json()["code"], "NO_TOKEN", "{path}");
                assert_eq!(answer.header("www-authenticate"), "Bearer", "{path}");
            }
            for ((name, _, token), allowed) in TOKENS.iter().zip(allowed) {
                let answer = server.ask(token, path, body);
                let wanted = if allowed { 200 } else { 403 };
                assert_eq!(answer.status, wanted, "{path} by {name}: {}", answer.text);
            }
        }
    }
    // The config file may be compared by an admin only. This server has none.
    assert_eq!(server.ask("", "/v1/config/diff", "").status, 401);
    assert_eq!(server.ask("act", "/v1/config/diff", "").status, 403);
    assert_eq!(server.ask("all", "/v1/config/diff", "").status, 409);
    // Probes need no token. A client without a token cannot find out which paths exist.
    assert_eq!(server.ask("", "/healthz", "").status, 200);
    assert_eq!(server.ask("", "/v1/nothing", "").status, 404);
}

#[test]
fn preview_says_what_an_override_would_change_and_changes_nothing() {
    let server = Server::start(&TOKENS);
    let preview = |body: &str| server.ask("act", "/v1/overrides/preview", body);
    let half = r#"{"rule":"api","rollout":"50%","for":"1h","reason":"<b>slow</b>"}"#;
    let answer = preview(half).json();
    assert_eq!(answer["wanted"]["name"], "rollout:everyone/api");
    assert_eq!(answer["wanted"]["author"], "support");
    assert_eq!(answer["replaces"], json!(null));
    let change = json!({
        "ruleId": "api", "for": "everyone", "what": "rollout", "before": "100%", "after": "50%",
    });
    assert_eq!(answer["changes"], json!([change]));
    let rule = |id: &str| server.ask("look", &format!("/v1/rules/{id}"), "");
    assert_eq!(rule("api").json()["rule"]["rolloutPercent"], 100.0);
    let listed = server.ask("look", "/v1/overrides", "").json();
    assert_eq!(listed["overrides"], json!([]));
    // The override does what its preview has said.
    assert_eq!(server.ask("act", "/v1/overrides", half).status, 200);
    let shown = rule("api").json();
    assert_eq!(shown["rule"]["rolloutPercent"], 50.0);
    let numbers = shown["scopes"][0]["numbers"].as_array().unwrap();
    assert!(numbers.contains(&json!({
        "name": "rollout", "value": "50%", "from": "override rollout:everyone/api: <b>slow</b>",
    })));
    assert!(numbers.contains(&json!({ "name": "rate", "value": "2/h", "from": "rule" })));
    let again = preview(half).json();
    assert_eq!(again["changes"], json!([]));
    assert_eq!(again["replaces"]["effect"], "rollout 50%");
    // What would be rejected is rejected in the same way.
    for (body, code) in [
        ("{}", "BAD_OVERRIDE"),
        (
            r#"{"rule":"all","rollout":"5%","for":"1h","reason":"x"}"#,
            "NO_EFFECT",
        ),
        (
            r#"{"rule":"gone","rollout":"5%","for":"1h","reason":"x"}"#,
            "NO_EFFECT",
        ),
    ] {
        let answer = preview(body);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (422, &json!(code)),
            "{body}"
        );
    }
    let unknown = rule("gone");
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["code"], "NO_SUCH_RULE");
}

#[test]
fn preview_of_a_block_blocks_nobody() {
    let server = Server::start(&TOKENS);
    let body = r#"{"subject":"user=ann","for":"1h","reason":"x"}"#;
    let answer = server.ask("act", "/v1/blocks/preview", body);
    assert!(!answer.text.contains("ann"), "{}", answer.text);
    let change = &answer.json()["changes"][0];
    assert_eq!(change["before"], "decided by the rules");
    assert_eq!(change["after"], "denied before any rule");
    assert_eq!(server.check("ann").status, 200);
}

#[test]
fn without_tokens_every_local_client_may_enter() {
    let server = Server::start(&[]);
    assert_eq!(server.ask("", "/v1/reset", ANN).status, 200);
}

#[test]
fn public_door_does_not_have_the_admin_paths() {
    let server = Server::start(&TOKENS);
    for path in ["/v1/rules", "/v1/reset", "/v1/explain"] {
        let url = format!("http://{}{path}", server.http);
        assert_eq!(
            get(&url, &[("authorization", "Bearer all")]).status,
            404,
            "{path}"
        );
    }
}

#[test]
fn operators_see_the_rules_and_why_they_apply() {
    let server = Server::start(&TOKENS);
    let rules = server.ask("look", "/v1/rules", "").json();
    assert_eq!(
        rules["rules"][0],
        json!({
            "ruleId": "api", "algorithm": "gcra", "state": "enforce", "per": ["user"],
            "limit": 2, "windowMillis": 3_600_000, "rolloutPercent": 100.0, "budget": null,
            "candidateOf": null, "onStoreFailure": "fail-open",
        })
    );
    assert_eq!(rules["rules"][1]["state"], "shadow");
    let explained = server.ask("look", "/v1/explain", ANN).json();
    assert_eq!(explained["configVersion"], rules["configVersion"]);
    let lines = explained["rules"].to_string();
    assert!(lines.contains("api"), "{lines}");
}

#[test]
fn explain_tells_the_share_of_a_client_and_what_it_can_take() {
    let server = Server::start(&TOKENS);
    let body = |user: &str, plan: &str| {
        let pool = json!({ "action": "pool", "user": user, "plan": plan, "priority": "high" });
        json!({ "attributes": pool }).to_string()
    };
    let explain = |user: &str| {
        let answer = server.ask("look", "/v1/explain", &body(user, "pro"));
        answer.json()["rules"][2].as_str().unwrap().to_owned()
    };
    let alone = explain("ann");
    assert!(alone.contains("weight 3 (this client, by plan)"), "{alone}");
    assert!(alone.contains("lane high"), "{alone}");
    assert!(alone.contains("60 of 60 left"), "{alone}");
    let share = "guaranteed share now about 60.00%: weight 3 of about 3 in lane high";
    assert!(alone.contains(share), "{alone}");
    let url = format!("http://{}/v1/check", server.http);
    for (user, plan) in [("ann", "pro"), ("bob", "free")] {
        assert_eq!(post(&url, &body(user, plan), &[]).status, 200);
    }
    let shared = explain("ann");
    let share = "guaranteed share now about 45.00%: weight 3 of about 4 in lane high";
    assert!(shared.contains(share), "{shared}");
}

#[test]
fn operators_reset_and_refund() {
    let server = Server::start(&TOKENS);
    let statuses = || [0; 3].map(|_| server.check("ann").status);
    assert_eq!(statuses(), [200, 200, 429]);

    let reset = server.ask("act", "/v1/reset", ANN);
    assert_eq!(reset.json()["remaining"], 2, "{}", reset.text);
    assert_eq!(statuses(), [200, 200, 429]);

    let refund = r#"{"attributes":{"action":"search","user":"ann"},"cost":1}"#;
    let refunded = server.ask("act", "/v1/refund", refund);
    assert_eq!(refunded.json()["remaining"], 1, "{}", refunded.text);
    assert_eq!(statuses(), [200, 429, 429]);
    // Other subjects are not affected.
    assert_eq!(server.check("bob").json()["remaining"], 1);
}

#[test]
fn bad_requests_are_rejected_as_at_the_public_door() {
    let server = Server::start(&TOKENS);
    let answer = server.ask("act", "/v1/reset", "{");
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (400, Some("BAD_REQUEST"))
    );
    let large = format!(r#"{{"attributes":{{"user":"{}"}}}}"#, "x".repeat(100_000));
    assert_eq!(server.ask("act", "/v1/reset", &large).status, 413);
}

#[test]
fn wrong_tokens_are_counted_and_do_not_lock_out_the_right_one() {
    let server = Server::start(&TOKENS);
    // Not so many that tokens are not compared any more.
    let threads = size(2, 20);
    let wrong = || {
        for _ in 0..15 {
            assert_eq!(server.ask("guess", "/v1/reset", ANN).status, 401);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(wrong);
        }
        for _ in 0..15 {
            assert_eq!(server.ask("act", "/v1/reset", ANN).status, 200);
        }
    });
    // A request without a token is not an attempt.
    assert_eq!(server.ask("", "/v1/reset", ANN).status, 401);
    let metrics = server.ask("look", "/metrics", "").text;
    let counted = format!(
        "\ntollgate_wrong_tokens_total{{door=\"admin\"}} {}\n",
        threads * 15
    );
    assert!(metrics.contains(&counted), "{metrics}");
}

#[test]
fn health_is_answered_without_a_token() {
    let server = Server::start(&TOKENS);
    assert_eq!(server.ask("", "/healthz", "").text, "ok\n");
    let ready = server.ask("", "/readyz", "");
    assert_eq!(ready.status, 200, "{}", ready.text);
    let public = get(&format!("http://{}/readyz", server.http), &[]);
    assert_eq!(
        ready.json()["configVersion"],
        public.json()["configVersion"]
    );
}

/// The log, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_write_is_logged_with_its_author() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let server = Server::start(&TOKENS);
    server.ask("act", "/v1/reset", ANN);
    server.ask("all", "/v1/refund", ANN);
    server.ask("look", "/v1/reset", ANN);
    server.ask("guess", "/v1/reset", ANN);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("tollgate::admin") || it.contains("tollgate::access"))
        .collect();
    let find = |words: [&str; 2]| {
        lines
            .iter()
            .find(|line| words.iter().all(|word| line.contains(word)))
    };
    for words in [
        ["reset", "who=support"],
        ["refund", "who=ops"],
        ["not permitted", "who=grafana"],
        ["wrong token", "peer=\"127.0.0.1\" path=\"/v1/reset\""],
    ] {
        assert!(find(words).is_some(), "{words:?} in\n{log}");
    }
    assert!(!log.contains("guess"), "no token is logged:\n{log}");
    assert!(!log.contains("ann"), "no subject is logged:\n{log}");
}
