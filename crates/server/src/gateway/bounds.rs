//! Bounds on what clients and upstreams of the gateway may send, and on how long they may take. The config
//! has the bounds of bodies and the times of upstreams.

use std::time::Duration;

/// The most header bytes of a request, and of an answer of an upstream.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;
/// The most headers of a request, and of an answer of an upstream.
pub const MAX_HEADERS: usize = 128;
/// The most open requests on an HTTP/2 connection of a client.
pub const MAX_STREAMS: u32 = 100;
/// How many bytes an HTTP/2 peer may send on a stream before they are read.
pub const STREAM_WINDOW: u32 = 256 * 1024;
/// How many bytes an HTTP/2 peer may send on a connection before they are read.
pub const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The longest pause of a client that sends the body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an upgraded connection, such as a WebSocket, may be silent in both directions.
pub const TUNNEL_IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// How many requests may wait for their turn under shaping rules. Further ones get 503.
pub const MAX_WAITING: usize = 4096;
/// How many idle connections to a server each thread keeps.
pub const MAX_IDLE: usize = 128;
/// The most requests at a time on an HTTP/2 connection to a server. Further ones get another connection.
pub const MAX_SHARED: usize = 100;
/// How long an idle connection to a server is kept.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How many failures in a row take a server out.
pub const MAX_FAILURES: u32 = 3;
/// How many good checks bring back a server that failed its checks.
pub const GOOD_CHECKS: u32 = 2;
/// How long a server stays out after failures of requests.
pub const EJECTED_FOR: Duration = Duration::from_secs(10);
/// How many lines of the access log may wait to be written. Further lines are dropped and counted.
pub const MAX_LOG_LINES: usize = 8192;
