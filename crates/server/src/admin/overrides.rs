//! Overrides at the admin door: seen, set and cleared.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tollgate::Override;
use tollgate_rules::Scope;
use utoipa::ToSchema;

use super::token::Who;
use super::{Admin, to_the_end};
use crate::audit::MAX_WHY;
use crate::http::{bounds, read_body};
use crate::overrides::{Known, OverrideError};
use crate::respond::{self, RequestError};

/// The overrides that there are.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Overridden {
    config_version: String,
    overrides: Vec<OverrideBody>,
}

/// An override, as an operator wants to see it.
#[derive(Serialize, ToSchema)]
#[schema(as = Override)]
#[serde(rename_all = "camelCase")]
pub(super) struct OverrideBody {
    /// What it is called: another one of the same name takes its place.
    #[schema(example = "tenant:acme/api-rate")]
    name: String,
    /// The tenant it is for.
    #[schema(required = true)]
    tenant: Option<String>,
    /// The plan it is for. Without a tenant and a plan it is for everyone.
    #[schema(required = true)]
    plan: Option<String>,
    /// The rule or budget it is for; all if none.
    #[schema(required = true)]
    rule: Option<String>,
    /// What it does, in words.
    #[schema(example = "burst 5000")]
    effect: String,
    reason: String,
    author: String,
    set_at_epoch_millis: u64,
    /// When it ends by itself; none if it holds until it is cleared.
    #[schema(required = true)]
    expires_at_epoch_millis: Option<u64>,
    /// Why it has no effect under the rules in force, if it has none.
    #[schema(required = true)]
    idle: Option<String>,
}

impl OverrideBody {
    fn of(it: &Override, idle: Option<String>) -> OverrideBody {
        let (tenant, plan) = match it.scope() {
            Scope::Everyone => (None, None),
            Scope::Plan(plan) => (None, Some(plan.as_ref().to_owned())),
            Scope::Tenant(tenant) => (Some(tenant.as_ref().to_owned()), None),
        };
        OverrideBody {
            name: it.name(),
            tenant,
            plan,
            rule: it.rule().map(str::to_owned),
            effect: it.effect(),
            reason: it.reason().to_owned(),
            author: it.author().to_owned(),
            set_at_epoch_millis: it.set_at(),
            expires_at_epoch_millis: it.expires_at(),
            idle,
        }
    }

    /// One that is kept, whether or not it can be read.
    fn of_known(known: &Known) -> OverrideBody {
        let why = match &known.read {
            Ok(it) => return OverrideBody::of(it, None),
            Err(why) => why,
        };
        // As much of it as there is.
        let kept: Value = serde_json::from_str(&known.text).unwrap_or_default();
        let text = |name: &str| kept[name].as_str().map(cut);
        OverrideBody {
            name: known.name.clone(),
            tenant: text("tenant"),
            plan: text("plan"),
            rule: text("rule"),
            effect: "none".to_owned(),
            reason: text("reason").unwrap_or_default(),
            author: text("author").unwrap_or_default(),
            set_at_epoch_millis: kept["setAtEpochMillis"].as_u64().unwrap_or(0),
            expires_at_epoch_millis: kept["expiresAtEpochMillis"].as_u64(),
            idle: Some(format!("it cannot be read: {why}")),
        }
    }
}

/// A text that nobody has checked, or its beginning.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_WHY)].to_owned()
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let live = admin.engine().live();
    let overrides = live.overrides().iter().map(|it| {
        let idle = it.misfit(&live.config().policy);
        OverrideBody::of(it, idle)
    });
    let unreadable = admin.keeper.overrides().unreadable();
    let unreadable = unreadable.iter().map(|it| OverrideBody::of_known(it));
    let mut overrides: Vec<OverrideBody> = overrides.chain(unreadable).collect();
    overrides.sort_by(|one, other| one.name.cmp(&other.name));
    respond::report(&Overridden {
        config_version: live.rules().version().to_owned(),
        overrides,
    })
}

pub(super) async fn set(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Response {
    to_the_end(async move {
        let body = read_body(&admin.stream_bodies, request, bounds::MAX_BODY).await?;
        // What is not text is no override, and is said to be none.
        let text = String::from_utf8_lossy(&body);
        let set = admin.keeper.overrides().set(&text, &who.name).await?;
        Ok(respond::report(&OverrideBody::of(&set, None)))
    })
    .await
}

pub(super) async fn clear(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Who>,
    RawQuery(query): RawQuery,
) -> Response {
    to_the_end(async move {
        let (mut name, mut reason) = (None, None);
        for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let wrong = match (&*key, value.len()) {
                ("name", _) if name.is_none() => {
                    name = Some(value.into_owned());
                    continue;
                }
                ("reason", ..=MAX_WHY) if reason.is_none() => {
                    reason = Some(value.into_owned());
                    continue;
                }
                ("reason", _) if reason.is_none() => {
                    format!("`reason` is longer than {MAX_WHY} bytes")
                }
                ("name" | "reason", _) => format!("`{key}` is given twice"),
                _ => "there are `name` and `reason`".to_owned(),
            };
            return Err(RequestError::Query(wrong));
        }
        let name = name.ok_or_else(|| RequestError::Query("say which: `name`".to_owned()))?;
        let overrides = admin.keeper.overrides();
        let cleared = overrides.clear(&name, &who.name, reason.as_deref()).await?;
        Ok(respond::report(&OverrideBody::of_known(&cleared)))
    })
    .await
}

impl From<OverrideError> for RequestError {
    fn from(error: OverrideError) -> RequestError {
        match error {
            OverrideError::Wrong(refused) => RequestError::BadOverride(refused),
            OverrideError::Misfit(why) => RequestError::NoEffect(why),
            OverrideError::TooMany => RequestError::TooManyOverrides,
            OverrideError::NotFound(name) => RequestError::NoSuchOverride(name),
            OverrideError::Store(error) => RequestError::Store(error),
            OverrideError::Unreadable(..) | OverrideError::File(..) => {
                tracing::error!(target: "tollgate::admin", %error, "overrides cannot be changed");
                RequestError::OverridesUnavailable
            }
        }
    }
}
