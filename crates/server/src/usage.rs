//! What a tenant has used, as the ledger says: by rule, action and period, whoever the subjects were.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate::{Accounts, ActiveConfig, Clock, Engine, SystemClock, Time};
use tollgate_ledger::{UsageQuery, UsageRow};

use crate::period::{Named, calendar, limit};

/// How many rows are told at most.
pub(crate) const MAX_ROWS: usize = 256;

/// How many read at a time at one door: nobody waits behind them.
const READING: usize = 4;

/// How many counters are read at a time.
const PAGE: usize = 1000;

/// What is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsageOf<'a> {
    pub(crate) tenant: &'a str,
    /// A period by name; the periods in force if not given.
    pub(crate) period: Option<&'a str>,
    pub(crate) action: Option<&'a str>,
    pub(crate) rule: Option<&'a str>,
}

/// What there is.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// The counters of a rule are added up: `key` and `entries` mean nothing here.
    pub(crate) rows: Vec<UsageRow>,
    /// Whether there are more.
    pub(crate) is_cut: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    #[error(
        "{text:?} is no period: write a year, a month, a week or a day, as 2026, 2026-07, 2026-W29 or \
         2026-07-31, or `current`"
    )]
    Period { text: String },
    #[error("{what} has a NUL character, which no ledger keeps")]
    Nul { what: &'static str },
    #[error("no ledger is configured: add a `ledger` section")]
    NoLedger,
    #[error("this cannot be told now: the ledger does not answer")]
    Ledger,
    #[error("others read the books already: try again when they are done")]
    Busy,
}

/// Whoever reads the books for a door.
pub(crate) struct Books {
    clock: SystemClock,
    reading: Semaphore,
}

impl Default for Books {
    fn default() -> Books {
        Books {
            clock: SystemClock::new(),
            reading: Semaphore::new(READING),
        }
    }
}

impl UsageOf<'_> {
    /// What is asked of the ledger, and which periods are meant.
    fn read(&self, now: Time) -> Result<(UsageQuery, Named), UsageError> {
        for (what, text) in [
            ("the tenant", Some(self.tenant)),
            ("the action", self.action),
            ("the rule", self.rule),
        ] {
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(UsageError::Nul { what });
            }
        }
        let period = match self.period {
            Some(text) => Named::parse(text, now).ok_or_else(|| UsageError::Period {
                text: text.chars().take(80).collect(),
            })?,
            None => Named::Current(now),
        };
        let (from, to) = period.lasts();
        let query = UsageQuery {
            tenant: Some(self.tenant.into()),
            action: self.action.map(Arc::from),
            rule: self.rule.map(Arc::from),
            from,
            to,
            most: PAGE,
            ..UsageQuery::default()
        };
        Ok((query, period))
    }
}

impl Books {
    pub(crate) async fn usage(
        &self,
        engine: &Engine,
        wanted: &UsageOf<'_>,
    ) -> Result<Usage, UsageError> {
        let (query, period) = wanted.read(self.clock.now())?;
        let _place = self.reading.try_acquire().map_err(|_| UsageError::Busy)?;
        let accounts = engine.accounts().ok_or(UsageError::NoLedger)?;
        read(accounts, &engine.live(), query, &period).await
    }
}

/// All pages, until there is more than is told.
async fn read(
    accounts: Accounts<'_>,
    live: &ActiveConfig,
    mut query: UsageQuery,
    period: &Named,
) -> Result<Usage, UsageError> {
    let mut usage = Usage::default();
    loop {
        let page = accounts.usage(&query).await.map_err(|error| {
            tracing::warn!(%error, "usage cannot be read");
            UsageError::Ledger
        })?;
        let is_last = page.len() < PAGE;
        query.after = page.last().map(UsageRow::cursor);
        for row in page {
            let limit = limit(live, &row.allowance, &row.tenant, row.key);
            if period.has(&row.period, limit.and_then(calendar)) {
                usage.add(row);
            }
            if usage.is_cut {
                return Ok(usage);
            }
        }
        if is_last {
            return Ok(usage);
        }
    }
}

impl Usage {
    /// Adds a counter to those of the same rule, action and period. Counters come in the order of when their
    /// periods start, of rules and of actions.
    fn add(&mut self, row: UsageRow) {
        let near = |it: &&mut UsageRow| {
            (it.period.start, &it.rule, &it.action) == (row.period.start, &row.rule, &row.action)
        };
        let mut near = self.rows.iter_mut().rev().take_while(near);
        let same = near.find(|it| (it.period, &it.allowance) == (row.period, &row.allowance));
        let Some(sum) = same else {
            self.is_cut = self.rows.len() == MAX_ROWS;
            if !self.is_cut {
                self.rows.push(row);
            }
            return;
        };
        for (sum, more) in [
            (&mut sum.used, row.used),
            (&mut sum.reserved, row.reserved),
            (&mut sum.granted, row.granted),
            (&mut sum.corrections, row.corrections),
        ] {
            *sum = sum.saturating_add(more);
        }
        sum.requests = sum.requests.saturating_add(row.requests);
    }
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
    fn the_counters_of_a_rule_are_one_row() {
        let mut usage = Usage::default();
        for key in 0..300 {
            usage.add(counter("a", "chat", (0, 60), key));
        }
        // Another calendar, another action, another rule.
        usage.add(counter("a", "chat", (0, 90), 300));
        usage.add(counter("a", "chat", (0, 60), 301));
        usage.add(counter("a", "draw", (0, 60), 0));
        usage.add(counter("b", "draw", (0, 60), 0));
        let told: Vec<_> = usage
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
        assert_eq!(told, expected);
        let first = &usage.rows[0];
        let rest = (first.reserved, first.granted, first.corrections);
        assert_eq!((rest, first.requests), ((602, 301, -301), 903));
        assert!(!usage.is_cut);
    }

    #[test]
    fn more_rows_than_are_told_are_cut() {
        let mut usage = Usage::default();
        for action in 0..MAX_ROWS {
            usage.add(counter("a", &format!("{action:03}"), (0, 60), 0));
        }
        // More of the last is no more rows.
        usage.add(counter("a", "255", (0, 60), 1));
        assert!(!usage.is_cut);
        usage.add(counter("a", "256", (0, 60), 0));
        assert!(usage.is_cut);
        assert_eq!(usage.rows.len(), MAX_ROWS);
    }

    #[test]
    fn what_is_no_period_and_what_no_ledger_keeps_is_said() {
        let said = |wanted: UsageOf<'_>| wanted.read(Time::default()).unwrap_err().to_string();
        for wrong in ["", "26", "2026-7", "2026-13", "July", &"2".repeat(5000)] {
            let error = said(UsageOf {
                period: Some(wrong),
                ..UsageOf::default()
            });
            assert!(
                error.contains("is no period") && error.len() < 220,
                "{error}"
            );
        }
        for (tenant, action, rule, what) in [
            ("a\0b", "", "", "the tenant has a NUL"),
            ("a", "\0", "", "the action has a NUL"),
            ("a", "", "\0", "the rule has a NUL"),
        ] {
            let error = said(UsageOf {
                tenant,
                action: Some(action),
                rule: Some(rule),
                period: None,
            });
            assert!(error.contains(what), "{error}");
        }
    }

    #[tokio::test]
    async fn so_many_read_at_a_time() {
        let rules = "version: 1\nrules: []\n";
        let engine = Engine::from(tollgate::Limiter::from_yaml("rules.yaml", rules).unwrap());
        let books = Books::default();
        let places = books.reading.try_acquire_many(4).unwrap();
        let told = books.usage(&engine, &UsageOf::default()).await;
        assert_eq!(told.unwrap_err(), UsageError::Busy);
        drop(places);
        for _ in 0..5 {
            let told = books.usage(&engine, &UsageOf::default()).await;
            assert_eq!(told.unwrap_err(), UsageError::NoLedger);
        }
    }
}
