//! Bounds on what a client may send and how long it may take. Requests beyond a bound get an error
//! that names the bound, or are cut off.
//!
//! Together the bounds limit memory to 1 GiB in the worst case: `MAX_CONNECTIONS` and
//! `MAX_STREAM_BODIES` bodies of `MAX_BODY`, and `MAX_BATCHES` bodies of `MAX_BATCH_BODY`.

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
pub use crate::net::{DRAIN_TIMEOUT, MAX_CONNECTIONS, READ_TIMEOUT};
/// The most open requests on an HTTP/2 connection. A client that opens more breaks the protocol.
pub const MAX_STREAMS: u32 = 100;
/// How many HTTP/2 bodies may be read at a time, over all connections. Further bodies wait.
pub const MAX_STREAM_BODIES: usize = 4096;
/// How long an HTTP/2 connection may be without a request before it is closed. For HTTP/1 this is
/// [`HEAD_TIMEOUT`].
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take to send the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How many batches may be read and answered at a time. Further batches wait.
pub const MAX_BATCHES: usize = 128;
/// How long a client may take to send the body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
