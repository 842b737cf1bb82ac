//! The types of queries and their answers.

use std::sync::Arc;

use tollgate_core::Time;

use super::value::Value;
use crate::entry::{Kind, Period};

/// The most rows of one answer. To get the next page, use the cursor of the last row.
pub const MOST_ROWS: usize = 10_000;

/// The sums of one counter in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Usage, including reservations.
    pub used: i64,
    /// Grants beyond the limit.
    pub granted: i64,
}

/// The sums of a counter in one of its periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodBalance {
    /// The period.
    pub period: Period,
    /// The sums.
    pub balance: Balance,
    /// The time of the latest entry.
    pub last_at: Time,
}

/// The main fields of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrySummary {
    /// The counter.
    pub key: u128,
    /// The kind of the entry.
    pub kind: Kind,
    /// The amount, as in [`Entry`](crate::Entry).
    pub amount: i64,
    /// The reason.
    pub why: Arc<str>,
}

/// The part of a reservation that concerns one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRow {
    /// The counter.
    pub key: u128,
    /// The id of the reservation.
    pub hold: u128,
    /// The number that the caller gave the reservation.
    pub tag: u32,
    /// The deployment.
    pub namespace: Arc<str>,
    /// The tenant.
    pub tenant: Arc<str>,
    /// The action.
    pub action: Arc<str>,
    /// The rule that charged the counter.
    pub rule: Arc<str>,
    /// The owner of the counter: a rule or a budget.
    pub allowance: Arc<str>,
    /// The period that the reservation counts in.
    pub period: Period,
    /// How much was reserved.
    pub reserved: i64,
    /// When the reservation expires, including extensions.
    pub expires_at: Time,
    /// The text that the caller gave when the reservation started, or when it ended.
    pub record: Arc<str>,
    /// How the reservation ended; `None` if it is open.
    pub ended: Option<Ended>,
}

/// How a reservation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// [`Kind::Settle`] or [`Kind::Expiry`].
    pub kind: Kind,
    /// By how much the end changed the usage; usually negative.
    pub amount: i64,
}

/// Which usage to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// The deployment.
    pub namespace: Arc<str>,
    /// Only this tenant.
    pub tenant: Option<Arc<str>>,
    /// Only this action.
    pub action: Option<Arc<str>>,
    /// Only this rule.
    pub rule: Option<Arc<str>>,
    /// Only periods that end after this.
    pub from: Time,
    /// Only periods that start before this.
    pub to: Time,
    /// Only rows after this one: the next page.
    pub after: Option<UsageCursor>,
    /// At most this many rows; 0 for the maximum, [`MOST_ROWS`].
    pub most: usize,
}

/// The usage of a tenant by an action under a rule in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The action.
    pub action: Arc<str>,
    /// The rule.
    pub rule: Arc<str>,
    /// The owner of the counter: a rule or a budget.
    pub allowance: Arc<str>,
    /// The counter.
    pub key: u128,
    /// The period.
    pub period: Period,
    /// Usage, including reservations.
    pub used: i64,
    /// How much of the usage is open reservations.
    pub reserved: i64,
    /// Grants beyond the limit.
    pub granted: i64,
    /// How much of the usage is corrections.
    pub corrections: i64,
    /// The number of requests.
    pub requests: u64,
    /// The number of entries.
    pub entries: u64,
}

/// A position in the order of usage rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageCursor(pub(super) [Value; 5]);

impl UsageRow {
    /// Returns the position of this row, to continue from.
    #[must_use]
    pub fn cursor(&self) -> UsageCursor {
        UsageCursor([
            (&self.tenant).into(),
            self.period.start.into(),
            (&self.rule).into(),
            (&self.action).into(),
            self.key.into(),
        ])
    }
}

/// The sums of one counter, for comparison with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceRow {
    /// The counter.
    pub key: u128,
    /// The period of the balance.
    pub period: Period,
    /// The owner of the counter: a rule or a budget.
    pub allowance: Arc<str>,
    /// A rule that charges the counter. If several rules do, this is one of them.
    pub rule: Arc<str>,
    /// The tenant; empty if several share the counter.
    pub tenant: Arc<str>,
    /// The sums.
    pub balance: Balance,
}

impl BalanceRow {
    /// Returns the position of this row, to continue from.
    #[must_use]
    pub fn cursor(&self) -> BalanceCursor {
        BalanceCursor([self.key.into(), self.period.start.into()])
    }
}

/// A position in the order of counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceCursor(pub(super) [Value; 2]);

/// Which entries to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryQuery {
    /// The deployment.
    pub namespace: Arc<str>,
    /// Only this tenant.
    pub tenant: Option<Arc<str>>,
    /// Only periods that start at this time or later. Every entry belongs to one period: a correction
    /// of last month counts in last month, even if it was made this month.
    pub from: Time,
    /// Only periods that start before this.
    pub to: Time,
    /// Only entries after the one with this sequence number: the next page.
    pub after: u64,
    /// At most this many; 0 for the maximum, [`MOST_ROWS`].
    pub most: usize,
}

/// Which notes to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrailQuery {
    /// The deployment.
    pub namespace: Arc<str>,
    /// Only changes by this person or program.
    pub who: Option<Arc<str>>,
    /// Only changes of this kind, or of kinds that start with this text and a dot.
    pub what: Option<Arc<str>>,
    /// Only changes at this time or later.
    pub since: Time,
    /// At most this many; 0 for the maximum of one answer, [`MOST_ROWS`].
    pub most: usize,
}
