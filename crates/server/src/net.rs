//! Listeners and the one accept loop of all doors.
//!
//! `serve` accepts connections, up to a bound for all clients together and a bound for each client.
//! It sets up TLS if so configured, and calls the door's handler for each connection. `stopping` says
//! how a server ends.

mod answer;
mod closing;
mod memory;
mod peers;
mod request;
mod stopping;
mod stream;
mod workers;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate_config::{Listen, Subjects};

pub(crate) use self::answer::{Answer, SharedPage};
pub(crate) use self::memory::{Account, Charge, Memory};
pub use self::memory::{FREE, LARGE_ANSWER, MAX_HELD, MAX_HELD_BY_CLIENT, MAX_HELD_BY_CONNECTION};
pub(crate) use self::peers::{Peers, client_of};
pub(crate) use self::request::{NoRoom, ReadError, Received, read_whole};
pub use self::stopping::LAST_CALL;
pub(crate) use self::stopping::{Stage, Stopping};
pub(crate) use self::stream::{Stream, Transport};
pub(crate) use self::workers::{PerWorker, Workers};
use crate::access::attempts::Attempts;
use crate::door_metrics::{DoorMetrics, Fault, HttpMetrics, OpenConnection};
use crate::http::guard::{Guard, GuardedDoor};
use crate::tls::{ClientCertificate, Tls, TlsError};

/// The most open connections of a listener. Further connections wait to be accepted.
pub const MAX_CONNECTIONS: usize = 10_000;
/// How many connections may wait to be accepted. The system drops further connections, and their
/// clients try again a second later.
const BACKLOG: u32 = 4096;
/// How long a TLS handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may stay unread before the connection is closed.
pub const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// How long open requests may take to finish when the server stops, after its drain time.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is in use, or may not be used.
    #[error("cannot listen on {address}: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The certificate or the key cannot be used.
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] TlsError),
    /// An upstream of the gateway cannot be used.
    #[error("{0}")]
    Upstream(String),
    /// The access log cannot be opened.
    #[error("failed to open the access log: {0}")]
    AccessLog(io::Error),
    /// The threads of the gateway cannot be started.
    #[error("failed to start the threads that serve connections: {0}")]
    Threads(io::Error),
    /// The file with the password cannot be read.
    #[error("failed to read the password: {0}")]
    Password(io::Error),
}

/// A bound address, ready to accept.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    tls: Option<Arc<Tls>>,
    /// The names and origins of the config.
    listen: Listen,
    /// One permit for each connection that may be open.
    permits: Arc<Semaphore>,
    /// Bounds the connections of each client.
    peers: Arc<Peers>,
    /// The wrong tokens of clients.
    attempts: Arc<Attempts>,
    metrics: Arc<DoorMetrics>,
    /// The counts of forward-auth, if this listener serves it.
    auth_metrics: Arc<DoorMetrics>,
    /// The threads that serve the connections; `None` if the runtime of the listener serves them.
    workers: Option<Workers>,
    /// Reloads the TLS files when they change, for as long as the listener exists.
    _tls_watcher: JoinSet<()>,
}

impl Listener {
    /// Listens on `address`, in plain text unless `tls` is given. Port 0 picks a free port.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn bind(address: SocketAddr, tls: Option<Arc<Tls>>) -> io::Result<Listener> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Without this, connections of a server that just ended would keep the next server from
        // starting.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let mut tls_watcher = JoinSet::new();
        if let Some(tls) = &tls {
            tls_watcher.spawn(Arc::clone(tls).watch());
        }
        Ok(Listener {
            tcp: socket.listen(BACKLOG)?,
            tls,
            listen: Listen::new(address, None),
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            peers: Arc::default(),
            attempts: Arc::default(),
            metrics: Arc::default(),
            auth_metrics: Arc::default(),
            workers: None,
            _tls_watcher: tls_watcher,
        })
    }

    /// Listens as the config says. `protocols` are offered to TLS clients (ALPN), the preferred first.
    ///
    /// # Errors
    /// If the TLS files cannot be used, or the address cannot be bound.
    pub async fn open(listen: &Listen, protocols: &[&str]) -> Result<Listener, ListenError> {
        let tls = match &listen.tls {
            Some(files) => Some(Tls::new(files.clone(), protocols)?),
            None => None,
        };
        let address = listen.address;
        let bound = Listener::bind(address, tls).await;
        let mut bound = bound.map_err(|error| ListenError::Address { address, error })?;
        bound.listen.clone_from(listen);
        Ok(bound)
    }

    /// Bounds each client to `max` open connections, and to a few wrong tokens a second, except the trusted
    /// proxies of `subjects`. By default
    /// the bound is [`MAX_CONNECTIONS_PER_CLIENT`](tollgate_config::MAX_CONNECTIONS_PER_CLIENT), for
    /// every client.
    #[must_use]
    pub fn with_bound_per_client(mut self, max: usize, subjects: &Subjects) -> Listener {
        self.peers = Arc::new(Peers::new(max, subjects));
        self.attempts = Arc::new(Attempts::new(subjects));
        self
    }

    /// Serves the connections on the threads of `workers`, and not on the runtime of the listener.
    pub(crate) fn with_workers(mut self, workers: Workers) -> Listener {
        self.workers = Some(workers);
        self
    }

    /// Returns the counts of the door.
    pub(crate) fn metrics(&self) -> &Arc<DoorMetrics> {
        &self.metrics
    }

    /// Returns the counts of the HTTP door and of forward-auth.
    pub(crate) fn http_metrics(&self) -> HttpMetrics {
        HttpMetrics {
            door: Arc::clone(&self.metrics),
            auth: Some(Arc::clone(&self.auth_metrics)),
        }
    }

    /// Returns the counts of the admin door.
    pub(crate) fn admin_metrics(&self) -> HttpMetrics {
        HttpMetrics {
            door: Arc::clone(&self.metrics),
            auth: None,
        }
    }

    /// Returns what the page of metrics shows of the connections.
    pub(crate) fn connections(&self) -> Connections {
        Connections {
            peers: Arc::clone(&self.peers),
            attempts: Arc::clone(&self.attempts),
            tls: self.tls.clone(),
        }
    }

    /// Returns the wrong tokens of clients.
    pub(crate) fn attempts(&self) -> &Arc<Attempts> {
        &self.attempts
    }

    /// Makes the guard of a door that serves HTTP here.
    pub(crate) fn guard(&self, door: GuardedDoor) -> Guard {
        let address = self.local_addr().unwrap_or(self.listen.address);
        Guard::new(door, address, &self.listen)
    }

    /// Returns the bound address.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Returns whether connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Accepts the next connection once a permit is free. An error of one connection does not
    /// affect the next.
    async fn accept(&self) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            let accepting = async {
                let permit = Arc::clone(&self.permits).acquire_owned().await;
                let permit = permit.map_err(io::Error::other)?;
                let (stream, peer) = self.tcp.accept().await?;
                set_up(&stream)?;
                io::Result::Ok((stream, peer, permit))
            };
            match accepting.await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // Most likely out of file descriptors: give open connections time to close.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // The system closes the connection if the client does not read its answer.
    SockRef::from(stream).set_tcp_user_timeout(Some(READ_TIMEOUT))
}

/// The client did not take an answer.
#[derive(Debug, thiserror::Error)]
#[error("the client read nothing of an answer for {READ_TIMEOUT:?}")]
pub(crate) struct AnswerNotTaken;

pub(crate) type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// The connections of a listener, for the page of metrics.
pub(crate) struct Connections {
    pub(crate) peers: Arc<Peers>,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) tls: Option<Arc<Tls>>,
}

/// Returns whether a connection ended because its client did not take an answer: the server gave up, or
/// the system did (`TCP_USER_TIMEOUT`).
fn is_not_taken(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.is::<AnswerNotTaken>() {
            return true;
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let by_system = error.raw_os_error().is_some();
            if by_system && error.kind() == io::ErrorKind::TimedOut {
                return true;
            }
            // An error that is made of another one hides it from `source`.
            if let Some(inner) = error.get_ref() {
                return is_not_taken(inner);
            }
        }
        next = error.source();
    }
    false
}

/// Returns whether a connection ended because the client's bytes are not HTTP.
fn is_not_http(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    let hyper = error.downcast_ref::<hyper::Error>();
    hyper.is_some_and(hyper::Error::is_parse)
}

/// Serves every connection of `listener` with `handle` until `stop` is ready. The value of `stop` is the
/// drain time: the listener goes on for this long, and connections are told that the server drains. Then
/// the listener closes, and open connections have at most [`STOP_TIMEOUT`] to end.
pub(crate) async fn serve<H, F>(listener: Listener, handle: H, stop: impl Future<Output = Duration>)
where
    H: Fn(Stream, SocketAddr, Stopping) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), ConnectionError>> + Send,
{
    let (stage, stopping) = Stopping::channel();
    let start = |stream, peer: SocketAddr, permit: OwnedSemaphorePermit| {
        let Some(place) = listener.peers.admit(peer.ip()) else {
            return;
        };
        let (handle, tls) = (handle.clone(), listener.tls.clone());
        let stopping = stopping.clone();
        let open = OpenConnection::new(&listener.metrics);
        let (runtime, accepted) = match &listener.workers {
            None => (Handle::current(), Accepted::Here(stream)),
            Some(workers) => (
                workers.next().clone(),
                Accepted::Elsewhere(stream.into_std()),
            ),
        };
        runtime.spawn(async move {
            let served = async {
                let stream = accepted.into_stream()?;
                let stream = match tls {
                    None => Stream::new(stream, None),
                    Some(tls) => tokio::select! {
                        biased;
                        // A handshake needs much memory, and is over soon.
                        stream = Box::pin(handshake(stream, tls)) => stream?,
                        // The client has sent no request yet.
                        () = stopping.last_call() => return Ok(()),
                    },
                };
                handle(stream, peer, stopping).await
            };
            // The client broke the connection off, or does not speak the protocol.
            if let Err(error) = served.await {
                if is_not_taken(&*error) {
                    open.metrics().cut(client_of(peer.ip()));
                } else if is_not_http(&*error) {
                    open.metrics().bad_request(Fault::Protocol);
                }
                tracing::debug!(%peer, %error, "connection ended");
            }
            drop((permit, place, open));
        });
    };
    let drain = accept_until(&listener, &start, stop).await;
    stage.send_replace(Stage::Draining);
    accept_until(&listener, &start, sleep(drain)).await;
    closing::hold_back(&listener.tcp);
    accept_until(&listener, &start, sleep(closing::LAST_HANDSHAKES)).await;
    let permits = Arc::clone(&listener.permits);
    for (stream, peer) in closing::close(listener.tcp) {
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            break;
        };
        let stream = stream.set_nonblocking(true).and_then(|()| {
            let stream = TcpStream::from_std(stream)?;
            set_up(&stream)?;
            Ok(stream)
        });
        if let Ok(stream) = stream {
            start(stream, peer, permit);
        }
    }
    stage.send_replace(Stage::Stopping);
    drop(stopping);
    let ended = tokio::time::timeout(STOP_TIMEOUT, stage.closed()).await;
    if ended.is_err() {
        tracing::warn!("requests were still open {STOP_TIMEOUT:?} after the stop");
    }
}

/// Starts every connection that arrives until `end` is ready.
async fn accept_until<T>(
    listener: &Listener,
    start: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit),
    end: impl Future<Output = T>,
) -> T {
    let mut end = pin!(end);
    loop {
        tokio::select! {
            biased;
            ended = &mut end => return ended,
            (stream, peer, permit) = listener.accept() => start(stream, peer, permit),
        }
    }
}

/// Awaits `future` for at most `limit`; `None` if it takes longer. A future that is ready at once
/// costs no timer.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    match poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
        Poll::Ready(done) => Some(done),
        Poll::Pending => tokio::time::timeout(limit, future).await.ok(),
    }
}

/// The address of the connected peer. The doors put it into the extensions of every HTTP request; a
/// program that mounts the routes in its own server must do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A connection that was accepted.
enum Accepted {
    /// On the runtime that serves it.
    Here(TcpStream),
    /// On another runtime, which has given it away.
    Elsewhere(io::Result<std::net::TcpStream>),
}

impl Accepted {
    /// Takes the connection over into the runtime of this task.
    fn into_stream(self) -> io::Result<TcpStream> {
        match self {
            Accepted::Here(stream) => Ok(stream),
            Accepted::Elsewhere(stream) => TcpStream::from_std(stream?),
        }
    }
}

/// Sets up TLS. Runs on the connection's own task, because a slow client makes a slow handshake.
async fn handshake(stream: TcpStream, tls: Arc<Tls>) -> io::Result<Stream> {
    let handshake = tls.acceptor().accept(stream);
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
    let stream = stream.map_err(|_| io::ErrorKind::TimedOut)??;
    let session = stream.get_ref().1;
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    let certificate = certificate.map(|it| Arc::new(ClientCertificate::of(it)));
    let mut stream = Stream::new(stream, Some(is_http2));
    stream.certificate = certificate;
    Ok(stream)
}
