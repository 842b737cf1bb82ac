//! A config that changes while the doors are open: what follows it, what is rejected, and where
//! that is reported.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;
#[path = "common/grpc.rs"]
mod envoy;

use std::io::Write;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};

use common::config_file::ConfigFileServer;
use common::{Answer, get};
use envoy::{Client, descriptor, request};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tollgate_server::control::{Outcome, ReloadError};
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Channel;

fn rule(id: &str, limit: u32) -> String {
    format!(
        "  - {{ id: {id}, per: [user], algorithm: fixed-window, limit: {limit}, window: 30d }}\n"
    )
}

fn rules(rules: &[(&str, u32)]) -> String {
    let rules: String = rules.iter().map(|(id, limit)| rule(id, *limit)).collect();
    format!("version: 1\nheaders: {{ families: [ietf] }}\nrules:\n{rules}")
}

const ANN: &str = r#"{"user":"ann"}"#;

fn limit_of(answer: &Answer) -> Value {
    answer.json()["limit"].clone()
}

#[test]
fn operators_reload_and_everything_follows() {
    let server = ConfigFileServer::start(&rules(&[("api", 5), ("gone", 9)]));
    let first = server.check(ANN);
    let policies = r#""api";q=5;w=2592000, "gone";q=9;w=2592000"#;
    assert_eq!(first.header("ratelimit-policy"), policies);
    let before = first.json()["configVersion"].clone();

    server.write(&rules(&[("new", 8), ("api", 7)]));
    assert_eq!(limit_of(&server.check(ANN)), 5, "nobody has looked yet");
    let body = json!({ "reason": "more room for ann" }).to_string();
    let reloaded = server.ask("", "/v1/reload", Some(&body));
    assert_eq!(reloaded.status, 200, "{}", reloaded.text);
    let version = reloaded.json()["configVersion"].clone();
    assert_ne!(version, before);
    let named = |id: &str| json!({ "count": 1, "ids": [id] });
    let changes =
        json!({ "added": named("new"), "removed": named("gone"), "changed": named("api") });
    assert_eq!(
        reloaded.json(),
        json!({
            "outcome": "applied", "configVersion": version, "rules": 2,
            "changes": changes, "needsRestart": [],
            "differences": [
                "rule gone: is gone: all requests are no longer limited by it",
                "rule new: is new: fixed-window of limit 8, window 30d, per user, for all requests; it denies",
                "rule api: limit 5 becomes 7: more for tenants without a plan",
            ],
        })
    );

    // The state is kept. The numbers and headers are new, in the new order.
    let after = server.check(ANN);
    let policies = r#""new";q=8;w=2592000, "api";q=7;w=2592000"#;
    assert_eq!(after.header("ratelimit-policy"), policies);
    assert_eq!(after.json()["configVersion"], version);
    assert_eq!(after.json()["rules"][1]["remaining"], 7 - 3);

    let ready = server.get("/readyz");
    assert_eq!(ready.status, 200);
    let config = &ready.json()["config"];
    assert_eq!(config["version"], version);
    assert_eq!(config["needsRestart"], json!([]));
    assert!(config.get("refused").is_none(), "{config}");
    assert!(config["loadedAt"].as_str().unwrap().ends_with('Z'));
    let page = server.get("/metrics").text;
    for line in [
        r#"rate_limit_checks_total{rule="api",algorithm="fixed-window",outcome="allowed"} 3"#,
        r#"rate_limit_checks_total{rule="new",algorithm="fixed-window",outcome="allowed"} 1"#,
        r#"rate_limit_config_reloads_total{outcome="applied"} 1"#,
        r#"rate_limit_config_reloads_total{outcome="refused"} 0"#,
        "rate_limit_config_last_reload_success 1",
        "rate_limit_audit_errors_total 0",
        &format!("config_version={version}}} 1"),
    ] {
        assert!(page.contains(&format!("{line}\n")), "{line}\n{page}");
    }
    assert!(!page.contains("gone"), "{page}");

    let again = server.reload().json();
    assert_eq!(again["outcome"], "unchanged");
    assert_eq!(again["configVersion"], version);
    let trail = server.trail("");
    assert_eq!(
        trail.len(),
        1,
        "an unchanged config is not audited: {trail:?}"
    );
    let mut entry = trail[0].clone();
    assert!(entry.as_object_mut().unwrap().remove("at").is_some());
    let expected = json!({
        "who": "anonymous", "what": "config.reload", "why": "more room for ann", "v": 1,
        "from": { "version": before },
        "to": { "version": version, "rules": changes, "differences": reloaded.json()["differences"] },
    });
    assert_eq!(entry, expected);
}

#[test]
fn bad_file_changes_nothing_and_is_reported_until_it_is_fixed() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let good = rules(&[("api", 5)]);
    let server = ConfigFileServer::start(&good);
    let version = server.check(ANN).json()["configVersion"].clone();
    let bad = good
        .replace("limit: 5", "limit: none")
        .replace("30d", "soon");
    server.write(&bad);
    let refused = server.reload();
    assert_eq!(refused.status, 422, "{}", refused.text);
    let body = refused.json();
    assert_eq!(body["code"], "BAD_CONFIG");
    let problems = body["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 2, "{body}");
    let file = server.file().display().to_string();
    for problem in problems {
        let at = problem["at"].as_str().unwrap();
        assert!(at.starts_with(&format!("{file}:4:")), "{at}");
        assert!(problem["help"].is_string(), "{problem}");
        let logged = format!("at={at:?}");
        let log = log.text();
        let lines = log.lines().filter(|line| line.contains("tollgate::config"));
        assert_eq!(lines.filter(|it| it.contains(&logged)).count(), 1, "{log}");
    }

    let answer = server.check(ANN);
    assert_eq!(
        (limit_of(&answer), &answer.json()["configVersion"]),
        (json!(5), &version)
    );
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 200, "what is in force works");
    let first = &problems[0];
    let told = format!(
        "{}: {}",
        first["at"].as_str().unwrap(),
        first["message"].as_str().unwrap()
    );
    assert_eq!(ready.json()["config"]["refused"], told);
    assert_eq!(ready.json()["config"]["version"], version);
    let counted = |refused: u64, success: u64| {
        let page = server.get("/metrics").text;
        let line = format!("rate_limit_config_reloads_total{{outcome=\"refused\"}} {refused}\n");
        assert!(page.contains(&line), "{page}");
        let line = format!("rate_limit_config_last_reload_success {success}\n");
        assert!(page.contains(&line), "{page}");
    };
    counted(1, 0);
    let entry = &server.trail("what=config.refused")[0];
    assert_eq!(entry["to"], told);
    assert_eq!(entry["from"]["version"], version);

    // Back to the old text: nothing to do, and no problem left.
    server.write(&good);
    assert_eq!(server.reload().json()["outcome"], "unchanged");
    assert!(
        server.get("/readyz").json()["config"]
            .get("refused")
            .is_none()
    );
    counted(1, 1);
    server.write(&bad);
    assert_eq!(server.reload().status, 422);
    counted(2, 0);
    server.write(&rules(&[("api", 6)]));
    assert_eq!(server.reload().json()["outcome"], "applied");
    counted(2, 1);
    assert_eq!(limit_of(&server.check(ANN)), 6);
}

#[test]
fn changed_file_is_seen_however_it_was_changed() {
    let server = ConfigFileServer::start(&rules(&[("api", 5)]));
    let applied = |limit: u32| {
        let change = server.look().unwrap().unwrap();
        assert_eq!(change.outcome, Outcome::Applied);
        assert_eq!(limit_of(&server.check(ANN)), limit);
        assert_eq!(server.look(), None, "once");
    };
    assert_eq!(server.look(), None);
    server.write(&rules(&[("api", 6)]));
    applied(6);
    // Editors write a new file, and replace the old one.
    let aside = server.folder.path().join("rules.yaml.new");
    std::fs::write(&aside, rules(&[("api", 7)])).unwrap();
    std::fs::rename(&aside, server.file()).unwrap();
    applied(7);
    // The file is removed, and put back.
    std::fs::rename(server.file(), &aside).unwrap();
    let Some(Err(ReloadError::Rejected(refused))) = server.look() else {
        panic!("a file that is not there is not right");
    };
    assert!(
        refused.to_string().contains("rules.yaml: cannot read"),
        "{refused}"
    );
    assert_eq!(limit_of(&server.check(ANN)), 7);
    std::fs::rename(&aside, server.file()).unwrap();
    let change = server.look().unwrap().unwrap();
    assert_eq!(change.outcome, Outcome::Unchanged);
    // The file is written again with the same text.
    server.write(&rules(&[("api", 7)]));
    assert_eq!(server.look().unwrap().unwrap().outcome, Outcome::Unchanged);
    let who: Vec<Value> = server
        .trail("")
        .iter()
        .map(|it| it["who"].clone())
        .collect();
    assert_eq!(who, ["file", "file", "file"]);
}

#[test]
fn directory_that_is_switched_by_its_link_is_seen() {
    // As Kubernetes mounts a ConfigMap: the file is a link into `..data`, which is a link that is
    // replaced as a whole.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, limit) in [("..1", 5), ("..2", 6)] {
        std::fs::create_dir(at(version)).unwrap();
        std::fs::write(at(version).join("rules.yaml"), rules(&[("api", limit)])).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/rules.yaml", at("rules.yaml")).unwrap();
    let path = at("rules.yaml");
    let [aside, data, old] = [at("..data_tmp"), at("..data"), at("..1")];
    let server = ConfigFileServer::at(folder, &path);
    assert_eq!(limit_of(&server.check(ANN)), 5);
    symlink("..2", &aside).unwrap();
    std::fs::rename(&aside, &data).unwrap();
    std::fs::remove_dir_all(old).unwrap();
    assert_eq!(server.look().unwrap().unwrap().outcome, Outcome::Applied);
    assert_eq!(limit_of(&server.check(ANN)), 6);
}

#[test]
fn without_a_file_there_is_nothing_to_reload() {
    let config = tollgate_config::parse("rules.yaml", &rules(&[("api", 5)]), &|_| None).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = tollgate::Engine::start(&config).await.unwrap();
        let control = Arc::new(tollgate_server::ControlPlane::of(Arc::new(engine)));
        assert_eq!(control.look().await, None);
        let mut routes = tollgate_server::admin::router(control);
        let request = http::Request::post("/v1/reload");
        let request = request.body(axum::body::Body::empty()).unwrap();
        let answer = tower_service::Service::call(&mut routes, request)
            .await
            .unwrap();
        assert_eq!(answer.status(), 409);
    });
}

#[test]
fn sections_that_need_a_restart_are_named() {
    let yaml = |top: &str, limit| format!("{top}{}", rules(&[("api", limit)]));
    let server = ConfigFileServer::start(&yaml("", 5));
    server.write(&yaml(
        "namespace: other\nserver: { http: 127.0.0.1:1 }\n",
        6,
    ));
    let reloaded = server.reload().json();
    assert_eq!(reloaded["needsRestart"], json!(["namespace", "server"]));
    assert_eq!(limit_of(&server.check(ANN)), 6, "the rest is in force");
    let again = server.reload().json();
    assert_eq!(again["outcome"], "unchanged");
    assert_eq!(again["needsRestart"], reloaded["needsRestart"]);
    let config = server.get("/readyz").json()["config"].clone();
    assert_eq!(config["needsRestart"], json!(["namespace", "server"]));
    let page = server.get("/metrics").text;
    assert!(
        page.contains(r#"rate_limit_keys{namespace="default"}"#),
        "{page}"
    );
    server.write(&yaml("", 7));
    assert_eq!(server.reload().json()["needsRestart"], json!([]));
    assert_eq!(
        server.get("/readyz").json()["config"]["needsRestart"],
        json!([])
    );
}

#[test]
fn routes_proxies_and_answer_forms_follow_the_config() {
    let with = |top: &str| {
        let rule = "{ id: login, match: { action: login }, algorithm: fixed-window, limit: 1, window: 30d }";
        format!("version: 1\n{top}rules:\n  - {rule}\n")
    };
    let server = ConfigFileServer::start(&with(""));
    let auth = || {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/login")];
        get(&format!("http://{}/auth", server.http), &headers)
    };
    let reload = |top: &str| {
        server.write(&with(top));
        let reloaded = server.reload();
        assert_eq!(reloaded.status, 200, "{}", reloaded.text);
    };
    assert_eq!(auth().status, 403, "not a trusted proxy");
    let proxies = "subjects: { trusted_proxies: [127.0.0.1/32] }\n";
    reload(proxies);
    assert_eq!(auth().header("ratelimit-limit"), "", "no rule applies yet");
    let routes = format!("{proxies}routes: [{{ path: /login, action: login }}]\n");
    reload(&routes);
    let allowed = auth();
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("ratelimit-limit"), "1");
    assert_eq!(auth().header("content-type"), "application/json");
    let headers = "headers: { families: [x-ratelimit], problem_json: true }\n";
    reload(&format!("{routes}{headers}"));
    let refused = auth();
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert_eq!(refused.header("ratelimit-limit"), "");
    assert_eq!(refused.header("x-ratelimit-limit"), "1");
    let described = server.get("/openapi.json").text;
    assert!(described.contains("X-RateLimit-Limit"), "{described}");
    reload(proxies);
    let described = server.get("/openapi.json").text;
    assert!(!described.contains("X-RateLimit-Limit"), "{described}");
}

#[test]
fn envoy_answers_follow_the_config() {
    let with = |limit: u32, top: &str| {
        let rule = format!(
            "{{ id: key, match: {{ domain: shop }}, per: [api_key], algorithm: fixed-window, limit: {limit}, window: 1h }}"
        );
        format!("version: 1\n{top}rules:\n  - {rule}\n")
    };
    let door = |unknown: &str| {
        format!("server: {{ grpc: {{ address: \"127.0.0.1:0\", unknown_domain: {unknown} }} }}\n")
    };
    let ietf = "headers: { families: [ietf] }\n";
    let server = ConfigFileServer::start(&with(5, &format!("{}{ietf}", door("allow"))));
    let ask = |domain: &str| {
        server.block_on(async {
            let channel = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
            let channel = channel.connect().await.unwrap();
            let mut client = Client(RateLimitServiceClient::new(channel));
            let mut request = request([descriptor([("api_key", "k")])]);
            request.domain = domain.to_owned();
            client.ask(request).await.unwrap()
        })
    };
    let headers = |domain: &str| -> Vec<String> {
        let headers = ask(domain).response_headers_to_add;
        let headers = headers
            .into_iter()
            .map(|it| format!("{}: {}", it.key, it.value));
        headers.collect()
    };
    assert_eq!(headers("shop")[0], r#"ratelimit-policy: "key";q=5;w=3600"#);
    assert_eq!(ask("bank").overall_code, 1);
    let families = "headers: { families: [ratelimit] }\n";
    server.write(&with(7, &format!("{}{families}", door("deny"))));
    let reloaded = server.reload().json();
    assert_eq!(reloaded["needsRestart"], json!([]), "{reloaded}");
    assert_eq!(
        headers("shop")[..2],
        ["ratelimit-limit: 7", "ratelimit-remaining: 5"]
    );
    assert_eq!(ask("bank").overall_code, 2);
}

fn tokens(tokens: &[(&str, &str, &str)]) -> String {
    let tokens = tokens.iter().map(|(name, role, token)| {
        let digest = Sha256::digest(token);
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({ "name": name, "role": role, "sha256": hash })
    });
    let tokens: Vec<Value> = tokens.collect();
    let door = format!("{{ address: \"127.0.0.1:0\", tokens: {} }}", json!(tokens));
    format!("server: {{ admin: {door} }}\n{}", rules(&[("api", 5)]))
}

#[test]
fn tokens_follow_the_config() {
    let both = [("support", "operate", "act"), ("ops", "admin", "all")];
    let server = ConfigFileServer::start(&tokens(&both));
    let status = |token: &str| server.ask(token, "/v1/reload", Some("")).status;
    assert_eq!(
        [status("no"), status("act"), status("all")],
        [401, 403, 200]
    );
    server.write(&tokens(&[("support", "admin", "act")]));
    assert_eq!(status("all"), 200);
    assert_eq!([status("all"), status("act")], [401, 200]);
    let trail = server.ask("act", "/v1/audit", None).json();
    assert_eq!(trail["entries"][0]["who"], "ops");
    assert_eq!(server.ask("all", "/v1/audit", None).status, 401);
}

#[test]
fn resets_and_refunds_are_in_the_audit_trail_before_they_are_answered() {
    let server = ConfigFileServer::start(&rules(&[("api", 5), ("more", 9)]));
    for _ in 0..3 {
        server.check(ANN);
    }
    let subject = server.check(ANN).json()["subject"].clone();
    let refund = r#"{"attributes":{"user":"ann"},"cost":2,"reason":"twice by mistake"}"#;
    assert_eq!(server.ask("", "/v1/refund", Some(refund)).status, 200);
    let reset = r#"{"attributes":{"user":"ann"}}"#;
    assert_eq!(server.ask("", "/v1/reset", Some(reset)).status, 200);
    let trail = server.trail("");
    let remaining = |entry: &Value, of: &str| {
        let left = &entry[of]["remaining"];
        [
            left["api"].as_u64().unwrap(),
            left["more"].as_u64().unwrap(),
        ]
    };
    let told = |entry: &Value| {
        let words = ["who", "what", "why"].map(|it| entry[it].as_str().unwrap_or("-").to_owned());
        (
            words.join(" "),
            remaining(entry, "from"),
            remaining(entry, "to"),
        )
    };
    assert_eq!(
        told(&trail[0]),
        ("anonymous reset -".to_owned(), [3, 7], [5, 9])
    );
    let refunded = "anonymous refund twice by mistake".to_owned();
    assert_eq!(told(&trail[1]), (refunded, [1, 5], [3, 7]));
    let rules = json!([
        { "rule": "api", "subject": subject },
        { "rule": "more", "subject": subject },
    ]);
    assert_eq!(trail[0]["rules"], rules);
    assert_eq!(server.trail("what=refund").len(), 1);
    assert_eq!(server.trail("who=nobody").len(), 0);
    assert_eq!(server.trail("since=1h&limit=1")[0]["what"], "reset");
    let kept = server.folder.path().join("data/audit.jsonl");
    let text = std::fs::read_to_string(kept).unwrap();
    assert!(!text.contains("ann"), "no raw subject: {text}");
}

#[test]
fn bad_reasons_and_queries_are_rejected_and_change_nothing() {
    let server = ConfigFileServer::start(&rules(&[("api", 5)]));
    server.check(ANN);
    let long = "x".repeat(501);
    let reset = |reason: &str| {
        let body = format!(r#"{{"attributes":{{"user":"ann"}},"reason":{reason}}}"#);
        server.ask("", "/v1/reset", Some(&body)).status
    };
    assert_eq!(reset(&format!("\"{long}\"")), 400);
    assert_eq!(reset("7"), 400);
    let reload = format!(r#"{{"reason":"{long}"}}"#);
    assert_eq!(server.ask("", "/v1/reload", Some(&reload)).status, 400);
    let config = r#"{"config":"version: 1"}"#;
    assert_eq!(server.ask("", "/v1/reload", Some(config)).status, 400);
    assert_eq!(server.trail("").len(), 0);
    assert_eq!(server.check(ANN).json()["remaining"], 3);
    assert_eq!(reset("null"), 200);
    assert_eq!(reset(&format!("\"{}\"", "x".repeat(500))), 200);
    for query in [
        "limit=0",
        "limit=1001",
        "since=soon",
        "colour=red",
        "limit=%FF",
    ] {
        let answer = server.ask("", &format!("/v1/audit?{query}"), None);
        assert_eq!(answer.status, 400, "{query}: {}", answer.text);
    }
}

/// The log, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
