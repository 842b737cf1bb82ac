//! The admin door: the API for operators, on its own listener.
//!
//! Every path except `/healthz` and `/openapi.json` needs a bearer token. A token has a role, and a
//! role includes the lesser ones: `read` looks, `operate` resets, refunds and overrides, `admin`
//! changes the rules. Every write is logged with the name of the token, and is in the [audit
//! trail](crate::audit) before it is answered. A write always runs to its end, even if the client
//! stops waiting.

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
use self::token::{Operator, Tokens};
use crate::audit::{self, Entry, MAX_NAMED};
use crate::control::{Changes, ControlPlane, ReloadError};
use crate::exposition;
use crate::http::body::{CheckBody, parse};
use crate::http::{bounds, connection, read_body};
use crate::net::Listener;
use crate::per_config::PerConfig;
use crate::question::Check;
use crate::respond::{self, RequestError};

struct Admin {
    control: Arc<ControlPlane>,
    /// The tokens. Without tokens every client may do everything, which the config allows on
    /// loopback only.
    tokens: PerConfig<Tokens>,
    /// The OpenAPI document of this door, rendered.
    description: Bytes,
    stream_bodies: Semaphore,
    ledger: ledger::Bounds,
}

impl Admin {
    fn engine(&self) -> &Engine {
        self.control.engine()
    }
}

/// Serves on `listener` until `stop` is ready, then lets open requests finish. A listener with TLS
/// must offer [`PROTOCOLS`](crate::http::PROTOCOLS). The tokens follow the config in force.
pub async fn serve(listener: Listener, control: Arc<ControlPlane>, stop: impl Future<Output = ()>) {
    connection::serve(listener, router(control), stop).await;
}

/// Returns the routes of the admin door.
pub fn router(control: Arc<ControlPlane>) -> Router {
    let admin = Arc::new(Admin {
        tokens: PerConfig::new(control.engine(), |live| {
            let admin = live.config().server.admin.as_ref();
            Tokens::new(admin.map_or(&[], |admin| &admin.tokens))
        }),
        control,
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
        // A repair needs the `operate` role, which the handler checks.
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

/// Lets a request pass if its token has the role or a greater one.
async fn authorize(admin: Arc<Admin>, role: Role, mut request: Request, next: Next) -> Response {
    let tokens = admin.tokens.of(&admin.engine().active());
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

/// A rule, for operators.
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
    /// The percentage of subjects that the rule applies to.
    rollout_percent: f64,
    /// The budget that the rule draws on.
    #[schema(required = true)]
    budget: Option<&'a str>,
    /// The rule that this rule is a candidate for.
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

/// AuditReason rules apply or do not.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ExplainedBody {
    config_version: String,
    rules: Vec<String>,
}

async fn explain(State(admin): State<Arc<Admin>>, request: Request) -> Response {
    respond::answer(async {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let check = parse::<CheckBody<'_>>(&body)?.check()?;
        let snapshot = admin.engine().snapshot();
        let explanations = snapshot.explain(&check.attributes.attributes());
        Ok(respond::report(&ExplainedBody {
            config_version: snapshot.active().rules().version().to_owned(),
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
    Extension(who): Extension<Operator>,
    request: Request,
) -> Response {
    run_to_end(async move {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let reset: ResetBody<'_> = parse(&body)?;
        let attributes = reset.attributes.attributes();
        let snapshot = admin.engine().snapshot();
        let before = snapshot.peek(&attributes, Ask::Exactly(0)).await;
        snapshot.reset(&attributes).await?;
        let after = snapshot.peek(&attributes, Ask::Exactly(0)).await;
        let reason = reset.reason.as_deref();
        Ok(changed(&admin, audit::RESET, &who, reason, None, (&before, &after)).await)
    })
    .await
}

async fn refund(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Operator>,
    request: Request,
) -> Response {
    run_to_end(async move {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let (refund, reason) = parse::<RefundBody<'_>>(&body)?.read()?;
        let attributes = refund.attributes.attributes();
        let snapshot = admin.engine().snapshot();
        let before = snapshot.peek(&attributes, Ask::Exactly(0)).await;
        let refunding = snapshot.refund(&attributes, refund.units, refund.charged_at);
        let after = refunding.await?;
        let (reason, units) = (reason.as_deref(), Some(refund.units));
        Ok(changed(
            &admin,
            audit::REFUND,
            &who,
            reason,
            units,
            (&before, &after),
        )
        .await)
    })
    .await
}

/// Logs a change of usage, adds it to the audit trail, and answers how the limits stand.
async fn changed(
    admin: &Admin,
    what: &str,
    who: &Operator,
    reason: Option<&str>,
    units: Option<u64>,
    (before, after): (&Decision, &Decision),
) -> Response {
    let rules: Vec<&str> = after.rules().map(|rule| rule.rule().id()).collect();
    tracing::info!(target: "tollgate::admin", who = %who.name, units, ?rules, "{what}");
    let entry = Entry::new(what, &who.name)
        .change(left(before), left(after))
        .because(reason)
        .about(after);
    admin.control.audit().write(entry).await;
    respond::standing(after)
}

/// What is left under each rule of a decision, for the audit trail.
fn left(decision: &Decision) -> Value {
    let rules = decision.rules().take(MAX_NAMED);
    let left = rules.map(|rule| (rule.rule().id().to_owned(), rule.remaining().into()));
    json!({ "remaining": Value::Object(left.collect()) })
}

/// The result of reading the config file again.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ReloadedBody<'a> {
    /// `applied`, or `unchanged` if the file was in force already.
    outcome: &'static str,
    /// The version of the config in force.
    config_version: &'a str,
    /// How many rules it has.
    rules: usize,
    /// Which rules have changed.
    changes: &'a Changes,
    /// The differences in words: at most 50.
    differences: &'a [String],
    /// Sections whose changes need a restart.
    needs_restart: &'a [&'static str],
}

async fn reload(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Operator>,
    request: Request,
) -> Response {
    run_to_end(async move {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        let reload: ReloadBody = match body.trim_ascii() {
            // The body may be missing.
            b"" => ReloadBody::default(),
            body => parse(body)?,
        };
        let reloading = admin.control.reload(&who.name, reload.reason.as_deref());
        let change = reloading.await.map_err(|error| match error {
            ReloadError::NoFile => RequestError::NoConfigFile,
            ReloadError::Rejected(rejected) => RequestError::BadConfig(rejected),
        })?;
        Ok(respond::report(&ReloadedBody {
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
struct AuditBody {
    /// The newest first.
    entries: Vec<Entry>,
    /// Whether there may be more, further back.
    is_cut: bool,
}

async fn trail(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Response {
    respond::answer(async {
        let mut wanted = audit::Query::default();
        let now = admin.control.now();
        for (name, text) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let set = wanted.set(&name, &text, now);
            set.map_err(|error| RequestError::Query(error.to_string()))?;
        }
        let found = admin.control.audit().find(wanted).await;
        let found = found.map_err(RequestError::Audit)?;
        Ok(respond::report(&AuditBody {
            entries: found.entries,
            is_cut: found.is_cut,
        }))
    })
    .await
}

/// Runs a change to its end, even if the client stops waiting. So no change lacks its entry in the
/// audit trail.
async fn run_to_end(
    doing: impl Future<Output = Result<Response, RequestError>> + Send + 'static,
) -> Response {
    match tokio::spawn(respond::answer(doing)).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => {
            tracing::error!(target: "tollgate::admin", %error, "a request panicked");
            respond::error(&RequestError::Internal)
        }
        Err(_) => respond::error(&RequestError::Draining),
    }
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    respond::metrics(exposition::render(&admin.control))
}

async fn description(State(admin): State<Arc<Admin>>) -> Response {
    respond::rendered(admin.description.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_is_answered_with_500() {
        let answer = run_to_end(async { panic!("as the test wants") }).await;
        assert_eq!(answer.status(), 500);
    }
}
