//! The peers: other rate limiters, each installed from its registry in a pinned version. Each gets the same
//! work as Tollgate, in alternating rounds.
//!
//! A peer that cannot be installed is named with the reason in each table.

mod gubernator;
pub(crate) mod install;
mod limitador;
mod ratelimit;
pub(crate) mod redis_rate;
pub(crate) mod throttlecrab;
pub(crate) mod wire;

use std::cell::OnceCell;
use std::error::Error;
use std::path::PathBuf;

use crate::load::calls::Calls;
use crate::server::{Scratch, Server};

/// A peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Throttlecrab,
    Gubernator,
    Limitador,
    /// envoyproxy/ratelimit.
    Ratelimit,
    RedisRate,
}

impl Peer {
    pub(crate) const ALL: [Peer; 5] = [
        Peer::Throttlecrab,
        Peer::Gubernator,
        Peer::Limitador,
        Peer::Ratelimit,
        Peer::RedisRate,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Throttlecrab => "throttlecrab",
            Peer::Gubernator => "gubernator",
            Peer::Limitador => "limitador",
            Peer::Ratelimit => "envoyproxy/ratelimit",
            Peer::RedisRate => "redis_rate",
        }
    }

    fn install(self) -> Result<Program, Box<dyn Error>> {
        match self {
            Peer::Throttlecrab => throttlecrab::install(),
            Peer::Gubernator => gubernator::install(),
            Peer::Limitador => limitador::install(),
            Peer::Ratelimit => ratelimit::install(),
            Peer::RedisRate => redis_rate::install(),
        }
    }
}

/// An installed peer.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

/// What the peers are asked. Each limit allows everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// One limit per key.
    One,
    /// Four limits in one request, each with keys of its own.
    Four,
}

impl Work {
    /// The attributes that the limits are about.
    pub(crate) fn attributes(self) -> &'static [&'static str] {
        match self {
            Work::One => &["api_key"],
            Work::Four => &["api_key", "user", "session", "device"],
        }
    }
}

/// The number of each limit: no run uses it up.
pub(crate) const LIMIT: u32 = 1_000_000_000;

/// The peers of this machine. Each is installed when it is first needed.
#[derive(Default)]
pub(crate) struct Peers([OnceCell<Result<Program, String>>; Peer::ALL.len()]);

impl Peers {
    /// Returns the program of a peer, or why it cannot be installed.
    pub(crate) fn get(&self, peer: Peer) -> Result<&Program, &str> {
        let place = Peer::ALL.iter().position(|it| *it == peer).unwrap_or(0);
        let program = self.0[place].get_or_init(|| {
            let installed = peer.install();
            installed.map_err(|error| error.to_string().replace('\n', " "))
        });
        program.as_ref().map_err(String::as_str)
    }

    /// Returns a line about each of `peers`: its version, or why it is missing.
    pub(crate) fn describe(&self, peers: &[Peer]) -> String {
        let each = peers.iter().map(|peer| match self.get(*peer) {
            Ok(program) => format!("{} {}", peer.name(), program.version),
            Err(reason) => format!("{} (not measured: {reason})", peer.name()),
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

/// Starts a peer with its gRPC service open.
pub(crate) fn start_grpc(
    peer: Peer,
    program: &Program,
    scratch: &Scratch,
    work: Work,
    redis: Option<&str>,
) -> Result<Server, Box<dyn Error>> {
    match peer {
        Peer::Throttlecrab => throttlecrab::start(program, throttlecrab::Door::Grpc),
        Peer::Gubernator => gubernator::start(program, gubernator::Door::Grpc),
        Peer::Limitador => limitador::start(program, scratch, limitador::Door::Grpc, work, redis),
        Peer::Ratelimit => {
            let redis = redis.ok_or("envoyproxy/ratelimit needs a Redis")?;
            ratelimit::start(program, scratch, redis)
        }
        Peer::RedisRate => Err("redis_rate is a library".into()),
    }
}

/// Returns calls of a peer's gRPC service, one for each of `keys`.
pub(crate) fn calls(peer: Peer, work: Work, keys: &[String]) -> Option<Calls> {
    match (peer, work) {
        (Peer::Throttlecrab, Work::One) => Some(throttlecrab::calls(keys)),
        (Peer::Throttlecrab, Work::Four) | (Peer::RedisRate, _) => None,
        (Peer::Gubernator, work) => Some(gubernator::calls(work, keys)),
        (Peer::Limitador | Peer::Ratelimit, work) => Some(wire::rls(work, keys)),
    }
}

/// Starts a peer with its HTTP service open.
pub(crate) fn start_http(
    peer: Peer,
    program: &Program,
    scratch: &Scratch,
) -> Result<Server, Box<dyn Error>> {
    match peer {
        Peer::Throttlecrab => throttlecrab::start(program, throttlecrab::Door::Http),
        Peer::Gubernator => gubernator::start(program, gubernator::Door::Http),
        Peer::Limitador => {
            limitador::start(program, scratch, limitador::Door::Http, Work::One, None)
        }
        Peer::Ratelimit | Peer::RedisRate => {
            Err(format!("{} keeps no state in memory", peer.name()).into())
        }
    }
}

/// Returns the path of a peer's HTTP service, and the body of a request for `key`.
pub(crate) fn http_request(peer: Peer, key: &str) -> (&'static str, String) {
    match peer {
        Peer::Throttlecrab => ("/throttle", throttlecrab::body(key)),
        Peer::Gubernator => ("/v1/GetRateLimits", gubernator::body(key)),
        Peer::Limitador => ("/check_and_report", limitador::body(key)),
        Peer::Ratelimit | Peer::RedisRate => ("/", String::new()),
    }
}
