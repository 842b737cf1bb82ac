//! The faults, and how to inject them.
//!
//! A fault has a `Stage`: servers, and something that happens to them. This file has the expectations of each
//! fault. The promises that hold in every fault are in [`crate::judge`].

#![allow(
    clippy::panic,
    reason = "a server that cannot be controlled ends the run"
)]

mod cluster;
mod flood;
mod network;
mod server;

use std::sync::Arc;
use std::time::Duration;

use tollgate_redis::{Address, Options};

use crate::clock::OffsetClock;

/// A fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The name on the command line.
    pub name: &'static str,
    /// The description of the fault.
    pub what: &'static str,
    /// The expected behaviour of the limiter.
    pub expected: &'static str,
    /// Whether the store can decide during the fault.
    pub availability: Availability,
    /// Whether the store may deny a subject below its limit.
    pub may_deny_more: bool,
    /// Starts the servers. The argument is the length of the fault.
    pub(crate) stage: fn(Duration) -> Box<dyn Stage>,
}

/// Whether the store can decide during a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// The store is unavailable: failure policies decide.
    Gone,
    /// The store must decide.
    Available,
}

/// Servers, and what happens to them. All methods may block, and panic if a server cannot be controlled.
pub(crate) trait Stage: Send + Sync {
    /// Returns the options of a store on these servers.
    fn options(&self) -> Options;

    /// Returns the clock of the limiter.
    fn clock(&self) -> Arc<OffsetClock> {
        Arc::default()
    }

    /// Injects the fault, and ends it. Returns how often the servers may have lost their state.
    fn strike(&self, length: Duration) -> u64;
}

/// All faults, in the order of the report.
pub const ALL: [Fault; 16] = [
    Fault {
        name: "killed",
        what: "The server is killed, and started again later without its data.",
        expected: "Policies decide while the server is down. The server comes back empty, so \
                   every subject may get its capacity once more.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: server::killed,
    },
    Fault {
        name: "paused",
        what: "The server is stopped (SIGSTOP) and continues later (SIGCONT). Connections stay \
               open without answers.",
        expected: "Requests wait for the timeout until the breaker opens, then policies decide at \
                   once. After the pause, the server still executes the commands that it got \
                   during the pause.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: server::paused,
    },
    Fault {
        name: "latency",
        what: "Every answer comes 200 ms late.",
        expected: "Requests wait for the timeout until the breaker opens, then policies decide at \
                   once. The server executes every command that was sent, and takes the unit, \
                   whatever the policy has decided.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: network::latency,
    },
    Fault {
        name: "resets",
        what: "All connections are reset, and so is every new one.",
        expected: "Requests fail at once, the breaker opens, and policies decide.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: network::resets,
    },
    Fault {
        name: "black-hole",
        what: "Connections are accepted, but everything sent is lost.",
        expected: "Requests wait for the timeout until the breaker opens, then policies decide at \
                   once.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: network::black_hole,
    },
    Fault {
        name: "script-flush",
        what: "`SCRIPT FLUSH` is called every 10 ms: the server loses its scripts.",
        expected: "No effect: if a script is missing, the store sends it again, and nothing is \
                   charged twice.",
        availability: Availability::Available,
        may_deny_more: false,
        stage: server::script_flush,
    },
    Fault {
        name: "flushall",
        what: "`FLUSHALL` is called every second: the server loses all state.",
        expected: "The store continues to decide. After each `FLUSHALL`, every subject may get \
                   its capacity once more.",
        availability: Availability::Available,
        may_deny_more: false,
        stage: server::flush_all,
    },
    Fault {
        name: "loading",
        what: "The server is killed and started again with its data. The server answers \
               `LOADING` while it reads the data.",
        expected: "Policies decide until the server is ready. Data that the server had not saved \
                   are lost.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: server::loading,
    },
    Fault {
        name: "oom",
        what: "The server has reached `maxmemory` and rejects writes.",
        expected: "No effect on subjects with a state: the store decides them exactly. New subjects \
                   of a rule share a state, and the breaker stays closed.",
        availability: Availability::Available,
        may_deny_more: false,
        stage: server::out_of_memory,
    },
    Fault {
        name: "flood",
        what: "A server with 4 MB of memory (`noeviction`) gets requests of 20,000 new addresses. \
               Then another program fills the rest of the memory.",
        expected: "No effect on subjects with a state: the store decides them exactly, an address \
                   that is denied stays denied, and the breaker stays closed.",
        availability: Availability::Available,
        may_deny_more: false,
        stage: flood::flood,
    },
    Fault {
        name: "skewed-clock",
        what: "The clock of the server is two days ahead of the clock of the instance, all the time.",
        expected: "No effect: the clock of the server decides. A quota with daily periods admits its \
                   limit, and no more.",
        availability: Availability::Available,
        may_deny_more: false,
        stage: flood::skewed_clock,
    },
    Fault {
        name: "readonly",
        what: "The server becomes the replica of an empty server, and a master again later.",
        expected: "Policies decide while the server answers `READONLY`. The data of the server \
                   are replaced, so every subject may get its capacity once more.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: server::read_only,
    },
    Fault {
        name: "sentinel-failover",
        what: "The master is killed; the Sentinels promote its replica.",
        expected: "Policies decide until the replica is promoted. The limiter finds the new \
                   master by itself. Data that had not reached the replica are lost.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: cluster::sentinel_failover,
    },
    Fault {
        name: "cluster-failover",
        what: "The master of the cluster slot with all keys is killed; its replica takes over.",
        expected: "Policies decide until the replica has taken over. The limiter finds the new \
                   master by itself. Data that had not reached the replica are lost.",
        availability: Availability::Gone,
        may_deny_more: false,
        stage: cluster::failover,
    },
    Fault {
        name: "slot-migration",
        what: "The cluster slot with all keys is moved between two masters, key by key, again and \
               again.",
        expected: "No effect: the store follows `MOVED` and `ASK`, and nothing is lost or charged \
                   twice.",
        availability: Availability::Available,
        may_deny_more: false,
        stage: cluster::migration,
    },
    Fault {
        name: "clock-back",
        what: "The clock of the instance is set back by 10 s. With `clock: caller`, decisions use \
               this clock.",
        expected: "The store continues to decide, but refills nothing until the clock has caught \
                   up or a state has expired. Subjects get less than their limit for a while, and \
                   never more than their limit.",
        availability: Availability::Available,
        may_deny_more: true,
        stage: server::clock_back,
    },
];

/// Parses an address such as `127.0.0.1:20001`.
fn address(text: &str) -> Address {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    Address {
        host: host.to_owned(),
        port: port.parse().unwrap_or_default(),
    }
}
