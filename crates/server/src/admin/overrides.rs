//! Overrides at the admin door: list, set and clear.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tollgate::Override;
use tollgate_rules::Scope;
use utoipa::ToSchema;

use super::Operator;
use super::{Admin, Answer, run_to_end};
use crate::audit::MAX_WHY;
use crate::overrides::{OverrideError, StoredOverride};
use crate::respond::{self, RequestError};

/// All overrides.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct OverridesBody {
    config_version: String,
    overrides: Vec<OverrideBody>,
}

/// An override, for operators.
#[derive(Serialize, ToSchema)]
#[schema(as = Override)]
#[serde(rename_all = "camelCase")]
pub(super) struct OverrideBody {
    /// The override's name. An override of the same name replaces it.
    #[schema(example = "tenant:acme/api-rate")]
    name: String,
    /// The tenant that the override applies to.
    #[schema(required = true)]
    tenant: Option<String>,
    /// The plan that the override applies to. Without a tenant and a plan, the override applies to
    /// everyone.
    #[schema(required = true)]
    plan: Option<String>,
    /// The rule or budget that the override applies to; null for all.
    #[schema(required = true)]
    rule: Option<String>,
    /// The override's effect, in words.
    #[schema(example = "burst 5000")]
    effect: String,
    reason: String,
    author: String,
    set_at_epoch_millis: u64,
    /// When the override expires; null if it lasts until it is cleared.
    #[schema(required = true)]
    expires_at_epoch_millis: Option<u64>,
    /// Why the override has no effect under the rules in force; null if it has an effect.
    #[schema(required = true)]
    idle: Option<String>,
}

impl OverrideBody {
    fn of(it: &Override, idle: Option<String>) -> OverrideBody {
        let (tenant, plan) = match it.scope() {
            Scope::Everyone => (None, None),
            Scope::Plan(plan) => (None, Some(plan.to_string())),
            Scope::Tenant(tenant) => (Some(tenant.to_string()), None),
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

    /// Describes a stored override, whether or not it can be parsed.
    fn of_stored(stored: &StoredOverride) -> OverrideBody {
        let why = match &stored.read {
            Ok(it) => return OverrideBody::of(it, None),
            Err(why) => why,
        };
        // Show the fields that can be found. Nothing has checked their length, so long texts are
        // cut.
        let fields: Value = serde_json::from_str(&stored.text).unwrap_or_default();
        let cut = |text: &str| text[..text.floor_char_boundary(MAX_WHY)].to_owned();
        let text = |name: &str| fields[name].as_str().map(cut);
        OverrideBody {
            name: stored.name.clone(),
            tenant: text("tenant"),
            plan: text("plan"),
            rule: text("rule"),
            effect: "none".to_owned(),
            reason: text("reason").unwrap_or_default(),
            author: text("author").unwrap_or_default(),
            set_at_epoch_millis: fields["setAtEpochMillis"].as_u64().unwrap_or(0),
            expires_at_epoch_millis: fields["expiresAtEpochMillis"].as_u64(),
            idle: Some(format!("the override cannot be read: {why}")),
        }
    }
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let live = admin.control.engine().active();
    let policy = &live.config().policy;
    let overrides = live.overrides().iter();
    let overrides = overrides.map(|it| OverrideBody::of(it, it.misfit(policy)));
    let unreadable = admin.control.overrides().unreadable();
    let unreadable = unreadable.iter().map(|it| OverrideBody::of_stored(it));
    let mut overrides: Vec<OverrideBody> = overrides.chain(unreadable).collect();
    overrides.sort_by(|one, other| one.name.cmp(&other.name));
    respond::report(&OverridesBody {
        config_version: live.rules().version().to_owned(),
        overrides,
    })
}

pub(super) async fn set(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    // Bytes that are not UTF-8 make the override invalid, and `set` rejects it.
    let text = String::from_utf8_lossy(&body);
    let set = admin.control.overrides().set(&text, &who.name).await?;
    Ok(respond::report(&OverrideBody::of(&set, None)))
}

pub(super) async fn clear(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Operator>,
    RawQuery(query): RawQuery,
) -> Answer {
    run_to_end(async move {
        let (mut name, mut reason) = (None, None);
        for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let wrong = |what: String| Err(RequestError::Query(what));
            let given = match &*key {
                "name" => &mut name,
                "reason" => &mut reason,
                _ => {
                    return wrong(format!(
                        "unknown parameter {key:?}; use `name` and `reason`"
                    ));
                }
            };
            if given.is_some() {
                return wrong(format!("`{key}` is given twice"));
            }
            if key == "reason" && value.len() > MAX_WHY {
                return wrong(format!("`reason` is longer than {MAX_WHY} bytes"));
            }
            *given = Some(value.into_owned());
        }
        let missing = "`name` is missing: send the name of the override";
        let name = name.ok_or_else(|| RequestError::Query(missing.to_owned()))?;
        let overrides = admin.control.overrides();
        let cleared = overrides.clear(&name, &who.name, reason.as_deref()).await?;
        Ok(respond::report(&OverrideBody::of_stored(&cleared)))
    })
    .await
}

impl From<OverrideError> for RequestError {
    fn from(error: OverrideError) -> RequestError {
        match error {
            OverrideError::Wrong(rejected) => RequestError::BadOverride(rejected),
            OverrideError::Misfit(why) => RequestError::NoEffect(why),
            OverrideError::TooMany => RequestError::TooManyOverrides,
            OverrideError::NotFound(name) => RequestError::NoSuchOverride(name),
            OverrideError::Store(error) => RequestError::Store(error),
            OverrideError::Unreadable(..) | OverrideError::File(..) => {
                tracing::error!(target: "tollgate::admin", %error, "failed to change overrides");
                RequestError::OverridesUnavailable
            }
        }
    }
}
