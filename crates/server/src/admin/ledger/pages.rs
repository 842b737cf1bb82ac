//! Exports of the ledger, page by page: one page in memory at a time, however much there is.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;
use tollgate_ledger::{EntryQuery, UsageQuery};

use super::accounts;
use super::csv::Csv;
use super::query::{Format, MOST_ROWS, Wanted};
use super::rows::{EntryBody, Line, Total};
use crate::admin::Admin;
use crate::period::{Named, calendar, limit};
use crate::respond::{self, RequestError};

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
    /// The last row: the next page may add to it.
    open: Option<Total>,
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
        let live = admin.engine().active();
        let mut page = Vec::new();
        for row in &rows {
            let limit = limit(&live, &row.allowance, &row.tenant, row.key);
            if !self.period.has(&row.period, limit.and_then(calendar)) {
                continue;
            }
            let total = Total::of(row, &live);
            let other = match &mut self.open {
                Some(open) => open.add(total),
                None => Some(total),
            };
            if let Some(other) = other {
                page.extend(self.open.replace(other));
            }
        }
        match rows.last() {
            Some(last) => self.query.after = Some(last.cursor()),
            None => {
                self.is_over = true;
                page.extend(self.open.take());
            }
        }
        Ok(Some(page))
    }
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

    /// The entry to continue after; `None` at the end.
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
        let live = admin.engine().active();
        let entries = entries.iter().filter_map(|(number, entry)| {
            let limit = limit(&live, &entry.allowance, &entry.tenant, entry.key);
            let calendar = limit.and_then(calendar);
            let is_of_it = self.period.has(&entry.period, calendar);
            is_of_it.then(|| EntryBody::of(*number, entry, calendar))
        });
        Ok(Some(entries.collect()))
    }
}

/// An export that is being sent.
struct Export<P> {
    admin: Arc<Admin>,
    pages: P,
    format: Format,
    /// What is sent before anything is read.
    first: Option<Bytes>,
    /// The permit of this export, held until its end.
    _place: OwnedSemaphorePermit,
}

/// Reads all pages while they are sent. The response breaks off if the ledger fails on the way, so
/// that a part is never taken for the whole.
pub(super) async fn stream<P: Pages>(
    admin: Arc<Admin>,
    mut pages: P,
    format: Format,
    place: OwnedSemaphorePermit,
) -> Result<Response, RequestError> {
    // If the first page fails, the client gets an error.
    let page = pages.next(&admin).await?.unwrap_or_default();
    let first = written(&page, format, true).map_err(|_| RequestError::Internal)?;
    let export = Export {
        admin,
        pages,
        format,
        first: Some(first),
        _place: place,
    };
    let body = stream::try_unfold(export, |mut export| async move {
        if let Some(first) = export.first.take() {
            return Ok(Some((first, export)));
        }
        let page = export.pages.next(&export.admin).await.map_err(|error| {
            tracing::error!(target: "tollgate::admin", %error, "an export breaks off because the ledger failed");
            io::Error::other(error.to_string())
        })?;
        match page {
            Some(page) => Ok(Some((written(&page, export.format, false)?, export))),
            None => Ok::<_, io::Error>(None),
        }
    });
    let body = Body::from_stream(body);
    Ok(match format {
        Format::Csv => respond::csv(body),
        Format::Json | Format::Lines => respond::lines(body),
    })
}

fn written<L: Line>(page: &[L], format: Format, is_first: bool) -> io::Result<Bytes> {
    if format == Format::Csv {
        let mut csv = Csv::default();
        if is_first {
            csv.header(L::COLUMNS);
        }
        for line in page {
            line.write(&mut csv);
        }
        return Ok(csv.into_text().into());
    }
    let mut lines = Vec::new();
    for line in page {
        serde_json::to_writer(&mut lines, line)?;
        lines.push(b'\n');
    }
    Ok(lines.into())
}
