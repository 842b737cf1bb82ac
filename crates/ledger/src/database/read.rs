//! The queries of the ledger, except for the entries themselves: see `export`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tollgate_core::Time;

use super::connection::{Dialect, Readers, query_error};
use super::rows::{
    Balance, BalanceCursor, BalanceRow, Ended, EntrySummary, HoldRow, MOST_ROWS, PeriodBalance,
    UsageQuery, UsageRow,
};
use super::value::{Row, Value};
use crate::entry::EntryId;
use crate::error::LedgerError;
use crate::note::{Note, TrailQuery};

/// Runs queries.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    pub(crate) readers: Arc<dyn Readers>,
    pub(crate) location: Arc<str>,
    pub(crate) limit: Duration,
}

impl Reader {
    pub(crate) async fn balance(&self, key: u128, start: Time) -> Result<Balance, LedgerError> {
        let sql = "SELECT CAST(coalesce(sum(used), 0) AS BIGINT), \
                   CAST(coalesce(sum(granted), 0) AS BIGINT) \
                   FROM balances WHERE key = $1 AND period_start = $2";
        let select = Query::new(sql).with(key).with(start);
        let rows = self.fetch(select, |row| balance(row, 0)).await?;
        Ok(rows.first().copied().unwrap_or_default())
    }

    pub(crate) async fn history(
        &self,
        key: u128,
        most: usize,
    ) -> Result<Vec<PeriodBalance>, LedgerError> {
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

    pub(crate) async fn gist(&self, id: EntryId) -> Result<Option<EntrySummary>, LedgerError> {
        let sql = "SELECT key, kind, amount, why FROM entries WHERE id = $1";
        let select = Query::new(sql).with(id.0);
        let read = |row: &Row| {
            Ok(EntrySummary {
                key: row.bits(0)?,
                kind: row.kind(1)?,
                amount: row.int(2)?,
                why: row.text(3)?,
            })
        };
        Ok(self.fetch(select, read).await?.pop())
    }

    pub(crate) async fn holds_of(
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

    pub(crate) async fn reserved(&self, key: u128, after: Time) -> Result<i64, LedgerError> {
        let sql = "SELECT CAST(coalesce(sum(reserved), 0) AS BIGINT) FROM holds \
                   WHERE key = $1 AND ended_kind IS NULL AND period_end > $2";
        let select = Query::new(sql).with(key).with(after);
        let rows = self.fetch(select, |row| row.int(0)).await?;
        Ok(rows.first().copied().unwrap_or_default())
    }

    pub(crate) async fn hold(&self, id: u128) -> Result<Vec<HoldRow>, LedgerError> {
        let sql = format!("{HOLDS} WHERE hold = $1 ORDER BY key");
        self.fetch(Query::new(&sql).with(id), hold_row).await
    }

    pub(crate) async fn overdue(
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

    pub(crate) async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, LedgerError> {
        let sql = "SELECT tenant, action, rule, allowance, key, period_start, period_end, used, \
                   (SELECT CAST(coalesce(sum(h.reserved), 0) AS BIGINT) FROM holds h \
                   WHERE h.key = b.key AND h.period_start = b.period_start AND h.tenant = b.tenant \
                   AND h.action = b.action AND h.rule = b.rule AND h.ended_kind IS NULL), \
                   granted, corrections, requests, entries FROM balances b \
                   WHERE namespace = $1 AND period_end > $2 AND period_start < $3";
        let select = Query::new(sql)
            .with(&query.namespace)
            .with(query.from)
            .with(query.to)
            .and("tenant = ", query.tenant.as_ref())
            .and("action = ", query.action.as_ref())
            .and("rule = ", query.rule.as_ref());
        let select = match &query.after {
            Some(it) => select.beyond(
                "tenant, period_start, rule, action, key",
                vec![
                    (&it.tenant).into(),
                    it.start.into(),
                    (&it.rule).into(),
                    (&it.action).into(),
                    it.key.into(),
                ],
            ),
            None => select,
        };
        let select = select.ordered("tenant, period_start, rule, action, key", query.most);
        self.fetch(select, usage_row).await
    }

    pub(crate) async fn balances(
        &self,
        namespace: &str,
        at: Time,
        after: Option<BalanceCursor>,
        most: usize,
    ) -> Result<Vec<BalanceRow>, LedgerError> {
        let select = balances(self.readers.dialect(), (namespace, at), after, most);
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

    pub(crate) async fn trail(&self, query: &TrailQuery) -> Result<Vec<Note>, LedgerError> {
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

    pub(super) async fn fetch<T>(
        &self,
        select: Query,
        read: impl Fn(&Row) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, LedgerError> {
        let answer = timeout(
            self.limit,
            self.readers.fetch(select.sql.into(), select.values),
        )
        .await;
        let Ok(answer) = answer else {
            return Err(LedgerError::Unavailable {
                location: Arc::clone(&self.location),
                reason: format!("no answer within {:?}", self.limit).into(),
            });
        };
        let rows = answer.and_then(|rows| rows.iter().map(read).collect());
        rows.map_err(|error| query_error(&error, &self.location))
    }
}

/// A query under construction.
pub(super) struct Query {
    sql: String,
    values: Vec<Value>,
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
    pub(super) fn and(mut self, condition: &str, value: Option<&Arc<str>>) -> Query {
        if let Some(value) = value {
            self.values.push(value.into());
            let _ = write!(self.sql, " AND {condition}${}", self.values.len());
        }
        self
    }

    /// Selects only rows after the one that has these values.
    fn beyond(mut self, columns: &str, values: Vec<Value>) -> Query {
        let first = self.values.len() + 1;
        let marks: Vec<String> = (first..first + values.len())
            .map(|it| format!("${it}"))
            .collect();
        let _ = write!(self.sql, " AND ({columns}) > ({})", marks.join(", "));
        self.values.extend(values);
        self
    }

    pub(super) fn ordered(mut self, columns: &str, most: usize) -> Query {
        self.values.push(page(most).into());
        let _ = write!(self.sql, " ORDER BY {columns} LIMIT ${}", self.values.len());
        self
    }
}

pub(super) fn page(most: usize) -> usize {
    match most {
        0 => MOST_ROWS,
        most => most.min(MOST_ROWS),
    }
}

/// Selects a page of the counters that have a period at an instant, in the order of the primary key, so that
/// each page is read from where the last one ended.
fn balances(
    dialect: Dialect,
    (namespace, at): (&str, Time),
    after: Option<BalanceCursor>,
    most: usize,
) -> Query {
    let namespaces = match dialect {
        // With its index on namespaces, SQLite would read and sort all rows for every page: the plus sign keeps
        // it from using that index. PostgreSQL decides by statistics.
        Dialect::Sqlite => "+namespace",
        Dialect::Postgres => "namespace",
    };
    let sql = format!(
        "SELECT key, period_start, max(period_end), min(allowance), min(rule), \
         CASE WHEN min(tenant) = max(tenant) THEN min(tenant) ELSE '' END, \
         CAST(sum(used) AS BIGINT), CAST(sum(granted) AS BIGINT) FROM balances \
         WHERE {namespaces} = $1 AND period_start <= $2 AND period_end > $3"
    );
    let select = Query::new(&sql).with(namespace).with(at).with(at);
    let mut select = match after {
        Some(it) => select.beyond("key, period_start", vec![it.key.into(), it.start.into()]),
        None => select,
    };
    select.sql.push_str(" GROUP BY key, period_start");
    select.ordered("key, period_start", most)
}

const HOLDS: &str = "SELECT key, hold, tag, namespace, tenant, action, rule, allowance, \
                     period_start, period_end, reserved, expires_at, record, ended_kind, \
                     ended_amount FROM holds";

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

fn usage_row(row: &Row) -> Result<UsageRow, sqlx::Error> {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Session, readers};
    use crate::options::{Database, Options};

    /// Returns SQLite's plan for a query.
    async fn plan(options: &Options, select: Query) -> Vec<String> {
        let readers = readers(options).unwrap();
        let sql = format!("EXPLAIN QUERY PLAN {}", select.sql);
        let rows = readers.fetch(sql.into(), select.values).await.unwrap();
        readers.close().await.unwrap();
        rows.iter()
            .map(|row| row.text(3).unwrap().to_string())
            .collect()
    }

    #[tokio::test]
    async fn pages_of_balances_use_the_primary_key() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(Database::Sqlite(directory.path().join("ledger.db")));
        let mut session = Session::new(Arc::new(options.clone()));
        session.open().await.unwrap();
        let cursor = BalanceCursor {
            key: 7,
            start: Time::from_micros(1),
        };
        for (after, expected) in [
            (None, "SCAN balances"),
            (
                Some(cursor),
                "SEARCH balances USING PRIMARY KEY ((key,period_start)>(?,?))",
            ),
        ] {
            let select = balances(Dialect::Sqlite, ("test", Time::from_micros(5)), after, 500);
            assert_eq!(plan(&options, select).await, [expected]);
        }
        session.close().await;
    }
}
