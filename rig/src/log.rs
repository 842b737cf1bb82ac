//! The logs of servers.

use std::fs;
use std::path::Path;

/// How many lines the message of a failed start shows.
const TAIL: usize = 20;

/// Returns the last lines of a log file; empty if it cannot be read.
pub(crate) fn log_tail(file: &Path) -> String {
    let log = fs::read(file).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}
