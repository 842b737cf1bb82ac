//! The gateway on Redis: limits that gateways share, and a Redis that dies and comes back.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_rig::{Redis, tools, wait};

use crate::common::gate::{Gate, SOON, Script, ok};

/// The sections of a gateway on this Redis, before these upstreams. The breaker opens for a short time only.
fn on(redis: &Redis, upstreams: &str, rules: &str) -> String {
    format!(
        "store: {{ redis: {{ url: \"{}\", timeout: 100ms, circuit_breaker: {{ timeout_duration: 500ms }} }} }}\n\
         subjects: {{ hash_secret: the secret of these tests }}\n{upstreams}rules: [{rules}]\n",
        redis.url()
    )
}

#[test]
fn gateways_share_limits_and_slots() {
    let redis = Redis::start();
    let app = Script::start(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart");
        // Until the gateway closes.
        let _ = stream.read(&mut [0; 1]);
    });
    let rules = "{ id: four, algorithm: fixed-window, limit: 4, window: 1h }, \
                 { id: open, algorithm: concurrency, limit: 2, lease: 30s }";
    let gates = [0; 2].map(|_| Gate::start(&on(&redis, &app.section(""), rules)));
    let ask = |gate: &Gate| {
        let mut stream = gate.connect();
        let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        stream.write_all(head).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (String::from_utf8_lossy(&status[9..]).into_owned(), stream)
    };
    let open = [ask(&gates[0]), ask(&gates[1])];
    assert!(open.iter().all(|(status, _)| status == "200"), "{open:?}");
    // Each gateway holds one of two slots.
    gates[0].wait_for_slots(1, 2);
    gates[1].wait_for_slots(1, 2);
    assert_eq!(ask(&gates[0]).0, "429");
    let [first, second] = open;
    drop(first);
    gates[0].wait_for_slots(0, 1);
    drop(second);
    gates[1].wait_for_slots(0, 0);
    let more: Vec<String> = (0..3).map(|turn| ask(&gates[turn % 2]).0).collect();
    assert_eq!(more, ["200", "200", "429"], "two of four requests are left");
}

/// The script of [the surge](../../../../examples/surge/field.js), with fewer users. k6 fails unless every answer is
/// 200 or 429 and has rate limit fields.
#[test]
fn users_do_not_notice_that_redis_dies_and_comes_back() {
    let redis = Redis::start();
    let app = Script::answering(|_| ok("{}"));
    let route = "routes: [{ action: all, attributes: { key: header.x-api-key } }]\n";
    let rule = "{ id: keys, per: [key], algorithm: token-bucket, capacity: 2, refill: 1/s, on_store_failure: local-fallback }";
    let gate = Gate::start(&format!("{route}{}", on(&redis, &app.section(""), rule)));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/surge/field.js");
    let mut k6 = Command::new(tools::k6());
    k6.args(["run", "--quiet", script])
        .env("BASE_URL", format!("http://{}", gate.address))
        .env("USERS", "100")
        .env("DURATION", "6s")
        .env("K6_NO_USAGE_REPORT", "true");
    let output = std::thread::scope(|scope| {
        let running = scope.spawn(|| k6.output().unwrap());
        let passed = |requests| {
            wait::until("requests pass", SOON, || app.requests() >= requests);
            app.requests()
        };
        let before = passed(50);
        redis.kill();
        // Requests pass without Redis.
        passed(before + 50);
        redis.restart();
        wait::until("the gateway asks Redis again", SOON, || {
            gate.get_with("/", &[("x-api-key", "another")]);
            !redis.connect().keys().is_empty()
        });
        running.join().unwrap()
    });
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

/// Clients that end in every way while Redis dies and comes back. In the end the slots in Redis are those of the open
/// requests.
#[test]
fn outage_leaks_no_slot() {
    let redis = Redis::start();
    let app = Script::answering(|_| ok("hello"));
    let rule =
        "{ id: open, algorithm: concurrency, limit: 50, lease: 1h, on_store_failure: fail-open }";
    let gate = Gate::start(&on(&redis, &app.section(""), rule));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Clients end also if this test fails.
        let _end = End(&is_over);
        for client in 0..4 {
            let (gate, is_over) = (&gate, &is_over);
            scope.spawn(move || {
                for request in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut stream = gate.connect();
                    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbo";
                    let _ = stream.write_all(head);
                    // Some clients go away in the middle of their body, and some in the middle of the answer.
                    let way = (client + request) % 3;
                    if way > 0 {
                        let _ = stream.write_all(b"dy");
                    }
                    match way {
                        0 => {}
                        1 => drop(stream.read(&mut [0; 10])),
                        _ => drop(stream.read_to_end(&mut Vec::new())),
                    }
                }
            });
        }
        let pass_some = || {
            let wanted = app.requests() + 30;
            wait::until("requests pass", SOON, || app.requests() >= wanted);
        };
        pass_some();
        redis.kill();
        pass_some();
        redis.restart();
        wait::until("the gateway asks Redis again", SOON, || {
            !redis.connect().keys().is_empty()
        });
        pass_some();
    });
    gate.wait_for_slots(0, 0);
}

/// Clients that go away while Redis has not answered leave no slots behind, although Redis takes them later.
#[test]
fn slot_is_free_if_the_client_goes_away_while_redis_decides() {
    let redis = Redis::start();
    let app = Script::answering(|_| ok("hello"));
    let rule = "{ id: open, algorithm: concurrency, limit: 50, lease: 1h }";
    let config = on(&redis, &app.section(""), rule).replace("timeout: 100ms", "timeout: 10s");
    let gate = Gate::start(&config);
    assert_eq!(gate.get("/").status, 200);
    redis.pause();
    for _ in 0..5 {
        let mut stream = gate.connect();
        let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        stream.write_all(head).unwrap();
        let patience = Duration::from_millis(100);
        stream.set_read_timeout(Some(patience)).unwrap();
        assert!(stream.read(&mut [0; 1]).is_err(), "Redis does not answer");
    }
    redis.resume();
    assert_eq!(gate.get("/").status, 200);
    gate.wait_for_slots(0, 0);
}

/// Tells clients that the test is over.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
