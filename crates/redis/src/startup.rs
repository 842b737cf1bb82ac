//! Checks at the start that the servers are there and are what the config says.

use std::sync::Arc;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tollgate_core::Tag;
use tollgate_store::{StoreError, Usage};

use crate::connect::{Cause, ConnectError, connect_error};
use crate::options::{Address, Servers};
use crate::script::Script;
use crate::store::Shared;

/// The oldest version that has every command of the script.
const OLDEST: (u32, u32) = (6, 2);

/// The rights that a user needs, in the words of an ACL.
pub(crate) const RIGHTS: &str = "+@read +@write +@scripting +@connection +info +time, in a cluster \
                                 +cluster +asking, and the keys of `key_prefix`";

/// Why a store cannot be used: the setting to check, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {what}\nhelp: {help}")]
pub struct StartError {
    /// The setting in the config.
    pub setting: &'static str,
    /// The problem.
    pub what: String,
    /// The remedy.
    pub help: String,
    /// Whether a later attempt may succeed without a change.
    pub passing: bool,
}

impl StartError {
    fn new(setting: &'static str, what: impl Into<String>, help: &str) -> StartError {
        StartError {
            setting,
            what: what.into(),
            help: help.to_owned(),
            passing: false,
        }
    }
}

impl From<ConnectError> for StartError {
    fn from(error: ConnectError) -> StartError {
        let rights = format!("the user needs the rights {RIGHTS}");
        let (setting, help) = match error.cause {
            Cause::Unreachable => (
                "store.redis.urls",
                "check that the server runs, and check host, port and network; rediss:// is for a \
                 port with TLS, redis:// for one without",
            ),
            Cause::Login => (
                "store.redis.password",
                "check the user and the password, in the URL or as `username` and `password`",
            ),
            Cause::Rights => ("store.redis.username", &*rights),
            Cause::SentinelLogin => (
                "store.redis.sentinel_password",
                "check `sentinel_username` and `sentinel_password`: the login in the URL is for the \
                 server that the Sentinels name",
            ),
            Cause::Certificate => (
                "store.redis.tls_ca",
                "set `tls_ca` to the PEM file of the authority that signed the server's certificate, and \
                 connect to a host name that is in the certificate",
            ),
            Cause::Database => (
                "store.redis.urls",
                "choose a database that the server has; a cluster has only database 0",
            ),
            Cause::Protocol => (
                "store.redis.urls",
                "check host and port; rediss:// is for a port with TLS, redis:// for one without",
            ),
            Cause::NoSentinel => (
                "store.redis.mode",
                "name the Sentinels and their port, or use `mode: standalone`",
            ),
            Cause::Master => (
                "store.redis.sentinel_master",
                "use the name in the Sentinels' `sentinel monitor` line",
            ),
            Cause::NotReady => ("store.redis.urls", "wait until the server is ready"),
        };
        StartError {
            passing: matches!(error.cause, Cause::Unreachable | Cause::NotReady),
            ..StartError::new(setting, error.to_string(), help)
        }
    }
}

/// Checks the servers, and loads the scripts.
pub(crate) async fn check_servers(shared: &Arc<Shared>) -> Result<(), StartError> {
    match &shared.options.servers {
        Servers::Standalone(address) => server(address, shared).await,
        Servers::Sentinel { .. } => server(&shared.options.master().await?, shared).await,
        Servers::Cluster(seeds) => cluster(shared, seeds).await,
    }
}

async fn cluster(shared: &Arc<Shared>, seeds: &[Address]) -> Result<(), StartError> {
    let mut failed: Option<StartError> = None;
    for seed in seeds {
        match server(seed, shared).await {
            Ok(()) => {
                let ranges = shared.ask_cluster().await?;
                shared.adopt(&ranges);
                return Ok(());
            }
            // A lasting error is more useful than a passing one.
            Err(error) if !error.passing => failed = Some(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let (what, help) = ("no node is configured", "name one node of the cluster");
    Err(failed.unwrap_or_else(|| StartError::new("store.redis.urls", what, help)))
}

/// Checks one server, and loads the scripts there.
async fn server(address: &Address, shared: &Shared) -> Result<(), StartError> {
    let mut connection = shared.options.connect(address).await?;
    let info = description(&mut connection, address).await?;
    is_new_enough(&info, address)?;
    is_in_mode(&info, address, shared.is_cluster())?;
    load_scripts(&mut connection, address).await?;
    check_rights(&mut connection, address, shared).await
}

/// Returns the `INFO` of a server.
pub(crate) async fn description(
    connection: &mut MultiplexedConnection,
    address: &Address,
) -> Result<String, StartError> {
    // `all` and not `everything`, which a Sentinel does not know.
    let info = info(connection, "all").await;
    Ok(info.map_err(|error| connect_error(address, &error))?)
}

pub(crate) fn is_new_enough(info: &str, address: &Address) -> Result<(), StartError> {
    let (what, help) = match version(info) {
        None => (
            format!("{address} does not report a version"),
            "this is neither Redis nor Valkey",
        ),
        Some((major, minor)) if (major, minor) < OLDEST => (
            format!("{address} is Redis {major}.{minor}, which is too old"),
            "use Redis 6.2 or newer, or Valkey",
        ),
        Some(_) => return Ok(()),
    };
    Err(StartError::new("store.redis.urls", what, help))
}

pub(crate) fn is_in_mode(
    info: &str,
    address: &Address,
    in_cluster: bool,
) -> Result<(), StartError> {
    // Valkey has another name for this field.
    let mode = field(info, "redis_mode").or_else(|| field(info, "server_mode"));
    let clustered = field(info, "cluster_enabled") == Some("1");
    let (what, help) = if mode == Some("sentinel") {
        (
            "is a Sentinel",
            "use `mode: sentinel` and `sentinel_master`, or redis-sentinel:// on the command line",
        )
    } else if in_cluster && !clustered {
        (
            "is not a node of a cluster",
            "use `mode: standalone` for a single server",
        )
    } else if !in_cluster && clustered {
        (
            "is a node of a cluster",
            "use `mode: cluster`, or redis-cluster:// on the command line",
        )
    } else {
        return Ok(());
    };
    let what = format!("{address} {what}");
    Err(StartError::new("store.redis.mode", what, help))
}

/// Loads the scripts that most calls need. Returns how many there are.
pub(crate) async fn load_scripts(
    connection: &mut MultiplexedConnection,
    address: &Address,
) -> Result<usize, StartError> {
    let mut count = 0;
    for script in Script::common() {
        let mut load = redis::cmd("SCRIPT");
        let load = load.arg("LOAD").arg(&script.source);
        let loaded: Result<(), _> = load.query_async(connection).await;
        loaded.map_err(|error| connect_error(address, &error))?;
        count += 1;
    }
    Ok(count)
}

/// A script that reads, writes and gets the time, and changes nothing.
const PROBE: &str = "redis.call('TIME') redis.call('MGET', KEYS[1]) redis.call('DEL', KEYS[1])";

/// Checks that a script may read and write on this server.
async fn check_rights(
    connection: &mut MultiplexedConnection,
    address: &Address,
    shared: &Shared,
) -> Result<(), StartError> {
    let mut probe = redis::cmd("EVAL");
    let probe = probe
        .arg(PROBE)
        .arg(1)
        .arg(&*shared.naming.undone(Tag::default(), 0));
    let Err(error) = probe.query_async::<Value>(connection).await else {
        return Ok(());
    };
    // Before Redis 7, the code of an error inside a script is part of the text.
    let code = error.code();
    if code == Some("READONLY") || error.to_string().contains("READONLY") {
        let what = format!("{address} is a replica, which does not accept writes");
        let help = "use the address of the master, or `mode: sentinel`";
        return Err(StartError {
            passing: true,
            ..StartError::new("store.redis.urls", what, help)
        });
    }
    // Another node of the cluster has the cluster slot of the probe's key, or is about to get it.
    if matches!(code, Some("MOVED" | "ASK" | "CLUSTERDOWN")) {
        return Ok(());
    }
    Err(connect_error(address, &error).into())
}

/// Returns a section of the `INFO` of a server.
pub(crate) async fn info(
    connection: &mut MultiplexedConnection,
    section: &str,
) -> Result<String, redis::RedisError> {
    redis::cmd("INFO")
        .arg(section)
        .query_async(connection)
        .await
}

/// Returns a field of an `INFO`.
pub(crate) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(field, _)| *field == name)
        .map(|(_, value)| value.trim())
}

/// Returns the version of a server. Valkey reports the version of Redis that it is compatible with.
pub(crate) fn version(info: &str) -> Option<(u32, u32)> {
    let mut parts = field(info, "redis_version")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Returns how much the servers store, including keys of other programs.
pub(crate) async fn usage(shared: &Arc<Shared>) -> Result<Usage, StoreError> {
    let counting = async {
        let mut usage = Usage {
            shared: shared.shared_states.decisions(),
            ..Usage::default()
        };
        for node in &shared.map.load_full().nodes {
            let address = shared.address(&node.target).await?;
            let mut connection = shared.options.connect(&address).await?;
            let info = info(&mut connection, "memory").await?;
            let bytes = field(&info, "used_memory").and_then(|it| it.parse().ok());
            usage.bytes += bytes.unwrap_or(0);
            let size = redis::cmd("DBSIZE");
            usage.keys += size.query_async::<u64>(&mut connection).await?;
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(usage)
    };
    let unavailable = |error: Box<_>| StoreError::Unavailable(format!("{error}").into());
    counting.await.map_err(unavailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\nserver_name:valkey\r\n";
        assert_eq!(version(info), Some((7, 0)));
        assert_eq!(version("nonsense"), None);
        assert!((6, 0) < OLDEST && (7, 0) >= OLDEST && (10, 0) >= OLDEST);
    }
}
