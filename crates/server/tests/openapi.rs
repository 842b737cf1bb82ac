//! The OpenAPI document of the HTTP door, compared with what the door does.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use common::{Answer, Running};
use serde_json::{Value, json};

const RULES: &str = r"
version: 1
subjects: { trusted_proxies: [127.0.0.1/32] }
rules:
  - { id: login, match: { action: login }, per: [user], algorithm: fixed-window, limit: 2, window: 10d }
  - { id: watch, match: { action: login }, per: [user], algorithm: sliding-log, limit: 1, window: 10d, state: shadow }
  - { id: mail, match: { action: mail }, algorithm: leaky-bucket, rate: 1/h, queue: 1, shape: true }
  - { id: must, match: { action: must }, per: [tenant], missing: deny, algorithm: gcra, rate: 1/s }
  - { id: open, match: { action: open }, algorithm: gcra, rate: unlimited }
  - { id: pages, match: { method: '*' }, algorithm: fixed-window, limit: 1, window: 10d }
";

/// The document of a server.
struct Description(Value);

impl Description {
    fn of(server: &Running) -> Description {
        let answer = server.get("/openapi.json");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), "application/json");
        Description(answer.json())
    }

    /// Finds the part of the document about this answer to `method` on `path`.
    #[track_caller]
    fn response(&self, method: &str, path: &str, answer: &Answer) -> &Value {
        let responses = &self.0["paths"][path][method]["responses"];
        let response = &responses[answer.status.to_string()];
        assert!(
            response.is_object(),
            "{method} {path} answers {}, and the description does not say so",
            answer.status
        );
        response
    }

    /// Checks a JSON answer against its schema. Fields that the schema lacks are errors as well.
    #[track_caller]
    fn holds(&self, method: &str, path: &str, answer: &Answer) {
        let response = self.response(method, path, answer);
        let schema = &response["content"][answer.header("content-type")]["schema"];
        assert!(schema.is_object(), "{}", answer.header("content-type"));
        let whole = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "components": self.0["components"],
            "allOf": [schema],
            "unevaluatedProperties": false,
        });
        let validator = jsonschema::validator_for(&whole).unwrap();
        let body = answer.json();
        let errors: Vec<String> = validator
            .iter_errors(&body)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{errors:#?}\n{}", answer.text);
        for (name, header) in response["headers"].as_object().into_iter().flatten() {
            let value = answer.header(name);
            if header["schema"]["type"] == "integer" && !value.is_empty() {
                assert!(value.parse::<u64>().is_ok(), "{name}: {value}");
            }
        }
    }
}

#[test]
fn every_kind_of_answer_is_as_described() {
    let server = Running::start(RULES);
    let description = Description::of(&server);
    let problem = [("accept", "application/problem+json")];
    let check = |body: &str, headers: &[(&str, &str)], status: u16| {
        let answer = server.post_with("/v1/check", body, headers);
        assert_eq!(answer.status, status, "{body}: {}", answer.text);
        description.holds("post", "/v1/check", &answer);
    };
    let ann = r#"{"attributes":{"action":"login","user":"ann"}}"#;
    check(ann, &[], 200);
    check(ann, &[], 200);
    check(ann, &[], 429);
    check(ann, &problem, 429);
    check(r#"{"attributes":{"action":"none"}}"#, &[], 200);
    check(r#"{"attributes":{"action":"open"}}"#, &[], 200);
    check(r#"{"attributes":{"action":"must"}}"#, &[], 429);
    let mail = r#"{"attributes":{"action":"mail"}}"#;
    check(mail, &[], 200);
    check(mail, &[], 200);
    check(mail, &[], 503);
    check(mail, &problem, 503);
    check("{", &[], 400);
    check(&" ".repeat(70_000), &[], 413);

    for (path, body) in [
        (
            "/v1/check/batch",
            format!(r#"{{"requests":[{ann},{mail}]}}"#),
        ),
        ("/v1/peek", ann.to_owned()),
        ("/v1/refund", ann.to_owned()),
        (
            "/v1/report",
            r#"{"attributes":{"user":"ann"},"latency":"35ms","failed":true}"#.to_owned(),
        ),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 200, "{path}");
        description.holds("post", path, &answer);
        let answer = server.post(path, r#"{"cost":-1}"#);
        assert_eq!(answer.status, 400, "{path}");
        description.holds("post", path, &answer);
    }

    let asked = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/a")];
    let allowed = server.get_with("/auth", &asked);
    assert_eq!((allowed.status, allowed.text.as_str()), (200, ""));
    let response = description.response("get", "/auth", &allowed);
    assert!(response["content"].is_null());
    let refused = server.get_with("/auth", &asked);
    assert_eq!(refused.status, 429);
    description.holds("get", "/auth", &refused);
    let [method, uri] = asked;
    let refused = server.get_with("/auth", &[method, uri, problem[0]]);
    assert_eq!(refused.header("content-type"), "application/problem+json");
    description.holds("get", "/auth", &refused);
    description.holds("get", "/auth", &server.get("/auth"));

    description.holds("get", "/readyz", &server.get("/readyz"));
    for path in ["/healthz", "/metrics"] {
        let answer = server.get(path);
        let response = description.response("get", path, &answer);
        assert!(response["content"]["text/plain"].is_object());
        assert!(answer.header("content-type").starts_with("text/plain;"));
    }
}

#[test]
fn answers_about_reservations_leases_and_usage_are_as_described() {
    let rules = format!(
        "{RULES}  - {{ id: slots, match: {{ action: job }}, algorithm: concurrency, limit: 1 }}\n"
    );
    let server = Running::start(&rules);
    let description = Description::of(&server);
    let post = |path: &str, id: &str, body: &str, status: u16| {
        let answer = server.post(&path.replace("{id}", id), body);
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
        description.holds("post", path, &answer);
        answer.json()
    };
    let one = r#"{"attributes":{"action":"login","user":"ann"},"idempotencyKey":"k"}"#;
    let (new, nobodys) = (
        "/v1/reservations",
        format!("h1-00000000-{}", "0".repeat(32)),
    );
    let held = post(new, "", one, 201);
    let id = held["id"].as_str().unwrap();
    post(new, "", one, 200);
    post(new, "", &one.replace("ann", "bob"), 409);
    post(new, "", &one.replace(r#""k"}"#, r#""l","cost":9}"#), 429);
    post(new, "", r#"{"attributes":{"action":"none"}}"#, 201);
    post(new, "", r#"{"attributes":{},"ttl":"1ms"}"#, 400);
    for name in [id, &nobodys, "x"] {
        let answer = server.get(&format!("/v1/reservations/{name}"));
        description.holds("get", "/v1/reservations/{id}", &answer);
    }
    let extend = "/v1/reservations/{id}/extend";
    post(extend, id, r#"{"ttl":"10m"}"#, 200);
    let commit = "/v1/reservations/{id}/commit";
    post(commit, id, r#"{"actual":1}"#, 200);
    post(commit, id, r#"{"actual":2}"#, 409);
    post(commit, id, "{}", 400);
    post(commit, &nobodys, r#"{"actual":1}"#, 404);
    post(extend, id, r#"{"ttl":"10m"}"#, 409);
    let release = "/v1/reservations/{id}/release";
    post(release, id, "", 409);
    post(release, "unheld", "", 200);
    let other = one.replace(r#""k"}"#, r#""gone"}"#);
    let gone = post(new, "", &other, 201);
    post(release, gone["id"].as_str().unwrap(), "", 200);
    post(new, "", &other, 409);

    let job = r#"{"attributes":{"action":"job"},"owner":"me"}"#;
    let lease = post("/v1/leases", "", job, 201);
    let (id, token) = (
        lease["id"].as_str().unwrap(),
        lease["token"].as_str().unwrap(),
    );
    post("/v1/leases", "", job, 429);
    post("/v1/leases", "", r#"{"attributes":{"action":"none"}}"#, 422);
    post(
        "/v1/leases/holders",
        "",
        r#"{"attributes":{"action":"job"}}"#,
        200,
    );
    post(release, id, "", 404);
    let renew = "/v1/leases/{id}/renew";
    let mine = json!({ "token": token }).to_string();
    post(renew, id, &mine, 200);
    post(
        renew,
        id,
        &json!({ "token": "0".repeat(32) }).to_string(),
        403,
    );
    post(renew, &nobodys, &mine, 404);
    for (name, token, status) in [
        (id, "x", 400),
        (id, &"0".repeat(32), 403),
        (&nobodys, token, 404),
        (id, token, 200),
        (id, token, 200),
    ] {
        let path = format!("/v1/leases/{name}");
        let answer = server.delete(&path, &[("lease-token", token)]);
        assert_eq!(answer.status, status, "{}", answer.text);
        description.holds("delete", "/v1/leases/{id}", &answer);
    }
    post(renew, id, &mine, 409);
    for query in ["", "?period=2026-W27", "?period=July", "?rule=%00"] {
        let answer = server.get(&format!("/v1/usage/acme{query}"));
        description.holds("get", "/v1/usage/{tenant}", &answer);
    }
}

#[test]
fn answers_of_auth_are_as_described() {
    let server = Running::start("version: 1\nrules: []");
    let answer = server.get("/auth");
    assert_eq!(answer.status, 403);
    Description::of(&server).holds("get", "/auth", &answer);
}

#[test]
fn every_path_is_described_and_every_described_path_exists() {
    let server = Running::start(RULES);
    let Description(description) = Description::of(&server);
    let listed = server.get("/nowhere").json()["message"].to_string();
    for path in description["paths"].as_object().unwrap().keys() {
        assert_ne!(server.get(path).status, 404, "{path}");
        assert!(listed.contains(path), "{path} is not in: {listed}");
    }
    let words = listed.split([' ', ',', '"']);
    for path in words.filter(|word| word.starts_with('/')) {
        assert!(description["paths"][path].is_object(), "{path}");
    }
}

#[test]
fn examples_match_their_schemas() {
    let server = Running::start(RULES);
    let Description(description) = Description::of(&server);
    let mut seen = 0;
    let mut left = vec![&description["paths"]];
    while let Some(value) = left.pop() {
        if let (Value::Object(schema), Some(example)) = (&value["schema"], value.get("example")) {
            let whole = json!({ "components": description["components"], "allOf": [schema] });
            let validator = jsonschema::validator_for(&whole).unwrap();
            assert!(validator.is_valid(example), "{example} of {schema:?}");
            seen += 1;
        }
        match value {
            Value::Object(members) => left.extend(members.values()),
            Value::Array(items) => left.extend(items),
            _ => {}
        }
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn only_the_header_families_of_the_config_are_described() {
    let headers = |server: &Running| {
        let Description(description) = Description::of(server);
        let headers = &description["paths"]["/v1/check"]["post"]["responses"]["200"]["headers"];
        let names = headers.as_object().unwrap().keys();
        names.cloned().collect::<Vec<_>>().join(" ")
    };
    let always = "Preference-Applied";
    for (families, described) in [
        ("", "RateLimit-Limit RateLimit-Remaining RateLimit-Reset"),
        (
            "headers: { families: [ietf] }\n",
            "RateLimit RateLimit-Policy",
        ),
        (
            "headers: { families: [x-ratelimit] }\n",
            "X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset",
        ),
    ] {
        let server = Running::start(&format!("{RULES}{families}"));
        assert_eq!(headers(&server), format!("{always} {described}"));
    }
}

#[test]
fn described_bounds_are_those_of_the_door() {
    use tollgate_server::http::bounds;
    let server = Running::start(RULES);
    let Description(description) = Description::of(&server);
    let schemas = &description["components"]["schemas"];
    let batch = &schemas["Batch"]["properties"]["requests"];
    assert_eq!(batch["maxItems"], bounds::MAX_BATCH);
    for body in ["Check", "Refund", "Reserve"] {
        let cost = &schemas[body]["properties"]["cost"];
        assert_eq!(cost["maximum"], tollgate_core::MAX_AMOUNT, "{body}");
        assert_eq!(cost["minimum"], 0, "{body}");
        assert_eq!(schemas[body]["additionalProperties"], false, "{body}");
    }
}
