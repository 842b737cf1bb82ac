//! The behaviour of `/auth` that proxies rely on.

mod common;

use common::{Answer, Running};
use tollgate_server::http::bounds;

const RULES: &str = r#"
version: 1
headers: { families: [ietf, ratelimit, x-ratelimit] }
subjects:
  trusted_proxies: [127.0.0.0/8]
  internal: [192.0.2.128/25]
  test_header: x-test-traffic
routes:
  - { method: [GET, HEAD], host: "api.*", path: "/search*", action: search }
  - { method: POST, path: /login, action: login }
rules:
  - { id: search, match: { action: search }, per: [subject], algorithm: fixed-window, limit: 2, window: 10d }
  - { id: login, match: { action: login }, per: [ip], algorithm: sliding-log, limit: 1, window: 10d, message: Slow down. }
  - { id: hidden, match: { action: login }, per: [ip], algorithm: sliding-log, limit: 9, window: 10d, state: shadow }
  - { id: tenant, match: { path: "/t/*" }, per: [tenant], missing: deny, algorithm: fixed-window, limit: 1, window: 10d }
  - { id: tests, match: { traffic: test }, algorithm: fixed-window, limit: 0, window: 1s }
  - { id: inside, match: { traffic: internal }, algorithm: fixed-window, limit: 0, window: 1s }
  - { id: plain, match: { scheme: http, path: /secret }, algorithm: fixed-window, limit: 0, window: 1s }
  - { id: queue, match: { path: /queue }, algorithm: leaky-bucket, rate: 1/d, queue: 1, shape: true }
"#;

/// Asks as Traefik and Caddy do.
fn ask(server: &Running, method: &str, uri: &str, more: &[(&str, &str)]) -> Answer {
    let mut headers = vec![
        ("x-forwarded-method", method),
        ("x-forwarded-uri", uri),
        ("x-forwarded-host", "api.example.com"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-for", "203.0.113.1"),
    ];
    headers.retain(|(name, _)| more.iter().all(|(other, _)| name != other));
    headers.extend(more);
    server.get_with("/auth", &headers)
}

#[test]
fn allowed_request_is_200_without_a_body_and_with_headers() {
    let server = Running::start(RULES);
    let answer = ask(&server, "GET", "/search?q=x", &[("x-api-key", "k1")]);
    assert_eq!((answer.status, answer.text.as_str()), (200, ""));
    assert_eq!(answer.header("content-type"), "");
    assert!(answer.header("ratelimit").starts_with("\"search\";r=1;t="));
    assert_eq!(answer.header("ratelimit-policy"), "\"search\";q=2;w=864000");
    assert_eq!(answer.header("ratelimit-remaining"), "1");
    assert_eq!(answer.header("x-ratelimit-remaining"), "1");
    // A request without rules is allowed, without header fields.
    let free = ask(&server, "GET", "/free", &[]);
    assert_eq!(
        (free.status, free.header("ratelimit")),
        (200, String::new())
    );
}

#[test]
fn denial_can_be_passed_on_to_the_client() {
    let server = Running::start(RULES);
    assert_eq!(ask(&server, "POST", "/login", &[]).status, 200);
    let refused = ask(&server, "POST", "/login", &[]);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-type"), "application/json");
    assert_eq!(refused.header("ratelimit-remaining"), "0");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=864_000).contains(&wait), "{wait}");
    let body = refused.json();
    assert_eq!(body["code"], "RATE_LIMIT");
    assert_eq!(body["message"], "Slow down.");
    assert_eq!(body["ruleId"], "login");
    assert_eq!(body["kind"], "rate");
    assert_eq!(body["limit"], 1);
    assert!(body["retryAfterMillis"].as_u64().unwrap() <= wait * 1000);
    for secret in ["hidden", "subject", "configVersion", "203.0.113.1"] {
        assert!(!refused.text.contains(secret), "{}", refused.text);
    }
    let accept = [("accept", "application/problem+json")];
    let problem = ask(&server, "POST", "/login", &accept);
    assert_eq!(problem.header("content-type"), "application/problem+json");
    assert_eq!(problem.json()["detail"], "Slow down.");
    assert_eq!(problem.json()["status"], 429);
    assert_eq!(problem.json()["ruleId"], "login");
}

#[test]
fn full_queue_is_503() {
    let server = Running::start(RULES);
    let statuses = [(); 3].map(|()| ask(&server, "GET", "/queue", &[]).status);
    assert_eq!(statuses, [200, 200, 503]);
}

#[test]
fn other_spellings_of_a_path_match_the_same_route() {
    let server = Running::start(RULES);
    let spellings = [
        "/login",
        "//login",
        "/./login?x",
        "/x/../login",
        "/%6cogin",
        "/%4C/../log%69n#x",
        "https://other.example/login",
        "/login/",
        "/login/.",
        "/login;x=1",
        "/login;x=1/",
        "/x/..;/login",
        "/login%2f",
        "/login%2F?x",
        "/login\\",
        "/login%5C",
        "\\login",
    ];
    for (place, spelling) in spellings.iter().enumerate() {
        let expected = if place == 0 { 200 } else { 429 };
        assert_eq!(
            ask(&server, "POST", spelling, &[]).status,
            expected,
            "{spelling}"
        );
    }
    // The rule matches the attribute `path`, in the same form.
    for spelling in ["/queue/", "/queue;a", "/queue%2F", "/queue"] {
        let status = ask(&server, "GET", spelling, &[]).status;
        assert!(matches!(status, 200 | 503), "{spelling}: {status}");
    }
    assert_eq!(ask(&server, "GET", "/queue/", &[]).status, 503);
    // `/t/*` is `/t` and everything below it.
    for spelling in ["/t", "/t/", "/t/x"] {
        assert_eq!(ask(&server, "GET", spelling, &[]).status, 429, "{spelling}");
    }
    assert_eq!(ask(&server, "GET", "/tx", &[]).status, 200);
}

#[test]
fn strict_route_tells_spellings_apart() {
    let server = Running::start(
        "
version: 1
subjects: { trusted_proxies: [127.0.0.0/8] }
routes:
  - { path: /login, strict: true, action: closed }
  - { path: /files/, strict: true, action: closed }
rules:
  - { id: closed, match: { action: closed }, algorithm: fixed-window, limit: 0, window: 1s }
",
    );
    for (path, expected) in [
        ("/login", 429),
        ("//login", 429),
        ("/%6cogin", 429),
        ("/x/../login", 429),
        ("/login/", 200),
        ("/login;a", 200),
        ("/login%2F", 200),
        ("/files/", 429),
        ("/files/.", 429),
        ("/files", 200),
    ] {
        assert_eq!(ask(&server, "GET", path, &[]).status, expected, "{path}");
    }
}

#[test]
fn client_is_found_behind_the_proxy() {
    let server = Running::start(RULES);
    let login =
        |forwarded: &str| ask(&server, "POST", "/login", &[("x-forwarded-for", forwarded)]).status;
    assert_eq!(login("203.0.113.7"), 200);
    assert_eq!(login("203.0.113.8"), 200, "somebody else");
    assert_eq!(login("198.51.100.1, 203.0.113.7"), 429, "spoofed");
    assert_eq!(login("203.0.113.7, 127.0.0.9"), 429, "a second proxy");
    assert_eq!(login("2001:db8::1"), 200);
    assert_eq!(login("2001:db8::2"), 429, "the same prefix");

    let tenant = |headers: &[(&str, &str)]| ask(&server, "GET", "/t/x", headers).status;
    assert_eq!(tenant(&[]), 429);
    assert_eq!(tenant(&[("x-tenant-id", "acme")]), 200);
    assert_eq!(tenant(&[("x-tenant-id", "acme")]), 429);

    let subject = |headers: &[(&str, &str)]| ask(&server, "GET", "/search", headers).status;
    assert_eq!(subject(&[("x-api-key", "k"), ("x-user-id", "ann")]), 200);
    assert_eq!(subject(&[("x-api-key", "k")]), 200);
    assert_eq!(subject(&[("x-api-key", "k")]), 429);
    assert_eq!(subject(&[("x-user-id", "ann")]), 200);
    assert_eq!(subject(&[]), 200);

    let traffic = |headers: &[(&str, &str)]| ask(&server, "GET", "/", headers).status;
    assert_eq!(traffic(&[]), 200);
    assert_eq!(traffic(&[("x-test-traffic", "1")]), 429);
    assert_eq!(traffic(&[("x-forwarded-for", "192.0.2.200")]), 429);
    let secret = |proto: &str| ask(&server, "GET", "/secret", &[("x-forwarded-proto", proto)]);
    assert_eq!((secret("https").status, secret("http").status), (200, 429));
}

#[test]
fn nginx_and_envoy_are_understood() {
    let server = Running::start(RULES);
    let nginx = [
        ("x-original-method", "POST"),
        ("x-original-uri", "/login?next=/"),
        ("x-forwarded-for", "203.0.113.1"),
    ];
    assert_eq!(server.get_with("/auth", &nginx).status, 200);
    assert_eq!(server.get_with("/auth", &nginx).status, 429);
    let envoy = [("x-forwarded-for", "203.0.113.1")];
    assert_eq!(
        server.post_with("/auth/login?next=/", "", &envoy).status,
        429
    );
    assert_eq!(
        server.get_with("/auth/login", &envoy).status,
        200,
        "not a POST"
    );
    assert_eq!(server.get_with("/auth/", &envoy).status, 200);
    // Any method, even an unknown one.
    let odd = server
        .raw(b"BREW /auth/login HTTP/1.1\r\nhost: api.example.com\r\nconnection: close\r\n\r\n");
    assert!(odd.starts_with("HTTP/1.1 200 "), "{odd}");
}

#[test]
fn only_trusted_proxies_are_answered_and_others_get_a_remedy() {
    let rules = "version: 1\nrules: []\n";
    for server in [
        Running::start(rules),
        Running::start(&format!(
            "subjects: {{ trusted_proxies: [10.0.0.0/8] }}\n{rules}"
        )),
    ] {
        let answer = ask(&server, "GET", "/", &[]);
        assert_eq!(answer.status, 403);
        assert_eq!(answer.json()["code"], "UNTRUSTED_PROXY");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("subjects.trusted_proxies"), "{message}");
        assert!(message.contains("127.0.0.1/32"), "{message}");
        // The other paths are open to every client.
        assert_eq!(server.get("/healthz").status, 200);
        assert_eq!(server.post("/v1/check", r#"{"attributes":{}}"#).status, 200);
    }
}

#[test]
fn bad_requests_are_rejected_with_a_reason() {
    type Lines<'a> = &'a [(&'a str, &'a str)];
    let server = Running::start(RULES);
    let long = "k".repeat(bounds::MAX_VALUE + 1);
    let path = "/a".repeat(3000);
    let table: &[(u16, Lines<'_>, &str)] = &[
        (400, &[], "X-Forwarded-Uri"),
        (
            400,
            &[("x-forwarded-method", "GET")],
            "lacks the header x-forwarded-uri",
        ),
        (
            400,
            &[
                ("x-forwarded-method", "GET"),
                ("x-forwarded-uri", "/"),
                ("x-original-uri", "/x"),
            ],
            "the client may have sent one of them",
        ),
        (
            400,
            &[
                ("x-original-method", "GET"),
                ("x-original-uri", "/"),
                ("x-original-uri", "/x"),
            ],
            "more than once",
        ),
        (
            400,
            &[
                ("x-original-method", "GET"),
                ("x-original-uri", "/"),
                ("x-api-key", "a"),
                ("x-api-key", "b"),
            ],
            "x-api-key is given more than once",
        ),
        (
            431,
            &[
                ("x-original-method", "GET"),
                ("x-original-uri", "/"),
                ("x-api-key", &long),
            ],
            "longer than 1024 bytes",
        ),
        (
            414,
            &[("x-original-method", "GET"), ("x-original-uri", &path)],
            "longer than 4096 bytes",
        ),
    ];
    for (status, headers, says) in table {
        let answer = server.get_with("/auth", headers);
        assert_eq!(answer.status, *status, "{headers:?}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn body_is_not_read() {
    let server = Running::start(RULES);
    let ask = "POST /auth HTTP/1.1\r\nhost: t\r\nx-forwarded-method: GET\r\nx-forwarded-uri: /free\r\n\
               content-length: 1000000000\r\n\r\n";
    let answer = server.raw_and_close(ask.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn proxies_keep_their_connections() {
    let server = Running::start(RULES);
    let ask = "GET /auth HTTP/1.1\r\nhost: t\r\nx-forwarded-method: GET\r\nx-forwarded-uri: /free\r\n\r\n";
    let last = ask.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    let answers = server.raw((ask.repeat(10) + &last).as_bytes());
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 11, "{answers}");
}

#[test]
fn proxy_names_the_priority_and_the_fairness_id() {
    let server = Running::start(
        r#"
version: 1
subjects: { trusted_proxies: [127.0.0.0/8], headers: { priority: priority } }
rules:
  - { id: batch, match: { priority: low }, algorithm: fixed-window, limit: 0, window: 1s }
  - { id: fair, per: [fairness_id], algorithm: fixed-window, limit: 1, window: 10d }
"#,
    );
    let status = |headers: &[(&str, &str)]| ask(&server, "GET", "/", headers).status;
    assert_eq!(status(&[("priority", "u=6, i")]), 429);
    assert_eq!(status(&[("priority", "u=2")]), 200);
    let team = [("x-gateway-inference-fairness-id", "team-a")];
    assert_eq!([0; 2].map(|_| status(&team)), [200, 429]);
    let other = [("x-gateway-inference-fairness-id", "team-b")];
    assert_eq!(status(&other), 200);
}
