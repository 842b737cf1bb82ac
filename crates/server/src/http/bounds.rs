//! What a client may send. Everything beyond is refused with a message that names the bound.

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
/// The most header bytes of a request, and the most headers.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// The most headers of a request.
pub const MAX_HEADERS: usize = 64;
/// The most connections at a time; more wait to be accepted.
pub const MAX_CONNECTIONS: usize = 10_000;
/// How long a client may take to send the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send the body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests in flight may take to finish when the server stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
