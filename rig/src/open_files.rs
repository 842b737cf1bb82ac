//! The number of files that this process may have open.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the number of files and connections that this process and its children may have open to `count`, unless
/// it is that already.
///
/// # Errors
///
/// When the system does not permit it; the message says how to permit it.
pub fn raise_open_files(count: u64) -> io::Result<()> {
    let known = getrlimit(Resource::Nofile);
    if known.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    let maximum = known.maximum.map(|maximum| maximum.max(count));
    let wanted = Rlimit {
        current: Some(count),
        maximum,
    };
    setrlimit(Resource::Nofile, wanted).map_err(|error| {
        let remedy = format!("raise the limit of open files: ulimit -n {count}");
        io::Error::new(io::Error::from(error).kind(), remedy)
    })
}
