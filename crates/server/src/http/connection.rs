//! Accepting connections and serving requests on them, within bounds, until told to stop.
//!
//! A connection speaks HTTP/1 or HTTP/2: what both sides agreed on with TLS, or, without, what the
//! client's first bytes are. All connections hear when the server stops, and the server hears when
//! the last of them has ended.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::activity::Activity;
use super::bounds::{
    DRAIN_TIMEOUT, HEAD_TIMEOUT, IDLE_TIMEOUT, MAX_BODY, MAX_HEADER_BYTES, MAX_HEADERS,
    MAX_STREAMS, READ_TIMEOUT,
};
use crate::net::{Accepted, Listener, Peer, Stream};
use crate::respond::{self, RequestError};

/// How a connection of HTTP/2 starts.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves `routes` on `listener` until `stop` is ready, then lets requests in flight finish.
pub(crate) async fn serve(listener: Listener, routes: Router, stop: impl Future<Output = ()>) {
    let protocols = Arc::new(Protocols::new(routes));
    let (stopping, stopped) = watch::channel(());
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let connection = Connection {
            protocols: Arc::clone(&protocols),
            stopped: stopped.clone(),
        };
        tokio::spawn(async move {
            // A client that breaks off or sends no HTTP is its own affair; hyper has answered it.
            if let Err(error) = connection.serve(accepted).await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop((listener, stopped));
    stopping.send_replace(());
    if tokio::time::timeout(DRAIN_TIMEOUT, stopping.closed())
        .await
        .is_err()
    {
        tracing::warn!("requests were still in flight after {DRAIN_TIMEOUT:?}");
    }
}

/// What all connections share.
struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    routes: TowerToHyperService<Router>,
}

impl Protocols {
    fn new(routes: Router) -> Protocols {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        // What a client has sent and nobody has read yet is bounded by the windows.
        let window = u32::try_from(MAX_BODY).unwrap_or(u32::MAX);
        let heads = u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX);
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(heads)
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .max_send_buf_size(MAX_BODY)
            .keep_alive_interval(READ_TIMEOUT)
            .keep_alive_timeout(READ_TIMEOUT);
        Protocols {
            http1,
            http2,
            routes: TowerToHyperService::new(routes),
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection's share.
struct Connection {
    protocols: Arc<Protocols>,
    /// Dropped when the connection has ended: that is how the server knows.
    stopped: watch::Receiver<()>,
}

impl Connection {
    async fn serve(mut self, accepted: Accepted) -> Result<(), BoxError> {
        let peer = Peer(accepted.peer);
        let greeting = async {
            let (stream, place) = accepted.handshake().await?;
            let started = tokio::time::timeout(HEAD_TIMEOUT, Started::by(stream));
            let started = started.await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok::<_, io::Error>((started, place))
        };
        let (started, _place) = tokio::select! {
            // Nothing was asked on it yet.
            _ = self.stopped.changed() => return Ok(()),
            greeted = greeting => greeted?,
        };
        if started.is_http2 {
            self.serve_http2(started, peer).await
        } else {
            self.serve_http1(started, peer).await
        }
    }

    async fn serve_http1(mut self, started: Started, peer: Peer) -> Result<(), BoxError> {
        let protocols = Arc::clone(&self.protocols);
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            protocols.routes.call(request)
        });
        let connection = protocols
            .http1
            .serve_connection(TokioIo::new(started), service);
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            ended = connection.as_mut() => return Ok(ended?),
            _ = self.stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
        Ok(connection.await?)
    }

    async fn serve_http2(mut self, started: Started, peer: Peer) -> Result<(), BoxError> {
        let protocols = Arc::clone(&self.protocols);
        let activity = Activity::default();
        let routes = protocols.routes.clone();
        let seen = activity.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let at_work = seen.start();
            // Over HTTP/1 this was counted while they were read.
            let answering = if request.headers().len() > MAX_HEADERS {
                None
            } else {
                request.extensions_mut().insert(peer);
                Some(routes.call(request))
            };
            async move {
                let _at_work = at_work;
                match answering {
                    Some(answering) => answering.await,
                    None => Ok(respond::error(&RequestError::TooManyHeaders)),
                }
            }
        });
        let connection = protocols
            .http2
            .serve_connection(TokioIo::new(started), service);
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            ended = connection.as_mut() => return Ok(ended?),
            _ = self.stopped.changed() => {}
            () = activity.ceases(IDLE_TIMEOUT) => {}
        }
        connection.as_mut().graceful_shutdown();
        // Answers that nobody takes do not keep it open.
        let ended = tokio::time::timeout(READ_TIMEOUT, connection).await;
        Ok(ended.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??)
    }
}

/// A stream whose first bytes were read, to see which protocol it speaks. They are read again by
/// whoever reads the stream.
struct Started {
    stream: Stream,
    is_http2: bool,
    first: [u8; PREFACE.len()],
    /// How many there are, and how many of them were read again.
    len: usize,
    read: usize,
}

impl Started {
    async fn by(stream: Stream) -> io::Result<Started> {
        let mut started = Started {
            is_http2: stream.is_http2(),
            stream,
            first: [0; PREFACE.len()],
            len: 0,
            read: 0,
        };
        // With TLS both sides have agreed already.
        if let Stream::Plain(stream) = &mut started.stream {
            while started.len < PREFACE.len() && PREFACE.starts_with(&started.first[..started.len])
            {
                let read = stream.read(&mut started.first[started.len..]).await?;
                if read == 0 {
                    break;
                }
                started.len += read;
            }
            started.is_http2 = started.len == PREFACE.len() && started.first == *PREFACE;
        }
        Ok(started)
    }
}

impl AsyncRead for Started {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read < this.len {
            let first = &this.first[this.read..this.len];
            let part = &first[..first.len().min(buffer.remaining())];
            buffer.put_slice(part);
            this.read += part.len();
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Started {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
