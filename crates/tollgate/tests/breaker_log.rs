//! The log says when the breaker of a store opens, when the store is tried again, and when it is back:
//! one line for each change.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "common/log.rs"]
mod log;

use log::Log;
use tollgate::{Attributes, Engine};
use tollgate_rig::Redis;

const OPEN: &str = "the store fails: its circuit breaker is open";
const HALF_OPEN: &str = "the circuit breaker is half open";
const CLOSED: &str = "the store is back: its circuit breaker is closed";

/// Returns the state that a line of the log announces.
fn state(line: &serde_json::Value) -> &'static str {
    let message = line["message"].as_str().unwrap();
    let all = [OPEN, HALF_OPEN, CLOSED];
    let state = all.into_iter().find(|state| message.starts_with(state));
    let state = state.unwrap();
    let level = if state == OPEN { "WARN" } else { "INFO" };
    assert_eq!(line["level"], level, "{line}");
    let server = line["server"].as_str().unwrap();
    assert!(server.starts_with("127.0.0.1:"), "{line}");
    state
}

#[test]
fn each_change_of_the_breaker_is_logged_once() {
    let redis = Redis::start();
    let yaml = format!(
        "version: 1
subjects: {{ hash_secret: 0123456789abcdef }}
store:
  redis:
    url: \"{}\"
    circuit_breaker: {{ consecutive_failures: 2, timeout_duration: 20ms, half_open_max_requests: 1 }}
rules: [{{ id: all, algorithm: fixed-window, limit: 1000000, window: 10d, on_store_failure: fail-open }}]
",
        redis.url()
    );
    let config = tollgate::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let log = Log::default();
    let states = log.with("tollgate_redis::store", || {
        runtime.block_on(async {
            let engine = Engine::start(&config).await.unwrap();
            let nobody = Attributes::new();
            assert!(engine.check(&nobody).await.is_allowed());
            assert!(log.take().is_empty());
            let mut states: Vec<&str> = Vec::new();
            redis.kill();
            while !states.contains(&HALF_OPEN) {
                assert!(engine.check(&nobody).await.is_allowed());
                states.extend(log.take().iter().map(state));
            }
            redis.restart();
            while states.last() != Some(&CLOSED) {
                assert!(engine.check(&nobody).await.is_allowed());
                states.extend(log.take().iter().map(state));
            }
            for _ in 0..100 {
                assert!(engine.check(&nobody).await.is_allowed());
            }
            assert!(log.take().is_empty());
            states
        })
    });
    assert_eq!(states[0], OPEN);
    for pair in states.windows(2) {
        let follows = match pair[0] {
            OPEN => pair[1] == HALF_OPEN,
            HALF_OPEN => pair[1] == OPEN || pair[1] == CLOSED,
            _ => false,
        };
        assert!(follows, "{states:?}");
    }
}
