//! Blocks at the admin door: list, set and remove.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate::Override;
use utoipa::ToSchema;

use super::Operator;
use super::{Admin, Answer, overrides, run_to_end};
use crate::audit::MAX_WHY;
use crate::http::body::parse;
use crate::overrides::StoredOverride;
use crate::respond::{self, RequestError};

/// All blocks.
#[derive(Serialize, ToSchema)]
pub(super) struct BlocksBody {
    blocks: Vec<BlockBody>,
}

/// A block, for operators.
#[derive(Serialize, ToSchema)]
#[schema(as = Block)]
#[serde(rename_all = "camelCase")]
pub(super) struct BlockBody {
    /// The block's name. It has the hash of the subject, or its network.
    #[schema(example = "block:ip:10.0.0.0/8")]
    name: String,
    /// The attribute of the subject.
    attribute: String,
    /// The hash of the subject; null for a network.
    #[schema(required = true)]
    hash: Option<String>,
    /// The network; null for other subjects.
    #[schema(required = true)]
    network: Option<String>,
    reason: String,
    author: String,
    set_at_epoch_millis: u64,
    /// When the block ends; null if it lasts until it is removed.
    #[schema(required = true)]
    expires_at_epoch_millis: Option<u64>,
    /// Why the block has no effect; null if it has an effect.
    #[schema(required = true)]
    idle: Option<String>,
    /// What `POST /v1/overrides/restore` takes to bring the block back. Only for a block that was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, required = false)]
    stored: Option<Value>,
}

/// A new block. A block has one of `for` and `forever`.
#[derive(ToSchema)]
#[expect(
    dead_code,
    reason = "only the OpenAPI document uses this struct; other code reads the body"
)]
#[schema(rename_all = "camelCase")]
pub(super) struct NewBlock {
    /// The subject: an attribute and its value. The attribute `ip` takes an address or a network, and `key`
    /// takes the key of `CL.THROTTLE`.
    #[schema(example = "api_key=k1")]
    subject: String,
    /// Why, in a few words. Clients are not told.
    reason: String,
    /// How long the block lasts.
    #[schema(required = false, rename = "for", example = "1h")]
    lasts: String,
    /// True if the block lasts until it is removed.
    #[schema(required = false)]
    forever: bool,
}

impl BlockBody {
    fn of(block: &Override, idle: Option<String>) -> BlockBody {
        let subject = block.subject();
        let value = subject.map(tollgate::NamedSubject::value);
        let is_hash = subject.is_some_and(|it| it.hash().is_some());
        BlockBody {
            name: block.name(),
            attribute: subject.map_or_else(String::new, |it| it.attribute().to_owned()),
            hash: value.clone().filter(|_| is_hash),
            network: value.filter(|_| !is_hash),
            reason: block.reason().to_owned(),
            author: block.author().to_owned(),
            set_at_epoch_millis: block.set_at(),
            expires_at_epoch_millis: block.expires_at(),
            idle,
            stored: None,
        }
    }

    /// Describes a stored block, whether or not it can be parsed.
    fn of_stored(stored: &StoredOverride) -> BlockBody {
        let why = match &stored.read {
            Ok(it) => {
                return BlockBody {
                    stored: Some(it.to_json()),
                    ..BlockBody::of(it, None)
                };
            }
            Err(why) => why,
        };
        // Show the fields that can be found. Nothing has checked their length, so long texts are cut.
        let fields: Value = serde_json::from_str(&stored.text).unwrap_or_default();
        let cut = |text: &str| text[..text.floor_char_boundary(MAX_WHY)].to_owned();
        let text = |name: &str| fields[name].as_str().map(cut);
        BlockBody {
            name: stored.name.clone(),
            attribute: text("attribute").unwrap_or_default(),
            hash: text("hash"),
            network: text("network"),
            reason: text("reason").unwrap_or_default(),
            author: text("author").unwrap_or_default(),
            set_at_epoch_millis: fields["setAtEpochMillis"].as_u64().unwrap_or(0),
            expires_at_epoch_millis: fields["expiresAtEpochMillis"].as_u64(),
            idle: Some(format!("the block cannot be read: {why}")),
            stored: None,
        }
    }
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let live = admin.control.engine().active();
    let blocks = live.overrides().iter().filter(|it| it.is_block());
    let blocks = blocks.map(|it| {
        let stale = it.subject().and_then(|it| it.stale(live.rules().keyring()));
        BlockBody::of(it, stale)
    });
    let unreadable = admin.control.overrides().unreadable();
    let unreadable = unreadable.iter().filter(|it| it.is_block());
    let unreadable = unreadable.map(|it| BlockBody::of_stored(it));
    let mut blocks: Vec<BlockBody> = blocks.chain(unreadable).collect();
    blocks.sort_by(|one, other| one.name.cmp(&other.name));
    respond::report(&BlocksBody { blocks })
}

pub(super) async fn set(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    // Bytes that are not UTF-8 make the block invalid, and `block` rejects it.
    let text = String::from_utf8_lossy(&body);
    let set = admin.control.overrides().block(&text, &who.name).await?;
    Ok(respond::report(&BlockBody::of(&set, None)))
}

/// Which block to remove, by its subject or by its name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RemovedBlock {
    /// The subject, such as `api_key=k1`.
    #[schema(required = false)]
    subject: Option<String>,
    /// The name of the block, instead of its subject.
    #[schema(required = false)]
    name: Option<String>,
    /// Why, for the audit trail.
    #[schema(required = false)]
    reason: Option<String>,
}

/// Like [`clear`], with the subject in the body: URLs are logged by proxies, and the subject may be a secret.
pub(super) async fn remove(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let it: RemovedBlock = parse(&body)?;
    if it.reason.as_ref().is_some_and(|it| it.len() > MAX_WHY) {
        let long = format!("`reason` is longer than {MAX_WHY} bytes");
        return Err(RequestError::Query(long));
    }
    end(&admin, &who, it.subject, it.name, it.reason).await
}

pub(super) async fn clear(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Operator>,
    RawQuery(query): RawQuery,
) -> Answer {
    run_to_end(async move {
        let query = query.unwrap_or_default();
        let [subject, name, reason] = overrides::parameters(&query, ["subject", "name", "reason"])?;
        end(&admin, &who, subject, name, reason).await
    })
    .await
}

/// Removes the block of a subject, or the block of this name.
async fn end(
    admin: &Admin,
    who: &Operator,
    subject: Option<String>,
    name: Option<String>,
    reason: Option<String>,
) -> Answer {
    let (blocks, why) = (admin.control.overrides(), reason.as_deref());
    let cleared = match (subject, name) {
        (Some(subject), None) => blocks.unblock(&subject, &who.name, why).await?,
        (None, Some(name)) if name.starts_with("block:") => {
            blocks.clear(&name, &who.name, why).await?
        }
        _ => {
            let wrong = "send `subject`, such as api_key=k1, or the `name` of a block";
            return Err(RequestError::Query(wrong.to_owned()));
        }
    };
    Ok(respond::report(&BlockBody::of_stored(&cleared)))
}
