//! Tollgate's doors. Each translates a request of its protocol into attributes, asks the one
//! [`Engine`](tollgate::Engine), and translates the decision back.
//!
//! * [`http`]: the JSON API, forward-auth, health and metrics.
//! * [`grpc`]: Envoy's rate limit service, and Tollgate's own.
//! * [`resp`]: a server for ordinary Redis clients.
//! * [`admin`]: what operators may see and do.
//! * [`keeper`]: puts a changed config in force while the doors are open.
//! * [`overrides`]: limits that operators change meanwhile.
//! * [`audit`]: the trail of who changed what.
//! * [`events`]: quotas that are nearly used up, told to a webhook.
//! * [`client`]: who asks, where a door has to find it in a request.
//! * `forward_auth`: what proxies ask.
//! * [`trace`]: spans of decisions.
//! * `usage`: what a tenant has used, from the ledger. `period`: periods by name.
//! * `waiting`: how many may wait for a lease.
//! * `respond`: the only place where a decision becomes a status, headers and a body, or a reply.
//!
//! Nothing here decides anything, and nothing a client sends can make it panic or grow without
//! bound: see [`http::bounds`], [`grpc::bounds`] and [`resp::bounds`].

pub mod admin;
pub mod audit;
pub mod client;
mod describe;
mod doors;
pub mod events;
mod exposition;
mod forward_auth;
pub mod grpc;
pub mod http;
pub mod keeper;
pub mod net;
mod outbound;
pub mod overrides;
mod per_config;
mod period;
pub mod resp;
mod respond;
pub mod tls;
pub mod trace;
mod usage;
mod waiting;

pub use doors::{Address, DoorError, Doors};
pub use keeper::Keeper;
