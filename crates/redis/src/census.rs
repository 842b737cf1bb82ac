//! Counts keys and memory by rule, and compares clocks, once a second for each server, at a bounded cost.
//!
//! A server with few keys is counted exactly. For a server with many keys, a random sample is taken each
//! second, and the counts are estimated from the samples of the last seconds. The counts determine the
//! ceilings of the server: once the server has that many keys, the script makes no new states. The script
//! compares the ceilings with the exact number of keys at the moment of a decision, so a flood of new
//! subjects is stopped even between two counts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError};
use tokio::time::{Instant, sleep, timeout};
use tollgate_core::{Span, Tag, Time};
use tollgate_store::BreakerState;

use crate::key_name::KeyNames;
use crate::node::Node;
use crate::options::Address;
use crate::room::Ceilings;
use crate::startup::field;
use crate::store::Shared;

/// The time between two counts.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time that a count of one server may take.
const LONGEST: Duration = Duration::from_secs(2);
/// A server with at most this many keys is counted exactly.
const FEW: u64 = 1000;
/// How many keys a sample has.
const SAMPLE: usize = 200;
/// How many keys of a sample have their memory measured.
const WEIGHED: usize = 20;
/// The weight of a key in the newest sample. It falls by a fifth with each further sample.
const WEIGHT: u64 = 1000;
/// The most rules that are counted apart. The keys of further rules are counted together.
const MOST_RULES: usize = 1000;
/// After this many failed counts in a row, the last successful count is no longer used.
const FAILURES: u32 = 5;
/// The name under which the keys of further rules are counted.
const FURTHER: &str = "(others)";
/// The assumed bytes of a key, if no key was measured.
const USUAL_BYTES: u64 = 200;
/// The bytes of a key that `MEMORY USAGE` does not show: its entry in the table of expiries.
const EXPIRY_BYTES: u64 = 64;
/// New subjects get their own states up to this percentage of `maxmemory`.
const PERCENT: u64 = 95;
/// The same for anonymous subjects.
const PERCENT_ANONYMOUS: u64 = 90;
/// If clocks differ by more than this, a warning is logged.
const APART: u64 = Span::SECOND.as_micros();
/// The most rules in the index of shared states.
const MOST_INDEXED: &str = "10000";
/// The most names of anonymous rules that are remembered.
const MOST_ANONYMOUS: usize = 10_000;

const SHARED_INDEX: &str = include_str!("../lua/shared_index.lua");

/// The last count of keys, memory and clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// The servers that were counted.
    pub servers: Vec<ServerCensus>,
    /// The keys of each rule on all servers, by the rule's name. Other keys of Tollgate have a name in parentheses,
    /// such as `(holds)`. A server that cannot be counted has the keys of its last count.
    pub rules: BTreeMap<String, RuleCensus>,
    /// The open reservations and leases of all instances; `None` if they could not be counted. A hold that
    /// has expired counts until an instance ends it.
    pub open_holds: Option<u64>,
}

/// The last count of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCensus {
    /// The address, or `master` if Sentinels name the server.
    pub server: String,
    /// All keys of the database, including those of other programs.
    pub keys: u64,
    /// The memory that the server uses, in bytes.
    pub used_memory: u64,
    /// The memory that the server may use, in bytes; 0 if there is no bound.
    pub max_memory: u64,
    /// By how many microseconds the clock of the server is ahead of the clock of this process.
    pub clock_ahead: i64,
    /// Whether the server was out of memory a moment ago.
    pub is_full: bool,
}

/// The last count of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleCensus {
    /// About how many keys there are.
    pub keys: u64,
    /// About how many bytes they occupy.
    pub bytes: u64,
    /// Whether the subjects of the rule are anonymous.
    pub is_anonymous: bool,
}

impl Census {
    /// Returns about how many keys Tollgate has.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.rules.values().map(|rule| rule.keys).sum()
    }

    /// Returns about how many bytes the keys of Tollgate occupy.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rules.values().map(|rule| rule.bytes).sum()
    }

    /// Returns about how many keys anonymous subjects have.
    #[must_use]
    pub fn anonymous_keys(&self) -> u64 {
        let anonymous = self.rules.values().filter(|rule| rule.is_anonymous);
        anonymous.map(|rule| rule.keys).sum()
    }
}

/// The rules whose subjects are anonymous. They are learned from the charges of requests.
#[derive(Debug, Default)]
pub(crate) struct AnonymousRules(ArcSwap<HashSet<Box<str>>>);

impl AnonymousRules {
    pub(crate) fn note(&self, rule: &str) {
        let known = self.0.load();
        if known.contains(rule) || known.len() >= MOST_ANONYMOUS {
            return;
        }
        self.0.rcu(|known| {
            let mut more = HashSet::clone(known);
            more.insert(rule.into());
            more
        });
    }

    fn contains(&self, rule: &str) -> bool {
        self.0.load().contains(rule)
    }
}

/// The keys of one server, from the samples of the last seconds.
#[derive(Debug, Default)]
struct Tally {
    /// The weight of all keys, including those of other programs.
    all: u64,
    rules: HashMap<String, Tallied>,
}

#[derive(Debug, Default)]
struct Tallied {
    weight: u64,
    /// The average bytes of a key; 0 if none was measured.
    bytes: u64,
}

impl Tally {
    /// Lets older samples count less, or not at all if the next sample has all keys.
    fn age(&mut self, is_exact: bool) {
        let keep = |weight: u64| if is_exact { 0 } else { weight * 4 / 5 };
        self.all = keep(self.all);
        self.rules.retain(|_, rule| {
            rule.weight = keep(rule.weight);
            rule.weight > 0 || is_exact
        });
    }

    fn add(&mut self, rule: Option<&str>) {
        self.all += WEIGHT;
        if let Some(rule) = rule {
            self.of(rule).weight += WEIGHT;
        }
    }

    fn weigh(&mut self, rule: &str, bytes: u64) {
        let rule = self.of(rule);
        rule.bytes = match rule.bytes {
            0 => bytes,
            known => (known * 3 + bytes) / 4,
        };
    }

    fn of(&mut self, rule: &str) -> &mut Tallied {
        let is_known = self.rules.contains_key(rule) || self.rules.len() < MOST_RULES;
        let rule = if is_known { rule } else { FURTHER };
        self.rules.entry(rule.to_owned()).or_default()
    }

    /// Returns the estimated keys and bytes of each rule, if the server has `size` keys.
    fn rules(&self, size: u64) -> impl Iterator<Item = (&str, RuleCensus)> {
        let share = move |weight: u64| {
            let keys = u128::from(size) * u128::from(weight) / u128::from(self.all.max(1));
            u64::try_from(keys).unwrap_or(u64::MAX)
        };
        let counted = self.rules.iter().filter(|(_, rule)| rule.weight > 0);
        counted.map(move |(name, rule)| {
            let keys = share(rule.weight);
            let each = if rule.bytes > 0 {
                rule.bytes
            } else {
                USUAL_BYTES
            };
            let bytes = keys.saturating_mul(each + EXPIRY_BYTES);
            let is_anonymous = false;
            (
                name.as_str(),
                RuleCensus {
                    keys,
                    bytes,
                    is_anonymous,
                },
            )
        })
    }
}

/// Counts until the store is dropped.
pub(crate) async fn follow(shared: Weak<Shared>) {
    let mut counting = Counting::default();
    loop {
        let Some(store) = shared.upgrade() else {
            return;
        };
        counting.count(&store).await;
        drop(store);
        sleep(EVERY).await;
    }
}

/// The connections and samples of the servers.
#[derive(Default)]
pub(crate) struct Counting {
    servers: HashMap<String, (Address, MultiplexedConnection, Tally)>,
    /// The last successful count of each server, by rule.
    counted: HashMap<String, BTreeMap<String, RuleCensus>>,
    /// How many counts of a server have failed in a row.
    failures: HashMap<String, u32>,
    /// How many decisions shared states had made at the last count.
    decisions: u64,
}

impl Counting {
    /// Counts all servers once.
    pub(crate) async fn count(&mut self, shared: &Shared) {
        let map = shared.map.load_full();
        let mut census = Census::default();
        let nodes = map.nodes.len().max(1) as u64;
        for node in &map.nodes {
            if node.breaker_state() != BreakerState::Closed {
                continue;
            }
            let counted = self.count_server(shared, node, nodes, &mut census);
            let failed = match timeout(LONGEST, counted).await {
                Ok(Ok(())) => {
                    self.failures.remove(&node.name());
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the server did not answer in time".to_owned(),
            };
            self.servers.remove(&node.name());
            let failures = self.failures.entry(node.name()).or_default();
            *failures = failures.saturating_add(1);
            if *failures == FAILURES {
                // Old ceilings would be wrong: other programs may have added or removed keys.
                node.room.set_ceilings(Ceilings::NONE);
                tracing::warn!(
                    server = node.name(),
                    error = failed,
                    "cannot count the keys of the server, so `max_keys` has no effect: run `tollgate doctor`"
                );
            }
        }
        let names: HashSet<String> = map.nodes.iter().map(|node| node.name()).collect();
        self.servers.retain(|name, _| names.contains(name));
        self.failures.retain(|name, _| names.contains(name));
        self.counted.retain(|name, _| names.contains(name));
        // If the keys of a server that is down were left out, its return would look like a flood of new subjects.
        for (rule, counted) in self.counted.values().flatten() {
            let sum = census.rules.entry(rule.clone()).or_default();
            sum.keys += counted.keys;
            sum.bytes += counted.bytes;
            sum.is_anonymous = counted.is_anonymous;
        }
        if let Ok(node) = map.node(shared.slot(Tag::default())) {
            let now = shared.time_of(&node.room);
            self.exchange_shared_states(shared, node, now).await;
            shared.shared_states.forget_ended(now);
            census.open_holds = self.count_open_holds(shared, node).await;
        }
        let decisions = shared.shared_states.decisions();
        let is_new = decisions > self.decisions;
        self.decisions = decisions;
        if is_new != shared.shares.swap(is_new, Ordering::Relaxed) {
            if is_new {
                tracing::warn!(
                    keys = census.keys(),
                    anonymous_keys = census.anonymous_keys(),
                    max_keys = shared.options.max_keys,
                    max_anonymous_keys = shared.options.max_anonymous_keys,
                    "no room for new subjects: the new subjects of a rule share a state until there is room"
                );
            } else {
                tracing::info!("new subjects no longer share a state");
            }
        }
        if !census.servers.is_empty() {
            shared.census.store(census.into());
        }
    }

    async fn count_server(
        &mut self,
        shared: &Shared,
        node: &Node,
        nodes: u64,
        census: &mut Census,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let name = node.name();
        let address = shared.address(&node.target).await?;
        let known = self.servers.remove(&name);
        let (mut connection, mut tally) = match known {
            Some((at, connection, tally)) if at == address => (connection, tally),
            _ => (shared.options.connect(&address).await?, Tally::default()),
        };
        let before = shared.now();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let there = Time::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros));
        let half = Span::from_micros(shared.now().since(before).as_micros() / 2);
        let was_apart = node.room.ahead().unsigned_abs() > APART;
        node.room.compare_clocks(there, before + half);
        let clock_ahead = node.room.ahead();
        if clock_ahead.unsigned_abs() > APART && !was_apart {
            tracing::warn!(
                server = name,
                ahead_ms = clock_ahead / 1000,
                "the clock of the server and the clock of this host differ: run NTP on both"
            );
        }

        let mut commands = Pipeline::with_capacity(2);
        commands.cmd("DBSIZE").cmd("INFO").arg("memory");
        let (size, info): (u64, String) = commands.query_async(&mut connection).await?;
        let number = |name| {
            field(&info, name)
                .and_then(|it| it.parse().ok())
                .unwrap_or(0)
        };
        let (used_memory, max_memory) = (number("used_memory"), number("maxmemory"));
        sample(&mut connection, &shared.naming, size, &mut tally).await?;

        let mut rules = BTreeMap::new();
        let mut own = RuleCensus::default();
        let mut anonymous = 0;
        for (rule, mut counted) in tally.rules(size) {
            counted.is_anonymous = shared.anonymous_rules.contains(rule);
            own.keys += counted.keys;
            own.bytes += counted.bytes;
            anonymous += if counted.is_anonymous {
                counted.keys
            } else {
                0
            };
            rules.insert(rule.to_owned(), counted);
        }
        // A server that evicts keys does not reject writes for lack of memory, so it may use all of its
        // memory.
        let evicts = field(&info, "maxmemory_policy").is_none_or(|it| it != "noeviction");
        let each = match own.keys {
            0 => USUAL_BYTES + EXPIRY_BYTES,
            keys => (own.bytes / keys).max(1),
        };
        let room_in = |percent: u64| {
            if max_memory == 0 || evicts {
                return u64::MAX;
            }
            (max_memory / 100 * percent).saturating_sub(used_memory) / each
        };
        let options = &shared.options;
        let room = |most: u64, count: u64, percent| {
            let more = most.div_ceil(nodes).saturating_sub(count);
            size.saturating_add(more.min(room_in(percent)))
        };
        node.room.set_ceilings(Ceilings {
            keys: room(options.max_keys, own.keys, PERCENT),
            anonymous: room(options.max_anonymous_keys, anonymous, PERCENT_ANONYMOUS),
        });
        census.servers.push(ServerCensus {
            server: name.clone(),
            keys: size,
            used_memory,
            max_memory,
            clock_ahead,
            is_full: node.room.is_full(),
        });
        self.counted.insert(name.clone(), rules);
        self.servers.insert(name, (address, connection, tally));
        Ok(())
    }

    /// Counts the index of due holds, which has all open holds.
    async fn count_open_holds(&mut self, shared: &Shared, node: &Node) -> Option<u64> {
        let (_, connection, _) = self.servers.get_mut(&node.name())?;
        let mut command = redis::cmd("ZCARD");
        command.arg(&*shared.naming.due(&shared.options.namespace));
        let counted = timeout(LONGEST, command.query_async::<u64>(connection)).await;
        counted.ok()?.ok()
    }

    /// Tells other instances which rules have a shared state, and learns it from them.
    async fn exchange_shared_states(&mut self, shared: &Shared, node: &Node, now: Time) {
        let Some((_, connection, _)) = self.servers.get_mut(&node.name()) else {
            return;
        };
        let news = shared.shared_states.news();
        let mut command = redis::cmd("EVAL");
        command
            .arg(SHARED_INDEX)
            .arg(1)
            .arg(&*shared.naming.shared_index())
            .arg(now.as_micros())
            .arg(MOST_INDEXED);
        for (rule, until) in &news {
            command.arg(until.as_micros()).arg(&**rule);
        }
        let answer = command.query_async::<Vec<(Vec<u8>, u64)>>(connection);
        match timeout(LONGEST, answer).await {
            Ok(Ok(rules)) => {
                for (rule, until) in rules {
                    let until = Time::from_micros(until);
                    shared.shared_states.note(&rule, until, false);
                }
            }
            _ => {
                // Tries again at the next count.
                for (rule, _) in news {
                    shared.shared_states.note_again(&rule);
                }
            }
        }
    }
}

/// Adds a sample of the keys of a server with `size` keys to `tally`.
async fn sample(
    connection: &mut MultiplexedConnection,
    naming: &KeyNames,
    size: u64,
    tally: &mut Tally,
) -> Result<(), RedisError> {
    let is_exact = size <= FEW;
    let keys = if is_exact {
        Vec::from_iter(all_keys(connection).await?)
    } else {
        let mut commands = Pipeline::with_capacity(SAMPLE);
        for _ in 0..SAMPLE {
            commands.cmd("RANDOMKEY");
        }
        let keys: Vec<Option<Vec<u8>>> = commands.query_async(connection).await?;
        keys.into_iter().flatten().collect()
    };
    tally.age(is_exact);
    let mut weighed: Vec<(&str, &[u8])> = Vec::new();
    for key in &keys {
        let rule = naming.parse(key).map(|(_, content)| content.rule());
        tally.add(rule);
        weighed.extend(rule.map(|rule| (rule, key.as_slice())));
    }
    fastrand::shuffle(&mut weighed);
    weighed.truncate(WEIGHED);
    if weighed.is_empty() {
        return Ok(());
    }
    let mut commands = Pipeline::with_capacity(weighed.len());
    for (_, key) in &weighed {
        commands.cmd("MEMORY").arg("USAGE").arg(*key);
    }
    let bytes: Vec<Option<u64>> = commands.query_async(connection).await?;
    for ((rule, _), bytes) in weighed.into_iter().zip(bytes) {
        // The key may have expired meanwhile.
        if let Some(bytes) = bytes {
            tally.weigh(rule, bytes);
        }
    }
    Ok(())
}

/// Returns all keys of a server that has few.
async fn all_keys(connection: &mut MultiplexedConnection) -> Result<HashSet<Vec<u8>>, RedisError> {
    let (mut all, mut cursor) = (HashSet::new(), 0_u64);
    let started = Instant::now();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("COUNT").arg(FEW);
        let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(connection).await?;
        all.extend(keys);
        cursor = next;
        // The server may get more keys meanwhile.
        if cursor == 0 || all.len() as u64 > 2 * FEW || started.elapsed() > LONGEST {
            return Ok(all);
        }
    }
}
