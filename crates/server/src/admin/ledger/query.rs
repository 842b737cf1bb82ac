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
    /// The query for usage: the current periods unless one is given.
    pub(super) fn of_usage(query: Option<&str>, now: Time) -> Result<Wanted, RequestError> {
        let known = ["tenant", "action", "rule", "period", "limit", "format"];
        Wanted::read(query, &known, now)
    }

    /// The query for entries: the current periods unless one is given.
    pub(super) fn of_entries(query: Option<&str>, now: Time) -> Result<Wanted, RequestError> {
        let known = ["tenant", "period", "after", "limit", "format"];
        Wanted::read(query, &known, now)
    }

    fn read(query: Option<&str>, known: &[&str], now: Time) -> Result<Wanted, RequestError> {
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
                return Err(RequestError::Query(format!(
                    "unknown parameter; use `{known}`"
                )));
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
        let wrong = |what: String| Err(RequestError::Query(what));
        if value.len() > MOST_VALUE || value.contains('\0') {
            return wrong(format!(
                "`{name}` is longer than {MOST_VALUE} bytes, or has a NUL character"
            ));
        }
        match name {
            "tenant" => self.tenant = Some(value.into()),
            "action" => self.action = Some(value.into()),
            "rule" => self.rule = Some(value.into()),
            "period" => match Named::parse(value, now) {
                Some(period) => self.period = period,
                None => {
                    return wrong(
                        "`period` must be a year, month, week or day, such as 2026, 2026-07, 2026-W29 or 2026-07-15, or `current`"
                            .to_owned(),
                    );
                }
            },
            "after" => match value.parse() {
                Ok(after) => self.after = after,
                Err(_) => return wrong("`after` must be the `next` of the page before".to_owned()),
            },
            "limit" => match value.parse() {
                Ok(limit @ 1..=MOST_ROWS) => self.limit = limit,
                _ => return wrong(format!("`limit` must be a number from 1 to {MOST_ROWS}")),
            },
            _ => match value {
                "json" => self.format = Some(Format::Json),
                "csv" => self.format = Some(Format::Csv),
                "jsonl" => self.format = Some(Format::Lines),
                _ => return wrong("`format` must be json, csv or jsonl".to_owned()),
            },
        }
        Ok(())
    }

    /// The given format or, without one, the first that the client accepts.
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
        Wanted::of_usage(Some(query), Time::default()).map_err(|error| error.to_string())
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
        let entries = Wanted::of_entries(Some("after=-1"), Time::default());
        assert!(entries.unwrap_err().to_string().contains("`next`"));
        assert!(Wanted::of_entries(Some("rule=a"), Time::default()).is_err());
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
