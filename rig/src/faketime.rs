//! Another wall clock for a server, by the library libfaketime.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

const INSTALL: &str = "install: apt-get install -y libfaketime";

/// Returns the environment of a process whose wall clock is this many seconds ahead.
///
/// # Panics
///
/// When libfaketime is not installed.
pub(crate) fn environment(seconds: i64) -> Vec<(&'static str, OsString)> {
    let fake = library("faketime/libfaketimeMT.so.1");
    // The C library comes second, so that its allocator is used and not jemalloc, which reads the clock before
    // libfaketime is ready.
    let mut preload = fake.into_os_string();
    preload.push(":");
    preload.push(library("libc.so.6"));
    vec![
        ("LD_PRELOAD", preload),
        ("FAKETIME", format!("{seconds:+}").into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ]
}

/// Finds a library below the directory of the machine's architecture, such as `/usr/lib/x86_64-linux-gnu`.
fn library(name: &str) -> PathBuf {
    let architectures = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut found = architectures.map(|it| it.path().join(name));
    let found = found.find(|it: &PathBuf| Path::is_file(it));
    found.unwrap_or_else(|| panic!("{name} is missing in /usr/lib/*; {INSTALL}"))
}
