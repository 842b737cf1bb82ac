//! The server that the RESP door is compared with: throttlecrab, another rate limiter with RESP. The first
//! use installs it into `$XDG_CACHE_HOME/tollgate/peers` or `~/.cache/tollgate/peers`.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

use crate::server::Server;

pub(super) const NAME: &str = "throttlecrab";
const CRATE: &str = "throttlecrab-server";
pub(super) const VERSION: &str = "0.4.40";

pub(super) struct Peer {
    program: PathBuf,
}

impl Peer {
    /// Returns the program, and builds it first if necessary.
    pub(super) fn install() -> Result<Peer, Box<dyn Error>> {
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(env::home_dir()?.join(".cache")));
        let cache = cache.ok_or("no home directory to install into")?;
        let peers = cache.join("tollgate").join("peers");
        let root = peers.join(format!("{CRATE}-{VERSION}"));
        let program = root.join("bin").join(CRATE);
        if program.is_file() {
            return Ok(Peer { program });
        }
        std::fs::create_dir_all(&peers)?;
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut install = Command::new(cargo);
        // Build outside of this workspace, because its settings must not apply.
        install.current_dir(&peers);
        install.args(["install", CRATE, "--version", VERSION, "--locked", "--root"]);
        let status = install.arg(&root).status()?;
        match status.success() && program.is_file() {
            true => Ok(Peer { program }),
            false => {
                let remedy = "it needs protoc: sudo apt-get install -y protobuf-compiler";
                Err(format!("installation failed ({status}): {install:?}\n    {remedy}").into())
            }
        }
    }

    /// Starts a server with only RESP, and defaults otherwise.
    pub(super) fn start(&self) -> Result<Server, Box<dyn Error>> {
        Server::start(NAME, |address| {
            let mut command = Command::new(&self.program);
            command.args(["--redis", "--redis-host", &address.ip().to_string()]);
            command.args(["--redis-port", &address.port().to_string()]);
            command.args(["--log-level", "warn"]);
            command
        })
    }
}
