//! Translates an error of a server: what becomes of the request, and of the connection.

use std::sync::Arc;

use redis::{RedisError, ServerErrorKind};
use tollgate_core::Time;
use tollgate_store::StoreError;

use crate::options::Address;

/// The meaning of a failed call.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server does not have the script. Nothing was changed.
    UnknownScript,
    /// Another server has the cluster slot. If `asking` is true, this holds for this call only. Nothing was
    /// changed.
    Moved { address: Address, asking: bool },
    /// The cluster slot is being moved, and the keys of the call are on both servers. Nothing was changed.
    Split,
    /// The server is out of memory, and the call would have needed more. Nothing was changed.
    Full,
    /// The server's time, which is outside the periods of a quota in the plan. Nothing was changed.
    Elsewhen(Time),
    /// The request fails. Says whether to reconnect, and whether to read the cluster's slots again.
    Failed {
        error: StoreError,
        reconnect: bool,
        refresh: bool,
    },
}

impl Failure {
    pub(crate) fn from_redis(error: &RedisError, from: &Address) -> Failure {
        let text: Arc<str> = describe(error).into();
        let failed = |error, reconnect, refresh| Failure::Failed {
            error,
            reconnect,
            refresh,
        };
        if error.is_timeout() {
            // The connection may be dead: the next call gets a new one.
            return failed(StoreError::Timeout, true, true);
        }
        match error.kind() {
            redis::ErrorKind::Server(kind) => match kind {
                ServerErrorKind::NoScript => Failure::UnknownScript,
                ServerErrorKind::Moved | ServerErrorKind::Ask => match redirect(error, from) {
                    Some(address) => Failure::Moved {
                        address,
                        asking: kind == ServerErrorKind::Ask,
                    },
                    None => failed(StoreError::Unavailable(text), true, true),
                },
                ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown => {
                    failed(StoreError::Unavailable(text), true, true)
                }
                ServerErrorKind::BusyLoading | ServerErrorKind::ClusterDown => {
                    failed(StoreError::Unavailable(text), false, true)
                }
                ServerErrorKind::TryAgain => Failure::Split,
                ServerErrorKind::NoPerm => failed(StoreError::Unavailable(text), false, false),
                _ => from_text(error.code(), text),
            },
            redis::ErrorKind::Extension => from_text(error.code(), text),
            _ => failed(StoreError::Disconnected(text), true, true),
        }
    }
}

/// Translates an error that the client library has no kind for. Before Redis 7, the code of an error inside a
/// script is part of the text.
fn from_text(code: Option<&str>, text: Arc<str>) -> Failure {
    let codes = ["NOAUTH", "BUSY", "UNKILLABLE"];
    if text.contains("OOM command") {
        return Failure::Full;
    }
    if let Some(time) = time_of(&text) {
        return Failure::Elsewhen(time);
    }
    let words = [
        "NOREPLICAS",
        "MISCONF",
        "user executing the script",
        "ACL failure",
    ];
    // The server was demoted from master to replica.
    let demoted = text.contains("READONLY");
    let is_unable = demoted
        || code.is_some_and(|code| codes.contains(&code))
        || words.iter().any(|word| text.contains(word));
    Failure::Failed {
        error: if is_unable {
            StoreError::Unavailable(text)
        } else {
            StoreError::Script(text)
        },
        reconnect: demoted,
        refresh: demoted,
    }
}

/// Returns the time of the server, if `quota.lua` failed because of it.
fn time_of(text: &str) -> Option<Time> {
    let (_, rest) = text.split_once("TOLLGATE_TIME ")?;
    let digits = rest.split(|it: char| !it.is_ascii_digit()).next()?;
    digits.parse().ok().map(Time::from_micros)
}

fn redirect(error: &RedisError, from: &Address) -> Option<Address> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // An empty host means the server that answered.
    let host = if host.is_empty() { &from.host } else { host };
    Some(Address {
        host: host.to_owned(),
        port: port.parse().ok()?,
    })
}

fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}
