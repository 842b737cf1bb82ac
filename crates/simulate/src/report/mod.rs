//! The report of a simulation: figures for tables, for JSON and for a page.
//!
//! `html.rs` writes a page, and `svg.rs` its plots.

mod html;
mod svg;

use jiff::Timestamp;
use serde::Serialize;
use tollgate::Time;

use crate::log::LogSummary;
use crate::number::share;
use crate::stats::subjects::Subjects;
use crate::stats::tally::Tally;
use crate::stats::{OfRule, Stats};

pub use crate::stats::series::Bucket;
pub use crate::stats::tally::Counts;
pub use html::html;

/// The rows of a table of tenants and of subjects.
const TOP: usize = 20;
/// The points of a curve of subjects.
const POINTS: usize = 50;

/// Writes a time, in microseconds since 1970, to the second: `2026-01-01 00:00:00 UTC`.
#[must_use]
pub fn utc(micros: u64) -> String {
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    let time = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// The outcome of a simulation.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Report {
    /// The requests.
    pub requests: u64,
    /// The time of the first request, in microseconds since 1970.
    pub first: u64,
    /// The time of the last request.
    pub last: u64,
    /// The log, if requests came from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogFigures>,
    /// The config.
    pub new: SideFigures,
    /// The config to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<SideFigures>,
    /// What changes from one config to the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
}

/// The lines of the logs.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogFigures {
    /// The lines that could not be read.
    pub malformed: u64,
    /// The places of the first of them.
    pub first_malformed: Vec<String>,
    /// The lines whose time was before that of an earlier line.
    pub out_of_order: u64,
    /// By how many milliseconds, at most.
    pub furthest_back_millis: u64,
    /// Whether the requests of a second were spread over it, because the times of the log are whole seconds.
    pub spread_over_seconds: bool,
    /// The formats.
    pub formats: Vec<&'static str>,
}

/// The figures of one config.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SideFigures {
    /// The version of the config.
    pub version: String,
    /// The requests that were allowed.
    pub allowed: u64,
    /// The requests that were denied.
    pub denied: u64,
    /// The requests that no rule applied to.
    pub without_rule: u64,
    /// The requests that a shadow rule would have denied.
    pub shadow_denied: u64,
    /// The figures of each rule, in the order of the file.
    pub rules: Vec<RuleFigures>,
    /// The counts of each plan.
    pub plans: Vec<Row>,
    /// The tenants with the most denials.
    pub tenants: Vec<Row>,
    /// The counts of each hour, in microseconds since 1970.
    pub hours: Vec<(u64, Counts)>,
    /// The length of a bucket of `series`, in microseconds.
    pub bucket_micros: u64,
    /// The counts over time, from the first request on.
    pub series: Vec<Bucket>,
    /// The waits of denied requests: up to so many milliseconds, and how many requests.
    pub retry_after_millis: Vec<(u64, u64)>,
    /// Denials that no wait helps.
    pub never: u64,
    /// The longest wait, in milliseconds.
    pub longest_wait_millis: u64,
    /// How often a shared store would be called.
    pub store_calls: StoreCalls,
    /// The most states at once.
    pub peak_keys: u64,
    /// The most bytes that the states occupied in the memory of this process.
    pub peak_bytes: u64,
}

/// How often a shared store would be called by one instance.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreCalls {
    /// A call for each request that a rule applies to.
    pub exact: u64,
    /// The same, without the requests whose denial is known (`denial_cache`).
    pub with_denial_cache: u64,
    /// One call for each subject and slice of 100 ms: the least that a leased mode needs.
    pub leased: u64,
    /// One call for each subject and flush of 500 ms: the least that an async mode needs.
    pub flushed: u64,
}

/// A name with its counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The name.
    pub name: String,
    /// The requests.
    #[serde(flatten)]
    pub counts: Counts,
    /// The requests under the other config.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Counts>,
}

/// The figures of a rule.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RuleFigures {
    /// The id.
    pub id: String,
    /// The algorithm.
    pub algorithm: &'static str,
    /// Whether the rule only counts.
    pub is_shadow: bool,
    /// The requests that the rule allowed.
    pub allowed: u64,
    /// The requests that the rule denied, or would have denied.
    pub denied: u64,
    /// The denials that this rule decided.
    pub decided: u64,
    /// The subjects, up to a bound.
    pub subjects: u64,
    /// Requests of further subjects, which have no row of their own.
    pub requests_of_other_subjects: u64,
    /// The subjects with the most denials.
    pub most_denied: Vec<Row>,
    /// How evenly the rule allows: 1 if all subjects get the same share of what they ask for.
    pub fairness: f64,
    /// The share of all requests that came from the busiest subjects: at each hundredth of subjects, asked and
    /// allowed.
    pub concentration: Vec<(f64, f64, f64)>,
    /// The most that one subject was allowed in any window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_burst: Option<BurstFigures>,
}

/// The most that one subject was allowed in any window, against its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BurstFigures {
    /// The units that were allowed.
    pub admitted: u64,
    /// The limit.
    pub limit: u64,
    /// The window, in milliseconds.
    pub window_millis: u64,
    /// How many subjects were traced.
    pub traced_subjects: u64,
}

/// What changes from one config to another, in requests.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    /// Both allow.
    pub still_allowed: u64,
    /// Only the new config denies.
    pub newly_denied: u64,
    /// Only the old config denies.
    pub newly_allowed: u64,
    /// Both deny.
    pub still_denied: u64,
}

impl Report {
    pub(crate) fn new(
        requests: u64,
        (first, last): (Time, Time),
        (new, version): (&Stats, &str),
        old: Option<(&Stats, &str)>,
        changes: [u64; 4],
    ) -> Report {
        let [still_allowed, newly_denied, newly_allowed, still_denied] = changes;
        Report {
            requests,
            first: first.as_micros(),
            last: last.as_micros(),
            log: None,
            new: SideFigures::new(new, version, old.map(|(old, _)| old)),
            old: old.map(|(old, version)| SideFigures::new(old, version, None)),
            changes: old.map(|_| Changes {
                still_allowed,
                newly_denied,
                newly_allowed,
                still_denied,
            }),
        }
    }

    /// Adds what was found in the logs.
    #[must_use]
    pub fn with_log(mut self, log: &LogSummary) -> Report {
        let places = log.first_malformed.iter();
        let places = places.map(|it| format!("{}:{}: {}", it.log, it.line, it.problem));
        self.log = Some(LogFigures {
            malformed: log.malformed,
            first_malformed: places.collect(),
            out_of_order: log.out_of_order,
            furthest_back_millis: log.furthest_back.as_millis_ceil(),
            spread_over_seconds: log.whole_seconds,
            formats: log.formats.iter().map(|format| format.name()).collect(),
        });
        self
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// If a number cannot be written, which does not happen.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }
}

impl SideFigures {
    fn new(stats: &Stats, version: &str, old: Option<&Stats>) -> SideFigures {
        let hours = stats.hours.rows();
        let hours = hours.iter().filter_map(|(hour, counts)| {
            let hour: u64 = hour.parse().ok()?;
            Some((hour * 3_600_000_000, *counts))
        });
        let mut hours: Vec<(u64, Counts)> = hours.collect();
        hours.sort_unstable_by_key(|(hour, _)| *hour);
        let series = &stats.series;
        let peak = |of: fn(&Bucket) -> u64| series.buckets.iter().map(of).max().unwrap_or(0);
        SideFigures {
            version: version.to_owned(),
            allowed: stats.all.allowed,
            denied: stats.all.denied,
            without_rule: stats.unlimited,
            shadow_denied: stats.shadow_denied,
            rules: stats
                .rules
                .iter()
                .map(|rule| {
                    let old = old.and_then(|old| old.rules.iter().find(|it| it.id == rule.id));
                    RuleFigures::new(rule, old)
                })
                .collect(),
            plans: rows(&stats.plans, old.map(|old| &old.plans), usize::MAX),
            tenants: rows(&stats.tenants, old.map(|old| &old.tenants), TOP),
            hours,
            bucket_micros: series.width,
            series: series.buckets.clone(),
            retry_after_millis: stats.retries.places(),
            never: stats.retries.never,
            longest_wait_millis: stats.retries.longest.as_millis_ceil(),
            store_calls: StoreCalls {
                exact: stats.calls.exact,
                with_denial_cache: stats.calls.remembered,
                leased: stats.calls.leased,
                flushed: stats.calls.flushed,
            },
            peak_keys: peak(|it| it.keys),
            peak_bytes: peak(|it| it.bytes),
        }
    }
}

/// Returns the rows with the most denials, or with the largest change.
fn rows(tally: &Tally, old: Option<&Tally>, most: usize) -> Vec<Row> {
    let rows = tally.rows();
    let mut rows: Vec<Row> = rows
        .into_iter()
        .map(|(name, counts)| Row {
            name: name.to_owned(),
            counts,
            old: old.map(|old| old.get(name)),
        })
        .collect();
    if tally.other.requests() > 0 {
        rows.push(Row {
            name: "(others)".to_owned(),
            counts: tally.other,
            old: old.map(|old| old.other),
        });
    }
    sort(&mut rows);
    rows.truncate(most);
    rows
}

/// Puts the rows with the largest change first, or else with the most denials, then by name.
fn sort(rows: &mut [Row]) {
    rows.sort_by(|one, other| {
        let weight = |row: &Row| match row.old {
            Some(old) => (row.counts.denied.abs_diff(old.denied), row.counts.denied),
            None => (row.counts.denied, row.counts.requests()),
        };
        let by_name = || one.name.cmp(&other.name);
        weight(other).cmp(&weight(one)).then_with(by_name)
    });
}

impl RuleFigures {
    fn new(rule: &OfRule, old: Option<&OfRule>) -> RuleFigures {
        let burst = rule.bursts.largest;
        RuleFigures {
            id: rule.id.clone(),
            algorithm: rule.algorithm.name(),
            is_shadow: rule.is_shadow,
            allowed: rule.counts.allowed,
            denied: rule.counts.denied,
            decided: rule.decided,
            subjects: rule.subjects.rows().len() as u64,
            requests_of_other_subjects: rule.subjects.other.0,
            most_denied: most_denied(&rule.subjects, old.map(|old| &old.subjects)),
            fairness: fairness(&rule.subjects),
            concentration: concentration(&rule.subjects),
            largest_burst: (burst.limit > 0).then(|| BurstFigures {
                admitted: burst.admitted,
                limit: burst.limit,
                window_millis: burst.window / 1000,
                traced_subjects: rule.bursts.traced() as u64,
            }),
        }
    }
}

/// Returns the subjects with the most denials, or with the largest change.
fn most_denied(subjects: &Subjects, old: Option<&Subjects>) -> Vec<Row> {
    let counts = |asked: u64, allowed: u64| Counts {
        allowed,
        denied: asked - allowed,
    };
    let rows = subjects.rows().map(|(subject, row)| {
        let old = old.map(|old| {
            let found = old.get(subject);
            found.map_or(Counts::default(), |it| counts(it.asked, it.allowed))
        });
        let name = row.name.as_deref().map(str::to_owned);
        Row {
            // The log of denials shows as many digits.
            name: name.unwrap_or_else(|| format!("{:012x}", subject >> 80)),
            counts: counts(row.asked, row.allowed),
            old,
        }
    });
    let is_denied = |row: &Row| row.counts.denied > 0 || row.old.is_some_and(|it| it.denied > 0);
    let mut rows: Vec<Row> = rows.filter(is_denied).collect();
    sort(&mut rows);
    rows.truncate(TOP);
    rows
}

/// Returns Jain's index of the shares that subjects got of what they asked for: 1 if all shares are the same,
/// 1/n if one of n subjects got everything.
fn fairness(subjects: &Subjects) -> f64 {
    let shares = subjects
        .rows()
        .map(|(_, row)| share(row.allowed, row.asked));
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        count += 1.0;
        sum += share;
        squares += share * share;
    }
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (count * squares)
    }
}

/// Returns how requests are spread over subjects, the busiest first.
fn concentration(subjects: &Subjects) -> Vec<(f64, f64, f64)> {
    let mut rows: Vec<(u64, u64)> = subjects
        .rows()
        .map(|(_, it)| (it.asked, it.allowed))
        .collect();
    rows.sort_unstable_by_key(|(asked, _)| std::cmp::Reverse(*asked));
    let asked: u64 = rows.iter().map(|(asked, _)| asked).sum();
    let allowed: u64 = rows.iter().map(|(_, allowed)| allowed).sum();
    let step = rows.len().div_ceil(POINTS).max(1);
    let (mut points, mut so_far) = (vec![(0.0, 0.0, 0.0)], (0, 0));
    for (place, row) in rows.iter().enumerate() {
        so_far = (so_far.0 + row.0, so_far.1 + row.1);
        if (place + 1).is_multiple_of(step) || place + 1 == rows.len() {
            let part = share(place as u64 + 1, rows.len() as u64);
            points.push((part, share(so_far.0, asked), share(so_far.1, allowed)));
        }
    }
    points
}
