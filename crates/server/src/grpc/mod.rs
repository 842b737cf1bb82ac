//! The gRPC services: Envoy's rate limit service, `envoy.service.ratelimit.v3.RateLimitService`, and
//! Tollgate's own, `tollgate.v1.Tollgate`.
//!
//! Beside them stand the standard services for health and reflection, so that probes and `grpcurl`
//! work. [`serve`] accepts HTTP/2 without upgrade, in plain text or, if the listener has it, TLS.
//!
//! * `request`: a request of Envoy as demands, within [`bounds`].
//! * `own`: Tollgate's own service.
//! * `service`: which service a request is for; Envoy's. What becomes of the decisions is written in
//!   `respond`.
//! * `connection`: one connection, until the server stops.
//! * `streams`: where their requests run.

pub mod bounds;
mod connection;
mod own;
pub mod proto;
mod request;
mod service;
mod streams;
pub(crate) mod units;

use std::sync::Arc;

use tollgate::Engine;
pub use tollgate_config::UnknownDomain;

pub(crate) use self::proto::tollgate::v1 as pb;
pub(crate) use self::request::BadRequest;
use self::service::{Health, Services};
use crate::net::Listener;

/// What a listener with TLS is to agree on with its clients: see [`Tls::new`](crate::tls::Tls::new).
pub const PROTOCOLS: &[&str] = &["h2"];

/// Serves on `listener` until `stop` is ready, then lets requests in flight finish.
///
/// Which headers Envoy is to add, and what becomes of unknown domains, follows the config in force. To
/// forget expired state now and then ([`Engine::sweep`]) is the caller's affair, as one engine may have
/// several doors.
pub async fn serve(listener: Listener, engine: Arc<Engine>, stop: impl Future<Output = ()>) {
    let (health, routes) = Health::new().await;
    let services = Services::new(engine, routes);
    let stop = async {
        stop.await;
        health.stop().await;
    };
    connection::serve(listener, services, stop).await;
}
