//! Requests at the gateway that wait for their turn under a rule with `max_wait`.

use std::io::Write;
use std::net::TcpStream;

use tollgate_rig::wait;

use crate::common::gate::{Gate, SOON, Script};

const WAITING: &str = "rate_limit_waiting{rule=\"all\"}";

fn rules(rule: &str) -> String {
    format!("rules: [{{ id: all, algorithm: gcra, {rule} }}]\n")
}

/// Sends a request, and returns its connection when it waits.
fn start_to_wait(gate: &Gate) -> TcpStream {
    let before = gate.metric(WAITING);
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    wait::until("the request waits", SOON, || gate.metric(WAITING) > before);
    stream
}

#[test]
fn request_waits_for_its_turn_and_is_passed_on() {
    let app = Script::echo();
    let rules = rules("rate: 5/s, burst: 1, max_wait: 10s");
    let gate = Gate::start(&format!("{}{rules}", app.section("")));
    for _ in 0..3 {
        assert_eq!(gate.get("/").status, 200);
    }
    assert_eq!(app.requests(), 3);
    assert_eq!(gate.metric(WAITING), 0);
}

#[test]
fn full_queue_is_503_and_a_client_that_goes_away_leaves_it() {
    let app = Script::echo();
    let rules = rules("rate: 6/m, burst: 1, max_wait: 30s, max_waiting: 1");
    let gate = Gate::start(&format!("{}{rules}", app.section("")));
    assert_eq!(gate.get("/").status, 200);
    let stream = start_to_wait(&gate);
    let full = gate.get("/");
    assert_eq!(
        (full.status, &full.json()["code"]),
        (503, &"QUEUE_FULL".into())
    );
    let retry: u64 = full.header("retry-after").parse().unwrap();
    assert!((1..=10).contains(&retry), "{retry}");
    drop(stream);
    wait::until("the queue is empty", SOON, || gate.metric(WAITING) == 0);
    let cancelled = "rate_limit_wait_seconds_count{rule=\"all\",outcome=\"cancelled\"}";
    assert_eq!(gate.metric(cancelled), 1);
    assert_eq!(app.requests(), 1, "neither was passed on");
}
