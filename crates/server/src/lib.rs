//! Tollgate's doors. Each translates a request of its protocol into attributes, asks the one
//! [`Engine`](tollgate::Engine), and translates the decision back.
//!
//! * [`http`]: the JSON API, health and metrics.
//! * [`resp`]: a server for ordinary Redis clients.
//! * `respond`: the only place where a decision becomes a status, headers and a body, or a reply.
//!
//! Nothing here decides anything, and nothing a client sends can make it panic or grow without
//! bound: see [`http::bounds`] and [`resp::bounds`].

mod exposition;
pub mod http;
pub mod net;
pub mod resp;
mod respond;
pub mod tls;

pub use http::{Server, ServerOptions};
