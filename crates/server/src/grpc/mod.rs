//! The gRPC door: Envoy's rate limit service, `envoy.service.ratelimit.v3.RateLimitService`.
//!
//! Beside it stand the standard services for health and reflection, so that probes and `grpcurl`
//! work. [`serve`] accepts HTTP/2 without upgrade, in plain text or, if the listener has it, TLS.
//!
//! * `request`: a request as demands, within [`bounds`].
//! * `service`: asks the engine. What becomes of the decisions is written in `respond`.
//! * `preface`, `connection`: accepting connections, and serving them until told to stop.
//! * `streams`: where their requests run.

pub mod bounds;
mod connection;
mod preface;
mod request;
mod service;
mod streams;
pub(crate) mod units;

use std::sync::Arc;

use tollgate::Config;
use tollgate::Engine;
use tollgate_rules::Families;
pub use tollgate_rules::UnknownDomain;

pub(crate) use self::request::BadRequest;
use self::service::{Door, Health};
use crate::net::Listener;

/// What a listener with TLS is to agree on with its clients: see [`Tls::new`](crate::tls::Tls::new).
pub const PROTOCOLS: &[&str] = &["h2"];

/// What the gRPC door needs besides a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What to answer when no rule is for the domain of a request: none that is enabled accepts it,
    /// and none does without a domain.
    pub unknown_domain: UnknownDomain,
    /// Which rate limit headers Envoy is to add to responses.
    pub headers: Families,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            unknown_domain: UnknownDomain::Allow,
            headers: Families {
                ietf: true,
                ratelimit: true,
                x_ratelimit: true,
            },
        }
    }
}

impl Options {
    /// What `config` says of this door.
    #[must_use]
    pub fn of(config: &Config) -> Options {
        let grpc = config.server.grpc.as_ref();
        Options {
            unknown_domain: grpc.map_or(UnknownDomain::Allow, |grpc| grpc.unknown_domain),
            headers: config.headers.families,
        }
    }
}

/// Serves on `listener` until `stop` is ready, then lets requests in flight finish.
///
/// To forget expired state now and then ([`Engine::sweep`]) is the caller's affair, as one engine
/// may have several doors.
pub async fn serve(
    listener: Listener,
    engine: Arc<Engine>,
    options: Options,
    stop: impl Future<Output = ()>,
) {
    let (health, routes) = Health::new().await;
    let door = Door::new(engine, options, routes);
    let stop = async {
        stop.await;
        health.stop().await;
    };
    connection::serve(listener, door, stop).await;
}
