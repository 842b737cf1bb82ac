//! The queries of the ledger.
//!
//! Entries are listed page by page, in the order of their sequence numbers. For each period, the table
//! `periods` has a range of sequence numbers that contains the entries of the period. An export reads this
//! range once, in steps, and skips entries of other periods. No single query takes long, even if few entries
//! of a step match.

use std::fmt::Write;
use std::sync::Arc;

use tollgate_core::Time;

use super::rows::{
    Balance, BalanceCursor, BalanceRow, Ended, EntryQuery, EntrySummary, HoldRow, MOST_ROWS,
    PeriodBalance, TrailQuery, UsageQuery, UsageRow,
};
use super::value::{Row, Value};
use crate::entry::{Entry, EntryId, HoldNote, Note};
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::options::Database;

/// How many sequence numbers one query of an export covers at most.
const STRETCH: i64 = 100_000;

const HOLDS: &str = "SELECT key, hold, tag, namespace, tenant, action, rule, allowance, \
                     period_start, period_end, reserved, expires_at, record, ended_kind, \
                     ended_amount FROM holds";

/// Every query first waits until all entries of this process are in the database. Entries of other processes
/// may be missing until their flush interval is over. A query fails if the database does not take the pending
/// entries, or does not answer.
impl Ledger {
    /// Returns the balance of a counter in the period that starts at `period_start`.
    ///
    /// # Errors
    /// If the database does not take the pending entries, or does not answer.
    pub async fn balance(&self, key: u128, period_start: Time) -> Result<Balance, LedgerError> {
        let sql = "SELECT CAST(coalesce(sum(used), 0) AS BIGINT), \
                   CAST(coalesce(sum(granted), 0) AS BIGINT) \
                   FROM balances WHERE key = $1 AND period_start = $2";
        let select = Query::new(sql).with(key).with(period_start);
        let rows = self.fetch(select, |row| balance(row, 0)).await?;
        Ok(rows.first().copied().unwrap_or_default())
    }

    /// Returns the balances of a counter in its latest periods, the latest first.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn history(&self, key: u128, most: usize) -> Result<Vec<PeriodBalance>, LedgerError> {
        let sql = "SELECT period_start, max(period_end), CAST(sum(used) AS BIGINT), \
                   CAST(sum(granted) AS BIGINT), max(last_at) FROM balances WHERE key = $1 \
                   GROUP BY period_start ORDER BY period_start DESC LIMIT $2";
        let select = Query::new(sql).with(key).with(page(most));
        self.fetch(select, |row| {
            Ok(PeriodBalance {
                period: row.period(0)?,
                balance: balance(row, 2)?,
                last_at: row.time(4)?,
            })
        })
        .await
    }

    /// Returns a summary of the entry with this id, if it exists.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn summary(&self, id: EntryId) -> Result<Option<EntrySummary>, LedgerError> {
        let sql = "SELECT key, kind, amount, why FROM entries WHERE id = $1";
        let read = |row: &Row| {
            Ok(EntrySummary {
                key: row.bits(0)?,
                kind: row.kind(1)?,
                amount: row.int(2)?,
                why: row.text(3)?,
            })
        };
        Ok(self.fetch(Query::new(sql).with(id.0), read).await?.pop())
    }

    /// Lists the reservations of a counter that expire after `since`, open or ended, the latest first.
    /// `after` is the expiry and the id of the last row of the previous page.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn holds_of(
        &self,
        key: u128,
        since: Time,
        after: Option<(Time, u128)>,
        most: usize,
    ) -> Result<Vec<HoldRow>, LedgerError> {
        let sql = format!("{HOLDS} WHERE key = $1 AND expires_at > $2");
        let mut select = Query::new(&sql).with(key).with(since);
        if let Some((time, hold)) = after {
            select.sql.push_str(" AND (expires_at, hold) < ($3, $4)");
            select = select.with(time).with(hold);
        }
        self.fetch(select.ordered("expires_at DESC, hold DESC", most), hold_row)
            .await
    }

    /// Returns how much of a counter is reserved by open reservations, in periods that end after `after`.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn reserved(&self, key: u128, after: Time) -> Result<i64, LedgerError> {
        let sql = "SELECT CAST(coalesce(sum(reserved), 0) AS BIGINT) FROM holds \
                   WHERE key = $1 AND ended_kind IS NULL AND period_end > $2";
        let select = Query::new(sql).with(key).with(after);
        let rows = self.fetch(select, |row| row.int(0)).await?;
        Ok(rows.first().copied().unwrap_or_default())
    }

    /// Returns one reservation, with a row for each counter.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn hold(&self, id: u128) -> Result<Vec<HoldRow>, LedgerError> {
        let sql = format!("{HOLDS} WHERE hold = $1 ORDER BY key");
        self.fetch(Query::new(&sql).with(id), hold_row).await
    }

    /// Lists open reservations that expired before `before`, the oldest first.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn overdue(
        &self,
        namespace: &str,
        before: Time,
        most: usize,
    ) -> Result<Vec<HoldRow>, LedgerError> {
        let sql = format!(
            "{HOLDS} WHERE namespace = $1 AND ended_kind IS NULL AND expires_at < $2 \
             ORDER BY expires_at, hold, key LIMIT $3"
        );
        let select = Query::new(&sql).with(namespace).with(before);
        self.fetch(select.with(page(most)), hold_row).await
    }

    /// Lists usage, ordered by tenant, period, rule, action and counter.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, LedgerError> {
        let sql = "SELECT tenant, action, rule, allowance, key, period_start, period_end, used, \
                   (SELECT CAST(coalesce(sum(h.reserved), 0) AS BIGINT) FROM holds h \
                   WHERE h.key = b.key AND h.period_start = b.period_start AND h.tenant = b.tenant \
                   AND h.action = b.action AND h.rule = b.rule AND h.ended_kind IS NULL), \
                   granted, corrections, requests, entries FROM balances b \
                   WHERE namespace = $1 AND period_end > $2 AND period_start < $3";
        let order = "tenant, period_start, rule, action, key";
        let select = Query::new(sql)
            .with(&query.namespace)
            .with(query.from)
            .with(query.to)
            .and("tenant = ", query.tenant.as_ref())
            .and("action = ", query.action.as_ref())
            .and("rule = ", query.rule.as_ref())
            .beyond(order, query.after.as_ref().map(|it| &it.0[..]))
            .ordered(order, query.most);
        self.fetch(select, |row| {
            Ok(UsageRow {
                tenant: row.text(0)?,
                action: row.text(1)?,
                rule: row.text(2)?,
                allowance: row.text(3)?,
                key: row.bits(4)?,
                period: row.period(5)?,
                used: row.int(7)?,
                reserved: row.int(8)?,
                granted: row.int(9)?,
                corrections: row.int(10)?,
                requests: row.natural(11)?,
                entries: row.natural(12)?,
            })
        })
        .await
    }

    /// Lists all counters that have a period at `at`, page by page.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn balances(
        &self,
        namespace: &str,
        at: Time,
        after: Option<BalanceCursor>,
        most: usize,
    ) -> Result<Vec<BalanceRow>, LedgerError> {
        let select = balances(self.database(), (namespace, at), after.as_ref(), most);
        self.fetch(select, |row| {
            Ok(BalanceRow {
                key: row.bits(0)?,
                period: row.period(1)?,
                allowance: row.text(3)?,
                rule: row.text(4)?,
                tenant: row.text(5)?,
                balance: balance(row, 6)?,
            })
        })
        .await
    }

    /// Lists notes of all processes that share the database, the latest first.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn trail(&self, query: &TrailQuery) -> Result<Vec<Note>, LedgerError> {
        let sql = "SELECT id, at, namespace, who, what, text FROM audit \
                   WHERE namespace = $1 AND at >= $2";
        let select = Query::new(sql).with(&query.namespace).with(query.since);
        let mut select = select.and("who = ", query.who.as_ref());
        if let Some(what) = &query.what {
            let (is, begins) = (select.values.len() + 1, select.values.len() + 2);
            let _ = write!(
                select.sql,
                " AND (what = ${is} OR substr(what, 1, length(${begins})) = ${begins})"
            );
            select = select.with(what).with(&*format!("{what}."));
        }
        let select = select.ordered("at DESC, seq DESC", query.most);
        self.fetch(select, |row| {
            Ok(Note {
                id: EntryId(row.bits(0)?),
                at: row.time(1)?,
                namespace: row.text(2)?,
                who: row.text(3)?,
                what: row.text(4)?,
                text: row.text(5)?,
            })
        })
        .await
    }

    /// Lists entries with their sequence numbers, in the order in which they were written, page by page.
    ///
    /// # Errors
    /// The same as for [`Ledger::balance`].
    pub async fn entries(&self, query: &EntryQuery) -> Result<Vec<(u64, Entry)>, LedgerError> {
        let sql = "SELECT min(from_seq), max(to_seq) FROM periods \
                   WHERE namespace = $1 AND period_start >= $2 AND period_start < $3 \
                   HAVING count(*) > 0";
        let select = Query::new(sql)
            .with(&query.namespace)
            .with(query.from)
            .with(query.to);
        // The entries have sequence numbers above the first number, up to and including the second.
        let range = |row: &Row| Ok((row.int(0)?, row.int(1)?));
        let Some((from, to)) = self.fetch(select, range).await?.pop() else {
            return Ok(Vec::new());
        };
        let after = i64::try_from(query.after).unwrap_or(i64::MAX);
        let (mut position, most) = (from.max(after), page(query.most));
        let mut entries = Vec::new();
        while position < to && entries.len() < most {
            let end = position.saturating_add(STRETCH).min(to);
            let sql = "SELECT seq, id, at, namespace, tenant, action, rule, allowance, key, \
                       period_start, period_end, kind, amount, count, hold, hold_tag, \
                       hold_expires_at, hold_record, who, why, idempotency_key FROM entries \
                       WHERE seq > $1 AND seq <= $2 \
                       AND namespace = $3 AND period_start >= $4 AND period_start < $5";
            let select = Query::new(sql)
                .with(position)
                .with(end)
                .with(&query.namespace)
                .with(query.from)
                .with(query.to)
                .and("tenant = ", query.tenant.as_ref())
                .ordered("seq", most - entries.len());
            entries.extend(self.read(select, entry).await?);
            position = end;
        }
        Ok(entries)
    }
}

/// A query under construction.
pub(crate) struct Query {
    pub(crate) sql: String,
    pub(crate) values: Vec<Value>,
}

impl Query {
    pub(super) fn new(sql: &str) -> Query {
        Query {
            sql: sql.to_owned(),
            values: Vec::new(),
        }
    }

    /// Adds the value of the next placeholder.
    pub(super) fn with(mut self, value: impl Into<Value>) -> Query {
        self.values.push(value.into());
        self
    }

    /// Adds a condition, if there is a value for it.
    fn and(mut self, condition: &str, value: Option<&Arc<str>>) -> Query {
        if let Some(value) = value {
            self.values.push(value.into());
            let _ = write!(self.sql, " AND {condition}${}", self.values.len());
        }
        self
    }

    /// Selects only rows that come after the row with these values. Does nothing without values.
    fn beyond(mut self, columns: &str, values: Option<&[Value]>) -> Query {
        if let Some(values) = values {
            let first = self.values.len() + 1;
            let marks = (first..first + values.len()).map(|it| format!("${it}"));
            let marks = marks.collect::<Vec<_>>().join(", ");
            let _ = write!(self.sql, " AND ({columns}) > ({marks})");
            self.values.extend_from_slice(values);
        }
        self
    }

    fn ordered(mut self, columns: &str, most: usize) -> Query {
        self.values.push(page(most).into());
        let _ = write!(self.sql, " ORDER BY {columns} LIMIT ${}", self.values.len());
        self
    }
}

fn page(most: usize) -> usize {
    match most {
        0 => MOST_ROWS,
        most => most.min(MOST_ROWS),
    }
}

/// Selects a page of the counters that have a period at an instant. The order is that of the primary
/// key, so that each page continues where the last page ended.
fn balances(
    database: &Database,
    (namespace, at): (&str, Time),
    after: Option<&BalanceCursor>,
    most: usize,
) -> Query {
    let namespaces = match database {
        // The plus sign keeps SQLite from using its index on namespaces. With that index, SQLite would read
        // and sort all rows for every page. PostgreSQL needs no such hint, because it has statistics.
        Database::Sqlite(_) => "+namespace",
        Database::Postgres(_) => "namespace",
    };
    let sql = format!(
        "SELECT key, period_start, max(period_end), min(allowance), min(rule), \
         CASE WHEN min(tenant) = max(tenant) THEN min(tenant) ELSE '' END, \
         CAST(sum(used) AS BIGINT), CAST(sum(granted) AS BIGINT) FROM balances \
         WHERE {namespaces} = $1 AND period_start <= $2 AND period_end > $3"
    );
    let order = "key, period_start";
    let select = Query::new(&sql).with(namespace).with(at).with(at);
    let mut select = select.beyond(order, after.map(|it| &it.0[..]));
    select.sql.push_str(" GROUP BY key, period_start");
    select.ordered(order, most)
}

fn balance(row: &Row, column: usize) -> Result<Balance, sqlx::Error> {
    Ok(Balance {
        used: row.int(column)?,
        granted: row.int(column + 1)?,
    })
}

fn hold_row(row: &Row) -> Result<HoldRow, sqlx::Error> {
    let ended = match row.text_if_any(13)? {
        Some(_) => Some(Ended {
            kind: row.kind(13)?,
            amount: row.int(14)?,
        }),
        None => None,
    };
    Ok(HoldRow {
        key: row.bits(0)?,
        hold: row.bits(1)?,
        tag: row.small(2)?,
        namespace: row.text(3)?,
        tenant: row.text(4)?,
        action: row.text(5)?,
        rule: row.text(6)?,
        allowance: row.text(7)?,
        period: row.period(8)?,
        reserved: row.int(10)?,
        expires_at: row.time(11)?,
        record: row.text(12)?,
        ended,
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Session, readers};
    use crate::options::Options;

    #[tokio::test]
    async fn pages_of_balances_use_the_primary_key() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(Database::Sqlite(directory.path().join("ledger.db")));
        let mut session = Session::new(Arc::new(options.clone()), None);
        session.open().await.unwrap();
        let readers = readers(&options).unwrap();
        let cursor = BalanceCursor([7_u128.into(), Time::from_micros(1).into()]);
        let search = "SEARCH balances USING PRIMARY KEY ((key,period_start)>(?,?))";
        for (after, expected) in [(None, "SCAN balances"), (Some(&cursor), search)] {
            let at = Time::from_micros(5);
            let select = balances(&options.database, ("test", at), after, 500);
            let sql = format!("EXPLAIN QUERY PLAN {}", select.sql);
            let plan = readers.fetch(sql.into(), select.values).await.unwrap();
            let plan = plan.iter().map(|row| row.text(3).unwrap().to_string());
            assert_eq!(plan.collect::<Vec<_>>(), [expected]);
        }
        readers.close().await;
        session.close().await;
    }
}
