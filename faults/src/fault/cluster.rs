//! Faults of several servers: failovers, and cluster slots that move.

use std::thread::sleep;
use std::time::Duration;

use tollgate_redis::{Login, Options, Servers};
use tollgate_rig::{Cluster, Redis, Sentinels, Stopwatch};

use super::{Stage, address};

struct Watched(Sentinels);

impl Stage for Watched {
    fn options(&self) -> Options {
        let sentinels = self.0.sentinels().iter();
        Options::new(Servers::Sentinel {
            sentinels: sentinels.map(|it| address(&it.address())).collect(),
            master: Sentinels::MASTER.to_owned(),
            login: Login::default(),
        })
    }

    fn strike(&self, _: Duration) -> u64 {
        self.0.kill_primary();
        self.0.wait_for_failover();
        1
    }
}

pub(super) fn sentinel_failover(_: Duration) -> Box<dyn Stage> {
    Box::new(Watched(Sentinels::start()))
}

/// A cluster, and the fault that happens to the cluster slot of the keys.
struct Sharded {
    cluster: Cluster,
    strike: fn(&Cluster, u16, Duration) -> u64,
}

impl Stage for Sharded {
    fn options(&self) -> Options {
        let nodes = self.cluster.nodes().iter();
        Options::new(Servers::Cluster(
            nodes.map(|it| address(&it.address())).collect(),
        ))
    }

    fn strike(&self, length: Duration) -> u64 {
        (self.strike)(&self.cluster, self.slot(), length)
    }
}

impl Sharded {
    /// Returns the cluster slot that all keys are in.
    fn slot(&self) -> u16 {
        let keys = self.cluster.masters().into_iter().flat_map(|master| {
            let node: &Redis = &self.cluster.nodes()[master];
            node.connect().keys()
        });
        let slots = keys.map(|key| self.cluster.slot_of(&String::from_utf8_lossy(&key)));
        let mut slots: Vec<u16> = slots.collect();
        slots.dedup();
        match slots[..] {
            [slot] => slot,
            _ => panic!(
                "the keys are in {} cluster slots instead of one",
                slots.len()
            ),
        }
    }
}

pub(super) fn failover(_: Duration) -> Box<dyn Stage> {
    Box::new(Sharded {
        cluster: Cluster::start(3, 1),
        strike: |cluster, slot, _| {
            let old = cluster.master_of_slot(slot);
            cluster.nodes()[old].kill();
            cluster.wait_for_failover(slot, old);
            1
        },
    })
}

/// The pause between the moves of two keys.
const STEP: Duration = Duration::from_millis(10);

pub(super) fn migration(_: Duration) -> Box<dyn Stage> {
    Box::new(Sharded {
        cluster: Cluster::start(3, 0),
        strike: |cluster, slot, length| {
            let clock = Stopwatch::start();
            while clock.elapsed() < length {
                let from = cluster.master_of_slot(slot);
                let migration = cluster.begin_migration(slot, from, (from + 1) % 3);
                while migration.move_keys(1) > 0 {
                    sleep(STEP);
                }
                migration.finish();
                sleep(STEP);
            }
            0
        },
    })
}
