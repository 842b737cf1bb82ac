//! Versions of the config at the admin door: list, show, and roll back.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::ToSchema;

use super::Operator;
use super::body::bounded_reason;
use super::{Admin, Answer};
use crate::control::{ConfigVersion, RollbackError};
use crate::http::body::parse;
use crate::overrides::OverrideError;
use crate::respond::{self, RequestError};

/// The versions of the config that are kept.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionsBody<'a> {
    /// The version in force on this instance.
    in_force: &'a str,
    /// The version of the file, if a rollback holds an older version in force instead; null otherwise.
    #[schema(required = true)]
    rolled_back_from: Option<&'a str>,
    /// The version that was put in force last comes first. At most 20.
    versions: Vec<VersionBody>,
}

/// A version of the config.
#[derive(Serialize, ToSchema)]
#[schema(as = ConfigVersion)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionBody {
    version: String,
    /// When it was last put in force.
    #[schema(format = "date-time")]
    at: String,
    /// The author of the change: the name of a token, or `file`, `signal` or `rollback`.
    who: String,
    #[schema(required = true)]
    why: Option<String>,
    /// The length of the text, in bytes; null if the text is too long and was not kept.
    #[schema(required = true)]
    bytes: Option<usize>,
}

/// A version of the config, with its text.
#[derive(Serialize, ToSchema)]
#[schema(as = ConfigText)]
pub(super) struct TextBody {
    #[serde(flatten)]
    version: VersionBody,
    /// The text of the config file, with masks in place of secrets; null if it is too long and was not kept.
    #[schema(required = true)]
    text: Option<String>,
}

/// A request to put an older version in force.
#[derive(Deserialize, ToSchema)]
#[schema(as = Rollback)]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackBody {
    /// The version, as `GET /v1/config/versions` lists it.
    #[schema(example = "0f1e2d3c4b5a")]
    version: String,
    /// Why, for the audit trail.
    #[serde(deserialize_with = "required_reason")]
    #[schema(max_length = 500)]
    reason: String,
}

fn required_reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let reason = bounded_reason(deserializer)?.filter(|it| !it.trim().is_empty());
    reason.ok_or_else(|| de::Error::custom("the reason is empty"))
}

impl From<ConfigVersion> for VersionBody {
    fn from(version: ConfigVersion) -> VersionBody {
        VersionBody {
            bytes: version.text.as_ref().map(String::len),
            version: version.version,
            at: version.at,
            who: version.who,
            why: version.why,
        }
    }
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Answer {
    let versions = admin.control.versions().await.map_err(unavailable)?;
    let status = admin.control.status();
    Ok(respond::report(&VersionsBody {
        in_force: admin.control.engine().rules().version(),
        rolled_back_from: status.rollback.as_ref().map(|it| it.instead_of.as_str()),
        versions: versions.into_iter().map(VersionBody::from).collect(),
    }))
}

pub(super) async fn show(State(admin): State<Arc<Admin>>, Path(version): Path<String>) -> Answer {
    let found = admin.control.version(&version).await.map_err(unavailable)?;
    let found = found.ok_or(RequestError::NoSuchVersion(version))?;
    let text = found.text.clone();
    let version = VersionBody::from(found);
    Ok(respond::report(&TextBody { version, text }))
}

pub(super) async fn rollback(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let RollbackBody { version, reason } = parse(&body)?;
    let rolling = admin.control.rollback(&version, &who.name, &reason);
    let change = rolling.await.map_err(unchanged)?;
    Ok(respond::report(&change))
}

/// Says why a version of the config cannot be used.
pub(super) fn unchanged(error: RollbackError) -> RequestError {
    match error {
        RollbackError::NoFile => RequestError::NoConfigFile,
        RollbackError::NotFound(version) => RequestError::NoSuchVersion(version),
        RollbackError::Rejected(rejected) => RequestError::BadConfig(rejected),
        RollbackError::Storage(error) => unavailable(error),
        error => RequestError::NotRestorable(error.to_string()),
    }
}

fn unavailable(error: OverrideError) -> RequestError {
    match error {
        OverrideError::Store(error) => RequestError::Store(error),
        error => {
            tracing::error!(target: "tollgate::admin", %error, "failed to read or store versions of the config");
            RequestError::VersionsUnavailable
        }
    }
}
