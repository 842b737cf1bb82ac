//! Careless and hostile clients of the HTTP door: each gets a clear answer, and the server goes on.

mod common;

use std::io::{Read, Write};

use common::Running;
use tollgate_server::http::bounds;

const RULES: &str =
    "version: 1\nrules: [{ id: all, algorithm: fixed-window, limit: 1000000, window: 1d }]";

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn still_serves(server: &Running) {
    assert_eq!(server.post("/v1/check", r#"{"attributes":{}}"#).status, 200);
}

#[test]
fn bodies_beyond_the_bound_are_413() {
    let server = Running::start(RULES);
    for (path, bound) in [
        ("/v1/check", bounds::MAX_BODY),
        ("/v1/check/batch", bounds::MAX_BATCH_BODY),
    ] {
        let answer = server.raw(post(path, &" ".repeat(bound + 1)).as_bytes());
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(
            answer.contains(&format!("larger than {bound} bytes")),
            "{answer}"
        );
    }
    let many = vec![r#"{"attributes":{}}"#; bounds::MAX_BATCH + 1].join(",");
    let answer =
        server.raw(post("/v1/check/batch", &format!(r#"{{"requests":[{many}]}}"#)).as_bytes());
    assert!(answer.contains("has 257 requests; at most 256"), "{answer}");
    still_serves(&server);
}

#[test]
fn announced_body_beyond_the_bound_is_refused_before_it_is_sent() {
    let server = Running::start(RULES);
    for (path, bound) in [
        ("/v1/check", bounds::MAX_BODY),
        ("/v1/check/batch", bounds::MAX_BATCH_BODY),
    ] {
        for expect in ["", "expect: 100-continue\r\n"] {
            let length = bound + 1;
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: t\r\n{expect}content-length: {length}\r\n\r\n"
            );
            // The client waits for the answer before it sends the body.
            let answer = server.raw(head.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
            assert!(
                answer.contains(&format!("larger than {bound} bytes")),
                "{answer}"
            );
        }
    }
    still_serves(&server);
}

#[test]
fn heads_beyond_the_bounds_are_431() {
    let server = Running::start(RULES);
    let long = format!(
        "GET /healthz HTTP/1.1\r\nx: {}\r\n\r\n",
        "y".repeat(bounds::MAX_HEADER_BYTES)
    );
    let many: String = (0..=bounds::MAX_HEADERS)
        .map(|i| format!("x{i}: y\r\n"))
        .collect();
    let many = format!("GET /healthz HTTP/1.1\r\n{many}\r\n");
    for head in [long, many] {
        let answer = server.raw(head.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer:?}");
    }
    still_serves(&server);
}

#[test]
fn bad_request_is_400_and_says_where() {
    let server = Running::start(RULES);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep = format!(r#"{{"attributes":{{"a":{deep}}}}}"#);
    for (body, says) in [
        ("", "not a JSON object"),
        ("null", "not a JSON object"),
        (r#"[{"a":"b"},1,false]"#, "not a JSON object"),
        (" {", "EOF while parsing"),
        (r#"{"attributes":{"a":"b"}}x"#, "trailing characters"),
        (r#"{"attributes":{"a":"\ud800"}}"#, "line 1"),
        (r#"{"attributes":{},"cost":1.5}"#, "floating point"),
        (
            r#"{"attributes":{},"cost":18446744073709551615}"#,
            "above the largest amount",
        ),
        (
            r#"{"attributes":{"a\r\nx-evil":"b"}}"#,
            "not an attribute name",
        ),
        (deep.as_str(), "a text, a whole number"),
    ] {
        let answer = server.post("/v1/check", body);
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["code"], "BAD_REQUEST");
        assert!(answer.text.contains(says), "{body}: {}", answer.text);
    }
    still_serves(&server);
}

#[test]
fn attributes_never_reach_a_header() {
    let server = Running::start(
        "version: 1\nrules: [{ id: u, per: [user], algorithm: fixed-window, limit: 0, window: 1s }]",
    );
    let answer = server.raw(
        post(
            "/v1/check",
            r#"{"attributes":{"user":"x\r\nset-cookie: a=b"}}"#,
        )
        .as_bytes(),
    );
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(!answer.contains("set-cookie"), "{answer}");
}

#[test]
fn garbage_and_broken_requests_end_only_their_connection() {
    let server = Running::start(RULES);
    let garbage: Vec<u8> = (0..=255).cycle().take(40_000).collect();
    let half = post("/v1/check", r#"{"attributes":{}}"#);
    let half = &half.as_bytes()[..half.len() - 5];
    for bytes in [
        &garbage[..],
        half,
        b"\r\n\r\n\r\n",
        b"GET",
        b"PRI * HTTP/2.0\r\n\r\nXM\r\n\r\n",
        b"PRI * HTTP/2.0",
    ] {
        let answer = server.raw_and_close(bytes);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400 "),
            "{answer}"
        );
    }
    still_serves(&server);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Running::start(RULES);
    let keep = r#"POST /v1/peek HTTP/1.1
host: t
content-length: 17

{"attributes":{}}"#
        .replace('\n', "\r\n");
    let answer = server.raw((keep.repeat(20) + &post("/nowhere", "")).as_bytes());
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 20);
    assert_eq!(answer.matches("HTTP/1.1 404 Not Found").count(), 1);
}

#[test]
fn wrong_paths_and_methods_list_the_right_ones() {
    let server = Running::start(RULES);
    let nowhere = server.get("/v2/check");
    assert_eq!(
        (nowhere.status, nowhere.json()["code"].as_str()),
        (404, Some("NOT_FOUND"))
    );
    assert!(nowhere.text.contains("/v1/check/batch"));
    let wrong = server.get("/v1/check");
    assert_eq!(
        (wrong.status, wrong.json()["code"].as_str()),
        (405, Some("WRONG_METHOD"))
    );
    assert_eq!(wrong.header("allow"), "POST");
}

#[test]
fn open_request_finishes_after_the_stop() {
    let mut server = Running::start(RULES);
    let head =
        "POST /v1/check HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 17\r\n\r\n";
    let mut in_flight = server.connect();
    in_flight.write_all(head.as_bytes()).unwrap();
    // The server asks for the body once it has started on the request.
    let mut go_on = [0; 25];
    in_flight.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    server.stop();
    while std::net::TcpStream::connect(server.address).is_ok() {
        std::thread::yield_now();
    }
    in_flight.write_all(br#"{"attributes":{}}"#).unwrap();
    let mut answer = String::new();
    in_flight.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    server.join();
}
