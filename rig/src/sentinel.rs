//! A primary and its replica, monitored by three Sentinels.

use std::time::Duration;

use crate::redis::Redis;
use crate::resp::{Reply, Resp};
use crate::wait;

const LIMIT: Duration = Duration::from_secs(20);
const MASTER: &str = "tollgate";
const SENTINELS: usize = 3;

/// A primary, a replica and three Sentinels on loopback.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<Redis>,
    primary: Redis,
    replica: Redis,
}

impl Sentinels {
    /// The name of the primary in the Sentinels.
    pub const MASTER: &str = MASTER;

    /// Starts all servers. Waits until the replica is connected, and until the Sentinels know the replica and
    /// each other.
    ///
    /// # Panics
    ///
    /// When that takes more than twenty seconds.
    pub fn start() -> Sentinels {
        let primary = Redis::with()
            .args(["--repl-diskless-sync-delay", "0"])
            .start();
        let port = primary.port().to_string();
        let replica = Redis::with()
            .args(["--repl-diskless-sync-delay", "0"])
            .args(["--replicaof", "127.0.0.1", &port])
            .start();
        // A Sentinel reads the list of replicas at its start, and then only every ten seconds.
        wait::until("a linked replica", LIMIT, || {
            replica.info("replication")["master_link_status"] == "up"
                && primary.info("replication")["connected_slaves"] == "1"
        });
        let sentinel = |_| Redis::with().sentinel(config(primary.port())).start();
        let sentinels = (0..SENTINELS).map(sentinel).collect();
        let sentinels = Sentinels {
            sentinels,
            primary,
            replica,
        };
        sentinels.wait_until_connected();
        sentinels
    }

    /// Returns the Sentinels, which tests may inspect, kill, pause and restart.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Returns the URLs of the Sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Redis::url).collect()
    }

    /// Returns the server that started as the primary.
    pub fn primary(&self) -> &Redis {
        &self.primary
    }

    /// Returns the server that started as the replica.
    pub fn replica(&self) -> &Redis {
        &self.replica
    }

    /// Kills the server that started as the primary.
    pub fn kill_primary(&self) {
        self.primary.kill();
    }

    /// Returns the address of the current primary, according to one running Sentinel.
    pub fn current_master_address(&self) -> String {
        let sentinel = self.running().next().expect("a running Sentinel");
        master_address(&mut sentinel.connect())
    }

    /// Waits until the replica is the primary, according to all running Sentinels.
    ///
    /// # Panics
    ///
    /// When that takes more than twenty seconds.
    pub fn wait_for_failover(&self) {
        let new = self.replica.address();
        wait::until("a new primary", LIMIT, || {
            self.running()
                .all(|it| master_address(&mut it.connect()) == new)
                && self.replica.info("replication")["role"] == "master"
        });
    }

    fn wait_until_connected(&self) {
        let others = (SENTINELS - 1).to_string();
        for sentinel in &self.sentinels {
            let mut resp = sentinel.connect();
            wait::until("acquainted Sentinels", LIMIT, || {
                let master = fields(resp.command(&["SENTINEL", "MASTER", MASTER]));
                let says = |name: &str, value: &str| {
                    master.iter().any(|(it, its)| it == name && its == value)
                };
                says("flags", "master")
                    && says("num-slaves", "1")
                    && says("num-other-sentinels", &others)
            });
        }
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.sentinels.iter().filter(|it| it.is_running())
    }
}

fn config(primary: u16) -> String {
    format!(
        "sentinel monitor {MASTER} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {MASTER} 1000\n\
         sentinel failover-timeout {MASTER} 3000\n"
    )
}

fn master_address(sentinel: &mut Resp) -> String {
    let reply = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
    let words: Vec<String> = reply.items().into_iter().map(Reply::text).collect();
    words.join(":")
}

/// Reads a flat list of names and values.
fn fields(reply: Reply) -> Vec<(String, String)> {
    let words: Vec<String> = reply.items().into_iter().map(Reply::text).collect();
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}
