//! Bounds on what a client may send and how long it may take. Requests beyond a bound get an error
//! that names the bound, or are cut off.
//!
//! The memory of requests that have not arrived in full, and of answers that were not taken, is
//! limited to `MAX_HELD` for the door, and to `MAX_HELD_BY_CONNECTION` for each connection. Two
//! things come in addition: `FREE` bytes for each connection, and answers that are being made,
//! because they are counted only when they are complete.

use std::time::Duration;

/// The largest body of a single request.
pub const MAX_BODY: usize = 64 * 1024;
/// The largest body of a batch.
pub const MAX_BATCH_BODY: usize = 1024 * 1024;
/// The most requests in a batch.
pub const MAX_BATCH: usize = 256;
/// The most attributes in a request.
pub const MAX_ATTRIBUTES: usize = 32;
/// The longest attribute value, in bytes.
pub const MAX_VALUE: usize = 1024;
/// The most header bytes of a request.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// The most headers of a request.
pub const MAX_HEADERS: usize = 64;
pub use crate::net::{
    FREE, LARGE_ANSWER, LAST_CALL, MAX_CONNECTIONS, MAX_HELD, MAX_HELD_BY_CONNECTION, READ_TIMEOUT,
    STOP_TIMEOUT,
};
/// The most open requests on an HTTP/2 connection. A client that opens more breaks the protocol.
pub const MAX_STREAMS: u32 = 100;
/// How long an HTTP/2 connection may be without a request before it is closed. For HTTP/1 this is
/// [`HEAD_TIMEOUT`].
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take to send the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How many batches may be decided at a time. Further batches wait. A batch whose body has not
/// arrived in full does not take a place. A batch whose answer was not taken counts in `MAX_HELD`.
pub const MAX_BATCHES: usize = 128;
/// How long a client may take to send the body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
