//! Exports of the ledger. An export is read page by page, with only one page in memory at a time.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use futures_util::{StreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tollgate_ledger::{EntryQuery, UsageQuery, UsageRow};

use super::query::{Format, MOST_ROWS, Wanted};
use super::rows::{EntryBody, Line, Total};
use super::{accounts, csv};
use crate::admin::{Admin, Answer};
use crate::period::{Named, calendar, limit};
use crate::respond::{self, RequestError};
use crate::usage::add;

/// A source that is read page by page.
pub(super) trait Pages: Send + 'static {
    type Row: Line + Send;

    /// Returns the next page; `None` after the last. A page may be empty.
    fn next(
        &mut self,
        admin: &Admin,
    ) -> impl Future<Output = Result<Option<Vec<Self::Row>>, RequestError>> + Send;
}

/// Usage, with the counters of a rule added up.
pub(super) struct Totals {
    query: UsageQuery,
    period: Named,
    /// The last row, with the number of its counters. The next page may add counters to this row.
    open: Option<(UsageRow, u64)>,
    is_over: bool,
}

impl Totals {
    pub(super) fn new(wanted: &Wanted) -> Totals {
        let (from, to) = wanted.period.lasts();
        Totals {
            query: UsageQuery {
                tenant: wanted.tenant.clone(),
                action: wanted.action.clone(),
                rule: wanted.rule.clone(),
                from,
                to,
                ..UsageQuery::default()
            },
            period: wanted.period.clone(),
            open: None,
            is_over: false,
        }
    }
}

impl Pages for Totals {
    type Row = Total;

    async fn next(&mut self, admin: &Admin) -> Result<Option<Vec<Total>>, RequestError> {
        if self.is_over {
            return Ok(None);
        }
        let rows = accounts(admin)?.usage(&self.query).await?;
        let live = admin.control.engine().active();
        let total = |(row, counters)| Total::of(&row, counters, &live);
        let mut page = Vec::new();
        let last = rows.last().map(UsageRow::cursor);
        for row in rows {
            let limit = limit(&live, &row.allowance, &row.tenant, row.key);
            if !self.period.has(&row.period, limit.and_then(calendar)) {
                continue;
            }
            match &mut self.open {
                Some((open, counters)) if is_same_total(open, &row) => {
                    add(open, &row);
                    *counters += 1;
                }
                open => page.extend(open.replace((row, 1)).map(total)),
            }
        }
        if last.is_none() {
            self.is_over = true;
            page.extend(self.open.take().map(total));
        }
        self.query.after = last;
        Ok(Some(page))
    }
}

/// Returns whether two counters are added up in one row.
fn is_same_total(one: &UsageRow, other: &UsageRow) -> bool {
    (&one.tenant, &one.action, &one.rule) == (&other.tenant, &other.action, &other.rule)
        && one.period.start == other.period.start
}

/// Entries, in the order in which they were written.
pub(super) struct Entries {
    query: EntryQuery,
    period: Named,
    is_over: bool,
}

impl Entries {
    pub(super) fn new(wanted: &Wanted) -> Entries {
        let (from, to) = wanted.period.starts();
        Entries {
            query: EntryQuery {
                tenant: wanted.tenant.clone(),
                from,
                to,
                after: wanted.after,
                most: wanted.limit,
                ..EntryQuery::default()
            },
            period: wanted.period.clone(),
            is_over: false,
        }
    }

    /// Returns the number of the last entry that was read; `None` if there are no more entries.
    pub(super) fn reached(&self) -> Option<u64> {
        (!self.is_over).then_some(self.query.after)
    }
}

impl Pages for Entries {
    type Row = EntryBody;

    async fn next(&mut self, admin: &Admin) -> Result<Option<Vec<EntryBody>>, RequestError> {
        if self.is_over {
            return Ok(None);
        }
        let entries = accounts(admin)?.entries(&self.query).await?;
        self.is_over = entries.len() < self.query.most.clamp(1, MOST_ROWS);
        if let Some((last, _)) = entries.last() {
            self.query.after = *last;
        }
        let live = admin.control.engine().active();
        let entries = entries.iter().filter_map(|(number, entry)| {
            let limit = limit(&live, &entry.allowance, &entry.tenant, entry.key);
            let calendar = limit.and_then(calendar);
            let is_of_it = self.period.has(&entry.period, calendar);
            is_of_it.then(|| EntryBody::of(*number, entry, calendar))
        });
        Ok(Some(entries.collect()))
    }
}

/// Sends all pages, and reads each page when its turn comes. If the ledger fails in between, the
/// response breaks off, so that no client takes a part for the whole export. The export holds its
/// permit until the end.
pub(super) async fn stream<P: Pages>(
    admin: Arc<Admin>,
    mut pages: P,
    format: Format,
    permit: OwnedSemaphorePermit,
) -> Answer {
    // If the first page fails, the client gets an error.
    let page = pages.next(&admin).await?.unwrap_or_default();
    let first = written(&page, format, true).map_err(|_| RequestError::Internal)?;
    let start = (admin, pages, permit);
    let rest = stream::try_unfold(start, move |(admin, mut pages, permit)| async move {
        let page = pages.next(&admin).await.map_err(|error| {
            tracing::error!(target: "tollgate::admin", %error, "an export stopped early because the ledger failed");
            io::Error::other(error.to_string())
        })?;
        let Some(page) = page else { return Ok(None) };
        let page = written(&page, format, false)?;
        Ok(Some((page, (admin, pages, permit))))
    });
    let first = stream::iter([Ok::<_, io::Error>(first)]);
    let body = Body::from_stream(first.chain(rest));
    Ok(match format {
        Format::Csv => respond::csv(body),
        Format::Json | Format::Lines => respond::lines(body),
    })
}

fn written<L: Line>(page: &[L], format: Format, is_first: bool) -> serde_json::Result<Bytes> {
    if format == Format::Csv {
        let rows: Result<Vec<_>, _> = page.iter().map(serde_json::to_value).collect();
        return Ok(csv::lines(L::COLUMNS, is_first, &rows?).into());
    }
    let mut lines = Vec::new();
    for line in page {
        serde_json::to_writer(&mut lines, line)?;
        lines.push(b'\n');
    }
    Ok(lines.into())
}
