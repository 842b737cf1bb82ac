//! The answers of `INFO`, `HELLO` and `CONFIG GET`.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::bounds::MAX_BULK;
use super::door::Door;
use super::reply::{Protocol, Reply};
use crate::net::MAX_CONNECTIONS;

/// The version of Redis that this door imitates. Client libraries choose their commands by this
/// version.
const REDIS_VERSION: &str = "7.2.0";

/// Writes the page of `INFO`, with the named sections, or with all.
pub(super) fn page(door: &Door, wanted: &[&[u8]]) -> String {
    let is = |name: &[u8], title: &str| name.eq_ignore_ascii_case(title.as_bytes());
    let mut page = String::with_capacity(1024);
    for (title, lines) in sections(door) {
        let names = [title, "all", "default", "everything"];
        let is_wanted = |name: &&[u8]| names.iter().any(|title| is(name, title));
        if wanted.is_empty() || wanted.iter().any(is_wanted) {
            let gap = if page.is_empty() { "" } else { "\r\n" };
            // Writing to a string cannot fail.
            let _ = write!(page, "{gap}# {title}\r\n{lines}");
        }
    }
    page
}

fn sections(door: &Door) -> [(&'static str, String); 6] {
    let engine = &*door.backend.engine;
    let [open, connections, commands] = door.counts.read();
    let throttles = engine.metrics().throttles();
    let server = format!(
        "redis_version:{REDIS_VERSION}\r\ntollgate_version:{}\r\nredis_mode:standalone\r\n\
         uptime_in_seconds:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        door.opened_at.elapsed().as_secs(),
    );
    let clients = format!("connected_clients:{open}\r\nmaxclients:{MAX_CONNECTIONS}\r\n");
    let stats = format!(
        "total_connections_received:{connections}\r\ntotal_commands_processed:{commands}\r\n"
    );
    let mut decisions = format!(
        "draining:{}\r\nstore:{}\r\nrules:{}\r\nconfig_version:{}\r\nthrottle_allowed:{}\r\n\
         throttle_limited:{}\r\nthrottle_store_failed:{}\r\n",
        u8::from(door.draining.load(Ordering::Relaxed)),
        engine.store().name(),
        engine.rules().rules().len(),
        engine.rules().version(),
        throttles.allowed,
        throttles.limited,
        throttles.failed,
    );
    if let Some(usage) = engine.memory_usage() {
        let _ = write!(decisions, "keys:{}\r\n", usage.keys);
    }
    [
        ("Server", server),
        ("Clients", clients),
        ("Persistence", "loading:0\r\n".to_owned()),
        ("Stats", stats),
        ("Replication", "role:master\r\n".to_owned()),
        ("Tollgate", decisions),
    ]
}

/// Answers `HELLO`.
pub(super) fn write_hello(reply: &mut Reply<'_>, id: u64, protocol: Protocol) {
    let version: u64 = match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    reply.map(7);
    reply.entry("server", "redis");
    reply.entry("version", REDIS_VERSION);
    reply.entry("proto", version);
    reply.entry("id", id);
    reply.entry("mode", "standalone");
    reply.entry("role", "master");
    reply.text("modules");
    reply.list(0);
}

/// Answers `CONFIG GET`, with the named settings, or with all for `*`.
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
        reply.entry(name, value.as_str());
    }
}
