//! What a gRPC client may send, and how long it may take. Everything beyond is refused with a message
//! that names the bound, or cut off.
//!
//! BatchDecision they bound memory: `MAX_IN_FLIGHT` messages of `MAX_MESSAGE`, `MAX_BATCHES` of
//! `MAX_BATCH_MESSAGE` and `CONNECTION_WINDOW` for each of
//! [`MAX_CONNECTIONS`](crate::net::MAX_CONNECTIONS) are 1.9 GiB at the very worst.
//!
//! Attributes of Tollgate's own service are bounded as those of [HTTP](crate::http::bounds).

use std::time::Duration;

/// The largest message.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// The largest batch of Tollgate's own service.
pub const MAX_BATCH_MESSAGE: usize = 1024 * 1024;
/// How many of those may be read and answered at a time; more wait.
pub const MAX_BATCHES: usize = 128;
/// The most descriptors in a request.
pub const MAX_DESCRIPTORS: usize = 64;
/// The most entries in a descriptor.
pub const MAX_ENTRIES: usize = 32;
/// The longest value of an entry, and the longest domain, in bytes.
pub const MAX_VALUE: usize = 1024;
/// The most requests that are read or decided at a time; more wait.
pub const MAX_IN_FLIGHT: usize = 8192;
/// The most streams of a connection at a time.
pub const MAX_STREAMS: u32 = 1024;
/// The most bytes that a connection may have sent and nobody has read.
pub const CONNECTION_WINDOW: u32 = 128 * 1024;
/// The same of a stream.
pub const STREAM_WINDOW: u32 = 64 * 1024;
/// The most header bytes of a request.
pub const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// How long a client may take to say that it speaks HTTP/2.
pub const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may take, from its head to the decision.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer a request for a lease may take, which may wait for others to give theirs back.
pub const MAX_WAIT: Duration = Duration::from_secs(30);
/// How often a client is asked whether it is still there.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// How long it may take to say so.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
