//! The gRPC services: Envoy's rate limit service, `envoy.service.ratelimit.v3.RateLimitService`, and
//! Tollgate's own, `tollgate.v1.Tollgate`.
//!
//! The standard services for health and reflection are served too, for probes and `grpcurl`.
//! [`serve`] accepts HTTP/2 without upgrade, in plain text, or with TLS if the listener has it.
//! Answers are written in `respond`, not here.
//!
//! * [`proto`]: the generated messages, servers and clients.
//! * `service`: routes each request to its service; Envoy's service, health and reflection.
//! * `request`, `units`: translate Envoy's requests, within [`bounds`].
//! * `own`: Tollgate's own service.
//! * `connection`: serves one connection, until the server stops.
//! * `streams`: runs the requests of a connection.

pub mod bounds;
mod connection;
mod own;
pub mod proto;
mod request;
mod service;
mod streams;
pub(crate) mod units;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate::Engine;
pub use tollgate_config::UnknownDomain;

pub(crate) use self::proto::tollgate::v1 as pb;
pub(crate) use self::request::BadRequest;
use self::service::{Health, Services};
use crate::access::{Access, DataDoor};
use crate::net::Listener;

/// The protocols that TLS negotiates for this door: see [`Tls::new`](crate::tls::Tls::new).
pub const PROTOCOLS: &[&str] = &["h2"];

/// Serves on `listener` until `stop` is ready. The value of `stop` is the drain time: for this long the
/// health service says `NOT_SERVING`, but the door serves. Then clients get GOAWAY, and requests in
/// flight finish.
///
/// The active config says which headers Envoy adds, and how unknown domains are answered. The caller
/// has to call [`Engine::sweep`](tollgate::Limiter::sweep) now and then, because several doors may share one engine.
pub async fn serve(listener: Listener, engine: Arc<Engine>, stop: impl Future<Output = Duration>) {
    let (health, routes) = Health::new().await;
    let attempts = Arc::clone(listener.attempts());
    let access = Access::new(DataDoor::Grpc, Arc::clone(&engine), attempts);
    let services = Services::new(engine, access, routes, listener.metrics());
    let delays = services.delays();
    let (draining, drains) = oneshot::channel();
    let stop = async {
        let drain = stop.await;
        // Denials that are held back are answered now.
        delays.send_replace(true);
        health.drain().await;
        let _ = draining.send(drain);
        drain
    };
    // Streams of clients that watch would keep their connections open.
    let end_watches = async {
        if let Ok(drain) = drains.await {
            tokio::time::sleep(drain).await;
        }
        health.end().await;
    };
    tokio::join!(connection::serve(listener, services, stop), end_watches);
}
