//! Upstreams: which server a request goes to, and the connections to it.
//!
//! A request goes to the server with the fewest open requests, among those that work. If none works, all are
//! tried. Connections over HTTP/1 are kept for the next request, the most recent first. Over HTTP/2, requests
//! share connections.
//!
//! * `connect`: opens connections. `health`: whether a server works. `exchange`: one request and its answer,
//!   with repeats where that is safe. `shared`: connections over HTTP/2. `shares`: bounds each client.

mod connect;
mod exchange;
mod health;
mod shared;
mod shares;

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;
use hyper::client::conn::http2;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tollgate_config::{
    HealthCheck, Priorities, Upstream as UpstreamConfig, UpstreamHost, UpstreamProtocol,
    UpstreamServer, Upstreams as UpstreamsConfig,
};

pub(crate) use self::connect::Http1;
use self::connect::{Connector, Opened};
pub(crate) use self::exchange::UpstreamError;
pub(super) use self::exchange::{Exchanged, Outbound};
use self::health::Health;
use self::shared::{Failure, SharedConnections, StreamPlace};
use self::shares::Shares;
use super::bounds::{IDLE_TIMEOUT, MAX_IDLE};
use super::client_body::ClientBody;
use super::shedding::Shedding;
use crate::net::PerWorker;
use crate::outbound;

/// Servers that do the same work.
pub(crate) struct Upstream {
    name: Arc<str>,
    config: Arc<UpstreamConfig>,
    servers: Vec<Arc<Server>>,
    /// Where the next search for a server begins.
    turn: AtomicUsize,
    pub(crate) counts: UpstreamCounts,
    /// Denies requests if the servers are saturated.
    shedding: Option<Shedding>,
    /// The classes that `shedding` was made for.
    priorities: Priorities,
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
    /// The connections that each thread has opened.
    idle: PerWorker<Mutex<Vec<Idle>>>,
    /// Whether the server speaks HTTP/2, as far as known.
    is_http2: AtomicBool,
    shared: SharedConnections,
    shares: Shares,
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
    /// The place on a shared connection; `None` over HTTP/1.
    _stream: Option<StreamPlace>,
    /// Gives the place of the client back last.
    _share: Option<Share>,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.server.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts as a request of a client at a server until it is dropped.
struct Share {
    server: Arc<Server>,
    client: IpAddr,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.server.shares.give_back(self.client);
    }
}

/// Why a request got no connection.
#[derive(Clone, Debug, thiserror::Error)]
enum TakeError {
    #[error("all connections to the server are in use")]
    Busy,
    #[error("the client has too many open requests at the server")]
    ClientBusy,
    #[error("the connection took too long to open")]
    TimedOut,
    #[error(transparent)]
    Failed(Arc<outbound::SendError>),
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
        priorities: &Priorities,
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
            shedding: config
                .adaptive
                .as_ref()
                .and_then(|it| Shedding::new(it, priorities)),
            priorities: priorities.clone(),
            _checks: checks,
        }))
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns what denies requests if the servers are saturated.
    pub(crate) fn shedding(&self) -> Option<&Shedding> {
        self.shedding.as_ref()
    }

    /// Returns when a request that begins now has taken too long in all.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let limit = self.config.timeout?;
        Some(Instant::now() + Duration::from(limit))
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
        let count = self.servers.len();
        if let ([], 1) = (tried, count) {
            return Some(0);
        }
        let now = Instant::now();
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
            idle: PerWorker::default(),
            is_http2: AtomicBool::new(config.protocol == UpstreamProtocol::Http2),
            shared: SharedConnections::default(),
            shares: Shares::of(config.max_connections),
        })
    }

    /// Returns a connection for one request of `client`, before `deadline`. The client is `None` if it has no bound.
    async fn take(
        self: &Arc<Server>,
        need: Need,
        client: Option<IpAddr>,
        deadline: Option<Instant>,
    ) -> Result<(Connection, OpenRequest), TakeError> {
        let share = client.map(|it| self.share(it)).transpose()?;
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let waiting = Arc::clone(&self.permits).acquire_owned();
                let permit = timeout_at(self.connect_before(deadline), waiting).await;
                let permit = permit.map_err(|_| TakeError::Busy)?;
                permit.map_err(|_| TakeError::Busy)?
            }
        };
        self.open.fetch_add(1, Ordering::Relaxed);
        let mut open = OpenRequest {
            server: Arc::clone(self),
            _permit: permit,
            _stream: None,
            _share: share,
        };
        let (connection, stream) = self.reach(need, deadline).await?;
        open._stream = stream;
        Ok((connection, open))
    }

    /// Counts a request of `client`.
    fn share(self: &Arc<Server>, client: IpAddr) -> Result<Share, TakeError> {
        match self.shares.take(client) {
            true => Ok(Share {
                server: Arc::clone(self),
                client,
            }),
            false => Err(TakeError::ClientBusy),
        }
    }

    /// Returns when a request with this deadline stops waiting for a connection.
    fn connect_before(&self, deadline: Option<Instant>) -> Instant {
        let before = Instant::now() + self.connect_timeout;
        deadline.map_or(before, |it| it.min(before))
    }

    /// Returns a connection that was kept or has room, or opens one.
    async fn reach(
        &self,
        need: Need,
        deadline: Option<Instant>,
    ) -> Result<(Connection, Option<StreamPlace>), TakeError> {
        if need == Need::Http1 || !self.is_http2.load(Ordering::Relaxed) {
            if need == Need::Any
                && let Some(kept) = self.take_kept().await
            {
                return Ok((kept, None));
            }
            return self.connect(need, self.connect_before(deadline)).await;
        }
        let started = Instant::now();
        if let Some(connection) = self.take_shared() {
            return Ok(connection);
        }
        let before = self.connect_before(deadline);
        let opening = timeout_at(before, self.shared.opening.lock()).await;
        let mut failed = opening.map_err(|_| TakeError::TimedOut)?;
        // Another request may have opened a connection meanwhile, or have failed.
        if let Some(connection) = self.take_shared() {
            return Ok(connection);
        }
        if let Some(Failure { at, error }) = &*failed
            && *at >= started
        {
            return Err(error.clone());
        }
        let connected = self.connect(need, before).await;
        *failed = connected.as_ref().err().map(|error| Failure {
            at: Instant::now(),
            error: error.clone(),
        });
        connected
    }

    /// Returns a shared connection that has room, if there is one.
    fn take_shared(&self) -> Option<(Connection, Option<StreamPlace>)> {
        let (sender, place) = self.shared.take()?;
        Some((Connection::Http2(sender), Some(place)))
    }

    /// Returns a connection over HTTP/1 that was kept, if there is one.
    async fn take_kept(&self) -> Option<Connection> {
        loop {
            let Idle { mut http1, since } = self.idle.own().lock().pop()?;
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

    async fn connect(
        &self,
        need: Need,
        before: Instant,
    ) -> Result<(Connection, Option<StreamPlace>), TakeError> {
        let opening = self.connector.open(need == Need::Http1, self.shared.most());
        let opened = timeout_at(before, opening).await;
        let opened = opened.map_err(|_| TakeError::TimedOut)?;
        Ok(
            match opened.map_err(|error| TakeError::Failed(Arc::new(error)))? {
                Opened::Http1(http1) => {
                    if need != Need::Http1 {
                        // The server has agreed on HTTP/1: connections over HTTP/1 are kept from now on.
                        self.is_http2.store(false, Ordering::Relaxed);
                    }
                    let is_reused = false;
                    (Connection::Http1 { http1, is_reused }, None)
                }
                Opened::Http2(http2) => {
                    self.is_http2.store(true, Ordering::Relaxed);
                    let (sender, place) = self.shared.add(http2);
                    (Connection::Http2(sender), Some(place))
                }
            },
        )
    }

    /// Keeps a connection for the next request.
    fn keep(&self, http1: Box<Http1>) {
        let mut idle = self.idle.own().lock();
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

/// Runs for ever: closes connections that were idle for too long.
async fn close_idle(server: Arc<Server>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT / 4).await;
        server.shared.close_idle();
        for idle in server.idle.iter() {
            // The oldest connections are at the front.
            let old: Vec<Idle> = {
                let mut idle = idle.lock();
                let old = idle.partition_point(|it| it.since.elapsed() >= IDLE_TIMEOUT);
                idle.drain(..old).collect()
            };
            drop(old);
        }
    }
}

/// Runs for ever: asks a server whether it works.
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
    pub(crate) fn upstreams(&self, config: &UpstreamsConfig, priorities: &Priorities) -> Upstreams {
        let mut known = self.0.lock();
        let mut by_name = HashMap::new();
        for (name, wanted) in config.iter() {
            let is_same =
                |it: &&Arc<Upstream>| it.config == *wanted && it.priorities == *priorities;
            let same = known.get(name).filter(is_same).cloned();
            let upstream = match same {
                Some(same) => same,
                None => match Upstream::new(name, wanted, priorities) {
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
