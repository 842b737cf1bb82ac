//! The HTTP door: routes, and the handlers behind them.
//!
//! A handler turns its request into a `Question`, and `App::ask` answers it. The same routes also serve
//! forward-auth, health, metrics and the OpenAPI document.

pub(crate) mod activity;
pub(crate) mod body;
pub mod bounds;
pub(crate) mod connection;
pub(crate) mod guard;
mod hold_body;
mod openapi;
mod openapi_holds;
mod report;
pub(crate) mod turn;

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post};
use http::request::Parts;
use http::{Extensions, HeaderName, Method};
use tokio::sync::{Semaphore, watch};
use tollgate::{ActiveConfig, HoldName, Snapshot, Span};
use tollgate_config::{Headers, TokenScope};
use tollgate_rules::document::duration;

use self::body::Read;
use self::bounds::{MAX_BATCH_BODY, MAX_BODY};
use self::connection::Routes;
use self::guard::GuardedDoor;
use crate::access::attempts::Attempts;
use crate::access::token::{Shown, bearer, proxy_token};
use crate::access::{Access, AccessError, DataDoor};
use crate::backend::{Answer, Backend};
use crate::control::ControlPlane;
use crate::door_metrics::HttpMetrics;
use crate::exposition::Pages;
use crate::forward_auth::ForwardAuth;
use crate::identity;
use crate::ingress_time::IngressTime;
use crate::net::{self, Listener, NoRoom, Peer, ReadError};
use crate::per_config::{Made, PerConfig};
use crate::question::{self, BadQuestion, Question, UsageQuestion};
use crate::respond::{self, RequestError, Responder};
use crate::trace::Origin;

/// The protocols of the HTTP door (ALPN), the preferred first.
pub const PROTOCOLS: &[&str] = &["h2", "http/1.1"];

const CHECK: &str = "/v1/check";

/// The name of this door in traces.
const DOOR: &str = "http";

/// The header for the token of a lease. Some clients cannot send a body with `DELETE`, so they send the
/// token here.
const LEASE_TOKEN: HeaderName = HeaderName::from_static("lease-token");

struct App {
    control: Arc<ControlPlane>,
    backend: Backend,
    access: Access,
    /// Answers forward-auth, which counts as a door of its own.
    auth: Backend,
    per_config: PerConfig<DoorConfig>,
    draining: AtomicBool,
    batches: Semaphore,
    metrics: Pages,
}

/// Values that this door derives from a config.
struct DoorConfig {
    responder: Responder,
    forward_auth: ForwardAuth,
    ingress_time: IngressTime,
    headers: Headers,
    /// The OpenAPI document, rendered at the first request for it.
    description: OnceLock<Bytes>,
}

impl DoorConfig {
    fn of(active: &ActiveConfig) -> DoorConfig {
        let config = active.config();
        DoorConfig {
            responder: Responder::new(&config.headers, active.rules()),
            forward_auth: ForwardAuth::new(identity::subjects(config), config.routes.clone()),
            ingress_time: IngressTime::of(active),
            headers: config.headers.clone(),
            description: OnceLock::new(),
        }
    }
}

impl App {
    fn new(control: Arc<ControlPlane>, attempts: Arc<Attempts>, metrics: &HttpMetrics) -> Arc<App> {
        let engine = control.engine();
        let stops = Arc::new(watch::Sender::new(false));
        let backend =
            |metrics| Backend::with_stops(Arc::clone(engine), metrics, Arc::clone(&stops));
        let auth = metrics.auth.clone().unwrap_or_default();
        Arc::new(App {
            backend: backend(Arc::clone(&metrics.door)),
            auth: backend(auth),
            access: Access::new(DataDoor::Http, Arc::clone(engine), attempts),
            per_config: PerConfig::new(engine, DoorConfig::of),
            control,
            draining: AtomicBool::new(false),
            batches: Semaphore::new(bounds::MAX_BATCHES),
            metrics: Pages::default(),
        })
    }

    /// Returns the config that one request sees, and the values that this door derived from it. Called
    /// when the whole request has arrived. So a slow request is decided by the config in force at its
    /// end.
    fn snapshot(&self) -> (Snapshot<'_>, Arc<Made<DoorConfig>>) {
        let snapshot = self.control.engine().snapshot();
        let door_config = self.per_config.of(snapshot.active());
        (snapshot, door_config)
    }

    /// Lets a request in if the door needs no token, or the request has one with this scope.
    async fn enter(
        &self,
        scope: TokenScope,
        shown: Shown<'_>,
        extensions: &Extensions,
        path: &str,
    ) -> Result<(), RequestError> {
        let peer = extensions.get().map(|Peer(peer)| peer.ip());
        let entered = self.access.enter(scope, shown, peer, path).await;
        entered.map(|_| ()).map_err(RequestError::Access)
    }

    /// Answers the question that `read` finds in the body. `places` bound how many such questions are
    /// decided at the same time: a question takes a place when its body has arrived. A request without
    /// the scope gets an error before its body is read.
    async fn ask<R>(
        &self,
        scope: TokenScope,
        max_body: usize,
        places: Option<&Semaphore>,
        request: Request,
        read: R,
    ) -> Response
    where
        R: for<'b> FnOnce(&'b [u8]) -> Read<'b>,
    {
        let (head, body) = request.into_parts();
        let origin = Origin::new(DOOR, &head.headers);
        respond::answer(async {
            if !self.access.is_open() {
                let (shown, path) = (bearer(&head.headers), head.uri.path());
                // Boxed, because a door without tokens should not make room for it.
                Box::pin(self.enter(scope, shown, &head.extensions, path)).await?;
            }
            let body = read_body(Request::new(body), max_body).await?;
            let _place = match places {
                Some(places) => Some(places.acquire().await),
                None => None,
            };
            let question = read(&body)?;
            self.answer(&question, &origin, &head).await
        })
        .await
    }

    /// Answers a question that is not in a body.
    async fn ask_without_body(
        &self,
        scope: TokenScope,
        head: &Parts,
        question: Read<'_>,
    ) -> Response {
        let origin = Origin::new(DOOR, &head.headers);
        respond::answer(async {
            if !self.access.is_open() {
                let (shown, path) = (bearer(&head.headers), head.uri.path());
                Box::pin(self.enter(scope, shown, &head.extensions, path)).await?;
            }
            self.answer(&question?, &origin, head).await
        })
        .await
    }

    /// Answers the question of a request with this `head`.
    async fn answer(
        &self,
        question: &Question<'_>,
        origin: &Origin,
        head: &Parts,
    ) -> Result<Response, RequestError> {
        let metrics = &self.backend.metrics;
        let started = metrics.start();
        let (snapshot, door_config) = self.snapshot();
        let (extensions, headers) = (&head.extensions, &head.headers);
        let ingress_time = &door_config.ingress_time;
        let snapshot = ingress_time.apply(snapshot, extensions, headers);
        let backend = &self.backend;
        let answer = backend
            .answer_or_delay(started, &snapshot, question, origin)
            .await?;
        Ok(door_config.responder.answer(&answer, headers))
    }
}

/// Returns the routes alone, to mount in your own server. Your server must bound connections, headers, and
/// the memory of requests and answers that clients leave unfinished. It must refuse requests of foreign web
/// pages. It must call [`Engine::sweep`](tollgate::Limiter::sweep) and [`ControlPlane::watch`], and must put
/// a [`Peer`] into the extensions of requests for `/auth`.
pub fn router(control: Arc<ControlPlane>) -> Router {
    let metrics = HttpMetrics {
        door: Arc::default(),
        auth: Some(Arc::default()),
    };
    routes(App::new(control, Arc::default(), &metrics))
}

/// Serves on `listener` until `stop` is ready. The value of `stop` is the drain time: for this long the
/// door is not ready, but serves. Then open requests finish. A listener with TLS must offer
/// [`PROTOCOLS`].
///
/// The door follows the config in force. The caller must call
/// [`Engine::sweep`](tollgate::Limiter::sweep) from time to time, as one engine may have several doors.
pub async fn serve(
    listener: Listener,
    control: Arc<ControlPlane>,
    stop: impl Future<Output = Duration>,
) {
    let metrics = listener.http_metrics();
    let app = App::new(control, Arc::clone(listener.attempts()), &metrics);
    let (checks, others) = (
        Arc::clone(&app),
        connection::routes_of(routes(Arc::clone(&app))),
    );
    let routes: Routes = Arc::new(move |request| {
        // Most requests are checks, so they skip the router. Finding their route would cost as much
        // as the decision.
        if request.method() == Method::POST && request.uri().path() == CHECK {
            let (app, request) = (Arc::clone(&checks), request.map(Body::new));
            return Box::pin(async move { check(&app, request).await });
        }
        others(request)
    });
    let stop = async {
        let drain = stop.await;
        app.draining.store(true, Ordering::Relaxed);
        app.backend.end_delays();
        drain
    };
    let guard = listener.guard(GuardedDoor::Http);
    connection::serve(listener, routes, is_large, guard, metrics, stop).await;
}

/// Returns whether the answer to a request for this path may be larger than a decision.
fn is_large(path: &str) -> bool {
    matches!(
        path,
        "/v1/check/batch" | "/v1/leases/holders" | "/metrics" | "/openapi.json"
    ) || path.starts_with("/v1/usage/")
}

fn routes(app: Arc<App>) -> Router {
    use TokenScope::{Check, Refund, Reserve};
    Router::new()
        .route(
            CHECK,
            post(
                |State(app): AppState, request: Request| async move { check(&app, request).await },
            ),
        )
        .route("/v1/check/batch", post(check_batch))
        .route("/v1/peek", asks(Check, body::peek))
        .route("/v1/refund", asks(Refund, body::refund))
        .route("/v1/report", post(report_latency))
        .route("/v1/reservations", asks(Reserve, hold_body::reserve))
        .route("/v1/reservations/{id}", get(reservation))
        .route(
            "/v1/reservations/{id}/commit",
            asks_about(hold_body::commit),
        )
        .route(
            "/v1/reservations/{id}/release",
            asks_about(hold_body::release),
        )
        .route(
            "/v1/reservations/{id}/extend",
            asks_about(hold_body::extend),
        )
        .route("/v1/leases", asks(Reserve, hold_body::acquire))
        .route("/v1/leases/holders", asks(Reserve, hold_body::holders))
        .route("/v1/leases/{id}", delete(release_lease))
        .route("/v1/leases/{id}/renew", asks_about(hold_body::renew))
        .route("/v1/usage/{tenant}", get(usage))
        .route("/auth", any(auth))
        .route("/auth/", any(auth))
        .route("/auth/{*path}", any(auth))
        .route("/healthz", get(|| async { respond::alive() }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(description))
        .fallback(|| async { respond::error(&RequestError::NoSuchPath) })
        .method_not_allowed_fallback(|| async { respond::error(&RequestError::WrongMethod) })
        .with_state(app)
}

type AppState = State<Arc<App>>;

/// A parameter in the path.
type PathText = Result<Path<String>, PathRejection>;

/// Makes a route that needs this scope. The question is in the body.
fn asks<R>(scope: TokenScope, read: R) -> MethodRouter<Arc<App>>
where
    R: for<'b> FnOnce(&'b [u8]) -> Read<'b> + Copy + Send + Sync + 'static,
{
    post(move |State(app): AppState, request: Request| async move {
        app.ask(scope, MAX_BODY, None, request, read).await
    })
}

/// Makes a route that asks about a reservation or lease. The id is in the path, and the rest of the
/// question is in the body.
fn asks_about<R>(read: R) -> MethodRouter<Arc<App>>
where
    R: for<'b> FnOnce(HoldName, &'b [u8]) -> Read<'b> + Copy + Send + Sync + 'static,
{
    post(
        move |State(app): AppState, id: PathText, request: Request| async move {
            let scope = TokenScope::Reserve;
            app.ask(scope, MAX_BODY, None, request, |body| {
                read(hold_name(id)?, body)
            })
            .await
        },
    )
}

/// Answers a check. The query may say how long it waits for its turn.
async fn check(app: &App, request: Request) -> Response {
    let wait = wait_of(request.uri().query());
    let scope = TokenScope::Check;
    app.ask(scope, MAX_BODY, None, request, |body| {
        body::check(body, wait)
    })
    .await
}

async fn check_batch(State(app): AppState, request: Request) -> Response {
    let (scope, places) = (TokenScope::Check, Some(&app.batches));
    app.ask(scope, MAX_BATCH_BODY, places, request, body::batch)
        .await
}

async fn report_latency(State(app): AppState, request: Request) -> Response {
    let (head, body) = request.into_parts();
    respond::answer(async {
        let (shown, path) = (bearer(&head.headers), head.uri.path());
        app.enter(TokenScope::Reserve, shown, &head.extensions, path)
            .await?;
        let body = read_body(Request::new(body), MAX_BODY).await?;
        let (snapshot, _) = app.snapshot();
        Ok(respond::report(&report::report(&snapshot, &body)?))
    })
    .await
}

async fn reservation(State(app): AppState, id: PathText, request: Request) -> Response {
    let question = hold_name(id).map(Question::GetReservation);
    let (head, _) = request.into_parts();
    app.ask_without_body(TokenScope::Reserve, &head, question)
        .await
}

async fn release_lease(State(app): AppState, id: PathText, request: Request) -> Response {
    let Some(token) = request.headers().get(&LEASE_TOKEN) else {
        let scope = TokenScope::Reserve;
        let asking = app.ask(scope, MAX_BODY, None, request, |body| {
            hold_body::free(hold_name(id)?, body)
        });
        return asking.await;
    };
    let question = hold_name(id).and_then(|id| {
        let token = question::token(token.as_bytes())?;
        Ok(Question::ReleaseLease { id, token })
    });
    let (head, _) = request.into_parts();
    app.ask_without_body(TokenScope::Reserve, &head, question)
        .await
}

async fn usage(
    State(app): AppState,
    tenant: PathText,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    let question = match tenant {
        Ok(Path(tenant)) => usage_question(tenant, &query.unwrap_or_default()),
        Err(_) => Err(RequestError::BadPath),
    };
    let (head, _) = request.into_parts();
    let question = question.map(Question::Usage);
    app.ask_without_body(TokenScope::Usage, &head, question)
        .await
}

async fn auth(State(app): AppState, request: Request) -> Response {
    // The body of the proxy's client is not read.
    let (parts, _) = request.into_parts();
    respond::answer(async {
        let (extensions, headers) = (&parts.extensions, &parts.headers);
        if !app.access.is_open() {
            let (shown, path) = (proxy_token(headers), parts.uri.path());
            let entering = app.enter(TokenScope::Check, shown, extensions, path);
            Box::pin(entering).await.map_err(|error| match error {
                RequestError::Access(AccessError::NoToken) => RequestError::NoProxyToken,
                error => error,
            })?;
        }
        let started = app.auth.metrics.start();
        let peer = extensions.get::<Peer>().map(|Peer(peer)| *peer);
        let (snapshot, door_config) = app.snapshot();
        let identity;
        let mut check = door_config.forward_auth.check(peer, &parts)?;
        let authenticator = app.control.authenticators().of(snapshot.active());
        // The certificate of the connection is the proxy's own.
        identity = authenticator.identify(headers, None).await?;
        for (name, value) in identity.attributes() {
            check.attributes.push(name, value);
        }
        let ingress_time = &door_config.ingress_time;
        let snapshot = ingress_time.apply(snapshot, extensions, headers);
        let origin = Origin::new("auth", headers);
        let question = Question::Check(check);
        let answer = app
            .auth
            .answer_or_delay(started, &snapshot, &question, &origin)
            .await?;
        Ok(match answer {
            Answer::Decision(decision) => door_config.responder.verdict(&decision, headers),
            answer => door_config.responder.answer(&answer, headers),
        })
    })
    .await
}

async fn metrics(State(app): AppState, request: Request) -> Response {
    let (head, _) = request.into_parts();
    respond::answer(async {
        let (shown, path) = (bearer(&head.headers), head.uri.path());
        app.enter(TokenScope::Metrics, shown, &head.extensions, path)
            .await?;
        Ok(respond::metrics(app.metrics.render(&app.control)))
    })
    .await
}

async fn readyz(State(app): AppState) -> Response {
    ready(&app.control, &app.draining)
}

/// Answers `/readyz`, here and at the admin door.
pub(crate) fn ready(control: &ControlPlane, draining: &AtomicBool) -> Response {
    if draining.load(Ordering::Relaxed) {
        return respond::error(&RequestError::Draining);
    }
    let engine = control.engine();
    respond::ready(&engine.rules(), engine.store_problem(), &control.status())
}

async fn description(State(app): AppState) -> Response {
    let (_, door_config) = app.snapshot();
    let render = || openapi::render(&door_config.headers);
    respond::rendered(door_config.description.get_or_init(render).clone())
}

/// Reads the id of a reservation or lease from the path.
fn hold_name(id: PathText) -> Result<HoldName, RequestError> {
    let Path(id) = id.map_err(|_| RequestError::BadPath)?;
    Ok(id.parse().map_err(BadQuestion::HoldName)?)
}

/// Reads how long a check may wait: `wait=200ms`. Other parameters are ignored.
fn wait_of(query: Option<&str>) -> Result<Span, RequestError> {
    let Some(query) = query else {
        return Ok(Span::ZERO);
    };
    let mut wait = None;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != "wait" {
            continue;
        }
        if wait.is_some() {
            return Err(RequestError::Query("wait is given twice".to_owned()));
        }
        let read = match &*value {
            "0" => Ok(Span::ZERO),
            text => duration(text),
        };
        let wrong = |why| RequestError::Query(format!("wait: {why}"));
        wait = Some(read.map_err(wrong)?);
    }
    Ok(wait.unwrap_or(Span::ZERO))
}

fn usage_question(tenant: String, query: &str) -> Result<UsageQuestion<'static>, RequestError> {
    let mut wanted = UsageQuestion {
        tenant: tenant.into(),
        ..UsageQuestion::default()
    };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let given = match &*name {
            "period" => &mut wanted.period,
            "action" => &mut wanted.action,
            "rule" => &mut wanted.rule,
            _ => {
                let name: String = name.chars().take(80).collect();
                let wrong = format!("unknown parameter {name:?}; use period, action and rule");
                return Err(RequestError::Query(wrong));
            }
        };
        if given.is_some() {
            return Err(RequestError::Query(format!("{name} is given twice")));
        }
        *given = Some(value.into_owned().into());
    }
    // An empty parameter counts as not given.
    for given in [&mut wanted.period, &mut wanted.action, &mut wanted.rule] {
        given.take_if(|value| value.is_empty());
    }
    Ok(wanted.within_bounds()?)
}

/// A body that has arrived. It counts as held memory until it is dropped.
pub(crate) struct Whole {
    pub(crate) bytes: Bytes,
    _counted: Body,
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a body within its bounds.
pub(crate) async fn read_body(request: Request, limit: usize) -> Result<Whole, RequestError> {
    // A `Content-Length` above the limit is refused before the client is asked to send the body
    // (`100 Continue`).
    if request.body().size_hint().lower() > limit as u64 {
        return Err(RequestError::BodyTooLarge { limit });
    }
    let mut body = request.into_body();
    // Most bodies have arrived together with the head, and need no timer.
    let read = net::within(bounds::BODY_TIMEOUT, net::read_whole(&mut body, limit)).await;
    match read.ok_or(RequestError::BodyTooSlow)? {
        Ok(bytes) => Ok(Whole {
            bytes,
            _counted: body,
        }),
        Err(ReadError::TooLarge) => Err(RequestError::BodyTooLarge { limit }),
        Err(ReadError::Body(error)) => match error.into_inner().is::<NoRoom>() {
            true => Err(RequestError::NoRoom),
            false => Err(RequestError::BodyCutShort),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_of_a_check_is_a_duration() {
        let read = |query| wait_of(Some(query));
        assert_eq!(wait_of(None).unwrap(), Span::ZERO);
        assert_eq!(read("wait=200ms&trace=1").unwrap(), Span::from_millis(200));
        assert_eq!(read("other").unwrap(), Span::ZERO);
        assert_eq!(read("wait=0").unwrap(), Span::ZERO);
        for (query, says) in [
            ("wait=soon", "wait: `soon` is not a duration"),
            ("wait=200", "wait: "),
            ("wait=1s&wait=2s", "wait is given twice"),
        ] {
            let wrong = read(query).unwrap_err().to_string();
            assert!(wrong.contains(says), "{wrong}");
        }
    }

    #[test]
    fn each_query_parameter_is_given_once() {
        let read = |query: &str| usage_question("acme".to_owned(), query);
        let wanted = read("period=2026-07&action=&rule=a%20b").unwrap();
        assert_eq!(wanted.period.as_deref(), Some("2026-07"));
        assert_eq!((wanted.action, wanted.rule.as_deref()), (None, Some("a b")));
        let long = format!("rule={}", "x".repeat(2000));
        for (query, says) in [
            ("rules=a", "unknown parameter \"rules\""),
            ("rule=a&rule=b", "rule is given twice"),
            (&long, "rule is longer than 1024 bytes"),
        ] {
            let wrong = read(query).unwrap_err().to_string();
            assert!(wrong.contains(says), "{wrong}");
        }
    }
}
