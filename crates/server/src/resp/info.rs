//! What the server reports about itself: `INFO`, `HELLO`, `CONFIG GET`.

use std::fmt::Write;

use super::bounds::MAX_BULK;
use super::door::Door;
use super::reply::{Protocol, Reply};
use crate::net::MAX_CONNECTIONS;

/// The version of Redis whose protocol this is. Client libraries use it to choose their commands.
const REDIS_VERSION: &str = "7.2.0";

/// The page of `INFO`: the named sections, or all.
pub(super) fn page(door: &Door, wanted: &[&[u8]]) -> String {
    let mut page = String::with_capacity(1024);
    for (title, lines) in sections(door) {
        let is_wanted = |name: &&[u8]| {
            let names = [title, "all", "default", "everything"];
            names
                .iter()
                .any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
        };
        if !wanted.is_empty() && !wanted.iter().any(is_wanted) {
            continue;
        }
        let gap = if page.is_empty() { "" } else { "\r\n" };
        // Writing to a string cannot fail.
        let _ = write!(page, "{gap}# {title}\r\n");
        for (name, value) in lines {
            let _ = write!(page, "{name}:{value}\r\n");
        }
    }
    page
}

type Lines = Vec<(&'static str, String)>;

fn sections(door: &Door) -> [(&'static str, Lines); 6] {
    let engine = &*door.backend.engine;
    let [open, connections, commands] = door.counts.read();
    let throttles = engine.metrics().throttles();
    let (store, keys) = (
        engine.store().name(),
        engine.memory_usage().map(|usage| usage.keys),
    );
    let mut decisions = vec![
        ("store", store.to_owned()),
        ("rules", engine.rules().rules().len().to_string()),
        ("config_version", engine.rules().version().to_owned()),
        ("throttle_allowed", throttles.allowed.to_string()),
        ("throttle_limited", throttles.limited.to_string()),
        ("throttle_store_failed", throttles.failed.to_string()),
    ];
    decisions.extend(keys.map(|keys| ("keys", keys.to_string())));
    [
        (
            "Server",
            vec![
                ("redis_version", REDIS_VERSION.to_owned()),
                ("tollgate_version", env!("CARGO_PKG_VERSION").to_owned()),
                ("redis_mode", "standalone".to_owned()),
                (
                    "uptime_in_seconds",
                    door.opened_at.elapsed().as_secs().to_string(),
                ),
            ],
        ),
        (
            "Clients",
            vec![
                ("connected_clients", open.to_string()),
                ("maxclients", MAX_CONNECTIONS.to_string()),
            ],
        ),
        ("Persistence", vec![("loading", "0".to_owned())]),
        (
            "Stats",
            vec![
                ("total_connections_received", connections.to_string()),
                ("total_commands_processed", commands.to_string()),
            ],
        ),
        ("Replication", vec![("role", "master".to_owned())]),
        ("Tollgate", decisions),
    ]
}

/// The answer to `HELLO`.
pub(super) fn write_hello(reply: &mut Reply<'_>, id: u64, protocol: Protocol) {
    reply.map(7);
    reply.text("server");
    reply.text("redis");
    reply.text("version");
    reply.text(REDIS_VERSION);
    reply.text("proto");
    reply.integer(match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    });
    reply.text("id");
    reply.count(id);
    reply.text("mode");
    reply.text("standalone");
    reply.text("role");
    reply.text("master");
    reply.text("modules");
    reply.list(0);
}

/// The answer to `CONFIG GET`: the named settings, or all for `*`.
pub(super) fn write_settings(reply: &mut Reply<'_>, door: &Door, wanted: &[&[u8]]) {
    let settings = [
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", MAX_CONNECTIONS.to_string()),
        ("proto-max-bulk-len", MAX_BULK.to_string()),
        ("save", String::new()),
        ("timeout", door.idle_timeout.as_secs().to_string()),
    ];
    let is_wanted = |(name, _): &&(&str, String)| {
        let is_named = |it: &&[u8]| *it == b"*" || it.eq_ignore_ascii_case(name.as_bytes());
        wanted.iter().any(is_named)
    };
    let found: Vec<_> = settings.iter().filter(is_wanted).collect();
    reply.map(found.len());
    for (name, value) in found {
        reply.text(name);
        reply.text(value);
    }
}
