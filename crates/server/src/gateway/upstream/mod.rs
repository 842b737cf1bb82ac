//! Upstreams: which server a request goes to, and the connections to it.
//!
//! A request goes to the server with the fewest open requests, among those that work. If none works, all are
//! tried. Connections over HTTP/1 are kept for the next request, the most recent first. Over HTTP/2, requests
//! share one connection to each server.
//!
//! * `connect`: opens connections. `health`: whether a server works. `exchange`: one request and its answer,
//!   with repeats where that is safe.

mod connect;
mod exchange;
mod health;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;
use hyper::client::conn::http2;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tollgate_config::{
    HealthCheck, Upstream as UpstreamConfig, UpstreamHost, UpstreamProtocol, UpstreamServer,
    Upstreams as UpstreamsConfig,
};

pub(crate) use self::connect::Http1;
use self::connect::{Connector, Opened};
pub(crate) use self::exchange::UpstreamError;
pub(super) use self::exchange::{Exchanged, Outbound};
use self::health::Health;
use super::bounds::{IDLE_TIMEOUT, MAX_IDLE};
use super::client_body::ClientBody;
use crate::outbound;

/// Servers that do the same work.
pub(crate) struct Upstream {
    name: Arc<str>,
    config: Arc<UpstreamConfig>,
    servers: Vec<Arc<Server>>,
    /// Where the next search for a server begins.
    turn: AtomicUsize,
    pub(crate) counts: UpstreamCounts,
    /// Checks the servers, for as long as the upstream exists.
    _checks: JoinSet<()>,
}

/// What happened to the requests of an upstream.
#[derive(Default)]
pub(crate) struct UpstreamCounts {
    pub(crate) answered: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) repeated: AtomicU64,
}

/// One server, with its connections.
pub(crate) struct Server {
    url: UpstreamServer,
    /// The server as its URL names it.
    authority: Authority,
    connector: Connector,
    health: Health,
    /// How many requests are open.
    open: AtomicUsize,
    /// One permit for each connection that may be in use.
    permits: Arc<Semaphore>,
    connect_timeout: Duration,
    idle: Mutex<Vec<Idle>>,
    /// Whether the server speaks HTTP/2, as far as known.
    is_http2: AtomicBool,
    http2: Mutex<Option<http2::SendRequest<ClientBody>>>,
    /// Locked while a shared connection is opened, so that one is opened.
    opening: tokio::sync::Mutex<()>,
}

/// A connection that waits for a request.
struct Idle {
    http1: Box<Http1>,
    since: Instant,
}

/// A connection for one request.
enum Connection {
    Http1 { http1: Box<Http1>, is_reused: bool },
    Http2(http2::SendRequest<ClientBody>),
}

/// Counts as an open request of its server until it is dropped.
pub(crate) struct OpenRequest {
    server: Arc<Server>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.server.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a connection cannot be had.
#[derive(Debug, thiserror::Error)]
enum TakeError {
    #[error("all connections to the server are in use")]
    Busy,
    #[error("the connection took too long to open")]
    TimedOut,
    #[error(transparent)]
    Failed(outbound::SendError),
}

/// Which connection a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Any,
    /// A connection that no request has used.
    Fresh,
    /// A new connection over HTTP/1, for an upgrade.
    Http1,
}

impl Upstream {
    fn new(
        name: &Arc<str>,
        config: &Arc<UpstreamConfig>,
    ) -> Result<Arc<Upstream>, outbound::SendError> {
        let servers = config.servers.iter();
        let servers = servers.map(|url| Server::new(url, config).map(Arc::new));
        let servers: Vec<Arc<Server>> = servers.collect::<Result<_, _>>()?;
        let mut checks = JoinSet::new();
        for server in &servers {
            checks.spawn(close_idle(Arc::clone(server)));
            if let Some(health) = &config.health {
                checks.spawn(check(Arc::clone(name), Arc::clone(server), health.clone()));
            }
        }
        Ok(Arc::new(Upstream {
            name: Arc::clone(name),
            config: Arc::clone(config),
            servers,
            turn: AtomicUsize::new(0),
            counts: UpstreamCounts::default(),
            _checks: checks,
        }))
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns when a request that begins now has taken too long in all.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let limit = self.config.timeout?;
        Some(Instant::now() + Duration::from(limit))
    }

    /// Returns the longest silence of a server.
    pub(super) fn read_timeout(&self) -> Duration {
        self.config.read_timeout.into()
    }

    /// Returns each server with whether it works, and how many requests are open.
    pub(crate) fn states(&self) -> impl Iterator<Item = (String, bool, usize)> {
        let now = Instant::now();
        self.servers.iter().map(move |server| {
            let open = server.open.load(Ordering::Relaxed);
            (server.url.to_string(), server.health.is_up(now), open)
        })
    }

    /// Chooses the server with the fewest open requests that works and was not tried. If there is none,
    /// takes one that does not work.
    fn choose(&self, tried: &[usize]) -> Option<usize> {
        let (count, now) = (self.servers.len(), Instant::now());
        if let ([], 1) = (tried, count) {
            return Some(0);
        }
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        let order = (0..count).map(|step| (start.wrapping_add(step)) % count);
        let untried = order.filter(|index| !tried.contains(index));
        untried.min_by_key(|index| {
            let server = &self.servers[*index];
            (
                !server.health.is_up(now),
                server.open.load(Ordering::Relaxed),
            )
        })
    }
}

impl Server {
    fn new(url: &UpstreamServer, config: &UpstreamConfig) -> Result<Server, outbound::SendError> {
        let host = match url.host.contains(':') {
            true => format!("[{}]", url.host),
            false => url.host.clone(),
        };
        let usual = if url.tls { 443 } else { 80 };
        let authority = match url.port == usual {
            true => host,
            false => format!("{host}:{}", url.port),
        };
        Ok(Server {
            url: url.clone(),
            authority: Authority::try_from(authority)?,
            connector: Connector::new(url, config)?,
            health: Health::default(),
            open: AtomicUsize::new(0),
            permits: Arc::new(Semaphore::new(config.max_connections)),
            connect_timeout: config.connect_timeout.into(),
            idle: Mutex::default(),
            is_http2: AtomicBool::new(config.protocol == UpstreamProtocol::Http2),
            http2: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        })
    }

    /// Returns a connection for one request.
    async fn take(self: &Arc<Server>, need: Need) -> Result<(Connection, OpenRequest), TakeError> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let waiting = Arc::clone(&self.permits).acquire_owned();
                let permit = timeout(self.connect_timeout, waiting).await;
                let permit = permit.map_err(|_| TakeError::Busy)?;
                permit.map_err(|_| TakeError::Busy)?
            }
        };
        self.open.fetch_add(1, Ordering::Relaxed);
        let open = OpenRequest {
            server: Arc::clone(self),
            _permit: permit,
        };
        if need == Need::Any
            && let Some(connection) = self.take_kept().await
        {
            return Ok((connection, open));
        }
        if need != Need::Http1 && self.is_http2.load(Ordering::Relaxed) {
            let _alone = self.opening.lock().await;
            let kept = self.http2.lock().clone();
            if let Some(sender) = kept.filter(|it| !it.is_closed()) {
                return Ok((Connection::Http2(sender), open));
            }
            return Ok((self.connect(need).await?, open));
        }
        Ok((self.connect(need).await?, open))
    }

    /// Returns a connection that was kept, if there is one.
    async fn take_kept(&self) -> Option<Connection> {
        if self.is_http2.load(Ordering::Relaxed) {
            let sender = self.http2.lock().clone()?;
            return (!sender.is_closed()).then_some(Connection::Http2(sender));
        }
        loop {
            let Idle { mut http1, since } = self.idle.lock().pop()?;
            if since.elapsed() >= IDLE_TIMEOUT {
                continue;
            }
            // The server may have closed the connection meanwhile.
            let ready = poll_fn(|context| std::task::Poll::Ready(http1.is_ready(context)));
            if ready.await {
                return Some(Connection::Http1 {
                    http1,
                    is_reused: true,
                });
            }
        }
    }

    async fn connect(&self, need: Need) -> Result<Connection, TakeError> {
        let opening = self.connector.open(need == Need::Http1);
        let opened = timeout(self.connect_timeout, opening).await;
        let opened = opened.map_err(|_| TakeError::TimedOut)?;
        Ok(match opened.map_err(TakeError::Failed)? {
            Opened::Http1(http1) => Connection::Http1 {
                http1,
                is_reused: false,
            },
            Opened::Http2(sender) => {
                self.is_http2.store(true, Ordering::Relaxed);
                *self.http2.lock() = Some(sender.clone());
                Connection::Http2(sender)
            }
        })
    }

    /// Keeps a connection for the next request.
    fn keep(&self, http1: Box<Http1>) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(Idle {
                http1,
                since: Instant::now(),
            });
        }
    }
}

impl OpenRequest {
    /// Ends the request, and keeps its connection for the next one if it can take another request.
    pub(crate) fn end(self, mut http1: Box<Http1>, context: &mut std::task::Context<'_>) {
        if http1.is_ready(context) {
            self.server.keep(http1);
        }
    }
}

/// Closes connections that were idle for too long, for ever.
async fn close_idle(server: Arc<Server>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT / 4).await;
        // The oldest connections are at the front.
        let old: Vec<Idle> = {
            let mut idle = server.idle.lock();
            let old = idle.partition_point(|it| it.since.elapsed() >= IDLE_TIMEOUT);
            idle.drain(..old).collect()
        };
        drop(old);
    }
}

/// Asks a server whether it works, for ever.
async fn check(name: Arc<str>, server: Arc<Server>, health: HealthCheck) {
    let mut ticks = tokio::time::interval(health.every.into());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let asking = exchange::status_of(&server, &health.path);
        let status = timeout(health.timeout.into(), asking).await;
        let is_good = matches!(status, Ok(Some(200..400)));
        match server.health.checked(is_good) {
            Some(true) => {
                tracing::info!(upstream = %name, server = %server.url, "the server is back");
            }
            Some(false) => {
                tracing::warn!(upstream = %name, server = %server.url, "the server fails its health checks");
            }
            None => {}
        }
    }
}

/// The upstreams of all configs so far. An upstream that a new config does not change keeps its connections.
#[derive(Default)]
pub(crate) struct Registry(Mutex<HashMap<Arc<str>, Arc<Upstream>>>);

/// The upstreams of one config.
pub(crate) struct Upstreams {
    by_name: HashMap<Arc<str>, Arc<Upstream>>,
    /// The only upstream.
    only: Option<Arc<Upstream>>,
}

impl Registry {
    /// Returns the upstreams of `config`. An upstream that cannot be used is logged and left out.
    pub(crate) fn upstreams(&self, config: &UpstreamsConfig) -> Upstreams {
        let mut known = self.0.lock();
        let mut by_name = HashMap::new();
        for (name, wanted) in config.iter() {
            let same = known.get(name).filter(|it| it.config == *wanted).cloned();
            let upstream = match same {
                Some(same) => same,
                None => match Upstream::new(name, wanted) {
                    Ok(upstream) => upstream,
                    Err(error) => {
                        tracing::error!(upstream = %name, %error, "the upstream cannot be used: its requests get 502");
                        continue;
                    }
                },
            };
            by_name.insert(Arc::clone(name), upstream);
        }
        known.clone_from(&by_name);
        let only = match (config.len(), by_name.values().next()) {
            (1, Some(only)) => Some(Arc::clone(only)),
            _ => None,
        };
        Upstreams { by_name, only }
    }

    /// Returns the upstreams of the last config, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Arc<Upstream>> {
        let mut all: Vec<_> = self.0.lock().values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

impl Upstreams {
    /// Returns the upstream of a route that names one, or the only upstream.
    pub(crate) fn find(&self, name: Option<&str>) -> Option<&Arc<Upstream>> {
        match name {
            Some(name) => self.by_name.get(name),
            None => self.only.as_ref(),
        }
    }
}

/// Checks that every upstream of `config` can be used.
pub(crate) fn check_all(config: &UpstreamsConfig) -> Result<(), String> {
    for (name, upstream) in config.iter() {
        for server in &upstream.servers {
            Connector::new(server, upstream)
                .map_err(|error| format!("upstreams.{name}: {server}: {error}"))?;
        }
    }
    Ok(())
}

/// Returns the `Host` that a server sees.
fn host_for(config: &UpstreamConfig, server: &Server, client: &Authority) -> Authority {
    match config.host {
        UpstreamHost::Client => client.clone(),
        UpstreamHost::Server => server.authority.clone(),
    }
}

/// Returns a host as a header.
fn host_value(authority: &Authority) -> HeaderValue {
    // An authority consists of visible ASCII characters.
    HeaderValue::from_str(authority.as_str()).unwrap_or(HeaderValue::from_static(""))
}
