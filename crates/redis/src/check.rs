//! Are the servers there, and are they what the config says? Asked once, at the start.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tollgate_store::{StoreError, Usage};

use crate::connect::{Cause, NoConnection};
use crate::node::Target;
use crate::options::{Address, Servers};
use crate::script::Script;
use crate::store::Shared;

/// The oldest version that has everything the script uses.
const OLDEST: (u32, u32) = (6, 2);

/// What a user has to be allowed, as an ACL says it.
pub(crate) const RIGHTS: &str = "+@read +@write +@scripting +@connection +info +time, in a cluster \
                                 +cluster +asking, and the keys of `key_prefix`";

/// Why a store cannot be used: which setting is to blame, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {what}\nhelp: {help}")]
pub struct StartError {
    /// The setting in the config.
    pub setting: &'static str,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub help: String,
    /// Whether it may pass by itself.
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

    fn passing(self) -> StartError {
        StartError {
            passing: true,
            ..self
        }
    }
}

impl From<NoConnection> for StartError {
    fn from(error: NoConnection) -> StartError {
        let what = error.to_string();
        match error {
            NoConnection::Unreachable { .. } => StartError::new(
                "store.redis.urls",
                what,
                "check that the server runs, the host and the port, and the network between",
            )
            .passing(),
            NoConnection::Refused { cause, .. } => match cause {
                Cause::Login => StartError::new(
                    "store.redis.password",
                    what,
                    "check the user and the password, in the URL or as `username` and `password`",
                ),
                Cause::SentinelLogin => StartError::new(
                    "store.redis.sentinel_password",
                    what,
                    "check `sentinel_username` and `sentinel_password`: the login in the URL is for \
                     the server that the Sentinels name",
                ),
                Cause::Certificate => StartError::new(
                    "store.redis.tls_ca",
                    what,
                    "name the file of the authority that has signed the server's certificate, \
                     and connect by a name that the certificate holds",
                ),
                Cause::Database => StartError::new(
                    "store.redis.urls",
                    what,
                    "choose a database that the server has; a cluster has only 0",
                ),
                Cause::Protocol => StartError::new(
                    "store.redis.urls",
                    what,
                    "check host and port; rediss:// is for a port with TLS, redis:// for one without",
                ),
                Cause::Master => StartError::new(
                    "store.redis.sentinel_master",
                    what,
                    "use the name in the Sentinels' `sentinel monitor` line",
                ),
                Cause::NotReady => {
                    StartError::new("store.redis.urls", what, "wait until the server is ready")
                        .passing()
                }
            },
        }
    }
}

/// Looks at the servers, and loads the scripts.
pub(crate) async fn servers(shared: &Arc<Shared>) -> Result<(), StartError> {
    match &shared.options.servers {
        Servers::Standalone(address) => {
            let connection = shared.connector.to(address).await?;
            server(connection, address, false).await
        }
        Servers::Sentinel { .. } => {
            let address = shared.connector.master().await?;
            let connection = shared.connector.to(&address).await?;
            server(connection, &address, false).await
        }
        Servers::Cluster(seeds) => cluster(shared, seeds).await,
    }
}

async fn cluster(shared: &Arc<Shared>, seeds: &[Address]) -> Result<(), StartError> {
    let mut failed: Option<StartError> = None;
    for seed in seeds {
        let checked = match shared.connector.to(seed).await {
            Ok(connection) => server(connection, seed, true).await,
            Err(error) => Err(error.into()),
        };
        match checked {
            Ok(()) => {
                let ranges = shared.ask_cluster().await?;
                shared.adopt(&ranges);
                return Ok(());
            }
            // What will not pass says more than what will.
            Err(error) if !error.passing => failed = Some(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or_else(|| {
        StartError::new(
            "store.redis.urls",
            "no node is given",
            "name one node of the cluster",
        )
    }))
}

/// Looks at one server, and loads the scripts there.
async fn server(
    mut connection: MultiplexedConnection,
    address: &Address,
    in_cluster: bool,
) -> Result<(), StartError> {
    let info = description(&mut connection, address).await?;
    is_new_enough(&info, address)?;
    is_in_mode(&info, address, in_cluster)?;
    load_scripts(&mut connection, address).await?;
    Ok(())
}

/// Everything that a server says of itself.
pub(crate) async fn description(
    connection: &mut MultiplexedConnection,
    address: &Address,
) -> Result<String, StartError> {
    info(connection, "everything").await.map_err(|error| {
        let what = format!("{address} does not answer INFO: {error}");
        StartError::new(
            "store.redis.urls",
            what,
            &format!("if this is a Redis, the user needs more rights: {RIGHTS}"),
        )
    })
}

pub(crate) fn is_new_enough(info: &str, address: &Address) -> Result<(), StartError> {
    let Some(version) = version(info) else {
        return Err(StartError::new(
            "store.redis.urls",
            format!("{address} does not say its version"),
            "this is no Redis and no Valkey",
        ));
    };
    if version < OLDEST {
        let (major, minor) = version;
        return Err(StartError::new(
            "store.redis.urls",
            format!("{address} is Redis {major}.{minor}, which is too old"),
            "use Redis 6.2 or newer, or Valkey",
        ));
    }
    Ok(())
}

pub(crate) fn is_in_mode(
    info: &str,
    address: &Address,
    in_cluster: bool,
) -> Result<(), StartError> {
    // Valkey calls it otherwise.
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

/// Loads the scripts that most calls need, and says how many these are.
pub(crate) async fn load_scripts(
    connection: &mut MultiplexedConnection,
    address: &Address,
) -> Result<usize, StartError> {
    let mut count = 0;
    for script in Script::common() {
        let mut load = Cmd::new();
        load.arg("SCRIPT").arg("LOAD").arg(&script.source);
        let loaded = connection.send_packed_command(&load).await;
        if let Err(error) = loaded.and_then(Value::extract_error) {
            let what = format!("{address} does not take scripts: {error}");
            return Err(StartError::new(
                "store.redis.username",
                what,
                &format!("the user needs the rights {RIGHTS}"),
            ));
        }
        count += 1;
    }
    Ok(count)
}

/// What a server says of itself, under `section`.
pub(crate) async fn info(
    connection: &mut MultiplexedConnection,
    section: &str,
) -> Result<String, redis::RedisError> {
    let mut question = Cmd::new();
    question.arg("INFO").arg(section);
    let answer = connection
        .send_packed_command(&question)
        .await?
        .extract_error()?;
    Ok(redis::from_redis_value(answer)?)
}

/// A field of what a server says of itself.
pub(crate) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(field, _)| *field == name)
        .map(|(_, value)| value.trim())
}

/// The version of a server. Valkey says for compatibility which Redis it resembles.
pub(crate) fn version(info: &str) -> Option<(u32, u32)> {
    let mut parts = field(info, "redis_version")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// How much the servers keep, ours and others'.
pub(crate) async fn usage(shared: &Arc<Shared>) -> Result<Usage, StoreError> {
    let unavailable = |error: String| StoreError::Unavailable(error.into());
    let mut usage = Usage::default();
    for node in &shared.map.load_full().nodes {
        let address = match &node.target {
            Target::At(address) => address.clone(),
            Target::Master => {
                let master = shared.connector.master().await;
                master.map_err(|error| unavailable(error.to_string()))?
            }
        };
        let connection = shared.connector.to(&address).await;
        let mut connection = connection.map_err(|error| unavailable(error.to_string()))?;
        let info = info(&mut connection, "memory").await;
        let info = info.map_err(|error| unavailable(error.to_string()))?;
        let size = connection
            .send_packed_command(Cmd::new().arg("DBSIZE"))
            .await;
        let size = size.and_then(|it| Ok(redis::from_redis_value::<u64>(it.extract_error()?)?));
        usage.keys += size.map_err(|error| unavailable(error.to_string()))?;
        let bytes = field(&info, "used_memory").and_then(|it| it.parse().ok());
        usage.bytes += bytes.unwrap_or(0);
    }
    Ok(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_a_server_says() {
        let info = "# Server\r\nredis_version:7.0.15\r\nserver_name:valkey\r\n";
        assert_eq!(version(info), Some((7, 0)));
        assert_eq!(version("nonsense"), None);
        assert!((6, 0) < OLDEST && (7, 0) >= OLDEST && (10, 0) >= OLDEST);
    }
}
