//! Lengths of bodies, cookies, trailers and slow clients, on their way to an upstream over HTTP/1.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use tollgate_rig::wait;

use super::NONE;
use crate::common::gate::{Gate, SOON, Script, ok, read_request};
use crate::frames::{Body, RawClient};

/// Sends `raw`, and returns the request that the upstream reads.
fn passed(gate: &Gate, raw: &str) -> String {
    let answer = gate.raw(raw.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Sends a request over HTTP/2, and returns the request that the upstream reads.
fn passed_over_http2(head: &[(&str, &str)], body: Body<'_>) -> String {
    let (gate, _app, heads) = super::wire::noting();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = RawClient::connect(gate.address, 65_535).await;
        client.open(1, head, body).await;
        let seen = client.wait(|seen| seen.ended + seen.resets > 0).await;
        assert_eq!((seen.answers, seen.ended), (1, 1), "no answer");
    });
    let heads = heads.lock().unwrap();
    assert_eq!(heads.len(), 1, "{heads:?}");
    heads[0].clone()
}

fn http2_head<'a>(method: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut head = vec![
        (":method", method),
        (":scheme", "http"),
        (":path", "/_search"),
        (":authority", "a"),
    ];
    head.extend(more);
    head
}

#[test]
fn body_of_unknown_length_reaches_an_http1_upstream() {
    let app = Script::echo();
    let gate = Gate::start(&format!("{}{NONE}", app.section("")));
    for method in ["GET", "DELETE", "POST"] {
        let head = format!(
            "{method} /_search HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let text = passed(&gate, &format!("{head}2\r\n{{}}\r\n0\r\n\r\n"));
        assert!(text.contains("transfer-encoding: chunked\r\n"), "{text}");
        assert!(text.ends_with("{}"), "{text}");
        let text = passed_over_http2(&http2_head(method, &[]), Body::Whole(b"{}"));
        assert!(text.contains("transfer-encoding: chunked\r\n"), "{text}");
        assert!(text.ends_with("{}"), "{text}");
    }
}

#[test]
fn length_of_an_empty_body_reaches_the_upstream() {
    let app = Script::echo();
    let gate = Gate::start(&format!("{}{NONE}", app.section("")));
    let length = "content-length: 0\r\n";
    for (method, sent, expected) in [
        ("POST", length, true),
        ("POST", "", true),
        ("PUT", "", true),
        ("PATCH", length, true),
        ("GET", length, true),
        ("GET", "", false),
        ("DELETE", "", false),
    ] {
        let raw = format!("{method} / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{sent}\r\n");
        let text = passed(&gate, &raw);
        assert_eq!(text.contains(length), expected, "{method} {sent}: {text}");
    }
    let text = passed_over_http2(&http2_head("POST", &[]), Body::None);
    assert!(text.contains(length), "{text}");
}

#[test]
fn cookies_of_http2_reach_an_http1_upstream_as_one() {
    let cookies = [("cookie", "a=1"), ("x-other", "x"), ("cookie", "b=2; c=3")];
    let text = passed_over_http2(&http2_head("GET", &cookies), Body::None);
    assert!(text.contains("cookie: a=1; b=2; c=3\r\n"), "{text}");
    assert_eq!(text.matches("cookie").count(), 1, "{text}");
}

/// Answers what it has read, but nothing to `/mute`.
fn patient() -> Script {
    Script::start(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(seen) = read_request(&mut reader) {
            if seen.head.starts_with("GET /mute ") {
                let _ = stream.read_to_end(&mut Vec::new());
                return;
            }
            let text = String::from_utf8_lossy(&seen.body).into_owned();
            if stream.write_all(ok(&text).as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn up(gate: &Gate, app: &Script) -> u64 {
    let address = app.address;
    let up = format!("tollgate_upstream_up{{upstream=\"app\",server=\"http://{address}\"}} ");
    gate.metric(&up)
}

/// Sends the head of a request, and the first of the two bytes of its body.
fn begin(gate: &Gate) -> TcpStream {
    let mut stream = gate.connect();
    let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\nx";
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn pause_of_a_client_is_not_a_silence_of_the_server() {
    let app = patient();
    let gate = Gate::start(&format!("{}{NONE}", app.section(", read_timeout: 50ms")));
    let clients = [0; 4].map(|_| begin(&gate));
    wait::until("the requests are at the upstream", SOON, || {
        app.connections() == 4
    });
    // Meanwhile the clients pause for longer than `read_timeout`.
    assert_eq!(gate.get("/mute").status, 504);
    for mut stream in clients {
        stream.write_all(b"y").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("xy"), "{answer}");
    }
    assert_eq!(up(&gate, &app), 1);
}

#[test]
fn client_that_sends_no_body_in_time_takes_no_server_out() {
    let app = patient();
    let gate = Gate::start(&format!("{}{NONE}", app.section(", timeout: 100ms")));
    for _ in 0..4 {
        let mut answer = String::new();
        begin(&gate).read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("TOO_SLOW"), "{answer}");
    }
    assert_eq!(up(&gate, &app), 1);
    assert_eq!(gate.post("/", "well").text, "well");
}

/// An upstream that answers before it has the body, as those of calls in both directions do.
#[test]
fn upload_after_an_early_head_is_not_cut() {
    let app = Script::start(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
            if line.starts_with("GET /mute ") {
                let _ = stream.read_to_end(&mut Vec::new());
                return;
            }
        }
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        if reader.read_exact(&mut [0; 2]).is_ok() {
            let _ = stream.write_all(b"4\r\ndone\r\n0\r\n\r\n");
        }
    });
    let gate = Gate::start(&format!("{}{NONE}", app.section(", read_timeout: 50ms")));
    let mut stream = begin(&gate);
    stream.read_exact(&mut [0; 15]).unwrap();
    assert_eq!(gate.get("/mute").status, 504);
    stream.write_all(b"y").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("done"), "{answer}");
}

/// Reads until the last chunk, and answers what it has read.
fn raw_echo() -> Script {
    Script::start(|mut stream| {
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&bytes).contains("\r\n0\r\n")
            || !bytes.ends_with(b"\r\n\r\n")
        {
            match stream.read(&mut part) {
                Ok(read @ 1..) => bytes.extend_from_slice(&part[..read]),
                _ => return,
            }
        }
        let _ = stream.write_all(ok(&String::from_utf8_lossy(&bytes)).as_bytes());
    })
}

#[test]
fn trailers_say_no_more_than_headers_may() {
    let app = raw_echo();
    for (trusted, expected) in [
        ("", vec!["x-sum: 7"]),
        (
            "subjects: { trusted_proxies: [127.0.0.1/32] }\n",
            vec!["x-real-ip: 10.0.0.1", "x-user-id: root", "x-sum: 7"],
        ),
    ] {
        let gate = Gate::start(&format!("{}{trusted}{NONE}", app.section("")));
        let trailers = "x-real-ip: 10.0.0.1\r\nx-user-id: root\r\nx-tollgate-user: root\r\n\
                        connection: close\r\nx-sum: 7\r\n";
        let names = "x-real-ip, x-user-id, x-tollgate-user, connection, x-sum";
        let raw = format!(
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntrailer: {names}\r\n\
             transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n{trailers}\r\n"
        );
        let text = passed(&gate, &raw);
        let (_, after) = text.split_once("\r\n0\r\n").unwrap();
        assert_eq!(after.trim_end().lines().collect::<Vec<_>>(), expected);
        // Without a trailer that may pass, the body ends without one.
        let raw = raw.replace("x-sum: 7\r\n", "");
        assert!(passed(&gate, &raw).ends_with("\r\n\r\n"));
    }
}

#[test]
fn caller_cannot_be_invented_under_a_name_with_an_underscore() {
    let app = Script::echo();
    let subjects = "subjects: { headers: { user: x_user, tenant: X_Tenant } }\n";
    let gate = Gate::start(&format!("{}{subjects}{NONE}", app.section("")));
    for name in ["x_user", "x-user", "X_USER", "x-tenant", "x_tenant"] {
        let answer = gate.get_with("/", &[(name, "root")]);
        assert!(!answer.text.contains("root"), "{name}: {}", answer.text);
    }
}
