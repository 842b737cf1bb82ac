//! `POST /v1/report`: reports of latency move the limit of a concurrency rule.

#![allow(clippy::unwrap_used)]

mod common;

use common::Running;
use serde_json::json;
use tollgate_rig::wait;

const RULES: &str = "
version: 1
rules:
  - { id: slots, per: [service], algorithm: concurrency, limit: 12, lease: 1h, adaptive: { min: 3, slow: 20ms } }
";

/// Takes leases until one is denied. Returns how many were free, and gives them back.
fn free_slots(server: &Running) -> usize {
    let mut held = Vec::new();
    let denied = loop {
        let answer = server.post("/v1/leases", r#"{"attributes":{"service":"search"}}"#);
        if answer.status != 201 {
            break answer;
        }
        held.push(answer.json());
    };
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()["limit"], held.len());
    for lease in &held {
        let (id, token) = (
            lease["id"].as_str().unwrap(),
            lease["token"].as_str().unwrap(),
        );
        let path = format!("/v1/leases/{id}");
        assert_eq!(server.delete(&path, &[("lease-token", token)]).status, 200);
    }
    held.len()
}

#[test]
fn slow_and_fast_answers_move_the_limit() {
    let server = Running::start(RULES);
    let report = |latency: &str, failed: bool| {
        let body = json!({
            "attributes": {"service": "search"}, "latency": latency, "failed": failed, "inFlight": 12,
        });
        let answer = server.post("/v1/report", &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text);
        let limits = &answer.json()["limits"];
        assert_eq!(
            (&limits[0]["ruleId"], &limits[0]["ceiling"]),
            (&json!("slots"), &json!(12))
        );
        limits[0]["limit"].as_u64().unwrap()
    };
    assert_eq!(report("1ms", false), 12);
    assert_eq!(free_slots(&server), 12);
    for (latency, failed) in [("60ms", false), ("1ms", true)] {
        wait::until("the limit shrinks", common::gate::SOON, || {
            report(latency, failed) == 3
        });
        assert_eq!(free_slots(&server), 3);
        wait::until("the limit is back", common::gate::SOON, || {
            report("2ms", false) == 12
        });
        assert_eq!(free_slots(&server), 12);
    }
}

#[test]
fn report_of_a_request_without_such_a_rule_is_empty() {
    let server =
        Running::start("{ version: 1, rules: [{ id: a, algorithm: concurrency, limit: 5 }] }");
    let answer = server.post("/v1/report", r#"{"attributes":{},"latency":"5s"}"#);
    assert_eq!((answer.status, answer.json()), (200, json!({"limits": []})));
}

#[test]
fn bad_report_is_rejected() {
    let server = Running::start(RULES);
    for body in [
        "",
        "[]",
        r#"{"attributes":{}}"#,
        r#"{"attributes":{},"latency":"fast"}"#,
        r#"{"attributes":{},"latency":5}"#,
        r#"{"attributes":{},"latency":null}"#,
        r#"{"attributes":{},"latency":"5ms","failed":"no"}"#,
        r#"{"attributes":{},"latency":"5ms","inFlight":-1}"#,
        r#"{"attributes":{},"latency":"5ms","inFlight":4503599627370496}"#,
        r#"{"attributes":{},"latency":"5ms","more":1}"#,
    ] {
        let answer = server.post("/v1/report", body);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (400, &json!("BAD_REQUEST")),
            "{body}"
        );
    }
}
