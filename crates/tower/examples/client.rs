//! A hyper client that never sends more requests to a host than the host allows.
//!
//! `cargo run -p tollgate-tower --example client`, with a server at 127.0.0.1:3000, such as the example `axum`.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tollgate::Limiter;
use tollgate_tower::TollgateLayer;
use tower::{Layer, Service, ServiceExt};

const RULES: &str = "
version: 1
rules:
  - { id: outbound, per: [host], algorithm: fixed-window, limit: 2, window: 1h }
";

/// Sends five requests to `url`, and returns the status that each of them got.
pub(crate) async fn send(
    url: &str,
) -> Result<Vec<StatusCode>, Box<dyn std::error::Error + Send + Sync>> {
    let limiter = Arc::new(Limiter::from_yaml("rules.yaml", RULES)?);
    let layer = TollgateLayer::new(limiter, |request| {
        request.set("host", request.parts().uri.host().unwrap_or_default());
    });
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut client = layer.layer(client);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let request = Request::get(url).body(Empty::new())?;
        // A denied request is not sent.
        statuses.push(client.ready().await?.call(request).await?.status());
    }
    Ok(statuses)
}

#[tokio::main]
#[allow(dead_code, clippy::print_stdout, reason = "a test calls `send`")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    println!("{:?}", send("http://127.0.0.1:3000/").await?);
    Ok(())
}
