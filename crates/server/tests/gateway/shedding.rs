//! Upstreams that are saturated: the least important requests are shed, and the limit follows the latency.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tollgate_rig::wait;

use super::NONE;
use crate::common::Answer;
use crate::common::gate::{Gate, SOON, Script, ok};

const TRUSTED: &str =
    "subjects: { trusted_proxies: [127.0.0.1/32], headers: { priority: priority } }\n";

/// An upstream that keeps requests until the test lets them go, except those for `/healthz`. Notes their heads.
struct Keeping {
    app: Script,
    heads: Arc<Mutex<Vec<String>>>,
    go: Arc<(Mutex<bool>, Condvar)>,
}

impl Keeping {
    fn start() -> Keeping {
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let go: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (seen_heads, may_go) = (Arc::clone(&heads), Arc::clone(&go));
        let app = Script::answering(move |seen| {
            if !seen.head.starts_with("GET /healthz ") {
                seen_heads.lock().unwrap().push(seen.head.clone());
                let (goes, changed) = &*may_go;
                let goes = goes.lock().unwrap();
                drop(changed.wait_while(goes, |goes| !*goes).unwrap());
            }
            ok("done")
        });
        Keeping { app, heads, go }
    }

    fn let_go(&self) {
        *self.go.0.lock().unwrap() = true;
        self.go.1.notify_all();
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn get(gate: &Gate, priority: &str) -> Answer {
    gate.get_with("/", &[("priority", priority)])
}

fn shed(gate: &Gate, priority: &str) -> u64 {
    gate.metric(&format!(
        "tollgate_upstream_shed_total{{upstream=\"app\",priority=\"{priority}\"}}"
    ))
}

#[test]
fn least_important_requests_are_shed_first_and_health_checks_never() {
    let keeping = Keeping::start();
    let adaptive = ", adaptive: { min: 10, max: 10 }";
    let rules = "rules: [{ id: all, algorithm: fixed-window, limit: 100, window: 1h }]\n";
    let door = "gateway: { address: \"127.0.0.1:0\", exempt: [/healthz] }";
    let more = format!("{}{TRUSTED}{rules}", keeping.app.section(adaptive));
    let gate = Gate::start_with(door, &more);
    std::thread::scope(|scope| {
        // Low may use 7 of 10, normal 9, and high all.
        let mut admitted = Vec::new();
        for (urgency, count) in [("u=7", 7), ("u=3", 2), ("u=0, i", 1)] {
            for _ in 0..count {
                admitted.push(scope.spawn(|| get(&gate, urgency).status));
            }
            let expected = admitted.len() as u64;
            wait::until("the requests are in flight", SOON, || {
                gate.metric("tollgate_upstream_in_flight{upstream=\"app\"}") == expected
            });
            let denied = get(&gate, urgency);
            assert_eq!(denied.status, 503, "{urgency}");
            assert_eq!(denied.json()["code"], "UPSTREAM_SATURATED");
            assert_eq!(denied.header("retry-after"), "1");
        }
        for (priority, expected) in [("low", 1), ("normal", 1), ("high", 1)] {
            assert_eq!(shed(&gate, priority), expected, "{priority}");
        }
        assert_eq!(gate.get("/healthz").status, 200);
        wait::until("the upstream has all of them", SOON, || {
            keeping.heads.lock().unwrap().len() == 10
        });
        keeping.let_go();
        for admitted in admitted {
            assert_eq!(admitted.join().unwrap(), 200);
        }
    });
    // The sixth and the seventh low request, the normal ones, and the high one used 80% of their part.
    let heads = keeping.heads.lock().unwrap();
    let is_told = |head: &&String| head.contains("x-tollgate-degraded: true");
    assert_eq!(heads.iter().filter(is_told).count(), 2 + 2 + 1);
    assert_eq!(
        gate.metric("tollgate_upstream_degraded_total{upstream=\"app\"}"),
        5
    );
    drop(heads);
    // Ten requests were charged, and the three that were shed were not.
    assert_eq!(get(&gate, "low").header("ratelimit-remaining"), "89");
    assert_eq!(
        gate.metric("tollgate_upstream_in_flight{upstream=\"app\"}"),
        0
    );
}

#[test]
fn place_is_free_when_the_client_goes_away() {
    let keeping = Keeping::start();
    let section = keeping.app.section(", adaptive: { min: 1, max: 1 }");
    let gate = Gate::start(&format!("{section}{NONE}"));
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    let in_flight = || gate.metric("tollgate_upstream_in_flight{upstream=\"app\"}");
    wait::until("the request is in flight", SOON, || in_flight() == 1);
    assert_eq!(gate.get("/").status, 503);
    drop(stream);
    wait::until("the place is free", SOON, || in_flight() == 0);
    keeping.let_go();
    assert_eq!(gate.get("/").status, 200);
}

/// An upstream with four workers, each of which needs 20 ms for a request.
fn four_workers() -> (Script, Arc<AtomicUsize>) {
    let free = Arc::new((Mutex::new(4_usize), Condvar::new()));
    let (waiting, most): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let seen_most = Arc::clone(&most);
    let app = Script::answering(move |_| {
        let here = waiting.fetch_add(1, Ordering::Relaxed) + 1;
        most.fetch_max(here, Ordering::Relaxed);
        let (workers, changed) = &*free;
        let mut workers = changed
            .wait_while(workers.lock().unwrap(), |free| *free == 0)
            .unwrap();
        *workers -= 1;
        drop(workers);
        std::thread::sleep(Duration::from_millis(20));
        *free.0.lock().unwrap() += 1;
        changed.notify_one();
        waiting.fetch_sub(1, Ordering::Relaxed);
        ok("done")
    });
    (app, seen_most)
}

#[test]
fn limit_follows_a_slow_upstream_and_important_requests_pass() {
    let (app, most) = four_workers();
    let adaptive = ", adaptive: { start: 64, max: 64, slow: 100ms }";
    let gate = Gate::start(&format!("{}{TRUSTED}{NONE}", app.section(adaptive)));
    let stop = AtomicBool::new(false);
    let limit = || gate.metric("tollgate_upstream_concurrency_limit{upstream=\"app\"}");
    let answers = std::thread::scope(|scope| {
        // 64 clients ask as fast as they can: a queue of 64 takes 320 ms.
        for _ in 0..64 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let status = get(&gate, "low").status;
                    assert!(status == 200 || status == 503, "{status}");
                    if status == 503 {
                        // A client that is denied waits a moment, or it would only measure this machine.
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            });
        }
        wait::until("the limit follows the latency", SOON, || limit() <= 40);
        most.store(0, Ordering::Relaxed);
        let answers: Vec<u16> = (0..30).map(|_| get(&gate, "high").status).collect();
        stop.store(true, Ordering::Relaxed);
        answers
    });
    assert_eq!(answers, [200; 30]);
    assert!(shed(&gate, "low") > 0);
    assert_eq!(shed(&gate, "high"), 0);
    let most = most.load(Ordering::Relaxed);
    assert!(most < 64, "{most} requests at the upstream at once");
}

#[test]
fn priority_and_fairness_id_are_accepted_from_trusted_proxies_only() {
    let rules = "rules:\n  \
        - { id: urgent, match: { priority: high }, algorithm: fixed-window, limit: 100, window: 1h }\n  \
        - { id: fair, per: [fairness_id], algorithm: fixed-window, limit: 1, window: 1h }\n";
    let headers = [
        ("priority", "u=1"),
        ("x-gateway-inference-fairness-id", "team-a"),
    ];
    let app = Script::echo();
    let gate = Gate::start(&format!("{}{TRUSTED}{rules}", app.section("")));
    let answer = gate.get_with("/", &headers);
    assert_eq!(answer.status, 200);
    let text = answer.text;
    assert!(text.contains("priority: u=1\r\n"), "{text}");
    assert!(
        text.contains("x-gateway-inference-fairness-id: team-a\r\n"),
        "{text}"
    );
    assert_eq!(
        gate.get_with("/", &headers).status,
        429,
        "team-a has one request"
    );
    let other = [
        ("priority", "u=7"),
        ("x-gateway-inference-fairness-id", "team-b"),
    ];
    let answer = gate.get_with("/", &other);
    assert!(
        answer.text.contains("x-tollgate-rule: fair\r\n"),
        "{}",
        answer.text
    );

    let untrusted = "subjects: { headers: { priority: priority } }\n";
    let gate = Gate::start(&format!("{}{untrusted}{rules}", app.section("")));
    for _ in 0..3 {
        let answer = gate.get_with("/", &headers);
        assert_eq!(answer.status, 200, "the client has no fairness id");
        let text = answer.text;
        assert!(!text.contains("x-tollgate-rule"), "no rule applies: {text}");
        assert!(!text.contains("u=1"), "{text}");
        assert!(!text.contains("team-a"), "{text}");
    }
}
