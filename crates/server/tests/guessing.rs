//! A client that guesses tokens over many connections learns no more than with one.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};

const ANN: [u8; 4] = [127, 0, 0, 1];
const BOB: [u8; 4] = [127, 0, 0, 2];

/// Starts a server. Returns the addresses of its doors for HTTP, RESP and admins.
async fn start() -> ([SocketAddr; 3], oneshot::Sender<()>) {
    let hash: String = Sha256::digest("right")
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let tokens = json!([{ "name": "ann", "scopes": ["check"], "sha256": hash }]);
    let operators = json!([{ "name": "ann", "role": "admin", "sha256": hash }]);
    let any = "\"127.0.0.1:0\"";
    let yaml = format!(
        "version: 1\nserver:\n  http: {any}\n  resp: {{ address: {any} }}\n  tokens: {tokens}\n  \
         admin: {{ address: {any}, tokens: {operators} }}\n\
         rules:\n- {{ id: api, per: [user], algorithm: fixed-window, limit: 1000, window: 1d }}\n"
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
    ([0, 1, 2].map(|door: usize| addresses[door].address), stop)
}

async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Sends a request, and returns the beginning of the answer.
async fn ask(mut stream: TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 2048];
    let length = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

fn of_http(path: &str, token: &str) -> String {
    let body = r#"{"attributes":{"user":"ann"}}"#;
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn of_resp(token: &str) -> String {
    format!("AUTH {token}\r\n")
}

#[tokio::test]
async fn guesses_beyond_the_queue_are_answered_at_once_and_not_compared() {
    let ([http, resp, admin], _stop) = start().await;
    let check = |token: &str| of_http("/v1/check", token);
    let peek = |token: &str| of_http("/v1/peek", token);
    for (door, make, right, wrong, full) in [
        (
            http,
            &check as &dyn Fn(&str) -> String,
            "HTTP/1.1 200",
            "HTTP/1.1 401",
            "HTTP/1.1 429",
        ),
        (admin, &peek, "HTTP/1.1 200", "HTTP/1.1 401", "HTTP/1.1 429"),
        (resp, &of_resp, "+OK", "-WRONGPASS", "-TRYAGAIN"),
    ] {
        let mut guesses = JoinSet::new();
        for _ in 0..200 {
            let stream = connect(ANN, door).await;
            let request = make("wrong");
            guesses.spawn(async move { ask(stream, &request).await });
        }
        // The queue has room for one more guess each fifth of a second. Of so many guesses, many find it full.
        let mut unread = 200;
        let answer = loop {
            unread -= 1;
            let answer = guesses.join_next().await.unwrap().unwrap();
            if !answer.starts_with(wrong) {
                break answer;
            }
        };
        assert!(answer.starts_with(full), "{answer}");
        // The first answers are those of the burst; all others wait.
        assert!(unread > 100, "{unread}");
        if full.starts_with("HTTP") {
            assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
            assert!(answer.contains("TOO_MANY_WRONG_TOKENS"), "{answer}");
        }
        // Another client notices nothing.
        let answer = ask(connect(BOB, door).await, &make("right")).await;
        assert!(answer.starts_with(right), "{answer}");
    }
}
