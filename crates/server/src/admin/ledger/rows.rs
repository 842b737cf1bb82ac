//! Rows of the ledger for operators: totals for bills, and the entries behind them.

use serde::Serialize;
use tollgate::ActiveConfig;
use tollgate_core::quota::Quota;
use tollgate_core::{Calendar, Limit, Time};
use tollgate_ledger::{Entry, UsageRow};
use utoipa::ToSchema;

use crate::audit::instant;
use crate::period::{self, calendar, limit};

/// A line of an export.
pub(super) trait Line: Serialize {
    /// The names of the cells in JSON, separated by commas, in the order of the columns.
    const COLUMNS: &'static str;
}

/// The usage of a tenant by an action under a rule in a period.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LedgerUsage)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Total {
    /// Empty if requests named no tenant.
    tenant: String,
    /// Empty if requests named no action.
    action: String,
    rule: String,
    /// The budget that the rule draws on, or the rule.
    allowance: String,
    /// The period by name, such as `2026-07`.
    #[schema(example = "2026-07")]
    period: String,
    #[schema(format = "date-time")]
    period_start: String,
    /// The first instant after the period.
    #[schema(format = "date-time")]
    period_end: String,
    /// The used and reserved units.
    used: i64,
    /// How much of `used` is held by open reservations.
    reserved: i64,
    /// The units granted in addition to the limit.
    granted: i64,
    /// How much of `used` comes from corrections.
    corrections: i64,
    /// How many requests.
    requests: u64,
    /// How many counters were added up: one for each subject of the rule.
    counters: u64,
    /// The limit in force of each counter; null if the rule is gone.
    #[schema(required = true)]
    limit: Option<u64>,
    /// The units that the counter has in addition to the limit: granted under any action, or carried
    /// over. Only in JSON, for a query that names a tenant, in rows of one counter in its current
    /// period.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) extra: Option<u64>,
    /// The counter of this total, if the total is of a single counter.
    #[serde(skip)]
    pub(super) counter: Option<Counted>,
}

/// A counter, and the start of the period in which it counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) key: u128,
    pub(super) period_start: Time,
    pub(super) quota: Quota,
}

impl Total {
    /// Makes a total from a row that adds up this many counters.
    pub(super) fn of(row: &UsageRow, counters: u64, live: &ActiveConfig) -> Total {
        let limit = limit(live, &row.allowance, &row.tenant, row.key);
        let counter = match limit {
            Some(Limit::Quota(quota)) if counters == 1 => Some(Counted {
                key: row.key,
                period_start: row.period.start,
                quota: quota.clone(),
            }),
            _ => None,
        };
        Total {
            tenant: row.tenant.to_string(),
            action: row.action.to_string(),
            rule: row.rule.to_string(),
            allowance: row.allowance.to_string(),
            period: period::name(&row.period, limit.and_then(calendar)),
            period_start: instant(row.period.start),
            period_end: instant(row.period.end),
            used: row.used,
            reserved: row.reserved,
            granted: row.granted,
            corrections: row.corrections,
            requests: row.requests,
            counters,
            limit: limit.map(|limit| match limit {
                Limit::Quota(quota) => quota.limit(),
                other => other.capacity(),
            }),
            extra: None,
            counter,
        }
    }
}

impl Line for Total {
    const COLUMNS: &'static str = "tenant,action,rule,allowance,period,periodStart,periodEnd,used,\
        reserved,granted,corrections,requests,counters,limit";
}

/// An entry of the ledger.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LedgerEntry)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryBody {
    /// The entry's position in the order in which entries were written.
    number: u64,
    /// The id of the entry. An entry is stored once, even if it is written several times.
    id: String,
    #[schema(format = "date-time")]
    at: String,
    tenant: String,
    action: String,
    rule: String,
    /// The budget that the rule draws on, or the rule.
    allowance: String,
    /// The counter: a hash of allowance and subject.
    counter: String,
    /// The period by name, such as `2026-07`.
    period: String,
    #[schema(format = "date-time")]
    period_start: String,
    #[schema(format = "date-time")]
    period_end: String,
    /// `use`, `reserve`, `settle`, `correction`, `grant` or `expiry`.
    kind: &'static str,
    /// The change of the usage. For a grant: the change of the limit.
    amount: i64,
    /// How many requests the entry stands for.
    requests: u32,
    /// The reservation that the entry is about.
    #[schema(required = true)]
    reservation: Option<String>,
    /// The author, if there is one.
    who: String,
    /// The reason, if one was given.
    why: String,
    /// The idempotency key, if one was given.
    #[schema(required = true)]
    idempotency_key: Option<String>,
}

impl EntryBody {
    pub(super) fn of(number: u64, entry: &Entry, calendar: Option<&Calendar>) -> EntryBody {
        EntryBody {
            number,
            id: entry.id.to_string(),
            at: instant(entry.at),
            tenant: entry.tenant.to_string(),
            action: entry.action.to_string(),
            rule: entry.rule.to_string(),
            allowance: entry.allowance.to_string(),
            counter: format!("{:032x}", entry.key),
            period: period::name(&entry.period, calendar),
            period_start: instant(entry.period.start),
            period_end: instant(entry.period.end),
            kind: entry.kind.name(),
            amount: entry.amount,
            requests: entry.count,
            reservation: entry.hold.as_ref().map(|hold| format!("{:032x}", hold.id)),
            who: entry.who.to_string(),
            why: entry.why.to_string(),
            idempotency_key: entry.idempotency_key.as_ref().map(ToString::to_string),
        }
    }
}

impl Line for EntryBody {
    const COLUMNS: &'static str = "number,id,at,tenant,action,rule,allowance,counter,period,\
        periodStart,periodEnd,kind,amount,requests,reservation,who,why,idempotencyKey";
}
