//! A tonic server whose calls are limited by client. A denied call ends with RESOURCE_EXHAUSTED.
//!
//! `cargo run -p tollgate-tower --example tonic`, then call `grpc.health.v1.Health/Check` with any gRPC client
//! that sends `client-id`.

use std::sync::Arc;

use tokio::net::TcpListener;
use tollgate::Limiter;
use tollgate_tower::TollgateLayer;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

const RULES: &str = "
version: 1
rules:
  - { id: calls, per: [client], algorithm: fixed-window, limit: 3, window: 1m }
  - { id: running, per: [client], algorithm: concurrency, limit: 100 }
";

/// Serves on `listener` for ever.
pub(crate) async fn serve(
    listener: TcpListener,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let limiter = Arc::new(Limiter::from_yaml("rules.yaml", RULES)?);
    tokio::spawn(tollgate_tower::sweep(&limiter));
    let layer = TollgateLayer::new(limiter, |call| {
        call.set_from_header("client", "client-id");
        call.set("method", call.parts().uri.path());
    });
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    server
        .serve_with_incoming(TcpIncoming::from(listener))
        .await?;
    Ok(())
}

#[tokio::main]
#[allow(dead_code, reason = "a test calls `serve`")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    serve(TcpListener::bind("127.0.0.1:3001").await?).await
}
