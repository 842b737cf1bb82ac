//! Changes of the ledger by operators: corrections, grants and repairs.

use std::sync::Arc;

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tollgate::{Ask, Decision, Drift, Posted, Posting, Repair};
use tollgate_config::Role;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::accounts;
use crate::admin::Operator;
use crate::admin::body::{bounded_reason, reason};
use crate::admin::{Admin, Answer, left};
use crate::audit::{self, Entry, MAX_NAMED, instant};
use crate::http::body::{attribute_map, parse};
use crate::question::AttributeMap;
use crate::respond::{self, RequestError};

/// The longest idempotency key, in bytes.
const MAX_KEY: usize = 256;

/// A correction or a grant.
#[derive(Deserialize, ToSchema)]
#[schema(as = Posting)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PostBody<'a> {
    /// The attributes of a request that uses the counter: those in `match` and in `per` of the rule.
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
    /// The rule or budget.
    rule: String,
    /// How much more was used, or less if negative. For a grant: how much more may be used.
    #[schema(schema_with = amount)]
    amount: i64,
    /// Why, for the ledger and the audit trail.
    #[serde(default, deserialize_with = "bounded_reason")]
    #[schema(schema_with = reason, required = true)]
    reason: Option<String>,
    /// Idempotency key: repeats are ignored, a different posting with the same key is rejected.
    #[serde(default)]
    #[schema(schema_with = key, required = false)]
    idempotency_key: Option<String>,
}

fn amount() -> Schema {
    let most = i64::try_from(tollgate_core::MAX_AMOUNT).unwrap_or(i64::MAX);
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(-most))
        .maximum(Some(most))
        .description(Some(
            "How much more was used, or less if negative. For a grant: how much more may be used.",
        ))
        .into()
}

fn key() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(MAX_KEY))
        .description(Some(
            "Repeats under one key are ignored. A different posting under it is rejected.",
        ))
        .into()
}

/// The counter after a posting.
#[derive(Serialize, ToSchema)]
#[schema(as = Standing)]
#[serde(rename_all = "camelCase")]
pub(super) struct StandingBody {
    /// The rule or budget.
    rule: String,
    /// The used units.
    used: u64,
    /// The units allowed in addition to the limit: granted, or carried over.
    extra: u64,
    limit: u64,
    #[schema(format = "date-time")]
    period_end: String,
    /// Whether the posting is a repeat, which changes nothing.
    repeated: bool,
}

pub(in crate::admin) async fn correct(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let posted = |amount| Ok(Posted::Correction(amount));
    post(&admin, &who, &body, audit::LEDGER_CORRECTION, posted).await
}

pub(in crate::admin) async fn grant(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let posted = |amount| match u64::try_from(amount) {
        Ok(amount) => Ok(Posted::Grant(amount)),
        Err(_) => Err(RequestError::BadPosting(tollgate::PostError::Amount)),
    };
    post(&admin, &who, &body, audit::LEDGER_GRANT, posted).await
}

async fn post(
    admin: &Admin,
    who: &Operator,
    body: &[u8],
    name: &'static str,
    posted: fn(i64) -> Result<Posted, RequestError>,
) -> Answer {
    let body: PostBody<'_> = parse(body)?;
    let key = body.idempotency_key.as_deref();
    let reason = body.reason.as_deref().unwrap_or_default();
    check(reason, key)?;
    let attributes = body.attributes.attributes();
    let posting = Posting {
        rule: &body.rule,
        what: posted(body.amount)?,
        who: &who.name,
        why: reason,
        idempotency_key: key,
    };
    let accounts = accounts(admin)?;
    let snapshot = admin.control.engine().snapshot();
    let before = snapshot.peek(&attributes, Ask::Exactly(0)).await;
    let standing = accounts.post(&attributes, &posting).await?;
    let (amount, rule) = (body.amount, &standing.rule);
    tracing::info!(target: "tollgate::admin", who = %who.name, rule, amount, standing.repeated, "{name}");
    if !standing.repeated {
        let after = snapshot.peek(&attributes, Ask::Exactly(0)).await;
        let mut to = left(&after);
        to["amount"] = amount.into();
        to["used"] = standing.used.into();
        let entry = Entry::new(name, &who.name)
            .change(left(&before), to)
            .because(Some(reason))
            .about(&after);
        let entry = only(entry, &after, &posting);
        admin.control.audit().write(entry).await;
    }
    Ok(respond::report(&StandingBody {
        used: standing.used,
        extra: standing.extra,
        limit: standing.limit,
        period_end: instant(standing.ends_at),
        repeated: standing.repeated,
        rule: standing.rule,
    }))
}

/// Checks that the texts can be stored. The engine checks that there is a reason.
fn check(reason: &str, key: Option<&str>) -> Result<(), RequestError> {
    let wrong = |what: &str| Err(RequestError::BadText(what.to_owned()));
    match key {
        Some("") => return wrong("`idempotencyKey` is empty: send a key, or leave the field out"),
        Some(key) if key.len() > MAX_KEY => {
            return wrong(&format!("`idempotencyKey` is longer than {MAX_KEY} bytes"));
        }
        _ => {}
    }
    if reason.contains('\0') || key.is_some_and(|key| key.contains('\0')) {
        return wrong("`reason` or `idempotencyKey` has a NUL character: remove it");
    }
    Ok(())
}

/// Removes all rules from an audit entry, except the rule of the posting.
fn only(mut entry: Entry, decision: &Decision, posting: &Posting<'_>) -> Entry {
    let meant = |id: &str| {
        let mut rules = decision.rules().map(|it| it.rule());
        rules.any(|rule| {
            let names = [Some(rule.id()), rule.budget()];
            rule.id() == id && names.contains(&Some(posting.rule))
        })
    };
    entry.rules.retain(|concerned| meant(&concerned.rule));
    entry
}

/// A comparison of the counters with the ledger.
#[derive(Deserialize, ToSchema)]
#[schema(as = Reconcile)]
#[serde(deny_unknown_fields)]
pub(super) struct ReconcileBody {
    /// Only this tenant.
    #[serde(default)]
    #[schema(required = false)]
    tenant: Option<String>,
    /// `none` only reports; `counters` sets the counters to the values of the ledger; `ledger`
    /// corrects the ledger to the values of the counters. The last two need the `operate` role.
    #[serde(default)]
    #[schema(required = false)]
    repair: Direction,
    /// Why, for the audit trail.
    #[serde(default, deserialize_with = "bounded_reason")]
    #[schema(schema_with = reason, required = false)]
    reason: Option<String>,
}

/// The direction of a repair.
#[derive(Clone, Copy, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Direction {
    #[default]
    None,
    Counters,
    Ledger,
}

/// The result of a comparison.
#[derive(Serialize, ToSchema)]
#[schema(as = Reconciled)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReconciledBody {
    /// How many counters were compared.
    compared: u64,
    /// How many totals of the ledger have no counter now. The next request restores the counter.
    dormant: u64,
    /// How many totals of the ledger belong to removed rules.
    orphaned: u64,
    /// Counters that differ.
    drifts: Vec<DriftBody>,
    /// Whether the list of drifts is incomplete.
    is_cut: bool,
}

/// A counter that differs from the ledger.
#[derive(Serialize, ToSchema)]
#[schema(as = Drift)]
#[serde(rename_all = "camelCase")]
pub(super) struct DriftBody {
    tenant: String,
    /// The rule or budget.
    rule: String,
    /// The counter: a hash of rule and subject.
    counter: String,
    #[schema(format = "date-time")]
    period_start: String,
    /// The used units, according to the ledger.
    ledger: i64,
    /// The used units, according to the store.
    store: i64,
    /// The units allowed in addition to the limit (granted or carried over), according to the ledger.
    ledger_extra: i64,
    /// The units allowed in addition to the limit, according to the store.
    store_extra: i64,
    repaired: bool,
}

impl DriftBody {
    fn of(drift: &Drift) -> DriftBody {
        DriftBody {
            tenant: drift.tenant.clone(),
            rule: drift.rule.clone(),
            counter: format!("{:032x}", drift.key),
            period_start: instant(drift.period_start),
            ledger: drift.ledger,
            store: drift.counter,
            ledger_extra: drift.ledger_extra,
            store_extra: drift.counter_extra,
            repaired: drift.repaired,
        }
    }
}

pub(in crate::admin) async fn reconcile(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let body: ReconcileBody = parse(&body)?;
    let repair = match body.repair {
        Direction::None => Repair::Nothing,
        Direction::Counters => Repair::Counters,
        Direction::Ledger => Repair::Ledger,
    };
    let repairs = repair != Repair::Nothing;
    if repairs && !who.role.includes(Role::Operate) {
        tracing::warn!(target: "tollgate::admin", who = %who.name, "this token lacks the `operate` role, which a repair needs");
        let role = Role::Operate.name();
        return Err(RequestError::NotPermitted { role });
    }
    let accounts = accounts(&admin)?;
    let permit = admin.ledger_comparisons.try_acquire();
    let _permit = permit.map_err(|_| RequestError::LedgerBusy)?;
    let tenant = body.tenant.as_deref();
    let found = accounts.reconcile(tenant, repair, &who.name).await;
    if repairs {
        let mut to = json!({ "repair": body.repair, "tenant": tenant });
        match &found {
            Ok(found) => {
                let named = found.drifts.iter().take(MAX_NAMED).map(DriftBody::of);
                let repaired = found.drifts.iter().filter(|it| it.repaired);
                to["compared"] = found.compared.into();
                to["repaired"] = repaired.count().into();
                to["drifts"] = json!(named.collect::<Vec<_>>());
            }
            // A part of the repair may have been done.
            Err(error) => to["failed"] = error.to_string().into(),
        }
        tracing::info!(target: "tollgate::admin", who = %who.name, %to, "reconciled");
        let entry = Entry::new(audit::LEDGER_RECONCILE, &who.name);
        let mut entry = entry.because(body.reason.as_deref());
        entry.to = Some(to);
        admin.control.audit().write(entry).await;
    }
    let found = found?;
    Ok(respond::report(&ReconciledBody {
        compared: found.compared,
        dormant: found.dormant,
        orphaned: found.orphaned,
        drifts: found.drifts.iter().map(DriftBody::of).collect(),
        is_cut: found.truncated,
    }))
}
