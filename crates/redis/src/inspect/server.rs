//! Checks one server.

use std::net::IpAddr;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tollgate_core::Tag;

use super::finding::{Finding, Level};
use super::{ask, commands, keys, show, timing};
use crate::options::{Address, Login, Options};
use crate::startup::{self, field};
use crate::store::RedisStore;

/// A server that answers.
pub(super) struct Server<'i> {
    pub(super) given: &'i Options,
    pub(super) store: &'i RedisStore,
    pub(super) address: &'i Address,
    /// A tag whose keys are on this server.
    pub(super) tag: Tag,
    pub(super) in_cluster: bool,
    pub(super) connection: MultiplexedConnection,
    pub(super) findings: Vec<Finding>,
}

impl Server<'_> {
    /// Returns the findings, and about how many keys of Tollgate the server has.
    pub(super) async fn inspect(mut self) -> (Vec<Finding>, Option<u64>) {
        let bad = |check, error| Finding::from_error(Level::Bad, check, error);
        let info = match startup::description(&mut self.connection, self.address).await {
            Ok(info) => info,
            Err(error) => {
                self.findings.push(bad("info", error));
                return (self.findings, None);
            }
        };
        self.findings
            .push(match startup::is_new_enough(&info, self.address) {
                Ok(()) => Finding::ok("version", product(&info)),
                Err(error) => bad("version", error),
            });
        let mode = match startup::is_in_mode(&info, self.address, self.in_cluster) {
            Ok(()) if self.in_cluster => cluster(&mut self.connection).await,
            Ok(()) => Finding::ok("mode", "a single server"),
            Err(error) => {
                self.findings.push(bad("mode", error));
                return (self.findings, None);
            }
        };
        self.findings.push(mode);
        let role = role(&info);
        let is_master = role.level == Level::Ok;
        self.findings.extend([role, memory(&info), eviction(&info)]);
        let (connection, naming) = (&mut self.connection, &self.store.shared.naming);
        let save: Result<Vec<String>, _> = ask(connection, &["CONFIG", "GET", "save"]).await;
        let save = save.ok().and_then(|pair| pair.into_iter().nth(1));
        self.findings.push(persistence(&info, save.as_deref()));
        let loaded = startup::load_scripts(connection, self.address).await;
        self.findings.push(match loaded {
            Ok(count) => Finding::ok("scripts", format!("all {count} scripts are loaded")),
            Err(error) => Finding::from_error(Level::Bad, "scripts", error),
        });
        if is_master {
            let key = naming.undone(self.tag, fastrand::u128(..));
            self.findings.push(commands::check(connection, &key).await);
        }
        let (clock, timeout) = (&self.given.clock, self.given.timeout);
        self.findings.push(timing::clock(connection, clock).await);
        self.findings.push(timing::ping(connection, timeout).await);
        if is_master {
            let found = timing::peek(self.store, self.tag, timeout).await;
            self.findings.push(found);
        }
        let sampled = keys::sample(connection, naming, &self.given.key_prefix).await;
        let count = match sampled {
            Ok(sample) => {
                self.findings.extend(sample.findings());
                Some(sample.estimate())
            }
            Err(error) => {
                self.findings.push(Finding::warn(
                    "keys",
                    format!("cannot be sampled: {error}"),
                    "run this as a user with +@read to check the type and expiry of keys",
                ));
                None
            }
        };
        (self.findings, count)
    }
}

/// Returns the findings about a connection that took this long to open.
pub(super) fn on_connecting(given: &Options, host: &str, took: Duration) -> Vec<Finding> {
    vec![
        connecting(took, given.connect_timeout),
        encryption(given.tls.is_some(), host),
        login(&given.login, host),
    ]
}

fn connecting(took: Duration, most: Duration) -> Finding {
    let found = format!("connected in {}", show(took));
    if took <= most {
        return Finding::ok("connection", found);
    }
    Finding::bad(
        "connection",
        format!("{found}, and `connect_timeout` is {}", show(most)),
        "raise `connect_timeout`, or run Tollgate closer to the server",
    )
}

/// Returns whether `host` is a loopback address: connections to it stay on this host.
fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost",
    }
}

fn encryption(encrypted: bool, host: &str) -> Finding {
    if encrypted {
        return Finding::ok("tls", "connections are encrypted");
    }
    if is_loopback(host) {
        return Finding::ok("tls", "not encrypted; the connection stays on this host");
    }
    Finding::warn(
        "tls",
        "not encrypted: the password and the limited subjects can be read on the network",
        "use rediss:// and the TLS port of the server",
    )
}

fn login(login: &Login, host: &str) -> Finding {
    let user = login.username.as_deref().unwrap_or("default");
    if login.password.is_some() {
        return Finding::ok("login", format!("logged in as `{user}`"));
    }
    if is_loopback(host) {
        return Finding::ok("login", "no password; the connection stays on this host");
    }
    Finding::warn(
        "login",
        "no password: any client that reaches the server can remove every limit",
        "add a user on the server, and set `username` and `password_file`",
    )
}

/// Returns the product and version of the server.
fn product(info: &str) -> String {
    let redis = field(info, "redis_version").unwrap_or("?");
    match field(info, "valkey_version") {
        Some(valkey) => format!("Valkey {valkey}, compatible with Redis {redis}"),
        None => format!("Redis {redis}"),
    }
}

fn role(info: &str) -> Finding {
    if field(info, "role") != Some("master") {
        let host = field(info, "master_host").unwrap_or("?");
        let port = field(info, "master_port").unwrap_or("?");
        return Finding::bad(
            "role",
            format!("a replica of {host}:{port}, which does not accept writes"),
            "use the address of the master, or `mode: sentinel` or `mode: cluster`",
        );
    }
    let replicas = field(info, "connected_slaves").unwrap_or("0");
    let online = info
        .lines()
        .filter(|line| line.starts_with("slave") && line.contains("state=online"))
        .count();
    let found = match replicas {
        "0" => "a master without replicas".to_owned(),
        "1" => format!("a master with 1 replica, {online} online"),
        _ => format!("a master with {replicas} replicas, {online} online"),
    };
    Finding::ok("role", found)
}

async fn cluster(connection: &mut MultiplexedConnection) -> Finding {
    let info: Result<String, _> = ask(connection, &["CLUSTER", "INFO"]).await;
    let info = match info {
        Ok(info) => info,
        Err(error) => {
            let found = format!("cannot read the state of the cluster: {error}");
            return Finding::warn("cluster", found, "give the user +cluster");
        }
    };
    let state = field(&info, "cluster_state").unwrap_or("unknown");
    let nodes = field(&info, "cluster_known_nodes").unwrap_or("?");
    let size = field(&info, "cluster_size").unwrap_or("?");
    let found = format!("the cluster is {state}: {nodes} nodes, {size} of them with slots");
    let level = if state == "ok" { Level::Ok } else { Level::Bad };
    let help = "`redis-cli --cluster check` shows which slots or nodes are missing";
    Finding::new(level, "cluster", found, help)
}

fn number(info: &str, name: &str) -> Option<u64> {
    field(info, name)?.parse().ok()
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn memory(info: &str) -> Finding {
    let used = number(info, "used_memory").unwrap_or_default();
    let Some(most @ 1..) = number(info, "maxmemory") else {
        return Finding::warn(
            "memory",
            format!("{} used, without a limit", mebibytes(used)),
            "set `maxmemory` on the server below the memory of its host, or the host may run out",
        );
    };
    let percent = used.saturating_mul(100) / most;
    let found = format!(
        "{} of {} used, {percent}%",
        mebibytes(used),
        mebibytes(most)
    );
    let level = if percent > 80 { Level::Warn } else { Level::Ok };
    let help = "raise `maxmemory`, or add servers: a full server rejects writes or evicts states";
    Finding {
        max_bytes: Some(most),
        ..Finding::new(level, "memory", found, help)
    }
}

fn eviction(info: &str) -> Finding {
    let policy = field(info, "maxmemory_policy").unwrap_or("unknown");
    let means = match policy {
        "noeviction" => return Finding::ok("eviction", "noeviction: a full server rejects writes"),
        "volatile-ttl" => {
            let found = "volatile-ttl: a full server first evicts the keys that expire soonest";
            return Finding::ok("eviction", found);
        }
        "unknown" => "the server does not report what it evicts when it is full",
        all if all.starts_with("allkeys-") => "a full server evicts any key",
        _ => "a full server may evict states of limits that are in use",
    };
    let help = "set `maxmemory-policy noeviction` or `volatile-ttl` on the server";
    Finding::warn("eviction", format!("{policy}: {means}"), help)
}

/// Reports what a restart loses. `save` is the server's setting, if it can be read.
fn persistence(info: &str, save: Option<&str>) -> Finding {
    let log = field(info, "aof_enabled") == Some("1");
    let found = match (log, save) {
        (true, _) => "an append-only file: counts survive a restart",
        (false, Some("")) => "none: a restart loses all counts",
        (false, Some(_)) => "snapshots only: a restart loses counts since the last one",
        (false, None) => "no append-only file; the server does not report its snapshots",
    };
    Finding::ok("persistence", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_other_hosts_need_encryption() {
        let local = ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"];
        for host in local.into_iter().chain(["localhost"]) {
            assert_eq!(encryption(false, host).level, Level::Ok, "{host}");
        }
        for host in ["10.0.0.1", "cache.internal", "2001:db8::1", "0.0.0.0"] {
            assert_eq!(encryption(false, host).level, Level::Warn, "{host}");
            assert_eq!(encryption(true, host).level, Level::Ok, "{host}");
        }
    }

    #[test]
    fn servers_on_other_hosts_need_a_password() {
        let anonymous = Login::default();
        assert_eq!(login(&anonymous, "127.0.0.1").level, Level::Ok);
        assert_eq!(login(&anonymous, "cache.internal").level, Level::Warn);
        let user = Login {
            username: None,
            password: Some("secret".to_owned()),
        };
        let found = login(&user, "cache.internal");
        assert_eq!(found.found, "logged in as `default`");
    }

    #[test]
    fn connecting_is_compared_with_the_timeout() {
        let most = Duration::from_millis(200);
        assert_eq!(connecting(most, most).level, Level::Ok);
        let late = connecting(most * 2, most);
        assert_eq!(late.level, Level::Bad);
        assert_eq!(
            late.found,
            "connected in 400 ms, and `connect_timeout` is 200 ms"
        );
    }

    #[test]
    fn memory_is_compared_with_its_limit() {
        let info = |used, most| format!("used_memory:{used}\r\nmaxmemory:{most}\r\n");
        assert_eq!(memory(&info(80, 100)).level, Level::Ok);
        assert_eq!(memory(&info(81, 100)).level, Level::Warn);
        assert_eq!(memory(&info(81, 0)).level, Level::Warn);
    }

    #[test]
    fn policies_that_evict_active_limits_are_warnings() {
        let level = |policy: &str| eviction(&format!("maxmemory_policy:{policy}\r\n")).level;
        for good in ["noeviction", "volatile-ttl"] {
            assert_eq!(level(good), Level::Ok, "{good}");
        }
        for keys in ["allkeys", "volatile"] {
            for chosen in ["lru", "lfu", "random"] {
                let policy = format!("{keys}-{chosen}");
                assert_eq!(level(&policy), Level::Warn, "{policy}");
            }
        }
    }

    #[test]
    fn persistence_is_reported() {
        let found = |aof, save| persistence(&format!("aof_enabled:{aof}\r\n"), save).found;
        assert!(found(1, None).contains("survive"));
        assert!(found(0, Some("")).contains("loses all"));
        assert!(found(0, Some("3600 1")).contains("since the last one"));
        assert!(found(0, None).contains("does not report"));
    }
}
