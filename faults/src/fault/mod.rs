//! What can go wrong, and how to make it so.
//!
//! A fault has a `Stage`: servers, and something that happens to them. What is expected stands
//! here, beside what is done; what is promised in every case stands in [`crate::judge`].

#![allow(
    clippy::panic,
    reason = "servers that do not do as they are told end the run"
)]

mod cluster;
mod server;
mod way;

use std::sync::Arc;
use std::time::Duration;

use tollgate_redis::{Address, Options};

use crate::clock::OffsetClock;

/// A fault.
#[derive(Clone, Copy)]
pub struct Fault {
    /// The name on the command line.
    pub name: &'static str,
    /// What happens.
    pub what: &'static str,
    /// What the limiter should do.
    pub expected: &'static str,
    /// Whether the store can decide meanwhile.
    pub meanwhile: Meanwhile,
    /// Whether the store may then refuse somebody who is below the limit.
    pub may_refuse_more: bool,
    /// Servers for it. A fault that sets its own time should take as long as it is told.
    pub(crate) stage: fn(Duration) -> Box<dyn Stage>,
}

/// Whether the store can decide during a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// It cannot: policies do.
    Gone,
    /// It can, and has to.
    There,
}

/// Servers, and what happens to them. Everything here may block, and panics if the servers do not
/// do as they are told.
pub(crate) trait Stage: Send + Sync {
    /// How to reach them.
    fn options(&self) -> Options;

    /// The clock of what the limiter decides by itself.
    fn clock(&self) -> Arc<OffsetClock> {
        Arc::default()
    }

    /// Lets it happen, and ends it. Says how often the servers may have lost what they knew.
    fn strike(&self, length: Duration) -> u64;
}

/// All faults, in the order of the report.
pub const ALL: [Fault; 14] = [
    Fault {
        name: "killed",
        what: "The server is killed, and started again later without its data.",
        expected: "Policies decide while it is down. It comes back empty: every subject may get \
                   its capacity once more.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::killed,
    },
    Fault {
        name: "paused",
        what: "The server is stopped (SIGSTOP) and continues later (SIGCONT). Connections stay \
               open without answers.",
        expected: "Requests wait for the timeout until the breaker opens, then policies decide at \
                   once. Commands sent before the pause are still executed after it.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::paused,
    },
    Fault {
        name: "latency",
        what: "Every answer comes 200 ms late.",
        expected: "The same as without answers, except that the server executes every command \
                   that was sent: it takes the unit, whatever the policy has decided.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: way::latency,
    },
    Fault {
        name: "resets",
        what: "All connections are reset, and so is every new one.",
        expected: "Requests fail at once, the breaker opens, and policies decide.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: way::resets,
    },
    Fault {
        name: "black-hole",
        what: "Connections are accepted, but everything sent is lost.",
        expected: "Requests wait for the timeout until the breaker opens, then policies decide at \
                   once.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: way::black_hole,
    },
    Fault {
        name: "script-flush",
        what: "`SCRIPT FLUSH` every 10 ms: the server forgets the scripts.",
        expected: "No effect: the script is sent again where it is missing, and nothing is \
                   charged twice.",
        meanwhile: Meanwhile::There,
        may_refuse_more: false,
        stage: server::script_flush,
    },
    Fault {
        name: "flushall",
        what: "`FLUSHALL` every second: the server forgets all states.",
        expected: "The store continues to decide. Every subject may get its capacity once more \
                   each time.",
        meanwhile: Meanwhile::There,
        may_refuse_more: false,
        stage: server::flush_all,
    },
    Fault {
        name: "loading",
        what: "The server is killed and started again with its data. It answers `LOADING` while \
               it reads them.",
        expected: "Policies decide until it is ready. Data that it had not saved are lost.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::loading,
    },
    Fault {
        name: "oom",
        what: "The server has reached `maxmemory` and rejects writes.",
        expected: "Policies decide, because nothing can be counted. A denial needs no memory, so \
                   the store may still deny.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::out_of_memory,
    },
    Fault {
        name: "readonly",
        what: "The server is made the replica of an empty one, and a primary again later.",
        expected: "Policies decide while it answers `READONLY`. Its data is replaced: every \
                   subject may get its capacity once more.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::read_only,
    },
    Fault {
        name: "sentinel-failover",
        what: "The primary is killed; the Sentinels promote its replica.",
        expected: "Policies decide until then. The limiter finds the new primary by itself. Data \
                   that had not reached the replica are lost.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: cluster::sentinel_failover,
    },
    Fault {
        name: "cluster-failover",
        what: "The master of the cluster slot with all keys is killed; its replica takes over.",
        expected: "The same as with Sentinels.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: cluster::failover,
    },
    Fault {
        name: "slot-migration",
        what: "The cluster slot with all keys is moved between two masters, key by key, again and \
               again.",
        expected: "No effect: the store follows `MOVED` and `ASK`, and nothing is lost or charged \
                   twice.",
        meanwhile: Meanwhile::There,
        may_refuse_more: false,
        stage: cluster::migration,
    },
    Fault {
        name: "clock-back",
        what: "The clock of the instance is set back by 10 s. It is the clock that counts \
               (`clock: caller`).",
        expected: "The store continues to decide, and refills nothing until the clock has caught \
                   up or a state has expired. Subjects get less than their limit for a while, and \
                   never more.",
        meanwhile: Meanwhile::There,
        may_refuse_more: true,
        stage: server::clock_back,
    },
];

/// `127.0.0.1:20001`, as the store wants it.
fn address(text: &str) -> Address {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    Address {
        host: host.to_owned(),
        port: port.parse().unwrap_or_default(),
    }
}
