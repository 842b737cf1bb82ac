//! The admin door: what operators may see and do, on a listener of its own.
//!
//! Every path but `/healthz` and `/openapi.json` wants a bearer token. A token has a role, and a role may do what lesser
//! ones may: `read` looks, `operate` resets and gives back, `admin` is for what changes the rules.
//! Every write is logged with the name of the token.

mod openapi;
mod token;

use std::sync::Arc;

use axum::Extension;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Serialize;
use tokio::sync::Semaphore;
use tollgate::{Ask, Config, Engine, Rule};
use tollgate_rules::{Role, Token};
use utoipa::ToSchema;

use self::token::{Tokens, Who};
use crate::exposition;
use crate::http::body::{self, CheckBody, RefundBody};
use crate::http::{bounds, connection, read_body};
use crate::net::Listener;
use crate::respond::{self, RequestError};

/// What the admin door needs besides a limiter.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Who may do what. Empty: everybody who can connect may do everything, which is for listeners
    /// on loopback only.
    pub tokens: Vec<Token>,
    /// The namespace shown in metrics.
    pub namespace: String,
}

impl Options {
    /// What `config` says of this door.
    #[must_use]
    pub fn of(config: &Config) -> Options {
        let admin = config.server.admin.as_ref();
        Options {
            tokens: admin.map_or(Vec::new(), |admin| admin.tokens.clone()),
            namespace: config.namespace.clone(),
        }
    }
}

struct Admin {
    engine: Arc<Engine>,
    tokens: Tokens,
    namespace: String,
    /// The description of this door, rendered.
    description: Bytes,
    stream_bodies: Semaphore,
}

/// Serves on `listener` until `stop` is ready, then lets requests in flight finish. A listener with TLS
/// has to speak [`PROTOCOLS`](crate::http::PROTOCOLS).
pub async fn serve(
    listener: Listener,
    engine: Arc<Engine>,
    options: Options,
    stop: impl Future<Output = ()>,
) {
    connection::serve(listener, router(engine, options), stop).await;
}

/// The routes of the admin door.
pub fn router(engine: Arc<Engine>, options: Options) -> Router {
    let admin = Arc::new(Admin {
        engine,
        tokens: Tokens::new(&options.tokens),
        namespace: options.namespace,
        description: openapi::render(),
        stream_bodies: Semaphore::new(bounds::MAX_STREAM_BODIES),
    });
    let guarded = |role| {
        let admin = Arc::clone(&admin);
        middleware::from_fn(move |request, next| authorize(Arc::clone(&admin), role, request, next))
    };
    let reading = Router::new()
        .route("/v1/rules", get(rules))
        .route("/v1/explain", post(explain))
        .route("/v1/peek", post(peek))
        .route("/metrics", get(metrics))
        .route_layer(guarded(Role::Read));
    let operating = Router::new()
        .route("/v1/reset", post(reset))
        .route("/v1/refund", post(refund))
        .route_layer(guarded(Role::Operate));
    reading
        .merge(operating)
        .route("/healthz", get(|| async { respond::alive() }))
        .route("/openapi.json", get(description))
        .fallback(|| async { respond::error(&RequestError::NoSuchAdminPath) })
        .method_not_allowed_fallback(|| async { respond::error(&RequestError::WrongMethod) })
        .with_state(admin)
}

/// Lets a request pass whose token has the role, or a greater one.
async fn authorize(admin: Arc<Admin>, role: Role, mut request: Request, next: Next) -> Response {
    let Some(who) = admin.tokens.who(request.headers()) else {
        return respond::error(&RequestError::NoToken);
    };
    if !who.role.includes(role) {
        let path = request.uri().path();
        tracing::warn!(target: "tollgate::admin", who = %who.name, path, "not permitted");
        return respond::error(&RequestError::NotPermitted { role: role.name() });
    }
    request.extensions_mut().insert(who);
    next.run(request).await
}

/// The rules in force.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Rules<'a> {
    config_version: &'a str,
    rules: Vec<RuleBody<'a>>,
}

async fn rules(State(admin): State<Arc<Admin>>) -> Response {
    let rules = admin.engine.rules();
    respond::report(&Rules {
        config_version: rules.version(),
        rules: rules.rules().iter().map(RuleBody::of).collect(),
    })
}

/// A rule, as an operator wants to see it.
#[derive(Serialize, ToSchema)]
#[schema(as = Rule)]
#[serde(rename_all = "camelCase")]
struct RuleBody<'a> {
    rule_id: &'a str,
    algorithm: &'static str,
    state: &'static str,
    per: &'a [String],
    limit: Option<u64>,
    window_millis: u64,
    on_store_failure: Option<&'static str>,
}

impl RuleBody<'_> {
    fn of(rule: &Rule) -> RuleBody<'_> {
        let capacity = rule.limit().capacity();
        RuleBody {
            rule_id: rule.id(),
            algorithm: rule.algorithm().name(),
            state: rule.state().name(),
            per: rule.per(),
            limit: (capacity != tollgate::Outcome::UNLIMITED).then_some(capacity),
            window_millis: rule.limit().window().as_millis_ceil(),
            on_store_failure: rule.on_store_failure().map(tollgate::StoreFailure::name),
        }
    }
}

/// Why rules apply or do not.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Explained {
    config_version: String,
    rules: Vec<String>,
}

async fn explain(State(admin): State<Arc<Admin>>, request: Request) -> Response {
    respond::answer(async {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let explanations = admin.engine.explain(&check.attributes());
        Ok(respond::report(&Explained {
            config_version: admin.engine.rules().version().to_owned(),
            rules: explanations.iter().map(ToString::to_string).collect(),
        }))
    })
    .await
}

async fn peek(State(admin): State<Arc<Admin>>, request: Request) -> Response {
    respond::answer(async {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let decision = admin.engine.peek(&check.attributes(), check.ask()?).await;
        Ok(respond::decided(&decision))
    })
    .await
}

async fn reset(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Response {
    respond::answer(async {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let check: CheckBody<'_> = body::parse(&body)?;
        let attributes = check.attributes();
        admin.engine.reset(&attributes).await?;
        let decision = admin.engine.peek(&attributes, Ask::Exactly(0)).await;
        let rules: Vec<&str> = decision.rules().map(|rule| rule.rule().id()).collect();
        tracing::info!(target: "tollgate::admin", who = %who.name, ?rules, "reset");
        Ok(respond::decided(&decision))
    })
    .await
}

async fn refund(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Response {
    respond::answer(async {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let refund: RefundBody<'_> = body::parse(&body)?;
        let (units, charged_at) = (refund.units()?, refund.charged_at());
        let attributes = refund.attributes();
        let decision = admin.engine.refund(&attributes, units, charged_at).await?;
        let rules: Vec<&str> = decision.rules().map(|rule| rule.rule().id()).collect();
        tracing::info!(target: "tollgate::admin", who = %who.name, units, ?rules, "refund");
        Ok(respond::decided(&decision))
    })
    .await
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    respond::metrics(exposition::render(&admin.engine, &admin.namespace))
}

async fn description(State(admin): State<Arc<Admin>>) -> Response {
    respond::rendered(admin.description.clone())
}
