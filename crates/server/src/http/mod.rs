//! The HTTP door: routes, and the handlers behind them.
//!
//! A handler turns its request into a `Question`, and `App::ask` answers it. The same routes also serve
//! forward-auth, health, metrics and the OpenAPI document.

mod activity;
pub(crate) mod body;
pub mod bounds;
pub(crate) mod connection;
mod hold_body;
mod openapi;
mod openapi_holds;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post};
use http::{HeaderMap, HeaderName, Version};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::Semaphore;
use tollgate::{ActiveConfig, HoldName, Snapshot};
use tollgate_config::Families;

use self::body::Read;
use self::bounds::{MAX_BATCH_BODY, MAX_BODY};
use crate::backend::{Answer, Backend};
use crate::control::ControlPlane;
use crate::exposition;
use crate::forward_auth::ForwardAuth;
use crate::net::{Listener, Peer};
use crate::per_config::{Made, PerConfig};
use crate::question::{self, BadQuestion, Question, UsageQuestion};
use crate::respond::{self, RequestError, Responder, accepts_problem};
use crate::trace::Origin;

/// The protocols of the HTTP door (ALPN), the preferred first.
pub const PROTOCOLS: &[&str] = &["h2", "http/1.1"];

/// The name of this door in traces.
const DOOR: &str = "http";

/// The header for the token of a lease. Some clients cannot send a body with `DELETE`, so they send the
/// token here.
const LEASE_TOKEN: HeaderName = HeaderName::from_static("lease-token");

struct App {
    control: Arc<ControlPlane>,
    backend: Backend,
    per_config: PerConfig<DoorConfig>,
    draining: AtomicBool,
    batches: Semaphore,
    stream_bodies: Semaphore,
}

/// Values that this door derives from a config.
struct DoorConfig {
    responder: Responder,
    forward_auth: ForwardAuth,
    families: Families,
    /// The OpenAPI document, rendered at the first request for it.
    description: OnceLock<Bytes>,
}

impl DoorConfig {
    fn of(active: &ActiveConfig) -> DoorConfig {
        let config = active.config();
        DoorConfig {
            responder: Responder::new(&config.headers, active.rules()),
            forward_auth: ForwardAuth::new(config.subjects.clone(), config.routes.clone()),
            families: config.headers.families,
            description: OnceLock::new(),
        }
    }
}

impl App {
    fn new(control: Arc<ControlPlane>) -> Arc<App> {
        Arc::new(App {
            backend: Backend::new(Arc::clone(control.engine())),
            per_config: PerConfig::new(control.engine(), DoorConfig::of),
            control,
            draining: AtomicBool::new(false),
            batches: Semaphore::new(bounds::MAX_BATCHES),
            stream_bodies: Semaphore::new(bounds::MAX_STREAM_BODIES),
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

    /// Answers the question that `read` finds in the body.
    async fn ask<R>(&self, max_body: usize, request: Request, read: R) -> Response
    where
        R: for<'b> FnOnce(&'b [u8]) -> Read<'b>,
    {
        let accepts_problem = accepts_problem(request.headers());
        let origin = Origin::new(DOOR, request.headers());
        // Pinned in their places: a move of these futures would copy several kilobytes.
        let answered = pin!(async {
            let body = read_body(&self.stream_bodies, request, max_body).await?;
            let question = read(&body)?;
            pin!(self.answer(&question, &origin, accepts_problem)).await
        });
        respond::answer(answered).await
    }

    /// Answers a question that is not in a body.
    async fn ask_without_body(&self, headers: &HeaderMap, question: Read<'_>) -> Response {
        let origin = Origin::new(DOOR, headers);
        respond::answer(async { self.answer(&question?, &origin, false).await }).await
    }

    async fn answer(
        &self,
        question: &Question<'_>,
        origin: &Origin,
        accepts_problem: bool,
    ) -> Result<Response, RequestError> {
        let (snapshot, door_config) = self.snapshot();
        let answer = pin!(self.backend.answer(&snapshot, question, origin)).await?;
        Ok(door_config.responder.answer(&answer, accepts_problem))
    }
}

/// Returns the routes alone, to mount in your own server. Your server must bound connections and
/// headers. It must call [`Engine::sweep`](tollgate::Limiter::sweep) and [`ControlPlane::watch`],
/// and must put a [`Peer`] into the extensions of requests for `/auth`.
pub fn router(control: Arc<ControlPlane>) -> Router {
    routes(App::new(control))
}

/// Serves on `listener` until `stop` is ready, then lets open requests finish. A listener with TLS
/// must offer [`PROTOCOLS`].
///
/// The door follows the config in force. The caller must call
/// [`Engine::sweep`](tollgate::Limiter::sweep) from time to time, as one engine may have several doors.
pub async fn serve(listener: Listener, control: Arc<ControlPlane>, stop: impl Future<Output = ()>) {
    let app = App::new(control);
    let routes = routes(Arc::clone(&app));
    let stop = async {
        stop.await;
        app.draining.store(true, Ordering::Relaxed);
    };
    connection::serve(listener, routes, stop).await;
}

fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/check", asks(body::check))
        .route("/v1/check/batch", post(check_batch))
        .route("/v1/peek", asks(body::peek))
        .route("/v1/refund", asks(body::refund))
        .route("/v1/reservations", asks(hold_body::reserve))
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
        .route("/v1/leases", asks(hold_body::acquire))
        .route("/v1/leases/holders", asks(hold_body::holders))
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

/// Makes a route. The question is in the body.
fn asks<R>(read: R) -> MethodRouter<Arc<App>>
where
    R: for<'b> FnOnce(&'b [u8]) -> Read<'b> + Copy + Send + Sync + 'static,
{
    post(move |State(app): AppState, request: Request| async move {
        pin!(app.ask(MAX_BODY, request, read)).await
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
            app.ask(MAX_BODY, request, |body| read(hold_name(id)?, body))
                .await
        },
    )
}

async fn check_batch(State(app): AppState, request: Request) -> Response {
    let _permit = app.batches.acquire().await;
    app.ask(MAX_BATCH_BODY, request, body::batch).await
}

async fn reservation(State(app): AppState, id: PathText, headers: HeaderMap) -> Response {
    let question = hold_name(id).map(Question::GetReservation);
    app.ask_without_body(&headers, question).await
}

async fn release_lease(State(app): AppState, id: PathText, request: Request) -> Response {
    let Some(token) = request.headers().get(&LEASE_TOKEN) else {
        let asking = app.ask(MAX_BODY, request, |body| {
            hold_body::free(hold_name(id)?, body)
        });
        return asking.await;
    };
    let question = hold_name(id).and_then(|id| {
        let token = question::token(token.as_bytes())?;
        Ok(Question::ReleaseLease { id, token })
    });
    app.ask_without_body(request.headers(), question).await
}

async fn usage(
    State(app): AppState,
    tenant: PathText,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let question = match tenant {
        Ok(Path(tenant)) => usage_question(tenant, &query.unwrap_or_default()),
        Err(_) => Err(RequestError::BadPath),
    };
    app.ask_without_body(&headers, question.map(Question::Usage))
        .await
}

async fn auth(State(app): AppState, request: Request) -> Response {
    let accepts_problem = accepts_problem(request.headers());
    // The body of the proxy's client is not read.
    let (parts, _) = request.into_parts();
    respond::answer(async {
        let peer = parts.extensions.get::<Peer>().map(|Peer(peer)| *peer);
        let (snapshot, door_config) = app.snapshot();
        let check = door_config.forward_auth.check(peer, &parts)?;
        let origin = Origin::new("auth", &parts.headers);
        let question = Question::Check(check);
        let answer = app.backend.answer(&snapshot, &question, &origin).await?;
        Ok(match answer {
            Answer::Decision(decision) => door_config.responder.verdict(&decision, accepts_problem),
            answer => door_config.responder.answer(&answer, accepts_problem),
        })
    })
    .await
}

async fn metrics(State(app): AppState) -> Response {
    respond::metrics(exposition::render(&app.control))
}

async fn readyz(State(app): AppState) -> Response {
    if app.draining.load(Ordering::Relaxed) {
        return respond::error(&RequestError::Draining);
    }
    let engine = app.control.engine();
    respond::ready(
        &engine.rules(),
        engine.store_problem(),
        &app.control.status(),
    )
}

async fn description(State(app): AppState) -> Response {
    let (_, door_config) = app.snapshot();
    let render = || openapi::render(door_config.families);
    respond::rendered(door_config.description.get_or_init(render).clone())
}

/// Reads the id of a reservation or lease from the path.
fn hold_name(id: PathText) -> Result<HoldName, RequestError> {
    let Path(id) = id.map_err(|_| RequestError::BadPath)?;
    Ok(id.parse().map_err(BadQuestion::HoldName)?)
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

/// Reads a body within its bounds. A body that arrives in parts on a connection with other requests
/// (HTTP/2) needs a permit of `stream_bodies`.
pub(crate) async fn read_body(
    stream_bodies: &Semaphore,
    request: Request,
    limit: usize,
) -> Result<Bytes, RequestError> {
    let is_stream = request.version() == Version::HTTP_2;
    let mut reading = pin!(Limited::new(request.into_body(), limit).collect());
    // Most bodies have arrived together with the head, and need no timer.
    let at_once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    let read = match at_once {
        Poll::Ready(read) => read,
        Poll::Pending => {
            let rest = async {
                let _permit = match is_stream {
                    true => Some(stream_bodies.acquire().await),
                    false => None,
                };
                reading.await
            };
            let read = tokio::time::timeout(bounds::BODY_TIMEOUT, rest).await;
            read.map_err(|_| RequestError::BodyTooSlow)?
        }
    };
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(RequestError::BodyTooLarge { limit }),
        Err(_) => Err(RequestError::BodyCutShort),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
