//! The server under test: `tollgate serve` with every door open.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::{Scratch, Server, free_addresses};

/// The door that the load goes through.
#[derive(Clone, Copy)]
pub(crate) enum Door {
    Http,
    Grpc,
    Resp,
}

/// Returns the program `tollgate` in the directory of this program.
pub(crate) fn beside() -> Result<PathBuf, Box<dyn Error>> {
    sibling("tollgate", "tollgate-cli")
}

/// Returns a program of `package` in the directory of this program.
pub(crate) fn sibling(name: &str, package: &str) -> Result<PathBuf, Box<dyn Error>> {
    let program = std::env::current_exe()?.with_file_name(name);
    match program.is_file() {
        true => Ok(program),
        false => {
            let path = program.display();
            let build = format!("build it: cargo build --release --locked -p {package}");
            Err(format!("{path} does not exist\n    {build}").into())
        }
    }
}

/// Writes the rules of `config` with every door to a file. Returns the file, and the address of `door`.
pub(crate) fn config_file(
    scratch: &Scratch,
    config: &str,
    door: Door,
) -> io::Result<(PathBuf, SocketAddr)> {
    let [http, grpc, resp, admin] = free_addresses()?;
    let config = format!(
        "{config}\nserver:\n  http: {http}\n  grpc: {grpc}\n  resp: {resp}\n  admin: {admin}\n"
    );
    let address = match door {
        Door::Http => http,
        Door::Grpc => grpc,
        Door::Resp => resp,
    };
    let file = scratch.file(&format!("tollgate-{}.yaml", http.port()), config.as_bytes())?;
    Ok((file, address))
}

/// Starts `tollgate` with the rules of `config`, and waits until `door` is open.
pub(crate) fn start(
    tollgate: &Path,
    scratch: &Scratch,
    config: &str,
    door: Door,
) -> Result<Server, Box<dyn Error>> {
    let (file, address) = config_file(scratch, config, door)?;
    let mut command = Command::new(tollgate);
    command.args(["serve", "--log", "error"]);
    command.arg("--config").arg(file);
    Server::start_on("tollgate", address, command)
}
