//! gubernator, from the Go module proxy: HTTP, and a gRPC service of its own. State in memory, one node.

use std::error::Error;
use std::process::Command;

use super::install::Package;
use super::wire::{Message, value};
use super::{LIMIT, Program, Work};
use crate::load::calls::Calls;
use crate::server::{Server, free_addresses};

/// Not every module proxy has it. Then gubernator is not measured.
const PACKAGE: Package = Package {
    module: "github.com/gubernator-io/gubernator/v2",
    version: "v2.13.0",
    directory: "cmd/gubernator",
    program: "gubernator",
};
const HOUR_MILLIS: u64 = 3_600_000;

#[derive(Clone, Copy)]
pub(super) enum Door {
    Http,
    Grpc,
}

pub(super) fn install() -> Result<Program, Box<dyn Error>> {
    // The reason names hosts of a registry, which do not belong into a document.
    let path = PACKAGE.go_install();
    let path = path.map_err(|_| "the module proxy does not have it")?;
    let version = PACKAGE.version.to_owned();
    Ok(Program { path, version })
}

pub(super) fn start(program: &Program, door: Door) -> Result<Server, Box<dyn Error>> {
    let [grpc, http, members] = free_addresses()?;
    let mut command = Command::new(&program.path);
    command
        .env("GUBER_GRPC_ADDRESS", grpc.to_string())
        .env("GUBER_HTTP_ADDRESS", http.to_string())
        .env("GUBER_ADVERTISE_ADDRESS", grpc.to_string())
        .env("GUBER_PEER_DISCOVERY_TYPE", "member-list")
        .env("GUBER_MEMBERLIST_ADDRESS", members.to_string())
        .env("GUBER_MEMBERLIST_KNOWN_NODES", members.to_string())
        .env("GUBER_LOG_LEVEL", "error")
        // Its default of 50,000 would evict live keys.
        .env("GUBER_CACHE_SIZE", "1000000");
    let address = match door {
        Door::Http => http,
        Door::Grpc => grpc,
    };
    Server::start_on("gubernator", address, command)
}

pub(super) fn calls(work: Work, keys: &[String]) -> Calls {
    let messages = keys.iter().map(|key| {
        let mut request = Message::default();
        for attribute in work.attributes() {
            let limit = Message::default()
                .bytes(1, attribute)
                .bytes(2, value(attribute, key))
                .number(3, 1)
                .number(4, u64::from(LIMIT))
                .number(5, HOUR_MILLIS);
            request = request.bytes(1, limit.done());
        }
        request.done()
    });
    let calls = Calls::new("/pb.gubernator.V1/GetRateLimits", &[0x10], messages);
    Calls {
        // After the field and the length of the first limit's answer: its status is absent if it is under the
        // limit, so the answer begins with the number of the limit.
        allowed_at: 2,
        ..calls
    }
}

pub(super) fn body(key: &str) -> String {
    format!(
        r#"{{"requests":[{{"name":"api_key","uniqueKey":"{key}","hits":1,"limit":{LIMIT},"duration":{HOUR_MILLIS}}}]}}"#
    )
}
