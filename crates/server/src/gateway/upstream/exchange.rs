//! One request and its answer, with repeats where that is safe.
//!
//! A request goes to another server if no connection was made, or if nothing of the request was sent. If it
//! was sent and got no answer, it is repeated only if its method is idempotent and its body is known. A
//! connection that was kept may have been closed by the server meanwhile: then a new connection to the same
//! server is tried first. A request that timed out is not repeated.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use http::header::{HOST, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version};
use hyper::body::{Body, Incoming};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::connect::SendError;
use super::{
    Connection, Http1, Need, OpenRequest, Server, TakeError, Upstream, host_for, host_value,
};
use crate::gateway::client_body::{BodyError, ClientBody, Progress};
use crate::gateway::silence::Silence;

/// A request to an upstream.
pub(in crate::gateway) struct Outbound {
    pub(in crate::gateway) method: Method,
    pub(in crate::gateway) target: PathAndQuery,
    /// The host that the client asked for.
    pub(in crate::gateway) host: Authority,
    /// Without `Host`.
    pub(in crate::gateway) headers: HeaderMap,
    pub(in crate::gateway) body: ClientBody,
    /// When the request has taken too long in all.
    pub(in crate::gateway) deadline: Option<Instant>,
    /// The client, as the bound on its share of a server knows it; `None` for a trusted proxy.
    pub(in crate::gateway) client: Option<IpAddr>,
}

/// The head of an answer, and what its body needs.
pub(in crate::gateway) struct Exchanged {
    pub(in crate::gateway) response: Response<Incoming>,
    /// The connection; `None` over HTTP/2.
    pub(in crate::gateway) http1: Option<Box<Http1>>,
    pub(in crate::gateway) open: OpenRequest,
    /// Times the rest of the answer out.
    pub(in crate::gateway) silence: Silence,
    /// The body of the request, if it may still arrive.
    pub(in crate::gateway) progress: Option<Arc<Progress>>,
}

/// Why a request got no answer from its upstream. Clients do not learn which server it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("the service is busy: all connections to it are in use; try again")]
    Busy,
    #[error(
        "the service is busy with this client: the client has half of all connections to it; \
         try again when some of its requests have ended"
    )]
    ClientBusy,
    #[error("the service cannot be reached")]
    Unreachable,
    #[error("the service did not answer in time")]
    TimedOut,
    #[error("the service broke the connection off, or did not speak HTTP")]
    BadAnswer,
    #[error("the body of the request: {0}")]
    Body(BodyError),
}

/// A request that got no answer.
struct Failed {
    error: UpstreamError,
    /// The request, if nothing of it was sent.
    unsent: Option<Outbound>,
}

impl Upstream {
    /// Sends a request, and waits for the head of the answer.
    pub(in crate::gateway) async fn send(
        &self,
        request: Outbound,
    ) -> Result<Exchanged, UpstreamError> {
        let is_upgrade = request.headers.contains_key(UPGRADE);
        let mut need = if is_upgrade { Need::Http1 } else { Need::Any };
        let mut left = self.config.retries;
        let mut tried: SmallVec<[usize; 4]> = SmallVec::new();
        let mut request = request;
        let mut last = UpstreamError::Unreachable;
        let mut again = None;
        loop {
            let index = match again.take() {
                Some(index) => index,
                None => match self.choose(&tried) {
                    Some(index) => index,
                    None => return Err(last),
                },
            };
            let server = &self.servers[index];
            let taking = server.take(need, request.client, request.deadline);
            let (connection, open) = match taking.await {
                Ok(taken) => taken,
                Err(error) => {
                    last = self.note_take_error(server, &error);
                    if request.deadline.is_some_and(|it| it <= Instant::now()) {
                        return Err(UpstreamError::TimedOut);
                    }
                    tried.push(index);
                    if left == 0 || self.choose(&tried).is_none() {
                        return Err(last);
                    }
                    left -= 1;
                    self.counts.repeated.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            };
            let is_reused = matches!(
                &connection,
                Connection::Http1 {
                    is_reused: true,
                    ..
                }
            );
            let is_shared = matches!(&connection, Connection::Http2(_));
            let repeat = if left > 0 || is_reused {
                request.repeat()
            } else {
                None
            };
            let failed = match self.send_on(server, connection, open, request).await {
                Ok(exchanged) => {
                    server.health.answered();
                    return Ok(exchanged);
                }
                Err(failed) => failed,
            };
            let next = failed.unsent.or(repeat);
            let is_passing = matches!(failed.error, UpstreamError::BadAnswer);
            let Some(next) = next.filter(|_| is_passing) else {
                self.note_failure(server, failed.error);
                return Err(failed.error);
            };
            request = next;
            last = failed.error;
            if (is_reused || is_shared) && need == Need::Any {
                // The server may have closed a connection that was kept.
                need = Need::Fresh;
                again = Some(index);
                continue;
            }
            self.note_failure(server, failed.error);
            tried.push(index);
            if left == 0 || self.choose(&tried).is_none() {
                return Err(last);
            }
            left -= 1;
            self.counts.repeated.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_take_error(&self, server: &Server, error: &TakeError) -> UpstreamError {
        let told = match error {
            TakeError::Busy => return UpstreamError::Busy,
            TakeError::ClientBusy => return UpstreamError::ClientBusy,
            TakeError::TimedOut | TakeError::Failed(_) => UpstreamError::Unreachable,
        };
        tracing::debug!(upstream = %self.name, server = %server.url, %error, "failed to connect");
        self.note_failure(server, told);
        told
    }

    /// Counts a request that a server did not answer.
    fn note_failure(&self, server: &Server, error: UpstreamError) {
        if matches!(
            error,
            UpstreamError::Body(_) | UpstreamError::Busy | UpstreamError::ClientBusy
        ) {
            return;
        }
        if server.health.failed(Instant::now()) {
            tracing::warn!(upstream = %self.name, server = %server.url, ?error, "the server fails: other servers get its requests for a while");
        }
    }

    async fn send_on(
        &self,
        server: &Server,
        mut connection: Connection,
        open: OpenRequest,
        request: Outbound,
    ) -> Result<Exchanged, Failed> {
        let progress = request.body.progress();
        let (deadline, client) = (request.deadline, request.client);
        let client_host = request.host.clone();
        let host = host_for(&self.config, server, &client_host);
        let timer = match &mut connection {
            Connection::Http1 { http1, .. } => http1.timer.take(),
            Connection::Http2(_) => None,
        };
        let mut silence = Silence::new(self.config.read_timeout.into(), deadline).with_timer(timer);
        let mut is_late = |context: &mut std::task::Context<'_>| {
            if let Some(progress) = &progress {
                progress.excuse(&mut silence);
            }
            silence.poll(context).is_ready()
        };
        let unsent = |mut error: SendError| {
            let unsent = error.take_message();
            let unsent =
                unsent.map(|it| Outbound::unsent(it, client_host.clone(), deadline, client));
            let error = error.into_error();
            tracing::debug!(upstream = %self.name, %error, "no answer from the upstream");
            // An error of HTTP/2 says only that the stream was reset. So the error of the client's body comes first.
            let bad_body = progress.as_ref().and_then(|it| it.error());
            let bad_body = bad_body.or_else(|| body_error(&error));
            let error = bad_body.map_or(UpstreamError::BadAnswer, UpstreamError::Body);
            Failed { error, unsent }
        };
        // The server need not answer before the client has sent its body.
        let timed_out = || Failed {
            error: match &progress {
                Some(progress) if progress.is_awaited() => UpstreamError::Body(BodyError::TooSlow),
                _ => UpstreamError::TimedOut,
            },
            unsent: None,
        };
        match connection {
            Connection::Http1 { mut http1, .. } => {
                let mut answer = pin!(http1.start(request.over_http1(&host)));
                let answer = poll_fn(|context| {
                    if let Poll::Ready(answer) =
                        http1.poll_with(context, |context| answer.as_mut().poll(context))
                    {
                        return Poll::Ready(Some(answer));
                    }
                    match is_late(context) {
                        true => Poll::Ready(None),
                        false => Poll::Pending,
                    }
                });
                let response = answer.await.ok_or_else(timed_out)?.map_err(unsent)?;
                silence.heard();
                Ok(Exchanged {
                    response,
                    http1: Some(http1),
                    open,
                    silence,
                    progress,
                })
            }
            Connection::Http2(mut sender) => {
                let scheme = if server.url.tls {
                    Scheme::HTTPS
                } else {
                    Scheme::HTTP
                };
                let request = request.over_http2(scheme, host);
                let mut answer = pin!(sender.try_send_request(request));
                let answer = poll_fn(|context| {
                    if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                        return Poll::Ready(Some(answer));
                    }
                    match is_late(context) {
                        true => Poll::Ready(None),
                        false => Poll::Pending,
                    }
                });
                let response = answer.await.ok_or_else(timed_out)?.map_err(unsent)?;
                silence.heard();
                Ok(Exchanged {
                    response,
                    http1: None,
                    open,
                    silence,
                    progress,
                })
            }
        }
    }
}

impl Outbound {
    /// Returns the same request again, if that is safe and possible.
    fn repeat(&self) -> Option<Outbound> {
        if !self.method.is_idempotent() || self.headers.contains_key(UPGRADE) {
            return None;
        }
        Some(Outbound {
            method: self.method.clone(),
            target: self.target.clone(),
            host: self.host.clone(),
            headers: self.headers.clone(),
            body: self.body.repeat()?,
            deadline: self.deadline,
            client: self.client,
        })
    }

    /// Makes the request of a connection over HTTP/1.
    fn over_http1(mut self, host: &Authority) -> Request<ClientBody> {
        self.headers.insert(HOST, host_value(host));
        // For GET, hyper sends no body unless a header tells its length.
        if !self.body.is_end_stream() && self.body.size_hint().exact().is_none() {
            let chunked = HeaderValue::from_static("chunked");
            self.headers.insert(TRANSFER_ENCODING, chunked);
        }
        let mut request = Request::new(self.body);
        *request.method_mut() = self.method;
        *request.uri_mut() = Uri::from(self.target);
        *request.headers_mut() = self.headers;
        request
    }

    /// Makes the request of a connection over HTTP/2.
    fn over_http2(self, scheme: Scheme, host: Authority) -> Request<ClientBody> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(scheme);
        uri.authority = Some(host);
        uri.path_and_query = Some(self.target);
        let mut request = Request::new(self.body);
        *request.method_mut() = self.method;
        // These parts are a URI: there is a path if there is a scheme.
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers;
        request
    }

    /// Takes back a request of which nothing was sent.
    fn unsent(
        request: Request<ClientBody>,
        host: Authority,
        deadline: Option<Instant>,
        client: Option<IpAddr>,
    ) -> Outbound {
        let (mut parts, body) = request.into_parts();
        parts.headers.remove(HOST);
        parts.headers.remove(TRANSFER_ENCODING);
        let target = parts.uri.into_parts().path_and_query;
        Outbound {
            method: parts.method,
            target: target.unwrap_or(PathAndQuery::from_static("/")),
            host,
            headers: parts.headers,
            body,
            deadline,
            client,
        }
    }
}

/// Finds the error of a client's body among the causes of an error.
fn body_error(error: &(dyn std::error::Error + 'static)) -> Option<BodyError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<BodyError>() {
            return Some(*found);
        }
        next = error.source();
    }
    None
}

/// Asks a server for `path`, and returns the status; `None` if there is no answer.
pub(super) async fn status_of(server: &Arc<Server>, path: &str) -> Option<u16> {
    // A check needs no room among the requests: it asks whether the server works, and not whether it is busy.
    let (connection, _stream) = server.reach(Need::Fresh, None).await.ok()?;
    let request = Outbound {
        method: Method::GET,
        target: PathAndQuery::try_from(path).ok()?,
        host: server.authority.clone(),
        headers: HeaderMap::new(),
        body: ClientBody::Empty,
        deadline: None,
        client: None,
    };
    let status = match connection {
        Connection::Http1 { mut http1, .. } => {
            let mut answer = pin!(http1.start(request.over_http1(&server.authority)));
            let answer = poll_fn(|context| http1.poll_with(context, |it| answer.as_mut().poll(it)));
            answer.await.ok()?.status()
        }
        Connection::Http2(mut sender) => {
            let scheme = if server.url.tls {
                Scheme::HTTPS
            } else {
                Scheme::HTTP
            };
            let request = request.over_http2(scheme, server.authority.clone());
            sender.try_send_request(request).await.ok()?.status()
        }
    };
    Some(status.as_u16())
}
