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
        expected: "Policies decide while it is away. It comes back empty: every subject may have \
                   its capacity once more.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::killed,
    },
    Fault {
        name: "paused",
        what: "The server is stopped (SIGSTOP) and goes on later (SIGCONT): connections stay open, \
               and nobody answers.",
        expected: "Requests wait for the timeout until the breaker opens, then policies decide at \
                   once. What was sent before the pause is still executed after it.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::paused,
    },
    Fault {
        name: "latency",
        what: "Every answer comes 200 ms late.",
        expected: "As if there were no answer, except that every question that was sent is executed: \
                   its unit is taken, whatever the policy has said meanwhile.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: way::latency,
    },
    Fault {
        name: "resets",
        what: "All connections are reset, and new ones as they come.",
        expected: "Requests fail at once, the breaker opens, policies decide.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: way::resets,
    },
    Fault {
        name: "black-hole",
        what: "Everything sent vanishes. Connections are accepted, and nobody is there.",
        expected: "Requests wait for the timeout until the breaker opens, then policies decide at \
                   once.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: way::black_hole,
    },
    Fault {
        name: "script-flush",
        what: "`SCRIPT FLUSH` every 10 ms: the server forgets the scripts.",
        expected: "Nobody notices: the script is sent again where it is missing, and nothing is \
                   charged twice.",
        meanwhile: Meanwhile::There,
        may_refuse_more: false,
        stage: server::script_flush,
    },
    Fault {
        name: "flushall",
        what: "`FLUSHALL` every second: the server forgets all states.",
        expected: "The store goes on deciding. Every subject may have its capacity once more each \
                   time.",
        meanwhile: Meanwhile::There,
        may_refuse_more: false,
        stage: server::flush_all,
    },
    Fault {
        name: "loading",
        what: "The server is killed and started with its data, which takes it a while to load: it \
               answers `LOADING`.",
        expected: "Policies decide until it is ready. What it had not saved is forgotten.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::loading,
    },
    Fault {
        name: "oom",
        what: "The server has reached `maxmemory` and refuses to write.",
        expected: "Policies decide, as nothing can be counted. Who is refused needs no memory, and \
                   may still be refused by the store.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::out_of_memory,
    },
    Fault {
        name: "readonly",
        what: "The server is made the replica of an empty one, and a primary again later.",
        expected: "Policies decide while it answers `READONLY`. Its data is replaced: every subject \
                   may have its capacity once more.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: server::read_only,
    },
    Fault {
        name: "sentinel-failover",
        what: "The primary is killed; the Sentinels promote its replica.",
        expected: "Policies decide until then. The new primary is found and used by itself. What \
                   the replica had not heard of is forgotten.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: cluster::sentinel_failover,
    },
    Fault {
        name: "cluster-failover",
        what: "The master of the slot that all keys are in is killed; its replica takes over.",
        expected: "As with Sentinels.",
        meanwhile: Meanwhile::Gone,
        may_refuse_more: false,
        stage: cluster::failover,
    },
    Fault {
        name: "slot-migration",
        what: "The slot that all keys are in is moved between two masters, key by key, again and \
               again.",
        expected: "Nobody notices: `MOVED` and `ASK` are followed, and nothing is forgotten or \
                   charged twice.",
        meanwhile: Meanwhile::There,
        may_refuse_more: false,
        stage: cluster::migration,
    },
    Fault {
        name: "clock-back",
        what: "The clock of the instance, which is the one that counts (`clock: caller`), is set \
               back by 10 s.",
        expected: "The store goes on deciding, and refills nothing until the clock has caught up \
                   or a state has expired: subjects get less than their limit for a while, and \
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
