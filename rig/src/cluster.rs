//! A Redis Cluster: its nodes, which of them holds a cluster slot, and moving cluster slots.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::redis::Redis;
use crate::resp::{Reply, Resp};
use crate::wait;

const LIMIT: Duration = Duration::from_secs(20);
/// After how many milliseconds of silence the cluster treats a node as failed.
const NODE_TIMEOUT: &str = "1000";
/// A longer timeout while the cluster forms. With a short one, nodes on a busy machine would mark each other
/// as failed and not try again.
const MEETING_TIMEOUT: &str = "15000";
/// How many keys [`Cluster::migrate_slot`] moves at a time.
const BATCH: usize = 100;

/// Masters and replicas on loopback. Nodes are numbered from 0, independent of their roles.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
    masters: usize,
}

impl Cluster {
    /// Starts a cluster, and waits until all nodes report that it is complete. Redis needs at least three
    /// masters.
    ///
    /// # Panics
    ///
    /// When that takes more than twenty seconds.
    pub fn start(masters: usize, replicas_per_master: usize) -> Cluster {
        let node = |_| {
            Redis::with()
                .args(["--cluster-enabled", "yes"])
                .args(["--cluster-node-timeout", NODE_TIMEOUT])
                .args(["--repl-diskless-sync-delay", "0"])
                .start()
        };
        let count = masters * (1 + replicas_per_master);
        let nodes: Vec<Redis> = (0..count).map(node).collect();
        set_timeout(&nodes, MEETING_TIMEOUT);
        let addresses: Vec<String> = nodes.iter().map(Redis::address).collect();
        let replicas = replicas_per_master.to_string();
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", &replicas, "--cluster-yes"]);
        nodes[0].cli(&create);
        let cluster = Cluster { nodes, masters };
        cluster.wait_until_complete();
        set_timeout(&cluster.nodes, NODE_TIMEOUT);
        cluster
    }

    /// Returns the nodes, which tests may inspect, kill, pause and restart.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns the URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// Returns the nodes that hold cluster slots, according to one running node.
    pub fn masters(&self) -> Vec<usize> {
        let view = self.view();
        let masters = view.iter().filter(|it| !it.slots.is_empty());
        masters.map(|it| self.index_of(it)).collect()
    }

    /// Returns the node that holds the cluster slot `slot`, according to one running node.
    ///
    /// # Panics
    ///
    /// When no node holds it.
    pub fn master_of_slot(&self, slot: u16) -> usize {
        let view = self.view();
        let holder = view.iter().find(|it| it.holds(slot));
        self.index_of(holder.unwrap_or_else(|| panic!("no node holds cluster slot {slot}")))
    }

    /// Returns the replicas of the node `master`, according to one running node.
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let view = self.view();
        let port = self.nodes[master].port();
        let id = view.iter().find(|it| it.port == port).map(|it| &it.id);
        let replicas = view
            .iter()
            .filter(|it| id.is_some() && it.master.as_ref() == id);
        replicas.map(|it| self.index_of(it)).collect()
    }

    /// Returns the cluster slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = self
            .running()
            .connect()
            .command(&["CLUSTER", "KEYSLOT", key]);
        slot.int().try_into().expect("a slot")
    }

    /// Waits until all running nodes agree on a new master of `slot`: any node but `old`. Returns the new
    /// master.
    ///
    /// # Panics
    ///
    /// When that takes more than twenty seconds.
    pub fn wait_for_failover(&self, slot: u16, old: usize) -> usize {
        let old = self.nodes[old].port();
        wait::until("a new master", LIMIT, || {
            self.agree(|view| view.iter().any(|it| it.holds(slot) && it.port != old))
        });
        self.master_of_slot(slot)
    }

    /// Waits until all nodes run and see a complete cluster, and all replicas are connected.
    ///
    /// # Panics
    ///
    /// When that takes more than twenty seconds.
    pub fn wait_until_complete(&self) {
        let replicas = self.nodes.len() - self.masters;
        wait::until("a complete cluster", LIMIT, || {
            self.nodes.iter().all(Redis::is_running)
                && self.agree(|view| {
                    view.iter().filter(|it| it.master.is_some()).count() == replicas
                        && view.iter().filter(|it| !it.slots.is_empty()).count() == self.masters
                })
        });
        for node in &self.nodes {
            wait::until("connected replicas", LIMIT, || {
                let link = node.info("replication").remove("master_link_status");
                link.is_none_or(|status| status == "up")
            });
        }
    }

    /// Moves `slot` and its keys to another master.
    pub fn migrate_slot(&self, slot: u16, from: usize, to: usize) {
        let migration = self.begin_migration(slot, from, to);
        while migration.move_keys(BATCH) > 0 {}
        migration.finish();
    }

    /// Starts to move `slot`. From now on `from` answers ASK for keys that it does not have.
    pub fn begin_migration(&self, slot: u16, from: usize, to: usize) -> Migration<'_> {
        let migration = Migration {
            cluster: self,
            slot: slot.to_string(),
            from,
            to,
        };
        migration.set_slot(to, &["IMPORTING", &self.id(from)]);
        migration.set_slot(from, &["MIGRATING", &self.id(to)]);
        migration
    }

    /// Whether every running node reports a working cluster, and its list of nodes passes `check`.
    fn agree(&self, check: impl Fn(&[Member]) -> bool) -> bool {
        let mut running = self.nodes.iter().filter(|node| node.is_running());
        running.all(|node| {
            let mut resp = node.connect();
            let info = resp.command(&["CLUSTER", "INFO"]).text();
            info.contains("cluster_state:ok") && check(&members(&mut resp))
        })
    }

    fn view(&self) -> Vec<Member> {
        members(&mut self.running().connect())
    }

    fn running(&self) -> &Redis {
        let running = self.nodes.iter().find(|node| node.is_running());
        running.expect("a running node")
    }

    fn index_of(&self, member: &Member) -> usize {
        let index = self.nodes.iter().position(|it| it.port() == member.port);
        index.expect("one of our nodes")
    }

    fn id(&self, node: usize) -> String {
        let mut resp = self.nodes[node].connect();
        resp.command(&["CLUSTER", "MYID"]).text()
    }
}

fn set_timeout(nodes: &[Redis], timeout: &str) {
    for node in nodes {
        node.cli(&["CONFIG", "SET", "cluster-node-timeout", timeout]);
    }
}

/// A cluster slot that moves from one master to another. See [`Cluster::begin_migration`].
#[derive(Debug)]
#[must_use = "without `finish`, the cluster slot stays between two masters"]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl Migration<'_> {
    /// Moves up to `count` keys, and returns how many it moved.
    pub fn move_keys(&self, count: usize) -> usize {
        let mut source = self.cluster.nodes[self.from].connect();
        let count = count.to_string();
        let found = source.command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, &count]);
        let keys: Vec<Vec<u8>> = found.items().into_iter().filter_map(Reply::bytes).collect();
        if keys.is_empty() {
            return 0;
        }
        let port = self.cluster.nodes[self.to].port().to_string();
        let options = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let mut migrate: Vec<&[u8]> = options.iter().map(|it| it.as_bytes()).collect();
        migrate.extend(keys.iter().map(Vec::as_slice));
        let reply = source.command(&migrate);
        assert!(matches!(reply, Reply::Simple(_)), "MIGRATE: {reply:?}");
        keys.len()
    }

    /// Assigns the cluster slot to its new master, and waits until all running nodes know about it.
    pub fn finish(self) {
        let cluster = self.cluster;
        let new = cluster.id(self.to);
        // The new master comes first. Otherwise no node would hold the cluster slot for a moment.
        self.set_slot(self.to, &["NODE", &new]);
        self.set_slot(self.from, &["NODE", &new]);
        let slot = self.slot.parse().expect("a slot");
        wait::until("nodes that know the new master", LIMIT, || {
            cluster.agree(|view| view.iter().any(|it| it.holds(slot) && it.id == new))
        });
    }

    fn set_slot(&self, node: usize, what: &[&str]) {
        let command = [&["CLUSTER", "SETSLOT", &self.slot], what].concat();
        let reply = self.cluster.nodes[node].connect().command(&command);
        assert_eq!(reply, Reply::Simple("OK".to_owned()), "{command:?}");
    }
}

/// A line of `CLUSTER NODES`.
#[derive(Debug)]
struct Member {
    id: String,
    port: u16,
    master: Option<String>,
    slots: Vec<RangeInclusive<u16>>,
}

impl Member {
    /// Parses `<id> <ip:port@bus> <flags> <master or -> <ping> <pong> <epoch> <link> <slots> ...`.
    fn parse(line: &str) -> Option<Member> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = words.get(1)?.split('@').next()?.rsplit_once(':')?;
        let master = Some(*words.get(3)?).filter(|it| *it != "-");
        // Moving cluster slots are listed in brackets, in addition to the range of their master.
        let slots = words.get(8..)?.iter().filter(|it| !it.starts_with('['));
        Some(Member {
            id: words.first().copied()?.to_owned(),
            port: port.parse().ok()?,
            master: master.map(str::to_owned),
            slots: slots.map(|it| range(it)).collect::<Option<_>>()?,
        })
    }

    fn holds(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn members(resp: &mut Resp) -> Vec<Member> {
    let text = resp.command(&["CLUSTER", "NODES"]).text();
    let parse = |line| Member::parse(line).unwrap_or_else(|| panic!("CLUSTER NODES: {line}"));
    text.lines().map(parse).collect()
}
