//! Sends spans to a collector, within bounds.
//!
//! Spans wait in a bounded queue, and a separate thread sends them. If the collector is slow or down,
//! spans are lost, but no decision waits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider,
};
use tokio::runtime::Handle;
use tollgate::TRACES;
use tollgate_config::{OtlpUrl, Telemetry};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use crate::outbound::{Peer, Seldom};

/// The most waiting spans, the most in a batch, and the time between batches.
const MAX_QUEUE: usize = 8192;
const MAX_BATCH: usize = 512;
const SEND_EVERY: Duration = Duration::from_secs(2);

/// How long a collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server that stops waits until the last spans are sent.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("telemetry.otlp: {0}")]
pub struct TraceError(String);

/// Sends spans to a collector.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

/// Returns a layer that sends the spans of decisions to a collector, and the handle that stops it;
/// `None` if the config has no collector. Call it within a Tokio runtime.
///
/// # Errors
/// If the system's certificates are needed and cannot be read, or if an OpenTelemetry environment
/// variable asks for something unsupported.
pub fn export<S>(
    telemetry: &Telemetry,
) -> Result<Option<(impl Layer<S> + use<S>, Exporter)>, TraceError>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let Some(url) = &telemetry.otlp else {
        return Ok(None);
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new(url)?)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{url}/v1/traces"))
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|error| TraceError(error.to_string()))?;
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(MAX_QUEUE)
        .with_max_export_batch_size(MAX_BATCH)
        .with_scheduled_delay(SEND_EVERY)
        .build();
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches);
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor.build())
        // The doors have sampled before they open a span.
        .with_sampler(Sampler::AlwaysOn)
        .with_resource(resource())
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("tollgate"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_level(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false)
        .with_filter(Sampling {
            share: telemetry.sample,
        });
    Ok(Some((layer, Exporter(provider))))
}

fn resource() -> Resource {
    let name = std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| "tollgate".to_owned());
    Resource::builder_empty()
        .with_service_name(name)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detector(Box::new(EnvResourceDetector::new()))
        .build()
}

impl Exporter {
    /// Sends the remaining spans, within a short time, and nothing afterwards.
    pub async fn stop(self) {
        let stopping = move || self.0.shutdown_with_timeout(STOP_TIMEOUT);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(stopping).await {
            tracing::debug!(%error, "spans were not sent before the server stopped");
        }
    }
}

/// Samples decisions that do not belong to a trace. As a filter, it passes only spans of decisions to
/// the collector.
pub(super) struct Sampling {
    /// In hundredths of a percent.
    share: u16,
}

impl Sampling {
    /// Decides whether the next decision is sampled.
    pub(super) fn draw(&self) -> bool {
        fastrand::u16(..10_000) < self.share
    }

    fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == TRACES
    }
}

impl<S> Filter<S> for Sampling {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        Sampling::wants(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match Sampling::wants(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }
}

/// Sends spans to one collector, with one connection for each batch. Holds a Tokio runtime, because
/// the thread that sends has none.
struct Client {
    to: Arc<Peer>,
    runtime: Handle,
    failures: Seldom,
}

impl Client {
    fn new(url: &OtlpUrl) -> Result<Client, TraceError> {
        let peer = Peer::new(&url.host, url.port, url.tls);
        let peer = peer.map_err(|error| TraceError(format!("{url}: {error}")))?;
        Ok(Client {
            to: Arc::new(peer),
            runtime: Handle::current(),
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
        let collector = Arc::clone(&self.to);
        let sending = self.runtime.spawn(async move {
            let sent = tokio::time::timeout(EXPORT_TIMEOUT, collector.send(request)).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_none_or_some_decisions_are_sampled() {
        let drawn = |share| (0..10_000).filter(|_| Sampling { share }.draw()).count();
        assert_eq!(drawn(0), 0);
        assert_eq!(drawn(10_000), 10_000);
        // Twelve standard deviations: not by chance.
        assert!((4400..5600).contains(&drawn(5_000)));
    }
}
