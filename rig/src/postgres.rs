//! A PostgreSQL server: its process and its data.

use std::env;
use std::fs::{self, File};
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;

use crate::log::log_tail;
use crate::port::Port;
use crate::wait;

const HOST: &str = "127.0.0.1";
const INSTALL: &str = "install: apt-get install -y postgresql";
/// The directory of the programs on Debian, with a subdirectory for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The user that runs the server if the test runs as root, which PostgreSQL does not accept.
const USER: &str = "postgres";
const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A PostgreSQL server on loopback, stopped when dropped. Clients log in as `postgres` without a password.
///
/// Committed data survives a [`start_again`](Postgres::start_again).
#[derive(Debug)]
pub struct Postgres {
    /// The directory of PostgreSQL's programs.
    programs: PathBuf,
    process: Mutex<Option<Child>>,
    directory: TempDir,
    port: Port,
}

impl Postgres {
    /// Starts a server with an empty database, and waits until it answers.
    ///
    /// # Panics
    ///
    /// When PostgreSQL is not installed. When it is not ready within thirty seconds; the message shows the
    /// end of its log.
    pub fn start() -> Postgres {
        let programs = programs().unwrap_or_else(|| panic!("initdb is missing; {INSTALL}"));
        let directory = TempDir::with_prefix("tollgate-").expect("a temporary directory");
        let postgres = Postgres {
            programs,
            process: Mutex::default(),
            directory,
            port: Port::free(),
        };
        postgres.make();
        postgres.launch();
        postgres
    }

    /// Returns the port, which never changes.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the URL of the database `postgres`.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Creates an empty database, and returns its URL.
    ///
    /// # Panics
    ///
    /// When the database cannot be created.
    pub fn database(&self, name: &str) -> String {
        self.sql(&format!("CREATE DATABASE \"{name}\""));
        self.url_of(name)
    }

    fn url_of(&self, database: &str) -> String {
        let port = self.port();
        format!("postgres://postgres@{HOST}:{port}/{database}?sslmode=disable")
    }

    /// Returns the process id.
    ///
    /// # Panics
    ///
    /// When the server was stopped.
    pub fn pid(&self) -> u32 {
        let id = self.process().as_ref().map(Child::id);
        id.unwrap_or_else(|| panic!("PostgreSQL on port {} was stopped", self.port()))
    }

    /// Whether the server runs.
    pub fn is_running(&self) -> bool {
        self.process().is_some()
    }

    /// Shuts the server down: it closes connections and rolls back open transactions.
    ///
    /// # Panics
    ///
    /// When that takes more than thirty seconds.
    pub fn stop(&self) {
        self.end(Signal::INT);
    }

    /// Stops the server and its processes at once, like a crash.
    pub fn kill(&self) {
        // Not SIGKILL: it would leave child processes and shared memory behind.
        self.end(Signal::QUIT);
    }

    /// Starts the server again with its data. Stops it first if it runs.
    ///
    /// # Panics
    ///
    /// The same as for [`Postgres::start`].
    pub fn start_again(&self) {
        self.stop();
        self.launch();
    }

    /// Pauses the processes of the server (SIGSTOP): connections stay open, but get no answers.
    ///
    /// # Panics
    ///
    /// When the server was stopped.
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Continues the paused processes.
    ///
    /// # Panics
    ///
    /// When the server was stopped.
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Runs a statement with `psql`, and returns a line for each row, with columns separated by `|`.
    ///
    /// # Panics
    ///
    /// When the statement fails.
    pub fn sql(&self, statement: &str) -> String {
        self.sql_in("postgres", statement)
    }

    /// Runs a statement in another database.
    ///
    /// # Panics
    ///
    /// When the statement fails.
    pub fn sql_in(&self, database: &str, statement: &str) -> String {
        let mut psql = Command::new(self.program("psql"));
        psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
            .args(["-d", &self.url_of(database), "-c", statement]);
        output(&mut psql).trim().to_owned()
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Creates the data directory.
    fn make(&self) {
        let data = self.data();
        fs::create_dir(&data).expect("a directory");
        if is_root() {
            let directory = self.directory.path();
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("rights");
            let (user, group) = owner();
            chown(&data, Some(user), Some(group)).expect("a directory of another user");
        }
        let mut initdb = self.command("initdb");
        initdb.arg("-D").arg(&data);
        initdb.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale"]);
        // Tests do not simulate a power cut, so the data need not reach the disk.
        initdb.arg("--no-sync");
        output(&mut initdb);
    }

    /// Returns a command that runs a program as a user that PostgreSQL accepts.
    fn command(&self, name: &str) -> Command {
        let program = self.program(name);
        if !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command
            .args([
                &format!("--reuid={USER}"),
                &format!("--regid={USER}"),
                "--clear-groups",
            ])
            .arg(program)
            .current_dir("/");
        command
    }

    /// Starts the process and waits until it answers.
    fn launch(&self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .expect("a log file");
        let mut server = self.command("postgres");
        server
            .arg("-D")
            .arg(self.data())
            .args(["-h", HOST, "-p", &self.port().to_string()])
            // No Unix socket: other servers use the same directory for theirs.
            .args(["-c", "unix_socket_directories="])
            .args(["-c", "max_connections=50", "-c", "shared_buffers=32MB"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log);
        let child = server.spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run {server:?}: {error}"));
        *self.process() = Some(child);
        let ready = wait::at_most(START_LIMIT, || {
            if self.has_ended() {
                return Some(false);
            }
            self.answers().then_some(true)
        });
        assert!(
            ready == Some(true),
            "PostgreSQL is not ready on port {}; its log ends:\n{}",
            self.port(),
            log_tail(&self.log_file())
        );
    }

    fn has_ended(&self) -> bool {
        let mut process = self.process();
        let status = process.as_mut().map(Child::try_wait);
        !matches!(status, Some(Ok(None)))
    }

    fn answers(&self) -> bool {
        // A connection attempt is cheaper than starting a program.
        if TcpStream::connect((HOST, self.port())).is_err() {
            return false;
        }
        let mut ready = Command::new(self.program("pg_isready"));
        ready.args(["-q", "-h", HOST, "-p", &self.port().to_string()]);
        ready.status().is_ok_and(|status| status.success())
    }

    fn end(&self, signal: Signal) {
        let Some(mut child) = self.process().take() else {
            return;
        };
        // A paused process would not see the signal, nor would a process that the server started see the
        // server's.
        for paused in children(child.id()).into_iter().chain([child.id()]) {
            let _ = kill_process(pid(paused), Signal::CONT);
        }
        kill_process(pid(child.id()), signal).expect("a process to end");
        let ended = wait::at_most(STOP_LIMIT, || child.try_wait().expect("a child"));
        assert!(
            ended.is_some(),
            "PostgreSQL does not end; its log ends:\n{}",
            log_tail(&self.log_file())
        );
    }

    /// Sends a signal to the server and to the processes that it has started.
    fn signal_all(&self, signal: Signal) {
        let parent = self.pid();
        kill_process(pid(parent), signal).expect("a process");
        for child in children(parent) {
            // A process may have ended meanwhile.
            let _ = kill_process(pid(child), signal);
        }
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("postgres.log")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let child = self.process().take();
        if let Some(mut child) = child {
            let _ = kill_process(pid(child.id()), Signal::CONT);
            let _ = kill_process(pid(child.id()), Signal::QUIT);
            let _ = child.wait();
        }
    }
}

/// Finds the directory of PostgreSQL's programs: on the PATH, or the newest version that Debian has
/// installed.
fn programs() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut versions: Vec<PathBuf> = fs::read_dir(VERSIONS)
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin"))
        .collect();
    versions.sort();
    let directories = env::split_paths(&path).chain(versions.into_iter().rev());
    // A program on the PATH may be a link; the other programs are beside its target.
    let programs = directories.filter_map(|it| fs::canonicalize(it.join("initdb")).ok());
    let mut directories = programs.filter_map(|it| it.parent().map(Path::to_owned));
    directories.find(|it| it.join("postgres").is_file())
}

fn is_root() -> bool {
    getuid().is_root()
}

/// Returns the user id and group id of the user that runs the server.
fn owner() -> (u32, u32) {
    let number = |what: &str| {
        let text = output(Command::new("id").args([what, USER]));
        text.trim().parse().expect("a number")
    };
    (number("-u"), number("-g"))
}

fn children(parent: u32) -> Vec<u32> {
    let list = format!("/proc/{parent}/task/{parent}/children");
    let list = fs::read_to_string(list).unwrap_or_default();
    let numbers = list.split_whitespace().map(str::parse);
    numbers.collect::<Result<_, _>>().expect("process ids")
}

fn pid(id: u32) -> Pid {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    pid.expect("a process id")
}

/// Runs a command, and returns its output.
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => panic!("{command:?} is missing; {INSTALL}"),
        _ => panic!("cannot run {command:?}: {error}"),
    });
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?} failed ({}):\n{printed}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}
