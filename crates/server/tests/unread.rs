//! Clients that send requests and do not take the answers, and clients that do not finish their
//! requests: memory stays within bounds, such clients are cut off, and others are served meanwhile.
//!
//! `TOLLGATE_PROOF_CASES` makes the attacks as large as a single machine can.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/frames.rs"]
mod frames;
#[path = "common/own.rs"]
mod own;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{Running, size};
use frames::{Body, END_STREAM, RawClient, frame, head, message};
use own::{TollgateClient, check, pb};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};
use tonic::transport::Channel;

/// Only one attack at a time, because they measure the memory of this process.
static ATTACK: Mutex<()> = Mutex::const_new(());

/// A client that waits for longer than this was starved. Attackers hold their places for 10 s.
const DEADLINE: Duration = Duration::from_secs(8);

/// A config with `count` rules that all requests match.
fn rules(count: usize) -> String {
    let mut yaml = "version: 1\nrules:\n".to_owned();
    for i in 0..count {
        let id = format!("a-rule-with-a-name-that-is-rather-long-{i}");
        writeln!(
            yaml,
            "  - {{ id: {id}, algorithm: gcra, rate: 100000000/s }}"
        )
        .unwrap();
    }
    yaml
}

/// A server with the HTTP door, the gRPC door, the admin door, and a gateway whose upstream does not exist.
struct Server {
    http: SocketAddr,
    grpc: SocketAddr,
    admin: SocketAddr,
    gateway: SocketAddr,
    _stop: oneshot::Sender<()>,
}

async fn start(rules: &str) -> Server {
    let any = "127.0.0.1:0";
    let yaml = format!(
        "{rules}server: {{ http: {any}, grpc: {any}, admin: {any}, gateway: \"{any}\" }}\n\
         upstreams: {{ app: {{ servers: [\"http://127.0.0.1:9\"] }} }}\n"
    );
    let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let doors = Doors::open(&config).await.unwrap();
    let addresses = doors.addresses().unwrap();
    let address = |door| addresses.iter().find(|it| it.door == door).unwrap().address;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = doors.serve(Arc::new(ControlPlane::of(engine)), async {
        drop(stopped.await);
        Duration::ZERO
    });
    tokio::spawn(serving);
    Server {
        http: address("http"),
        grpc: address("grpc"),
        admin: address("admin"),
        gateway: address("gateway"),
        _stop: stop,
    }
}

/// Returns the memory of this process, in MiB.
fn memory() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096 / 1024 / 1024
}

/// Asks the HTTP door over HTTP/1.1, and returns the answer.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "no answer to {method} {path}");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Checks that other clients get all kinds of answers.
async fn others_are_served(server: &Server) {
    let check_body = r#"{"attributes":{}}"#;
    let answer = ask(server.http, "POST", "/v1/check", check_body).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let body = batch(3);
    let answer = ask(server.http, "POST", "/v1/check/batch", &body).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for address in [server.http, server.admin] {
        let answer = ask(address, "GET", "/metrics", "").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("tollgate_build_info"));
    }
    let endpoint = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
    let mut client = TollgateClient::new(endpoint.connect().await.unwrap());
    let answer = timeout(DEADLINE, client.check(check([]))).await;
    assert!(
        answer
            .expect("no answer to Check")
            .unwrap()
            .into_inner()
            .allowed
    );
    let request = pb::CheckBatchRequest {
        requests: vec![check([]); 3],
    };
    let answer = timeout(DEADLINE, client.check_batch(request)).await;
    let answer = answer.expect("no answer to CheckBatch").unwrap();
    assert_eq!(answer.into_inner().decisions.len(), 3);
}

/// A batch of `count` checks.
fn batch(count: usize) -> String {
    let requests = vec![r#"{"attributes":{}}"#; count].join(",");
    format!(r#"{{"requests":[{requests}]}}"#)
}

/// Opens `count` connections with `streams` requests each, and takes no answers. Checks that the
/// memory grows by at most `most` MiB, and that other clients are served.
async fn attack(
    server: &Server,
    address: SocketAddr,
    (count, streams): (usize, usize),
    head: &[(&str, &str)],
    body: Body<'_>,
    most: usize,
) {
    let before = memory();
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = RawClient::connect(address, 0).await;
        client.open(streams, head, body).await;
        clients.push(client);
    }
    for client in &mut clients {
        let seen = client
            .wait(|seen| seen.answers + seen.resets >= streams)
            .await;
        // On a slow machine the first connections are cut off before the last are open.
        let answered = seen.answers + seen.resets;
        assert!(answered >= streams, "closed after {answered} answers");
        assert_eq!(seen.bytes, 0);
    }
    let held = memory().saturating_sub(before);
    assert!(held <= most, "{held} MiB are held for {count} connections");
    others_are_served(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_pages_stay_within_bounds() {
    let _one = ATTACK.lock().await;
    let server = start(&rules(200)).await;
    let page = ask(server.http, "GET", "/metrics", "").await;
    assert!(page.len() > 300_000, "{}", page.len());
    let connections = size(12, 180);
    for address in [server.http, server.admin] {
        let get = head("GET", "/metrics");
        attack(&server, address, (connections, 100), &get, Body::None, 100).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_batches_stay_within_bounds() {
    let _one = ATTACK.lock().await;
    let server = start(&rules(6)).await;
    let body = batch(256);
    let whole = Body::Whole(body.as_bytes());
    let post = head("POST", "/v1/check/batch");
    let connections = size(7, 100);
    attack(&server, server.http, (connections, 100), &post, whole, 256).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_grpc_batches_stay_within_bounds() {
    let _one = ATTACK.lock().await;
    let server = start(&rules(6)).await;
    let request = pb::CheckBatchRequest {
        requests: vec![check([]); 256],
    };
    let body = message(&request);
    let whole = Body::Whole(&body);
    let post = head("POST", "/tollgate.v1.Tollgate/CheckBatch");
    let connections = size(2, 20);
    attack(&server, server.grpc, (connections, 1000), &post, whole, 256).await;
}

/// The gateway makes some answers itself. If a client leaves too many of them unread, its next requests are denied
/// before they are decided.
#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_of_the_gateway_stay_within_bounds() {
    let _one = ATTACK.lock().await;
    let long = "x".repeat(8000);
    let rules = format!(
        "version: 1\nrules: [{{ id: none, match: {{ path: /denied }}, algorithm: fixed-window, limit: 0, window: 1h, \
         denial_body: '{{\"long\": \"{long}\"}}' }}]\n"
    );
    let server = start(&rules).await;
    let get = &head("GET", "/denied")[..4];
    let connections = size(200, 1000);
    attack(
        &server,
        server.gateway,
        (connections, 100),
        get,
        Body::None,
        500,
    )
    .await;
    let page = ask(server.http, "GET", "/metrics", "").await;
    let name = "rate_limit_bad_requests_total{door=\"gateway\",reason=\"no_room\"} ";
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    let no_room: u64 = line.unwrap().parse().unwrap();
    assert!(no_room > 0);
    // Another client is decided.
    let answer = ask(server.gateway, "GET", "/denied", "").await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}

/// Requests whose bodies never end do not take places, so other clients are served.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_requests_do_not_starve_others() {
    let _one = ATTACK.lock().await;
    let server = start(&rules(1)).await;
    let rounds = size(1, 3);
    for _ in 0..rounds {
        let mut clients = Vec::new();
        let mut open = async |address, count, streams, path, body| {
            for _ in 0..count {
                let mut client = RawClient::connect(address, 65_535).await;
                client.open(streams, &head("POST", path), body).await;
                clients.push(client);
            }
        };
        let (half, none) = (Body::Half(b"{"), Body::Half(b""));
        let envoy = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        open(server.grpc, 9, 1000, envoy, none).await;
        open(
            server.grpc,
            2,
            100,
            "/tollgate.v1.Tollgate/CheckBatch",
            none,
        )
        .await;
        open(server.http, 45, 100, "/v1/check", half).await;
        open(server.http, 2, 100, "/v1/check/batch", half).await;
        open(server.admin, 45, 100, "/v1/explain", half).await;
        let mut batches = Vec::new();
        for _ in 0..140 {
            let mut stream = TcpStream::connect(server.http).await.unwrap();
            let start = "POST /v1/check/batch HTTP/1.1\r\nhost: t\r\ncontent-length: 900\r\n\r\n{";
            stream.write_all(start.as_bytes()).await.unwrap();
            batches.push(stream);
        }
        others_are_served(&server).await;
        // A body in two parts is read while the bodies of others wait.
        for (address, path) in [(server.http, "/v1/check"), (server.admin, "/v1/explain")] {
            let mut client = RawClient::connect(address, 65_535).await;
            let post = head("POST", path);
            client.open(1, &post, Body::Half(br#"{"attributes""#)).await;
            others_are_served(&server).await;
            client
                .send(&frame(frames::DATA, END_STREAM, 1, b":{}}"))
                .await;
            let answered = timeout(DEADLINE, client.wait(|seen| seen.bytes > 0)).await;
            let answered = answered.expect("a body in two parts is not read");
            assert!(answered.answers == 1 && !answered.is_closed);
        }
    }
}

/// Bodies that never end are held within bounds.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_bodies_stay_within_bounds() {
    let _one = ATTACK.lock().await;
    let server = start(&rules(1)).await;
    let before = memory();
    let part = vec![b' '; 16_000];
    let mut sending = tokio::task::JoinSet::new();
    for (address, path) in [
        (server.http, "/v1/check/batch"),
        (server.grpc, "/tollgate.v1.Tollgate/CheckBatch"),
    ] {
        for _ in 0..size(10, 30) {
            let part = part.clone();
            sending.spawn(async move {
                let mut client = RawClient::connect(address, 65_535).await;
                client.open(100, &head("POST", path), Body::Half(b"")).await;
                for stream in (1..200).step_by(2) {
                    for _ in 0..size(15, 40) {
                        // The server takes no more of a request that it has refused.
                        let sent = client.send_data(stream, &part, 0);
                        if timeout(Duration::from_millis(20), sent).await.is_err() {
                            break;
                        }
                    }
                }
                client
            });
        }
    }
    let _clients = sending.join_all().await;
    let held = memory().saturating_sub(before);
    assert!(held <= 300, "{held} MiB are held");
    others_are_served(&server).await;
}

/// A client that takes no answers, or one byte from time to time, is cut off at every door.
#[tokio::test(start_paused = true)]
async fn answers_that_nobody_takes_are_cut() {
    let _one = ATTACK.lock().await;
    let server = start(&rules(20)).await;
    let request = pb::CheckBatchRequest {
        requests: vec![check([]); 100],
    };
    let grpc = message(&request);
    for (address, method, path, body) in [
        (server.http, "GET", "/metrics", Body::None),
        (server.admin, "GET", "/metrics", Body::None),
        (
            server.grpc,
            "POST",
            "/tollgate.v1.Tollgate/CheckBatch",
            Body::Whole(&grpc),
        ),
    ] {
        for drop_by_drop in [false, true] {
            let mut client = RawClient::connect(address, 0).await;
            client.open(2, &head(method, path), body).await;
            client.wait(|seen| seen.answers == 2).await;
            let cut = timeout(Duration::from_secs(40), async {
                while !client
                    .wait(|seen| seen.is_closed || drop_by_drop)
                    .await
                    .is_closed
                {
                    client.widen(1).await;
                    tokio::time::sleep(Duration::from_secs(3)).await;
                }
            });
            assert!(cut.await.is_ok(), "{path}, {drop_by_drop}");
        }
    }
    let page = ask(server.http, "GET", "/metrics", "").await;
    for door in ["http", "admin", "grpc"] {
        assert_eq!(cut(&page, door), 2, "{door}");
    }
}

/// Returns how many connections of a door were cut, as the page says.
fn cut(page: &str, door: &str) -> u32 {
    let name = format!("tollgate_cut_connections_total{{door=\"{door}\"}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

/// A slow client that takes its answers is not cut off, and gets all of them.
#[tokio::test(start_paused = true)]
async fn slow_client_gets_all_of_its_answer() {
    let _one = ATTACK.lock().await;
    let server = start(&rules(40)).await;
    let mut client = RawClient::connect(server.http, 0).await;
    client.open(1, &head("GET", "/metrics"), Body::None).await;
    let mut taken = 0;
    let seen = loop {
        client.widen(20_000).await;
        taken += 20_000;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let seen = client
            .wait(|seen| seen.ended == 1 || seen.bytes >= taken)
            .await;
        assert!(!seen.is_closed, "after {} bytes", seen.bytes);
        if seen.ended == 1 {
            break seen;
        }
    };
    assert!(seen.bytes > 60_000, "{} bytes", seen.bytes);
}

#[test]
fn large_answers_arrive_whole_over_http_1() {
    let server = Running::start(&rules(6));
    let answer = server.post("/v1/check/batch", &batch(256));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["decisions"].as_array().unwrap().len(), 256);
    let length: usize = answer.header("content-length").parse().unwrap();
    assert_eq!(length, answer.text.len());
}
