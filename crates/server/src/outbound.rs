//! Requests to other servers: one connection for each request.
//!
//! Answers are read within a bound, redirects are not followed, and TLS trusts the system's
//! certificates.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::net::Transport;

/// The largest answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// The least time between two logged problems.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Why a request failed.
pub(crate) type SendError = Box<dyn Error + Send + Sync>;

/// A server to send requests to.
pub(crate) struct Peer {
    host: String,
    port: u16,
    authority: HeaderValue,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Peer {
    /// Makes a peer for the server at `host` and `port`. With `tls`, reads the system's certificates.
    pub(crate) fn new(host: &str, port: u16, tls: bool) -> Result<Peer, SendError> {
        let tls = tls.then(system_tls).transpose()?;
        Peer::with_tls(host, port, tls)
    }

    /// Makes a peer for the server at `host` and `port`, with these TLS settings.
    pub(crate) fn with_tls(
        host: &str,
        port: u16,
        tls: Option<ClientConfig>,
    ) -> Result<Peer, SendError> {
        let bracketed = match host.contains(':') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        let usual = if tls.is_some() { 443 } else { 80 };
        let authority = match port == usual {
            true => bracketed,
            false => format!("{bracketed}:{port}"),
        };
        let tls = match tls {
            None => None,
            Some(config) => {
                let name = ServerName::try_from(host.to_owned())?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
        };
        Ok(Peer {
            host: host.to_owned(),
            port,
            authority: HeaderValue::from_str(&authority)?,
            tls,
        })
    }

    /// Returns the peer's host name or address.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Sends a request, and reads the answer.
    pub(crate) async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, SendError> {
        self.exchange(request, |answer: Response<Incoming>| async {
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        })
        .await
    }

    /// Sends a request, and returns only the status of the answer.
    pub(crate) async fn status(&self, request: Request<Bytes>) -> Result<StatusCode, SendError> {
        let status = |answer: Response<Incoming>| std::future::ready(Ok(answer.status()));
        self.exchange(request, status).await
    }

    async fn exchange<T, F: Future<Output = Result<T, SendError>>>(
        &self,
        request: Request<Bytes>,
        read: impl FnOnce(Response<Incoming>) -> F,
    ) -> Result<T, SendError> {
        let (mut parts, body) = request.into_parts();
        // Send only the path: requests with a whole URL are for proxies.
        if let Some(path) = parts.uri.path_and_query() {
            parts.uri = Uri::from(path.clone());
        }
        parts.headers.insert(HOST, self.authority.clone());
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let stream: Box<dyn Transport> = match &self.tls {
            None => Box::new(stream),
            Some((tls, name)) => Box::new(tls.connect(name.clone(), stream).await?),
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let exchange = async {
            let request = Request::from_parts(parts, Full::new(body));
            read(sender.send_request(request).await?).await
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => return answer,
            ended = connection => ended?,
        }
        // The connection ended after the answer was read.
        exchange.await
    }
}

/// Makes TLS settings that trust the system's certificates.
pub(crate) fn system_tls() -> Result<ClientConfig, SendError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(ToString::to_string);
        let why = why.unwrap_or_else(|| "there are no certificates".to_owned());
        return Err(format!("failed to read the system's certificates: {why}").into());
    }
    tls(roots)
}

/// Makes TLS settings that trust `roots`.
pub(crate) fn tls(roots: RootCertStore) -> Result<ClientConfig, SendError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Decides which problems are logged: at most one per second.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<Logged>);

/// When the last problem was logged, and how many were not logged since.
#[derive(Debug, Default)]
struct Logged {
    at: Option<Instant>,
    unlogged: u64,
}

impl Seldom {
    /// Decides whether a problem is logged now. Returns `None` if not. Otherwise returns how many
    /// problems were not logged since the last one that was.
    pub(crate) fn due(&self) -> Option<u64> {
        let mut logged = self.0.lock();
        let now = Instant::now();
        if logged.at.is_some_and(|last| now - last < LOG_EVERY) {
            logged.unlogged += 1;
            return None;
        }
        logged.at = Some(now);
        Some(std::mem::take(&mut logged.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_written_as_in_urls() {
        let authority = |host, port| Peer::new(host, port, false).unwrap().authority;
        assert_eq!(authority("example.com", 80), "example.com");
        assert_eq!(authority("example.com", 443), "example.com:443");
        assert_eq!(authority("::1", 8080), "[::1]:8080");
    }

    #[tokio::test(start_paused = true)]
    async fn problems_are_logged_once_a_second() {
        let seldom = Seldom::default();
        assert_eq!([0; 3].map(|_| seldom.due()), [Some(0), None, None]);
        tokio::time::advance(LOG_EVERY).await;
        assert_eq!([0; 2].map(|_| seldom.due()), [Some(2), None]);
    }
}
