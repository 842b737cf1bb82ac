//! Finds the server of a cluster slot, and follows changes of the cluster and of the master.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;
use tokio::time::{sleep, timeout};
use tollgate_store::{BreakerState, StoreError};

use crate::connect::{Cause, ConnectError, RETRY, connect_error};
use crate::key_name::SLOTS;
use crate::node::{Node, Target};
use crate::options::{Address, Servers};
use crate::store::Shared;

/// The least time between two queries of the cluster's slots.
const SETTLE: Duration = Duration::from_millis(100);

/// The servers, and the cluster slots that each has.
#[derive(Debug, Default)]
pub(crate) struct Map {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// For each cluster slot the index of its server; empty if one server has everything.
    slots: Vec<Option<u16>>,
}

impl Map {
    /// Returns a map with one server for everything.
    pub(crate) fn single(node: Arc<Node>) -> Map {
        Map {
            nodes: vec![node],
            slots: Vec::new(),
        }
    }

    /// Returns the server that has `slot`.
    pub(crate) fn node(&self, slot: u16) -> Result<&Arc<Node>, StoreError> {
        let index = match self.slots.get(usize::from(slot)) {
            Some(index) => *index,
            None if self.slots.is_empty() => Some(0),
            None => None,
        };
        let node = index.and_then(|index| self.nodes.get(usize::from(index)));
        node.ok_or_else(|| StoreError::Unavailable("no server has this cluster slot".into()))
    }
}

/// Ranges of cluster slots and the master of each.
pub(crate) type Ranges = Vec<(u16, u16, Address)>;

impl Shared {
    /// Asks the nodes of the cluster which server has which slots. Returns the first answer.
    pub(crate) async fn ask_cluster(&self) -> Result<Ranges, ConnectError> {
        let Servers::Cluster(seeds) = &self.options.servers else {
            return Ok(Vec::new());
        };
        let known = self.map.load();
        let known = known.nodes.iter().filter_map(|node| match &node.target {
            Target::At(address) => Some(address.clone()),
            Target::Master => None,
        });
        let mut addresses: Vec<Address> = known.collect();
        fastrand::shuffle(&mut addresses);
        addresses.extend(seeds.iter().cloned());
        let mut failed = None;
        for address in addresses {
            match self.ask_node(&address).await {
                Ok(ranges) if !ranges.is_empty() => return Ok(ranges),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        let none = || ConnectError::new(Cause::Unreachable, "the cluster has no slots assigned");
        Err(failed.unwrap_or_else(none))
    }

    async fn ask_node(&self, address: &Address) -> Result<Ranges, ConnectError> {
        let mut connection = self.options.connect(address).await?;
        let mut command = redis::cmd("CLUSTER");
        let answer = command.arg("SLOTS").query_async(&mut connection).await;
        let answer = answer.map_err(|error| connect_error(address, &error))?;
        Ok(read_slots(&answer, address))
    }

    /// Puts the slots of the cluster into use.
    pub(crate) fn adopt(self: &Arc<Self>, ranges: &Ranges) {
        let mut map = Map {
            nodes: Vec::new(),
            slots: vec![None; usize::from(SLOTS)],
        };
        let mut indexes: HashMap<&Address, u16> = HashMap::new();
        for (from, to, address) in ranges {
            let index = *indexes.entry(address).or_insert_with(|| {
                map.nodes.push(self.node_at(address));
                // A cluster has at most as many nodes as slots.
                u16::try_from(map.nodes.len() - 1).unwrap_or(u16::MAX)
            });
            for slot in *from..=*to {
                if let Some(server) = map.slots.get_mut(usize::from(slot)) {
                    *server = Some(index);
                }
            }
        }
        // Servers without slots are dropped. Their workers end when their queues are empty.
        let mut nodes = self.nodes.lock();
        nodes.retain(|address, _| indexes.contains_key(address));
        drop(nodes);
        self.map.store(Arc::new(map));
    }

    /// Returns the server at `address`, and starts its workers if it is new.
    pub(crate) fn node_at(self: &Arc<Self>, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(address.clone());
        let node = node.or_insert_with(|| Node::start(&Target::At(address.clone()), self));
        Arc::clone(node)
    }

    fn has_failing_node(&self) -> bool {
        let (map, closed) = (self.map.load(), BreakerState::Closed);
        let mut nodes = map.nodes.iter();
        map.nodes.is_empty() || nodes.any(|node| node.breaker_state() != closed)
    }
}

fn read_slots(answer: &Value, asked: &Address) -> Ranges {
    let Value::Array(ranges) = answer else {
        return Vec::new();
    };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let ranges = ranges.iter().filter_map(|range| {
        let [from, to, Value::Array(master), ..] = range.as_sequence()? else {
            return None;
        };
        let [host, port, ..] = master.as_slice() else {
            return None;
        };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into(),
            _ => asked.host.clone(),
        };
        let port = number(port)?;
        Some((number(from)?, number(to)?, Address { host, port }))
    });
    ranges.collect()
}

/// Keeps the map of cluster slots up to date: reads the slots again after an unexpected answer, and while a
/// breaker is not closed. Ends when the store is dropped.
pub(crate) async fn follow_cluster(shared: Weak<Shared>) {
    loop {
        let Some(changed) = shared.upgrade().map(|it| Arc::clone(&it.changed)) else {
            return;
        };
        let woken = timeout(RETRY, changed.notified()).await.is_ok();
        let Some(store) = shared.upgrade() else {
            return;
        };
        if !woken && !store.has_failing_node() {
            continue;
        }
        match store.ask_cluster().await {
            Ok(ranges) => store.adopt(&ranges),
            Err(error) => tracing::debug!(%error, "cannot read the slots of the cluster"),
        }
        drop(store);
        sleep(SETTLE).await;
    }
}

/// Asks the Sentinels for the master while the breaker of the master is open. A new master is tried at once.
/// Ends when the store is dropped.
pub(crate) async fn follow_sentinels(shared: Weak<Shared>) {
    loop {
        sleep(RETRY).await;
        let Some(store) = shared.upgrade() else {
            return;
        };
        let map = store.map.load_full();
        let Some(node) = map.nodes.first() else {
            continue;
        };
        if node.breaker_state() != BreakerState::Open {
            continue;
        }
        if let Ok(master) = store.options.master().await
            && store.master.lock().as_ref() != Some(&master)
            && store.options.connect(&master).await.is_ok()
        {
            *store.master.lock() = Some(master);
            node.breaker.retry_now();
        }
    }
}
