//! The server under test: `tollgate serve` with every door open.

use std::error::Error;
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
    let program = std::env::current_exe()?.with_file_name("tollgate");
    match program.is_file() {
        true => Ok(program),
        false => {
            let path = program.display();
            let build = "build it: cargo build --release --locked -p tollgate-cli";
            Err(format!("{path} does not exist\n    {build}").into())
        }
    }
}

/// Starts `tollgate` with the rules of `config`, and waits until `door` is open.
pub(crate) fn start(
    tollgate: &Path,
    scratch: &Scratch,
    config: &str,
    door: Door,
) -> Result<Server, Box<dyn Error>> {
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
    let mut command = Command::new(tollgate);
    command.args(["serve", "--log", "error"]);
    command.arg("--config").arg(file);
    Server::start_on("tollgate", address, command)
}
