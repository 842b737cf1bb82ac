//! The cache of downloads, in `$XDG_CACHE_HOME/tollgate` or `~/.cache/tollgate`.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const INSTALL: &str = "if it is missing, install: apt-get install -y python3-pip nodejs npm";

/// Returns the cached directory `kind/name`. If it is missing, `fill` fills it first.
///
/// # Panics
///
/// When the directory cannot be created, or when `fill` panics. After a panic, nothing is cached.
pub(crate) fn directory(kind: &str, name: &str, fill: impl FnOnce(&Path)) -> PathBuf {
    let cache = cache().join(kind);
    fs::create_dir_all(&cache)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", cache.display()));
    // One process downloads; the others wait for it.
    let lock = File::create(cache.join(format!("{name}.lock"))).expect("a lock file");
    lock.lock().expect("a lock");
    let home = cache.join(name);
    if !home.is_dir() {
        // Download to a temporary directory, and rename it when it is complete.
        let download = TempDir::new_in(&cache).expect("a directory in the cache");
        fill(download.path());
        fs::rename(download.keep(), &home).expect("a place in the cache");
    }
    home
}

fn cache() -> PathBuf {
    let directory = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let directory = directory.or_else(|| Some(env::home_dir()?.join(".cache")));
    let directory = directory.expect("a home directory, or $XDG_CACHE_HOME");
    directory.join("tollgate")
}

/// Runs a command, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}\n{INSTALL}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?} failed ({}):\n{printed}{}\n{INSTALL}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}
