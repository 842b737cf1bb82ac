//! A trace collector that accepts OTLP over HTTP, and returns the spans that it received.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    traced: Arc<Mutex<Traced>>,
    _runtime: tokio::runtime::Runtime,
}

/// Everything that a collector has received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traced {
    pub(crate) paths: Vec<String>,
    /// All bodies and headers.
    pub(crate) bytes: Vec<u8>,
    pub(crate) service: String,
    pub(crate) spans: Vec<Span>,
}

/// A span, with its ids in hexadecimal.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty for a root span.
    pub(crate) parent: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_error: bool,
    attributes: Vec<(String, String)>,
}

impl Span {
    /// Returns an attribute as text; empty if the attribute is missing.
    pub(crate) fn attribute(&self, name: &str) -> &str {
        let mut all = self.attributes.iter();
        all.find(|(known, _)| known == name)
            .map_or("", |(_, value)| value)
    }
}

impl Collector {
    pub(crate) fn start() -> Collector {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let traced: Arc<Mutex<Traced>> = Arc::default();
        let routes = Router::new().fallback(take).with_state(Arc::clone(&traced));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Collector {
            address,
            traced,
            _runtime: runtime,
        }
    }

    /// Returns everything received since the last call.
    pub(crate) fn take(&self) -> Traced {
        std::mem::take(&mut *self.traced.lock().unwrap())
    }
}

async fn take(
    State(traced): State<Arc<Mutex<Traced>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Bytes {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let mut traced = traced.lock().unwrap();
    traced.paths.push(uri.path().to_owned());
    traced.bytes.extend_from_slice(&body);
    traced.bytes.extend(format!("{headers:?}").into_bytes());
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for resource in request.resource_spans {
        let about = resource.resource.unwrap().attributes;
        traced.service = texts(about)
            .into_iter()
            .find(|(name, _)| name == "service.name")
            .unwrap()
            .1;
        let spans = resource.scope_spans.into_iter().flat_map(|it| it.spans);
        traced.spans.extend(spans.map(|span| {
            Span {
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                start: span.start_time_unix_nano,
                end: span.end_time_unix_nano,
                is_error: span
                    .status
                    .is_some_and(|it| it.code == StatusCode::Error as i32),
                attributes: texts(span.attributes),
            }
        }));
    }
    // An empty answer means success.
    Bytes::new()
}

fn texts(attributes: Vec<KeyValue>) -> Vec<(String, String)> {
    let text = |it: KeyValue| {
        let value = match it.value.and_then(|it| it.value) {
            Some(Value::StringValue(text)) => text,
            Some(Value::IntValue(number)) => number.to_string(),
            other => format!("{other:?}"),
        };
        (it.key, value)
    };
    attributes.into_iter().map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
