//! HTTP/2 clients of a server that stops: they get GOAWAY, and an answer to a request that has begun.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;
#[path = "common/frames.rs"]
mod frames;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use frames::{Body, END_STREAM, RawClient, frame};
use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};

const WINDOW: u32 = 1 << 20;

/// Starts a server. Returns the addresses of its doors for HTTP and gRPC.
async fn start() -> ([SocketAddr; 2], oneshot::Sender<()>) {
    let any = "\"127.0.0.1:0\"";
    let yaml = format!(
        "version: 1\nserver: {{ http: {any}, grpc: {any} }}\n\
         rules:\n- {{ id: api, algorithm: fixed-window, limit: 1000, window: 1d }}\n"
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
    ([0, 1].map(|door: usize| addresses[door].address), stop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_stops_says_so_and_answers_what_has_begun() {
    let ([http, grpc], stop) = start().await;
    let check = br#"{"attributes":{}}"#;
    let mut clients = Vec::new();
    // An empty gRPC message has five bytes.
    for (address, path, body) in [
        (http, "/v1/check", &check[..]),
        (grpc, "/tollgate.v1.Tollgate/Check", &[0; 5]),
    ] {
        let mut client = RawClient::connect(address, WINDOW).await;
        let mut head = frames::head("POST", path);
        if address == http {
            head.retain(|(name, _)| *name != "content-type");
            head.push(("content-type", "application/json"));
        }
        client.open(1, &head, Body::Whole(body)).await;
        client
            .wait(|seen| seen.ended == 1 || seen.answers == 2)
            .await;
        let before = client.wait(|seen| seen.answers > 0).await;
        assert_eq!((before.goaways, before.resets), (0, 0), "{path}");
        let (half, rest) = body.split_at(3);
        client.open(1, &head, Body::Half(half)).await;
        // The server answers pings in order, so it has seen the request when the pong is there.
        client.send(&frame(6, 0, 0, &[7; 8])).await;
        client.wait(|seen| seen.pongs == 1).await;
        clients.push((path, client, before.answers, rest));
    }
    stop.send(()).unwrap();
    for (path, mut client, before, rest) in clients {
        client.wait(|seen| seen.goaways > 0).await;
        // The second stream of a client has the number 3.
        client.send_data(3, rest, END_STREAM).await;
        let seen = client.wait(|seen| seen.is_closed).await;
        assert!(seen.answers > before, "no answer to {path}");
        assert_eq!(seen.resets, 0, "{path}");
    }
}
