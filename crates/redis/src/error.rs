//! What a server's error means for the request and for the connection.

use std::sync::Arc;

use redis::{RedisError, ServerErrorKind};
use tollgate_store::StoreError;

use crate::options::Address;

/// What a failed call means.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server does not know the script. Nothing has happened.
    UnknownScript,
    /// The slot is kept elsewhere. Nothing has happened; `asking` if that is so for this call only.
    Elsewhere { address: Address, asking: bool },
    /// The slot is on its way, and the keys of the call are not in one place. Nothing has happened.
    Apart,
    /// The request fails. With what is to be done about the connection and the map of the cluster.
    Failed {
        error: StoreError,
        reconnect: bool,
        refresh: bool,
    },
}

impl Failure {
    pub(crate) fn of(error: &RedisError, from: &Address) -> Failure {
        let text: Arc<str> = describe(error).into();
        let failed = |error, reconnect, refresh| Failure::Failed {
            error,
            reconnect,
            refresh,
        };
        if error.is_timeout() {
            // The connection may be dead without a word: the next call gets a new one.
            return failed(StoreError::Timeout, true, true);
        }
        match error.kind() {
            redis::ErrorKind::Server(kind) => match kind {
                ServerErrorKind::NoScript => Failure::UnknownScript,
                ServerErrorKind::Moved | ServerErrorKind::Ask => match redirect(error, from) {
                    Some(address) => Failure::Elsewhere {
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
                ServerErrorKind::TryAgain => Failure::Apart,
                ServerErrorKind::NoPerm => failed(StoreError::Unavailable(text), false, false),
                _ => of_text(error.code(), text),
            },
            redis::ErrorKind::Extension => of_text(error.code(), text),
            _ => failed(StoreError::Disconnected(text), true, true),
        }
    }
}

/// Errors that the library has no name for. Before Redis 7, the code of an error that a script meets
/// is part of the text.
fn of_text(code: Option<&str>, text: Arc<str>) -> Failure {
    let codes = ["NOAUTH", "BUSY", "UNKILLABLE"];
    let words = [
        "OOM command",
        "NOREPLICAS",
        "MISCONF",
        "user executing the script",
        "ACL failure",
    ];
    // The master has become a replica.
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

fn redirect(error: &RedisError, from: &Address) -> Option<Address> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // An empty host is the one that was asked.
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
