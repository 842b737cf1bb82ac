//! Starts real servers for tests, benchmarks and fault runs: Redis (alone, as a cluster, with Sentinel, in
//! several versions), PostgreSQL, nginx, Traefik, Caddy and Envoy, and a browser. A proxy can delay, drop or reset
//! connections to them. `tools` has programs that check files of a deployment.
//!
//! Everything runs on loopback, on ports that no other process of these tests uses. A server stops when its
//! value is dropped. A `static` is never dropped: keep servers in local variables. A missing program or a
//! failure panics with the reason, so a test never passes without its server.
//!
//! ```
//! use tollgate_rig::Redis;
//!
//! let redis = Redis::start();
//! assert_eq!(redis.cli(&["SET", "key", "value"]), "OK");
//! assert_eq!(redis.connect().get("key"), Some(b"value".to_vec()));
//! ```

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "test support: a failure here must fail the test"
)]

pub mod browser;
mod cache;
mod certificate;
pub mod clients;
mod cluster;
mod faketime;
mod log;
mod open_files;
mod package;
mod port;
mod postgres;
mod proxy;
mod redis;
mod resp;
mod reverse_proxy;
mod sentinel;
mod stopwatch;
pub mod tools;
pub mod versions;
pub mod wait;

pub use cluster::{Cluster, Migration};
pub use open_files::raise_open_files;
pub use port::Port;
pub use postgres::Postgres;
pub use proxy::{Fault, Proxy};
pub use redis::{Redis, RedisBuilder};
pub use resp::{Reply, Resp};
pub use reverse_proxy::{ReverseProxy, ReverseProxyKind};
pub use sentinel::Sentinels;
pub use stopwatch::Stopwatch;
pub use versions::Version;
