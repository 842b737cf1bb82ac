//! Sends spans over HTTP, one connection for each batch.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;
use tollgate_config::OtlpUrl;

use super::TraceError;
use crate::outbound::{Peer, Seldom};

/// Sends to one collector. Holds a Tokio runtime, because the caller has none.
pub(super) struct Client {
    to: Arc<Peer>,
    runtime: Handle,
    timeout: Duration,
    failures: Seldom,
}

impl Client {
    pub(super) fn new(url: &OtlpUrl, timeout: Duration) -> Result<Client, TraceError> {
        let peer = Peer::new(&url.host, url.port, url.tls);
        let peer = peer.map_err(|error| TraceError(format!("{url}: {error}")))?;
        Ok(Client {
            to: Arc::new(peer),
            runtime: Handle::current(),
            timeout,
            failures: Seldom::default(),
        })
    }

    fn log(&self, error: &dyn fmt::Display) {
        if let Some(others) = self.failures.due() {
            tracing::warn!(%error, others, "failed to send traces");
        }
    }
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
            Ok(response) => self.log(&format_args!(
                "the collector answered {}",
                response.status()
            )),
            Err(error) => self.log(error),
        }
        sent
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("host", &self.to.host())
            .finish_non_exhaustive()
    }
}
