//! The gateway door: passes the requests of clients on to upstreams, within limits.
//!
//! The path of a request: `connection` -> `inquiry` (host, path) -> who calls (`crate::identity`) -> route and
//! attributes -> the decision -> `headers` -> `upstream` -> `relay` (the body of the answer) -> client. Bodies
//! are never held as a whole, except those that a route reads attributes from.
//!
//! * `decision`: slots and waits. `client_body`: the body of a request. `tunnel`: connections that leave HTTP, such as
//!   WebSockets.
//! * `slots`: the concurrency slots that a request holds. `access_log`: a line for each request.
//! * `shedding`: denies requests to upstreams that are saturated.
//! * `silence`: times out what is silent for too long. [`bounds`]: what clients and upstreams may send.

mod access_log;
pub mod bounds;
mod client_body;
mod connection;
mod decision;
mod headers;
mod inquiry;
mod relay;
mod shedding;
mod silence;
mod slots;
mod tunnel;
mod upstream;

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tollgate::{ActiveConfig, Decision, Kind, Snapshot};
use tollgate_config::{ExemptPaths, Gateway as GatewayConfig, Route, Routes};

pub(crate) use self::access_log::AccessLog;
use self::access_log::Line;
use self::bounds::{BODY_TIMEOUT, MAX_HEADERS, MAX_WAITING};
use self::client_body::{BodyError, ClientBody};
use self::headers::{Callers, Sender};
use self::inquiry::Inquiry;
use self::relay::{GatewayBody, Relay};
use self::shedding::Passing;
use self::slots::{Slot, Slots};
use self::tunnel::{Tunnel, TunnelPlace};
use self::upstream::{Exchanged, Outbound, Registry, Upstreams};
pub(crate) use self::upstream::{Upstream, UpstreamError, check_all};
use crate::backend::Backend;
use crate::client::{Client, Clients};
use crate::control::ControlPlane;
use crate::identity::{self, Authenticators, Identity};
use crate::ingress_time::IngressTime;
use crate::net::{self, Account, Listener, NoRoom, ReadError, Received};
use crate::per_config::{Made, PerConfig};
use crate::respond::{self, RequestError, Responder};
use crate::tls::ClientCertificate;
use crate::trace::{Origin, RequestSpan};

/// The protocols of the gateway (ALPN), the preferred first.
pub const PROTOCOLS: &[&str] = crate::http::PROTOCOLS;

/// The name of this door in traces and metrics.
const DOOR: &str = "gateway";

/// The gateway.
pub(crate) struct Gateway {
    backend: Backend,
    per_config: PerConfig<DoorConfig>,
    authenticators: Arc<Authenticators>,
    registry: Arc<Registry>,
    slots: Arc<Slots>,
    access_log: Option<Arc<AccessLog>>,
    /// One permit for each request that may wait for its turn.
    waiting: Semaphore,
    scheme: &'static str,
}

/// Values that this door derives from a config.
struct DoorConfig {
    responder: Responder,
    clients: Clients,
    callers: Callers,
    ingress_time: IngressTime,
    routes: Routes,
    upstreams: Upstreams,
    exempt: ExemptPaths,
    max_body: u64,
    max_inspected_body: usize,
    /// Whether a rule limits concurrency.
    has_slots: bool,
}

impl DoorConfig {
    fn of(active: &ActiveConfig, registry: &Registry) -> DoorConfig {
        let config = active.config();
        let defaults = || GatewayConfig::new(config.server.http.clone());
        let gateway = config.server.gateway.clone().unwrap_or_else(defaults);
        let mut rules = active.rules().rules().iter();
        DoorConfig {
            responder: Responder::new(&config.headers, active.rules()),
            clients: Clients::new(identity::subjects(config)),
            callers: Callers::of(&config.subjects),
            ingress_time: IngressTime::of(active),
            routes: config.routes.clone(),
            upstreams: registry.upstreams(&config.upstreams, &config.subjects.priorities),
            exempt: gateway.exempt,
            max_body: gateway.max_body,
            max_inspected_body: gateway.max_inspected_body,
            has_slots: rules.any(|rule| Kind::of(rule) == Kind::Concurrency),
        }
    }
}

/// Where a request came from.
struct Arrival<'c> {
    peer: SocketAddr,
    account: &'c Account,
    /// The certificate of the client, if TLS has verified one.
    certificate: Option<&'c ClientCertificate>,
    /// The place of a tunnel, if the connection leaves HTTP; `None` over HTTP/2.
    tunnel: Option<&'c TunnelPlace>,
}

/// Whether a request may proceed.
enum Asked<'c> {
    Denied(axum::response::Response),
    Admitted(Box<Admitted<'c>>),
}

/// A request that may proceed.
struct Admitted<'c> {
    inquiry: Inquiry,
    identity: Identity,
    /// The client's address, behind trusted proxies.
    client: IpAddr,
    route: Option<&'c Route>,
    body: ClientBody,
    /// The body, if it was read as a whole.
    read: Option<Received>,
    slot: Option<Slot>,
    /// Counts as a request in flight, if the upstream has an adaptive limit.
    passing: Option<Passing>,
}

/// A request on its way: what its answer needs, whatever happens.
#[derive(Default)]
struct Passage {
    line: Option<Box<Line>>,
    decision: Option<Decision>,
    span: Option<RequestSpan>,
}

impl Gateway {
    /// Makes the gateway that serves on `listener`.
    pub(crate) fn new(
        control: &ControlPlane,
        listener: &Listener,
        access_log: Option<Arc<AccessLog>>,
    ) -> Arc<Gateway> {
        let engine = control.engine();
        let registry = Arc::new(Registry::default());
        let known = Arc::clone(&registry);
        Arc::new(Gateway {
            backend: Backend::new(Arc::clone(engine), Arc::clone(listener.metrics())),
            per_config: PerConfig::new(engine, move |active| DoorConfig::of(active, &known)),
            authenticators: Arc::clone(control.authenticators()),
            registry,
            slots: Slots::new(engine),
            access_log,
            waiting: Semaphore::new(MAX_WAITING),
            scheme: if listener.is_encrypted() {
                "https"
            } else {
                "http"
            },
        })
    }

    /// Returns the upstreams of the config in force.
    pub(crate) fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.registry.all()
    }

    /// Returns how many requests hold slots, and how many lost theirs.
    pub(crate) fn slots(&self) -> (usize, u64) {
        (self.slots.open(), self.slots.lost())
    }

    /// Returns how many requests wait for their turn.
    pub(crate) fn waiting(&self) -> usize {
        MAX_WAITING - self.waiting.available_permits()
    }

    /// Returns how many lines of the access log were dropped; `None` if there is no such log.
    pub(crate) fn dropped_lines(&self) -> Option<u64> {
        self.access_log.as_ref().map(|log| log.dropped())
    }

    /// Returns the config that one request sees, and the values that this door derived from it.
    fn snapshot(&self) -> (Snapshot<'_>, Arc<Made<DoorConfig>>) {
        let snapshot = self.backend.engine.snapshot();
        let door_config = self.per_config.of(snapshot.active());
        (snapshot, door_config)
    }

    /// Answers a request.
    async fn handle(&self, request: Request<Incoming>, from: Arrival<'_>) -> Response<GatewayBody> {
        let (snapshot, door_config) = self.snapshot();
        let mut passage = Passage::default();
        let passing = self.pass(request, from, snapshot, &door_config, &mut passage);
        match passing.await {
            Ok(response) => response,
            Err(error) => {
                if let RequestError::Saturated(_) = &error {
                    passage.note("shed", None);
                }
                let mut response = respond::error(&error);
                if let Some(decision) = &passage.decision {
                    let headers = response.headers_mut();
                    door_config.responder.add_fields(headers, decision);
                }
                passage.own(response)
            }
        }
    }

    /// Passes a request on, unless it is denied.
    async fn pass(
        &self,
        request: Request<Incoming>,
        from: Arrival<'_>,
        snapshot: Snapshot<'_>,
        door_config: &DoorConfig,
        passage: &mut Passage,
    ) -> Result<Response<GatewayBody>, RequestError> {
        let (mut parts, body) = request.into_parts();
        headers::join_cookies(&mut parts.headers);
        let on_upgrade = parts.extensions.remove::<OnUpgrade>();
        let (origin, span) = Origin::passed_on(DOOR, &parts.headers);
        passage.span = span;
        let asking = self.ask(&parts, body, &from, &origin, snapshot, door_config, passage);
        match asking.await? {
            Asked::Denied(response) => Ok(std::mem::take(passage).own(response)),
            Asked::Admitted(admitted) => {
                let forwarding =
                    self.forward(parts, on_upgrade, *admitted, &from, door_config, passage);
                forwarding.await
            }
        }
    }

    /// Reads what the client asks for, and has it decided.
    #[allow(clippy::too_many_arguments)] // One request, and where it came from.
    async fn ask<'c>(
        &self,
        parts: &Parts,
        body: Incoming,
        from: &Arrival<'_>,
        origin: &Origin,
        snapshot: Snapshot<'_>,
        door_config: &'c DoorConfig,
        passage: &mut Passage,
    ) -> Result<Asked<'c>, RequestError> {
        let peer = from.peer.ip().to_canonical();
        let found = door_config.clients.find(peer, &parts.headers);
        let inquiry = Inquiry::read(parts);
        if let Some(log) = &self.access_log {
            let address = found.as_ref().map_or(peer, Client::address);
            let host = inquiry.as_ref().ok().map(|it| it.host.as_str());
            passage.line = Some(log.start(address, host, parts));
        }
        // The client has left too many answers of the gateway unread.
        if !from.account.has_room_for(0) {
            return Err(RequestError::NoRoom);
        }
        // HTTP/1 checks the number of headers while it reads the head.
        if parts.headers.len() > MAX_HEADERS {
            return Err(RequestError::TooManyHeaders { limit: MAX_HEADERS });
        }
        if parts.method == Method::CONNECT {
            return Err(RequestError::Connect);
        }
        let (inquiry, client) = (inquiry?, found?);
        let authenticator = self.authenticators.of(snapshot.active());
        let identifying = authenticator.identify(&parts.headers, from.certificate);
        let identity = identifying.await?;
        let client_address = client.address();
        let (method, written) = (parts.method.as_str(), parts.uri.path());
        let host = Some(inquiry.host.as_str());
        let route = door_config.routes.find(method, host, written.as_bytes());
        if let (Some(line), Some(route)) = (&mut passage.line, route) {
            line.answer.action = Some(route.action().to_owned());
        }
        let size = body.size_hint();
        if size.lower() > door_config.max_body {
            let limit = usize::try_from(door_config.max_body).unwrap_or(usize::MAX);
            return Err(RequestError::BodyTooLarge { limit });
        }
        let mut admitted = Admitted {
            inquiry,
            identity,
            client: client_address,
            route,
            body: ClientBody::Empty,
            read: None,
            slot: None,
            passing: None,
        };
        let streamed = |body| {
            let is_trusted = door_config.clients.is_trusted(peer);
            ClientBody::new(body, door_config.max_body, &door_config.callers, is_trusted)
        };
        if door_config.exempt.contains(written) {
            passage.note("exempt", None);
            admitted.body = streamed(body);
            return Ok(Asked::Admitted(Box::new(admitted)));
        }
        let mut whole = None;
        if route.is_some_and(Route::reads_body) {
            // The body counts as held memory until the upstream has answered.
            let mut received = Received::new(body, &parts.headers, from.account);
            let bytes = read_whole(&mut received, door_config.max_inspected_body).await?;
            admitted.body = ClientBody::whole(bytes.clone());
            admitted.read = Some(received);
            whole = Some(bytes);
        } else {
            admitted.body = streamed(body);
        }
        let size = whole.as_ref().map(|it| it.len() as u64).or(size.exact());
        let inquiry = &admitted.inquiry;
        let mut attributes = inquiry.attributes(parts, self.scheme, route, client, size);
        if let Some(route) = route {
            inquiry::add_fields(&mut attributes, route, parts, whole.as_ref())?;
        }
        // Last, so that nothing that a client sends replaces what its credentials say.
        for (name, value) in admitted.identity.attributes() {
            attributes.push(name, value);
        }
        let shedding = door_config.shedding_of(route);
        let shed = shedding.map(|it| it.ask(&attributes)).transpose()?;
        let ingress_time = &door_config.ingress_time;
        let snapshot = ingress_time.apply_from(snapshot, Some(from.peer), &parts.headers);
        let deciding = self.decide(&snapshot, door_config, attributes, origin);
        let (decision, slot) = deciding.await?;
        if !decision.is_allowed() {
            passage.note("denied", Some(&decision));
            let response = door_config.responder.deny(&decision, &parts.headers);
            return Ok(Asked::Denied(response));
        }
        let starting = self.start(shed, &decision, &admitted.body, &snapshot, origin);
        admitted.passing = starting.await?;
        passage.note("allowed", Some(&decision));
        passage.decision = Some(decision);
        admitted.slot = slot;
        Ok(Asked::Admitted(Box::new(admitted)))
    }

    /// Passes an admitted request on to its upstream, and the answer back.
    async fn forward(
        &self,
        mut parts: Parts,
        on_upgrade: Option<OnUpgrade>,
        admitted: Admitted<'_>,
        from: &Arrival<'_>,
        door_config: &DoorConfig,
        passage: &mut Passage,
    ) -> Result<Response<GatewayBody>, RequestError> {
        let Admitted {
            inquiry,
            identity,
            client,
            route,
            body,
            read,
            slot,
            passing,
        } = admitted;
        let name = route.and_then(Route::upstream);
        let upstream = door_config.upstreams.find(name);
        let upstream = upstream.ok_or(match name {
            // The config names this upstream, but it cannot be used.
            Some(_) => RequestError::Upstream(UpstreamError::Unreachable),
            None => RequestError::NoRoute,
        })?;
        if let Some(line) = &mut passage.line {
            line.answer.upstream = Some(Arc::clone(upstream.name()));
        }
        let peer = from.peer.ip().to_canonical();
        let is_trusted = door_config.clients.is_trusted(peer);
        let sender = Sender {
            peer,
            is_trusted,
            client,
            host: &inquiry.authority,
            scheme: self.scheme,
            callers: &door_config.callers,
        };
        let upgrade = match on_upgrade {
            Some(_) => headers::upgrade(&parts.headers),
            None => None,
        };
        let is_upgrade = upgrade.is_some();
        let has_length = parts.headers.contains_key(CONTENT_LENGTH);
        headers::prepare(&mut parts.headers, &sender, upgrade);
        if body.is_end_stream() {
            headers::tell_empty(&mut parts.headers, &parts.method, has_length);
        }
        match &passage.decision {
            Some(decision) => {
                let action = route.map(Route::action);
                headers::tell_decision(&mut parts.headers, action, decision);
            }
            None => headers::tell_exempt(&mut parts.headers),
        }
        if passing.as_ref().is_some_and(Passing::is_degraded) {
            headers::tell_degraded(&mut parts.headers);
        }
        if let Some(span) = &passage.span {
            span.continue_in(&mut parts.headers);
        }
        headers::tell_identity(&mut parts.headers, identity.attributes());
        let deadline = upstream.deadline();
        let mut request = outbound(parts, inquiry, body, deadline);
        request.client = (!is_trusted).then(|| net::client_of(peer));
        let exchanged = upstream.send(request).await;
        upstream.counts.count(exchanged.as_ref().err());
        if let Some(passing) = passing {
            passing.end(match &exchanged {
                Ok(exchanged) => Ok(exchanged.response.status()),
                Err(error) => Err(*error),
            });
        }
        drop(read);
        let Exchanged {
            mut response,
            mut http1,
            open,
            silence,
            progress,
        } = exchanged.map_err(|error| upstream_error(error, door_config.max_body))?;
        let status = response.status();
        if let Some(line) = &mut passage.line {
            line.status(status);
        }
        if let Some(span) = &passage.span {
            span.answered(Some(upstream.name()), status);
        }
        headers::prepare_answer(response.headers_mut(), status);
        if let Some(decision) = &passage.decision {
            let headers = response.headers_mut();
            door_config.responder.add_fields(headers, decision);
        }
        *response.version_mut() = Version::HTTP_11;
        let (head, body) = response.into_parts();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let wanted = on_upgrade.filter(|_| is_upgrade);
            let (Some(client), Some(place), Some(server)) = (wanted, from.tunnel, http1.take())
            else {
                return Err(RequestError::Upstream(UpstreamError::BadAnswer));
            };
            *place.lock() = Some(Tunnel {
                client,
                server,
                open,
                slot,
                line: passage.line.take(),
            });
            let body = GatewayBody::own(axum::body::Body::empty(), None);
            return Ok(Response::from_parts(head, body));
        }
        let mut relay = Relay::new(body, (silence, progress), open, http1, slot);
        if relay.is_empty() {
            poll_fn(|context| {
                relay.end(context);
                Poll::Ready(())
            })
            .await;
        }
        let body = GatewayBody::relayed(relay, passage.line.take(), passage.span.take());
        Ok(Response::from_parts(head, body))
    }
}

impl Passage {
    /// Makes an answer of the gateway itself.
    fn own(mut self, response: axum::response::Response) -> Response<GatewayBody> {
        if let Some(line) = &mut self.line {
            line.status(response.status());
        }
        if let Some(span) = &self.span {
            span.answered(None, response.status());
        }
        let line = self.line.take();
        response.map(|body| GatewayBody::own(body, line))
    }

    /// Notes the decision in the access log.
    fn note(&mut self, word: &'static str, decision: Option<&Decision>) {
        if let Some(line) = &mut self.line {
            line.answer.decision = Some(word);
            let rule = decision.and_then(Decision::rule);
            line.answer.rule = rule.map(|rule| rule.rule().id().to_owned());
        }
    }
}

/// Makes the request to an upstream.
fn outbound(
    parts: Parts,
    inquiry: Inquiry,
    body: ClientBody,
    deadline: Option<Instant>,
) -> Outbound {
    let target = parts.uri.into_parts().path_and_query;
    Outbound {
        method: parts.method,
        target: target.unwrap_or(http::uri::PathAndQuery::from_static("/")),
        host: inquiry.authority,
        headers: parts.headers,
        body,
        deadline,
        client: None,
    }
}

/// Reads a body that attributes are read from.
async fn read_whole(body: &mut Received, limit: usize) -> Result<Bytes, RequestError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(RequestError::BodyTooLarge { limit });
    }
    let read = net::within(BODY_TIMEOUT, net::read_whole(body, limit)).await;
    match read.ok_or(RequestError::BodyTooSlow)? {
        Ok(bytes) => Ok(bytes),
        Err(ReadError::TooLarge) => Err(RequestError::BodyTooLarge { limit }),
        Err(ReadError::Body(error)) => match error.is::<NoRoom>() {
            true => Err(RequestError::NoRoom),
            false => Err(RequestError::BodyCutShort),
        },
    }
}

/// Turns the error of an upstream into what the client is told.
fn upstream_error(error: UpstreamError, max_body: u64) -> RequestError {
    match error {
        UpstreamError::Body(BodyError::TooLarge) => RequestError::BodyTooLarge {
            limit: usize::try_from(max_body).unwrap_or(usize::MAX),
        },
        UpstreamError::Body(BodyError::TooSlow) => RequestError::BodyTooSlow,
        UpstreamError::Body(BodyError::CutShort) => RequestError::BodyCutShort,
        error => RequestError::Upstream(error),
    }
}

/// Serves on `listener` until `stop` is ready. The value of `stop` is the drain time.
pub(crate) async fn serve(
    listener: Listener,
    gateway: Arc<Gateway>,
    stop: impl Future<Output = Duration>,
) {
    let stop = async {
        let drain = stop.await;
        gateway.backend.end_delays();
        drain
    };
    let serving = connection::serve(listener, Arc::clone(&gateway), stop);
    tokio::select! {
        () = serving => {}
        () = gateway.slots.renew() => {}
    }
}

impl upstream::UpstreamCounts {
    fn count(&self, error: Option<&UpstreamError>) {
        let count = match error {
            None => &self.answered,
            Some(UpstreamError::TimedOut) => &self.timed_out,
            Some(UpstreamError::Body(_)) => return,
            Some(_) => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
