//! Where spans are sent, and how many there are.
//!
//! Spans wait in a queue that drops what is too much, and a thread of their own sends them: a collector
//! that is slow or down costs spans, and never a decision.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider,
};
use tollgate::TRACES;
use tollgate_config::Telemetry;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use super::client::Client;

/// The most spans that wait, that travel together, and how long they wait for company.
const MAX_QUEUE: usize = 8192;
const MAX_BATCH: usize = 512;
const SEND_EVERY: Duration = Duration::from_secs(2);

/// How long a collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server that stops waits for the last spans to be sent.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Why no spans can be sent.
#[derive(Debug, thiserror::Error)]
#[error("telemetry.otlp: {0}")]
pub struct TraceError(pub(super) String);

/// What sends spans to a collector.
pub struct Exporter(SdkTracerProvider);

/// A layer that sends the spans of decisions to where the config says, and what stops that; none if it
/// does not say so. Within a Tokio runtime.
///
/// # Errors
/// If the system's certificates cannot be read, and are needed; or if the variables of the environment
/// that OpenTelemetry knows ask for something that is not there.
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
        .with_http_client(Client::new(url, EXPORT_TIMEOUT)?)
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
        // Doors choose, before there is a span.
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
    /// Sends what is left, within a short time, and nothing after that.
    pub async fn stop(self) {
        let stopping = move || self.0.shutdown_with_timeout(STOP_TIMEOUT);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(stopping).await {
            tracing::debug!(%error, "spans were left");
        }
    }
}

/// How many decisions are traced that belong to no trace yet. As a filter, which spans are for a
/// collector: those of decisions.
pub(super) struct Sampling {
    /// In hundredths of a percent.
    share: u16,
}

impl Sampling {
    /// Whether this one is.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_are_drawn_or_none_or_some() {
        let drawn = |share| (0..10_000).filter(|_| Sampling { share }.draw()).count();
        assert_eq!(drawn(0), 0);
        assert_eq!(drawn(10_000), 10_000);
        // Twelve standard deviations off would be no accident.
        assert!((4400..5600).contains(&drawn(5_000)));
    }
}
