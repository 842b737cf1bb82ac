//! A tenant near its limit: from the request to the webhook and the metrics.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use common::Running;
use serde_json::Value;

/// Accepts all messages on a thread that ends with the process, and passes on their bodies.
fn receiver() -> (SocketAddr, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, bodies) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut reader = BufReader::new(&stream);
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                let header = line.to_ascii_lowercase();
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            (&stream)
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .unwrap();
            if sender.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    (address, bodies)
}

#[test]
fn tenant_near_its_limit_is_sent_to_the_webhook_and_counted() {
    let (address, bodies) = receiver();
    let mut server = Running::start(&format!(
        "version: 1\n\
         events: {{ webhook: {{ url: 'http://{address}/', secret: 0123456789abcdef, timeout: 30s }} }}\n\
         rules:\n\
         - {{ id: api, per: [tenant, user], algorithm: quota, limit: 20, period: year, grace: 1 }}\n"
    ));
    let ann = r#"{"attributes":{"tenant":"acme","user":"ann"}}"#;
    for _ in 0..25 {
        server.post("/v1/check", ann);
    }
    let page = server.get("/metrics").text;
    for threshold in ["80", "90", "100", "exhausted"] {
        let name = "rate_limit_near_limit_events_total";
        let line = format!("{name}{{rule=\"api\",threshold=\"{threshold}\"}} 1\n");
        assert!(page.contains(&line), "{line}: {page}");
    }
    // Waiting events are delivered before the server ends.
    server.stop();
    server.join();
    let told: Vec<Value> = bodies.try_iter().collect();
    let kinds: Vec<&str> = told.iter().map(|it| it["type"].as_str().unwrap()).collect();
    let expected = [
        "quota.near_limit",
        "quota.near_limit",
        "quota.limit_reached",
        "quota.exhausted",
    ];
    assert_eq!(kinds, expected);
    let used: Vec<u64> = told
        .iter()
        .map(|it| it["data"]["used"].as_u64().unwrap())
        .collect();
    assert_eq!(used, [16, 18, 20, 21]);
    assert!(told.iter().all(|it| !it.to_string().contains("ann")));
}
