//! How the HTTP door treats methods, errors and browsers.

mod common;

use common::Running;

const RULES: &str = "version: 1\nrules: []";
const GET: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/openapi.json"];
const POST: [&str; 4] = ["/v1/check", "/v1/check/batch", "/v1/peek", "/v1/refund"];

fn ask(server: &Running, method: &str, path: &str, more: &str) -> String {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{more}\r\n");
    server.raw(head.as_bytes())
}

#[test]
fn wrong_method_is_405_and_lists_the_right_ones() {
    let server = Running::start(RULES);
    for (paths, allow) in [(GET, "GET,HEAD"), (POST, "POST")] {
        for (path, method) in paths.iter().flat_map(|path| {
            ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"].map(|method| (path, method))
        }) {
            let answer = ask(&server, method, path, "");
            assert!(
                answer.starts_with("HTTP/1.1 405 "),
                "{method} {path}: {answer}"
            );
            assert!(answer.contains(&format!("allow: {allow}\r\n")), "{answer}");
            assert!(
                answer.contains(r#"{"code":"WRONG_METHOD","message":"#),
                "{answer}"
            );
        }
    }
}

#[test]
fn head_is_get_without_the_body() {
    let server = Running::start(RULES);
    for path in GET {
        let (got, head) = (
            ask(&server, "GET", path, ""),
            ask(&server, "HEAD", path, ""),
        );
        let (fields, body) = got.split_once("\r\n\r\n").unwrap();
        let (told, nothing) = head.split_once("\r\n\r\n").unwrap();
        let without_date = |fields: &str| {
            let fields = fields.lines().filter(|it| !it.starts_with("date:"));
            fields.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(without_date(fields), without_date(told), "{path}");
        assert!(!body.is_empty(), "{path}");
        assert_eq!(nothing, "", "{path}");
    }
}

#[test]
fn every_error_has_only_a_code_and_a_message() {
    let server = Running::start(RULES);
    let big = "x".repeat(70_000);
    for (answer, status, code) in [
        (server.get("/nowhere"), 404, "NOT_FOUND"),
        (server.get("/v1/check"), 405, "WRONG_METHOD"),
        (server.post("/healthz", ""), 405, "WRONG_METHOD"),
        (server.post("/v1/check", "{"), 400, "BAD_REQUEST"),
        (server.post("/v1/refund", "[]"), 400, "BAD_REQUEST"),
        (server.post("/v1/peek", &big), 413, "TOO_LARGE"),
        (server.get("/auth"), 403, "UNTRUSTED_PROXY"),
    ] {
        assert_eq!(answer.status, status, "{}", answer.text);
        assert_eq!(answer.header("content-type"), "application/json");
        let body = answer.json();
        let names: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(names, ["code", "message"]);
        assert_eq!(body["code"], code);
        assert!(body["message"].as_str().unwrap().len() > 10);
    }
}

#[test]
fn pages_of_other_origins_are_not_let_in() {
    let server = Running::start(RULES);
    let preflight = "origin: https://evil.example\r\naccess-control-request-method: POST\r\n";
    for (method, path) in [
        ("OPTIONS", "/v1/check"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
    ] {
        let answer = ask(&server, method, path, preflight).to_lowercase();
        assert!(!answer.contains("access-control"), "{answer}");
    }
}
