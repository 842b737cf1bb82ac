//! Routes each request to its service, and holds Envoy's rate limit service, health and reflection.
//! Tollgate's own service is in `own`.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer, SERVICE_NAME,
};
use crate::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::{Semaphore, watch};
use tollgate::{ActiveConfig, Engine};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tower_service::Service;

use super::bounds::{
    MAX_BATCH_MESSAGE, MAX_BATCHES, MAX_IN_FLIGHT, MAX_MESSAGE, MAX_WAIT, REQUEST_TIMEOUT,
};
use super::own::Own;
use super::pb::tollgate_server::{SERVICE_NAME as OWN_NAME, TollgateServer};
use super::proto::DESCRIPTORS;
use super::{UnknownDomain, request};
use crate::backend::Backend;
use crate::ingress_time::IngressTime;
use crate::net::{self, Account, Answer, Memory, Peer, ReadError, Received, read_whole};
use crate::per_config::PerConfig;
use crate::question::Question;
use crate::respond::EnvoyResponder;
use crate::trace::Origin;

/// The services that make decisions, as health and reflection know them.
const SERVICES: [&str; 2] = [SERVICE_NAME, OWN_NAME];

/// The bytes before each message: whether it is compressed, and its length.
const MESSAGE_HEAD: usize = 5;

/// All services of the gRPC door. Each connection has a clone.
#[derive(Clone)]
pub(super) struct Services {
    limits: RateLimitServiceServer<Limits>,
    own: TollgateServer<Own>,
    /// Tollgate's own service for batches: their messages may be larger.
    own_batches: TollgateServer<Own>,
    /// Permits for requests, except batches.
    requests: Arc<Semaphore>,
    /// Permits for batches.
    batches: Arc<Semaphore>,
    /// Health and reflection.
    others: Routes,
    pub(super) memory: Memory,
    engine: Arc<Engine>,
    delays: Arc<watch::Sender<bool>>,
}

/// The services, for one connection.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) services: Services,
    pub(super) account: Account,
    pub(super) peer: Peer,
}

impl Services {
    pub(super) fn new(engine: Arc<Engine>, others: Routes) -> Services {
        let delays = Arc::new(watch::Sender::new(false));
        let limits = Limits {
            per_config: PerConfig::new(&engine, DoorConfig::of),
            backend: Backend::with_stops(Arc::clone(&engine), Arc::clone(&delays)),
        };
        let own = Arc::new(Own {
            per_config: PerConfig::new(&engine, IngressTime::of),
            backend: Backend::with_stops(Arc::clone(&engine), Arc::clone(&delays)),
        });
        let own = |size| TollgateServer::from_arc(Arc::clone(&own)).max_decoding_message_size(size);
        Services {
            limits: RateLimitServiceServer::new(limits).max_decoding_message_size(MAX_MESSAGE),
            own: own(MAX_MESSAGE),
            own_batches: own(MAX_BATCH_MESSAGE),
            requests: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            batches: Arc::new(Semaphore::new(MAX_BATCHES)),
            others,
            memory: Memory::default(),
            engine,
            delays,
        }
    }

    /// Returns the sender that ends delays: once it holds true, no denial is held back.
    pub(super) fn delays(&self) -> Arc<watch::Sender<bool>> {
        Arc::clone(&self.delays)
    }
}

type Answered = Result<Response<Answer<Body>>, Infallible>;
type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;

impl hyper::service::Service<Request<Incoming>> for Connection {
    type Response = Response<Answer<Body>>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        // Only the time of a request depends on its peer. Extensions cost an allocation.
        let active = self.services.engine.active();
        if active.config().subjects.time_header.is_some() {
            request.extensions_mut().insert(self.peer);
        }
        drop(active);
        if !is_grpc(request.headers()) {
            let charge = self.account.charge(0);
            let answer = wrong_content_type().map(|body| Answer::stream(body, charge));
            return Box::pin(ready(Ok(answer)));
        }
        let services = &self.services;
        let path = request.uri().path();
        let mut bounds = Bounds {
            places: &services.requests,
            message: MAX_MESSAGE,
            answer: 0,
            timeout: REQUEST_TIMEOUT,
        };
        match method_of(OWN_NAME, path) {
            Some("/CheckBatch") => {
                bounds.places = &services.batches;
                bounds.message = MAX_BATCH_MESSAGE;
                bounds.answer = self.account.large_answer();
                self.bounded(services.own_batches.clone(), request, &bounds)
            }
            Some(method) => {
                match method {
                    "/AcquireLease" => bounds.timeout += MAX_WAIT,
                    "/ListHolders" | "/GetUsage" => bounds.answer = self.account.large_answer(),
                    _ => {}
                }
                self.bounded(services.own.clone(), request, &bounds)
            }
            None if method_of(SERVICE_NAME, path).is_some() => {
                self.bounded(services.limits.clone(), request, &bounds)
            }
            None => self.other(request),
        }
    }
}

/// Returns whether the client says that it speaks gRPC. A browser does not let a web page send this
/// header without permission of the server.
fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|it| it.starts_with(b"application/grpc"))
}

fn wrong_content_type() -> Response<Body> {
    let wrong = "the content-type must begin with application/grpc";
    let mut response = Status::invalid_argument(wrong).into_http();
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// The bounds of a method.
struct Bounds<'a> {
    places: &'a Arc<Semaphore>,
    /// The largest message, in bytes.
    message: usize,
    /// How many bytes the request counts as until its answer is made.
    answer: usize,
    timeout: Duration,
}

impl Connection {
    /// Answers once the request has arrived, there is room for its answer, and a place is free. All
    /// of this has to happen within the timeout.
    fn bounded<S>(
        &self,
        mut service: S,
        request: Request<Incoming>,
        bounds: &Bounds<'_>,
    ) -> Answering
    where
        S: Service<Request<Full<Bytes>>, Response = Response<Body>, Error = Infallible>,
        S: Send + 'static,
        S::Future: Send,
    {
        let account = self.account.clone();
        let places = Arc::clone(bounds.places);
        let &Bounds {
            message,
            answer,
            timeout,
            ..
        } = bounds;
        Box::pin(async move {
            let mut charge = account.charge(0);
            // Pinned in its place: a move would copy a kilobyte.
            let answered = {
                let answering = std::pin::pin!(async {
                    let (head, body) = request.into_parts();
                    // The body counts as held memory until the answer is made.
                    let mut body = Received::new(body, &head.headers, &account);
                    let read = read_whole(&mut body, MESSAGE_HEAD + message).await;
                    let whole = match read {
                        Ok(whole) => whole,
                        Err(ReadError::TooLarge) => {
                            return Ok(EnvoyResponder::too_large(message).into_http());
                        }
                        // No room, or the client is gone.
                        Err(ReadError::Body(_)) => return Ok(EnvoyResponder::no_room().into_http()),
                    };
                    account.wait_for_room(answer).await;
                    charge.set(answer);
                    // The semaphore is never closed.
                    let _place = places.acquire().await;
                    let request = Request::from_parts(head, Full::new(whole));
                    service.call(request).await
                });
                in_time(timeout, answering).await
            };
            let answer = answered?;
            Ok(answer.map(|body| Answer::stream(body, charge)))
        })
    }

    /// Answers for health and reflection. Their streams may be open for long, so their answers are
    /// counted part by part.
    fn other(&self, request: Request<Incoming>) -> Answering {
        let charge = self.account.charge(0);
        if !self.account.has_room_for(0) {
            let answer = EnvoyResponder::no_room().into_http();
            let answer = answer.map(|body: Body| Answer::stream(body, charge));
            return Box::pin(std::future::ready(Ok(answer)));
        }
        let mut others = self.services.others.clone();
        let (head, body) = request.into_parts();
        let body = Received::new(body, &head.headers, &self.account);
        let answering = others.call(Request::from_parts(head, body));
        Box::pin(async move {
            let answer = answering.await?;
            Ok(answer.map(|body| Answer::stream(body, charge)))
        })
    }
}

/// Returns the method in `path`, with its slash, if `path` belongs to `service`.
fn method_of<'p>(service: &str, path: &'p str) -> Option<&'p str> {
    let method = path.strip_prefix('/')?.strip_prefix(service)?;
    method.starts_with('/').then_some(method)
}

/// Returns the answer, or the status DEADLINE_EXCEEDED after `timeout`.
async fn in_time(
    timeout: Duration,
    answering: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Result<Response<Body>, Infallible> {
    let answer = net::within(timeout, answering).await;
    answer.unwrap_or_else(|| Ok(EnvoyResponder::too_slow().into_http()))
}

/// Envoy's rate limit service.
struct Limits {
    backend: Backend,
    per_config: PerConfig<DoorConfig>,
}

/// The values that this service derives from a config.
struct DoorConfig {
    responder: EnvoyResponder,
    ingress_time: IngressTime,
    /// The answer if no enabled rule matches the domain of a request.
    unknown_domain: UnknownDomain,
}

impl DoorConfig {
    fn of(live: &ActiveConfig) -> DoorConfig {
        let config = live.config();
        let grpc = config.server.grpc.as_ref();
        DoorConfig {
            responder: EnvoyResponder::new(&config.headers, live.rules()),
            ingress_time: IngressTime::of(live),
            unknown_domain: grpc.map_or(UnknownDomain::Allow, |grpc| grpc.unknown_domain),
        }
    }
}

#[tonic::async_trait]
impl RateLimitService for Limits {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let origin = Origin::new("grpc", request.metadata().as_ref());
        let (metadata, extensions, request) = request.into_parts();
        let demands = request::demands(&request);
        let demands = demands.map_err(|error| EnvoyResponder::bad_request(&error))?;
        let snapshot = self.backend.engine.snapshot();
        let door_config = self.per_config.of(snapshot.active());
        let is_known = || {
            let rules = snapshot.active().rules();
            rules.may_concern(request::DOMAIN, &request.domain)
        };
        if door_config.unknown_domain == UnknownDomain::Deny && !is_known() {
            let answer = EnvoyResponder::unknown_domain(request.descriptors.len());
            return Ok(tonic::Response::new(answer));
        }
        let question = Question::Demands(demands);
        let metadata = metadata.as_ref();
        let snapshot = door_config
            .ingress_time
            .apply(snapshot, &extensions, metadata);
        let backend = &self.backend;
        let answer = backend.answer_or_delay(&snapshot, &question, &origin).await;
        let answer = door_config.responder.answer(&answer, metadata)?;
        Ok(tonic::Response::new(answer))
    }
}

/// The health that probes see.
pub(super) struct Health(HealthReporter);

impl Health {
    /// Reports all services as serving. Returns the health and the routes of health and reflection.
    pub(super) async fn new() -> (Health, Routes) {
        let (reporter, health) = health_reporter();
        let serving = ServingStatus::Serving;
        for service in SERVICES {
            reporter.set_service_status(service, serving).await;
        }
        let mut routes = Routes::new(health);
        let describing = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(DESCRIPTORS)
        };
        // The descriptors are constants, and a test reads them through reflection, so this succeeds.
        if let (Ok(v1), Ok(v1alpha)) = (describing().build_v1(), describing().build_v1alpha()) {
            routes = routes
                .add_service(v1.max_decoding_message_size(MAX_MESSAGE))
                .add_service(v1alpha.max_decoding_message_size(MAX_MESSAGE));
        }
        (Health(reporter), routes)
    }

    /// Reports all services as not serving, and ends the streams of clients that watch.
    pub(super) async fn stop(mut self) {
        for service in SERVICES.into_iter().chain([""]) {
            let stopping = ServingStatus::NotServing;
            self.0.set_service_status(service, stopping).await;
            self.0.clear_service_status(service).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_request_gets_deadline_exceeded() {
        let answer = in_time(REQUEST_TIMEOUT, std::future::pending())
            .await
            .unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    }
}
