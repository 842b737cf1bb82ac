//! Bounds on what a gRPC client may send and how long it may take. A message beyond a bound is
//! rejected with an error that names the bound. A connection beyond a bound is closed.
//!
//! The memory of requests that have not arrived in full, and of answers that were not taken, is
//! limited to [`MAX_HELD`](crate::net::MAX_HELD) for the door, and to
//! [`MAX_HELD_BY_CONNECTION`](crate::net::MAX_HELD_BY_CONNECTION) for each connection. Two things
//! come in addition: [`FREE`](crate::net::FREE) bytes for each connection, and answers that are
//! being made, because they are counted only when they are complete.
//!
//! Attributes in Tollgate's own service have the bounds of the [HTTP door](crate::http::bounds).

use std::time::Duration;

/// The largest message, in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// The largest batch of Tollgate's own service, in bytes.
pub const MAX_BATCH_MESSAGE: usize = 1024 * 1024;
/// The most batches that are decided at a time. Other batches wait. A batch that has not arrived in
/// full does not take a place. A batch whose answer was not taken counts in `MAX_HELD`.
pub const MAX_BATCHES: usize = 128;
/// The most descriptors in a request.
pub const MAX_DESCRIPTORS: usize = 64;
/// The most entries in a descriptor.
pub const MAX_ENTRIES: usize = 32;
/// The longest value of an entry, and the longest domain, in bytes.
pub const MAX_VALUE: usize = 1024;
/// The most requests that are decided at a time. Other requests wait. A request that has not arrived
/// in full does not take a place.
pub const MAX_IN_FLIGHT: usize = 8192;
/// The most open streams of a connection.
pub const MAX_STREAMS: u32 = 1024;
/// The most bytes of a connection that wait to be read.
pub const CONNECTION_WINDOW: u32 = 128 * 1024;
/// The most bytes of a stream that wait to be read.
pub const STREAM_WINDOW: u32 = 64 * 1024;
/// The most bytes of a stream that are buffered for sending at a time.
pub const SEND_BUFFER: usize = 64 * 1024;
/// The most header bytes of a request.
pub const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// How long a client may take to send the first bytes of HTTP/2.
pub const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request may take, from its headers to the decision.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer a request for a lease may take: it may wait for a free slot.
pub const MAX_WAIT: Duration = Duration::from_secs(30);
/// How long a connection may be without a request before the server asks the client to close it. In
/// the worst case, the server asks after twice this time.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How often the server pings an idle client.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// How long a client may take to answer a ping.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
