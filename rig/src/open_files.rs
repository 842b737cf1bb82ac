//! The number of files that this process may have open.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the number of files and connections that this process and its children may have open to `count`, or as far
/// as the system permits. Returns the limit.
///
/// # Errors
///
/// When the system does not permit any change.
pub fn raise_open_files(count: u64) -> io::Result<u64> {
    let known = getrlimit(Resource::Nofile);
    let wanted = known.maximum.map_or(count, |maximum| maximum.min(count));
    if known.current.is_none_or(|current| current >= wanted) {
        return Ok(known.current.unwrap_or(count));
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: known.maximum,
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(wanted)
}
