//! A Redis server: its process, and ways to inspect it.

mod builder;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

pub use self::builder::RedisBuilder;
use self::builder::{Credentials, Tls};
use crate::log::log_tail;
use crate::port::Port;
use crate::resp::{Reply, Resp};
use crate::wait;

const HOST: &str = "127.0.0.1";
const INSTALL: &str = "install: apt-get install -y redis-server redis-sentinel redis-tools";
const START_LIMIT: Duration = Duration::from_secs(10);

/// A Redis server on loopback, killed when dropped.
///
/// The server stores nothing on disk, so it is empty after a [`restart`](Redis::restart).
#[derive(Debug)]
pub struct Redis {
    binary: PathBuf,
    args: Vec<OsString>,
    credentials: Option<Credentials>,
    /// Further variables of the environment.
    environment: Vec<(&'static str, OsString)>,
    tls: Option<Tls>,
    process: Mutex<Process>,
    directory: TempDir,
    port: Port,
}

#[derive(Debug, Default)]
struct Process {
    /// `None` before the start and after a kill.
    child: Option<Child>,
    paused: bool,
}

impl Redis {
    /// Starts a server with default options, and waits until it answers.
    ///
    /// # Panics
    ///
    /// When the server is not ready within ten seconds; the message shows the end of its log.
    pub fn start() -> Redis {
        Redis::with().start()
    }

    /// Starts to build a server with options.
    pub fn with() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// Returns the port, which never changes.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns host and port, such as `127.0.0.1:20001`.
    pub fn address(&self) -> String {
        format!("{HOST}:{}", self.port())
    }

    /// Returns the URL for clients, with `rediss` for TLS, and with user and password if there are any.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        let user = match &self.credentials {
            Some(Credentials { user, password }) => format!("{user}:{password}@"),
            None => String::new(),
        };
        format!("{scheme}://{user}{}", self.address())
    }

    /// Returns the certificate authority of a TLS server, in PEM.
    ///
    /// # Panics
    ///
    /// When the server does not use TLS.
    pub fn ca_file(&self) -> &Path {
        &self.tls.as_ref().expect("a TLS server").files.authority
    }

    /// Returns the process id.
    ///
    /// # Panics
    ///
    /// When the server was killed.
    pub fn pid(&self) -> u32 {
        let id = self.process().child.as_ref().map(Child::id);
        id.unwrap_or_else(|| panic!("{} was killed", self.address()))
    }

    /// Whether the server is neither killed nor paused.
    pub fn is_running(&self) -> bool {
        let process = self.process();
        process.child.is_some() && !process.paused
    }

    /// Kills the process (SIGKILL), like a crash.
    pub fn kill(&self) {
        let mut process = self.process();
        if let Some(mut child) = process.child.take() {
            child.kill().expect("a process to kill");
            child.wait().expect("a process to reap");
        }
        process.paused = false;
    }

    /// Pauses the process (SIGSTOP): connections stay open, but get no answers.
    ///
    /// # Panics
    ///
    /// When the server was killed.
    pub fn pause(&self) {
        let pid = self.raw_pid();
        let mut process = self.process();
        if !process.paused {
            kill_process(pid, Signal::STOP).expect("a process to pause");
            // The signal takes effect a moment later.
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("a paused process");
            process.paused = true;
        }
    }

    /// Continues a paused process (SIGCONT).
    ///
    /// # Panics
    ///
    /// When the server was killed.
    pub fn resume(&self) {
        let pid = self.raw_pid();
        kill_process(pid, Signal::CONT).expect("a process to resume");
        self.process().paused = false;
    }

    /// Starts the server again with the same port and arguments, without data. Kills it first if it runs.
    pub fn restart(&self) {
        self.kill();
        self.launch();
    }

    /// Opens a connection, and logs in if needed. The connection to a TLS server uses a Unix socket without
    /// TLS.
    ///
    /// # Panics
    ///
    /// When the server does not accept connections.
    pub fn connect(&self) -> Resp {
        let mut resp = self
            .open()
            .unwrap_or_else(|error| panic!("cannot connect to {}: {error}", self.address()));
        if let Some(Credentials { user, password }) = &self.credentials {
            let reply = resp.command(&["AUTH", user, password]);
            assert_eq!(reply, Reply::Simple("OK".to_owned()));
        }
        resp
    }

    /// Runs `redis-cli`, and returns its trimmed output.
    ///
    /// # Panics
    ///
    /// When `redis-cli` is missing or cannot reach the server.
    pub fn cli(&self, args: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", HOST, "-p", &self.port().to_string()]);
        if let Some(tls) = &self.tls {
            cli.arg("--tls").arg("--cacert").arg(&tls.files.authority);
        }
        if let Some(Credentials { user, password }) = &self.credentials {
            cli.args(["--user", user, "--pass", password, "--no-auth-warning"]);
        }
        let output = cli.args(args).stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| cannot_run(Path::new("redis-cli"), &error));
        assert!(
            output.status.success(),
            "redis-cli {}: {}{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns the fields of a section of `INFO`, such as `memory`.
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        let text = self.connect().command(&["INFO", section]).text();
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// Returns the CPU time of the process so far, user and system, in microseconds.
    pub fn cpu_micros(&self) -> u64 {
        let cpu = self.info("cpu");
        let seconds = |name: &str| cpu[name].parse().expect("a number of seconds");
        let used = Duration::from_secs_f64(seconds("used_cpu_user"))
            + Duration::from_secs_f64(seconds("used_cpu_sys"));
        u64::try_from(used.as_micros()).expect("a CPU time in range")
    }

    /// Returns the memory that the server has allocated, in bytes.
    pub fn used_memory(&self) -> u64 {
        let memory = self.info("memory");
        memory["used_memory"].parse().expect("a number of bytes")
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raw_pid(&self) -> Pid {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        pid.expect("a process id")
    }

    /// Starts the process and waits until it answers.
    fn launch(&self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .expect("a log file");
        let child = Command::new(&self.binary)
            .args(&self.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| cannot_run(&self.binary, &error));
        self.process().child = Some(child);
        let ready = wait::at_most(START_LIMIT, || {
            if self.has_ended() {
                return Some(false);
            }
            self.answers().then_some(true)
        });
        assert!(
            ready == Some(true),
            "{} is not ready on port {}; its log ends:\n{}",
            self.binary.display(),
            self.port(),
            log_tail(&self.log_file())
        );
    }

    fn has_ended(&self) -> bool {
        let mut process = self.process();
        let status = process.child.as_mut().map(Child::try_wait);
        !matches!(status, Some(Ok(None)))
    }

    /// Returns whether the server executes commands. While it loads or synchronizes data, it answers LOADING
    /// to all commands.
    fn answers(&self) -> bool {
        let reply = self.open().and_then(|mut resp| resp.try_command(&["PING"]));
        match reply {
            Ok(Reply::Simple(pong)) => pong == "PONG",
            Ok(Reply::Error(error)) => error.starts_with("NOAUTH"),
            _ => false,
        }
    }

    fn open(&self) -> io::Result<Resp> {
        match &self.tls {
            Some(tls) => Resp::connect_unix(&tls.plain_socket),
            None => Resp::connect(&self.address()),
        }
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("redis.log")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn cannot_run(program: &Path, error: &io::Error) -> ! {
    let program = program.display();
    match error.kind() {
        io::ErrorKind::NotFound => panic!("{program} is missing; {INSTALL}"),
        _ => panic!("cannot run {program}: {error}"),
    }
}
