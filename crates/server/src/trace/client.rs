//! Sends spans over HTTP, one connection for each batch.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tollgate_rules::OtlpUrl;

use super::TraceError;

/// The most that a collector may answer.
const MAX_ANSWER: usize = 64 * 1024;

/// How often a failing collector is logged at most.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Sends to one collector, on a runtime of Tokio: who calls it has none.
pub(super) struct Client {
    to: Arc<Collector>,
    runtime: Handle,
    timeout: Duration,
    failures: parking_lot::Mutex<Failures>,
}

struct Collector {
    host: String,
    port: u16,
    authority: HeaderValue,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// When the last failure was logged, and how many there were since.
#[derive(Default)]
struct Failures {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Client {
    pub(super) fn new(url: &OtlpUrl, timeout: Duration) -> Result<Client, TraceError> {
        let text = url.to_string();
        let wrong = |error: &dyn fmt::Display| TraceError(format!("{text}: {error}"));
        let uri: Uri = text.parse().map_err(|error| wrong(&error))?;
        let authority = uri.authority().map_or("", |it| it.as_str());
        let authority = HeaderValue::from_str(authority).map_err(|error| wrong(&error))?;
        let tls = match url.tls {
            false => None,
            true => {
                let name = ServerName::try_from(url.host.clone());
                let name = name.map_err(|error| wrong(&error))?;
                Some((TlsConnector::from(Arc::new(tls()?)), name))
            }
        };
        let collector = Collector {
            host: url.host.clone(),
            port: url.port,
            authority,
            tls,
        };
        Ok(Client {
            to: Arc::new(collector),
            runtime: Handle::current(),
            timeout,
            failures: parking_lot::Mutex::default(),
        })
    }

    fn log(&self, error: &dyn fmt::Display) {
        let mut failures = self.failures.lock();
        let now = Instant::now();
        let is_due = failures
            .logged_at
            .is_none_or(|last| now.duration_since(last) >= LOG_EVERY);
        if !is_due {
            failures.unlogged += 1;
            return;
        }
        failures.logged_at = Some(now);
        let others = std::mem::take(&mut failures.unlogged);
        drop(failures);
        tracing::warn!(%error, others, "traces cannot be sent");
    }
}

/// TLS that believes whom the system believes.
fn tls() -> Result<ClientConfig, TraceError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(ToString::to_string);
        let why = why.unwrap_or_else(|| "there are none".to_owned());
        return Err(TraceError(format!(
            "cannot read the system's certificates: {why}"
        )));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TraceError(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[tonic::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (collector, timeout) = (Arc::clone(&self.to), self.timeout);
        let sending = self.runtime.spawn(async move {
            let sent = tokio::time::timeout(timeout, collector.send(request)).await;
            sent.unwrap_or_else(|_| Err("the collector did not answer in time".into()))
        });
        let sent = sending.await.unwrap_or_else(|error| Err(error.into()));
        match &sent {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => self.log(&format_args!("the collector says {}", response.status())),
            Err(error) => self.log(error),
        }
        sent
    }
}

impl Collector {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        match &self.tls {
            None => self.send_on(stream, request).await,
            Some((tls, name)) => {
                let stream = tls.connect(name.clone(), stream).await?;
                self.send_on(stream, request).await
            }
        }
    }

    async fn send_on(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, HttpError> {
        let (mut parts, body) = request.into_parts();
        // To the server itself, and not to a proxy: the path alone.
        if let Some(path) = parts.uri.path_and_query() {
            parts.uri = Uri::from(path.clone());
        }
        parts.headers.insert(HOST, self.authority.clone());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let exchange = async {
            let request = Request::from_parts(parts, Full::new(body));
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => return answer,
            ended = connection => ended?,
        }
        // It ended with what it has read.
        exchange.await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("host", &self.to.host)
            .finish_non_exhaustive()
    }
}
