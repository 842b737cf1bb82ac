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
use tollgate::{ActiveConfig, Demand, Effect, Engine};
use tollgate_config::{TokenScope, TokenScopes};
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
use crate::access::token::bearer;
use crate::access::{Access, AccessError};
use crate::backend::{Answer as Decided, Backend};
use crate::door_metrics::{DoorMetrics, Fault, Tally, grpc_code};
use crate::ingress_time::IngressTime;
use crate::net::{self, Account, Answer, Memory, NoRoom, Peer, ReadError, Received, read_whole};
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
    /// Lets requests in.
    access: Arc<Access>,
    /// Health and reflection.
    others: Routes,
    pub(super) memory: Memory,
    metrics: Arc<DoorMetrics>,
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
    pub(super) fn new(
        engine: Arc<Engine>,
        access: Access,
        others: Routes,
        metrics: &Arc<DoorMetrics>,
    ) -> Services {
        let delays = Arc::new(watch::Sender::new(false));
        let backend = || {
            Backend::with_stops(
                Arc::clone(&engine),
                Arc::clone(metrics),
                Arc::clone(&delays),
            )
        };
        let limits = Limits {
            per_config: PerConfig::new(&engine, DoorConfig::of),
            backend: backend(),
        };
        let own = Arc::new(Own {
            per_config: PerConfig::new(&engine, IngressTime::of),
            backend: backend(),
        });
        let own = |size| TollgateServer::from_arc(Arc::clone(&own)).max_decoding_message_size(size);
        Services {
            limits: RateLimitServiceServer::new(limits).max_decoding_message_size(MAX_MESSAGE),
            own: own(MAX_MESSAGE),
            own_batches: own(MAX_BATCH_MESSAGE),
            requests: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            batches: Arc::new(Semaphore::new(MAX_BATCHES)),
            access: Arc::new(access),
            others,
            memory: Memory::default(),
            metrics: Arc::clone(metrics),
            engine,
            delays,
        }
    }

    /// Returns the sender that ends delays: once it holds true, no denial is held back.
    pub(super) fn delays(&self) -> Arc<watch::Sender<bool>> {
        Arc::clone(&self.delays)
    }
}

/// Counts an answer.
#[inline]
fn count<B>(metrics: &DoorMetrics, answer: &Response<B>) {
    let code = grpc_code(answer.headers());
    metrics.answered(code as usize, 1);
    if let Some(fault) = Fault::of_code(code) {
        metrics.bad_request(fault);
    }
}

type Answered = Result<Response<Answer<Body>>, Infallible>;
type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;

impl hyper::service::Service<Request<Incoming>> for Connection {
    type Response = Response<Answer<Body>>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        // The peer is needed only for the time of a request. Without `time_header`, save the allocation of extensions.
        let active = self.services.engine.active();
        if active.config().subjects.time_header.is_some() {
            request.extensions_mut().insert(self.peer);
        }
        drop(active);
        if !is_grpc(request.headers()) {
            let charge = self.account.charge(0);
            let metrics = &self.services.metrics;
            metrics.answered(tonic::Code::InvalidArgument as usize, 1);
            metrics.bad_request(Fault::Header);
            let answer = wrong_content_type().map(|body| Answer::stream(body, charge));
            return Box::pin(ready(Ok(answer)));
        }
        let services = &self.services;
        let path = request.uri().path();
        let mut bounds = Bounds {
            scope: TokenScope::Check,
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
                bounds.scope = scope_of(method).unwrap_or(TokenScope::Check);
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

/// The bounds of a method, and the scope that it needs.
struct Bounds<'a> {
    scope: TokenScope,
    places: &'a Arc<Semaphore>,
    /// The largest message, in bytes.
    message: usize,
    /// How many bytes the request counts as until its answer is made.
    answer: usize,
    timeout: Duration,
}

impl Connection {
    /// Answers once the request has arrived, there is room for its answer, and a place is free. All
    /// of this has to happen within the timeout. A request without the scope gets an error before its
    /// message is read.
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
        let metrics = Arc::clone(&self.services.metrics);
        let places = Arc::clone(bounds.places);
        let (peer, access) = (self.peer.0.ip(), &self.services.access);
        let guard = (!access.is_open()).then(|| Arc::clone(access));
        let &Bounds {
            scope,
            message,
            answer,
            timeout,
            ..
        } = bounds;
        Box::pin(async move {
            let mut charge = account.charge(0);
            let (mut head, body) = request.into_parts();
            if let Some(access) = guard {
                let (shown, path) = (bearer(&head.headers), head.uri.path());
                // Boxed, because a door without tokens should not make room for it.
                match Box::pin(access.enter(scope, shown, Some(peer), path)).await {
                    Ok(scopes) => {
                        head.extensions.insert(scopes);
                    }
                    Err(error) => {
                        let answer = Status::from(error).into_http();
                        return Ok(answer.map(|body: Body| Answer::stream(body, charge)));
                    }
                }
            }
            // Pinned in its place: a move would copy a kilobyte.
            let answered = {
                let answering = std::pin::pin!(async {
                    // The body counts as held memory until the answer is made.
                    let mut body = Received::new(body, &head.headers, &account);
                    let read = read_whole(&mut body, MESSAGE_HEAD + message).await;
                    let whole = match read {
                        Ok(whole) => whole,
                        Err(ReadError::TooLarge) => {
                            return Ok(EnvoyResponder::too_large(message).into_http());
                        }
                        // No room, or the client is gone.
                        Err(ReadError::Body(error)) => {
                            metrics.bad_request(match error.is::<NoRoom>() {
                                true => Fault::NoRoom,
                                false => Fault::CutShort,
                            });
                            return Ok(EnvoyResponder::no_room().into_http());
                        }
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
            count(&metrics, &answer);
            Ok(answer.map(|body| Answer::stream(body, charge)))
        })
    }

    /// Answers for health and reflection. Their streams may be open for long, so their answers are
    /// counted part by part.
    fn other(&self, request: Request<Incoming>) -> Answering {
        let charge = self.account.charge(0);
        if !self.account.has_room_for(0) {
            let answer = EnvoyResponder::no_room().into_http();
            self.services.metrics.bad_request(Fault::NoRoom);
            count(&self.services.metrics, &answer);
            let answer = answer.map(|body: Body| Answer::stream(body, charge));
            return Box::pin(std::future::ready(Ok(answer)));
        }
        let mut others = self.services.others.clone();
        let (head, body) = request.into_parts();
        let body = Received::new(body, &head.headers, &self.account);
        let answering = others.call(Request::from_parts(head, body));
        let metrics = Arc::clone(&self.services.metrics);
        Box::pin(async move {
            let answer = answering.await?;
            count(&metrics, &answer);
            Ok(answer.map(|body| Answer::stream(body, charge)))
        })
    }
}

/// Returns the method in `path`, with its slash, if `path` belongs to `service`.
fn method_of<'p>(service: &str, path: &'p str) -> Option<&'p str> {
    let method = path.strip_prefix('/')?.strip_prefix(service)?;
    method.starts_with('/').then_some(method)
}

/// Returns the scope that a method of Tollgate's own service needs; `None` if there is no such method.
fn scope_of(method: &str) -> Option<TokenScope> {
    Some(match method {
        "/Check" | "/CheckBatch" | "/Peek" => TokenScope::Check,
        "/Refund" => TokenScope::Refund,
        "/Reserve" | "/Commit" | "/Release" | "/Extend" | "/GetReservation" | "/AcquireLease"
        | "/RenewLease" | "/ReleaseLease" | "/ListHolders" => TokenScope::Reserve,
        "/GetUsage" => TokenScope::Usage,
        _ => return None,
    })
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
        let metrics = &self.backend.metrics;
        let started = metrics.start();
        let origin = Origin::new("grpc", request.metadata().as_ref());
        // A door without tokens grants every scope.
        let scopes = request.extensions().get().copied();
        let scopes: TokenScopes = scopes.unwrap_or(TokenScopes::ALL);
        let (metadata, extensions, request) = request.into_parts();
        let demands = request::demands(&request);
        let demands = demands.map_err(|error| EnvoyResponder::bad_request(&error))?;
        let gives_back = |it: &Demand<'_>| matches!(it.effect, Effect::GiveBack(_));
        if !scopes.includes(TokenScope::Refund) && demands.iter().any(gives_back) {
            return Err(AccessError::NotPermitted(TokenScope::Refund).into());
        }
        let snapshot = self.backend.engine.snapshot();
        let door_config = self.per_config.of(snapshot.active());
        let is_known = || {
            let rules = snapshot.active().rules();
            rules.may_concern(request::DOMAIN, &request.domain)
        };
        let question = Question::Demands(demands);
        if door_config.unknown_domain == UnknownDomain::Deny && !is_known() {
            let answer = EnvoyResponder::unknown_domain(request.descriptors.len());
            metrics.unknown_domain(&request.domain, false);
            self.backend.count_by_action(&snapshot, &question, None);
            metrics.decided(started, Tally::one_rejected());
            return Ok(tonic::Response::new(answer));
        }
        let metadata = metadata.as_ref();
        let ingress_time = &door_config.ingress_time;
        let snapshot = ingress_time.apply(snapshot, &extensions, metadata);
        let backend = &self.backend;
        let answer = backend
            .answer_or_delay(started, &snapshot, &question, &origin)
            .await;
        // A rule that applied knows the domain.
        let is_unmatched = answer.as_ref().is_ok_and(Decided::has_unmatched);
        let rules = snapshot.active().rules();
        if is_unmatched && !rules.may_concern(request::DOMAIN, &request.domain) {
            metrics.unknown_domain(&request.domain, true);
        }
        let answer = door_config.responder.answer(&answer, metadata);
        Ok(tonic::Response::new(answer?))
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

    /// Reports all services as not serving.
    pub(super) async fn drain(&self) {
        for service in SERVICES.into_iter().chain([""]) {
            let draining = ServingStatus::NotServing;
            self.0.set_service_status(service, draining).await;
        }
    }

    /// Ends the streams of clients that watch.
    pub(super) async fn end(&self) {
        let mut reporter = self.0.clone();
        for service in SERVICES.into_iter().chain([""]) {
            reporter.clear_service_status(service).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_a_scope() {
        let proto = include_str!("../../proto/tollgate/v1/tollgate.proto");
        let methods = proto.lines().filter_map(|line| {
            let (method, _) = line.trim().strip_prefix("rpc ")?.split_once('(')?;
            Some(format!("/{method}"))
        });
        let methods: Vec<String> = methods.collect();
        assert!(methods.len() > 10, "{methods:?}");
        for method in methods {
            assert!(scope_of(&method).is_some(), "{method}");
        }
        assert_eq!(scope_of("/Nothing"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_request_gets_deadline_exceeded() {
        let answer = in_time(REQUEST_TIMEOUT, std::future::pending())
            .await
            .unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    }
}
