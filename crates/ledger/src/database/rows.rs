//! What is asked of the books, and what they answer.

use std::sync::Arc;

use tollgate_core::Time;

use crate::entry::{Kind, Period};

/// The most rows of one answer. Whoever wants more asks for the next page.
pub const MOST_ROWS: usize = 10_000;

/// What the books say of one counter in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// What is used, or set aside.
    pub used: i64,
    /// What was granted beyond the limit.
    pub granted: i64,
}

/// What the books say of a counter in one of its periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodBalance {
    /// The period.
    pub period: Period,
    /// What is used and granted.
    pub balance: Balance,
    /// The time of the latest entry.
    pub last_at: Time,
}

/// What an entry is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrySummary {
    /// The counter.
    pub key: u128,
    /// What kind it is.
    pub kind: Kind,
    /// As in [`Entry`](crate::Entry).
    pub amount: i64,
    /// The reason.
    pub why: Arc<str>,
}

/// A reservation, as far as one counter is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRow {
    /// The counter.
    pub key: u128,
    /// The reservation.
    pub hold: u128,
    /// What its maker gave it along.
    pub tag: u32,
    /// The deployment.
    pub namespace: Arc<str>,
    /// Whose it is.
    pub tenant: Arc<str>,
    /// What for.
    pub action: Arc<str>,
    /// The rule that asked for it.
    pub rule: Arc<str>,
    /// Whose counter it is.
    pub allowance: Arc<str>,
    /// The period that it counts in.
    pub period: Period,
    /// How much was set aside.
    pub reserved: i64,
    /// Until when, the latest that was said.
    pub expires_at: Time,
    /// Text of its maker: of its end, once it has ended.
    pub record: Arc<str>,
    /// How it ended, if it has.
    pub ended: Option<Ended>,
}

/// How a reservation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// [`Kind::Settle`] or [`Kind::Expiry`].
    pub kind: Kind,
    /// What that added to what was set aside; usually below zero.
    pub amount: i64,
}

/// Which usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// Of this deployment.
    pub namespace: Arc<str>,
    /// Of this tenant only.
    pub tenant: Option<Arc<str>>,
    /// Of this action only.
    pub action: Option<Arc<str>>,
    /// Of this rule only.
    pub rule: Option<Arc<str>>,
    /// In periods that end after this.
    pub from: Time,
    /// In periods that start before this.
    pub to: Time,
    /// Behind this row: the next page.
    pub after: Option<UsageCursor>,
    /// This many rows at most; 0 for as many as one answer may have, [`MOST_ROWS`].
    pub most: usize,
}

/// What a tenant has used by an action under a rule in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    /// Whose.
    pub tenant: Arc<str>,
    /// What was done.
    pub action: Arc<str>,
    /// Under which rule.
    pub rule: Arc<str>,
    /// Whose counter it is.
    pub allowance: Arc<str>,
    /// The counter.
    pub key: u128,
    /// When.
    pub period: Period,
    /// What is used, or set aside.
    pub used: i64,
    /// How much of it is set aside by reservations that have not ended.
    pub reserved: i64,
    /// What was granted beyond the limit.
    pub granted: i64,
    /// How much of what is used is corrections.
    pub corrections: i64,
    /// How many requests.
    pub requests: u64,
    /// How many entries.
    pub entries: u64,
}

/// A place in the order of usage rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageCursor {
    pub(super) tenant: Arc<str>,
    pub(super) start: Time,
    pub(super) rule: Arc<str>,
    pub(super) action: Arc<str>,
    pub(super) key: u128,
}

impl UsageRow {
    /// Its place, to go on from.
    #[must_use]
    pub fn cursor(&self) -> UsageCursor {
        UsageCursor {
            tenant: Arc::clone(&self.tenant),
            start: self.period.start,
            rule: Arc::clone(&self.rule),
            action: Arc::clone(&self.action),
            key: self.key,
        }
    }
}

/// What the books say of one counter, to be compared with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceRow {
    /// The counter.
    pub key: u128,
    /// Its period.
    pub period: Period,
    /// Whose counter it is.
    pub allowance: Arc<str>,
    /// The rule that draws on it; one of them, if several do.
    pub rule: Arc<str>,
    /// The tenant; empty if several share it.
    pub tenant: Arc<str>,
    /// What is used and granted.
    pub balance: Balance,
}

impl BalanceRow {
    /// Its place, to go on from.
    #[must_use]
    pub fn cursor(&self) -> BalanceCursor {
        BalanceCursor {
            key: self.key,
            start: self.period.start,
        }
    }
}

/// A place in the order of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceCursor {
    pub(super) key: u128,
    pub(super) start: Time,
}

/// Which entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryQuery {
    /// Of this deployment.
    pub namespace: Arc<str>,
    /// Of this tenant only.
    pub tenant: Option<Arc<str>>,
    /// Of periods that start at this or later. A correction of last month is in last month's, whenever it
    /// was made, and no entry is in two months'.
    pub from: Time,
    /// Of periods that start before this.
    pub to: Time,
    /// Behind the entry with this number: the next page.
    pub after: u64,
    /// This many at most; 0 for as many as one answer may have, [`MOST_ROWS`].
    pub most: usize,
}
