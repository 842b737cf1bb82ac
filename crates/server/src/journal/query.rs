//! Queries for recorded denials.

use std::str::FromStr;

use memchr::memmem::Finder;
use tollgate::{Span, Subject, Time};

use super::record::{HEAD, Head, RecordedDenial, rule_hash};
use crate::audit::{ago, shown, time};

/// How many denials are returned: the default and the maximum.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// The fewest digits of a hash that a query may give: as many as the log has.
const MIN_DIGITS: usize = 8;
const DIGITS: usize = 32;

/// The longest text of a filter.
const MAX_TEXT: usize = 1024;

/// The longest time that a reader may wait for the next denial, in seconds.
const MAX_WAIT: u64 = 30;

/// A query for denials. A field that is not given does not filter.
#[derive(Clone, Debug)]
pub struct Query {
    /// Only denials of one of these subjects.
    subjects: Vec<HashPrefix>,
    rule: Option<(String, u64)>,
    door: Option<FieldFilter>,
    action: Option<FieldFilter>,
    pub(super) since: Option<Time>,
    pub(super) until: Option<Time>,
    pub(super) limit: usize,
    /// Follow the journal from this sequence number on.
    pub(crate) after: Option<u64>,
    /// How long to wait for a denial, if there is none yet.
    pub(crate) wait: Span,
}

/// The first digits of the hash of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HashPrefix {
    bits: u128,
    mask: u128,
}

/// A text that a field of the object must have.
#[derive(Clone, Debug)]
struct FieldFilter {
    text: String,
    /// Finds the field with this text as the journal writes it. Records without it need not be parsed.
    written: Finder<'static>,
}

/// Why a query is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// `limit` is out of range.
    #[error("limit must be a number from 1 to {MAX_LIMIT}, not {0:?}")]
    Limit(String),
    /// A time is malformed.
    #[error(
        "{0} {1:?} is not a time: write one such as 2026-01-31T12:00:00Z, or how long ago, such as 90s, 15m, 1h or 7d"
    )]
    Time(&'static str, String),
    /// A hash is malformed.
    #[error("hash must be 8 to 32 hexadecimal digits: copy it from the log or from another answer")]
    Hash,
    /// `after` is not a number.
    #[error("after must be the `next` of an earlier answer, not {0:?}")]
    After(String),
    /// `wait` is out of range.
    #[error("wait must be a number of seconds from 0 to {MAX_WAIT}, not {0:?}")]
    Wait(String),
    /// A text is too long.
    #[error("{0} is longer than {MAX_TEXT} bytes")]
    Long(&'static str),
    /// `wait` without `after`.
    #[error("wait needs after: send the `next` of an earlier answer")]
    WaitAlone,
    /// There is no such parameter.
    #[error(
        "unknown parameter {0:?}; use subject, hash, rule, door, action, since, until, limit, after and wait"
    )]
    Unknown(String),
}

impl Default for Query {
    fn default() -> Query {
        Query {
            subjects: Vec::new(),
            rule: None,
            door: None,
            action: None,
            since: None,
            until: None,
            limit: DEFAULT_LIMIT,
            after: None,
            wait: Span::ZERO,
        }
    }
}

impl Query {
    /// Sets the parameter `name` from `text`, at `now`. An empty text counts as not given.
    ///
    /// # Errors
    /// If there is no such parameter, or the text is not a valid value.
    pub(crate) fn set(&mut self, name: &str, text: &str, now: Time) -> Result<(), QueryError> {
        let given = (!text.is_empty()).then_some(text);
        let name_of = |name: &'static str| match given {
            Some(text) if text.len() > MAX_TEXT => Err(QueryError::Long(name)),
            given => Ok(given.map(str::to_owned)),
        };
        let time_of = |name: &'static str| {
            let at = given.map(|text| {
                let at = ago(text, now).or_else(|| time(text));
                at.ok_or_else(|| QueryError::Time(name, shown(text)))
            });
            at.transpose()
        };
        match name {
            "hash" => {
                if let Some(text) = given {
                    let hash = HashPrefix::parse(text).ok_or(QueryError::Hash)?;
                    self.subjects.push(hash);
                }
            }
            "rule" => self.rule = name_of("rule")?.map(|rule| (rule.clone(), rule_hash(&rule))),
            "door" => self.door = name_of("door")?.map(|it| FieldFilter::new("door", it)),
            "action" => self.action = name_of("action")?.map(|it| FieldFilter::new("action", it)),
            "since" => self.since = time_of("since")?,
            "until" => self.until = time_of("until")?,
            "limit" => {
                let limit = given.map_or(Ok(DEFAULT_LIMIT), usize::from_str);
                let limit = limit.ok().filter(|it| (1..=MAX_LIMIT).contains(it));
                self.limit = limit.ok_or_else(|| QueryError::Limit(shown(text)))?;
            }
            "after" => {
                let after = given.map(|text| {
                    let after = u64::from_str(text);
                    after.map_err(|_| QueryError::After(shown(text)))
                });
                self.after = after.transpose()?;
            }
            "wait" => {
                let wait = given.map_or(Ok(0), u64::from_str);
                let wait = wait.ok().filter(|it| *it <= MAX_WAIT);
                let wait = wait.ok_or_else(|| QueryError::Wait(shown(text)))?;
                self.wait = Span::from_secs(wait);
            }
            _ => return Err(QueryError::Unknown(shown(name))),
        }
        Ok(())
    }

    /// Checks that the parameters fit together.
    ///
    /// # Errors
    /// If the query waits, but does not follow.
    pub(crate) fn check(&self) -> Result<(), QueryError> {
        match self.after {
            None if self.wait > Span::ZERO => Err(QueryError::WaitAlone),
            _ => Ok(()),
        }
    }

    /// Adds a subject to those that the query wants.
    pub(crate) fn add_subject(&mut self, subject: Subject) {
        self.subjects.push(HashPrefix {
            bits: subject.bits(),
            mask: u128::MAX,
        });
    }

    /// Returns whether a record may be a denial that the query wants. Does not parse the object.
    pub(super) fn may_want(&self, head: &Head, record: &[u8]) -> bool {
        let is_wanted = |subject: &u128| *subject != 0 && self.has_subject(*subject);
        self.since.is_none_or(|since| head.at >= since)
            && self.until.is_none_or(|until| head.at <= until)
            && self
                .rule
                .as_ref()
                .is_none_or(|(_, hash)| *hash == head.rule)
            && (self.subjects.is_empty() || head.subjects.iter().any(is_wanted))
            && [&self.door, &self.action]
                .into_iter()
                .flatten()
                .all(|field| field.written.find(&record[HEAD..]).is_some())
    }

    /// Returns whether the query wants a denial for which [`may_want`](Self::may_want) is true.
    pub(super) fn wants(&self, denial: &RecordedDenial) -> bool {
        let is = |wanted: &Option<FieldFilter>, found: Option<&str>| {
            let mut wanted = wanted.iter();
            wanted.all(|wanted| found == Some(&*wanted.text))
        };
        self.rule
            .as_ref()
            .is_none_or(|(rule, _)| *rule == denial.rule_id)
            && is(&self.door, Some(&denial.door))
            && is(&self.action, denial.action.as_deref())
    }

    fn has_subject(&self, subject: u128) -> bool {
        let mut wanted = self.subjects.iter();
        wanted.any(|it| subject & it.mask == it.bits)
    }
}

impl FieldFilter {
    fn new(name: &str, text: String) -> FieldFilter {
        let written = format!("\"{name}\":{}", serde_json::Value::from(text.as_str()));
        FieldFilter {
            text,
            written: Finder::new(&written).into_owned(),
        }
    }
}

impl HashPrefix {
    fn parse(text: &str) -> Option<HashPrefix> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex || !(MIN_DIGITS..=DIGITS).contains(&text.len()) {
            return None;
        }
        let shift = u32::try_from((DIGITS - text.len()) * 4).ok()?;
        let bits = u128::from_str_radix(text, 16).ok()? << shift;
        let mask = u128::MAX << shift;
        Some(HashPrefix { bits, mask })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_700_000_000_000_000);

    fn set(name: &str, text: &str) -> Result<Query, String> {
        let mut query = Query::default();
        query.set(name, text, NOW).map_err(|it| it.to_string())?;
        query.check().map_err(|it| it.to_string())?;
        Ok(query)
    }

    #[test]
    fn prefix_of_a_hash_finds_it() {
        let subject = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        let found = |hash| set("hash", hash).unwrap().has_subject(subject);
        assert!(found("01234567"));
        assert!(found("0123456789ABCDEF0123456789abcdef"));
        assert!(!found("01234568"));
        assert!(!found("0123456789abcdef0123456789abcdee"));
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (name, text, expected) in [
            ("hash", "0123456", "8 to 32"),
            ("hash", "+1234567", "8 to 32"),
            ("hash", "0123456789abcdef0123456789abcdef0", "8 to 32"),
            ("since", "yesterday", "since \"yesterday\" is not a time"),
            ("until", "1w", "until \"1w\" is not a time"),
            ("limit", "0", "1 to 1000"),
            ("limit", "1001", "1 to 1000"),
            ("after", "-1", "`next`"),
            ("wait", "31", "0 to 30"),
            ("wait", "5", "needs after"),
            ("user", "ann", "unknown parameter \"user\""),
        ] {
            let error = set(name, text).unwrap_err();
            assert!(error.contains(expected), "{name}={text}: {error}");
        }
        assert!(set("rule", &"x".repeat(1025)).is_err());
        assert!(set("since", "").unwrap().since.is_none());
    }
}
