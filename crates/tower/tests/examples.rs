//! The programs in `examples/` run, and do what they say.

#![allow(clippy::unwrap_used)]

#[path = "../examples/axum.rs"]
mod axum_server;
#[path = "../examples/client.rs"]
mod client;
#[path = "../examples/tonic.rs"]
mod tonic_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::test]
async fn axum_example_limits_each_tenant() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(axum_server::serve(listener));
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut statuses = Vec::new();
    for tenant in ["acme", "acme", "acme", "acme", "corp"] {
        let request = Request::get(&url).header("x-tenant-id", tenant);
        let answer = client.request(request.body(Empty::new()).unwrap()).await;
        statuses.push(answer.unwrap().status());
    }
    assert_eq!(statuses, [200, 200, 200, 429, 200]);
}

#[tokio::test]
async fn client_example_does_not_send_denied_requests() {
    let received: Arc<AtomicUsize> = Arc::default();
    let counted = Arc::clone(&received);
    let handler = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async { "hello" }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let app = Router::new().route("/", get(handler));
    tokio::spawn(axum::serve(listener, app).into_future());
    let statuses = client::send(&url).await.unwrap();
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    assert_eq!(received.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn tonic_example_denies_with_a_grpc_status() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(tonic_server::serve(listener));
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut codes = Vec::new();
    for _ in 0..4 {
        let mut call = tonic::Request::new(HealthCheckRequest::default());
        call.metadata_mut()
            .insert("client-id", "ann".parse().unwrap());
        match client.check(call).await {
            Ok(answer) => {
                assert!(answer.metadata().contains_key("ratelimit-remaining"));
                codes.push(Code::Ok);
            }
            Err(status) => {
                assert!(
                    status.message().starts_with("Too many requests"),
                    "{status}"
                );
                codes.push(status.code());
            }
        }
    }
    assert_eq!(
        codes,
        [Code::Ok, Code::Ok, Code::Ok, Code::ResourceExhausted]
    );
}
