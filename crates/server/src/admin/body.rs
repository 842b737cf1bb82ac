//! Request bodies of the admin door: those of the HTTP door, with a reason.

use serde::Deserialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

use crate::audit::MAX_WHY;
use crate::http::body::{amount, attribute_map, instant, whole};
use crate::question::{AttributeMap, BadQuestion, Refund};

/// A request to reset the usage of subjects.
#[derive(Deserialize, ToSchema)]
#[schema(as = Reset)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    pub(super) attributes: AttributeMap<'a>,
    /// Why, for the audit trail.
    #[serde(default)]
    #[schema(schema_with = reason, required = false)]
    pub(super) reason: AuditReason,
}

/// A request to give back what a check charged.
#[derive(Deserialize, ToSchema)]
#[schema(as = OperatorRefund)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RefundBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
    /// How many units: 1 unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = amount, required = false)]
    cost: Option<u64>,
    /// The `decidedAtEpochMicros` of the check: now unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = instant, required = false)]
    charged_at_epoch_micros: Option<u64>,
    /// Why, for the audit trail.
    #[serde(default)]
    #[schema(schema_with = reason, required = false)]
    reason: AuditReason,
}

impl<'a> RefundBody<'a> {
    pub(super) fn read(self) -> Result<(Refund<'a>, AuditReason), BadQuestion> {
        let charged_at = self.charged_at_epoch_micros;
        let refund = Refund::new(self.attributes, self.cost, charged_at)?;
        Ok((refund, self.reason))
    }
}

/// A request to read the config file again.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = Reload)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadBody {
    /// Why, for the audit trail.
    #[serde(default)]
    #[schema(schema_with = reason, required = false)]
    pub(super) reason: AuditReason,
}

/// A reason, if one is given.
#[derive(Default, Deserialize)]
#[serde(try_from = "Option<String>")]
pub(super) struct AuditReason(Option<String>);

impl AuditReason {
    pub(super) fn as_deref(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl TryFrom<Option<String>> for AuditReason {
    type Error = String;

    fn try_from(reason: Option<String>) -> Result<AuditReason, String> {
        match reason.as_ref().map_or(0, String::len) {
            length if length > MAX_WHY => Err(format!(
                "the reason is {length} bytes long; at most {MAX_WHY}"
            )),
            _ => Ok(AuditReason(reason)),
        }
    }
}

/// The schema of [`AuditReason`], which counts the length in bytes, not in characters.
pub(super) fn reason() -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .max_length(Some(MAX_WHY))
        .description(Some("Why, for the audit trail."))
        .into()
}

/// An override to be set. It changes one thing: `numbers`, `scale` or `state`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what an override is read from")]
#[schema(rename_all = "camelCase")]
pub(super) struct NewOverride {
    /// The tenant that the override applies to.
    #[schema(required = false)]
    tenant: String,
    /// The plan it applies to. Without a tenant and a plan it applies to everyone, and needs an end.
    #[schema(required = false)]
    plan: String,
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
    /// Why, in a few words.
    reason: String,
    /// How long the override lasts: until it is cleared unless given.
    #[schema(required = false, rename = "for", example = "1h")]
    lasts: String,
}

/// Numbers of a rule, as in the config. Numbers that are left out stay as they are.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what an override is read from")]
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
