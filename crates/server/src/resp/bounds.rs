//! What a client may send, and how long it may take. Everything beyond is refused with a message that
//! names the bound, or cut off.
//!
//! BatchDecision they bound memory. A connection holds at most 36 KiB of what was sent, and 48 KiB of answers
//! that are not taken yet; with a shared store, as much again of commands that wait for it. With
//! [`MAX_CONNECTIONS`](crate::net::MAX_CONNECTIONS) of them that is 0.8 GiB, or 1.6, at the very worst; an
//! idle connection holds about 7 KiB.
//!
//! A command is a list of texts: there is no nesting, and a list within a list is refused.

use std::time::Duration;

/// The most arguments of a command, its name included: the most attributes there may be, and options.
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
/// How many bytes of answers are gathered before they are written.
pub const MAX_OUTPUT: usize = 16 * 1024;
/// How many commands of a connection wait for a shared store at a time.
pub const MAX_CONCURRENT: usize = 64;
/// How many wrong passwords a connection may try.
pub const MAX_WRONG_PASSWORDS: u32 = 8;
/// How long a client may be silent, unless the options say otherwise.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a command may take to arrive once its first byte has, and how long a client may take to
/// log in.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long, and for how many bytes, a client that is cut off is still listened to, so that it gets to
/// read why.
pub const FAREWELL: (Duration, usize) = (Duration::from_secs(1), 1024 * 1024);
