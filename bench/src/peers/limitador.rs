//! limitador-server: HTTP, and Envoy's rate limit service. State in memory or in Redis.
//!
//! Its server is in no registry. It is measured if a build of it is on the PATH.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use super::wire::DOMAIN;
use super::{LIMIT, Program, Work};
use crate::server::{Scratch, Server, free_addresses};

const PROGRAM: &str = "limitador-server";

#[derive(Clone, Copy)]
pub(super) enum Door {
    Http,
    Grpc,
}

pub(super) fn install() -> Result<Program, Box<dyn Error>> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut programs = env::split_paths(&path).map(|directory| directory.join(PROGRAM));
    let path: PathBuf = programs
        .find(|program| program.is_file())
        .ok_or("its server is in no registry: put a build of limitador-server on the PATH")?;
    let printed = Command::new(&path).arg("--version").output()?;
    let version = version(&String::from_utf8_lossy(&printed.stdout));
    Ok(Program { path, version })
}

/// Returns the version in the output of `--version`: the second word.
fn version(printed: &str) -> String {
    let word = printed.split_whitespace().nth(1);
    word.unwrap_or("of an unknown version").to_owned()
}

pub(super) fn start(
    program: &Program,
    scratch: &Scratch,
    door: Door,
    work: Work,
    redis: Option<&str>,
) -> Result<Server, Box<dyn Error>> {
    let [grpc, http] = free_addresses()?;
    let mut limits = String::new();
    for (number, attribute) in work.attributes().iter().enumerate() {
        // HTTP brings values by name, and RLS as descriptors.
        let variable = match door {
            Door::Http => (*attribute).to_owned(),
            Door::Grpc => format!("descriptors[{number}].{attribute}"),
        };
        let _ = writeln!(
            limits,
            "- {{ namespace: {DOMAIN}, max_value: {LIMIT}, seconds: 3600, conditions: [], variables: ['{variable}'] }}"
        );
    }
    let file = scratch.file(
        &format!("limitador-{}.yaml", http.port()),
        limits.as_bytes(),
    )?;
    let mut command = Command::new(&program.path);
    command.args(["--rls-ip", &grpc.ip().to_string()]);
    command.args(["--rls-port", &grpc.port().to_string()]);
    command.args(["--http-ip", &http.ip().to_string()]);
    command.args(["--http-port", &http.port().to_string()]);
    command.arg(file);
    match redis {
        Some(url) => command.args(["redis", url]),
        None => command.arg("memory"),
    };
    let address = match door {
        Door::Http => http,
        Door::Grpc => grpc,
    };
    Server::start_on("limitador", address, command)
}

pub(super) fn body(key: &str) -> String {
    format!(r#"{{"namespace":"{DOMAIN}","values":{{"api_key":"{key}"}},"delta":1}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_the_second_word() {
        assert_eq!(
            version("limitador-server 2.4.0-dev (abc) release build"),
            "2.4.0-dev"
        );
        assert_eq!(version(""), "of an unknown version");
    }
}
