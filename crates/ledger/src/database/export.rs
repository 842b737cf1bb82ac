//! The entries themselves, page by page, in the order of their sequence numbers.
//!
//! The table `periods` says between which sequence numbers the entries of a period are. The export reads that
//! range in stretches, and skips entries of other periods. So it goes through its part of the ledger once, and
//! no single query takes long, however few entries of a stretch match.

use super::read::{Query, Reader, page};
use super::rows::EntryQuery;
use super::value::Row;
use crate::entry::{Entry, EntryId, HoldNote};
use crate::error::LedgerError;

/// How many sequence numbers one query goes through at most.
const STRETCH: i64 = 100_000;

impl Reader {
    pub(crate) async fn entries(
        &self,
        query: &EntryQuery,
    ) -> Result<Vec<(u64, Entry)>, LedgerError> {
        let Some((from, to)) = self.numbers(query).await? else {
            return Ok(Vec::new());
        };
        let after = i64::try_from(query.after).unwrap_or(i64::MAX);
        let (mut position, most) = (from.max(after), page(query.most));
        let mut entries = Vec::new();
        while position < to && entries.len() < most {
            let end = position.saturating_add(STRETCH).min(to);
            let left = most - entries.len();
            entries.extend(self.stretch(query, (position, end), left).await?);
            position = end;
        }
        Ok(entries)
    }

    /// Returns the range of sequence numbers of these periods: above the first number, up to the second.
    async fn numbers(&self, query: &EntryQuery) -> Result<Option<(i64, i64)>, LedgerError> {
        let sql = "SELECT min(from_seq), max(to_seq) FROM periods \
                   WHERE namespace = $1 AND period_start >= $2 AND period_start < $3 \
                   HAVING count(*) > 0";
        let select = Query::new(sql)
            .with(&query.namespace)
            .with(query.from)
            .with(query.to);
        let rows = self
            .fetch(select, |row| Ok((row.int(0)?, row.int(1)?)))
            .await?;
        Ok(rows.first().copied())
    }

    /// Returns the first matching entries with sequence numbers above `after` and up to `to`.
    async fn stretch(
        &self,
        query: &EntryQuery,
        (after, to): (i64, i64),
        most: usize,
    ) -> Result<Vec<(u64, Entry)>, LedgerError> {
        let sql = "SELECT seq, id, at, namespace, tenant, action, rule, allowance, key, \
                   period_start, period_end, kind, amount, count, hold, hold_tag, \
                   hold_expires_at, hold_record, who, why, idempotency_key FROM entries \
                   WHERE seq > $1 AND seq <= $2 \
                   AND namespace = $3 AND period_start >= $4 AND period_start < $5";
        let select = Query::new(sql)
            .with(after)
            .with(to)
            .with(&query.namespace)
            .with(query.from)
            .with(query.to)
            .and("tenant = ", query.tenant.as_ref());
        self.fetch(select.ordered("seq", most), entry).await
    }
}

fn entry(row: &Row) -> Result<(u64, Entry), sqlx::Error> {
    let hold = match row.bits_if_any(14)? {
        Some(id) => Some(HoldNote {
            id,
            tag: row.small(15)?,
            expires_at: row.time(16)?,
            record: row.text(17)?,
        }),
        None => None,
    };
    let entry = Entry {
        id: EntryId(row.bits(1)?),
        at: row.time(2)?,
        namespace: row.text(3)?,
        tenant: row.text(4)?,
        action: row.text(5)?,
        rule: row.text(6)?,
        allowance: row.text(7)?,
        key: row.bits(8)?,
        period: row.period(9)?,
        kind: row.kind(11)?,
        amount: row.int(12)?,
        count: row.small(13)?,
        hold,
        who: row.text(18)?,
        why: row.text(19)?,
        idempotency_key: row.text_if_any(20)?,
    };
    Ok((row.natural(0)?, entry))
}
