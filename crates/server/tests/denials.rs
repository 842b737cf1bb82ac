//! Denials as clients see them: held back, with bodies from templates, and with both forms of the reset.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{Answer, Running};
use serde_json::json;
use tollgate_rig::wait;

const LIMIT: Duration = Duration::from_secs(60);

const DELAYED: &str = "
version: 1
subjects: { trusted_proxies: [127.0.0.0/8] }
rules:
  - { id: api, algorithm: fixed-window, limit: 0, window: 1000d, delay_denials: 5s }
";

/// Returns the value of a metric.
fn metric(server: &Running, name: &str) -> u64 {
    let page = server.get("/metrics").text;
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

fn wait_for_held(server: &Running, held: u64) {
    wait::until("held denials", LIMIT, || {
        metric(server, "rate_limit_denials_held_back ") == held
    });
}

/// Sends a check without waiting for its answer.
fn check(server: &Running) -> TcpStream {
    let mut stream = server.connect();
    let body = r#"{"attributes":{}}"#;
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream
}

fn ask_auth(server: &Running, more: &[(&str, &str)]) -> Answer {
    let mut headers = vec![("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")];
    headers.extend(more);
    server.get_with("/auth", &headers)
}

#[test]
fn doors_hold_denials_back_until_the_server_stops() {
    let mut server = Running::start(DELAYED);
    let mut held = check(&server);
    wait_for_held(&server, 1);
    let auth = format!("http://{}/auth", server.address);
    let auth = std::thread::spawn(move || {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")];
        common::get(&auth, &headers).status
    });
    wait_for_held(&server, 2);
    assert_eq!(
        metric(
            &server,
            "rate_limit_delayed_denials_total{outcome=\"delayed\"}"
        ),
        2
    );
    server.stop();
    let mut answer = String::new();
    held.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert_eq!(auth.join().unwrap(), 429);
    server.join();
}

#[test]
fn client_that_goes_away_ends_its_delay() {
    let server = Running::start(DELAYED);
    let mut first = check(&server);
    wait_for_held(&server, 1);
    let second = check(&server);
    wait_for_held(&server, 2);
    drop(second);
    // The first denial came before, and is still held back.
    wait_for_held(&server, 1);
    first.set_nonblocking(true).unwrap();
    let unanswered = first.read(&mut [0; 1]).unwrap_err();
    assert_eq!(unanswered.kind(), std::io::ErrorKind::WouldBlock);
}

const TEMPLATES: &str = r#"
version: 1
subjects: { trusted_proxies: [127.0.0.0/8] }
headers:
  denial_body: '{"error":"rate_limit_exceeded","retry_after":{{retry_after}},"limit_dim":"{{dimension}}"}'
rules:
  - { id: tenant, match: { tenant: "*" }, per: [tenant], algorithm: fixed-window, limit: 1, window: 1000d }
  - id: openai
    match: { action: chat }
    algorithm: concurrency
    limit: 0
    message: 'Say "please".'
    denial_body:
      content_type: application/json; charset=utf-8
      template: |
        {"error": {"message": {{message}}, "type": "requests", "param": null, "code": "{{code}}",
         "details": ["{{rule}}", {{kind}}, {{reason}}, {{status}}, "{{title}}", {{limit}}, {{remaining}},
                     {{retry_after_millis}}, {{dimension}}, {{trace_id}}, {{config_version}}]}}
  - id: plain
    match: { method: DELETE }
    algorithm: fixed-window
    limit: 0
    window: 60s
    denial_body: { content_type: text/plain, template: "{{title}}: {{retry_after}} {{reset}} {{window}}{{trace_id}}\n" }
"#;

const TRACE: (&str, &str) = (
    "traceparent",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
);

#[test]
fn body_of_a_denial_is_a_template_of_the_config_or_the_rule() {
    let server = Running::start(TEMPLATES);
    let ask = |attributes: &str, headers: &[(&str, &str)]| {
        let body = format!(r#"{{"attributes":{attributes}}}"#);
        server.post_with("/v1/check", &body, headers)
    };
    let allowed = ask(r#"{"tenant":"acme"}"#, &[]);
    assert_eq!(
        (allowed.status, &allowed.json()["allowed"]),
        (200, &json!(true))
    );
    // The operator's template also replaces problem documents.
    for accept in ["*/*", "application/problem+json"] {
        let denied = ask(r#"{"tenant":"acme"}"#, &[("accept", accept)]);
        assert_eq!(denied.status, 429);
        assert_eq!(denied.header("content-type"), "application/json");
        let body = denied.json();
        let retry: u64 = denied.header("retry-after").parse().unwrap();
        assert_eq!(
            body,
            json!({"error": "rate_limit_exceeded", "retry_after": retry, "limit_dim": "tenant"})
        );
        assert!(!denied.text.contains("acme"), "{}", denied.text);
    }
    let chat = ask(r#"{"action":"chat"}"#, &[TRACE]);
    assert_eq!(
        chat.header("content-type"),
        "application/json; charset=utf-8"
    );
    let error = &chat.json()["error"];
    assert_eq!(
        error["message"],
        "The request costs more than this limit ever allows at once."
    );
    assert_eq!(error["code"], "CONCURRENCY");
    let version = error["details"][10].clone();
    assert!(version.is_string());
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    assert_eq!(
        error["details"],
        json!([
            "openai",
            "concurrency",
            "never_fits",
            429,
            "Too Many Requests",
            0,
            0,
            null,
            "global",
            trace,
            version
        ])
    );
}

#[test]
fn forward_auth_passes_the_template_on() {
    let server = Running::start(TEMPLATES);
    let denied = ask_auth(&server, &[("x-forwarded-method", "DELETE")]);
    // Two methods: the proxy must send one.
    assert_eq!(denied.status, 400);
    let headers = [("x-forwarded-method", "DELETE"), ("x-forwarded-uri", "/a")];
    let denied = server.get_with("/auth", &headers);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), "text/plain");
    // A limit of 0 never resets, and the request has no trace.
    assert_eq!(denied.text, "Too Many Requests:   60\n");
}

#[test]
fn reset_is_in_seconds_or_since_the_epoch() {
    for (headers, is_epoch) in [
        ("", [false, true]),
        (
            ", ratelimit_reset: epoch, x_ratelimit_reset: seconds",
            [true, false],
        ),
        (
            ", ratelimit_reset: seconds, x_ratelimit_reset: epoch",
            [false, true],
        ),
    ] {
        let families = "families: [ietf, ratelimit, x-ratelimit]";
        let yaml = format!(
            "version: 1\nheaders: {{ {families}{headers} }}\nrules: [{{ id: api, algorithm: gcra, rate: 1/1000s, burst: 5 }}]"
        );
        let server = Running::start(&yaml);
        let answer = server.post("/v1/check", r#"{"attributes":{}}"#);
        let at = answer.json()["resetAtEpochMillis"].as_u64().unwrap();
        let resets = ["ratelimit-reset", "x-ratelimit-reset"];
        for (name, is_epoch) in resets.into_iter().zip(is_epoch) {
            let reset: u64 = answer.header(name).parse().unwrap();
            let expected = if is_epoch { at.div_ceil(1000) } else { 1000 };
            assert_eq!(reset, expected, "{name} with {headers}");
        }
        // The structured field is always in seconds.
        assert!(answer.header("ratelimit").ends_with(";t=1000"), "{headers}");
        let described = server.get("/openapi.json").json();
        let answers = &described["paths"]["/v1/check"]["post"]["responses"];
        let told = answers["200"]["headers"]["RateLimit-Reset"]["description"].to_string();
        assert_eq!(told.contains("epoch"), is_epoch[0], "{told}");
    }
}

#[test]
fn documented_configs_are_valid() {
    let http = include_str!("../../../docs/http.md");
    let auth = include_str!("../../../docs/forward-auth.md");
    let block = |page: &str, word: &str| {
        let blocks = page.split("```yaml\n").skip(1);
        let mut blocks = blocks.filter_map(|block| block.split("```").next());
        blocks
            .find(|block| block.contains(word))
            .unwrap()
            .to_owned()
    };
    let secret = |_: &str| Some("0123456789abcdef".to_owned());
    let of_auth = block(auth, "time_header") + "version: 1\nrules: []\n";
    for text in [block(http, "denial_body"), of_auth] {
        let config = tollgate_config::parse("docs", &text, &secret);
        assert!(config.is_ok(), "{text}\n{}", config.unwrap_err());
    }
    // Every field has its place in the table.
    for name in tollgate_config::DenialField::NAMES {
        assert!(http.contains(&format!("`{name}`")), "{name}");
    }
}
