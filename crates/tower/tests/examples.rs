//! The programs in `examples/` run, and do what they say.

#![allow(clippy::unwrap_used)]

#[path = "../examples/axum.rs"]
mod axum_server;
#[path = "../examples/client.rs"]
mod client;
#[path = "../examples/tonic.rs"]
mod tonic_server;

use tokio::net::TcpListener;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::test]
async fn axum_and_client_examples_limit_requests() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(axum_server::serve(listener));
    // The client sends two of five requests. The server misses the tenant, and denies both.
    let statuses = client::send(&url).await.unwrap();
    assert_eq!(statuses, [429; 5]);
}

#[tokio::test]
async fn tonic_example_denies_with_a_grpc_status() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(tonic_server::serve(listener));
    let mut client = HealthClient::connect(url).await.unwrap();
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
