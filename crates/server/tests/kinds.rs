//! Rates, quotas and slots, as a client of the HTTP door sees them: grace, warnings, codes,
//! headers.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use common::{Answer, Running};
use serde_json::{Value, json};

const RULES: &str = r"
version: 1
headers: { families: [ietf, ratelimit, x-ratelimit] }
rules:
  - { id: yearly, match: { action: [chat, all] }, per: [tenant], algorithm: quota, limit: 2, grace: 2, period: year }
  - { id: rate, match: { action: [search, all] }, per: [tenant], algorithm: fixed-window, limit: 1, window: 10d }
  - { id: in-flight, match: { action: [job, all] }, per: [tenant], algorithm: concurrency, limit: 1, lease: 1h }
";

fn body(action: &str, tenant: &str) -> Value {
    json!({ "attributes": { "action": action, "tenant": tenant } })
}

fn check(server: &Running, action: &str) -> Answer {
    server.post("/v1/check", &body(action, "acme").to_string())
}

/// Reads a parameter of a header with one rule, such as `"yearly";q=2;w=31536000`.
fn parameter(answer: &Answer, header: &str, name: &str) -> u64 {
    let value = answer.header(header);
    let mut parameters = value.split(';').skip(1);
    let found = parameters.find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
    assert!(found.is_some(), "{value}");
    found.unwrap().parse().unwrap()
}

/// Returns whether the reset is this many seconds after the decision, within one second.
fn is_until(answer: &Answer, seconds: u64) -> bool {
    let json = answer.json();
    let decided = json["decidedAtEpochMicros"].as_u64().unwrap();
    let reset = json["resetAtEpochMillis"].as_u64().unwrap() * 1000;
    (reset - decided).div_ceil(1_000_000).abs_diff(seconds) <= 1
}

#[test]
fn quota_warns_within_its_grace_and_then_denies() {
    let server = Running::start(RULES);
    for (remaining, grace) in [(1, None), (0, None), (0, Some(1)), (0, Some(0))] {
        let answer = check(&server, "chat");
        assert_eq!(answer.status, 200, "{}", answer.text);
        let told = answer.json();
        assert_eq!(
            (&told["limit"], &told["remaining"]),
            (&json!(2), &json!(remaining))
        );
        let warning = grace.map(|_| "over quota, within grace");
        assert_eq!(told["warning"].as_str(), warning);
        let expected = grace.map(|left| json!({ "limit": 2, "remaining": left }));
        assert_eq!(told["rules"][0].get("grace"), expected.as_ref());
        assert_eq!(answer.header("ratelimit-limit"), "2");
        assert_eq!(answer.header("ratelimit-remaining"), remaining.to_string());
        assert_eq!(answer.header("retry-after"), "");
        assert_eq!(parameter(&answer, "ratelimit", "r"), remaining);
        assert!(is_until(&answer, parameter(&answer, "ratelimit", "t")));
    }
    let refused = check(&server, "chat");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json().get("warning"), None);
    let metrics = server.get("/metrics").text;
    let counted = r#"rate_limit_grace_total{rule="yearly"} 2"#;
    assert!(metrics.contains(counted), "{metrics}");

    // A reservation within the grace gets the same warning.
    let mut wish = body("chat", "zed");
    wish["cost"] = json!(3);
    let reserved = server.post("/v1/reservations", &wish.to_string());
    assert_eq!(reserved.status, 201, "{}", reserved.text);
    assert_eq!(reserved.json()["warning"], "over quota, within grace");
}

#[test]
fn denials_differ_in_code_message_policy_and_metrics() {
    let server = Running::start(RULES);
    for _ in 0..4 {
        check(&server, "chat");
    }
    let quota = check(&server, "chat");
    check(&server, "search");
    let rate = check(&server, "search");
    let job = body("job", "acme").to_string();
    assert_eq!(server.post("/v1/leases", &job).status, 201);
    let slots = server.post("/v1/leases", &job);
    let metrics = server.get("/metrics").text;
    for (answer, rule, kind, code, says) in [
        (
            &quota,
            "yearly",
            "quota",
            "QUOTA",
            "The quota is used up. Try again in ",
        ),
        (
            &rate,
            "rate",
            "rate",
            "RATE_LIMIT",
            "Too many requests. Try again in ",
        ),
        (
            &slots,
            "in-flight",
            "concurrency",
            "CONCURRENCY",
            "Too many requests at once. Try again in ",
        ),
    ] {
        assert_eq!(answer.status, 429, "{}", answer.text);
        let told = answer.json();
        assert_eq!(
            (&told["ruleId"], &told["kind"]),
            (&json!(rule), &json!(kind))
        );
        assert_eq!(told["code"], code);
        let message = told["message"].as_str().unwrap();
        assert!(message.starts_with(says), "{message}");
        let wait: u64 = answer.header("retry-after").parse().unwrap();
        let millis = told["retryAfterMillis"].as_u64().unwrap();
        assert_eq!(wait, millis.div_ceil(1000));
        assert_eq!(answer.header("ratelimit-remaining"), "0");
        let counted = format!(
            r#"rate_limit_rejected_total{{rule="{rule}",subject_type="tenant",reason="exceeded",kind="{kind}"}} 1"#
        );
        assert!(metrics.contains(&counted), "{counted}: {metrics}");
        let state = format!("\"{rule}\";r=0;t=");
        assert!(
            answer.header("ratelimit").starts_with(&state),
            "{}",
            answer.header("ratelimit")
        );
    }
    assert_eq!(rate.header("ratelimit-policy"), r#""rate";q=1;w=864000"#);
    assert_eq!(
        slots.header("ratelimit-policy"),
        r#""in-flight";q=1;qu="concurrent-requests""#
    );
    // The real length of the current year, not an average.
    assert_eq!(parameter(&quota, "ratelimit-policy", "q"), 2);
    let year = parameter(&quota, "ratelimit-policy", "w");
    assert!(
        [365, 366].map(|days| days * 86_400).contains(&year),
        "{year}"
    );
    assert!(is_until(
        &quota,
        quota.header("retry-after").parse().unwrap()
    ));
}

#[test]
fn quota_with_too_little_left_is_not_called_used_up() {
    let server = Running::start(RULES);
    check(&server, "chat");
    let mut much = body("chat", "acme");
    much["cost"] = json!(4);
    let refused = server.post("/v1/check", &much.to_string());
    assert_eq!(refused.status, 429, "{}", refused.text);
    let told = refused.json();
    assert_eq!(
        (&told["reason"], &told["remaining"]),
        (&json!("exceeded"), &json!(1))
    );
    let wait = refused.header("retry-after");
    let says = format!("The request needs more than the rest of the quota. Try again in {wait} s.");
    assert_eq!(told["message"], says);
}

#[test]
fn one_answer_has_the_policies_of_all_three() {
    let server = Running::start(RULES);
    let answer = check(&server, "all");
    assert_eq!(answer.status, 200, "{}", answer.text);
    let policies = answer.header("ratelimit-policy");
    let policies: Vec<&str> = policies.split(", ").collect();
    assert_eq!(policies.len(), 3, "{policies:?}");
    assert!(policies[0].starts_with("\"yearly\";q=2;w="), "{policies:?}");
    assert_eq!(policies[1], "\"rate\";q=1;w=864000");
    assert_eq!(policies[2], "\"in-flight\";q=1;qu=\"concurrent-requests\"");
    // The rate denies first.
    let refused = check(&server, "all");
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (429, &json!("RATE_LIMIT"))
    );
    assert_eq!(refused.header("ratelimit-policy").split(", ").count(), 3);
}
