//! Which server keeps which slot, and how that is found out anew when it changes.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{sleep, timeout};
use tollgate_store::{BreakerState, StoreError};

use crate::connect::{NoConnection, RETRY, refused};
use crate::name::SLOTS;
use crate::node::{Node, Target};
use crate::options::{Address, Servers};
use crate::store::Shared;

/// How long to let pass between two looks at the cluster.
const SETTLE: Duration = Duration::from_millis(100);

/// The servers, and which keeps what.
#[derive(Debug, Default)]
pub(crate) struct Map {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// The place of each slot's server; empty if there is one for all.
    slots: Vec<Option<u16>>,
}

impl Map {
    /// One server for everything.
    pub(crate) fn single(node: Arc<Node>) -> Map {
        Map {
            nodes: vec![node],
            slots: Vec::new(),
        }
    }

    /// The server that keeps `slot`.
    pub(crate) fn node(&self, slot: u16) -> Result<&Arc<Node>, StoreError> {
        let place = match self.slots.get(usize::from(slot)) {
            Some(place) => *place,
            None if self.slots.is_empty() => Some(0),
            None => None,
        };
        let node = place.and_then(|place| self.nodes.get(usize::from(place)));
        node.ok_or_else(|| StoreError::Unavailable("no server keeps this slot".into()))
    }
}

/// Ranges of slots and the master of each.
pub(crate) type Ranges = Vec<(u16, u16, Address)>;

impl Shared {
    /// Asks the cluster who keeps what. The first node that answers is believed.
    pub(crate) async fn ask_cluster(&self) -> Result<Ranges, NoConnection> {
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
        Err(failed.unwrap_or_else(|| NoConnection::Unreachable {
            address: "the cluster".to_owned(),
            what: "has no slots assigned".to_owned(),
        }))
    }

    async fn ask_node(&self, address: &Address) -> Result<Ranges, NoConnection> {
        let mut connection = self.connector.to(address).await?;
        let mut question = Cmd::new();
        question.arg(&["CLUSTER", "SLOTS"]);
        let answer = connection.send_packed_command(&question).await;
        let answer = answer.and_then(Value::extract_error);
        let answer = answer.map_err(|error| refused(address, &error))?;
        Ok(read_slots(&answer, address))
    }

    /// Takes over what the cluster says.
    pub(crate) fn adopt(self: &Arc<Self>, ranges: &Ranges) {
        let mut map = Map {
            nodes: Vec::new(),
            slots: vec![None; usize::from(SLOTS)],
        };
        let mut places: HashMap<&Address, u16> = HashMap::new();
        for (from, to, address) in ranges {
            let place = *places.entry(address).or_insert_with(|| {
                map.nodes.push(self.node_at(address));
                // A cluster has at most as many nodes as slots.
                u16::try_from(map.nodes.len() - 1).unwrap_or(u16::MAX)
            });
            for slot in *from..=*to {
                if let Some(kept) = map.slots.get_mut(usize::from(slot)) {
                    *kept = Some(place);
                }
            }
        }
        // Those that keep nothing any more are let go, and end when their queues are empty.
        let mut nodes = self.nodes.lock();
        nodes.retain(|address, _| places.contains_key(address));
        drop(nodes);
        self.map.store(Arc::new(map));
    }

    /// The server at `address`, started if it was not known.
    pub(crate) fn node_at(self: &Arc<Self>, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(address.clone());
        let node = node.or_insert_with(|| Node::start(&Target::At(address.clone()), self));
        Arc::clone(node)
    }

    fn is_unwell(&self) -> bool {
        let map = self.map.load();
        map.nodes.is_empty()
            || map
                .nodes
                .iter()
                .any(|node| node.breaker_state() != BreakerState::Closed)
    }
}

fn read_slots(answer: &Value, asked: &Address) -> Ranges {
    let Value::Array(ranges) = answer else {
        return Vec::new();
    };
    let ranges = ranges.iter().filter_map(|range| {
        let Value::Array(parts) = range else {
            return None;
        };
        let (Value::Int(from), Value::Int(to)) = (parts.first()?, parts.get(1)?) else {
            return None;
        };
        let Value::Array(master) = parts.get(2)? else {
            return None;
        };
        let host = match master.first()? {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into(),
            _ => asked.host.clone(),
        };
        let Value::Int(port) = master.get(1)? else {
            return None;
        };
        Some((
            u16::try_from(*from).ok()?,
            u16::try_from(*to).ok()?,
            Address {
                host,
                port: u16::try_from(*port).ok()?,
            },
        ))
    });
    ranges.collect()
}

/// Follows a cluster: looks again when a request met something unexpected, and while a server is
/// not well. Ends with the store.
pub(crate) async fn follow_cluster(shared: Weak<Shared>) {
    loop {
        let Some(changed) = shared.upgrade().map(|it| Arc::clone(&it.changed)) else {
            return;
        };
        let woken = timeout(RETRY, changed.notified()).await.is_ok();
        let Some(store) = shared.upgrade() else {
            return;
        };
        if !woken && !store.is_unwell() {
            continue;
        }
        match store.ask_cluster().await {
            Ok(ranges) => store.adopt(&ranges),
            Err(error) => tracing::debug!(%error, "the cluster does not say who keeps what"),
        }
        drop(store);
        sleep(SETTLE).await;
    }
}

/// Follows Sentinels while the master is not asked: a new master is tried at once.
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
        if let Ok(master) = store.connector.master().await
            && store.master.lock().as_ref() != Some(&master)
            && store.connector.to(&master).await.is_ok()
        {
            *store.master.lock() = Some(master);
            node.breaker.retry_now();
        }
    }
}
