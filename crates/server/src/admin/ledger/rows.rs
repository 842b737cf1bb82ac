//! Rows of the ledger for operators: totals for bills, and the entries behind them.

use serde::Serialize;
use tollgate::ActiveConfig;
use tollgate_core::{Calendar, Limit};
use tollgate_ledger::{Entry, UsageRow};
use utoipa::ToSchema;

use super::csv::Csv;
use crate::audit::instant;
use crate::period::{self, calendar, limit};

/// A line of an export.
pub(super) trait Line: Serialize {
    /// The names of the columns.
    const COLUMNS: &'static [&'static str];

    /// The row's cells.
    fn write(&self, csv: &mut Csv);
}

/// What a tenant has used by an action under a rule in a period.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LedgerUsage)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Total {
    /// Empty if requests named no tenant.
    pub(super) tenant: String,
    /// Empty if requests named no action.
    pub(super) action: String,
    pub(super) rule: String,
    /// The budget that the rule draws on, or the rule.
    pub(super) allowance: String,
    /// The period by name, such as `2026-07`.
    #[schema(example = "2026-07")]
    pub(super) period: String,
    #[schema(format = "date-time")]
    pub(super) period_start: String,
    /// The first instant after it.
    #[schema(format = "date-time")]
    pub(super) period_end: String,
    /// The used and reserved units.
    pub(super) used: i64,
    /// How much of it is held by open reservations.
    pub(super) reserved: i64,
    /// The units granted in addition to the limit.
    pub(super) granted: i64,
    /// How much of what is used comes from corrections.
    pub(super) corrections: i64,
    /// How many requests.
    pub(super) requests: u64,
    /// How many counters were added up: subjects of the rule.
    pub(super) counters: u64,
    /// The limit in force of each counter; null if the rule is gone.
    #[schema(required = true)]
    pub(super) limit: Option<u64>,
}

impl Total {
    pub(super) fn of(row: &UsageRow, live: &ActiveConfig) -> Total {
        let limit = limit(live, &row.allowance, &row.tenant, row.key);
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
            counters: 1,
            limit: limit.map(|limit| match limit {
                Limit::Quota(quota) => quota.limit(),
                other => other.capacity(),
            }),
        }
    }

    /// Adds another counter of the same row. Returns the counter if it belongs to another row.
    pub(super) fn add(&mut self, other: Total) -> Option<Total> {
        let of = |it: &Total| {
            let (tenant, action, rule) = (it.tenant.clone(), it.action.clone(), it.rule.clone());
            (tenant, action, rule, it.period_start.clone())
        };
        if of(self) != of(&other) {
            return Some(other);
        }
        for (sum, more) in [
            (&mut self.used, other.used),
            (&mut self.reserved, other.reserved),
            (&mut self.granted, other.granted),
            (&mut self.corrections, other.corrections),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.requests = self.requests.saturating_add(other.requests);
        self.counters = self.counters.saturating_add(other.counters);
        None
    }
}

impl Line for Total {
    const COLUMNS: &'static [&'static str] = &[
        "tenant",
        "action",
        "rule",
        "allowance",
        "period",
        "period_start",
        "period_end",
        "used",
        "reserved",
        "granted",
        "corrections",
        "requests",
        "counters",
        "limit",
    ];

    fn write(&self, csv: &mut Csv) {
        for text in [&self.tenant, &self.action, &self.rule, &self.allowance] {
            csv.text(text);
        }
        for word in [&self.period, &self.period_start, &self.period_end] {
            csv.number(word);
        }
        for amount in [self.used, self.reserved, self.granted, self.corrections] {
            csv.number(amount);
        }
        csv.number(self.requests);
        csv.number(self.counters);
        csv.number_if_any(self.limit);
        csv.end();
    }
}

/// An entry of the ledger.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LedgerEntry)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryBody {
    /// The entry's position in the order in which entries were written.
    pub(super) number: u64,
    /// The id of the entry, which is stored once however often it was written.
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
    /// Added to what is used. For a grant: added to what may be used.
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
    const COLUMNS: &'static [&'static str] = &[
        "number",
        "id",
        "at",
        "tenant",
        "action",
        "rule",
        "allowance",
        "counter",
        "period",
        "period_start",
        "period_end",
        "kind",
        "amount",
        "requests",
        "reservation",
        "who",
        "why",
        "idempotency_key",
    ];

    fn write(&self, csv: &mut Csv) {
        csv.number(self.number);
        csv.number(&self.id);
        csv.number(&self.at);
        for text in [&self.tenant, &self.action, &self.rule, &self.allowance] {
            csv.text(text);
        }
        for word in [
            &self.counter,
            &self.period,
            &self.period_start,
            &self.period_end,
        ] {
            csv.number(word);
        }
        csv.number(self.kind);
        csv.number(self.amount);
        csv.number(self.requests);
        csv.number_if_any(self.reservation.as_ref());
        csv.text(&self.who);
        csv.text(&self.why);
        csv.text(self.idempotency_key.as_deref().unwrap_or_default());
        csv.end();
    }
}
