//! Checks the servers of a store for `doctor`: whether they answer, are configured correctly and are fast
//! enough, and whether the keys under the prefix belong to Tollgate.
//!
//! * `server` checks one server.
//! * `timing` compares clocks and measures latency.
//! * `commands` tries the commands of the scripts on a key that does not exist.
//! * `keys` samples the stored keys.
//!
//! An inspection changes no data, and has time limits. A problem with one server does not stop the checks of the
//! others.

mod commands;
mod finding;
mod keys;
mod server;
mod timing;

use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError};
use tokio::time::Instant;
use tollgate_core::Tag;

pub use self::finding::{Finding, Level};

use self::keys::Share;
use self::server::Server;
use crate::key_name::{SLOTS, slot_of};
use crate::options::{Address, Login, Options, Servers};
use crate::startup::{self, StartError};
use crate::store::RedisStore;
use crate::topology::Ranges;

/// How long a server may take to answer. Longer than a decision would wait, so that slow answers are measured.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many tags to try until the keys of one are on a given server. If the server has only one slot, one tag
/// in 16,384 fits.
const TAGS: u32 = 1 << 20;

/// Checks the servers of a store. Loads the scripts there, as a start does, and changes no data.
///
/// Must be called within a Tokio runtime.
///
/// ```no_run
/// # async fn example() {
/// use tollgate_redis::{Address, Level, Options, Servers, inspect};
///
/// let server = Address { host: "localhost".to_owned(), port: 6379 };
/// for finding in inspect(Options::new(Servers::Standalone(server))).await {
///     if finding.level > Level::Ok {
///         println!("{} {}: {}", finding.level, finding.check, finding.found);
///     }
/// }
/// # }
/// ```
pub async fn inspect(options: Options) -> Vec<Finding> {
    let mut inspection = Inspection::new(options);
    match inspection.given.servers.clone() {
        Servers::Standalone(address) => {
            inspection.server(&address, Tag::default(), false).await;
        }
        Servers::Sentinel {
            sentinels,
            master,
            login,
        } => {
            if let Some(address) = inspection.sentinels(&sentinels, &master, &login).await {
                inspection.server(&address, Tag::default(), false).await;
            }
        }
        Servers::Cluster(seeds) => {
            if inspection.seeds(&seeds).await {
                inspection.cluster().await;
            }
        }
    }
    inspection.findings
}

struct Inspection {
    /// The settings of the store.
    given: Options,
    /// A store with longer timeouts, and one connection to each server.
    store: RedisStore,
    findings: Vec<Finding>,
}

impl Inspection {
    fn new(given: Options) -> Inspection {
        let mut patient = given.clone();
        patient.timeout = given.timeout.max(PATIENCE);
        patient.connect_timeout = given.connect_timeout.max(PATIENCE);
        patient.max_connections = 1;
        Inspection {
            given,
            store: RedisStore::unchecked(patient),
            findings: Vec::new(),
        }
    }

    /// Checks one server, which has the keys with the tag `tag`. Returns about how many keys of Tollgate it has.
    async fn server(&mut self, address: &Address, tag: Tag, in_cluster: bool) -> Option<u64> {
        let started = Instant::now();
        let connection = match self.store.options().connect(address).await {
            Ok(connection) => connection,
            Err(error) => {
                let finding = Finding::from_error(Level::Bad, "connection", error.into());
                self.findings.push(finding);
                return None;
            }
        };
        let server = Server {
            given: &self.given,
            store: &self.store,
            address,
            tag,
            in_cluster,
            connection,
            findings: server::on_connecting(&self.given, &address.host, started.elapsed()),
        };
        let (findings, keys) = server.inspect().await;
        let findings = findings.into_iter().map(|it| it.at(address));
        self.findings.extend(findings);
        keys
    }

    /// Asks each Sentinel for the master. Returns the master that most Sentinels name.
    async fn sentinels(
        &mut self,
        sentinels: &[Address],
        master: &str,
        login: &Login,
    ) -> Option<Address> {
        let options = self.store.options();
        let asked = sentinels.iter();
        let asked = asked.map(|sentinel| options.ask_sentinel(sentinel, login, master));
        let answers = join_all(asked).await;
        let named: Vec<&Address> = answers.iter().flatten().collect();
        let votes = |address: &&&Address| named.iter().filter(|it| it == address).count();
        // If two masters have the same number of votes, the first one is chosen.
        let chosen = named.iter().rev().max_by_key(votes);
        let chosen = chosen.map(|address| (*address).clone());
        for (sentinel, answer) in sentinels.iter().zip(answers) {
            let finding = match answer {
                Ok(address) if Some(&address) == chosen.as_ref() => {
                    Finding::ok("sentinel", format!("`{master}` is {address}")).at(sentinel)
                }
                Ok(address) => Finding::bad(
                    "sentinel",
                    format!("`{master}` is {address}, but most Sentinels name another server"),
                    "run this again after the failover; if they still disagree, compare \
                     `SENTINEL MASTER` on all",
                )
                .at(sentinel),
                // Only a warning, because other Sentinels answer.
                Err(error) if chosen.is_some() => {
                    Finding::from_error(Level::Warn, "sentinel", error.into())
                }
                Err(error) => Finding::from_error(Level::Bad, "sentinel", error.into()),
            };
            self.findings.push(finding);
        }
        chosen
    }

    /// Checks that the configured nodes are nodes of a cluster. Returns whether one is.
    async fn seeds(&mut self, seeds: &[Address]) -> bool {
        let options = self.store.options();
        let check = |seed| async move {
            let mut connection = options.connect(seed).await?;
            let info = startup::description(&mut connection, seed).await?;
            startup::is_in_mode(&info, seed, true)
        };
        let checked: Vec<Result<(), StartError>> = join_all(seeds.iter().map(check)).await;
        let good = checked.iter().filter(|it| it.is_ok()).count();
        if good > 0 {
            let found = format!("{good} of {} nodes in `urls` answer", seeds.len());
            self.findings.push(Finding::ok("nodes", found));
        }
        for error in checked.into_iter().filter_map(Result::err) {
            // If other nodes answer, a passing error is only a warning. A lasting error is a mistake in the
            // config.
            let level = if good > 0 && error.passing {
                Level::Warn
            } else {
                Level::Bad
            };
            let finding = Finding::from_error(level, "nodes", error);
            self.findings.push(finding);
        }
        good > 0
    }

    async fn cluster(&mut self) {
        let shared = &self.store.shared;
        let ranges = match shared.ask_cluster().await {
            Ok(ranges) => ranges,
            Err(error) => {
                let finding = Finding::from_error(Level::Bad, "slots", error.into());
                return self.findings.push(finding);
            }
        };
        shared.adopt(&ranges);
        self.findings.push(coverage(&ranges));
        let mut shares = Vec::new();
        for (address, slots) in masters(&ranges) {
            let tag = tag_of(&ranges, &address);
            if let Some(keys) = self.server(&address, tag, true).await {
                shares.push(Share {
                    address,
                    slots,
                    keys,
                });
            }
        }
        self.findings.extend(keys::balance(&shares));
    }
}

/// Returns the masters and how many cluster slots each has, in the order of their slots.
fn masters(ranges: &Ranges) -> Vec<(Address, u64)> {
    let mut masters: Vec<(Address, u64)> = Vec::new();
    for (from, to, address) in ranges {
        let slots = u64::from(to.saturating_sub(*from)) + 1;
        match masters.iter_mut().find(|(it, _)| it == address) {
            Some((_, sum)) => *sum += slots,
            None => masters.push((address.clone(), slots)),
        }
    }
    masters
}

/// Checks that every cluster slot has a server.
fn coverage(ranges: &Ranges) -> Finding {
    let masters = masters(ranges).len();
    let mut ranges: Vec<_> = ranges.iter().map(|(from, to, _)| (*from, *to)).collect();
    ranges.sort_unstable();
    let mut free = Vec::new();
    let mut next = 0;
    // The last range is a marker after the last slot.
    for (from, to) in ranges.into_iter().chain([(SLOTS, SLOTS)]) {
        if from > next {
            free.push((next, from - 1));
        }
        next = next.max(to.saturating_add(1));
    }
    if free.is_empty() {
        let found = format!("{masters} masters have all {SLOTS} slots");
        return Finding::ok("slots", found);
    }
    let count: u64 = free.iter().map(|(from, to)| u64::from(to - from) + 1).sum();
    let shown = free.iter().take(3).map(|(from, to)| match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = if free.len() > 3 { ", ..." } else { "" };
    Finding::bad(
        "slots",
        format!("{count} of {SLOTS} slots belong to no server: {shown}{more}"),
        "requests for these slots fail: `redis-cli --cluster check` shows why, `--cluster fix` repairs it",
    )
}

/// Returns a tag whose keys are on the server at `address`.
fn tag_of(ranges: &Ranges, address: &Address) -> Tag {
    let is_there = |tag: &Tag| {
        let slot = slot_of(*tag);
        let mut its = ranges.iter().filter(|(_, _, it)| it == address);
        its.any(|(from, to, _)| (*from..=*to).contains(&slot))
    };
    (0..TAGS).map(Tag::new).find(is_there).unwrap_or_default()
}

/// Sends a command and reads its answer.
async fn ask<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    parts: &[&str],
) -> Result<T, RedisError> {
    Cmd::new().arg(parts).query_async(connection).await
}

/// Formats a duration for people.
fn show(span: Duration) -> String {
    let micros = span.as_micros();
    match micros {
        _ if micros.is_multiple_of(1000) && micros < 10_000_000 => format!("{} ms", micros / 1000),
        0..100_000 => format!("{}.{:02} ms", micros / 1000, micros % 1000 / 10),
        100_000..10_000_000 => format!("{} ms", micros / 1000),
        _ => format!("{} s", micros / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> Address {
        Address {
            host: "node".to_owned(),
            port,
        }
    }

    #[test]
    fn slots_without_a_server_are_named() {
        let whole = vec![(8192, 16383, node(1)), (0, 8191, node(2))];
        assert_eq!(coverage(&whole).level, Level::Ok);
        let holes = vec![(1, 9, node(1)), (11, 8000, node(1)), (8192, 16382, node(2))];
        let found = coverage(&holes);
        assert_eq!(found.level, Level::Bad);
        assert_eq!(
            found.found,
            "194 of 16384 slots belong to no server: 0, 10, 8001-8191, ..."
        );
        assert_eq!(coverage(&Vec::new()).level, Level::Bad);
    }

    #[test]
    fn a_tag_is_found_for_each_master() {
        let ranges = vec![(0, 0, node(1)), (1, 9000, node(2)), (9001, 16383, node(3))];
        for (address, _) in masters(&ranges) {
            let slot = slot_of(tag_of(&ranges, &address));
            let mut ranges = ranges.iter();
            let range = ranges.find(|(from, to, _)| (*from..=*to).contains(&slot));
            assert_eq!(range.unwrap().2, address);
        }
    }

    #[test]
    fn durations_are_short() {
        for (micros, shown) in [
            (70, "0.07 ms"),
            (12_345, "12.34 ms"),
            (50_000, "50 ms"),
            (2_500_000, "2500 ms"),
            (3_600_000_000, "3600 s"),
        ] {
            assert_eq!(show(Duration::from_micros(micros)), shown);
        }
    }
}
