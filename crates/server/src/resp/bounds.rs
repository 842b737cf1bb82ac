//! Bounds on what a client may send and how long it may take. Commands beyond a bound get an error
//! that names the bound, or are cut off.
//!
//! Together the bounds limit memory. A connection holds at most 36 KiB of input and 48 KiB of
//! unread answers. With a shared store, it holds as much again for commands that wait for the
//! store. An idle connection holds about 7 KiB.
//!
//! Unread answers and the input behind them count as memory of the door: beyond [`FREE`](crate::net::FREE)
//! bytes of each connection, at most [`MAX_HELD`](crate::net::MAX_HELD) in all. At this bound, a client that
//! does not take its answers at once is cut off. With [`MAX_CONNECTIONS`](crate::net::MAX_CONNECTIONS), unread
//! answers hold at most 0.5 GiB.
//!
//! A command is a flat list of texts. A list within a list is rejected.

use std::time::Duration;

/// The most arguments of a command, its name included: enough for the most attributes and options.
pub const MAX_ARGS: usize = 128;
/// The longest argument, in bytes.
pub const MAX_BULK: usize = 8 * 1024;
/// The longest inline command, in bytes.
pub const MAX_INLINE: usize = 4 * 1024;
/// The longest command, in bytes.
pub const MAX_COMMAND: usize = 32 * 1024;
/// The longest key of `CL.THROTTLE`, in bytes.
pub const MAX_KEY: usize = 1024;
/// The longest name of a client, in bytes.
pub const MAX_NAME: usize = 64;
/// How many bytes of answers are collected before they are written.
pub const MAX_OUTPUT: usize = 16 * 1024;
/// How many commands of a connection may wait for a shared store at a time.
pub const MAX_CONCURRENT: usize = 64;
/// How many wrong passwords a connection may try.
pub const MAX_WRONG_PASSWORDS: u32 = 8;
/// How long a client may be silent, unless the options set another time.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a command may take to arrive after its first byte, and how long a client may take to
/// log in.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// When the server cuts a client off, it still reads for this long and this many bytes. Otherwise
/// the client might not see the error.
pub const FAREWELL: (Duration, usize) = (Duration::from_secs(1), 1024 * 1024);
