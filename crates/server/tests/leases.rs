//! Concurrency leases at the HTTP door.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use common::{Answer, Running};
use serde_json::{Value, json};

const RULES: &str = r"
version: 1
rules:
  - { id: jobs, match: { action: job }, per: [tenant], algorithm: concurrency, limit: 2, lease: 30s, max_lease: 1h }
  - { id: total, match: { action: job }, per: [tenant], algorithm: fixed-window, limit: 100, window: 365d }
";

fn job() -> Value {
    json!({ "attributes": { "action": "job", "tenant": "acme" } })
}

fn with(mut body: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[allow(clippy::needless_pass_by_value)] // Every caller passes a temporary.
fn acquire(server: &Running, more: Value) -> Answer {
    server.post("/v1/leases", &with(job(), &more).to_string())
}

/// Acquires a lease, and returns its id and token.
fn acquired(server: &Running) -> (String, String) {
    let answer = acquire(server, json!({}));
    assert_eq!(answer.status, 201, "{}", answer.text);
    let text = |name: &str| answer.json()[name].as_str().unwrap().to_owned();
    (text("id"), text("token"))
}

fn renew(server: &Running, id: &str, body: &str) -> Answer {
    server.post(&format!("/v1/leases/{id}/renew"), body)
}

fn free(server: &Running, id: &str, token: &str) -> Answer {
    server.delete(&format!("/v1/leases/{id}"), &[("lease-token", token)])
}

/// A client cannot hold a slot for longer than the rule allows.
#[test]
fn ttl_is_at_most_the_lease_unless_max_lease_says_more() {
    let server = Running::start(
        "
version: 1
budgets: { pool: { per: [tenant], algorithm: concurrency, limit: 9, lease: 10s, max_lease: 20s } }
rules:
  - { id: jobs, match: { action: job }, per: [tenant], algorithm: concurrency, limit: 9, lease: 30s }
  - { id: pooled, match: { action: pool }, budget: pool }
",
    );
    let ask = |action: &str, ttl: &str| {
        let attributes = json!({ "action": action, "tenant": "acme" });
        let body = json!({ "attributes": attributes, "ttl": ttl });
        server.post("/v1/leases", &body.to_string())
    };
    for (action, most, above, rule) in [
        ("job", "30s", "30001ms", "jobs"),
        ("pool", "20s", "1h", "pool"),
    ] {
        let long = ask(action, above);
        assert_eq!(long.status, 400, "{}", long.text);
        let said = long.json()["message"].as_str().unwrap().to_owned();
        assert!(
            said.contains(&format!("`{rule}` allows at most {most};")),
            "{said}"
        );
        assert!(said.contains("max_lease"), "{said}");
        let lease = ask(action, most);
        assert_eq!(lease.status, 201, "{}", lease.text);
        let lease = lease.json();
        let (id, token) = (lease["id"].as_str().unwrap(), &lease["token"]);
        let long = renew(
            &server,
            id,
            &json!({ "token": token, "ttl": above }).to_string(),
        );
        assert_eq!((long.status, &long.json()["message"]), (400, &json!(said)));
        let renewed = renew(
            &server,
            id,
            &json!({ "token": token, "ttl": most }).to_string(),
        );
        assert_eq!(renewed.status, 200, "{}", renewed.text);
        // A stranger learns nothing about the rule.
        let stranger = json!({ "token": "0".repeat(32), "ttl": above }).to_string();
        assert_eq!(renew(&server, id, &stranger).status, 403);
    }
}

#[test]
fn lease_is_201_with_a_token_and_the_next_one_waits_for_a_slot() {
    let server = Running::start(RULES);
    let first = acquire(&server, json!({ "owner": "worker-7", "ttl": "10s" }));
    assert_eq!(first.status, 201, "{}", first.text);
    let lease = first.json();
    assert_eq!(
        (&lease["state"], &lease["owner"]),
        (&json!("HELD"), &json!("worker-7"))
    );
    assert_eq!(lease["token"].as_str().unwrap().len(), 32);
    assert_eq!(lease["allowed"], true);
    let decided = lease["decidedAtEpochMicros"].as_u64().unwrap() / 1000;
    assert_eq!(
        lease["expiresAtEpochMillis"].as_u64().unwrap() - decided,
        10_000
    );
    let second = acquire(&server, json!({}));
    assert_eq!(second.status, 201);
    assert!(second.json()["fence"].as_u64() > lease["fence"].as_u64());
    // The lease lasts as long as the rule says.
    let decided = second.json()["decidedAtEpochMicros"].as_u64().unwrap() / 1000;
    let expires = second.json()["expiresAtEpochMillis"].as_u64().unwrap();
    assert_eq!(expires - decided, 30_000);

    let refused = acquire(&server, json!({}));
    assert_eq!(refused.status, 429);
    let body = refused.json();
    assert_eq!(body["ruleId"], "jobs");
    assert_ne!(refused.header("retry-after"), "");
    assert_eq!(body["token"], json!(null));
    // A check takes no slot. It is denied, because no slot is free.
    assert_eq!(server.post("/v1/check", &job().to_string()).status, 429);

    let (id, token) = (&lease["id"], &lease["token"]);
    let freed = free(&server, id.as_str().unwrap(), token.as_str().unwrap());
    assert_eq!(
        (freed.status, freed.json()["state"].as_str()),
        (200, Some("RELEASED"))
    );
    assert_eq!(acquire(&server, json!({})).status, 201);
}

#[test]
fn only_the_owner_renews_and_releases() {
    let server = Running::start(RULES);
    let (id, token) = acquired(&server);
    let stranger = "0".repeat(32);
    for answer in [
        free(&server, &id, &stranger),
        renew(&server, &id, &json!({ "token": stranger }).to_string()),
    ] {
        assert_eq!(answer.status, 403, "{}", answer.text);
        assert_eq!(answer.json()["code"], "LEASE_NOT_YOURS");
    }
    let renewed = renew(
        &server,
        &id,
        &json!({ "token": token, "ttl": "1h" }).to_string(),
    );
    assert_eq!(renewed.status, 200, "{}", renewed.text);
    let later = renewed.json()["expiresAtEpochMillis"].as_u64().unwrap();
    // Without a `ttl`, a renewal never shortens the lease.
    let again = renew(&server, &id, &json!({ "token": token }).to_string());
    assert_eq!(again.status, 200, "{}", again.text);
    assert!(again.json()["expiresAtEpochMillis"].as_u64().unwrap() >= later);

    let body = json!({ "token": token }).to_string();
    let freed = server.delete_with(&format!("/v1/leases/{id}"), &body);
    assert_eq!(freed.status, 200, "{}", freed.text);
    assert_eq!(free(&server, &id, &token).status, 200, "it may be repeated");
    let late = renew(&server, &id, &body);
    assert_eq!(
        (late.status, late.json()["code"].as_str()),
        (409, Some("LEASE_ENDED"))
    );
    assert_eq!(late.json()["state"], "RELEASED");
}

#[test]
fn holders_are_listed_by_rule() {
    let server = Running::start(RULES);
    acquire(&server, json!({ "owner": "a" }));
    acquire(&server, json!({ "owner": "b" }));
    let answer = server.post("/v1/leases/holders", &job().to_string());
    assert_eq!(answer.status, 200);
    let body = answer.json();
    let rules = body["rules"].as_array().unwrap();
    assert_eq!((rules.len(), &rules[0]["ruleId"]), (1, &json!("jobs")));
    assert_eq!(rules[0]["truncated"], false);
    let holders = rules[0]["holders"].as_array().unwrap();
    let mut owners: Vec<_> = holders
        .iter()
        .map(|it| it["owner"].as_str().unwrap())
        .collect();
    owners.sort_unstable();
    assert_eq!(owners, ["a", "b"]);
    assert!(!answer.text.contains("token"), "{}", answer.text);
    let other = json!({ "attributes": { "action": "job", "tenant": "other" } });
    let none = server.post("/v1/leases/holders", &other.to_string());
    assert_eq!(none.json()["rules"][0]["holders"], json!([]));
}

#[test]
fn waiting_client_gets_the_released_slot() {
    let server = Running::start(RULES);
    let (id, token) = acquired(&server);
    acquired(&server);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| acquire(&server, json!({ "wait": "30s", "owner": "late" })));
        // Once the client waits, no other client gets a slot before it.
        while acquire(&server, json!({ "wait": "1ms" })).status != 429 {}
        free(&server, &id, &token);
        let granted = waiting.join().unwrap();
        assert_eq!(granted.status, 201, "{}", granted.text);
        assert_eq!(granted.json()["owner"], "late");
    });
}

#[test]
fn client_that_hangs_up_gives_up_its_place_in_the_queue() {
    let server = Running::start(RULES);
    let (id, token) = acquired(&server);
    acquired(&server);
    let body = with(job(), &json!({ "wait": "30s" })).to_string();
    let head = "POST /v1/leases HTTP/1.1\r\nhost: x\r\ncontent-length: ";
    let request = format!("{head}{}\r\n\r\n{body}", body.len());
    // The server has noticed once it closes its side too, without an answer.
    assert_eq!(server.raw_and_close(request.as_bytes()), "");
    // A client that does not wait is answered at once, in any case.
    assert_eq!(acquire(&server, json!({})).status, 429);
    free(&server, &id, &token);
    // The queue keeps the position of the client a little longer, and then gives it up.
    let next = acquire(&server, json!({ "wait": "30s" }));
    assert_eq!(next.status, 201, "{}", next.text);
}

#[test]
fn bad_requests_are_rejected_by_name() {
    let server = Running::start(RULES);
    let (id, token) = acquired(&server);
    let renewal = format!("/v1/leases/{id}/renew");
    let leases = "/v1/leases".to_owned();
    let long = with(job(), &json!({ "owner": "o".repeat(129) })).to_string();
    for (path, body, says) in [
        (
            &leases,
            r#"{"attributes":{"action":"job","tenant":"t"},"wait":"31s"}"#,
            "31s",
        ),
        (
            &leases,
            r#"{"attributes":{"action":"job","tenant":"t"},"ttl":"1ms"}"#,
            "1ms",
        ),
        (
            &leases,
            r#"{"attributes":{},"wait":2}"#,
            "a duration such as",
        ),
        (
            &leases,
            r#"{"attributes":{},"cost":2}"#,
            "unknown field `cost`",
        ),
        (&leases, &long, "the owner"),
        (&renewal, "", r#"send one such as {"token":"#),
        (&renewal, "{}", "missing field `token`"),
        (&renewal, r#"{"token":"x"}"#, "not a lease token"),
        (
            &"/v1/leases/x/renew".to_owned(),
            r#"{"token":"x"}"#,
            "use the `id` of the answer",
        ),
    ] {
        let answer = server.post(path, body);
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.text);
        let message = answer.json()["message"].to_string();
        assert!(
            message.replace("\\\"", "\"").contains(says),
            "{path}: {message}"
        );
    }
    let none = server.post("/v1/leases", r#"{"attributes":{"action":"none"}}"#);
    assert_eq!(
        (none.status, none.json()["code"].as_str()),
        (422, Some("NOTHING_TO_LEASE"))
    );
    let nobodys = format!("h1-00000000-{}", "0".repeat(32));
    let unknown = free(&server, &nobodys, &token);
    assert_eq!(
        (unknown.status, unknown.json()["code"].as_str()),
        (404, Some("LEASE_UNKNOWN"))
    );
    assert_eq!(free(&server, &id, "x").status, 400);
    assert_eq!(server.delete(&format!("/v1/leases/{id}"), &[]).status, 400);
    // A lease is not a reservation: only its token ends it.
    let ended = server.post(&format!("/v1/reservations/{id}/release"), "");
    assert_eq!(ended.status, 404, "{}", ended.text);
    assert_eq!(server.get(&format!("/v1/reservations/{id}")).status, 404);
}

#[test]
fn lease_that_is_not_renewed_expires_after_its_time_and_not_before() {
    let server = Running::start(RULES);
    let short = acquire(&server, json!({ "ttl": "300ms" })).json();
    acquired(&server);
    let next = acquire(&server, json!({ "wait": "30s" })).json();
    let (expires, decided) = (
        &short["expiresAtEpochMillis"],
        &next["decidedAtEpochMicros"],
    );
    assert!(decided.as_u64().unwrap() / 1000 >= expires.as_u64().unwrap());
    assert!(next["fence"].as_u64() > short["fence"].as_u64());
    // The slot is gone, whether or not the server has cleaned up yet.
    let body = json!({ "token": short["token"] }).to_string();
    let late = renew(&server, short["id"].as_str().unwrap(), &body);
    assert_eq!(
        (late.status, late.json()["code"].as_str()),
        (409, Some("LEASE_ENDED"))
    );
    assert_eq!(late.json()["state"], "EXPIRED");
}
