//! Request bodies of the admin door. Every change may have a `reason` for the audit trail.

use serde::{Deserialize, Deserializer, de};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

use crate::audit::MAX_WHY;
use crate::http::body::{amount, attribute_map, instant, whole};
use crate::question::AttributeMap;

/// A request to reset the usage of subjects.
#[derive(Deserialize, ToSchema)]
#[schema(as = Reset)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    pub(super) attributes: AttributeMap<'a>,
    /// Why, for the audit trail.
    #[serde(default, deserialize_with = "bounded_reason")]
    #[schema(schema_with = reason, required = false)]
    pub(super) reason: Option<String>,
}

/// A request to give back what a check charged.
#[derive(Deserialize, ToSchema)]
#[schema(as = OperatorRefund)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RefundBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    pub(super) attributes: AttributeMap<'a>,
    /// How many units: 1 unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = amount, required = false)]
    pub(super) cost: Option<u64>,
    /// The `decidedAtEpochMicros` of the check: now unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = instant, required = false)]
    pub(super) charged_at_epoch_micros: Option<u64>,
    /// Why, for the audit trail.
    #[serde(default, deserialize_with = "bounded_reason")]
    #[schema(schema_with = reason, required = false)]
    pub(super) reason: Option<String>,
}

/// A request to read the config file again.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = Reload)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadBody {
    /// Why, for the audit trail.
    #[serde(default, deserialize_with = "bounded_reason")]
    #[schema(schema_with = reason, required = false)]
    pub(super) reason: Option<String>,
}

/// Reads a reason, if one is given. A reason must fit into the audit trail.
pub(super) fn bounded_reason<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let reason = Option::<String>::deserialize(deserializer)?;
    match reason.as_ref().map_or(0, String::len) {
        length if length > MAX_WHY => Err(de::Error::custom(format_args!(
            "the reason is {length} bytes long; at most {MAX_WHY}"
        ))),
        _ => Ok(reason),
    }
}

/// Returns the schema of a reason. The schema counts characters, but the server counts bytes.
pub(super) fn reason() -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .max_length(Some(MAX_WHY))
        .description(Some("Why, for the audit trail."))
        .into()
}

/// A new override. An override has one of `numbers`, `scale`, `state`, `rollout` and `mode`.
#[derive(ToSchema)]
#[expect(
    dead_code,
    reason = "only the OpenAPI document uses this struct; other code reads the body"
)]
#[schema(rename_all = "camelCase")]
pub(super) struct NewOverride {
    /// The tenant that the override applies to.
    #[schema(required = false)]
    tenant: String,
    /// The plan that the override applies to. Without a tenant, a plan and a subject, the override applies to
    /// everyone, and needs `for`.
    #[schema(required = false)]
    plan: String,
    /// The subject that the override applies to: an attribute and its value. The attribute `ip` takes an
    /// address or a network. Needs `for` or `forever`.
    #[schema(required = false, example = "user=ann")]
    subject: String,
    /// The rule or budget that the override applies to: all unless given.
    #[schema(required = false)]
    rule: String,
    /// Numbers that replace those of the rule.
    #[schema(required = false)]
    numbers: NewNumbers,
    /// The new limit in percent of the old one, up to 1000%.
    #[schema(required = false, example = "50%")]
    scale: String,
    /// `enforce`, `shadow` or `disabled`; for everyone only.
    #[schema(required = false)]
    state: String,
    /// The share of subjects that the rule applies to; for everyone only, and for one rule.
    #[schema(required = false, example = "25%")]
    rollout: String,
    /// `exact`, `leased` or `async`: where the requests of the rule are decided.
    #[schema(required = false)]
    mode: String,
    /// Why, in a few words.
    reason: String,
    /// How long the override lasts: until it is cleared unless given.
    #[schema(required = false, rename = "for", example = "1h")]
    lasts: String,
    /// True if the override of a subject lasts until it is cleared.
    #[schema(required = false)]
    forever: bool,
}

/// Numbers of a rule, as in the config. Numbers that are left out stay as they are.
#[derive(ToSchema)]
#[expect(
    dead_code,
    reason = "only the OpenAPI document uses this struct; other code reads the body"
)]
#[schema(rename_all = "snake_case")]
pub(super) struct NewNumbers {
    #[schema(required = false)]
    limit: String,
    #[schema(required = false)]
    window: String,
    #[schema(required = false)]
    buckets: String,
    #[schema(required = false)]
    capacity: String,
    #[schema(required = false)]
    refill: String,
    #[schema(required = false)]
    rate: String,
    #[schema(required = false)]
    burst: String,
    #[schema(required = false)]
    queue: String,
    #[schema(required = false)]
    max_wait: String,
}
