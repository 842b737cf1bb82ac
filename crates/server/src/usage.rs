//! A tenant's usage from the ledger, added up by rule, action and period over all subjects.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate::{Clock, Engine, SystemClock, Time};
use tollgate_ledger::{UsageQuery, UsageRow};

use crate::period::{Named, calendar, limit};
use crate::question::UsageQuestion;

/// The most rows of an answer.
pub(crate) const MAX_ROWS: usize = 256;

/// How many queries may run at a time at one door. Further queries get an error at once.
const MAX_QUERIES: usize = 4;

/// How many counters are read at a time.
const PAGE: usize = 1000;

/// The usage of a tenant.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) tenant: String,
    /// Each row adds up the counters of a rule: its `key` and `entries` have no meaning here.
    pub(crate) rows: Vec<UsageRow>,
    /// Whether there are more rows.
    pub(crate) is_truncated: bool,
}

/// Why usage cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    #[error(
        "{text:?} is not a period: write a year, a month, a week or a day, as 2026, 2026-07, 2026-W29 \
         or 2026-07-31, or `current`"
    )]
    Period { text: String },
    #[error("{what} has a NUL character, which no ledger can store")]
    Nul { what: &'static str },
    #[error("no ledger is configured: add a `ledger` section")]
    NoLedger,
    #[error("the ledger does not answer; try again later")]
    Ledger,
    #[error("too many concurrent usage queries; retry")]
    Busy,
}

/// Reads usage for one door.
pub(crate) struct UsageReader {
    clock: SystemClock,
    queries: Semaphore,
}

impl Default for UsageReader {
    fn default() -> UsageReader {
        UsageReader {
            clock: SystemClock::new(),
            queries: Semaphore::new(MAX_QUERIES),
        }
    }
}

impl UsageQuestion<'_> {
    /// Makes the query for the ledger, and parses the wanted periods.
    fn query(&self, now: Time) -> Result<(UsageQuery, Named), UsageError> {
        for (what, text) in [
            ("the tenant", Some(&self.tenant)),
            ("the action", self.action.as_ref()),
            ("the rule", self.rule.as_ref()),
        ] {
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(UsageError::Nul { what });
            }
        }
        let period = match &self.period {
            Some(text) => Named::parse(text, now).ok_or_else(|| UsageError::Period {
                text: text.chars().take(80).collect(),
            })?,
            None => Named::Current(now),
        };
        let (from, to) = period.lasts();
        let query = UsageQuery {
            tenant: Some(Arc::from(&*self.tenant)),
            action: self.action.as_deref().map(Arc::from),
            rule: self.rule.as_deref().map(Arc::from),
            from,
            to,
            most: PAGE,
            ..UsageQuery::default()
        };
        Ok((query, period))
    }
}

impl UsageReader {
    /// Reads all pages, until the answer is full.
    pub(crate) async fn read(
        &self,
        engine: &Engine,
        wanted: &UsageQuestion<'_>,
    ) -> Result<Usage, UsageError> {
        let (mut query, period) = wanted.query(self.clock.now())?;
        let _permit = self.queries.try_acquire().map_err(|_| UsageError::Busy)?;
        let accounts = engine.accounts().ok_or(UsageError::NoLedger)?;
        let live = engine.active();
        let mut usage = Usage {
            tenant: wanted.tenant.as_ref().to_owned(),
            ..Usage::default()
        };
        loop {
            let page = accounts.usage(&query).await.map_err(|error| {
                tracing::warn!(%error, "failed to read usage from the ledger");
                UsageError::Ledger
            })?;
            let is_last = page.len() < PAGE;
            query.after = page.last().map(UsageRow::cursor);
            for row in page {
                let limit = limit(&live, &row.allowance, &row.tenant, row.key);
                if period.has(&row.period, limit.and_then(calendar)) {
                    usage.add(row);
                }
                if usage.is_truncated {
                    return Ok(usage);
                }
            }
            if is_last {
                return Ok(usage);
            }
        }
    }
}

impl Usage {
    /// Adds a counter to the row of its rule, action and period. Counters arrive sorted by the start of
    /// their period, rule and action.
    fn add(&mut self, row: UsageRow) {
        let near = |it: &&mut UsageRow| {
            (it.period.start, &it.rule, &it.action) == (row.period.start, &row.rule, &row.action)
        };
        let mut near = self.rows.iter_mut().rev().take_while(near);
        let same = near.find(|it| (it.period, &it.allowance) == (row.period, &row.allowance));
        let Some(sum) = same else {
            self.is_truncated = self.rows.len() == MAX_ROWS;
            if !self.is_truncated {
                self.rows.push(row);
            }
            return;
        };
        add(sum, &row);
    }
}

/// Adds the counts of another counter of the same rule, action and period.
pub(crate) fn add(sum: &mut UsageRow, more: &UsageRow) {
    for (sum, more) in [
        (&mut sum.used, more.used),
        (&mut sum.reserved, more.reserved),
        (&mut sum.granted, more.granted),
        (&mut sum.corrections, more.corrections),
    ] {
        *sum = sum.saturating_add(more);
    }
    sum.requests = sum.requests.saturating_add(more.requests);
}

#[cfg(test)]
mod tests {
    use tollgate_ledger::Period;

    use super::*;

    fn counter(rule: &str, action: &str, period: (u64, u64), key: u128) -> UsageRow {
        let (start, end) = period;
        UsageRow {
            tenant: "acme".into(),
            action: action.into(),
            rule: rule.into(),
            allowance: rule.into(),
            key,
            period: Period {
                start: Time::from_micros(start * 1_000_000),
                end: Time::from_micros(end * 1_000_000),
            },
            used: 5,
            reserved: 2,
            granted: 1,
            corrections: -1,
            requests: 3,
            entries: 4,
        }
    }

    #[test]
    fn counters_of_a_rule_are_added_up_in_one_row() {
        let mut usage = Usage::default();
        for key in 0..300 {
            usage.add(counter("a", "chat", (0, 60), key));
        }
        // Another calendar, another action, another rule.
        usage.add(counter("a", "chat", (0, 90), 300));
        usage.add(counter("a", "chat", (0, 60), 301));
        usage.add(counter("a", "draw", (0, 60), 0));
        usage.add(counter("b", "draw", (0, 60), 0));
        let rows: Vec<_> = usage
            .rows
            .iter()
            .map(|it| (&*it.rule, &*it.action, it.period.end.as_micros(), it.used))
            .collect();
        let expected = [
            ("a", "chat", 60_000_000, 1505),
            ("a", "chat", 90_000_000, 5),
            ("a", "draw", 60_000_000, 5),
            ("b", "draw", 60_000_000, 5),
        ];
        assert_eq!(rows, expected);
        let first = &usage.rows[0];
        let rest = (first.reserved, first.granted, first.corrections);
        assert_eq!((rest, first.requests), ((602, 301, -301), 903));
        assert!(!usage.is_truncated);
    }

    #[test]
    fn rows_beyond_the_bound_are_cut() {
        let mut usage = Usage::default();
        for action in 0..MAX_ROWS {
            usage.add(counter("a", &format!("{action:03}"), (0, 60), 0));
        }
        // One more counter of the last row.
        usage.add(counter("a", "255", (0, 60), 1));
        assert!(!usage.is_truncated);
        usage.add(counter("a", "256", (0, 60), 0));
        assert!(usage.is_truncated);
        assert_eq!(usage.rows.len(), MAX_ROWS);
    }

    #[test]
    fn bad_period_and_nul_are_rejected() {
        let said =
            |wanted: UsageQuestion<'_>| wanted.query(Time::default()).unwrap_err().to_string();
        for wrong in ["", "26", "2026-7", "2026-13", "July", &"2".repeat(5000)] {
            let error = said(UsageQuestion {
                period: Some(wrong.into()),
                ..UsageQuestion::default()
            });
            assert!(
                error.contains("is not a period") && error.len() < 220,
                "{error}"
            );
        }
        for (tenant, action, rule, what) in [
            ("a\0b", "", "", "the tenant has a NUL"),
            ("a", "\0", "", "the action has a NUL"),
            ("a", "", "\0", "the rule has a NUL"),
        ] {
            let error = said(UsageQuestion {
                tenant: tenant.into(),
                action: Some(action.into()),
                rule: Some(rule.into()),
                period: None,
            });
            assert!(error.contains(what), "{error}");
        }
    }

    #[tokio::test]
    async fn concurrent_queries_are_bounded() {
        let rules = "version: 1\nrules: []\n";
        let engine = Engine::from_yaml("rules.yaml", rules).unwrap();
        let (reader, wanted) = (UsageReader::default(), UsageQuestion::default());
        let permits = reader.queries.try_acquire_many(4).unwrap();
        let usage = reader.read(&engine, &wanted).await;
        assert_eq!(usage.unwrap_err(), UsageError::Busy);
        drop(permits);
        for _ in 0..5 {
            let usage = reader.read(&engine, &wanted).await;
            assert_eq!(usage.unwrap_err(), UsageError::NoLedger);
        }
    }
}
