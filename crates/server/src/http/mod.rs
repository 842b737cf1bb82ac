//! The HTTP door: routes, and the loop that serves them.

mod activity;
pub(crate) mod body;
pub mod bounds;
pub(crate) mod connection;
mod hold_body;
mod holds;
mod openapi;
mod openapi_holds;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
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
use tollgate::{ActiveConfig, Ask, Snapshot};
use tollgate_config::Families;

use self::body::{BatchBody, CheckBody, RefundBody};
use crate::exposition;
use crate::forward_auth::ForwardAuth;
use crate::keeper::Keeper;
use crate::net::{Listener, Peer};
use crate::per_config::{Made, PerConfig};
use crate::respond::{self, RequestError, Responder, accepts_problem};
use crate::trace::Origin;
use crate::usage::Books;
use crate::waiting::Waiting;

/// The protocols of the HTTP door (ALPN), the preferred first.
pub const PROTOCOLS: &[&str] = &["h2", "http/1.1"];

/// What this door is called in traces.
const DOOR: &str = "http";

struct App {
    keeper: Arc<Keeper>,
    faces: PerConfig<DomainTable>,
    draining: AtomicBool,
    batches: Semaphore,
    stream_bodies: Semaphore,
    waiting: Waiting,
    books: Books,
}

/// What a config makes of this door.
struct DomainTable {
    responder: Responder,
    forward_auth: ForwardAuth,
    families: Families,
    /// The description of the door, rendered when somebody asks.
    description: OnceLock<Bytes>,
}

impl DomainTable {
    fn of(live: &ActiveConfig) -> DomainTable {
        let config = live.config();
        DomainTable {
            responder: Responder::new(&config.headers, live.rules()),
            forward_auth: ForwardAuth::new(config.subjects.clone(), config.routes.clone()),
            families: config.headers.families,
            description: OnceLock::new(),
        }
    }
}

impl App {
    fn new(keeper: Arc<Keeper>) -> Arc<App> {
        Arc::new(App {
            faces: PerConfig::new(keeper.engine(), DomainTable::of),
            keeper,
            draining: AtomicBool::new(false),
            batches: Semaphore::new(bounds::MAX_BATCHES),
            stream_bodies: Semaphore::new(bounds::MAX_STREAM_BODIES),
            waiting: Waiting::new(),
            books: Books::default(),
        })
    }

    /// For one request: the engine with the config in force, and what that makes of this door. Taken
    /// when the request has arrived as a whole: one that trickles in is decided by what is in force
    /// when it is there.
    fn turn(&self) -> (Snapshot<'_>, Arc<Made<DomainTable>>) {
        let pinned = self.keeper.engine().snapshot();
        let face = self.faces.of(pinned.live());
        (pinned, face)
    }
}

/// The routes alone, to be mounted in a server of one's own. The bounds on connections and headers
/// are then that server's affair, and so are calling
/// [`Engine::sweep`](tollgate::Engine::sweep), [`Keeper::watch`] and, for `/auth`, putting a
/// [`Peer`] into the extensions of requests.
pub fn router(keeper: Arc<Keeper>) -> Router {
    routes(App::new(keeper))
}

/// Serves on `listener` until `stop` is ready, then lets requests in flight finish. A listener with TLS
/// has to speak [`PROTOCOLS`].
///
/// What headers say and who is who follows the config in force. To forget expired state now and then
/// ([`Engine::sweep`](tollgate::Engine::sweep)) is the caller's affair, as one engine may have several
/// doors.
pub async fn serve(listener: Listener, keeper: Arc<Keeper>, stop: impl Future<Output = ()>) {
    let app = App::new(keeper);
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
        .merge(holds::routes())
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
    let accepts_problem = accepts_problem(request.headers());
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let (attributes, ask) = (check.attributes(), check.ask()?);
        let (pinned, face) = app.turn();
        let asking = pinned.ask(&attributes, ask);
        let decision = origin.trace(&pinned, "check", asking).await;
        Ok(face.responder.decision(&decision, accepts_problem))
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
        let (pinned, face) = app.turn();
        // All at once, so that those of a shared store travel together.
        let both = requests.iter().zip(asks);
        let pinned = &pinned;
        let asked = both.map(|(check, ask)| async move {
            let attributes = check.attributes();
            let asking = pinned.ask(&attributes, ask);
            origin.trace(pinned, "check", asking).await
        });
        Ok(face.responder.batch(&join_all(asked).await))
    })
    .await
}

async fn peek(State(app): State<Arc<App>>, request: Request) -> Response {
    let origin = Origin::new(DOOR, request.headers());
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let (attributes, ask) = (check.attributes(), check.ask()?);
        let engine = &**app.keeper.engine();
        let asking = engine.peek(&attributes, ask);
        let decision = origin.trace(engine, "peek", asking).await;
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
        let engine = &**app.keeper.engine();
        let asking = engine.refund(&attributes, units, charged_at);
        let decision = origin.trace(engine, "refund", asking).await?;
        Ok(respond::decided(&decision))
    })
    .await
}

async fn auth(State(app): State<Arc<App>>, request: Request) -> Response {
    let accepts_problem = accepts_problem(request.headers());
    // A body would be the client's, and says nothing here: it is not read.
    let (parts, _) = request.into_parts();
    respond::answer(async {
        let peer = parts.extensions.get::<Peer>().map(|Peer(peer)| *peer);
        let (pinned, face) = app.turn();
        let asked = face.forward_auth.read(peer, &parts)?;
        let attributes = asked.attributes();
        let asking = pinned.ask(&attributes, Ask::Exactly(1));
        let origin = Origin::new("auth", &parts.headers);
        let decision = origin.trace(&pinned, "check", asking).await;
        Ok(face.responder.verdict(&decision, accepts_problem))
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
    respond::ready(&app.keeper.engine().rules(), &app.keeper.status())
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    respond::metrics(exposition::render(&app.keeper))
}

async fn description(State(app): State<Arc<App>>) -> Response {
    let (_, face) = app.turn();
    let render = || openapi::render(face.families);
    respond::rendered(face.description.get_or_init(render).clone())
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
