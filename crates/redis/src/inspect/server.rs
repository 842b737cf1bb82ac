//! Checks one server.

use std::net::IpAddr;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::finding::{Finding, Level};
use super::{ask, commands, keys, show, timing};
use crate::options::{Address, Login, Options};
use crate::startup::{self, StartError, field};
use crate::store::RedisStore;

/// A server that answers.
pub(super) struct Server<'i> {
    given: &'i Options,
    store: &'i RedisStore,
    address: &'i Address,
    /// A tag of keys that it has.
    tag: u32,
    in_cluster: bool,
    connection: MultiplexedConnection,
    findings: Vec<Finding>,
}

impl<'i> Server<'i> {
    pub(super) async fn connect(
        given: &'i Options,
        store: &'i RedisStore,
        address: &'i Address,
        tag: u32,
        in_cluster: bool,
    ) -> Result<Server<'i>, StartError> {
        let started = Instant::now();
        let connection = store.shared.connector.to(address).await?;
        let took = started.elapsed();
        Ok(Server {
            given,
            store,
            address,
            tag,
            in_cluster,
            connection,
            findings: vec![
                connecting(took, given.connect_timeout),
                encryption(given.tls.is_some(), &address.host),
                login(&given.login, &address.host),
            ],
        })
    }

    /// Returns the findings, and about how many keys of Tollgate the server has.
    pub(super) async fn inspect(mut self) -> (Vec<Finding>, Option<u64>) {
        let info = match startup::description(&mut self.connection, self.address).await {
            Ok(info) => info,
            Err(error) => return (self.stop("info", error), None),
        };
        match startup::is_new_enough(&info, self.address) {
            Ok(()) => self.findings.push(Finding::ok("version", product(&info))),
            Err(error) => self.failed("version", error),
        }
        match startup::is_in_mode(&info, self.address, self.in_cluster) {
            Ok(()) if self.in_cluster => self.cluster_state().await,
            Ok(()) => self.findings.push(Finding::ok("mode", "a single server")),
            Err(error) => return (self.stop("mode", error), None),
        }
        let role = role(&info);
        let is_master = role.level == Level::Ok;
        self.findings.push(role);
        self.findings.push(memory(&info));
        self.findings.push(eviction(&info));
        let save: Result<Vec<String>, _> =
            ask(&mut self.connection, &["CONFIG", "GET", "save"]).await;
        let save = save.ok().and_then(|pair| pair.into_iter().nth(1));
        self.findings.push(persistence(&info, save.as_deref()));
        match startup::load_scripts(&mut self.connection, self.address).await {
            Ok(count) => {
                let found = format!("all {count} scripts are loaded");
                self.findings.push(Finding::ok("scripts", found));
            }
            Err(error) => self.failed("scripts", error),
        }
        if is_master {
            let key = self
                .store
                .shared
                .naming
                .undone(self.tag, fastrand::u128(..));
            let found = commands::check(&mut self.connection, &key).await;
            self.findings.push(found);
        }
        self.findings
            .push(timing::clock(&mut self.connection, &self.given.clock).await);
        let timeout = self.given.timeout;
        self.findings
            .push(timing::ping(&mut self.connection, timeout).await);
        if is_master {
            self.findings
                .push(timing::peek(self.store, self.tag, timeout).await);
        }
        let shared = &self.store.shared;
        let sampled =
            keys::sample(&mut self.connection, &shared.naming, &self.given.key_prefix).await;
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

    fn failed(&mut self, check: &'static str, error: StartError) {
        let finding = Finding::from_error(Level::Bad, check, error);
        self.findings.push(finding);
    }

    fn stop(mut self, check: &'static str, error: StartError) -> Vec<Finding> {
        self.failed(check, error);
        self.findings
    }

    async fn cluster_state(&mut self) {
        let state: Result<String, _> = ask(&mut self.connection, &["CLUSTER", "INFO"]).await;
        let finding = match state {
            Ok(info) => cluster(&info),
            Err(error) => Finding::warn(
                "cluster",
                format!("cannot read the state of the cluster: {error}"),
                "give the user +cluster",
            ),
        };
        self.findings.push(finding);
    }
}

fn connecting(took: Duration, most: Duration) -> Finding {
    let found = format!("connected in {}", show(took));
    if took <= most {
        return Finding::ok("connection", found);
    }
    Finding::bad(
        "connection",
        format!("{found}, and `connect_timeout` is {}", show(most)),
        "raise `connect_timeout`, or move closer to the server",
    )
}

/// Whether connections to `host` stay on this host.
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
            format!("a replica of {host}:{port}, which cannot be written"),
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

fn cluster(info: &str) -> Finding {
    let state = field(info, "cluster_state").unwrap_or("unknown");
    let nodes = field(info, "cluster_known_nodes").unwrap_or("?");
    let size = field(info, "cluster_size").unwrap_or("?");
    let found = format!("the cluster is {state}: {nodes} nodes, {size} of them with slots");
    if state == "ok" {
        return Finding::ok("cluster", found);
    }
    Finding::bad(
        "cluster",
        found,
        "`redis-cli --cluster check` shows which slots or nodes are missing",
    )
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
    if percent <= 80 {
        return Finding::ok("memory", found);
    }
    Finding::warn(
        "memory",
        found,
        "raise `maxmemory`, or add servers: a full server rejects writes or evicts states",
    )
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
    Finding::warn(
        "eviction",
        format!("{policy}: {means}"),
        "set `maxmemory-policy noeviction` or `volatile-ttl` on the server",
    )
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
        for host in [
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "::ffff:127.0.0.1",
            "localhost",
        ] {
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
        let level = |policy| eviction(&format!("maxmemory_policy:{policy}\r\n")).level;
        for good in ["noeviction", "volatile-ttl"] {
            assert_eq!(level(good), Level::Ok, "{good}");
        }
        for policy in [
            "allkeys-lru",
            "allkeys-lfu",
            "allkeys-random",
            "volatile-lru",
            "volatile-lfu",
            "volatile-random",
        ] {
            assert_eq!(level(policy), Level::Warn, "{policy}");
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
