//! Real servers for tests, benchmarks and fault runs: Redis alone, as a cluster, behind Sentinel,
//! in several versions; PostgreSQL; nginx, Traefik, Caddy and Envoy; and a proxy that makes the way
//! to them slow, silent or broken.
//!
//! Everything runs on loopback, on ports that no other process here uses, and ends when its value
//! is dropped. (A `static` is never dropped: keep servers in local variables.) What is missing or
//! fails panics with the reason: a test never passes because its server was absent.
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
    reason = "test support: what goes wrong here has to fail the test"
)]

mod cache;
mod certificate;
pub mod clients;
mod cluster;
mod front;
mod package;
mod port;
mod postgres;
mod proxy;
mod redis;
mod resp;
mod sentinel;
mod stopwatch;
pub mod versions;
pub mod wait;

pub use cluster::{Cluster, Migration};
pub use front::{Front, FrontKind};
pub use postgres::Postgres;
pub use proxy::{Fault, Proxy};
pub use redis::{Redis, RedisBuilder};
pub use resp::{Reply, Resp};
pub use sentinel::Sentinels;
pub use stopwatch::Stopwatch;
pub use versions::Version;
