//! Overrides at the admin door: list, set and clear.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate::Override;
use tollgate_rules::Scope;
use utoipa::ToSchema;

use super::Operator;
use super::{Admin, Answer, run_to_end};
use crate::audit::MAX_WHY;
use crate::http::body::parse;
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
    /// The plan that the override applies to. Without a tenant, a plan and a subject, the override applies to
    /// everyone.
    #[schema(required = true)]
    plan: Option<String>,
    /// The subject that the override applies to: an attribute, and the hash of its value or a network.
    #[schema(required = true, example = "ip:10.0.0.0/8")]
    subject: Option<String>,
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
    /// What `POST /v1/overrides/restore` takes to bring the override back. Only for an override that was cleared, or
    /// that another one would replace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, required = false)]
    stored: Option<Value>,
}

/// An override or a block that ends, or was replaced, and is brought back.
#[derive(Deserialize, ToSchema)]
#[schema(as = Restore)]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreBody {
    /// The `stored` of the override or the block.
    #[schema(value_type = Object)]
    stored: Value,
}

impl OverrideBody {
    pub(super) fn of(it: &Override, idle: Option<String>) -> OverrideBody {
        let (mut tenant, mut plan, mut subject) = (None, None, None);
        match it.scope() {
            Scope::Everyone => {}
            Scope::Plan(name) => plan = Some(name.to_string()),
            Scope::Tenant(name) => tenant = Some(name.to_string()),
            Scope::Subject(of) => subject = Some(of.to_string()),
        }
        OverrideBody {
            name: it.name(),
            tenant,
            plan,
            subject,
            rule: it.rule().map(str::to_owned),
            effect: it.effect(),
            reason: it.reason().to_owned(),
            author: it.author().to_owned(),
            set_at_epoch_millis: it.set_at(),
            expires_at_epoch_millis: it.expires_at(),
            idle,
            stored: None,
        }
    }

    /// Adds what brings the override back.
    pub(super) fn with_stored(self, stored: Value) -> OverrideBody {
        OverrideBody {
            stored: Some(stored),
            ..self
        }
    }

    /// Describes a stored override, whether or not it can be parsed.
    fn of_stored(stored: &StoredOverride) -> OverrideBody {
        let why = match &stored.read {
            Ok(it) => return OverrideBody::of(it, None).with_stored(it.to_json()),
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
            subject: text("attribute"),
            rule: text("rule"),
            effect: "none".to_owned(),
            reason: text("reason").unwrap_or_default(),
            author: text("author").unwrap_or_default(),
            set_at_epoch_millis: fields["setAtEpochMillis"].as_u64().unwrap_or(0),
            expires_at_epoch_millis: fields["expiresAtEpochMillis"].as_u64(),
            idle: Some(format!("the override cannot be read: {why}")),
            stored: None,
        }
    }
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let live = admin.control.engine().active();
    let policy = &live.config().policy;
    let overrides = live.overrides().iter().filter(|it| !it.is_block());
    let overrides = overrides.map(|it| {
        let stale = || it.subject()?.stale(live.rules().keyring());
        OverrideBody::of(it, it.misfit(policy).or_else(stale))
    });
    let unreadable = admin.control.overrides().unreadable();
    let unreadable = unreadable.iter().filter(|it| !it.is_block());
    let unreadable = unreadable.map(|it| OverrideBody::of_stored(it));
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

/// Brings back an override or a block. Its author is the operator that brings it back.
pub(super) async fn restore(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let body: RestoreBody = parse(&body)?;
    let stored = body.stored.to_string();
    let set = admin.control.overrides().restore(&stored, &who.name);
    Ok(respond::report(&OverrideBody::of(&*set.await?, None)))
}

pub(super) async fn clear(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Operator>,
    RawQuery(query): RawQuery,
) -> Answer {
    run_to_end(async move {
        let query = query.unwrap_or_default();
        let [name, reason] = parameters(&query, ["name", "reason"])?;
        let missing = "`name` is missing: send the name of the override";
        let name = name.ok_or_else(|| RequestError::Query(missing.to_owned()))?;
        let overrides = admin.control.overrides();
        let cleared = overrides.clear(&name, &who.name, reason.as_deref()).await?;
        Ok(respond::report(&OverrideBody::of_stored(&cleared)))
    })
    .await
}

/// Reads the parameters of a query, each at most once. A `reason` has a bound.
pub(super) fn parameters<const N: usize>(
    query: &str,
    names: [&str; N],
) -> Result<[Option<String>; N], RequestError> {
    let mut values = [const { None }; N];
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong = |what: String| Err(RequestError::Query(what));
        let Some(place) = names.iter().position(|name| *name == key) else {
            let names = names.map(|name| format!("`{name}`")).join(" and ");
            return wrong(format!("unknown parameter {key:?}; use {names}"));
        };
        if values[place].is_some() {
            return wrong(format!("`{key}` is given twice"));
        }
        if key == "reason" && value.len() > MAX_WHY {
            return wrong(format!("`reason` is longer than {MAX_WHY} bytes"));
        }
        values[place] = Some(value.into_owned());
    }
    Ok(values)
}

impl From<OverrideError> for RequestError {
    fn from(error: OverrideError) -> RequestError {
        match error {
            OverrideError::Wrong(rejected) => RequestError::BadOverride(rejected),
            OverrideError::Misfit(why) => RequestError::NoEffect(why),
            OverrideError::TooMany => RequestError::TooManyOverrides,
            OverrideError::TooManyBlocks => RequestError::TooManyBlocks,
            OverrideError::NotBlocked => RequestError::NotBlocked,
            error @ OverrideError::BadSubject(..) => RequestError::BadSubject(error),
            error @ OverrideError::NoSecret => RequestError::NoHashSecret(error),
            OverrideError::NotFound(name) => RequestError::NoSuchOverride(name),
            OverrideError::Store(error) => RequestError::Store(error),
            OverrideError::Unreadable(..) | OverrideError::File(..) => {
                tracing::error!(target: "tollgate::admin", %error, "failed to change overrides");
                RequestError::OverridesUnavailable
            }
        }
    }
}
