//! What answers look like, where their JSON is written by hand. Nothing here is ever made: these are
//! read by the [description](crate::http) of the door, and `tests/openapi.rs` holds real answers
//! against them.

#![allow(
    dead_code,
    reason = "only the schemas are used, and a field of them is its name, its type and its comment"
)]

use serde_json::Value;
use tollgate::{FailurePolicy, HoldState, Kind, Reason};
use tollgate_core::Algorithm;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Schema, SchemaType, Type};

/// A decision for each request of a batch, in their order.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what `respond::decision` writes")]
pub(crate) struct Decisions {
    decisions: Vec<Decision>,
}

/// What was decided. The fields are those of the rule that decides: of a refusal, the one that
/// refuses longest; of an admission, the one with the least left. They are null if no rule applies.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Decision {
    allowed: bool,
    /// Refusals only.
    #[schema(schema_with = codes, required = false)]
    code: String,
    /// Refusals only: for people.
    #[schema(required = false)]
    message: String,
    /// There only if the request was admitted beyond the limit of a quota, within its grace: for people.
    #[schema(required = false)]
    warning: String,
    #[schema(required = true)]
    rule_id: Option<String>,
    #[schema(schema_with = algorithms, required = true)]
    algorithm: Option<String>,
    /// Which sort of allowance the rule guards.
    #[schema(schema_with = kinds_or_none, required = true)]
    kind: Option<String>,
    /// Why it was refused; null if it was not.
    #[schema(schema_with = reasons, required = true)]
    reason: Option<String>,
    /// The hashed subject.
    #[schema(required = true, pattern = "^[0-9a-f]{32}$")]
    subject: Option<String>,
    /// The most that is admitted at once; null where unlimited.
    #[schema(required = true)]
    limit: Option<u64>,
    /// What is left of it; null where unlimited.
    #[schema(required = true)]
    remaining: Option<u64>,
    /// When the same request would be admitted: exact, rounded up. Null if it was, or if no wait
    /// would help.
    #[schema(required = true)]
    retry_after_millis: Option<u64>,
    /// When the whole allowance is back.
    #[schema(required = true)]
    reset_at_epoch_millis: Option<u64>,
    /// Shaping: wait this long before proceeding.
    delay_millis: u64,
    /// Units taken.
    granted: u64,
    /// A shadow rule would have refused.
    shadow_denied: bool,
    /// The failure policy that decided instead of the store; null if the store did.
    #[schema(schema_with = policies, required = true)]
    fallback: Option<String>,
    /// Allowed by a rule with `on_store_failure: degraded`: leave out what is optional.
    degraded: bool,
    /// `compensated` where a cluster keeps the keys in several slots.
    #[schema(schema_with = guarantees)]
    guarantee: String,
    /// Which rules decided.
    config_version: String,
    /// The store's time. Refunds name it.
    decided_at_epoch_micros: u64,
    /// Every rule that applies.
    rules: Vec<RuleDecision>,
}

/// One rule's part in a decision.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleDecision {
    rule_id: String,
    allowed: bool,
    /// The rule only watches.
    shadow: bool,
    #[schema(schema_with = algorithms)]
    algorithm: String,
    #[schema(schema_with = kinds)]
    kind: String,
    #[schema(schema_with = reasons, required = true)]
    reason: Option<String>,
    #[schema(required = true, pattern = "^[0-9a-f]{32}$")]
    subject: Option<String>,
    #[schema(required = true)]
    limit: Option<u64>,
    #[schema(required = true)]
    remaining: Option<u64>,
    #[schema(required = true)]
    retry_after_millis: Option<u64>,
    reset_at_epoch_millis: u64,
    /// There only if a failure policy decided instead of the store.
    #[schema(schema_with = policies, required = false)]
    fallback: String,
    /// There only while a quota is above its limit.
    #[schema(required = false)]
    grace: Grace,
    delay_millis: u64,
}

/// What a quota admits beyond its limit, with a warning.
#[derive(ToSchema)]
pub(crate) struct Grace {
    limit: u64,
    remaining: u64,
}

/// A refusal for the client of a proxy.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verdict {
    allowed: bool,
    #[schema(schema_with = codes)]
    code: String,
    message: String,
    rule_id: String,
    #[schema(schema_with = kinds)]
    kind: String,
    #[schema(required = true)]
    limit: Option<u64>,
    #[schema(required = true)]
    remaining: Option<u64>,
    #[schema(required = true)]
    retry_after_millis: Option<u64>,
    reset_at_epoch_millis: u64,
}

/// The members that make a refusal a problem document (RFC 9457).
#[derive(ToSchema)]
pub(crate) struct Problem {
    /// `about:blank`.
    r#type: String,
    title: String,
    status: u16,
    /// The same as `message`.
    detail: String,
}

/// A reservation.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reservation {
    /// Names it; `unheld` where nothing is held, because no rule applies or because a failure policy
    /// let it pass.
    id: String,
    #[schema(schema_with = states)]
    state: String,
    /// How many units were reserved.
    cost: u64,
    /// How many were used, once that is known.
    #[schema(required = true)]
    actual: Option<u64>,
    /// How many of those used no overdraft allowed for.
    uncharged: u64,
    /// When it is given back by itself.
    expires_at_epoch_millis: u64,
}

/// A lease.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lease {
    /// Names it.
    id: String,
    #[schema(schema_with = lease_states)]
    state: String,
    /// Who holds it, in its own words.
    owner: String,
    /// Larger than that of every lease before it: what the lease protects can refuse a late holder by
    /// it.
    fence: u64,
    /// When the slot is free unless the lease is renewed.
    expires_at_epoch_millis: u64,
}

/// What comes with a new lease, and only then.
#[derive(ToSchema)]
pub(crate) struct NewLease {
    /// Who shows it may renew the lease and give it back.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    token: String,
}

/// Who holds slots.
#[derive(ToSchema)]
pub(crate) struct Holders {
    /// Every concurrency rule that applies.
    rules: Vec<RuleHolders>,
}

/// Who holds slots of a rule.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleHolders {
    rule_id: String,
    /// How many there may be.
    limit: u64,
    /// There are more than are listed.
    truncated: bool,
    #[schema(max_items = 256)]
    holders: Vec<Holder>,
}

/// Who holds a slot.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Holder {
    owner: String,
    fence: u64,
    expires_at_epoch_millis: u64,
}

/// What a tenant has used.
#[derive(ToSchema)]
pub(crate) struct TenantUsage {
    tenant: String,
    /// There are more rows: ask for less at a time.
    truncated: bool,
    /// By rule, action and period.
    #[schema(max_items = 256)]
    usage: Vec<Usage>,
}

/// What was used by an action under a rule in a period.
#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Usage {
    rule_id: String,
    /// Whose counter it is: the rule's id, or its budget's.
    allowance: String,
    /// Empty where requests named none.
    action: String,
    starts_at_epoch_millis: u64,
    ends_at_epoch_millis: u64,
    /// What is used, or set aside.
    used: i64,
    /// How much of it is set aside by reservations that have not ended.
    reserved: i64,
    /// What was granted beyond the limit.
    granted: i64,
    /// How much of what is used is corrections.
    corrections: i64,
    requests: u64,
}

fn states() -> Schema {
    let all = [
        HoldState::Reserved,
        HoldState::Consumed,
        HoldState::Released,
        HoldState::Expired,
    ];
    names(&all.map(super::hold::state), false)
}

fn lease_states() -> Schema {
    names(&["HELD", "RELEASED", "EXPIRED"], false)
}

fn codes() -> Schema {
    let of = |kind| Reason::ALL.map(|reason| super::decision::code(kind, reason));
    names(&Kind::ALL.map(of).concat(), false)
}

fn kinds() -> Schema {
    names(&Kind::ALL.map(Kind::name), false)
}

fn kinds_or_none() -> Schema {
    names(&Kind::ALL.map(Kind::name), true)
}

fn reasons() -> Schema {
    names(&Reason::ALL.map(Reason::name), true)
}

fn algorithms() -> Schema {
    names(&Algorithm::ALL.map(Algorithm::name), true)
}

fn policies() -> Schema {
    let all = [
        FailurePolicy::FailOpen,
        FailurePolicy::FailClosed,
        FailurePolicy::LocalFallback,
        FailurePolicy::Degraded,
        FailurePolicy::Cached,
        FailurePolicy::EmergencyLimit,
    ];
    names(&all.map(FailurePolicy::name), true)
}

fn guarantees() -> Schema {
    names(&["atomic", "compensated"], false)
}

/// One of these, or null.
fn names(names: &[&str], or_null: bool) -> Schema {
    // Several reasons have the same code.
    let mut values: Vec<Value> = Vec::new();
    for name in names {
        if !values.contains(&(*name).into()) {
            values.push((*name).into());
        }
    }
    let mut object: Object = ObjectBuilder::new().schema_type(Type::String).build();
    if or_null {
        object.schema_type = SchemaType::from_iter([Type::String, Type::Null]);
        values.push(Value::Null);
    }
    object.enum_values = Some(values);
    object.into()
}
