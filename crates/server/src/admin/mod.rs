//! The admin door: what operators may see and do, on a listener of its own.
//!
//! Every path but `/healthz` and `/openapi.json` wants a bearer token. A token has a role, and a role may do what lesser
//! ones may: `read` looks, `operate` resets, gives back and overrides, `admin` changes the rules.
//! Every write is logged with the name of the token, and is in the [audit trail](crate::audit) before
//! it is answered. It is done as a whole, whether or not who asked waits for the answer.

mod body;
mod candidates;
mod ledger;
mod openapi;
mod overrides;
mod token;

use std::sync::Arc;

use axum::Extension;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tollgate::{Ask, Decision, Engine, Rule};
use tollgate_config::Role;
use utoipa::ToSchema;

use self::body::{RefundBody, ReloadBody, ResetBody};
use self::token::{Tokens, Who};
use crate::audit::{self, Entry, MAX_NAMED};
use crate::exposition;
use crate::http::body::{CheckBody, parse};
use crate::http::{bounds, connection, read_body};
use crate::keeper::{Changes, Keeper, ReloadError};
use crate::net::Listener;
use crate::per_config::PerConfig;
use crate::question::Check;
use crate::respond::{self, RequestError};

struct Admin {
    keeper: Arc<Keeper>,
    /// Who may do what. None: everybody who can connect may do everything, which is for listeners on
    /// loopback only.
    tokens: PerConfig<Tokens>,
    /// The description of this door, rendered.
    description: Bytes,
    stream_bodies: Semaphore,
    ledger: ledger::Bounds,
}

impl Admin {
    fn engine(&self) -> &Engine {
        self.keeper.engine()
    }
}

/// Serves on `listener` until `stop` is ready, then lets requests in flight finish. A listener with TLS
/// has to speak [`PROTOCOLS`](crate::http::PROTOCOLS). Who may enter follows the config in force.
pub async fn serve(listener: Listener, keeper: Arc<Keeper>, stop: impl Future<Output = ()>) {
    connection::serve(listener, router(keeper), stop).await;
}

/// The routes of the admin door.
pub fn router(keeper: Arc<Keeper>) -> Router {
    let admin = Arc::new(Admin {
        tokens: PerConfig::new(keeper.engine(), |live| {
            let admin = live.config().server.admin.as_ref();
            Tokens::new(admin.map_or(&[], |admin| &admin.tokens))
        }),
        keeper,
        description: openapi::render(),
        stream_bodies: Semaphore::new(bounds::MAX_STREAM_BODIES),
        ledger: ledger::Bounds::new(),
    });
    let guarded = |role| {
        let admin = Arc::clone(&admin);
        middleware::from_fn(move |request, next| authorize(Arc::clone(&admin), role, request, next))
    };
    let reading = Router::new()
        .route("/v1/rules", get(rules))
        .route("/v1/explain", post(explain))
        .route("/v1/peek", post(peek))
        .route("/v1/overrides", get(overrides::list))
        .route("/v1/candidates", get(candidates::list))
        .route("/v1/audit", get(trail))
        .route("/v1/ledger", get(ledger::status))
        .route("/v1/ledger/usage", get(ledger::usage))
        .route("/v1/ledger/entries", get(ledger::entries))
        // To repair wants more, and says so.
        .route("/v1/ledger/reconcile", post(ledger::reconcile))
        .route("/metrics", get(metrics))
        .route_layer(guarded(Role::Read));
    let operating = Router::new()
        .route("/v1/reset", post(reset))
        .route("/v1/refund", post(refund))
        .route(
            "/v1/overrides",
            post(overrides::set).delete(overrides::clear),
        )
        .route("/v1/ledger/corrections", post(ledger::correct))
        .route("/v1/ledger/grants", post(ledger::grant))
        .route_layer(guarded(Role::Operate));
    let changing = Router::new()
        .route("/v1/reload", post(reload))
        .route_layer(guarded(Role::Admin));
    reading
        .merge(operating)
        .merge(changing)
        .route("/healthz", get(|| async { respond::alive() }))
        .route("/openapi.json", get(description))
        .fallback(|| async { respond::error(&RequestError::NoSuchAdminPath) })
        .method_not_allowed_fallback(|| async { respond::error(&RequestError::WrongMethod) })
        .with_state(admin)
}

/// Lets a request pass whose token has the role, or a greater one.
async fn authorize(admin: Arc<Admin>, role: Role, mut request: Request, next: Next) -> Response {
    let tokens = admin.tokens.of(&admin.engine().live());
    let Some(who) = tokens.who(request.headers()) else {
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
    let rules = admin.engine().rules();
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
    /// For how many percent of the subjects it is on.
    rollout_percent: f64,
    /// The budget it draws on.
    #[schema(required = true)]
    budget: Option<&'a str>,
    /// The rule it may take the place of.
    #[schema(required = true)]
    candidate_of: Option<&'a str>,
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
            rollout_percent: f64::from(rule.rollout()) / 100.0,
            budget: rule.budget(),
            candidate_of: rule.candidate_of(),
            on_store_failure: rule.on_store_failure().map(tollgate::FailurePolicy::name),
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
        let check = parse::<CheckBody<'_>>(&body)?.check()?;
        let pinned = admin.engine().snapshot();
        let explanations = pinned.explain(&check.attributes.attributes());
        Ok(respond::report(&Explained {
            config_version: pinned.live().rules().version().to_owned(),
            rules: explanations.iter().map(ToString::to_string).collect(),
        }))
    })
    .await
}

async fn peek(State(admin): State<Arc<Admin>>, request: Request) -> Response {
    respond::answer(async {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let Check { attributes, ask } = parse::<CheckBody<'_>>(&body)?.check()?;
        let decision = admin.engine().peek(&attributes.attributes(), ask).await;
        Ok(respond::standing(&decision))
    })
    .await
}

async fn reset(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Response {
    to_the_end(async move {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let reset: ResetBody<'_> = parse(&body)?;
        let attributes = reset.attributes.attributes();
        let pinned = admin.engine().snapshot();
        let before = pinned.peek(&attributes, Ask::Exactly(0)).await;
        pinned.reset(&attributes).await?;
        let decision = pinned.peek(&attributes, Ask::Exactly(0)).await;
        let rules: Vec<&str> = decision.rules().map(|rule| rule.rule().id()).collect();
        tracing::info!(target: "tollgate::admin", who = %who.name, ?rules, "reset");
        let entry = Entry::new(audit::RESET, &who.name)
            .change(left(&before), left(&decision))
            .because(reset.reason.as_deref())
            .about(&decision);
        admin.keeper.audit().write(entry).await;
        Ok(respond::standing(&decision))
    })
    .await
}

async fn refund(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Response {
    to_the_end(async move {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let (refund, reason) = parse::<RefundBody<'_>>(&body)?.read()?;
        let (units, attributes) = (refund.units, refund.attributes.attributes());
        let pinned = admin.engine().snapshot();
        let before = pinned.peek(&attributes, Ask::Exactly(0)).await;
        let decision = pinned.refund(&attributes, units, refund.charged_at).await?;
        let rules: Vec<&str> = decision.rules().map(|rule| rule.rule().id()).collect();
        tracing::info!(target: "tollgate::admin", who = %who.name, units, ?rules, "refund");
        let entry = Entry::new(audit::REFUND, &who.name)
            .change(left(&before), left(&decision))
            .because(reason.as_deref())
            .about(&decision);
        admin.keeper.audit().write(entry).await;
        Ok(respond::standing(&decision))
    })
    .await
}

/// What is left under each rule of a decision, for the audit trail.
fn left(decision: &Decision) -> Value {
    let rules = decision.rules().take(MAX_NAMED);
    let left = rules.map(|rule| (rule.rule().id().to_owned(), rule.remaining().into()));
    json!({ "remaining": Value::Object(left.collect()) })
}

/// What became of reading the config file again.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Reloaded<'a> {
    /// `applied`, or `unchanged` if the file says what is in force already.
    outcome: &'static str,
    /// Which rules are in force now.
    config_version: &'a str,
    /// How many they are.
    rules: usize,
    /// What is new about them.
    changes: &'a Changes,
    /// What is different, and for whom, in words: at most 50 of them.
    differences: &'a [String],
    /// The sections that say something new which only a restart brings about.
    needs_restart: &'a [&'static str],
}

async fn reload(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Response {
    to_the_end(async move {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let reload: ReloadBody = match body.trim_ascii() {
            // Who has nothing to say need not say so.
            b"" => ReloadBody::default(),
            body => parse(body)?,
        };
        let reloading = admin.keeper.reload(&who.name, reload.reason.as_deref());
        let change = reloading.await.map_err(|error| match error {
            ReloadError::NoFile => RequestError::NoConfigFile,
            ReloadError::Refused(refused) => RequestError::BadConfig(refused),
        })?;
        Ok(respond::report(&Reloaded {
            outcome: change.outcome.name(),
            config_version: &change.version,
            rules: change.rules,
            changes: &change.changes,
            differences: &change.differences,
            needs_restart: &change.needs_restart,
        }))
    })
    .await
}

/// Entries of the audit trail.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Audited {
    /// The newest first.
    entries: Vec<Entry>,
    /// Whether there may be more, further back than was looked.
    is_cut: bool,
}

async fn trail(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    respond::answer(async {
        let mut wanted = audit::Query::default();
        let now = admin.keeper.now();
        for (name, text) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let set = wanted.set(&name, &text, now);
            set.map_err(|error| RequestError::Query(error.to_string()))?;
        }
        let found = admin.keeper.audit().find(wanted).await;
        let found = found.map_err(RequestError::Audit)?;
        Ok(respond::report(&Audited {
            entries: found.entries,
            is_cut: found.is_cut,
        }))
    })
    .await
}

/// The answer of something that changes things: it is gone on with when nobody waits any more, so that
/// no change is left without its entry in the trail.
async fn to_the_end(
    doing: impl Future<Output = Result<Response, RequestError>> + Send + 'static,
) -> Response {
    match tokio::spawn(respond::answer(doing)).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => {
            tracing::error!(target: "tollgate::admin", %error, "a request came to no end");
            respond::error(&RequestError::Internal)
        }
        Err(_) => respond::error(&RequestError::Draining),
    }
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    respond::metrics(exposition::render(&admin.keeper))
}

async fn description(State(admin): State<Arc<Admin>>) -> Response {
    respond::rendered(admin.description.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_no_shutdown() {
        let answer = to_the_end(async { panic!("as a test wants it") }).await;
        assert_eq!(answer.status(), 500);
    }
}
