//! The HTTP door: routes, and the loop that serves them.

mod activity;
pub(crate) mod body;
pub mod bounds;
mod connection;
mod openapi;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
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

/// The protocols of the HTTP door (ALPN), the preferred first.
pub const PROTOCOLS: [&str; 2] = ["h2", "http/1.1"];

/// What the HTTP door needs besides a limiter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Which headers and which body a refusal has.
    pub headers: Headers,
    /// The namespace shown in metrics.
    pub namespace: String,
    /// Who is who, where that has to be found in a request.
    pub subjects: Subjects,
    /// Which action a request is, where that has to be found in a request.
    pub routes: Routes,
}

impl From<&Config> for ServerOptions {
    fn from(config: &Config) -> ServerOptions {
        ServerOptions {
            headers: config.headers,
            namespace: config.namespace.clone(),
            subjects: config.subjects.clone(),
            routes: config.routes.clone(),
        }
    }
}

/// A bound listener, ready to serve.
pub struct Server {
    listener: Listener,
    app: Arc<App>,
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
    fn new(engine: Arc<Engine>, options: ServerOptions) -> Arc<App> {
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
pub fn router(engine: Arc<Engine>, options: ServerOptions) -> Router {
    routes(App::new(engine, options))
}

impl Server {
    /// Serves on a listener. One with TLS has to speak [`PROTOCOLS`].
    #[must_use]
    pub fn new(listener: Listener, engine: Arc<Engine>, options: ServerOptions) -> Server {
        Server {
            listener,
            app: App::new(engine, options),
        }
    }

    /// Listens on `address` in plain text; port 0 takes a free one.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub async fn bind(
        address: SocketAddr,
        engine: Arc<Engine>,
        options: ServerOptions,
    ) -> io::Result<Server> {
        let listener = Listener::bind(address, None).await?;
        Ok(Server::new(listener, engine, options))
    }

    /// Where the server listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` is ready, then lets requests in flight finish.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let Server { listener, app } = self;
        let routes = routes(Arc::clone(&app));
        let sweeping = tokio::spawn(sweep(Arc::clone(&app.engine)));
        let stop = async {
            shutdown.await;
            app.draining.store(true, Ordering::Relaxed);
        };
        let watching = listener
            .tls()
            .map(|tls| tokio::spawn(Arc::clone(tls).watch()));
        connection::serve(listener, routes, stop).await;
        sweeping.abort();
        if let Some(watching) = watching {
            watching.abort();
        }
    }
}

/// Forgets expired state now and then.
async fn sweep(engine: Arc<Engine>) {
    let mut ticks = tokio::time::interval(std::time::Duration::from_secs(1));
    loop {
        ticks.tick().await;
        engine.sweep();
    }
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
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let decision = app.engine.ask(&check.attributes(), check.ask()?).await;
        Ok(app.responder.decision(&decision, wants_problem))
    })
    .await
}

async fn check_batch(State(app): State<Arc<App>>, request: Request) -> Response {
    let _place = app.batches.acquire().await;
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
            engine.ask(&attributes, ask).await
        });
        Ok(app.responder.batch(&join_all(asked).await))
    })
    .await
}

async fn peek(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let decision = app.engine.peek(&check.attributes(), check.ask()?).await;
        Ok(respond::decided(&decision))
    })
    .await
}

async fn refund(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer(async {
        let body = read_body(&app.stream_bodies, request, bounds::MAX_BODY).await?;
        let refund: RefundBody<'_> = body::parse(&body)?;
        let (units, charged_at) = (refund.units()?, refund.charged_at());
        let attributes = refund.attributes();
        let decision = app.engine.refund(&attributes, units, charged_at).await?;
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
        let decision = app.engine.ask(&asked.attributes(), Ask::Exactly(1)).await;
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
