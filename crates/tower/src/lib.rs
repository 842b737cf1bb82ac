//! Tollgate as a Tower layer: limits for requests that a server gets, and for requests that a client sends.
//!
//! A closure turns a request into attributes. The layer asks a [`Limiter`](tollgate::Limiter) with them. An
//! allowed request goes on to the service, and its response gets the rate limit header fields. A denied
//! request gets an answer at once: the status, the fields and the body that Tollgate's server would send.
//!
//! In axum:
//!
//! ```
//! use std::sync::Arc;
//! use axum::{Router, routing::get};
//! use tollgate::Limiter;
//! use tollgate_tower::TollgateLayer;
//!
//! # fn app() -> Result<Router, Box<dyn std::error::Error>> {
//! let limiter = Arc::new(Limiter::from_yaml("rules.yaml", "
//! version: 1
//! rules: [{ id: api, per: [tenant], algorithm: gcra, rate: 100/s }]
//! ")?);
//! let layer = TollgateLayer::new(limiter, |request| {
//!     request.set_from_header("tenant", "x-tenant-id");
//!     request.set("path", request.parts().uri.path());
//! });
//! let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! # Ok(app)
//! # }
//! # app().unwrap();
//! ```
//!
//! In tonic, add the same layer with `Server::builder().layer(layer)`: a denial is then a gRPC status,
//! `RESOURCE_EXHAUSTED`. Around a client, apply the layer with
//! [`Layer::layer`](tower_layer::Layer::layer): a request that the rules deny is not sent.
//!
//! # What the layer does
//!
//! | rule | effect |
//! |---|---|
//! | a rate, a quota, a budget | takes one unit, or as many as [`RequestAttributes::cost`] says |
//! | `concurrency` | takes a slot, and keeps it until the body of the response has ended or was dropped |
//! | `leaky-bucket` with `shape` | waits until the turn of the request |
//! | `delay_denials` | holds the denial back |
//!
//! The layer is generic over the store: a [`Limiter`](tollgate::Limiter) of any store, or an
//! [`Engine`](tollgate::Engine) for the store that a config names. With a store in memory a decision is made
//! on the spot. A reload of the limiter takes effect with the next request.
//!
//! State of subjects that are gone is removed by [`sweep`]: spawn it once for each limiter.

mod attributes;
mod body;
mod future;
mod layer;
mod lease;
mod shed;

pub use attributes::RequestAttributes;
pub use body::LimitedBody;
pub use future::ResponseFuture;
pub use layer::{Tollgate, TollgateLayer};
pub use lease::sweep;
pub use shed::{Degraded, NEVER_SHED, Shed, ShedFuture, ShedLayer};
pub use tollgate::HasLimiter;

/// The programs of docs/tower.md, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tower.md")]
struct TowerDocs;
