//! The ledger at the admin door: its status, usage, corrections, grants, and the comparison with
//! the counters.
//!
//! * `query`: the parameters of a query.
//! * `quotas`: what is used and left of each allowance, and its history.
//! * `rows`: totals and entries as JSON. `csv`: comma-separated values. `pages`: exports, page by page.
//! * `post`: changes by operators.

mod csv;
pub(super) mod openapi;
mod pages;
mod post;
mod query;
mod quotas;
mod rows;

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use http::HeaderMap;
use serde::Serialize;
use tollgate::{Accounts, PostError};
use tollgate_ledger::Database;
use utoipa::ToSchema;

use self::pages::{Entries, Pages, Totals};
pub(super) use self::post::{correct, grant, reconcile};
use self::query::{ENTRIES, Format, USAGE, Wanted};
pub(super) use self::quotas::{burndown, quotas};
use self::rows::{EntryBody, Total};
use super::{Admin, Answer};
use crate::respond::{self, RequestError};

/// The most counters in an answer that are shown with the units that they have in addition to their limits.
const MOST_EXTRA: usize = 256;

/// Returns the ledger of the engine, or an error if the config names none.
fn accounts(admin: &Admin) -> Result<Accounts<'_>, RequestError> {
    let accounts = admin.control.engine().accounts();
    accounts.ok_or(RequestError::NoLedger)
}

/// The status of the ledger.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LedgerStatus {
    /// `sqlite` or `postgres`.
    database: &'static str,
    /// Where the ledger is, without user and password.
    place: String,
    /// Whether the last attempt to reach the ledger succeeded.
    is_connected: bool,
    /// How far the ledger is behind; 0 if everything is written.
    lag_millis: u64,
    /// Entries that wait in memory.
    queued_entries: u64,
    /// Entries that wait in spill files.
    spilled_entries: u64,
    /// The size of the spill files.
    spilled_bytes: u64,
    /// Entries that were written since the start.
    written_entries: u64,
    /// Transactions that failed since the start.
    failures: u64,
    /// The last error, unless a later attempt succeeded.
    #[schema(required = true)]
    last_error: Option<String>,
}

pub(super) async fn status(State(admin): State<Arc<Admin>>) -> Answer {
    let accounts = accounts(&admin)?;
    let ledger = accounts.ledger();
    let status = ledger.status();
    let lag = status.lag(admin.control.now());
    Ok(respond::report(&LedgerStatus {
        database: match ledger.database() {
            Database::Sqlite(_) => "sqlite",
            Database::Postgres(_) => "postgres",
        },
        place: ledger.database().location(),
        is_connected: status.is_connected,
        lag_millis: lag.map_or(0, tollgate::Span::as_millis_ceil),
        queued_entries: status.queued as u64,
        spilled_entries: status.spilled,
        spilled_bytes: status.spilled_bytes,
        written_entries: status.written,
        failures: status.failures,
        last_error: status.last_error.map(|error| error.to_string()),
    }))
}

/// Usage totals.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LedgerUsages {
    /// The totals, by tenant, period, rule and action.
    usage: Vec<Total>,
    /// Whether there are more totals; `format=jsonl` and `format=csv` return all.
    is_cut: bool,
}

pub(super) async fn usage(
    State(admin): State<Arc<Admin>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let wanted = Wanted::read(query.as_deref(), &USAGE, admin.control.now())?;
    accounts(&admin)?;
    let permit = admin.ledger_reads.clone().try_acquire_owned();
    let permit = permit.map_err(|_| RequestError::LedgerBusy)?;
    let mut totals = Totals::new(&wanted);
    let format = wanted.format(&headers);
    if format != Format::Json {
        return pages::stream(admin, totals, format, permit).await;
    }
    let mut usage = Vec::new();
    while usage.len() <= wanted.limit
        && let Some(page) = totals.next(&admin).await?
    {
        usage.extend(page);
    }
    let is_cut = usage.len() > wanted.limit;
    usage.truncate(wanted.limit);
    if wanted.tenant.is_some() {
        add_extra(&admin, &mut usage).await?;
    }
    Ok(respond::report(&LedgerUsages { usage, is_cut }))
}

/// Completes each total that is of one counter in its current period: adds the units that the counter has in
/// addition to its limit. Reads at most [`MOST_EXTRA`] counters.
async fn add_extra(admin: &Admin, usage: &mut [Total]) -> Result<(), RequestError> {
    let (accounts, now) = (accounts(admin)?, admin.control.now());
    let mut known: HashMap<u128, u64> = HashMap::new();
    for total in usage {
        let Some(it) = &total.counter else { continue };
        if it.quota.period_at(now).start != it.period_start {
            continue;
        }
        if !known.contains_key(&it.key) {
            if known.len() == MOST_EXTRA {
                continue;
            }
            let extra = accounts.extra(it.key, &it.quota, now).await?;
            known.insert(it.key, extra);
        }
        total.extra = known.get(&it.key).copied();
    }
    Ok(())
}

/// A page of entries.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LedgerEntries {
    /// The entries, in the order in which they were written.
    entries: Vec<EntryBody>,
    /// The value of `after` for the next page; null on the last page.
    #[schema(required = true)]
    next: Option<u64>,
}

pub(super) async fn entries(
    State(admin): State<Arc<Admin>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let wanted = Wanted::read(query.as_deref(), &ENTRIES, admin.control.now())?;
    accounts(&admin)?;
    let mut found = Entries::new(&wanted);
    let format = wanted.format(&headers);
    if format != Format::Json {
        let permit = admin.ledger_reads.clone().try_acquire_owned();
        let permit = permit.map_err(|_| RequestError::LedgerBusy)?;
        return pages::stream(admin, found, format, permit).await;
    }
    let entries = found.next(&admin).await?.unwrap_or_default();
    let next = found.reached();
    Ok(respond::report(&LedgerEntries { entries, next }))
}

impl From<PostError> for RequestError {
    fn from(error: PostError) -> RequestError {
        match error {
            PostError::NoLedger => RequestError::NoLedger,
            PostError::NoSuchCounter { .. } => RequestError::NoSuchCounter(error),
            PostError::Conflict { .. } => RequestError::PostedOtherwise(error),
            PostError::NoReason | PostError::Amount => RequestError::BadPosting(error),
            PostError::Store(error) => {
                tracing::warn!(target: "tollgate::admin", %error, "a request about the ledger failed");
                RequestError::Ledger(error)
            }
        }
    }
}
