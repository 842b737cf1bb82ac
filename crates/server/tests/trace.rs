//! The spans of the doors for gRPC and RESP, and of the gateway.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

#[path = "common/grpc.rs"]
mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Grpc, descriptor, request};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::{Engine, TRACES};
use tollgate_rig::{Redis, wait};
use tollgate_server::resp::{Door, Input, Options, Step};
use tollgate_server::{ControlPlane, Doors};
use tracing::Subscriber;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;

const RULES: &str = "
version: 1
rules:
  - { id: key, per: [api_key], algorithm: fixed-window, limit: 1, window: 1h }
";

/// The spans of this thread.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Spans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl Spans {
    /// Collects the spans of this thread.
    fn collect() -> (Spans, DefaultGuard) {
        let (spans, subscriber) = Spans::subscriber();
        (spans, tracing::subscriber::set_default(subscriber))
    }

    /// Collects the spans of all threads that do not collect their own. Only one test can do so.
    fn collect_everywhere() -> Spans {
        let (spans, subscriber) = Spans::subscriber();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        spans
    }

    fn subscriber() -> (Spans, impl Subscriber) {
        let spans = Spans::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone());
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.build().tracer("test"))
            .with_context_activation(false)
            .with_filter(filter_fn(|it| it.target() == TRACES));
        (spans, tracing_subscriber::registry().with(layer))
    }

    /// Takes the spans of a trace, which is complete when its `request` has ended.
    fn take(&self, trace: &str) -> Option<Vec<SpanData>> {
        let mut all = self.0.lock().unwrap();
        let is_of_it = |it: &SpanData| it.span_context.trace_id().to_string() == trace;
        all.iter().find(|it| is_of_it(it) && it.name == "request")?;
        let (taken, left) = all.drain(..).partition(is_of_it);
        *all = left;
        Some(taken)
    }

    /// Describes the spans that ended so far. A child stands before its parent.
    fn words(&self) -> Vec<String> {
        let spans = std::mem::take(&mut *self.0.lock().unwrap());
        let words = spans.iter().map(|span| {
            let get = |name: &str| {
                let mut all = span.attributes.iter();
                let found = all.find(|it| it.key.as_str() == name);
                found.map_or(String::new(), |it| it.value.to_string())
            };
            let text = format!("{:?}", span.attributes);
            assert!(!text.contains("ann"), "{text}");
            match &*span.name {
                "decision" => ["door", "operation", "outcome", "rule"].map(get).join(" "),
                name => {
                    let parent = spans
                        .iter()
                        .find(|it| it.span_context.span_id() == span.parent_span_id);
                    assert_eq!(parent.unwrap().name, "decision");
                    format!("{name} {} {}", get("store"), get("outcome"))
                }
            }
        });
        words.collect()
    }
}

#[tokio::test]
async fn grpc_call_is_one_decision_under_its_parent() {
    let server = Grpc::start(RULES).await;
    let mut client = server.client().await;
    let (spans, _guard) = Spans::collect();
    let mut ask = async |sampled: &str| {
        let keys = ["ann", "ann-2"].map(|it| descriptor([("api_key", it)]));
        let mut asked = tonic::Request::new(request(keys));
        let parent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{sampled}");
        asked
            .metadata_mut()
            .insert("traceparent", parent.parse().unwrap());
        client.0.should_rate_limit(asked).await.unwrap();
    };
    ask("01").await;
    let seen = spans.0.lock().unwrap()[1].clone();
    assert_eq!(seen.parent_span_id.to_string(), "b7ad6b7169203331");
    let trace = seen.span_context.trace_id().to_string();
    assert_eq!(trace, "0af7651916cd43dd8448eb211c80319c");
    assert!(seen.parent_span_is_remote);
    assert_eq!(
        spans.words(),
        ["store.apply memory allowed", "grpc check allowed key"]
    );
    ask("01").await;
    assert_eq!(
        spans.words(),
        ["store.apply memory refused", "grpc check refused key"]
    );
    ask("00").await;
    assert_eq!(spans.words(), [""; 0]);
}

const COMMANDS: &str = "CL.THROTTLE ann 0 1 3600\r\nCL.THROTTLE ann 0 1 3600\r\n\
    TG.CHECK api_key ann\r\nTG.PEEK api_key ann\r\nTG.REFUND api_key ann\r\nPING\r\n";

#[test]
fn commands_answered_at_once_are_decisions() {
    let engine = Engine::from_yaml("rules.yaml", RULES).unwrap();
    let mut conversation = Door::new(Arc::new(engine), &Options::default()).conversation();
    let (mut input, mut out) = (Input::new(), Vec::new());
    input.room().extend_from_slice(COMMANDS.as_bytes());
    let (spans, _guard) = Spans::collect();
    assert_eq!(conversation.answer(&mut input, &mut out), Step::Read);
    assert_eq!(spans.words(), words("memory"));
}

#[tokio::test]
async fn commands_that_wait_for_a_store_are_decisions() {
    let redis = Redis::start();
    let store = format!(
        "store: {{ redis: {{ url: '{}', denial_cache: off }} }}\n",
        redis.url()
    );
    let secret = "subjects: { hash_secret: a secret of 16 bytes }";
    let yaml = format!("{RULES}\n{secret}\n{store}");
    let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let engine = Engine::start(&config).await.unwrap();
    let mut conversation = Door::new(Arc::new(engine), &Options::default()).conversation();
    let (mut input, mut out) = (Input::new(), Vec::new());
    let (spans, _guard) = Spans::collect();
    let mut seen = Vec::new();
    // One command at a time: the spans of commands that wait together would end together.
    for command in COMMANDS.lines() {
        input.room().extend_from_slice(command.as_bytes());
        input.room().extend_from_slice(b"\r\n");
        while conversation.answer(&mut input, &mut out) == Step::Ask {
            conversation.ask(&mut out).await;
        }
        seen.extend(spans.words());
    }
    assert_eq!(seen, words("redis"));
}

fn words(store: &str) -> Vec<String> {
    let expected = [
        &format!("store.apply {store} allowed"),
        "resp throttle allowed @throttle",
        &format!("store.apply {store} refused"),
        "resp throttle refused @throttle",
        &format!("store.apply {store} allowed"),
        "resp check allowed key",
        &format!("store.peek {store} refused"),
        "resp peek refused key",
        &format!("store.refund {store} done"),
        "resp refund allowed key",
    ];
    expected.map(str::to_owned).to_vec()
}

/// The upstream gets a `traceparent` with the span of the request at the gateway.
#[tokio::test]
async fn trace_goes_on_at_the_upstream() {
    let app = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let yaml = format!(
        "{RULES}server: {{ http: \"127.0.0.1:0\", gateway: \"127.0.0.1:0\" }}\n\
         upstreams: {{ app: {{ servers: [\"http://{}\"] }} }}\n",
        app.local_addr().unwrap()
    );
    let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let doors = Doors::open(&config).await.unwrap();
    let address = doors.addresses().unwrap()[1].address;
    let control = Arc::new(ControlPlane::of(engine));
    tokio::spawn(doors.serve(control, std::future::pending()));
    // The gateway has threads of its own.
    let collected = Spans::collect_everywhere();
    let ask = async |key: &str, traceparent: &str| {
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntracestate: a=b\r\nx-api-key: {key}\r\n{traceparent}\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let (mut server, _) = app.accept().await.unwrap();
        let mut seen = vec![0; 4096];
        let read = server.read(&mut seen).await.unwrap();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        server.write_all(answer).await.unwrap();
        client.read_to_end(&mut Vec::new()).await.unwrap();
        String::from_utf8_lossy(&seen[..read]).into_owned()
    };
    let sampled = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let seen = ask("one", sampled).await;
    let mut spans = Vec::new();
    wait::until("the spans of the request", Duration::from_secs(20), || {
        let ended = collected.take("0af7651916cd43dd8448eb211c80319c");
        spans = ended.unwrap_or_default();
        !spans.is_empty()
    });
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["store.apply", "decision", "request"]);
    let (decision, request) = (&spans[1], &spans[2]);
    assert_eq!(request.parent_span_id.to_string(), "b7ad6b7169203331");
    let id = request.span_context.span_id();
    assert_eq!(decision.parent_span_id, id);
    let next = format!("traceparent: 00-0af7651916cd43dd8448eb211c80319c-{id}-01\r\n");
    assert!(
        seen.contains(&next) && seen.contains("tracestate: a=b\r\n"),
        "{seen}"
    );
    // A trace that is not sampled passes as it is.
    let unsampled = sampled.replace("-01\r\n", "-00\r\n");
    assert!(ask("two", &unsampled).await.contains(&unsampled));
}
