//! The behaviour that clients of the HTTP door rely on.

mod common;

use common::Running;
use serde_json::json;

const RULES: &str = r"
version: 1
rules:
  - { id: login, match: { action: login }, per: [user], algorithm: fixed-window, limit: 2, window: 10d }
  - { id: api, match: { action: api }, per: [tenant], algorithm: gcra, rate: 100/m, burst: 20 }
  - { id: api-day, match: { action: api }, per: [tenant], algorithm: fixed-window, limit: 1000, window: 1d }
  - { id: watch, match: { action: api }, per: [tenant], algorithm: sliding-log, limit: 1, window: 10d, state: shadow }
  - { id: mail, match: { action: mail }, algorithm: leaky-bucket, rate: 1/h, queue: 1, shape: true }
  - { id: tokens, match: { action: llm }, per: [tenant], missing: deny, algorithm: token-bucket,
      capacity: 100, refill: 1/h, cost: 'int(tokens)', message: No tokens left }
  - { id: open, match: { action: open }, algorithm: gcra, rate: unlimited }
";

#[allow(clippy::needless_pass_by_value)] // Every caller passes a temporary.
fn check(server: &Running, attributes: serde_json::Value) -> common::Answer {
    server.post(
        "/v1/check",
        &json!({ "attributes": attributes }).to_string(),
    )
}

#[test]
fn allowed_check_has_all_header_families_and_every_rule() {
    let families = "headers: { families: [ietf, ratelimit, x-ratelimit] }\n";
    let server = Running::start(&format!("{RULES}{families}"));
    let answer = check(&server, json!({ "action": "api", "tenant": "acme" }));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(
        answer.header("ratelimit-policy"),
        "\"api\";q=20;w=12, \"api-day\";q=1000;w=86400"
    );
    assert_eq!(answer.header("ratelimit"), "\"api\";r=19;t=1");
    assert_eq!(answer.header("ratelimit-limit"), "20");
    assert_eq!(answer.header("ratelimit-remaining"), "19");
    assert_eq!(answer.header("ratelimit-reset"), "1");
    assert_eq!(answer.header("x-ratelimit-limit"), "20");
    assert_eq!(answer.header("x-ratelimit-remaining"), "19");
    assert_eq!(answer.header("retry-after"), "");

    let body = answer.json();
    let reset = body["resetAtEpochMillis"].as_u64().unwrap();
    assert_eq!(
        answer.header("x-ratelimit-reset"),
        reset.div_ceil(1000).to_string()
    );
    assert_eq!(body["allowed"], true);
    assert_eq!(body["ruleId"], "api");
    assert_eq!(body["algorithm"], "gcra");
    assert_eq!(body["kind"], "rate");
    assert_eq!(body["limit"], 20);
    assert_eq!(body["remaining"], 19);
    assert_eq!(body["retryAfterMillis"], json!(null));
    assert_eq!(body["granted"], 1);
    assert_eq!(body["subject"].as_str().unwrap().len(), 32);
    let ids: Vec<_> = body["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["ruleId"])
        .collect();
    assert_eq!(ids, ["api", "api-day", "watch"]);
    assert!(
        !answer.text.contains("acme"),
        "raw subjects never leave: {}",
        answer.text
    );
}

#[test]
fn denial_is_429_with_retry_after_rounded_up_and_a_code() {
    let server = Running::start(RULES);
    let ann = json!({ "action": "login", "user": "ann" });
    check(&server, ann.clone());
    check(&server, ann.clone());
    let answer = check(&server, ann);
    assert_eq!(answer.status, 429);
    let body = answer.json();
    assert_eq!(body["allowed"], false);
    assert_eq!(body["code"], "RATE_LIMIT");
    assert_eq!(body["reason"], "exceeded");
    assert_eq!(body["granted"], 0);
    let millis = body["retryAfterMillis"].as_u64().unwrap();
    let seconds: u64 = answer.header("retry-after").parse().unwrap();
    assert!(
        seconds >= 1 && seconds == millis.div_ceil(1000),
        "{seconds} s for {millis} ms"
    );
    assert!(
        body["message"]
            .as_str()
            .unwrap()
            .starts_with("Too many requests.")
    );
}

#[test]
fn problem_document_on_request_or_by_config() {
    let problem_of = |server: &Running, headers: &[(&str, &str)]| {
        let body = r#"{"attributes":{"action":"login","user":"bob"},"cost":3}"#;
        server.post_with("/v1/check", body, headers)
    };
    let server = Running::start(RULES);
    let accept = [("accept", "application/problem+json, application/json")];
    let asked = problem_of(&server, &accept);
    assert_eq!(asked.header("content-type"), "application/problem+json");
    let body = asked.json();
    assert_eq!(body["status"], 429);
    assert_eq!(body["title"], "Too Many Requests");
    assert_eq!(body["type"], "about:blank");
    assert_eq!(body["detail"], body["message"]);
    assert_eq!(
        problem_of(&server, &[]).header("content-type"),
        "application/json"
    );

    let refused = [("accept", "application/json, application/problem+json;q=0")];
    let plain = problem_of(&server, &refused);
    assert_eq!(plain.header("content-type"), "application/json");

    let config = format!("{RULES}headers: {{ problem_json: true }}\n");
    let always = problem_of(&Running::start(&config), &[]);
    assert_eq!(always.header("content-type"), "application/problem+json");
}

#[test]
fn only_the_family_of_plain_numbers_is_sent_by_default() {
    let server = Running::start(RULES);
    let answer = check(&server, json!({ "action": "api", "tenant": "acme" }));
    assert_eq!(answer.header("ratelimit-limit"), "20");
    assert_eq!(answer.header("ratelimit-remaining"), "19");
    assert_eq!(answer.header("ratelimit-reset"), "1");
    for absent in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit"] {
        assert_eq!(answer.header(absent), "", "{absent}");
    }
}

#[test]
fn header_families_are_selectable() {
    let config = format!("{RULES}headers: {{ families: [x-ratelimit] }}\n");
    let server = Running::start(&config);
    let answer = check(&server, json!({ "action": "api", "tenant": "acme" }));
    assert_eq!(answer.header("x-ratelimit-limit"), "20");
    for absent in ["ratelimit", "ratelimit-policy", "ratelimit-limit"] {
        assert_eq!(answer.header(absent), "", "{absent}");
    }
}

#[test]
fn cost_above_the_capacity_is_denied_without_retry_after() {
    let server = Running::start(RULES);
    let answer = server.post(
        "/v1/check",
        r#"{"attributes":{"action":"login","user":"x"},"cost":3}"#,
    );
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), "");
    assert_eq!(answer.json()["reason"], "never_fits");
    assert_eq!(answer.json()["retryAfterMillis"], json!(null));
}

#[test]
fn delay_of_a_request_is_the_longest_of_its_rules() {
    let server = Running::start(
        "version: 1\nrules:\n\
         - { id: tight, algorithm: fixed-window, limit: 2, window: 10d }\n\
         - { id: turns, algorithm: leaky-bucket, rate: 1/h, queue: 9, shape: true }",
    );
    check(&server, json!({}));
    let second = check(&server, json!({})).json();
    assert_eq!(second["ruleId"], "tight");
    assert!(
        second["delayMillis"].as_u64().unwrap() > 3_500_000,
        "{second}"
    );
    assert_eq!(second["rules"][0]["delayMillis"], 0);
}

#[test]
fn shaping_rule_returns_a_delay_and_a_full_queue_is_503() {
    let server = Running::start(RULES);
    let mail = json!({ "action": "mail" });
    assert_eq!(check(&server, mail.clone()).json()["delayMillis"], 0);
    let second = check(&server, mail.clone()).json()["delayMillis"]
        .as_u64()
        .unwrap();
    assert!((3_590_000..=3_600_000).contains(&second), "{second}");
    let third = check(&server, mail);
    assert_eq!(third.status, 503);
    assert_eq!(third.json()["code"], "QUEUE_FULL");
    assert_ne!(third.header("retry-after"), "");
}

#[test]
fn missing_or_broken_attribute_has_its_own_code_and_message() {
    let server = Running::start(RULES);
    for (attributes, code) in [
        (json!({ "action": "llm", "tokens": 5 }), "MISSING_ATTRIBUTE"),
        (
            json!({ "action": "llm", "tenant": "t" }),
            "MISSING_ATTRIBUTE",
        ),
        (
            json!({ "action": "llm", "tenant": "t", "tokens": "many" }),
            "BAD_ATTRIBUTE",
        ),
        (
            json!({ "action": "llm", "tenant": "t", "tokens": -5 }),
            "BAD_ATTRIBUTE",
        ),
    ] {
        let answer = check(&server, attributes.clone());
        assert_eq!(answer.status, 429, "{attributes}");
        assert_eq!(answer.json()["code"], code, "{attributes}");
        // The message of the rule is only for an allowance that is used up.
        let message = match code {
            "MISSING_ATTRIBUTE" => "The request lacks an attribute it must carry.",
            _ => "An attribute of the request has no usable value.",
        };
        assert_eq!(answer.json()["message"], message);
    }
    let fits = json!({ "action": "llm", "tenant": "t", "tokens": 60 });
    assert_eq!(check(&server, fits).json()["remaining"], 40);
}

#[test]
fn request_without_rules_is_allowed() {
    let server = Running::start(RULES);
    let answer = check(&server, json!({ "action": "nothing" }));
    assert_eq!(
        (answer.status, answer.json()["ruleId"].clone()),
        (200, json!(null))
    );
    assert_eq!(answer.header("ratelimit-limit"), "");
    let open = check(&server, json!({ "action": "open" }));
    assert_eq!(
        (open.status, open.json()["limit"].clone()),
        (200, json!(null))
    );
    assert_eq!(open.header("ratelimit-limit"), "");
}

#[test]
fn peek_charges_nothing_and_refund_gives_back() {
    let server = Running::start(RULES);
    let one = r#"{"attributes":{"action":"login","user":"eve"}}"#;
    assert_eq!(server.post("/v1/peek", one).json()["remaining"], 2);
    assert_eq!(server.post("/v1/peek", one).json()["remaining"], 2);
    let charged = server.post("/v1/check", one).json();
    assert_eq!(charged["remaining"], 1);
    let at = charged["decidedAtEpochMicros"].as_u64().unwrap();
    let refund = format!(
        r#"{{"attributes":{{"action":"login","user":"eve"}},"cost":1,"chargedAtEpochMicros":{at}}}"#
    );
    assert_eq!(server.post("/v1/refund", &refund).json()["remaining"], 2);
    // A refund is capped at what was charged.
    assert_eq!(server.post("/v1/refund", &refund).json()["remaining"], 2);
    server.post("/v1/check", one);
    server.post("/v1/check", one);
    let peeked = server.post("/v1/peek", one);
    assert_eq!(
        (peeked.status, peeked.json()["allowed"].clone()),
        (200, json!(false))
    );
}

#[test]
fn up_to_grants_what_is_left() {
    let server = Running::start(RULES);
    let ask = r#"{"attributes":{"action":"api","tenant":"t"},"cost":50,"upTo":true}"#;
    let first = server.post("/v1/check", ask).json();
    assert_eq!(
        (first["allowed"].clone(), first["granted"].clone()),
        (json!(true), json!(20))
    );
    assert_eq!(server.post("/v1/check", ask).status, 429);
}

#[test]
fn batch_decides_each_in_order() {
    let server = Running::start(RULES);
    let one = json!({ "attributes": { "action": "login", "user": "joe" } });
    let batch = json!({ "requests": [one, one, one] }).to_string();
    let answer = server.post("/v1/check/batch", &batch);
    assert_eq!(answer.status, 200);
    let allowed: Vec<_> = answer.json()["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["allowed"].as_bool().unwrap())
        .collect();
    assert_eq!(allowed, [true, true, false]);
}

#[test]
fn shadow_rule_is_shown_and_never_denies() {
    let server = Running::start(RULES);
    let api = json!({ "action": "api", "tenant": "shade" });
    assert_eq!(check(&server, api.clone()).json()["shadowDenied"], false);
    let second = check(&server, api);
    assert_eq!(
        (second.status, second.json()["shadowDenied"].clone()),
        (200, json!(true))
    );
    let page = server.get("/metrics").text;
    assert!(
        page.contains("rate_limit_shadow_rejected_total{rule=\"watch\"} 1"),
        "{page}"
    );
}

#[test]
fn health_readiness_and_metrics_are_never_limited() {
    let server = Running::start(
        "version: 1\nrules: [{ id: none, algorithm: fixed-window, limit: 0, window: 1s }]",
    );
    let refused = check(&server, json!({ "a": "b" }));
    assert_eq!(refused.status, 429);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.get("/readyz").json()["status"], "ready");
    let page = server.get("/metrics").text;
    for line in [
        "# TYPE rate_limit_checks_total counter",
        "rate_limit_checks_total{rule=\"none\",algorithm=\"fixed-window\",outcome=\"rejected\"} 1",
        "rate_limit_rejected_total{rule=\"none\",subject_type=\"global\",reason=\"never_fits\",kind=\"rate\"} 1",
        "rate_limit_near_limit_total{rule=\"none\"} 0",
        "rate_limit_keys{namespace=\"default\"} 0",
    ] {
        assert!(page.contains(line), "{line} is missing in:\n{page}");
    }
}

#[test]
fn near_limit_counts_allowed_checks_with_less_than_a_fifth_left() {
    let server = Running::start(
        "version: 1\nrules: [{ id: ten, algorithm: fixed-window, limit: 10, window: 10d }]",
    );
    for _ in 0..12 {
        check(&server, json!({}));
    }
    let page = server.get("/metrics").text;
    // 10 of 12 requests are allowed. The last two of them leave 1 and 0, which is less than a fifth
    // of 10.
    assert!(
        page.contains("rate_limit_near_limit_total{rule=\"ten\"} 2"),
        "{page}"
    );
}
