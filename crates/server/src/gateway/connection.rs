//! One connection of a client: HTTP/1 or HTTP/2, within bounds, until the server stops.
//!
//! Bodies are passed on while they arrive, so a connection holds only what its buffers and windows allow: their
//! bytes are not counted as held memory. Answers of the gateway itself are counted. In all other respects a
//! connection works as at the HTTP door: see `http::connection`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::{CONNECTION, HeaderValue};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::bounds::{CONNECTION_WINDOW, MAX_HEADER_BYTES, MAX_HEADERS, MAX_STREAMS, STREAM_WINDOW};
use super::relay::GatewayBody;
use super::tunnel::TunnelPlace;
use super::{Arrival, Gateway};
use crate::door_metrics::{DoorMetrics, Fault, http_status};
use crate::http::activity::Activity;
use crate::http::bounds::{HEAD_TIMEOUT, IDLE_TIMEOUT};
use crate::http::turn::Turns;
use crate::net::{self, Answer, ConnectionError, Listener, Memory, READ_TIMEOUT, Stopping, Stream};

/// Serves on `listener` until `stop` is ready, drains, and lets open requests finish.
pub(super) async fn serve(
    listener: Listener,
    gateway: Arc<Gateway>,
    stop: impl Future<Output = Duration>,
) {
    let metrics = Arc::clone(listener.metrics());
    let protocols = Arc::new(Protocols::new(gateway, metrics));
    let handle = move |stream, peer, stopping| {
        let protocols = Arc::clone(&protocols);
        async move { protocols.serve(stream, peer, stopping).await }
    };
    net::serve(listener, handle, stop).await;
}

/// The settings that all connections share.
struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    gateway: Arc<Gateway>,
    memory: Memory,
    metrics: Arc<DoorMetrics>,
}

impl Protocols {
    fn new(gateway: Arc<Gateway>, metrics: Arc<DoorMetrics>) -> Protocols {
        let mut http1 = http1::Builder::new();
        http1
            // The timer of hyper is set anew for each request. `Activity` has one for all of them.
            .header_read_timeout(None)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        let heads = u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX);
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(heads)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(MAX_HEADER_BYTES)
            .keep_alive_interval(READ_TIMEOUT)
            .keep_alive_timeout(READ_TIMEOUT);
        Protocols {
            http1,
            http2,
            gateway,
            memory: Memory::default(),
            metrics,
        }
    }

    async fn serve(
        &self,
        mut stream: Stream,
        peer: SocketAddr,
        stopping: Stopping,
    ) -> Result<(), ConnectionError> {
        let is_http2 = match stream.is_http2 {
            Some(is_http2) => is_http2,
            None => {
                let reading = stream.read_preface_before(&stopping);
                let read = tokio::time::timeout(HEAD_TIMEOUT, reading).await;
                match read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
                    Some(is_http2) => is_http2,
                    None => return Ok(()),
                }
            }
        };
        match is_http2 {
            // Few clients speak HTTP/2: the others need no memory for it.
            true => Box::pin(self.serve_http2(stream, peer, stopping)).await,
            false => self.serve_http1(stream, peer, &stopping).await,
        }
    }

    async fn serve_http1(
        &self,
        stream: Stream,
        peer: SocketAddr,
        stopping: &Stopping,
    ) -> Result<(), ConnectionError> {
        let account = self.memory.account(peer.ip());
        let certificate = stream.certificate.clone();
        let (tunnel, activity) = (TunnelPlace::default(), Activity::default());
        let (stream, turn) = Turns::new(stream, activity.clone());
        let service = service_fn(|request: Request<Incoming>| {
            let (account, tunnel, certificate) = (&account, &tunnel, certificate.as_deref());
            let active = activity.start();
            // hyper keeps the room of this future as long as the connection is open. The box ends with the
            // head of the answer, so that an open stream does not hold it.
            Box::pin(async move {
                let from = Arrival {
                    peer,
                    account,
                    certificate,
                    tunnel: Some(tunnel),
                };
                let mut answer = self.gateway.handle(request, from).await;
                if stopping.is_draining() && !answer.status().is_informational() {
                    let close = HeaderValue::from_static("close");
                    answer.headers_mut().insert(CONNECTION, close);
                }
                count(&self.metrics, &answer);
                Ok::<_, Infallible>(answer.map(|body| body.while_active(active)))
            })
        });
        {
            let connection = self.http1.serve_connection(TokioIo::new(stream), service);
            let mut connection = pin!(connection.with_upgrades());
            let ended = tokio::select! {
                biased;
                ended = connection.as_mut() => Some(ended),
                () = stopping.last_call() => None,
                // The client has sent no request, or only a part of its head.
                () = activity.idle_for(HEAD_TIMEOUT) => return Ok(()),
            };
            match ended {
                Some(ended) => ended?,
                None => {
                    // The answer to a request that has begun to arrive ends the connection. hyper does
                    // not wait for the rest of a head.
                    if !turn.is_of_server() {
                        connection.as_mut().graceful_shutdown();
                    }
                    tokio::select! {
                        biased;
                        ended = connection.as_mut() => ended?,
                        () = activity.idle_for(HEAD_TIMEOUT) => return Ok(()),
                    }
                }
            }
        }
        // The connection has left HTTP.
        let left = tunnel.lock().take();
        if let Some(tunnel) = left {
            Box::pin(tunnel.run()).await;
        }
        Ok(())
    }

    async fn serve_http2(
        &self,
        stream: Stream,
        peer: SocketAddr,
        stopping: Stopping,
    ) -> Result<(), ConnectionError> {
        let activity = Activity::default();
        let account = self.memory.account(peer.ip());
        let (gateway, metrics) = (Arc::clone(&self.gateway), Arc::clone(&self.metrics));
        let (counted, counting) = (activity.clone(), account.clone());
        let certificate = stream.certificate.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let active = counted.start();
            let (gateway, metrics) = (Arc::clone(&gateway), Arc::clone(&metrics));
            let (account, certificate) = (counting.clone(), certificate.clone());
            async move {
                let from = Arrival {
                    peer,
                    account: &account,
                    certificate: certificate.as_deref(),
                    tunnel: None,
                };
                let answer = gateway.handle(request, from).await;
                count(&metrics, &answer);
                let charge = account.charge(0);
                let body = |body: GatewayBody| {
                    let is_relayed = body.is_relayed();
                    let body = body.without_size().while_active(active);
                    Answer::stream(body, charge).shared(is_relayed)
                };
                Ok::<_, Infallible>(answer.map(body))
            }
        });
        let mut connection = pin!(self.http2.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            biased;
            ended = connection.as_mut() => return Ok(ended?),
            () = account.untaken() => return Err(net::AnswerNotTaken.into()),
            () = stopping.wait() => {}
            () = activity.idle_for(IDLE_TIMEOUT) => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            ended = connection.as_mut() => Ok(ended?),
            // A client that does not read its answers cannot keep the connection open.
            () = account.untaken() => Err(net::AnswerNotTaken.into()),
        }
    }
}

/// Counts an answer.
fn count(metrics: &DoorMetrics, answer: &Response<GatewayBody>) {
    metrics.answered(http_status(answer.status()), 1);
    if let Some(fault) = answer.extensions().get::<Fault>() {
        metrics.bad_request(*fault);
    }
}
