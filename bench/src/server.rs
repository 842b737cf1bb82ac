//! A server as a child process: started on a free port, and stopped when dropped.

use std::error::Error;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tollgate_bench::process::{cpu_micros, resident_bytes};

const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Server {
    name: &'static str,
    address: SocketAddr,
    process: Child,
    /// What the server writes to its standard error.
    log: PathBuf,
    /// Whether the server has worker processes.
    has_workers: bool,
}

impl Server {
    /// Finds a free address, starts the command that `command` returns for it, and waits until the server
    /// listens.
    pub(crate) fn start(
        name: &'static str,
        command: impl FnOnce(SocketAddr) -> Command,
    ) -> Result<Server, Box<dyn Error>> {
        let [address] = free_addresses()?;
        let command = command(address);
        Server::start_on(name, address, command)
    }

    /// Starts `command`, and waits until it listens on `address`.
    pub(crate) fn start_on(
        name: &'static str,
        address: SocketAddr,
        mut command: Command,
    ) -> Result<Server, Box<dyn Error>> {
        let log = format!("tollgate-bench-{}.log", address.port());
        let log = std::env::temp_dir().join(log);
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .map_err(|error| format!("{command:?} does not run: {error}"))?;
        let mut server = Server {
            name,
            address,
            process,
            log,
            has_workers: false,
        };
        for _ in 0..TRIES {
            if let Some(status) = server.process.try_wait()? {
                let log = std::fs::read_to_string(&server.log)?;
                return Err(
                    format!("{name} stopped at once ({status}): {command:?}\n{log}").into(),
                );
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            sleep(PAUSE);
        }
        let log = std::fs::read_to_string(&server.log)?;
        Err(format!("{name} does not listen on {address}: {command:?}\n{log}").into())
    }

    /// Asks the server to end, instead of killing it: its worker processes would outlive it.
    pub(crate) fn with_workers(mut self) -> Server {
        self.has_workers = true;
        self
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the CPU time of the process so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> Result<f64, Box<dyn Error>> {
        cpu_micros(self.process.id())
    }

    /// Returns the resident memory of the process, in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<f64, Box<dyn Error>> {
        resident_bytes(self.process.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.has_workers {
            let id = self.process.id().to_string();
            let asked = Command::new("kill").arg(id).status();
            for _ in 0..TRIES {
                if asked.is_err() || !matches!(self.process.try_wait(), Ok(None)) {
                    break;
                }
                sleep(PAUSE);
            }
        }
        // The process may have stopped by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Returns free addresses, all different.
pub(crate) fn free_addresses<const N: usize>() -> io::Result<[SocketAddr; N]> {
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    // Keep all listeners until the end, so that no address is found twice.
    let mut listeners = Vec::new();
    for address in &mut addresses {
        let listener = TcpListener::bind(*address)?;
        *address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(addresses)
}

/// A directory for the files of one run, removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> io::Result<Scratch> {
        let name = format!("tollgate-bench-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    /// Returns the path of `name` in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a directory, and the directories that it is in.
    pub(crate) fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let path = self.path(name);
        std::fs::write(&path, content)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the leftover files are small and in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
