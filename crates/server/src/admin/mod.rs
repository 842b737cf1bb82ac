//! The admin door: the API for operators, on its own listener.
//!
//! Every path except `/healthz`, `/readyz`, `/openapi.json` and the files of the dashboard needs a bearer
//! token. A token has a role. The role `read` allows queries, `operate` also allows resets, refunds and
//! overrides, and `admin` also allows changes of the rules. Every write is logged with the name of the token, and is
//! in the [audit trail](crate::audit) before it is answered. A write always runs to its end, even if the client stops
//! waiting.

mod advice;
mod blocks;
mod body;
mod candidates;
mod dashboard;
mod denials;
mod fleet;
mod ledger;
mod openapi;
mod overrides;
mod overview;
mod preview;
mod versions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::HeaderMap;
use axum::Extension;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tollgate::{
    ActiveConfig, Ask, Decision, Explanation, FairRule, Limit, Rule, RuleEffect as Effect,
};
use tollgate_config::Role;
use utoipa::ToSchema;

use self::body::{RefundBody, ReloadBody, ResetBody};
use crate::access::attempts::Attempts;
use crate::access::token::{Shown, Tokens, bearer};
use crate::audit::{self, Entry, MAX_NAMED};
use crate::control::{ControlPlane, ReloadError};
use crate::exposition::Pages;
use crate::http::body::{CheckBody, parse};
use crate::http::guard::GuardedDoor;
use crate::http::{self, bounds, connection, read_body};
use crate::net::{Listener, Peer};
use crate::per_config::PerConfig;
use crate::question::{Check, Refund};
use crate::respond::answers::DecisionBody;
use crate::respond::{self, RequestError};

struct Admin {
    control: Arc<ControlPlane>,
    /// The tokens. Without tokens, every client may do everything. The config allows that on loopback
    /// only.
    tokens: PerConfig<Tokens<Operator>>,
    attempts: Arc<Attempts>,
    draining: AtomicBool,
    metrics: Pages,
    /// How many large reads of the ledger may run at a time. Further reads get an error at once.
    ledger_reads: Arc<Semaphore>,
    /// How many comparisons of the ledger with the counters may run at a time. Further comparisons get
    /// an error at once.
    ledger_comparisons: Semaphore,
    /// How many live readers there may be. Further readers get an error at once.
    live_readers: Arc<Semaphore>,
    /// How many rules are proposed at a time: a proposal is simulated. Further requests wait.
    advising: Arc<Semaphore>,
}

/// The response of a handler, or why there is none.
type Answer = Result<Response, RequestError>;

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        respond::error(&self)
    }
}

/// Serves on `listener` until `stop` is ready. The value of `stop` is the drain time: for this long the
/// door is not ready, but serves. Then open requests finish. A listener with TLS must offer
/// [`PROTOCOLS`](crate::http::PROTOCOLS). The tokens follow the config in force.
pub async fn serve(
    listener: Listener,
    control: Arc<ControlPlane>,
    stop: impl Future<Output = Duration>,
) {
    let guard = listener.guard(GuardedDoor::Admin);
    let admin = Admin::new(control, Arc::clone(listener.attempts()));
    let routes = connection::routes_of(routes(&admin));
    let stop = async {
        let drain = stop.await;
        admin.draining.store(true, Ordering::Relaxed);
        drain
    };
    // Only the answers to probes are known to be small.
    let is_large = |path: &str| !matches!(path, "/healthz" | "/readyz");
    let metrics = listener.admin_metrics();
    connection::serve(listener, routes, is_large, guard, metrics, stop).await;
}

/// Returns the routes of the admin door. These routes alone accept requests of any web page and for
/// any host. Only [`serve`] refuses requests of foreign web pages and for unknown hosts.
pub fn router(control: Arc<ControlPlane>) -> Router {
    routes(&Admin::new(control, Arc::default()))
}

impl Admin {
    fn new(control: Arc<ControlPlane>, attempts: Arc<Attempts>) -> Arc<Admin> {
        Arc::new(Admin {
            tokens: PerConfig::new(control.engine(), operators),
            attempts,
            control,
            draining: AtomicBool::new(false),
            metrics: Pages::default(),
            ledger_reads: Arc::new(Semaphore::new(4)),
            advising: Arc::new(Semaphore::new(1)),
            ledger_comparisons: Semaphore::new(1),
            live_readers: Arc::new(Semaphore::new(overview::MAX_READERS)),
        })
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns whether a client with this token and role may still read.
    fn is_known(&self, who: &Operator) -> bool {
        let tokens = self.tokens.of(&self.control.engine().active());
        match tokens.is_empty() {
            true => who.name.as_ref() == ANONYMOUS,
            false => tokens
                .iter()
                .any(|it| it.name == who.name && it.role == who.role),
        }
    }
}

/// The name of every client of a door without tokens.
const ANONYMOUS: &str = "anonymous";

/// The client of a request, and its role.
#[derive(Clone, Debug)]
struct Operator {
    name: Arc<str>,
    role: Role,
}

/// Returns the tokens of the config.
fn operators(live: &ActiveConfig) -> Tokens<Operator> {
    let admin = live.config().server.admin.as_ref();
    let tokens = admin.map_or(&[][..], |admin| &admin.tokens).iter();
    let operators = tokens.map(|token| {
        let (name, role) = (token.name.as_str().into(), token.role);
        (token.sha256, Operator { name, role })
    });
    operators.collect()
}

/// Returns the client that sends these headers; `None` if its token is unknown. Without tokens, every
/// client is `anonymous` and has every role.
fn who(tokens: &Tokens<Operator>, headers: &HeaderMap) -> Option<Operator> {
    if tokens.is_empty() {
        return Some(Operator {
            name: ANONYMOUS.into(),
            role: Role::Admin,
        });
    }
    match bearer(headers) {
        Shown::Token(token) => tokens.find(token).map(|(_, who)| who.clone()),
        Shown::Nothing | Shown::Other => None,
    }
}

fn routes(admin: &Arc<Admin>) -> Router {
    let description = openapi::render();
    let guarded = |role| {
        let admin = Arc::clone(admin);
        middleware::from_fn(move |request, next| authorize(Arc::clone(&admin), role, request, next))
    };
    let reading = Router::new()
        .route("/v1/rules", get(rules))
        .route("/v1/rules/{rule}", get(preview::rule))
        .route("/v1/rules/{rule}/subjects", get(overview::subjects))
        .route("/v1/explain", post(explain))
        .route("/v1/peek", post(peek))
        .route("/v1/advise", post(advice::ask))
        .route("/v1/overrides", get(overrides::list))
        .route("/v1/blocks", get(blocks::list))
        .route("/v1/config/versions", get(versions::list))
        .route("/v1/candidates", get(candidates::list))
        .route("/v1/audit", get(trail))
        .route("/v1/denials", get(denials::list).post(denials::search))
        .route("/v1/overview", get(overview::once))
        .route("/v1/live", get(overview::live))
        .route("/v1/fleet", get(fleet::list))
        .route("/v1/ledger", get(ledger::status))
        .route("/v1/ledger/usage", get(ledger::usage))
        .route("/v1/ledger/quotas", get(ledger::quotas))
        .route("/v1/ledger/burndown", get(ledger::burndown))
        .route("/v1/ledger/entries", get(ledger::entries))
        // A repair needs the `operate` role, which the handler checks.
        .route("/v1/ledger/reconcile", change(ledger::reconcile))
        .route("/metrics", get(metrics))
        .route_layer(guarded(Role::Read));
    let operating = Router::new()
        .route("/v1/reset", change(reset))
        .route("/v1/refund", change(refund))
        .route("/v1/overrides", change(overrides::set))
        .route("/v1/overrides", delete(overrides::clear))
        .route("/v1/overrides/preview", change(preview::of_override))
        .route("/v1/overrides/restore", change(overrides::restore))
        .route("/v1/blocks", change(blocks::set))
        .route("/v1/blocks", delete(blocks::clear))
        .route("/v1/blocks/preview", change(preview::of_block))
        .route("/v1/blocks/remove", change(blocks::remove))
        .route("/v1/ledger/corrections", change(ledger::correct))
        .route("/v1/ledger/grants", change(ledger::grant))
        .route_layer(guarded(Role::Operate));
    let changing = Router::new()
        .route("/v1/reload", change(reload))
        .route("/v1/rollback", change(versions::rollback))
        .route("/v1/config/versions/{version}", get(versions::show))
        .route("/v1/config/diff", get(preview::of_config))
        .route_layer(guarded(Role::Admin));
    reading
        .merge(operating)
        .merge(changing)
        .route("/healthz", get(|| async { respond::alive() }))
        .route("/readyz", get(readyz))
        .route("/ui", get(dashboard::redirect))
        .route("/ui/", get(dashboard::index))
        .route("/ui/{file}", get(dashboard::asset))
        .route(
            "/openapi.json",
            get(|| async move { respond::rendered(description) }),
        )
        .fallback(|| async { RequestError::NoSuchAdminPath })
        .method_not_allowed_fallback(|| async { RequestError::WrongMethod })
        .with_state(Arc::clone(admin))
}

/// Lets a request pass if its token has the role or a greater one.
async fn authorize(admin: Arc<Admin>, role: Role, mut request: Request, next: Next) -> Answer {
    let tokens = admin.tokens.of(&admin.control.engine().active());
    let peer = request.extensions().get().map(|Peer(peer)| peer.ip());
    let has_token = bearer(request.headers()) != Shown::Nothing;
    if has_token {
        let tried = admin.attempts.may_try(peer);
        tried.map_err(|full| RequestError::Access(full.into()))?;
    }
    let Some(who) = who(&tokens, request.headers()) else {
        if has_token {
            let path = request.uri().path();
            admin.attempts.wrong("admin", peer, path).await;
        }
        return Err(RequestError::NoToken);
    };
    if !who.role.includes(role) {
        let path = request.uri().path();
        tracing::warn!(target: "tollgate::admin", who = %who.name, path, "not permitted");
        return Err(RequestError::NotPermitted { role: role.name() });
    }
    request.extensions_mut().insert(who);
    Ok(next.run(request).await)
}

/// The rules in force.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Rules<'a> {
    config_version: &'a str,
    rules: Vec<RuleBody<'a>>,
}

async fn rules(State(admin): State<Arc<Admin>>) -> Response {
    let rules = admin.control.engine().rules();
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

/// Why rules apply or do not, and what they would decide now.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ExplainedBody<'a> {
    config_version: &'a str,
    /// For people: a line for each rule. A rule that applies has its numbers and where each comes from,
    /// the limit in force, the start of the hashed subject as in the log, and its decision.
    rules: Vec<String>,
    /// For people: the block of a subject of the request, which is then denied before any rule; null if there
    /// is none.
    #[schema(required = true)]
    block: Option<String>,
    /// The answer that a check would get now.
    decision: DecisionBody<'a>,
}

/// Says which share of a fair rule the client of a request gets while others compete.
fn share(explanation: &Explanation, fair: &[FairRule]) -> Option<String> {
    let Effect::Applies { limit, .. } = &explanation.effect else {
        return None;
    };
    let Limit::Fair(bucket) = limit else {
        return None;
    };
    let rule = fair
        .iter()
        .find(|it| it.rule == explanation.rule as usize)?;
    rule.share_in_words(bucket.client())
}

async fn explain(State(admin): State<Arc<Admin>>, request: Request) -> Answer {
    let body = read_body(request, bounds::MAX_BODY).await?;
    let Check {
        attributes, ask, ..
    } = parse::<CheckBody<'_>>(&body)?.check()?;
    let attributes = attributes.attributes();
    let snapshot = admin.control.engine().snapshot();
    let decision = snapshot.peek(&attributes, ask).await;
    let explanations = snapshot.explain(&attributes);
    let fair = admin
        .control
        .engine()
        .active()
        .metrics()
        .fair(admin.control.now());
    let rules = explanations.iter().map(|it| match decision.applied(it) {
        Some(rule) => format!(
            "{it}; {}; subject {}; {}{}",
            rule.limit,
            rule.subject,
            rule.now,
            share(it, &fair).map_or_else(String::new, |share| format!("; {share}")),
        ),
        None => it.to_string(),
    });
    Ok(respond::report(&ExplainedBody {
        config_version: decision.config_version(),
        rules: rules.collect(),
        block: decision.block_in_words(),
        decision: DecisionBody::new(&decision),
    }))
}

async fn peek(State(admin): State<Arc<Admin>>, request: Request) -> Answer {
    let body = read_body(request, bounds::MAX_BODY).await?;
    let Check {
        attributes, ask, ..
    } = parse::<CheckBody<'_>>(&body)?.check()?;
    let engine = admin.control.engine();
    let decision = engine.peek(&attributes.attributes(), ask).await;
    Ok(respond::standing(&decision))
}

async fn reset(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let body: ResetBody<'_> = parse(&body)?;
    let attributes = body.attributes.attributes();
    let snapshot = admin.control.engine().snapshot();
    let before = snapshot.peek(&attributes, Ask::Exactly(0)).await;
    snapshot.reset(&attributes).await?;
    let after = snapshot.peek(&attributes, Ask::Exactly(0)).await;
    let entry = Entry::new(audit::RESET, &who.name).because(body.reason.as_deref());
    Ok(changed(&admin, entry, None, &before, &after).await)
}

async fn refund(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let body: RefundBody<'_> = parse(&body)?;
    let refund = Refund::new(body.attributes, body.cost, body.charged_at_epoch_micros)?;
    let attributes = refund.attributes.attributes();
    let snapshot = admin.control.engine().snapshot();
    let before = snapshot.peek(&attributes, Ask::Exactly(0)).await;
    let refunding = snapshot.refund(&attributes, refund.units, refund.charged_at);
    let after = refunding.await?;
    let entry = Entry::new(audit::REFUND, &who.name).because(body.reason.as_deref());
    Ok(changed(&admin, entry, Some(refund.units), &before, &after).await)
}

/// Logs a change of usage, adds it to the audit trail, and responds with the new state of the limits.
async fn changed(
    admin: &Admin,
    entry: Entry,
    units: Option<u64>,
    before: &Decision,
    after: &Decision,
) -> Response {
    let rules: Vec<&str> = after.rules().map(|rule| rule.rule().id()).collect();
    tracing::info!(target: "tollgate::admin", who = %entry.who, units, ?rules, "{}", entry.what);
    let entry = entry.change(left(before), left(after)).about(after);
    admin.control.audit().write(entry).await;
    respond::standing(after)
}

/// Returns the remaining units under each rule of a decision, for the audit trail.
fn left(decision: &Decision) -> Value {
    let rules = decision.rules().take(MAX_NAMED);
    let left = rules.map(|rule| (rule.rule().id().to_owned(), rule.remaining().into()));
    json!({ "remaining": Value::Object(left.collect()) })
}

async fn reload(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
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
    Ok(respond::report(&change))
}

async fn trail(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Answer {
    let mut wanted = audit::Query::default();
    let now = admin.control.now();
    for (name, text) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let set = wanted.set(&name, &text, now);
        set.map_err(|error| RequestError::Query(error.to_string()))?;
    }
    let found = admin.control.audit().find(wanted).await;
    Ok(respond::report(&found.map_err(RequestError::Audit)?))
}

/// Makes a route for changes. It reads the body, and runs `change` to its end.
fn change<F: Future<Output = Answer> + Send + 'static>(
    change: fn(Arc<Admin>, Operator, Bytes) -> F,
) -> MethodRouter<Arc<Admin>> {
    let handle = move |State(admin): State<Arc<Admin>>, Extension(who), request| {
        run_to_end(async move {
            let body = read_body(request, bounds::MAX_BODY).await?;
            change(admin, who, body.bytes).await
        })
    };
    post(handle)
}

/// Runs a change to its end, even if the client stops waiting. So no change lacks its entry in the
/// audit trail.
async fn run_to_end(doing: impl Future<Output = Answer> + Send + 'static) -> Answer {
    match tokio::spawn(doing).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => {
            tracing::error!(target: "tollgate::admin", %error, "a request panicked");
            Err(RequestError::Internal)
        }
        Err(_) => Err(RequestError::Draining),
    }
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    http::ready(&admin.control, &admin.draining)
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    respond::metrics(admin.metrics.render(&admin.control))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_is_answered_with_500() {
        let answer = run_to_end(async { panic!("as the test wants") }).await;
        assert_eq!(answer.into_response().status(), 500);
    }
}
