//! Bytes that no ordinary client sends: requests that two servers could read in different ways, and clients
//! and upstreams that are slow, break off or do not read.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use tollgate_rig::wait;

use super::NONE;
use crate::common::gate::{Gate, SOON, Script, ok};

/// Starts an upstream that notes the head of each request, and a gateway before it.
pub(super) fn noting() -> (Gate, Script, Arc<Mutex<Vec<String>>>) {
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&heads);
    let app = Script::answering(move |seen| {
        let body = String::from_utf8_lossy(&seen.body);
        noted.lock().unwrap().push(format!("{}{body}", seen.head));
        ok("ok")
    });
    let gate = Gate::start(&format!("{}{NONE}", app.section("")));
    (gate, app, heads)
}

/// The upstream of `noting` reads strictly: it fails if a request has two lengths. So a request that it
/// notes was read as one request by both sides.
#[test]
fn no_second_request_is_smuggled_in_a_body() {
    let (gate, _app, heads) = noting();
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    let length = smuggled.len();
    for head in [
        format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n"),
        format!("transfer-encoding: chunked\r\ncontent-length: {length}\r\n"),
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n".to_owned(),
        "transfer-encoding: identity\r\n".to_owned(),
        "transfer-encoding: xchunked\r\n".to_owned(),
        "transfer-encoding : chunked\r\n".to_owned(),
        "transfer-encoding: chunked\r\n x: y\r\n".to_owned(),
        "content-length: 0\r\ncontent-length: 44\r\n".to_owned(),
        "content-length: +0\r\n".to_owned(),
        "content-length: 0, 0\r\n".to_owned(),
        "content-length: 0x0\r\n".to_owned(),
        "content-length: -1\r\n".to_owned(),
        "host: b\r\n".to_owned(),
        "x: a\r\n y: folded\r\n".to_owned(),
        "x\u{0}y: z\r\n".to_owned(),
        "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n".to_owned(),
    ] {
        let raw = format!("POST /first HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{head}\r\n0\r\n\r\n{smuggled}");
        let answer = gate.raw(raw.as_bytes());
        let statuses = answer.matches("HTTP/1.1 ").count();
        assert!(statuses <= 1, "{head:?} got {answer}");
        let heads = std::mem::take(&mut *heads.lock().unwrap());
        assert!(heads.len() <= 1, "{head:?} became {heads:?}");
        assert!(!heads.iter().any(|it| it.contains("GET /smuggled")), "{head:?} became {heads:?}");
    }
    for bad in [
        "5\r\nhello\r\n-1\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "5;x\nhello\r\n0\r\n\r\n",
        "zz\r\n",
        "5\r\nhelloXX0\r\n\r\n",
    ] {
        let raw = format!(
            "POST /bad HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n{bad}"
        );
        let answer = gate.raw(raw.as_bytes());
        assert!(!answer.starts_with("HTTP/1.1 200"), "{bad:?} got {answer}");
    }
    let raw = "GET http://other/abs HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    assert!(
        gate.raw(raw.as_bytes()).starts_with("HTTP/1.1 400"),
        "two hosts"
    );
    assert!(
        gate.raw(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n")
            .starts_with("HTTP/1.1 405")
    );
}

#[test]
fn client_is_asked_for_its_body_only_if_the_request_is_allowed() {
    let app = Script::echo();
    let rules = "rules: [{ id: one, algorithm: fixed-window, limit: 1, window: 1h }]\n";
    let gate = Gate::start(&format!("{}{rules}", app.section("")));
    let head = b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\nconnection: close\r\n\r\n";
    let mut stream = gate.connect();
    stream.write_all(head).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
    stream.write_all(b"hello").unwrap();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("HTTP/1.1 200") && rest.ends_with("hello"),
        "{rest}"
    );
    let denied = gate.raw(head);
    assert!(denied.starts_with("HTTP/1.1 429"), "{denied}");
}

#[test]
fn parts_of_an_answer_are_passed_on_when_they_arrive() {
    let (next, may_send) = mpsc::channel::<()>();
    let may_send = Mutex::new(may_send);
    let app = Script::start(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        for part in ["one", "two"] {
            stream
                .write_all(format!("3\r\n{part}\r\n").as_bytes())
                .unwrap();
            may_send.lock().unwrap().recv().unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    let gate = Gate::start(&format!("{}{NONE}", app.section("")));
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut reader = BufReader::new(stream);
    let mut read_until = |wanted: &str| {
        let mut line = String::new();
        while line.trim_end() != wanted {
            line.clear();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "{wanted}");
        }
    };
    for part in ["one", "two"] {
        // The upstream goes on only after the client has this part.
        read_until(part);
        next.send(()).unwrap();
    }
    read_until("0");
}

#[test]
fn answer_that_breaks_off_does_not_look_complete() {
    for (head, part) in [
        ("content-length: 100", "only a part"),
        ("transfer-encoding: chunked", "5\r\nhello\r\n"),
        ("transfer-encoding: chunked", "5\r\nhello\r\nzz\r\n"),
    ] {
        let app = Script::start(move |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{part}").as_bytes());
        });
        let gate = Gate::start(&format!("{}{NONE}", app.section("")));
        let answer = gate.raw(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        assert!(body.len() < 100, "{answer}");
    }
}

#[test]
fn silent_upstream_is_cut_off_in_the_middle_of_its_answer() {
    let app = Script::start(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let gate = Gate::start(&format!("{}{NONE}", app.section(", read_timeout: 50ms")));
    let answer = gate.raw(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(answer.ends_with("part"), "{answer}");
}

#[test]
fn upgraded_connection_is_a_tunnel_until_one_side_ends() {
    let app = Script::start(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(seen) = crate::common::gate::read_request(&mut reader) else {
            return;
        };
        assert_eq!(seen.header("upgrade"), ["echo/1"]);
        assert_eq!(seen.header("connection"), ["upgrade"]);
        let head =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo/1\r\n\r\nhi ";
        stream.write_all(head.as_bytes()).unwrap();
        let mut bytes = [0; 64];
        while let Ok(read @ 1..) = reader.read(&mut bytes) {
            stream.write_all(&bytes[..read]).unwrap();
        }
    });
    let rules = "rules: [{ id: open, algorithm: concurrency, limit: 1, lease: 30s }]\n";
    let gate = Gate::start(&format!("{}{rules}", app.section("")));
    let mut stream = gate.connect();
    let head =
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: echo/1\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 101"), "{line}");
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    stream.write_all(b"there").unwrap();
    let mut echoed = [0; 8];
    reader.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"hi there");
    assert_eq!(
        gate.metric("tollgate_gateway_slots "),
        1,
        "the tunnel holds its slot"
    );
    assert_eq!(gate.get("/").status, 429);
    drop((stream, reader));
    gate.wait_for_no_slots();
}

#[test]
fn slow_head_and_unread_answers_do_not_hold_the_gateway() {
    // An endless answer that nobody reads: the gateway stops to read it from the upstream.
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let app = Script::start(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        stream
            .set_write_timeout(Some(std::time::Duration::from_millis(300)))
            .unwrap();
        let part = [b'x'; 64 * 1024];
        while let Ok(written) = stream.write(&part) {
            counted.fetch_add(written, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let gate = Gate::start(&format!("{}{NONE}", app.section("")));
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    let count = || sent.load(std::sync::atomic::Ordering::Relaxed);
    let mut before = usize::MAX;
    wait::until("the upstream cannot send more", SOON, || {
        std::thread::sleep(std::time::Duration::from_millis(350));
        let now = count();
        let is_stopped = now > 0 && now == before;
        before = now;
        is_stopped
    });
    // Buffers of two sockets on each side, and of the gateway.
    assert!(count() < 32 * 1024 * 1024, "{}", count());
}
