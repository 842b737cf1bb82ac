//! Slow clients: every door cuts them off, on a paused clock.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};

struct Server {
    addresses: Vec<SocketAddr>,
    _stop: oneshot::Sender<()>,
    _serving: JoinHandle<()>,
}

/// Starts a server with the doors for HTTP, gRPC and RESP, and the admin door with TLS.
async fn start() -> Server {
    let folder = tempfile::TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let any = "127.0.0.1:0";
    let yaml = format!(
        "version: 1\nrules: []\nserver:\n  http: {any}\n  grpc: {any}\n  resp: {any}\n  \
         admin: {{ address: \"{any}\", tls: {{ cert: {}, key: {} }} }}\n",
        path("cert.pem"),
        path("key.pem"),
    );
    let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let doors = Doors::open(&config).await.unwrap();
    let addresses = doors.addresses().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = doors.serve(Arc::new(ControlPlane::of(engine)), async {
        drop(stopped.await);
        Duration::ZERO
    });
    Server {
        addresses: addresses.iter().map(|it| it.address).collect(),
        _stop: stop,
        _serving: tokio::spawn(serving),
    }
}

/// Sends `first` at once and then a byte per second, until the server closes. Returns the answer,
/// and how long that took.
async fn dribble(address: SocketAddr, first: &[u8]) -> (String, Duration) {
    let started = Instant::now();
    let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
    write.write_all(first).await.unwrap();
    let sending = async {
        // A failed write means that the server has closed.
        while !first.is_empty() && write.write_all(b"x").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut said = Vec::new();
    tokio::select! {
        // A reset counts as an end.
        _ = read.read_to_end(&mut said) => {}
        () = sending => {}
    }
    (
        String::from_utf8_lossy(&said).into_owned(),
        started.elapsed(),
    )
}

#[tokio::test(start_paused = true)]
async fn silent_client_is_cut_off_at_every_door() {
    let server = start().await;
    // Redis clients keep idle connections, and send nothing on them.
    let patience = [11, 11, 601, 11].map(Duration::from_secs);
    for (address, patience) in server.addresses.iter().zip(patience) {
        let (_, took) = dribble(*address, b"").await;
        assert!(took <= patience, "{address}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn heads_bodies_and_commands_must_arrive_in_time() {
    let server = start().await;
    let [http, grpc, resp, admin] = server.addresses[..] else {
        unreachable!("four doors")
    };
    let body = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n{";
    for (address, first, answer) in [
        (http, "GET /healthz HTTP/1.1\r\nx-slow: ", ""),
        (http, body, "HTTP/1.1 408 "),
        (http, "PRI * HTTP/2.0\r\n", ""),
        (grpc, "PRI * HTTP/2.0\r\n", ""),
        (resp, "*2\r\n$4\r\nECHO\r\n$8000\r\n", ""),
        (admin, "\u{16}\u{3}\u{1}", ""),
    ] {
        let (said, took) = dribble(address, first.as_bytes()).await;
        assert!(took <= Duration::from_secs(12), "{first:?}: {took:?}");
        assert!(said.starts_with(answer), "{first:?}: {said}");
    }
}
