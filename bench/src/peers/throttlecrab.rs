//! throttlecrab-server, from crates.io: RESP, HTTP, and a gRPC service of its own. State in memory.

use std::error::Error;
use std::process::Command;

use super::install::Package;
use super::wire::Message;
use super::{LIMIT, Program};
use crate::load::calls::Calls;
use crate::server::Server;

const PACKAGE: Package = Package {
    module: "throttlecrab-server",
    version: "0.4.40",
    directory: "",
    program: "throttlecrab-server",
};

#[derive(Clone, Copy)]
pub(crate) enum Door {
    Resp,
    Http,
    Grpc,
}

pub(super) fn install() -> Result<Program, Box<dyn Error>> {
    let path = PACKAGE.cargo_install().map_err(|error| {
        format!("{error}; it needs protoc: apt-get install -y protobuf-compiler")
    })?;
    Ok(Program {
        path,
        version: PACKAGE.version.to_owned(),
    })
}

/// Starts a server with only this door, and defaults otherwise.
pub(crate) fn start(program: &Program, door: Door) -> Result<Server, Box<dyn Error>> {
    let flag = match door {
        Door::Resp => "--redis",
        Door::Http => "--http",
        Door::Grpc => "--grpc",
    };
    Server::start("throttlecrab", |address| {
        let mut command = Command::new(&program.path);
        command.args([flag, &format!("{flag}-host"), &address.ip().to_string()]);
        command.args([&format!("{flag}-port"), &address.port().to_string()]);
        command.args(["--log-level", "warn"]);
        command
    })
}

pub(super) fn calls(keys: &[String]) -> Calls {
    let messages = keys.iter().map(|key| {
        let limit = u64::from(LIMIT);
        Message::default()
            .bytes(1, key)
            .number(2, limit)
            .number(3, 1)
            .number(4, 1)
            .number(5, 1)
            .done()
    });
    // `allowed: true`
    Calls::new("/throttlecrab.RateLimiter/Throttle", &[0x08, 1], messages)
}

pub(super) fn body(key: &str) -> String {
    format!(r#"{{"key":"{key}","max_burst":{LIMIT},"count_per_period":1,"period":1,"quantity":1}}"#)
}
