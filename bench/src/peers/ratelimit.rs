//! envoyproxy/ratelimit, from the Go module proxy: Envoy's rate limit service with state in Redis.

use std::error::Error;
use std::fmt::Write as _;
use std::process::Command;

use super::install::Package;
use super::wire::DOMAIN;
use super::{LIMIT, Program, Work};
use crate::server::{Scratch, Server, free_addresses};

const PACKAGE: Package = Package {
    module: "github.com/envoyproxy/ratelimit",
    version: "v1.4.1-0.20260122083618-3fb702589d36",
    directory: "src/service_cmd",
    program: "ratelimit",
};
/// The commit in the version.
const COMMIT: &str = "3fb7025";

pub(super) fn install() -> Result<Program, Box<dyn Error>> {
    Ok(Program {
        path: PACKAGE.go_install()?,
        version: COMMIT.to_owned(),
    })
}

/// Starts a server with its defaults, but without statsd, for the Redis at the URL `redis`.
pub(super) fn start(
    program: &Program,
    scratch: &Scratch,
    redis: &str,
) -> Result<Server, Box<dyn Error>> {
    let [grpc, http, debug] = free_addresses()?;
    let mut config = format!("domain: {DOMAIN}\ndescriptors:\n");
    for attribute in Work::Four.attributes() {
        let _ = writeln!(
            config,
            "  - key: {attribute}\n    rate_limit: {{ unit: hour, requests_per_unit: {LIMIT} }}"
        );
    }
    let root = scratch.directory(&format!("ratelimit-{}/config", grpc.port()))?;
    std::fs::write(root.join("bench.yaml"), config)?;
    let host = grpc.ip().to_string();
    let mut command = Command::new(&program.path);
    command
        .env("HOST", &host)
        .env("PORT", http.port().to_string())
        .env("GRPC_HOST", &host)
        .env("GRPC_PORT", grpc.port().to_string())
        .env("DEBUG_HOST", &host)
        .env("DEBUG_PORT", debug.port().to_string())
        .env("LOG_LEVEL", "error")
        .env("USE_STATSD", "false")
        .env("RUNTIME_ROOT", root.parent().unwrap_or(&root))
        .env("RUNTIME_SUBDIRECTORY", "")
        .env("RUNTIME_WATCH_ROOT", "false")
        .env("REDIS_SOCKET_TYPE", "tcp")
        .env("REDIS_TYPE", "SINGLE")
        .env(
            "REDIS_URL",
            redis.trim_start_matches("redis://").trim_end_matches('/'),
        );
    Server::start_on("envoyproxy/ratelimit", grpc, command)
}
