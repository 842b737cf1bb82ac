//! What a tenant has used, as the ledger says: which periods are meant, and reading them.

use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{ToSpan, Zoned};
use tollgate::{Clock, Engine, SystemClock, Time};
use tollgate_ledger::{Period, UsageQuery, UsageRow};

/// How many rows are told at most.
pub(crate) const MAX_ROWS: usize = 256;

/// What is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsageOf<'a> {
    pub(crate) tenant: &'a str,
    /// A year, a month or a day; the periods in force if not given.
    pub(crate) period: Option<&'a str>,
    pub(crate) action: Option<&'a str>,
    pub(crate) rule: Option<&'a str>,
}

/// What there is.
pub(crate) struct Usage {
    pub(crate) rows: Vec<UsageRow>,
    /// Whether there are more.
    pub(crate) is_cut: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    #[error(
        "{text:?} is no period: write a year, a month or a day, as 2026, 2026-07 or 2026-07-31"
    )]
    Period { text: String },
    #[error("no ledger is configured: add a `ledger` section")]
    NoLedger,
    #[error("this cannot be told now: the ledger does not answer")]
    Ledger,
}

/// Whoever reads the books for a door.
#[derive(Default)]
pub(crate) struct Books {
    clock: SystemClock,
}

impl Books {
    pub(crate) async fn usage(
        &self,
        engine: &Engine,
        wanted: &UsageOf<'_>,
    ) -> Result<Usage, UsageError> {
        let span = match wanted.period {
            Some(text) => named(text)?,
            None => {
                let now = self.clock.now();
                let end = Time::from_micros(now.as_micros() + 1);
                Period { start: now, end }
            }
        };
        let accounts = engine.accounts().ok_or(UsageError::NoLedger)?;
        let mut query = UsageQuery {
            tenant: Some(wanted.tenant.into()),
            action: wanted.action.map(Arc::from),
            rule: wanted.rule.map(Arc::from),
            from: span.start,
            to: span.end,
            ..UsageQuery::default()
        };
        let mut usage = Usage {
            rows: Vec::new(),
            is_cut: false,
        };
        // Rows that only touch the span are left out, so that one page may not be enough.
        loop {
            let page = accounts.usage(&query).await.map_err(|error| {
                tracing::warn!(%error, "usage cannot be read");
                UsageError::Ledger
            })?;
            let Some(last) = page.last() else {
                return Ok(usage);
            };
            query.after = Some(last.cursor());
            for row in page {
                if !belongs(row.period, span) {
                    continue;
                }
                if usage.rows.len() == MAX_ROWS {
                    usage.is_cut = true;
                    return Ok(usage);
                }
                usage.rows.push(row);
            }
        }
    }
}

/// Whether a period belongs to a span: the middle of the shorter one lies in the other. So the July of
/// every time zone is July, and a year belongs to all of its months.
fn belongs(period: Period, span: Period) -> bool {
    let length = |of: Period| of.end.since(of.start);
    let (shorter, longer) = match length(period) < length(span) {
        true => (period, span),
        false => (span, period),
    };
    let middle = shorter.start + tollgate::Span::from_micros(length(shorter).as_micros() / 2);
    longer.start <= middle && middle < longer.end
}

/// The span of that name, in UTC.
fn named(text: &str) -> Result<Period, UsageError> {
    let wrong = || UsageError::Period {
        text: text.chars().take(80).collect(),
    };
    spelled(text).ok_or_else(wrong)
}

fn spelled(text: &str) -> Option<Period> {
    let mut parts = text.split('-');
    let mut next = |digits: usize| match parts.next() {
        None => Some(None),
        Some(part) if part.len() == digits && part.bytes().all(|it| it.is_ascii_digit()) => {
            part.parse::<i16>().ok().map(Some)
        }
        Some(_) => None,
    };
    let (year, month, day) = (next(4)??, next(2)?, next(2)?);
    if parts.next().is_some() {
        return None;
    }
    let length = match (month, day) {
        (_, Some(_)) => 1.day(),
        (Some(_), None) => 1.month(),
        (None, None) => 1.year(),
    };
    let part = |number: Option<i16>| i8::try_from(number.unwrap_or(1)).ok();
    let start = Date::new(year, part(month)?, part(day)?).ok()?;
    let end = start.checked_add(length).ok()?;
    let instant = |date: Date| {
        let zoned: Zoned = date.to_zoned(TimeZone::UTC).ok()?;
        let micros = u64::try_from(zoned.timestamp().as_microsecond()).ok()?;
        Some(Time::from_micros(micros))
    };
    Some(Period {
        start: instant(start)?,
        end: instant(end)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(start: &str, end: &str) -> Period {
        let instant = |text: &str| {
            let time: jiff::Timestamp = text.parse().unwrap();
            Time::from_micros(u64::try_from(time.as_microsecond()).unwrap())
        };
        Period {
            start: instant(start),
            end: instant(end),
        }
    }

    #[test]
    fn years_months_and_days_have_names() {
        for (text, start, end) in [
            ("2026", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2026-12", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2028-02-29", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            assert_eq!(named(text), Ok(period(start, end)), "{text}");
        }
        let long = "2".repeat(5000);
        for wrong in [
            "",
            "26",
            "2026-7",
            "2026-13",
            "2026-02-29",
            "2026-01-01-01",
            "+026",
            "-2026",
            "2026-",
            "9999",
            "1969",
            "July",
            &long,
        ] {
            let error = named(wrong).unwrap_err().to_string();
            assert!(
                error.contains("is no period") && error.len() < 200,
                "{error}"
            );
        }
    }

    #[test]
    fn the_july_of_every_zone_is_july() {
        let july = named("2026-07").unwrap();
        for (start, end, expected) in [
            ("2026-06-30T22:00:00Z", "2026-07-31T22:00:00Z", true),
            ("2026-07-31T22:00:00Z", "2026-08-31T22:00:00Z", false),
            ("2026-07-01T11:00:00Z", "2026-08-01T11:00:00Z", true),
            ("2026-06-01T11:00:00Z", "2026-07-01T11:00:00Z", false),
            // A year has all of its months, and a month all of its days.
            ("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", true),
            ("2025-12-31T11:00:00Z", "2026-12-31T11:00:00Z", true),
            ("2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z", false),
            ("2026-06-30T22:00:00Z", "2026-07-01T22:00:00Z", true),
            ("2026-07-31T22:00:00Z", "2026-08-01T22:00:00Z", false),
        ] {
            assert_eq!(belongs(period(start, end), july), expected, "{start}");
        }
    }

    #[test]
    fn what_is_in_force_is_what_now_lies_in() {
        let now = period("2026-07-01T00:00:00Z", "2026-07-01T00:00:00.000001Z");
        let of = |start, end| belongs(period(start, end), now);
        assert!(of("2026-07-01T00:00:00Z", "2026-08-01T00:00:00Z"));
        assert!(!of("2026-06-01T00:00:00Z", "2026-07-01T00:00:00Z"));
    }
}
