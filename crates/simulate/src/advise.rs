//! Advice: ten answers lead to a rule, with reasons, its cost and its promise, and a simulation of it.

use std::fmt;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tollgate::{Algorithm, ConfigError, Span, Time};
use tollgate_config::parse;

use crate::traffic::{Stream, Traffic};
use crate::{Simulation, memory_bytes, redis_bytes};

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Requests per time.
    Rate,
    /// An amount in a calendar period.
    Quota,
    /// Work at the same time.
    Concurrency,
}

/// What happens to bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bursts {
    /// A subject may use its allowance at once.
    Allow,
    /// Requests are smooth over any window.
    Smooth,
    /// Requests wait for their turn.
    Wait,
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CostKind {
    /// All requests cost the same.
    Same,
    /// An attribute says the cost.
    Varies,
    /// The cost is known afterwards.
    Later,
}

/// What happens while the store is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Failure {
    /// Requests are allowed.
    Open,
    /// Requests are denied.
    Closed,
    /// Each instance counts by itself.
    Local,
}

/// The answers to the ten questions, and the numbers.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Rate, quota or concurrency?
    pub what: What,
    /// Must no window ever exceed the limit?
    pub exact: bool,
    /// What about bursts?
    pub bursts: Bursts,
    /// What does a request cost?
    pub cost: CostKind,
    /// How many subjects are there in a window?
    pub subjects: u64,
    /// Is memory scarce?
    pub small_memory: bool,
    /// What if the store is down?
    pub failure: Failure,
    /// Is the usage billed?
    pub billing: bool,
    /// Do several instances share the limit?
    pub fleet: bool,
    /// Must several rules of a request be decided together?
    pub together: bool,
    /// The attribute of the subject.
    pub per: String,
    /// The limit.
    pub limit: u64,
    /// The window.
    pub window: Span,
}

/// A rule with its reasons.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Advice {
    /// The algorithm.
    pub algorithm: &'static str,
    /// The config with the rule.
    pub config: String,
    /// Why.
    pub reasons: Vec<String>,
    /// What it promises.
    pub promise: &'static str,
    /// The bytes of Redis for one subject.
    pub bytes_per_subject: u64,
    /// The bytes for all subjects.
    pub bytes: u64,
    /// The bytes of an instance for all subjects, with state in memory.
    pub memory_bytes: u64,
    /// The CPU of Redis for a check, in microseconds: docs/performance.md.
    pub redis_micros: f64,
    /// What a simulation shows; `None` for concurrency: a simulation has no time between the start and the end of work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulation: Option<AdviceCheck>,
}

/// Why there is no advice.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdviceError {
    /// The numbers do not make a valid rule.
    Invalid(ConfigError),
    /// No period of a quota is as long as this window.
    LongWindow(Span),
}

impl fmt::Display for AdviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdviceError::Invalid(error) => error.fmt(f),
            AdviceError::LongWindow(window) => write!(
                f,
                "a quota counts by calendar periods, and none is as long as {window}: choose a window of at most 366d"
            ),
        }
    }
}

impl std::error::Error for AdviceError {}

impl From<ConfigError> for AdviceError {
    fn from(error: ConfigError) -> AdviceError {
        AdviceError::Invalid(error)
    }
}

/// What a simulation of the rule shows, with nine subjects at half of the limit and one at ten times the limit.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdviceCheck {
    /// The requests of the quiet subjects, and how many were denied.
    pub quiet_requests: u64,
    /// Of these, denied.
    pub quiet_denied: u64,
    /// The requests of the loud subject.
    pub loud_requests: u64,
    /// Of these, allowed.
    pub loud_allowed: u64,
    /// The most units that a subject was allowed in any time of `window_millis`.
    pub most_in_window: Option<u64>,
    /// The time in which a spent allowance comes back, in milliseconds.
    pub window_millis: Option<u64>,
    /// The limit that was simulated, against the advised one. It is below 1 for large limits.
    pub scale: f64,
}

/// The largest limit that is simulated. Larger ones are scaled down. A burst of twice as much can be traced.
const MOST_SIMULATED: u64 = 8_000;
const DAY: Span = Span::from_secs(86_400);

/// The periods of quotas: their names, the windows that mean them, and the length that a limit is scaled to.
const PERIODS: [(&str, [Span; 2], Span); 5] = [
    ("hour", [Span::HOUR, Span::HOUR], Span::HOUR),
    ("day", [DAY, DAY], DAY),
    ("week", [days(7), days(7)], days(7)),
    ("month", [days(28), days(31)], days(30)),
    ("year", [days(365), days(366)], days(365)),
];

const fn days(count: u64) -> Span {
    Span::from_secs(count * 86_400)
}

/// Returns the calendar period of a quota for `limit` units in `window`, and the limit in this period. A window that is
/// not a calendar period becomes the next longer one, with as much more of the limit; then the reason is there too.
fn quota_period(
    limit: u64,
    window: Span,
) -> Result<(&'static str, Span, u64, Option<String>), AdviceError> {
    let found = PERIODS
        .iter()
        .find(|(_, [_, longest], _)| window <= *longest);
    let (name, [shortest, _], length) = found.ok_or(AdviceError::LongWindow(window))?;
    if window >= *shortest {
        return Ok((name, *length, limit, None));
    }
    let scaled =
        u128::from(limit) * u128::from(length.as_micros()) / u128::from(window.as_micros().max(1));
    let scaled = u64::try_from(scaled).unwrap_or(u64::MAX).max(1);
    let in_days = if *name == "month" {
        ", counted as 30 days"
    } else {
        ""
    };
    let article = if *name == "hour" { "an" } else { "a" };
    let reason = format!(
        "a quota counts by calendar periods: {limit} in {window} becomes {scaled} in {article} {name}{in_days}, the next longer period"
    );
    Ok((name, *length, scaled, Some(reason)))
}

/// The longest log that is advised.
const LONG_LOG: u64 = 500;

/// Returns the algorithm, and why.
fn choose(answers: &Answers, reasons: &mut Vec<String>) -> Algorithm {
    let mut because = |text: &str| reasons.push(text.to_owned());
    match answers.what {
        What::Concurrency => {
            because(
                "work at the same time is limited: a lease holds a slot, and comes back if its holder crashes",
            );
            return Algorithm::Concurrency;
        }
        What::Quota => {
            because(
                "an amount in a calendar period is a quota: it starts again with the day or the month",
            );
            return Algorithm::Quota;
        }
        What::Rate if answers.billing => {
            because("billed usage needs a quota: a ledger keeps the usage through crashes");
            return Algorithm::Quota;
        }
        What::Rate => {}
    }
    if answers.bursts == Bursts::Wait {
        because("requests wait for their turn: a leaky bucket gives each request its delay");
        return Algorithm::LeakyBucket;
    }
    if answers.exact && answers.limit <= LONG_LOG && !answers.small_memory {
        because(
            "no window may exceed the limit: a sliding log is exact, and a limit up to 500 keeps it short",
        );
        return Algorithm::SlidingLog;
    }
    if answers.exact {
        because(
            "no window may exceed the limit, but a log would be long: a sliding counter never exceeds the limit either, and needs the same memory for any limit",
        );
        return Algorithm::SlidingCounter;
    }
    match (answers.bursts, answers.cost) {
        (Bursts::Smooth, _) => {
            because(
                "requests are smooth over any window: a sliding counter needs the same memory for any limit",
            );
            Algorithm::SlidingCounter
        }
        (_, CostKind::Varies | CostKind::Later) => {
            because(
                "bursts are fine and costs differ: a token bucket holds a burst and refills steadily",
            );
            Algorithm::TokenBucket
        }
        _ => {
            because(
                "bursts are fine and all requests cost the same: GCRA keeps one timestamp for each subject",
            );
            Algorithm::Gcra
        }
    }
}

fn promise(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => {
            "at most the limit in each window, and at most twice the limit in any span as long as a window"
        }
        Algorithm::SlidingLog => "never more than the limit in any window",
        Algorithm::SlidingCounter => {
            "never more than the limit in any window; a unit comes back up to a tenth of the window late"
        }
        Algorithm::TokenBucket | Algorithm::Gcra => {
            "never more than the burst at once, and the rate times the time in addition"
        }
        Algorithm::LeakyBucket => {
            "one request at a time, at the rate; a request is denied if the queue is full"
        }
        Algorithm::Quota => "never more than the limit and its grace in a period",
        Algorithm::Concurrency => "never more holders than slots",
        Algorithm::Backoff => "a longer wait after each denial",
    }
}

/// Returns the CPU of Redis for a check, as measured.
fn redis_micros(algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::FixedWindow | Algorithm::Quota => 3.19,
        Algorithm::TokenBucket => 4.50,
        Algorithm::LeakyBucket => 4.60,
        Algorithm::SlidingCounter => 11.17,
        Algorithm::SlidingLog => 17.18,
        Algorithm::Gcra | Algorithm::Concurrency | Algorithm::Backoff => 5.32,
    }
}

/// Writes the numbers of a rule.
fn numbers(algorithm: Algorithm, answers: &Answers) -> String {
    let (limit, window) = (answers.limit, answers.window);
    match algorithm {
        Algorithm::Concurrency => format!("limit: {limit}, lease: 30s"),
        Algorithm::Quota => {
            let found = PERIODS.iter().find(|(_, _, length)| window <= *length);
            let period = found.map_or("year", |(name, ..)| *name);
            format!("limit: {limit}, period: {period}")
        }
        Algorithm::LeakyBucket => {
            let queue = (limit / 10).max(1);
            format!("rate: {limit}/{window}, queue: {queue}, shape: true, max_wait: 5s")
        }
        Algorithm::Gcra => {
            format!("rate: {limit}/{window}, burst: {limit}")
        }
        Algorithm::TokenBucket => format!("capacity: {limit}, refill: {limit}/{window}"),
        _ => format!("limit: {limit}, window: {window}"),
    }
}

/// Makes a rule from answers.
///
/// # Errors
/// If the numbers do not make a valid rule.
pub fn advise(answers: &Answers) -> Result<Advice, AdviceError> {
    let mut reasons = Vec::new();
    let algorithm = choose(answers, &mut reasons);
    let mut answers = answers.clone();
    if algorithm == Algorithm::Quota {
        let (_, length, limit, reason) = quota_period(answers.limit, answers.window)?;
        (answers.window, answers.limit) = (length, limit);
        reasons.extend(reason);
    }
    let text = config(algorithm, &answers, &mut reasons);
    let parsed = offline(&text)?;
    let rule = parsed.policy.rules.first();
    let bytes = rule.map_or(0, |rule| redis_bytes(rule, answers.limit));
    let in_process = rule.map_or(0, |rule| {
        memory_bytes(rule, answers.subjects, answers.limit)
    });
    let simulation = match algorithm {
        Algorithm::Concurrency => None,
        _ => Some(check(algorithm, &answers)?),
    };
    Ok(Advice {
        algorithm: algorithm.name(),
        config: text,
        reasons,
        promise: promise(algorithm),
        bytes_per_subject: bytes,
        bytes: bytes.saturating_mul(answers.subjects),
        memory_bytes: in_process,
        redis_micros: redis_micros(algorithm),
        simulation,
    })
}

/// Reads the config of an advice. The store and the ledger are not opened here.
fn offline(text: &str) -> Result<tollgate::Config, ConfigError> {
    let text = text.replace("${TOLLGATE_SECRET}", "a secret of an advice");
    parse("advice", &text, &|_| None)
}

fn config(algorithm: Algorithm, answers: &Answers, reasons: &mut Vec<String>) -> String {
    let mut text = String::from("version: 1\n");
    if answers.fleet || answers.billing {
        text += "subjects: { hash_secret: \"${TOLLGATE_SECRET}\" }\n";
    }
    if answers.fleet {
        text += "store: { redis: { url: \"redis://127.0.0.1:6379\" } }\n";
        reasons.push(
            "several instances share the limit: one atomic script in Redis decides".to_owned(),
        );
    } else {
        reasons.push(
            "one instance: state in memory needs no Redis, and a restart forgets it".to_owned(),
        );
    }
    if answers.billing {
        let ledger = match answers.fleet {
            true => "ledger: { postgres: \"postgres://tollgate@127.0.0.1/tollgate\" }\n",
            false => "ledger: { sqlite: ./tollgate.db }\n",
        };
        text += ledger;
        reasons.push(
            "usage is billed: a ledger records it, and rebuilds counts that Redis has lost"
                .to_owned(),
        );
    }
    let policy = match answers.failure {
        Failure::Open => "fail-open",
        Failure::Closed => "fail-closed",
        Failure::Local => "local-fallback",
    };
    let mut rule = format!(
        "  - id: {}\n    per: [{}]\n    algorithm: {}\n    {}\n",
        algorithm.name(),
        answers.per,
        algorithm.name(),
        numbers(algorithm, answers).replace(", ", "\n    ")
    );
    if answers.cost == CostKind::Varies && algorithm != Algorithm::Concurrency {
        rule += "    cost: 'has(attributes.units) ? int(units) : 1'\n";
        reasons.push(
            "costs differ: the attribute `units` says the cost; a request without it costs 1"
                .to_owned(),
        );
    }
    if answers.cost == CostKind::Later {
        reasons.push(
            "the cost is known afterwards: reserve an estimate, and commit what was used"
                .to_owned(),
        );
    }
    if answers.billing && algorithm == Algorithm::Quota {
        rule += "    durability: strict\n";
    }
    let _ = writeln!(rule, "    on_store_failure: {policy}");
    reasons.push(match answers.failure {
        Failure::Open => {
            "while the store is down requests pass: availability counts more than the limit"
                .to_owned()
        }
        Failure::Closed => {
            "while the store is down requests are denied: the limit counts more than availability"
                .to_owned()
        }
        Failure::Local => {
            "while the store is down each instance counts its share by itself: set `replicas`"
                .to_owned()
        }
    });
    if answers.together {
        reasons.push("several rules of a request are decided in one step, all or none: in a cluster keep the tenant in `per`".to_owned());
    }
    format!("{text}rules:\n{rule}")
}

/// Simulates nine subjects at half of the limit and one at ten times the limit, for up to five windows. A large limit is
/// scaled down.
fn check(algorithm: Algorithm, answers: &Answers) -> Result<AdviceCheck, ConfigError> {
    let scaled = answers.limit.min(MOST_SIMULATED);
    let scale = scaled as f64 / answers.limit.max(1) as f64;
    let answers = Answers {
        limit: scaled,
        ..answers.clone()
    };
    let config = &offline(&config(algorithm, &answers, &mut Vec::new()))?;
    // Large limits are simulated with fewer windows.
    let windows = (200_000 / answers.limit.saturating_mul(15).max(1)).clamp(1, 5);
    let (per, window) = (&answers.per, answers.window);
    let lasts = Span::from_micros(window.as_micros().saturating_mul(windows));
    let stream = |kind: &str, rate: u64, subjects: u32, name: &str| {
        format!(
            "{kind} rate={rate}/{window} subjects={subjects} per={per} name={name} duration={lasts}"
        )
    };
    let texts = [
        stream(
            "steady",
            answers.limit.saturating_mul(9).div_ceil(2),
            9,
            "quiet",
        ),
        stream("poisson", answers.limit.saturating_mul(10), 1, "loud"),
    ];
    let streams: Vec<Stream> = texts.iter().filter_map(|text| text.parse().ok()).collect();
    let mut simulation = Simulation::new(config, None, true);
    let start = Time::from_micros(1_767_225_600_000_000);
    let (mut quiet, mut loud) = (0, 0);
    Traffic::new(streams, start, 1).run(&mut |time, attributes, units| {
        match attributes.get(per).is_some_and(|it| it.starts_with("loud")) {
            true => loud += 1,
            false => quiet += 1,
        }
        simulation.decide(time, attributes, units);
    });
    let report = simulation.finish();
    let rule = report.new.rules.first();
    let denied = rule.map_or(0, |rule| {
        let rows = rule
            .most_denied
            .iter()
            .filter(|row| row.name.contains("=loud"));
        rows.map(|row| row.counts.denied).sum()
    });
    let burst = rule.and_then(|rule| rule.largest_burst);
    Ok(AdviceCheck {
        quiet_requests: quiet,
        quiet_denied: report.new.denied - denied,
        loud_requests: loud,
        loud_allowed: loud - denied,
        most_in_window: burst.map(|it| it.admitted),
        window_millis: burst.map(|it| it.window_millis),
        scale,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(limit: u64, window: Span) -> Advice {
        let answers = Answers {
            what: What::Quota,
            exact: false,
            bursts: Bursts::Allow,
            cost: CostKind::Same,
            subjects: 10,
            small_memory: false,
            failure: Failure::Local,
            billing: false,
            fleet: false,
            together: false,
            per: "tenant".to_owned(),
            limit,
            window,
        };
        advise(&answers).unwrap()
    }

    #[test]
    fn quotas_have_calendar_periods_with_as_much_of_the_limit() {
        let numbers = |limit, window| {
            let advice = quota(limit, window);
            let config = parse("advice", &advice.config, &|_| None).unwrap();
            let rule = &config.policy.rules[0];
            let period = advice
                .config
                .lines()
                .find_map(|line| line.trim().strip_prefix("period: "));
            (rule.limit().capacity(), period.unwrap().to_owned())
        };
        for (window, limit, period) in [
            (Span::MINUTE, 6_000, "hour"),
            (Span::HOUR, 100, "hour"),
            (Span::from_secs(7_200), 1_200, "day"),
            (days(1), 100, "day"),
            (days(7), 100, "week"),
            (days(10), 300, "month"),
            (days(28), 100, "month"),
            (days(31), 100, "month"),
            (days(73), 500, "year"),
            (days(366), 100, "year"),
        ] {
            assert_eq!(numbers(100, window), (limit, period.to_owned()), "{window}");
        }
        assert!(quota(100, Span::MINUTE).reasons[1].starts_with("a quota counts by calendar"));
        assert_eq!(quota(100, days(1)).reasons.len(), 3);
    }

    #[test]
    fn windows_longer_than_a_year_are_rejected_for_quotas() {
        let error = quota_period(100, days(367)).unwrap_err();
        assert!(error.to_string().ends_with("at most 366d"), "{error}");
    }

    #[test]
    fn quotas_are_simulated_and_large_limits_are_scaled() {
        let check = quota(1_000_000, days(30)).simulation.unwrap();
        assert_eq!(check.scale, 0.008);
        assert_eq!((check.quiet_requests, check.quiet_denied), (36_000, 0));
        // Thirty days from January 1 are in one month.
        assert_eq!(check.loud_allowed, 8_000);
    }
}
