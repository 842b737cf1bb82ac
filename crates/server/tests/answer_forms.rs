//! Answers in the minimal form: by `Prefer: return=minimal`, or by the config.

mod common;

use common::{Answer, Running};
use serde_json::json;

const RULES: &str = r#"
version: 1
rules:
  - { id: login, match: { action: login }, per: [user], algorithm: fixed-window, limit: 2, window: 10d }
  - { id: turns, match: { action: mail }, algorithm: leaky-bucket, rate: 1/h, queue: 9, shape: true }
  - { id: open, match: { action: open }, algorithm: gcra, rate: unlimited }
  - { id: own, match: { action: own }, algorithm: fixed-window, limit: 0, window: 1s, denial_body: '{"wait":{{retry_after}}}' }
"#;

const MINIMAL: (&str, &str) = ("prefer", "return=minimal");
const FULL: (&str, &str) = ("prefer", "return=representation");

fn ask(server: &Running, path: &str, action: &str, headers: &[(&str, &str)]) -> Answer {
    let body = json!({ "attributes": { "action": action, "user": "ann" } });
    server.post_with(path, &body.to_string(), headers)
}

#[test]
fn minimal_answer_has_the_figures_of_the_full_answer_and_no_rate_limit_headers() {
    let server = Running::start(RULES);
    let full = ask(&server, "/v1/check", "login", &[]);
    assert_eq!(full.header("preference-applied"), "");
    let minimal = ask(&server, "/v1/check", "login", &[MINIMAL]);
    assert_eq!(minimal.status, 200);
    assert_eq!(minimal.header("content-type"), "application/json");
    assert_eq!(minimal.header("preference-applied"), "return=minimal");
    assert_eq!(minimal.header("ratelimit-limit"), "");
    let reset = full.json()["resetAtEpochMillis"].clone();
    let expected = json!({
        "allowed": true, "limit": 2, "remaining": 0, "resetAtEpochMillis": reset, "granted": 1
    });
    assert_eq!(minimal.json(), expected);

    let denied = ask(&server, "/v1/check", "login", &[MINIMAL]);
    assert_eq!(denied.status, 429);
    let told = denied.json();
    assert_eq!(told["code"], "RATE_LIMIT");
    assert_eq!(
        (&told["granted"], &told["remaining"]),
        (&json!(0), &json!(0))
    );
    let wait = told["retryAfterMillis"].as_u64().unwrap();
    assert_eq!(
        denied.header("retry-after"),
        wait.div_ceil(1000).to_string()
    );
    assert_eq!(told.get("message"), None);
}

#[test]
fn minimal_answer_leaves_out_what_has_no_value() {
    let server = Running::start(RULES);
    let open = ask(&server, "/v1/check", "open", &[MINIMAL]);
    assert_eq!(open.json()["limit"], json!(null));
    let nothing = ask(&server, "/v1/check", "nothing", &[MINIMAL]);
    assert_eq!(nothing.json(), json!({ "allowed": true, "granted": 1 }));
    ask(&server, "/v1/check", "mail", &[MINIMAL]);
    let second = ask(&server, "/v1/check", "mail", &[MINIMAL]).json();
    assert!(
        second["delayMillis"].as_u64().unwrap() > 3_000_000,
        "{second}"
    );
}

#[test]
fn peeks_refunds_and_batches_have_both_forms() {
    let server = Running::start(RULES);
    for path in ["/v1/peek", "/v1/refund"] {
        let minimal = ask(&server, path, "login", &[MINIMAL]);
        assert_eq!(minimal.header("preference-applied"), "return=minimal");
        assert_eq!(minimal.json()["remaining"], 2, "{path}");
        assert_eq!(minimal.json().get("rules"), None, "{path}");
        let full = ask(&server, path, "login", &[FULL]);
        assert_eq!(full.header("preference-applied"), "return=representation");
        assert_eq!(full.json()["ruleId"], "login", "{path}");
    }
    let batch =
        json!({ "requests": [{ "attributes": { "action": "login", "user": "eve" } }] }).to_string();
    let minimal = server.post_with("/v1/check/batch", &batch, &[MINIMAL]);
    let decision = &minimal.json()["decisions"][0];
    assert_eq!(
        (&decision["remaining"], decision.get("ruleId")),
        (&json!(1), None)
    );
}

#[test]
fn config_makes_the_minimal_form_the_default_and_a_client_may_want_more() {
    let server = Running::start(&format!("{RULES}headers: {{ answers: minimal }}\n"));
    let minimal = ask(&server, "/v1/check", "login", &[]);
    assert_eq!(minimal.json().get("rules"), None);
    assert_eq!(minimal.header("preference-applied"), "");
    let full = ask(&server, "/v1/check", "login", &[FULL]);
    assert_eq!(full.json()["rules"][0]["ruleId"], "login");
    assert_eq!(full.header("ratelimit-limit"), "2");
}

#[test]
fn templates_and_problem_documents_stay_as_they_are() {
    let server = Running::start(RULES);
    let own = ask(&server, "/v1/check", "own", &[MINIMAL]);
    assert_eq!(own.header("preference-applied"), "");
    assert_eq!(own.json(), json!({ "wait": null }));
    for _ in 0..2 {
        ask(&server, "/v1/check", "login", &[]);
    }
    let problem = [MINIMAL, ("accept", "application/problem+json")];
    let problem = ask(&server, "/v1/check", "login", &problem);
    assert_eq!(problem.header("content-type"), "application/problem+json");
    assert_eq!(problem.header("preference-applied"), "");
    assert_eq!(problem.json()["ruleId"], "login");
}

/// The header of a client reaches `/auth` through a proxy, so it must not change the answer there.
#[test]
fn forward_auth_ignores_the_preference_of_a_client() {
    let auth =
        "subjects: { trusted_proxies: [127.0.0.0/8] }\nroutes: [{ path: /login, action: login }]\n";
    let server = Running::start(&format!("{RULES}{auth}headers: {{ answers: minimal }}\n"));
    let headers = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/login"),
        ("x-user-id", "ann"),
        MINIMAL,
    ];
    let allowed = server.get_with("/auth", &headers);
    assert_eq!(
        (allowed.status, allowed.header("preference-applied")),
        (200, String::new())
    );
    assert_eq!(allowed.header("ratelimit-limit"), "2");
    server.get_with("/auth", &headers);
    let denied = server.get_with("/auth", &headers);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("preference-applied"), "");
    assert_ne!(denied.json().get("message"), None);
}
