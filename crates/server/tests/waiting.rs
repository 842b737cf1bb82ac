//! Checks that wait for their turn at the HTTP door: `POST /v1/check?wait=…`.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests fail as tests do.

mod common;

use std::io::Write;
use std::net::TcpStream;

use common::Running;
use common::gate::SOON;
use tollgate_rig::wait;

/// One request in 20 seconds, so a request that waits does so for as long as a test needs it.
const SLOW: &str = "version: 1\nrules: [{ id: all, algorithm: gcra, rate: 3/m, burst: 1, max_wait: 30s, max_waiting: 2 }]";
const NOBODY: &str = r#"{"attributes":{}}"#;

/// Returns the value of the metric that begins with `name`.
fn metric(server: &Running, name: &str) -> u64 {
    let page = server.get("/metrics").text;
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|rest| rest.rsplit(' ').next());
    value
        .unwrap_or_else(|| panic!("{name} in\n{page}"))
        .parse()
        .unwrap()
}

fn waiting(server: &Running) -> u64 {
    metric(server, "rate_limit_waiting{rule=\"all\"}")
}

fn ended(server: &Running, outcome: &str) -> u64 {
    let name = format!("rate_limit_wait_seconds_count{{rule=\"all\",outcome=\"{outcome}\"}}");
    metric(server, &name)
}

/// Sends a check that waits, and returns its connection when it waits.
fn start_to_wait(server: &Running) -> TcpStream {
    let before = waiting(server);
    let mut stream = server.connect();
    let head = format!(
        "POST /v1/check?wait=30s HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{NOBODY}",
        NOBODY.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    wait::until("the check waits", SOON, || waiting(server) > before);
    stream
}

#[test]
fn check_waits_for_its_turn_if_it_asks_for_it() {
    let server = Running::start(
        "version: 1\nrules: [{ id: all, algorithm: gcra, rate: 2/s, burst: 1, max_wait: 5s }]",
    );
    assert_eq!(server.post("/v1/check", NOBODY).status, 200);
    assert_eq!(server.post("/v1/check?wait=5s", NOBODY).status, 200);
    // Without `wait`, and with one that is too short, the check is denied at once.
    for path in ["/v1/check", "/v1/check?wait=0", "/v1/check?wait=1ms"] {
        let denied = server.post(path, NOBODY);
        assert_eq!(denied.status, 429, "{path}");
        assert_ne!(denied.header("retry-after"), "");
    }
    assert_eq!(server.post("/v1/check?wait=1h", NOBODY).status, 200);
    assert_eq!((ended(&server, "admitted"), waiting(&server)), (2, 0));
    let wrong = server.post("/v1/check?wait=soon", NOBODY);
    assert_eq!(
        (wrong.status, &wrong.json()["code"]),
        (400, &"BAD_REQUEST".into())
    );
}

#[test]
fn full_queue_is_503_with_the_time_to_try_again() {
    let server = Running::start(SLOW);
    assert_eq!(server.post("/v1/check?wait=30s", NOBODY).status, 200);
    let _first = start_to_wait(&server);
    // Its turn would come after 40 seconds.
    let too_late = server.post("/v1/check?wait=30s", NOBODY);
    assert_eq!(
        (too_late.status, &too_late.json()["reason"]),
        (429, &"exceeded".into())
    );
    let retry: u64 = too_late.header("retry-after").parse().unwrap();
    assert!((21..=40).contains(&retry), "{retry}");

    let server = Running::start(
        &SLOW
            .replace("max_waiting: 2", "max_waiting: 1")
            .replace("3/m", "6/m"),
    );
    assert_eq!(server.post("/v1/check?wait=30s", NOBODY).status, 200);
    let _first = start_to_wait(&server);
    let full = server.post("/v1/check?wait=30s", NOBODY);
    assert_eq!(
        (full.status, &full.json()["code"]),
        (503, &"QUEUE_FULL".into())
    );
    let retry: u64 = full.header("retry-after").parse().unwrap();
    assert!((1..=10).contains(&retry), "{retry}");
    assert_eq!(ended(&server, "full"), 1);
    // A check that does not wait is denied as ever.
    assert_eq!(server.post("/v1/check", NOBODY).status, 429);
}

#[test]
fn client_that_closes_its_connection_leaves_the_queue() {
    let server = Running::start(SLOW);
    assert_eq!(server.post("/v1/check?wait=30s", NOBODY).status, 200);
    let stream = start_to_wait(&server);
    drop(stream);
    wait::until("the queue is empty", SOON, || waiting(&server) == 0);
    assert_eq!(ended(&server, "cancelled"), 1);
}
