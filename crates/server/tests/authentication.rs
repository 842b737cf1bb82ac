//! Credentials at the door of forward-auth: what clients get, and keys that change while the server runs.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use common::Answer;
use common::config_file::ConfigFileServer;
use common::issuer::Issuer;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tollgate::{Clock, SystemClock};

fn now() -> u64 {
    SystemClock::new().now().as_micros() / 1_000_000
}

fn sha256(key: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(key).into();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts a server with these files beside its config.
fn start(yaml: &str, files: &[(&str, String)]) -> ConfigFileServer {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, yaml).unwrap();
    ConfigFileServer::at(folder, &path)
}

/// Asks as a proxy does, with these headers of the client.
fn ask(server: &ConfigFileServer, headers: &[(&str, &str)]) -> Answer {
    let mut all = vec![
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/orders"),
        ("x-forwarded-for", "203.0.113.1"),
    ];
    all.extend(headers);
    common::get(&format!("http://{}/auth", server.http), &all)
}

fn bearer(server: &ConfigFileServer, token: &str) -> Answer {
    ask(server, &[("authorization", &format!("Bearer {token}"))])
}

const CONFIG: &str = "
version: 1
subjects: { trusted_proxies: [127.0.0.0/8] }
authentication:
  jwt: { jwks_file: jwks.json, issuer: me, scopes: [orders], claims: { tenant: org, user: sub } }
  api_keys: { file: keys.csv }
  required: true
rules:
  - { id: tokens, match: { authentication: jwt }, per: [user], algorithm: fixed-window, limit: 100, window: 10d, limit_from: jwt.claims.rate_limit, ceiling: 500 }
  - { id: keys, match: { authentication: api_key }, per: [subject], algorithm: fixed-window, limit: 10, window: 10d, limit_from: attributes.rate_limit, ceiling: 50 }
";

#[test]
fn wrong_credentials_are_answered_as_rfc_6750_says() {
    let issuer = Issuer::new();
    let table = "sha256,tenant\n".to_owned();
    let server = start(CONFIG, &[("jwks.json", issuer.jwks()), ("keys.csv", table)]);
    let none = ask(&server, &[]);
    assert_eq!(
        (none.status, none.header("www-authenticate")),
        (401, "Bearer".to_owned())
    );
    assert_eq!(none.header("content-type"), "application/problem+json");
    let body = none.json();
    assert_eq!(
        (body["status"].as_u64(), body["title"].as_str()),
        (Some(401), Some("Unauthorized"))
    );
    assert_eq!(
        (body["type"].as_str(), body["code"].as_str()),
        (Some("about:blank"), Some("NO_CREDENTIALS"))
    );
    assert_eq!(body["detail"], body["message"]);

    let old = issuer.token(&json!({ "iss": "me", "exp": now() - 3600, "scope": "orders" }));
    let expired = bearer(&server, &old);
    assert_eq!(
        (expired.status, expired.json()["code"].as_str()),
        (401, Some("BAD_TOKEN"))
    );
    let challenge = r#"Bearer error="invalid_token", error_description="the token has expired""#;
    assert_eq!(expired.header("www-authenticate"), challenge);

    let narrow = issuer.token(&json!({ "iss": "me", "exp": now() + 60, "scope": "other" }));
    let forbidden = bearer(&server, &narrow);
    assert_eq!(
        (forbidden.status, forbidden.json()["code"].as_str()),
        (403, Some("NOT_PERMITTED"))
    );
    let challenge = forbidden.header("www-authenticate");
    assert!(
        challenge.starts_with(r#"Bearer error="insufficient_scope""#),
        "{challenge}"
    );
    assert!(challenge.ends_with(r#", scope="orders""#), "{challenge}");

    let both = ask(
        &server,
        &[
            ("authorization", &format!("Bearer {old}")),
            ("x-api-key", "k"),
        ],
    );
    assert_eq!(
        (both.status, both.json()["code"].as_str()),
        (400, Some("BAD_REQUEST"))
    );
    let unknown = ask(&server, &[("x-api-key", "guess")]);
    assert_eq!(
        (unknown.status, unknown.json()["code"].as_str()),
        (401, Some("BAD_API_KEY"))
    );
    assert!(!unknown.text.contains("guess"));
}

#[test]
fn limits_come_from_claims_and_from_the_table_of_keys() {
    let issuer = Issuer::new();
    let (one, two) = (sha256("key-one"), sha256("key-two"));
    let table = format!("sha256,rate_limit\n{one},20\n{two},\n");
    let server = start(CONFIG, &[("jwks.json", issuer.jwks()), ("keys.csv", table)]);
    let token = |user: &str, limit: Value| {
        let claims = json!({ "iss": "me", "exp": now() + 60, "scope": "orders", "sub": user, "rate_limit": limit });
        bearer(&server, &issuer.token(&claims))
    };
    // The claim, the default of the rule, and the ceiling.
    assert_eq!(token("ann", json!(250)).header("ratelimit-limit"), "250");
    assert_eq!(token("bob", Value::Null).header("ratelimit-limit"), "100");
    assert_eq!(
        token("eve", json!(1_000_000)).header("ratelimit-limit"),
        "500"
    );
    let key = |key: &str| ask(&server, &[("x-api-key", key)]).header("ratelimit-limit");
    assert_eq!(
        (key("key-one"), key("key-two")),
        ("20".to_owned(), "10".to_owned())
    );
    // Users have allowances of their own, whatever address they have.
    assert_eq!(
        token("ann", json!(250)).header("ratelimit-remaining"),
        "248"
    );
    assert_eq!(
        token("bob", Value::Null).header("ratelimit-remaining"),
        "98"
    );
}

#[test]
fn revoked_key_ends_with_the_next_look_at_the_table() {
    let issuer = Issuer::new();
    let row = |revoked: &str| format!("sha256,tenant,revoked\n{},acme,{revoked}\n", sha256("k"));
    let server = start(
        CONFIG,
        &[("jwks.json", issuer.jwks()), ("keys.csv", row(""))],
    );
    assert_eq!(ask(&server, &[("x-api-key", "k")]).status, 200);
    let table = server.folder.path().join("keys.csv");
    std::fs::write(&table, row("true")).unwrap();
    assert!(server.look().unwrap().is_ok());
    assert_eq!(ask(&server, &[("x-api-key", "k")]).status, 401);
    // A bad table changes nothing, and the error has a position.
    std::fs::write(&table, "sha256,tenant\nthe-key-itself,acme\n").unwrap();
    let error = server.look().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("keys.csv:2:1: this is not a SHA-256"),
        "{error}"
    );
    assert!(!error.contains("the-key-itself"), "{error}");
    assert_eq!(ask(&server, &[("x-api-key", "k")]).status, 401);
    // Another issuer.
    let other = Issuer::new();
    std::fs::write(&table, row("")).unwrap();
    std::fs::write(server.folder.path().join("jwks.json"), other.jwks()).unwrap();
    assert!(server.look().unwrap().is_ok());
    let claims = json!({ "iss": "me", "exp": now() + 60, "scope": "orders" });
    assert_eq!(bearer(&server, &other.token(&claims)).status, 200);
    assert_eq!(bearer(&server, &issuer.token(&claims)).status, 401);
}

#[test]
fn anonymous_requests_have_rules_of_their_own() {
    let yaml = "
version: 1
subjects: { trusted_proxies: [127.0.0.0/8] }
authentication: { api_keys: { file: keys.csv } }
rules:
  - { id: anonymous, match: { authentication: anonymous }, per: [subject], algorithm: fixed-window, limit: 1, window: 10d }
  - { id: keys, match: { authentication: api_key }, per: [api_key], algorithm: fixed-window, limit: 5, window: 10d }
";
    let table = format!("sha256,api_key\n{},acme-prod\n", sha256("k"));
    let server = start(yaml, &[("keys.csv", table)]);
    let statuses = [(); 2].map(|()| ask(&server, &[]).status);
    assert_eq!(statuses, [200, 429]);
    let known = ask(&server, &[("x-api-key", "k")]);
    assert_eq!(
        (known.status, known.header("ratelimit-limit")),
        (200, "5".to_owned())
    );
    // A key that nobody has verified does not make another subject.
    assert_eq!(ask(&server, &[("x-api-key", "invented")]).status, 401);
}

/// Answers `answers` requests with `body`, and then goes away.
fn key_server(body: String, answers: usize) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys?v=1", listener.local_addr().unwrap());
    let (tell, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap();
            let _ = tell.send(String::from_utf8_lossy(&head[..read]).into_owned());
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, asked)
}

#[test]
fn keys_are_fetched_and_stay_when_their_server_goes_away() {
    let (issuer, stranger) = (Issuer::new(), Issuer::new());
    let (url, asked) = key_server(issuer.jwks(), 1);
    let yaml = format!(
        "version: 1\nsubjects: {{ trusted_proxies: [127.0.0.0/8] }}\nauthentication: {{ jwt: {{ jwks_url: '{url}' }} }}\nrules: []\n"
    );
    let server = start(&yaml, &[]);
    let claims = json!({ "exp": now() + 60, "sub": "ann" });
    assert_eq!(bearer(&server, &issuer.token(&claims)).status, 200);
    let request = asked.recv().unwrap();
    assert!(
        request.starts_with("GET /keys?v=1 HTTP/1.1\r\n"),
        "{request}"
    );
    assert_eq!(bearer(&server, &stranger.token(&claims)).status, 401);
    // The server is gone. A reload keeps its keys.
    std::fs::write(
        server.folder.path().join("rules.yaml"),
        yaml.replace("rules: []", "rules: [ ]"),
    )
    .unwrap();
    assert!(server.look().unwrap().is_ok());
    let later = json!({ "exp": now() + 61, "sub": "bob" });
    assert_eq!(bearer(&server, &issuer.token(&later)).status, 200);
}

#[test]
fn tokens_without_reachable_keys_are_503() {
    let (url, _) = key_server(String::new(), 0);
    let yaml = format!(
        "version: 1\nsubjects: {{ trusted_proxies: [127.0.0.0/8] }}\nauthentication: {{ jwt: {{ jwks_url: '{url}' }} }}\nrules: []\n"
    );
    let server = start(&yaml, &[]);
    let answer = bearer(&server, &Issuer::new().token(&json!({ "exp": now() + 60 })));
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (503, Some("KEYS_UNAVAILABLE"))
    );
    assert_eq!(answer.header("retry-after"), "5");
    // Anonymous requests need no keys.
    assert_eq!(ask(&server, &[]).status, 200);
}

/// The configs and the table of docs/authentication.md are accepted, and work as the text says.
#[test]
fn examples_in_the_docs_work() {
    let docs = include_str!("../../../docs/authentication.md");
    let blocks = |language: &str| -> Vec<String> {
        let fenced = docs.split("```").skip(1).step_by(2);
        let blocks = fenced.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
        blocks.map(str::to_owned).collect()
    };
    let issuer = Issuer::new();
    let configs = blocks("yaml");
    // The gateway's tests use the second one.
    assert_eq!(configs.len(), 3);
    let files = [
        ("jwks.json", issuer.jwks()),
        ("keys.csv", blocks("csv").remove(0)),
    ];
    let [first, last] = [&configs[0], &configs[2]].map(|config| start(config, &files));
    let limit = |answer: Answer| (answer.status, answer.header("ratelimit-limit"));
    let claims = json!({
        "iss": "https://login.example.com", "aud": "orders-api", "sub": "ann", "org": "acme",
        "exp": now() + 60, "rate_limit": "50/s",
    });
    let users = "50".to_owned();
    assert_eq!(limit(bearer(&first, &issuer.token(&claims))), (200, users));
    let key = |key: &str| ask(&first, &[("x-api-key", key)]);
    assert_eq!(limit(key("demo-key-1")), (200, "250".to_owned()));
    assert_eq!(key("demo-key-2").status, 401, "revoked");
    assert_eq!(limit(ask(&first, &[])), (200, "30".to_owned()));
    let office = common::get(
        &format!("http://{}/auth", first.http),
        &[
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-for", "198.51.100.7"),
        ],
    );
    assert_eq!(office.status, 200);
    assert_eq!(office.header("ratelimit-limit"), "5");
    assert_eq!(last.get("/healthz").status, 200);
}
