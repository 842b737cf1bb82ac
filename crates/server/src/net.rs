//! Listeners: connections accepted within a bound, encrypted if so configured, and cut off when a
//! client does not take what it is sent.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;

use tollgate_rules::Listen;

use crate::tls::{Tls, TlsError};

/// The most connections of a listener at a time; more wait to be accepted.
pub const MAX_CONNECTIONS: usize = 10_000;
/// How many connections may wait to be accepted. The system drops more, and their clients try again a
/// second later.
const BACKLOG: u32 = 4096;
/// How long a TLS handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may lie unread before the connection is cut.
pub const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a listener cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else listens there, or nobody may.
    #[error("cannot listen on {address}: {error}")]
    Address {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// There is no TLS to listen with.
    #[error("TLS cannot be had: {0}")]
    Tls(#[from] TlsError),
    /// There is no password to ask for.
    #[error("the password cannot be read: {0}")]
    Password(io::Error),
}

/// A bound address, ready to accept.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<Arc<Tls>>,
    places: Arc<Semaphore>,
    /// Reads the files of TLS again when they change, as long as this listens.
    _watching: JoinSet<()>,
}

impl Listener {
    /// Listens on `address`, in plain text unless `tls` is given; port 0 takes a free one.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub async fn bind(address: SocketAddr, tls: Option<Arc<Tls>>) -> io::Result<Listener> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Connections of a server that ended just now do not keep the next from starting.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let mut watching = JoinSet::new();
        if let Some(tls) = &tls {
            watching.spawn(Arc::clone(tls).watch());
        }
        Ok(Listener {
            tcp: socket.listen(BACKLOG)?,
            tls,
            places: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            _watching: watching,
        })
    }

    /// Listens as a config says, for clients that speak `protocols` (ALPN), the preferred first.
    ///
    /// # Errors
    /// If the files of TLS are not right, or the address cannot be had.
    pub async fn open(listen: &Listen, protocols: &[&str]) -> Result<Listener, ListenError> {
        let tls = match &listen.tls {
            Some(files) => Some(Tls::new(files.clone(), protocols)?),
            None => None,
        };
        let address = listen.address;
        let cannot = |error| ListenError::Address { address, error };
        Listener::bind(address, tls).await.map_err(cannot)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The next connection, once there is a place for it. What goes wrong with one connection does
    /// not keep the next from coming.
    pub async fn accept(&self) -> Accepted {
        loop {
            match self.try_accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // Out of file descriptors, most likely: give connections time to close.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn try_accept(&self) -> io::Result<Accepted> {
        let place = Arc::clone(&self.places)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let (stream, peer) = self.tcp.accept().await?;
        stream.set_nodelay(true)?;
        // The system cuts off a client that does not take its answer.
        SockRef::from(&stream).set_tcp_user_timeout(Some(READ_TIMEOUT))?;
        Ok(Accepted {
            stream,
            tls: self.tls.clone(),
            peer,
            place,
        })
    }
}

/// Who connects, as requests carry it in their extensions. Those of HTTP doors do; whoever mounts
/// routes in a server of their own inserts it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A connection whose client has not said anything yet.
pub struct Accepted {
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    /// Who connects.
    pub peer: SocketAddr,
    /// Held as long as the connection lives.
    place: OwnedSemaphorePermit,
}

impl Accepted {
    /// The stream, once both sides agree on how to encrypt it, and the place it holds. To be called
    /// on the connection's own task: a handshake takes as long as the client does.
    ///
    /// # Errors
    /// If the handshake fails, or takes too long.
    pub async fn handshake(self) -> io::Result<(Stream, OwnedSemaphorePermit)> {
        let stream = match self.tls {
            None => Stream::Plain(self.stream),
            Some(tls) => {
                let handshake = tls.acceptor().accept(self.stream);
                let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
                    .await
                    .map_err(|_| io::ErrorKind::TimedOut)??;
                Stream::Tls(Box::new(stream))
            }
        };
        Ok((stream, self.place))
    }
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub enum Stream {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Whether both sides have agreed on HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
