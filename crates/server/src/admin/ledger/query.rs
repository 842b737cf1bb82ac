//! The parameters of a query on the ledger.

use std::sync::Arc;

use http::HeaderMap;
use http::header::ACCEPT;
use tollgate::Time;
use tollgate_ledger::MOST_VALUE;

use crate::period::Named;
use crate::respond::RequestError;

/// The most rows of a response.
pub(super) const MOST_ROWS: usize = 10_000;
/// The rows of a response unless `limit` is given.
pub(super) const ROWS: usize = 1000;

/// The parameters of a query for usage.
pub(super) const USAGE: [&str; 6] = ["tenant", "action", "rule", "period", "limit", "format"];
/// The parameters of a query for quotas.
pub(super) const QUOTAS: [&str; 3] = ["tenant", "period", "limit"];
/// The parameters of a query for the history of a quota. `rule` names the allowance.
pub(super) const BURNDOWN: [&str; 3] = ["tenant", "rule", "period"];
/// The parameters of a query for entries.
pub(super) const ENTRIES: [&str; 5] = ["tenant", "period", "after", "limit", "format"];

/// The format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// One object: a page.
    Json,
    /// Comma-separated values: everything.
    Csv,
    /// An object on each line: everything.
    Lines,
}

/// A query.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) tenant: Option<Arc<str>>,
    pub(super) action: Option<Arc<str>>,
    pub(super) rule: Option<Arc<str>>,
    pub(super) period: Named,
    pub(super) after: u64,
    pub(super) limit: usize,
    format: Option<Format>,
}

impl Wanted {
    /// Reads a query that may have the `known` parameters. A query without a period wants the
    /// current periods.
    pub(super) fn read(
        query: Option<&str>,
        known: &[&str],
        now: Time,
    ) -> Result<Wanted, RequestError> {
        let mut wanted = Wanted {
            tenant: None,
            action: None,
            rule: None,
            period: Named::Current(now),
            after: 0,
            limit: ROWS,
            format: None,
        };
        let mut seen = Vec::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let Some(known) = known.iter().find(|it| **it == name) else {
                let known = known.join("`, `");
                let wrong = format!("unknown parameter {name:?}; use `{known}`");
                return Err(RequestError::Query(wrong));
            };
            if seen.contains(known) {
                return Err(RequestError::Query(format!("`{name}` is given twice")));
            }
            seen.push(known);
            if !value.is_empty() {
                wanted.set(&name, &value, now)?;
            }
        }
        Ok(wanted)
    }

    fn set(&mut self, name: &str, value: &str, now: Time) -> Result<(), RequestError> {
        let wrong = |what: String| RequestError::Query(what);
        if value.len() > MOST_VALUE || value.contains('\0') {
            return Err(wrong(format!(
                "`{name}` is longer than {MOST_VALUE} bytes, or has a NUL character"
            )));
        }
        match name {
            "tenant" => self.tenant = Some(value.into()),
            "action" => self.action = Some(value.into()),
            "rule" => self.rule = Some(value.into()),
            "period" => {
                let must = "`period` must be a year, month, week or day, such as 2026, 2026-07, 2026-W29 or 2026-07-15, or `current`";
                self.period = Named::parse(value, now).ok_or_else(|| wrong(must.to_owned()))?;
            }
            "after" => {
                let must = "`after` must be the `next` of the page before";
                self.after = value.parse().map_err(|_| wrong(must.to_owned()))?;
            }
            "limit" => {
                let limit = value.parse().ok().filter(|it| (1..=MOST_ROWS).contains(it));
                let must = || format!("`limit` must be a number from 1 to {MOST_ROWS}");
                self.limit = limit.ok_or_else(|| wrong(must()))?;
            }
            _ => {
                self.format = Some(match value {
                    "json" => Format::Json,
                    "csv" => Format::Csv,
                    "jsonl" => Format::Lines,
                    _ => return Err(wrong("`format` must be json, csv or jsonl".to_owned())),
                });
            }
        }
        Ok(())
    }

    /// Returns the format that the query names. If it names none, returns the first one that the client
    /// accepts.
    pub(super) fn format(&self, headers: &HeaderMap) -> Format {
        if let Some(format) = self.format {
            return format;
        }
        let accepted = headers.get_all(ACCEPT).iter();
        let accepted = accepted.filter_map(|value| value.to_str().ok());
        let mut ranges = accepted.flat_map(|value| value.split(','));
        let format = ranges.find_map(|range| match range.split(';').next()?.trim() {
            "text/csv" => Some(Format::Csv),
            "application/jsonl" | "application/x-ndjson" => Some(Format::Lines),
            "application/json" => Some(Format::Json),
            _ => None,
        });
        format.unwrap_or(Format::Json)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn usage(query: &str) -> Result<Wanted, String> {
        Wanted::read(Some(query), &USAGE, Time::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn empty_parameters_count_as_not_given() {
        let wanted = usage("tenant=&action=&rule=api&period=2026-07&limit=5").unwrap();
        assert_eq!(
            (wanted.tenant, wanted.rule),
            (None, Some("api".into())),
            "only the rule"
        );
        assert_eq!(wanted.limit, 5);
        assert!(matches!(wanted.period, Named::Dates(..)));
        assert!(matches!(usage("").unwrap().period, Named::Current(_)));
    }

    #[test]
    fn bad_parameters_are_named() {
        let long = format!("tenant={}", "x".repeat(MOST_VALUE + 1));
        for (query, expected) in [
            ("tenants=acme", "use `tenant`"),
            ("after=1", "use `tenant`"),
            ("rule=a&rule=b", "`rule` is given twice"),
            ("period=July", "`period` must be a year"),
            ("limit=0", "from 1 to 10000"),
            ("limit=10001", "from 1 to 10000"),
            ("format=xml", "json, csv or jsonl"),
            ("tenant=%00", "NUL"),
            (&long, "longer than 1024"),
        ] {
            let error = usage(query).unwrap_err();
            assert!(error.contains(expected), "{query}: {error}");
        }
        let entries = |query| Wanted::read(Some(query), &ENTRIES, Time::default());
        let error = entries("after=-1").unwrap_err().to_string();
        assert!(error.contains("`next`"), "{error}");
        assert!(entries("rule=a").is_err());
    }

    #[test]
    fn format_parameter_wins_over_accept() {
        let format = |query: &str, accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            usage(query).unwrap().format(&headers)
        };
        assert_eq!(format("", "*/*"), Format::Json);
        assert_eq!(format("", "text/html, text/csv;q=0.9"), Format::Csv);
        assert_eq!(format("", "application/x-ndjson"), Format::Lines);
        assert_eq!(format("format=json", "text/csv"), Format::Json);
        assert_eq!(format("format=jsonl", "text/csv"), Format::Lines);
    }
}
