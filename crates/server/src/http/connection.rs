//! One HTTP connection: HTTP/1 or HTTP/2, within bounds, until the server stops.
//!
//! A server that drains adds `Connection: close` to its answers over HTTP/1, and closes the connection
//! after each. A server that stops closes idle HTTP/1 connections. It never closes one between the first
//! byte of a request and the answer. HTTP/2 clients get GOAWAY, and an answer to every request that they
//! had sent before they saw it.
//!
//! With TLS both sides agree on the protocol during the handshake. In plain text the client's first
//! bytes decide.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use futures_util::future::{Either, ready};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tower_service::Service;

use super::activity::Activity;
use super::bounds::{
    HEAD_TIMEOUT, IDLE_TIMEOUT, MAX_BODY, MAX_HEADER_BYTES, MAX_HEADERS, MAX_STREAMS, READ_TIMEOUT,
};
use super::guard::Guard;
use super::turn::Turns;
use crate::door_metrics::{DoorMetrics, Fault, HttpMetrics, http_status};
use crate::net::{
    self, Account, Answer, Charge, ConnectionError, Listener, Memory, Peer, Received, SharedPage,
    Stopping, Stream,
};
use crate::respond::{self, RequestError};

/// Returns whether the answer to a request for this path may be large.
pub(crate) type IsLarge = fn(&str) -> bool;

/// The answer of a door to a request.
pub(crate) type Routed = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Passes a request to the handler of its route.
pub(crate) type Routes = Arc<dyn Fn(Request<Received>) -> Routed + Send + Sync>;

/// Returns the routes of `router`.
pub(crate) fn routes_of(router: Router) -> Routes {
    Arc::new(move |request| {
        let answering = router.clone().call(request);
        Box::pin(async move {
            let Ok(answer) = answering.await;
            answer
        })
    })
}

/// Serves `routes` on `listener` until `stop` is ready, drains, and lets open requests finish.
/// `guard` refuses requests of foreign web pages. Answers are counted in `metrics`.
pub(crate) async fn serve(
    listener: Listener,
    routes: Routes,
    is_large: IsLarge,
    guard: Guard,
    metrics: HttpMetrics,
    stop: impl Future<Output = Duration>,
) {
    let protocols = Arc::new(Protocols::new(routes, is_large, guard, metrics));
    let handle = move |stream, peer, stopping| {
        let protocols = Arc::clone(&protocols);
        async move { protocols.serve(stream, Peer(peer), stopping).await }
    };
    net::serve(listener, handle, stop).await;
}

/// The settings and routes that all connections share.
struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    routes: Routes,
    is_large: IsLarge,
    memory: Memory,
    guard: Arc<Guard>,
    metrics: HttpMetrics,
}

impl Protocols {
    fn new(routes: Routes, is_large: IsLarge, guard: Guard, metrics: HttpMetrics) -> Protocols {
        let mut http1 = http1::Builder::new();
        http1
            // The timer of hyper is set anew for each request. `Activity` has one for all of them.
            .header_read_timeout(None)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        // The windows bound the bytes that a client has sent and the server has not read.
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
            routes,
            is_large,
            memory: Memory::default(),
            guard: Arc::new(guard),
            metrics,
        }
    }

    async fn serve(
        &self,
        mut stream: Stream,
        peer: Peer,
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
        if is_http2 {
            return self.serve_http2(stream, peer, stopping).await;
        }
        let account = self.memory.account(peer.0.ip());
        let certificate = stream.certificate.clone();
        let activity = Activity::default();
        let (stream, turn) = Turns::new(stream, activity.clone());
        let stopping = &stopping;
        let service = service_fn(|mut request: Request<Incoming>| {
            let active = activity.start();
            let metrics = self.metrics.of(request.uri().path());
            if let Err(error) = self.guard.check(&request) {
                let answer = last_if(stopping.is_draining(), respond::error(&error));
                count(metrics, &answer);
                let answer = answer.map(|body| Answer::single(body, &account, None));
                return Either::Left(ready(Ok(answer)));
            }
            request.extensions_mut().insert(peer);
            if let Some(certificate) = &certificate {
                request.extensions_mut().insert(Arc::clone(certificate));
            }
            let large = (self.is_large)(request.uri().path());
            let charge = large.then(|| admit(&account, true)).transpose();
            let answering = (self.routes)(received(request, &account));
            let account = account.clone();
            Either::Right(async move {
                let (answer, charge) = match charge {
                    Ok(charge) => (answering.await, charge),
                    Err(error) => (respond::error(&error), None),
                };
                let answer = last_if(stopping.is_draining(), answer);
                count(metrics, &answer);
                let page = answer.extensions().get::<SharedPage>().copied();
                let counted = |body| {
                    let answer = Answer::single(body, &account, charge).of_page(page);
                    answer.while_active(active)
                };
                Ok::<_, Infallible>(answer.map(counted))
            })
        });
        let mut connection = pin!(self.http1.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            biased;
            ended = connection.as_mut() => return Ok(ended?),
            () = stopping.last_call() => {}
            // The client has sent no request, or only a part of its head.
            () = activity.idle_for(HEAD_TIMEOUT) => return Ok(()),
        }
        // The answer to a request that has begun to arrive ends the connection. hyper does not wait for
        // the rest of a head.
        if !turn.is_of_server() {
            connection.as_mut().graceful_shutdown();
        }
        tokio::select! {
            biased;
            ended = connection.as_mut() => Ok(ended?),
            () = activity.idle_for(HEAD_TIMEOUT) => Ok(()),
        }
    }

    async fn serve_http2(
        &self,
        stream: Stream,
        peer: Peer,
        stopping: Stopping,
    ) -> Result<(), ConnectionError> {
        let activity = Activity::default();
        let account = self.memory.account(peer.0.ip());
        let certificate = stream.certificate.clone();
        let (routes, counted) = (self.routes.clone(), activity.clone());
        let (is_large, counting) = (self.is_large, account.clone());
        let (guard, metrics) = (Arc::clone(&self.guard), self.metrics.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            let active = counted.start();
            let metrics = Arc::clone(metrics.of(request.uri().path()));
            let is_large = is_large(request.uri().path());
            // HTTP/1 checks the number of headers while it reads the head.
            let checked = match request.headers().len() > MAX_HEADERS {
                true => Err(RequestError::TooManyHeaders { limit: MAX_HEADERS }),
                false => guard.check(&request),
            };
            let answering = checked.map(|()| {
                request.extensions_mut().insert(peer);
                if let Some(certificate) = &certificate {
                    request.extensions_mut().insert(Arc::clone(certificate));
                }
                routes(received(request, &counting))
            });
            let account = counting.clone();
            async move {
                // Admit the request only now, when the answers to earlier requests are counted.
                let admitted = admit(&account, is_large);
                let (charge, answer) = match (admitted, answering) {
                    (Ok(charge), Ok(answering)) => (charge, answering.await),
                    (Err(error), _) | (_, Err(error)) => {
                        (account.charge(0), respond::error(&error))
                    }
                };
                count(&metrics, &answer);
                let page = answer.extensions().get::<SharedPage>().copied();
                let counted = |body| {
                    let answer = Answer::stream(body, charge).of_page(page);
                    answer.while_active(active)
                };
                Ok::<_, Infallible>(answer.map(counted))
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
        // A client that does not read its answers cannot keep the connection open.
        let ended = tokio::time::timeout(READ_TIMEOUT, connection).await;
        Ok(ended.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??)
    }
}

/// Marks the answer as the last one of its HTTP/1 connection, if so wanted.
fn last_if(is_last: bool, mut answer: Response) -> Response {
    if is_last {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    answer
}

/// Counts an answer.
#[inline]
fn count(metrics: &DoorMetrics, answer: &Response) {
    metrics.answered(http_status(answer.status()), 1);
    if let Some(fault) = answer.extensions().get::<Fault>() {
        metrics.bad_request(*fault);
    }
}

/// Lets a request in if its connection has room for the answer.
fn admit(account: &Account, is_large: bool) -> Result<Charge, RequestError> {
    let bytes = if is_large { account.large_answer() } else { 0 };
    match account.has_room_for(bytes) {
        true => Ok(account.charge(bytes)),
        false => Err(RequestError::NoRoom),
    }
}

/// Counts the body of a request while it arrives.
fn received(request: Request<Incoming>, account: &Account) -> Request<Received> {
    let (head, body) = request.into_parts();
    let body = Received::new(body, &head.headers, account);
    Request::from_parts(head, body)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use axum::body::{Body, Bytes};
    use futures_util::stream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, sleep, timeout};
    use tollgate_config::Listen;

    use super::*;
    use crate::http::guard::GuardedDoor;

    const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
    /// How often a stream has an event.
    const EVERY: Duration = Duration::from_secs(15);
    const EVENTS: usize = 40;
    const EVENT: &[u8] = b"data: 1\n\n";

    /// Returns the settings of a door that answers each request with a stream of events.
    fn protocols() -> Protocols {
        let routes: Routes = Arc::new(|_| {
            let events = stream::unfold(0, |sent| async move {
                sleep(EVERY).await;
                let event = Ok::<_, Infallible>(Bytes::from_static(EVENT));
                (sent < EVENTS).then_some((event, sent + 1))
            });
            Box::pin(ready(Response::new(Body::from_stream(events))))
        });
        let guard = Guard::new(GuardedDoor::Http, PEER, &Listen::new(PEER, None));
        let metrics = HttpMetrics {
            door: Arc::default(),
            auth: None,
        };
        Protocols::new(routes, |_| false, guard, metrics)
    }

    /// A connection with an open stream is not idle. When the stream has ended, it is.
    #[tokio::test(start_paused = true)]
    async fn stream_over_http1_is_not_cut_as_idle() {
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        let (_stop, stopping) = Stopping::channel();
        let protocols = protocols();
        let serving = protocols.serve(Stream::new(server, Some(false)), Peer(PEER), stopping);
        let asking = async {
            let request = b"GET /events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
            client.write_all(request).await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            let events = answer.windows(EVENT.len()).filter(|it| *it == EVENT);
            assert_eq!(events.count(), EVENTS);
        };
        let both = async { tokio::join!(serving, asking) };
        let most = EVERY * 2 * u32::try_from(EVENTS).unwrap();
        drop(timeout(most, both).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn stream_over_http2_is_not_cut_as_idle() {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let (_stop, stopping) = Stopping::channel();
        let protocols = protocols();
        let serving = protocols.serve(Stream::new(server, Some(true)), Peer(PEER), stopping);
        let asking = async {
            let (requests, connection) = h2::client::handshake(client).await.unwrap();
            let connection = tokio::spawn(connection);
            let mut requests = requests.ready().await.unwrap();
            let request = Request::get("http://127.0.0.1/events").body(()).unwrap();
            let (answer, _) = requests.send_request(request, true).unwrap();
            let mut body = answer.await.unwrap().into_body();
            let mut received = 0;
            while let Some(event) = body.data().await {
                let bytes = event.unwrap().len();
                body.flow_control().release_capacity(bytes).unwrap();
                received += bytes;
            }
            assert_eq!(received, EVENTS * EVENT.len());
            // The client keeps its handle for requests, and answers pings.
            let ended = Instant::now();
            connection.await.unwrap().unwrap();
            assert!(ended.elapsed() >= IDLE_TIMEOUT);
            drop(requests);
        };
        let both = async { tokio::join!(serving, asking) };
        let most = EVERY * 2 * u32::try_from(EVENTS).unwrap();
        drop(timeout(most, both).await.unwrap());
    }
}
