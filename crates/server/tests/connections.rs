//! One client cannot take all places of a door.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::size;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};

/// How many connections a client may have at each door.
fn most() -> usize {
    size(3, 2000)
}

/// Starts a server with all doors.
async fn start(subjects: &str) -> (Vec<SocketAddr>, oneshot::Sender<()>) {
    let most = most();
    let yaml = format!(
        "version: 1
server:
  {{ http: \"127.0.0.1:0\", grpc: \"127.0.0.1:0\", resp: \"127.0.0.1:0\", admin: \"127.0.0.1:0\", max_connections_per_client: {most} }}
subjects: {subjects}
rules: []
"
    );
    let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let doors = Doors::open(&config).await.unwrap();
    let addresses = doors.addresses().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(doors.serve(Arc::new(ControlPlane::of(engine)), async {
        drop(stopped.await);
        Duration::ZERO
    }));
    (addresses.iter().map(|it| it.address).collect(), stop)
}

async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

/// Asks for something, and returns the start of the answer; empty if the door has closed the connection.
async fn ask(mut stream: TcpStream, request: &str) -> String {
    let mut answer = [0; 15];
    let asking = async {
        stream.write_all(request.as_bytes()).await?;
        stream.read(&mut answer).await
    };
    // A reset counts as a closed connection.
    let read = asking.await.unwrap_or(0);
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

const GET: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A request for each door, and the start of its answer.
const REQUESTS: [(&str, &str); 4] = [
    (GET, "HTTP/1.1 200 OK"),
    (GET, "HTTP/1.1 400 Ba"),
    ("PING\r\n", "+PONG\r\n"),
    (GET, "HTTP/1.1 200 OK"),
];

const ONE: [u8; 4] = [127, 0, 0, 1];
const OTHER: [u8; 4] = [127, 0, 0, 2];

#[tokio::test]
async fn client_with_too_many_connections_does_not_lock_the_door() {
    let (addresses, _stop) = start("{}").await;
    for (address, (request, answer)) in addresses.iter().zip(REQUESTS) {
        let mut idle = Vec::new();
        for _ in 0..most() {
            idle.push(connect(ONE, *address).await);
        }
        for _ in 0..size(1, 8000) {
            assert_eq!(ask(connect(ONE, *address).await, request).await, "");
        }
        let other = ask(connect(OTHER, *address).await, request).await;
        assert_eq!(other, answer, "another client at {address}");
        // A place is free again once the server sees that its connection has ended.
        idle.pop();
        let patience = Duration::from_secs(20);
        let served = async {
            while ask(connect(ONE, *address).await, request).await != answer {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(patience, served).await.unwrap();
    }
    let metrics = GET.replace("/healthz", "/metrics");
    let mut stream = connect(OTHER, addresses[0]).await;
    let closing = metrics.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    stream.write_all(closing.as_bytes()).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    for door in ["http", "grpc", "resp", "admin"] {
        let name = format!("tollgate_refused_connections_total{{door=\"{door}\"}} ");
        let (_, count) = page.split_once(&name).unwrap();
        assert!(!count.starts_with('0'), "{page}");
    }
}

#[tokio::test]
async fn trusted_proxy_may_have_more_connections() {
    let (addresses, _stop) = start("{ trusted_proxies: [127.0.0.2/32] }").await;
    let mut idle = Vec::new();
    for _ in 0..most() + 7 {
        idle.push(connect(OTHER, addresses[0]).await);
    }
    let answer = ask(connect(OTHER, addresses[0]).await, GET).await;
    assert_eq!(answer, "HTTP/1.1 200 OK");
}
