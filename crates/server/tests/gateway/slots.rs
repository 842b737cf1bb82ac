//! Concurrency slots that a request holds, and shaping rules that make it wait.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tollgate_rig::wait;

use crate::common::gate::{Gate, SOON, Script, ok};

const ONE: &str = "rules: [{ id: open, algorithm: concurrency, limit: 1, lease: 30s }]\n";

/// An upstream that begins an answer, and ends it when the test says so, or breaks off with its client.
fn slow() -> (Script, Arc<Mutex<bool>>) {
    let ended = Arc::new(Mutex::new(false));
    let may_end = Arc::clone(&ended);
    let app = Script::start(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        loop {
            if *may_end.lock().unwrap() {
                let _ = stream.write_all(b"0\r\n\r\n");
                return;
            }
            if stream.write_all(b"1\r\nx\r\n").is_err() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    (app, ended)
}

#[test]
fn slot_is_held_for_the_life_of_the_request() {
    let (app, ended) = slow();
    let gate = Gate::start(&format!("{}{ONE}", app.section("")));
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut byte = [0; 1];
    stream.read_exact(&mut byte).unwrap();
    let denied = gate.get("/");
    assert_eq!(
        (denied.status, &denied.json()["code"]),
        (429, &"CONCURRENCY".into())
    );
    *ended.lock().unwrap() = true;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"));
    gate.wait_for_no_slots();
    assert_eq!(gate.get("/").status, 200);
}

#[test]
fn slot_is_free_when_the_client_goes_away() {
    let (app, _ended) = slow();
    let gate = Gate::start(&format!("{}{ONE}", app.section("")));
    // While the answer is passed on.
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(gate.metric("tollgate_gateway_slots "), 1);
    drop(stream);
    gate.wait_for_no_slots();
    // While the upstream has not answered.
    let mute = Script::start(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let gate = Gate::start(&format!("{}{ONE}", mute.section("")));
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    wait::until("the request holds its slot", SOON, || {
        gate.metric("tollgate_gateway_slots ") == 1
    });
    drop(stream);
    gate.wait_for_no_slots();
}

#[test]
fn slot_of_a_long_request_is_renewed() {
    let (app, _ended) = slow();
    let rules = "rules: [{ id: open, algorithm: concurrency, limit: 1, lease: 1s }]\n";
    let gate = Gate::start(&format!("{}{rules}", app.section("")));
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    // Longer than the lease: without a renewal the slot would be free.
    for _ in 0..15 {
        assert_eq!(gate.get("/").status, 429);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(gate.metric("tollgate_gateway_lost_slots_total "), 0);
    drop(stream);
    gate.wait_for_no_slots();
}

#[test]
fn request_under_a_shaping_rule_waits_for_its_turn() {
    let app = Script::answering(|seen| ok(&seen.head));
    let rules =
        "rules: [{ id: paced, algorithm: leaky-bucket, rate: 5/s, queue: 1, shape: true }]\n";
    let gate = Gate::start(&format!("{}{rules}", app.section("")));
    assert_eq!(gate.get("/").status, 200);
    // The next request waits, so the queue is full for the one after it.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| gate.get("/").status);
        wait::until("a request waits", SOON, || {
            gate.metric("tollgate_gateway_waiting ") == 1
        });
        let requests = app.requests();
        assert_eq!(
            (requests, gate.get("/").status),
            (1, 503),
            "the waiting request is not passed on yet"
        );
        assert_eq!(waiting.join().unwrap(), 200);
    });
    assert_eq!(app.requests(), 2);
}

/// Many clients that end in every way, and upstreams that do too. In the end no slot is held, and no request
/// is open.
#[test]
fn chaos_leaks_no_slot() {
    let count = Arc::new(AtomicUsize::new(0));
    let next = Arc::clone(&count);
    let app = Script::start(move |mut stream| {
        let way = next.fetch_add(1, Ordering::Relaxed);
        loop {
            let Ok(1..) = stream.read(&mut [0; 4096]) else {
                return;
            };
            let answer = match way % 6 {
                0 => return,
                1 => "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\npart",
                2 => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
                3 => {
                    std::thread::sleep(std::time::Duration::from_millis(80));
                    "HTTP/1.1 204 No Content\r\n\r\n"
                }
                _ => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            };
            let _ = stream.write_all(answer.as_bytes());
            if way % 6 == 1 || way % 6 == 2 {
                return;
            }
        }
    });
    let rules = "rules: [{ id: open, algorithm: concurrency, limit: 8, lease: 30s }, \
                 { id: paced, algorithm: leaky-bucket, rate: 400/s, queue: 20, shape: true }]\n";
    let gate = Gate::start(&format!(
        "{}{rules}",
        app.section(", read_timeout: 40ms, retries: 1")
    ));
    std::thread::scope(|scope| {
        for client in 0..8 {
            let gate = &gate;
            scope.spawn(move || {
                for request in 0..40 {
                    let mut stream = gate.connect();
                    let head = match request % 3 {
                        0 => "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
                        1 => "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbo",
                        _ => "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbody",
                    };
                    let _ = stream.write_all(head.as_bytes());
                    // Some clients do not wait for the answer, and some break off in its middle.
                    match (client + request) % 4 {
                        0 => {}
                        1 => drop(stream.read(&mut [0; 10])),
                        _ if request % 3 == 1 => {}
                        _ => drop(stream.read_to_end(&mut Vec::new())),
                    }
                }
            });
        }
    });
    gate.wait_for_no_slots();
}
