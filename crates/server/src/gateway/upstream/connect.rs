//! Connections to a server of an upstream: TCP, TLS, and the handshake of HTTP.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tollgate_config::{Upstream as UpstreamConfig, UpstreamProtocol, UpstreamServer};

use crate::gateway::bounds::{CONNECTION_WINDOW, MAX_HEADER_BYTES, MAX_HEADERS, STREAM_WINDOW};
use crate::gateway::client_body::ClientBody;
use crate::gateway::silence::Timer;
use crate::net::{READ_TIMEOUT, Transport};
use crate::outbound;

/// Opens connections to one server.
pub(super) struct Connector {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    protocol: UpstreamProtocol,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

/// A new connection.
pub(super) enum Opened {
    Http1(Box<Http1>),
    Http2(Http2),
}

/// A connection over HTTP/2. A task of its own drives it.
pub(super) struct Http2 {
    pub(super) sender: http2::SendRequest<ClientBody>,
    /// `None` once the connection has ended, so that its sender learns of the end.
    connection: Arc<Mutex<Option<Http2Connection>>>,
}

type Http2Connection = http2::Connection<TokioIo<Box<dyn Transport>>, ClientBody, TokioExecutor>;

impl Http2 {
    /// Returns how many requests the server allows at a time. The server may change this number at any time.
    pub(super) fn most(&self) -> usize {
        let connection = self.connection.lock();
        let connection = connection.as_ref();
        connection.map_or(0, http2::Connection::current_max_send_streams)
    }
}

/// A connection over HTTP/1. The task that uses the connection drives it, so that no other task has to be
/// woken for each request.
pub(crate) struct Http1 {
    sender: http1::SendRequest<ClientBody>,
    connection: http1::Connection<TokioIo<Box<dyn Transport>>, ClientBody>,
    is_open: bool,
    /// The timer of its last request.
    pub(crate) timer: Option<Timer>,
}

/// The error of a request that got no answer. It has the request if nothing of it was sent.
pub(crate) type SendError = hyper::client::conn::TrySendError<Request<ClientBody>>;

impl Http1 {
    /// Drives the connection.
    fn drive(&mut self, context: &mut Context<'_>) {
        if self.is_open {
            self.is_open = Pin::new(&mut self.connection).poll(context).is_pending();
        }
    }

    /// Drives the connection, and returns whether it can take a request.
    pub(crate) fn is_ready(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context);
        self.is_open && self.sender.is_ready()
    }

    /// Drives the connection until `answer` is ready, or nothing more can be done now.
    pub(crate) fn poll_with<T>(
        &mut self,
        context: &mut Context<'_>,
        mut answer: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if let Poll::Ready(done) = answer(context) {
            return Poll::Ready(done);
        }
        self.drive(context);
        answer(context)
    }

    /// Starts to send a request. The future needs [`poll_with`](Self::poll_with) to be driven.
    pub(crate) fn start(
        &mut self,
        request: Request<ClientBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> + Send + use<> {
        self.sender.try_send_request(request)
    }

    /// Takes the connection out of HTTP after an answer with the status 101. Returns the bytes of the new
    /// protocol that have already arrived.
    pub(crate) async fn into_upgraded(mut self) -> hyper::Result<(Box<dyn Transport>, Bytes)> {
        if self.is_open {
            poll_fn(|context| self.connection.poll_without_shutdown(context)).await?;
        }
        let parts = self.connection.into_parts();
        Ok((parts.io.into_inner(), parts.read_buf))
    }
}

impl Connector {
    /// Makes a connector. Reads the certificates if the server needs TLS.
    pub(super) fn new(
        server: &UpstreamServer,
        config: &UpstreamConfig,
    ) -> Result<Connector, outbound::SendError> {
        let tls = match server.tls {
            false => None,
            true => {
                let mut tls = tls_of(config)?;
                tls.alpn_protocols = match config.protocol {
                    UpstreamProtocol::Auto => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
                    UpstreamProtocol::Http1 => vec![b"http/1.1".to_vec()],
                    UpstreamProtocol::Http2 => vec![b"h2".to_vec()],
                };
                let name = config.server_name.as_ref().unwrap_or(&server.host);
                let name = ServerName::try_from(name.clone())?;
                Some((TlsConnector::from(Arc::new(tls)), name))
            }
        };
        let mut http1 = http1::Builder::new();
        http1
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(READ_TIMEOUT)
            .keep_alive_timeout(READ_TIMEOUT);
        Ok(Connector {
            host: server.host.clone(),
            port: server.port,
            tls,
            protocol: config.protocol,
            http1,
            http2,
        })
    }

    /// Opens a connection. With `only_http1`, the connection speaks HTTP/1 or there is none. An HTTP/2 server is
    /// assumed to allow `most` requests at a time, until it has told its bound.
    pub(super) async fn open(
        &self,
        only_http1: bool,
        most: usize,
    ) -> Result<Opened, outbound::SendError> {
        let (stream, is_http2) = self.transport(only_http1).await?;
        if !is_http2 {
            let (sender, connection) = self.http1.handshake(TokioIo::new(stream)).await?;
            return Ok(Opened::Http1(Box::new(Http1 {
                sender,
                connection,
                is_open: true,
                timer: None,
            })));
        }
        let mut http2 = self.http2.clone();
        http2.initial_max_send_streams(most);
        let (sender, connection) = http2.handshake(TokioIo::new(stream)).await?;
        let connection = Arc::new(Mutex::new(Some(connection)));
        let driven = Arc::clone(&connection);
        tokio::spawn(async move {
            let ended = poll_fn(|context| match &mut *driven.lock() {
                Some(connection) => Pin::new(connection).poll(context),
                None => Poll::Ready(Ok(())),
            });
            let ended = ended.await;
            *driven.lock() = None;
            if let Err(error) = ended {
                tracing::debug!(%error, "connection to an upstream ended");
            }
        });
        Ok(Opened::Http2(Http2 { sender, connection }))
    }

    /// Connects. Returns whether the connection speaks HTTP/2.
    async fn transport(&self, only_http1: bool) -> io::Result<(Box<dyn Transport>, bool)> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let Some((connector, name)) = &self.tls else {
            let is_http2 = self.protocol == UpstreamProtocol::Http2 && !only_http1;
            return Ok((Box::new(stream), is_http2));
        };
        let connecting = match only_http1 {
            false => connector.connect(name.clone(), stream),
            true => {
                let mut config = ClientConfig::clone(connector.config());
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                TlsConnector::from(Arc::new(config)).connect(name.clone(), stream)
            }
        };
        let stream = connecting.await?;
        let agreed = stream.get_ref().1.alpn_protocol();
        let is_http2 = agreed == Some(b"h2");
        if self.protocol == UpstreamProtocol::Http2 && !is_http2 && !only_http1 {
            return Err(io::Error::other("the server does not speak HTTP/2"));
        }
        Ok((Box::new(stream), is_http2))
    }
}

/// Makes the TLS settings of an upstream.
fn tls_of(config: &UpstreamConfig) -> Result<ClientConfig, outbound::SendError> {
    let Some(path) = &config.ca else {
        return outbound::system_tls();
    };
    let wrong = |what: String| format!("ca: {}: {what}", path.display());
    let mut roots = RootCertStore::empty();
    let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    for certificate in read {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("the file has no certificate".to_owned()).into());
    }
    outbound::tls(roots)
}
