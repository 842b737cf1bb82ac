//! Reservations and usage at the HTTP door.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use common::{Answer, Running};
use serde_json::{Value, json};

const RULES: &str = r"
version: 1
rules:
  - { id: tokens, match: { action: llm }, per: [tenant], algorithm: fixed-window, limit: 1000, window: 365d }
  - { id: mail, match: { action: mail }, algorithm: leaky-bucket, rate: 1/h, queue: 1, shape: true }
";

fn acme(cost: u64) -> Value {
    json!({ "attributes": { "action": "llm", "tenant": "acme" }, "cost": cost })
}

#[allow(clippy::needless_pass_by_value)] // Every caller passes a temporary.
fn reserve(server: &Running, body: Value) -> Answer {
    server.post("/v1/reservations", &body.to_string())
}

/// Makes a reservation, and returns its id.
fn reserved(server: &Running, cost: u64) -> String {
    let answer = reserve(server, acme(cost));
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.json()["id"].as_str().unwrap().to_owned()
}

fn verb(server: &Running, id: &str, verb: &str, body: &str) -> Answer {
    server.post(&format!("/v1/reservations/{id}/{verb}"), body)
}

fn left(server: &Running) -> u64 {
    let peeked = server.post("/v1/peek", &acme(1).to_string());
    peeked.json()["remaining"].as_u64().unwrap()
}

#[test]
fn reservation_is_201_with_an_id_and_the_fields_of_a_check() {
    let server = Running::start(RULES);
    let answer = reserve(&server, acme(600));
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("ratelimit-remaining"), "400");
    let body = answer.json();
    assert_eq!(body["state"], "RESERVED");
    assert_eq!(
        (&body["cost"], &body["actual"]),
        (&json!(600), &json!(null))
    );
    assert_eq!(
        (&body["allowed"], &body["ruleId"]),
        (&json!(true), &json!("tokens"))
    );
    assert_eq!(
        (&body["remaining"], &body["granted"]),
        (&json!(400), &json!(600))
    );
    // Without a `ttl`, a reservation lasts one minute.
    let decided = body["decidedAtEpochMicros"].as_u64().unwrap() / 1000;
    let expires = body["expiresAtEpochMillis"].as_u64().unwrap();
    assert_eq!(expires - decided, 60_000);

    let id = body["id"].as_str().unwrap();
    let found = server.get(&format!("/v1/reservations/{id}"));
    assert_eq!(found.status, 200);
    let expected = json!({
        "id": id, "state": "RESERVED", "cost": 600, "actual": null, "uncharged": 0,
        "expiresAtEpochMillis": expires
    });
    assert_eq!(found.json(), expected);
}

#[test]
fn denied_reservation_is_answered_as_a_denied_check() {
    let server = Running::start(RULES);
    reserved(&server, 600);
    let refused = reserve(&server, acme(600));
    assert_eq!(refused.status, 429);
    assert_ne!(refused.header("retry-after"), "");
    let body = refused.json();
    assert_eq!(
        (&body["allowed"], &body["code"]),
        (&json!(false), &json!("RATE_LIMIT"))
    );
    assert_eq!(body["id"], json!(null));
    let problem = [("accept", "application/problem+json")];
    let refused = server.post_with("/v1/reservations", &acme(600).to_string(), &problem);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert_eq!(left(&server), 400);
    let mail = || reserve(&server, json!({ "attributes": { "action": "mail" } }));
    assert_eq!(
        (mail().status, mail().status, mail().status),
        (201, 201, 503)
    );
}

#[test]
fn commit_gives_the_rest_back_and_all_steps_may_be_repeated() {
    let server = Running::start(RULES);
    let id = reserved(&server, 600);
    for _ in 0..3 {
        let ended = verb(&server, &id, "commit", r#"{"actual":120}"#);
        assert_eq!(ended.status, 200, "{}", ended.text);
        let body = ended.json();
        assert_eq!(
            (&body["state"], &body["actual"]),
            (&json!("CONSUMED"), &json!(120))
        );
        assert_eq!(left(&server), 880);
    }
    let id = reserved(&server, 600);
    for body in ["", "{}", " \n"] {
        let ended = verb(&server, &id, "release", body);
        assert_eq!(ended.status, 200, "{}", ended.text);
        let body = ended.json();
        assert_eq!(
            (&body["state"], &body["actual"]),
            (&json!("RELEASED"), &json!(null))
        );
        assert_eq!(left(&server), 880);
    }
}

#[test]
fn reservation_that_ended_in_another_way_says_how() {
    let server = Running::start(RULES);
    let used = reserved(&server, 100);
    assert_eq!(
        verb(&server, &used, "commit", r#"{"actual":60}"#).status,
        200
    );
    let given = reserved(&server, 100);
    assert_eq!(verb(&server, &given, "release", "").status, 200);
    for (id, how, body, state, actual) in [
        (&used, "commit", r#"{"actual":61}"#, "CONSUMED", json!(60)),
        (&used, "release", "", "CONSUMED", json!(60)),
        (&used, "extend", r#"{"ttl":"60s"}"#, "CONSUMED", json!(60)),
        (&given, "commit", r#"{"actual":0}"#, "RELEASED", json!(null)),
        (
            &given,
            "extend",
            r#"{"ttl":"60s"}"#,
            "RELEASED",
            json!(null),
        ),
    ] {
        let late = verb(&server, id, how, body);
        assert_eq!(late.status, 409, "{how}: {}", late.text);
        let body = late.json();
        assert_eq!(body["code"], "RESERVATION_ENDED", "{how}");
        assert_eq!(
            (&body["state"], &body["actual"]),
            (&json!(state), &actual),
            "{how}"
        );
    }
    assert_eq!(left(&server), 940);
}

#[test]
fn idempotency_key_makes_one_reservation() {
    let server = Running::start(RULES);
    let keyed = |key: &str, cost: u64| {
        let mut body = acme(cost);
        body["idempotencyKey"] = json!(key);
        reserve(&server, body)
    };
    let first = keyed("order 1", 100);
    assert_eq!(first.status, 201);
    let again = keyed("order 1", 100);
    assert_eq!(again.status, 200);
    assert_eq!(again.json()["id"], first.json()["id"]);
    assert_eq!(again.json()["state"], "RESERVED");
    assert_eq!(left(&server), 900);
    let other = keyed("order 1", 101);
    assert_eq!(other.status, 409);
    assert_eq!(other.json()["code"], "RESERVATION_CONFLICT");
    let second = keyed("order 2", 100);
    assert_eq!(second.status, 201);
    assert_ne!(second.json()["id"], first.json()["id"]);
    let id = first.json()["id"].as_str().unwrap().to_owned();
    verb(&server, &id, "commit", r#"{"actual":7}"#);
    let ended = keyed("order 1", 100).json();
    assert_eq!(
        (&ended["state"], &ended["actual"]),
        (&json!("CONSUMED"), &json!(7))
    );
}

/// A tenant with too many open reservations gets 429 with a separate code. Other tenants are not
/// affected.
#[test]
fn open_reservations_of_a_tenant_are_bounded() {
    let server =
        Running::start(&RULES.replace("version: 1", "version: 1\nsubjects: { max_open_holds: 3 }"));
    let first = reserved(&server, 0);
    for _ in 0..2 {
        reserved(&server, 0);
    }
    for _ in 0..2 {
        let rejected = reserve(&server, acme(0));
        assert_eq!(rejected.status, 429, "{}", rejected.text);
        assert_eq!(rejected.json()["code"], "TOO_MANY_HOLDS");
    }
    let mut other = acme(1);
    other["attributes"]["tenant"] = json!("other");
    assert_eq!(reserve(&server, other).status, 201);
    let page = server.get("/metrics").text;
    let line = r#"rate_limit_holds_rejected_total{reason="subject"} 2"#;
    assert!(page.contains(line), "{page}");
    assert_eq!(verb(&server, &first, "release", "").status, 200);
    reserved(&server, 0);
}

#[test]
fn extended_reservation_ends_later() {
    let server = Running::start(RULES);
    let id = reserved(&server, 100);
    let before = server.get(&format!("/v1/reservations/{id}")).json();
    let extended = verb(&server, &id, "extend", r#"{"ttl":"10m"}"#);
    assert_eq!(extended.status, 200);
    let later = extended.json()["expiresAtEpochMillis"].as_u64();
    assert!(later > before["expiresAtEpochMillis"].as_u64());
}

#[test]
fn without_rules_nothing_is_held_and_ending_it_is_not_an_error() {
    let server = Running::start(RULES);
    let answer = reserve(
        &server,
        json!({ "attributes": { "action": "other" }, "cost": 9 }),
    );
    assert_eq!(
        (answer.status, answer.json()["id"].as_str()),
        (201, Some("unheld"))
    );
    let ended = verb(&server, "unheld", "commit", r#"{"actual":9}"#);
    assert_eq!(
        (ended.status, ended.json()["state"].as_str()),
        (200, Some("CONSUMED"))
    );
    let ended = verb(&server, "unheld", "release", "");
    assert_eq!(
        (ended.status, ended.json()["state"].as_str()),
        (200, Some("RELEASED"))
    );
}

#[test]
fn bad_requests_are_rejected_by_name_and_charge_nothing() {
    let server = Running::start(RULES);
    let held = reserved(&server, 100);
    let long = format!(
        r#"{{"attributes":{{}},"idempotencyKey":"{}"}}"#,
        "k".repeat(257)
    );
    let post = |path: &str, body: &str| server.post(path, body);
    let at = |verb: &str| format!("/v1/reservations/{held}/{verb}");
    let new = "/v1/reservations".to_owned();
    for (path, body, says) in [
        (&new, r#"{"cost":1}"#, "missing field `attributes`"),
        (&new, r#"{"attributes":{},"cost":-5}"#, "-5"),
        (&new, r#"{"attributes":{},"cost":1.5}"#, "1.5"),
        (
            &new,
            r#"{"attributes":{},"cost":4503599627370497}"#,
            "above the largest amount",
        ),
        (&new, r#"{"attributes":{},"ttl":60}"#, "a duration such as"),
        (&new, r#"{"attributes":{},"ttl":"60"}"#, "has no unit"),
        (&new, r#"{"attributes":{},"ttl":"99ms"}"#, "99ms"),
        (&new, r#"{"attributes":{},"ttl":"25h"}"#, "25h"),
        (
            &new,
            r#"{"attributes":{},"upTo":true}"#,
            "unknown field `upTo`",
        ),
        (&new, &long, "the idempotency key"),
        (
            &new,
            r#"{"attributes":{},"idempotencyKey":""}"#,
            "the idempotency key must have 1 to 256 bytes",
        ),
        (
            &new,
            r#"{"attributes":{},"idempotencyKey":"a\u0000b"}"#,
            "the idempotency key must have 1 to 256 bytes, and no NUL",
        ),
        (&new, "[]", r#"{"attributes":{"user":"ann"}}"#),
        (&at("commit"), "", r#"send one such as {"actual":120}"#),
        (&at("commit"), "{}", "missing field `actual`"),
        (&at("commit"), r#"{"actual":null}"#, "a whole number"),
        (&at("commit"), r#"{"actual":-1}"#, "-1"),
        (&at("commit"), r#"{"actual":0.5}"#, "0.5"),
        (
            &at("commit"),
            r#"{"actual":4503599627370497}"#,
            "above the largest amount",
        ),
        (
            &at("commit"),
            r#"{"actual":1,"more":2}"#,
            "unknown field `more`",
        ),
        (&at("release"), r#"{"actual":1}"#, "unknown field `actual`"),
        (&at("extend"), "{}", "missing field `ttl`"),
        (&at("extend"), r#"{"ttl":null}"#, "`ttl` is missing"),
        (&at("extend"), r#"{"ttl":"2d"}"#, "2d"),
        (
            &"/v1/reservations/nothing/release".to_owned(),
            "",
            "use the `id` of the answer",
        ),
        (&"/v1/reservations/%ff/release".to_owned(), "", "UTF-8"),
    ] {
        let answer = post(path, body);
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.text);
        let body = answer.json();
        assert_eq!(body["code"], "BAD_REQUEST");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(says), "{path}: {message}");
    }
    let nobodys = format!("h1-00000000-{}", "0".repeat(32));
    for (how, body) in [
        ("commit", r#"{"actual":1}"#),
        ("release", ""),
        ("extend", r#"{"ttl":"1m"}"#),
    ] {
        let answer = verb(&server, &nobodys, how, body);
        assert_eq!(answer.status, 404, "{how}");
        assert_eq!(answer.json()["code"], "RESERVATION_UNKNOWN", "{how}");
    }
    let answer = server.get(&format!("/v1/reservations/{nobodys}"));
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (404, Some("RESERVATION_UNKNOWN"))
    );
    assert_eq!(left(&server), 900);
    for path in ["/v1/reservations", "/v1/reservations/unheld/commit"] {
        assert_eq!(server.get(path).status, 405, "{path}");
    }
}

#[test]
fn usage_needs_a_ledger() {
    let server = Running::start(RULES);
    let answer = server.get("/v1/usage/acme?period=2026-07&action=&rule=tokens");
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (409, Some("NO_LEDGER"))
    );
    let answer = server.get("/v1/usage/acme?month=7");
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (400, Some("BAD_REQUEST"))
    );
}
