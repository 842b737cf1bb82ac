//! A gRPC server on a free port, and a client of it.

#![allow(dead_code)] // Each test file uses only a part.
#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate_server::grpc::proto::envoy::r#type::v3::RateLimitUnit;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::Engine;
use tollgate_server::grpc;
use tollgate_server::net::Listener;
use tollgate_server::tls::Tls;
use tonic::Status;
use tonic::transport::Channel;

pub(crate) struct Grpc {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<Engine>,
    stop: Option<oneshot::Sender<Duration>>,
    serving: JoinHandle<()>,
}

impl Grpc {
    /// Starts a server with the rules of `yaml`.
    pub(crate) async fn start(yaml: &str) -> Grpc {
        Grpc::with(yaml, None).await
    }

    pub(crate) async fn with(yaml: &str, tls: Option<Arc<Tls>>) -> Grpc {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Grpc::at(any, yaml, tls).await
    }

    pub(crate) async fn at(address: SocketAddr, yaml: &str, tls: Option<Arc<Tls>>) -> Grpc {
        let config = tollgate_config::parse("rules.yaml", yaml, &|_| None).unwrap();
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        let listener = Listener::bind(address, tls).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async { stopped.await.unwrap_or_default() };
        let serving = grpc::serve(listener, Arc::clone(&engine), stopped);
        Grpc {
            address,
            engine,
            stop: Some(stop),
            serving: tokio::spawn(serving),
        }
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.unwrap()
    }

    pub(crate) async fn client(&self) -> Client {
        Client(RateLimitServiceClient::new(self.channel().await))
    }

    /// Tells the server to stop after this time.
    pub(crate) fn drain(&mut self, time: Duration) {
        self.stop.take().map(|stop| stop.send(time));
    }

    /// Tells the server to stop. Open requests go on.
    pub(crate) fn tell_to_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Tells the server to stop, and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.tell_to_stop();
        self.serving.await.unwrap();
    }
}

#[derive(Clone)]
pub(crate) struct Client(pub(crate) RateLimitServiceClient<Channel>);

impl Client {
    pub(crate) async fn ask(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let answer = self.0.should_rate_limit(request).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Asks, and returns the answer in words: see [`words`].
    pub(crate) async fn words(&mut self, request: RateLimitRequest) -> String {
        words(&self.ask(request).await)
    }
}

/// Makes a request of the domain `shop`.
#[allow(clippy::needless_pass_by_value)] // Every caller passes temporaries.
pub(crate) fn request<const N: usize>(descriptors: [RateLimitDescriptor; N]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    }
}

pub(crate) fn descriptor<const N: usize>(entries: [(&str, &str); N]) -> RateLimitDescriptor {
    let entries = entries.map(|(key, value)| Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    });
    RateLimitDescriptor {
        entries: entries.to_vec(),
        ..RateLimitDescriptor::default()
    }
}

pub(crate) trait With: Sized {
    fn hits(self, hits: u64) -> Self;
    fn negative(self) -> Self;
    fn limit(self, requests: u32, unit: RateLimitUnit) -> Self;
}

impl With for RateLimitDescriptor {
    fn hits(self, hits: u64) -> Self {
        RateLimitDescriptor {
            hits_addend: Some(hits),
            ..self
        }
    }

    fn negative(self) -> Self {
        RateLimitDescriptor {
            is_negative_hits: true,
            ..self
        }
    }

    fn limit(self, requests: u32, unit: RateLimitUnit) -> Self {
        let limit = RateLimitOverride {
            requests_per_unit: requests,
            unit: unit as i32,
        };
        RateLimitDescriptor {
            limit: Some(limit),
            ..self
        }
    }
}

/// Describes an answer in one line: `OVER_LIMIT: OK key 10/HOUR left 4, OVER_LIMIT`, or the status.
/// Leaves out resets, which depend on the clock.
pub(crate) fn words(answer: &Result<RateLimitResponse, Status>) -> String {
    match answer {
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
        Ok(answer) => {
            let statuses: Vec<String> = answer.statuses.iter().map(status_words).collect();
            let overall = answer.overall_code().as_str_name();
            format!("{overall}: {}", statuses.join(", "))
        }
    }
}

fn status_words(status: &DescriptorStatus) -> String {
    let code = Code::try_from(status.code).unwrap();
    let mut words = code.as_str_name().to_owned();
    if let Some(limit) = &status.current_limit {
        let unit = Unit::try_from(limit.unit).unwrap().as_str_name();
        let (name, requests, left) = (&limit.name, limit.requests_per_unit, status.limit_remaining);
        write!(words, " {name} {requests}/{unit} left {left}").unwrap();
        assert!(status.duration_until_reset.is_some());
    }
    words
}

/// Returns the value of a header that Envoy adds to its response.
pub(crate) fn header(answer: &RateLimitResponse, name: &str) -> Option<String> {
    let headers = answer.response_headers_to_add.iter();
    let values = headers
        .filter(|it| it.key == name)
        .map(|it| it.value.clone());
    let values: Vec<String> = values.collect();
    (!values.is_empty()).then(|| values.join(", "))
}
