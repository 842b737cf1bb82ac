//! Tollgate's doors. A door is a listener for one protocol: it translates a request into a `Question`,
//! has it answered, and translates the answer back.
//!
//! The path of a request: door -> `question` -> `backend` -> [`Engine`](tollgate::Engine) -> `respond`.
//!
//! * [`http`]: the JSON API, forward-auth, health and metrics. `forward_auth` reads what proxies ask.
//! * [`grpc`]: Envoy's rate limit service, and Tollgate's own.
//! * [`resp`]: a server for ordinary Redis clients.
//! * [`admin`]: the API for operators.
//! * [`gateway`]: passes requests on to upstreams, within limits.
//! * `access`: tokens, and slow answers to wrong ones.
//! * `identity`: verifies the credentials of callers: tokens, API keys, certificates.
//! * `question`: what clients ask, the same for every door.
//! * `backend`: answers questions.
//! * `respond`: the only place where an answer becomes a response, a message or a reply.
//! * [`net`]: listeners, TLS and the accept loop. [`Doors`]: all doors of a config.
//! * [`control`]: puts a changed config in force while the server runs.
//! * [`overrides`]: limits that operators change while the server runs.
//! * [`audit`]: the audit trail. [`events`]: webhooks about quotas that are nearly used up.
//! * [`journal`]: the journal of denials.
//! * [`client`]: finds the client of a request in its headers.
//! * [`trace`]: spans of decisions. `exposition`: the metrics page. `door_metrics`: what each door counts.
//!   `process`: what the system knows of this process.
//! * `ingress_time`: the time of a request, as a trusted proxy brings it.
//! * `usage`: a tenant's usage, from the ledger. `period`: periods by name.
//!
//! Nothing here decides a request. No client can make the server panic or grow without bound: see
//! [`http::bounds`], [`grpc::bounds`], [`resp::bounds`] and [`gateway::bounds`].

mod access;
pub mod admin;
pub mod audit;
mod backend;
pub mod client;
pub mod control;
mod describe;
mod door_metrics;
mod doors;
pub mod events;
mod exposition;
mod fleet;
mod forward_auth;
pub mod gateway;
pub mod grpc;
pub mod http;
mod identity;
mod ingress_time;
pub mod journal;
pub mod net;
mod outbound;
pub mod overrides;
mod per_config;
mod period;
mod process;
mod question;
pub mod resp;
mod respond;
pub mod tls;
pub mod trace;
mod usage;

pub use control::ControlPlane;
pub use doors::{Address, DoorError, Doors};
