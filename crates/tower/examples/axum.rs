//! An axum server whose requests are limited by tenant.
//!
//! `cargo run -p tollgate-tower --example axum`, then
//! `curl -i -H 'x-tenant-id: acme' http://127.0.0.1:3000/` four times.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::Limiter;
use tollgate_tower::TollgateLayer;

const RULES: &str = "
version: 1
rules:
  - { id: api, per: [tenant], missing: deny, algorithm: fixed-window, limit: 3, window: 1m }
";

/// Serves on `listener` for ever.
pub(crate) async fn serve(
    listener: TcpListener,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let limiter = Arc::new(Limiter::from_yaml("rules.yaml", RULES)?);
    tokio::spawn(tollgate_tower::sweep(&limiter));
    let layer = TollgateLayer::new(limiter, |request| {
        request.set_from_header("tenant", "x-tenant-id");
    });
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(layer);
    axum::serve(listener, app).await?;
    Ok(())
}

#[tokio::main]
#[allow(dead_code, reason = "a test calls `serve`")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    serve(TcpListener::bind("127.0.0.1:3000").await?).await
}
