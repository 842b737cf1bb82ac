//! The HTTP door: routes, and the loop that serves them.

mod activity;
pub(crate) mod body;
pub mod bounds;
pub(crate) mod connection;
mod openapi;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use futures_util::future::join_all;
use http::Version;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::Semaphore;
use tollgate::{Ask, Config, Engine};
use tollgate_rules::{Headers, Routes, Subjects};

use self::body::{BatchBody, CheckBody, RefundBody};
use crate::exposition;
use crate::forward_auth::ForwardAuth;
use crate::net::{Listener, Peer};
use crate::respond::{self, RequestError, Responder};
use crate::trace::Origin;

/// The protocols of the HTTP door (ALPN), the preferred first.
pub const PROTOCOLS: &[&str] = &["h2", "http/1.1"];

/// What this door is called in traces.
const DOOR: &str = "http";

/// What the HTTP door needs besides a limiter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Which headers and which body a refusal has.
    pub headers: Headers,
    /// The namespace shown in metrics.
    pub namespace: String,
    /// Who is who, where that has to be found in a request.
    pub subjects: Subjects,
    /// Which action a request is, where that has to be found in a request.
    pub routes: Routes,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Options {
        Options {
            headers: config.headers,
            namespace: config.namespace.clone(),
            subjects: config.subjects.clone(),
            routes: config.routes.clone(),
        }
    }
}

struct App {
    engine: Arc<Engine>,
    responder: Responder,
    forward_auth: ForwardAuth,
    namespace: String,
    /// The description of this door, rendered.
    description: Bytes,
    draining: AtomicBool,
    batches: Semaphore,
    stream_bodies: Semaphore,
}

impl App {
    fn new(engine: Arc<Engine>, options: Options) -> Arc<App> {
        let responder = Responder::new(&options.headers, engine.rules());
        Arc::new(App {
            engine,
            responder,
            forward_auth: ForwardAuth::new(options.subjects, options.routes),
            namespace: options.namespace,
            description: openapi::render(options.headers.families),
            draining: AtomicBool::new(false),
            batches: Semaphore::new(bounds::MAX_BATCHES),
            stream_bodies: Semaphore::new(bounds::MAX_STREAM_BODIES),
        })
    }
}

/// The routes alone, to be mounted in a server of one's own. The bounds on connections and headers
/// are then that server's affair, and so are calling [`Engine::sweep`] and, for `/auth`, putting a
/// [`Peer`] into the extensions of requests.
pub fn router(engine: Arc<Engine>, options: Options) -> Router {
    routes(App::new(engine, options))
}

/// Serves on `listener` until `stop` is ready, then lets requests in flight finish. A listener with TLS
/// has to speak [`PROTOCOLS`].
///
/// To forget expired state now and then ([`Engine::sweep`]) is the caller's affair, as one engine
/// may have several doors.
pub async fn serve(
    listener: Listener,
    engine: Arc<Engine>,
    options: Options,
    stop: impl Future<Output = ()>,
) {
    let app = App::new(engine, options);
    let routes = routes(Arc::clone(&app));
    let stop = async {
        stop.await;
        app.draining.store(true, Ordering::Relaxed);
    };
    connection::serve(listener, routes, stop).await;
}

fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(check_batch))
        .route("/v1/peek", post(peek))
        .route("/v1/refund", post(refund))
        .route("/auth", any(auth))
        .route("/auth/", any(auth))
        .route("/auth/{*path}", any(auth))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(description))
        .fallback(|| async { respond::error(&RequestError::NoSuchPath) })
        .method_not_allowed_fallback(|| async { respond::error(&RequestError::WrongMethod) })
        .with_state(app)
}

async fn check(State(app): State<Arc<App>>, request: Request) -> Response {
    let wants_problem = app.responder.wants_problem(request.headers());
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let (attributes, ask) = (check.attributes(), check.ask()?);
        let asking = app.engine.ask(&attributes, ask);
        let decision = origin.trace(&app.engine, "check", asking).await;
        Ok(app.responder.decision(&decision, wants_problem))
    })
    .await
}

async fn check_batch(State(app): State<Arc<App>>, request: Request) -> Response {
    let _place = app.batches.acquire().await;
    let origin = &Origin::new(DOOR, request.headers());
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BATCH_BODY).await?;
        let batch: BatchBody<'_> = body::parse(&body)?;
        let requests = batch.requests()?;
        let asks = requests
            .iter()
            .map(CheckBody::ask)
            .collect::<Result<Vec<_>, _>>()?;
        // All at once, so that those of a shared store travel together.
        let engine = &app.engine;
        let both = requests.iter().zip(asks);
        let asked = both.map(|(check, ask)| async move {
            let attributes = check.attributes();
            let asking = engine.ask(&attributes, ask);
            origin.trace(engine, "check", asking).await
        });
        Ok(app.responder.batch(&join_all(asked).await))
    })
    .await
}

async fn peek(State(app): State<Arc<App>>, request: Request) -> Response {
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let (attributes, ask) = (check.attributes(), check.ask()?);
        let asking = app.engine.peek(&attributes, ask);
        let decision = origin.trace(&app.engine, "peek", asking).await;
        Ok(respond::decided(&decision))
    })
    .await
}

async fn refund(State(app): State<Arc<App>>, request: Request) -> Response {
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BODY).await?;
        let refund: RefundBody<'_> = body::parse(&body)?;
        let (units, charged_at) = (refund.units()?, refund.charged_at());
        let attributes = refund.attributes();
        let asking = app.engine.refund(&attributes, units, charged_at);
        let decision = origin.trace(&app.engine, "refund", asking).await?;
        Ok(respond::decided(&decision))
    })
    .await
}

async fn auth(State(app): State<Arc<App>>, request: Request) -> Response {
    let wants_problem = app.responder.wants_problem(request.headers());
    // A body would be the client's, and says nothing here: it is not read.
    let (parts, _) = request.into_parts();
    respond::answer(async {
        let peer = parts.extensions.get::<Peer>().map(|Peer(peer)| *peer);
        let asked = app.forward_auth.read(peer, &parts)?;
        let attributes = asked.attributes();
        let asking = app.engine.ask(&attributes, Ask::Exactly(1));
        let origin = Origin::new("auth", &parts.headers);
        let decision = origin.trace(&app.engine, "check", asking).await;
        Ok(app.responder.verdict(&decision, wants_problem))
    })
    .await
}

async fn healthz() -> Response {
    respond::alive()
}

async fn readyz(State(app): State<Arc<App>>) -> Response {
    if app.draining.load(Ordering::Relaxed) {
        return respond::error(&RequestError::Draining);
    }
    respond::ready(app.engine.rules())
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    respond::metrics(exposition::render(&app.engine, &app.namespace))
}

async fn description(State(app): State<Arc<App>>) -> Response {
    respond::rendered(app.description.clone())
}

/// Reads a body within its bounds. Bodies that come by and by, and share a connection with others, take
/// one of the places of `stream_bodies`.
pub(crate) async fn read_body(
    stream_bodies: &Semaphore,
    request: Request,
    limit: usize,
) -> Result<Bytes, RequestError> {
    let many_share_a_connection = request.version() == Version::HTTP_2;
    let mut reading = pin!(Limited::new(request.into_body(), limit).collect());
    // Most bodies have arrived with their heads: only the others need a clock.
    let at_once = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    let read = match at_once {
        Poll::Ready(read) => read,
        Poll::Pending => {
            let rest = async {
                let _place = match many_share_a_connection {
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
