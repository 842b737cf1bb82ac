//! Advice: ten answers lead to a rule, with reasons, its cost and its promise, and a simulation of it.

use std::fmt::Write as _;

use serde::Serialize;
use tollgate::{Algorithm, ConfigError, Span, Time};
use tollgate_config::parse;

use crate::traffic::{Stream, Traffic};
use crate::{Simulation, redis_bytes};

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Requests per time.
    Rate,
    /// An amount in a calendar period.
    Quota,
    /// Work at the same time.
    Concurrency,
}

/// What happens to bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bursts {
    /// A subject may use its allowance at once.
    Allow,
    /// Requests are smooth over any window.
    Smooth,
    /// Requests wait for their turn.
    Wait,
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostKind {
    /// All requests cost the same.
    Same,
    /// An attribute says the cost.
    Varies,
    /// The cost is known afterwards.
    Later,
}

/// What happens while the store is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The CPU of Redis for a check, in microseconds: docs/performance.md.
    pub redis_micros: f64,
    /// What a simulation shows; `None` for concurrency, which has no requests to count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulation: Option<AdviceCheck>,
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
            because("what is billed is a quota: a ledger keeps it through crashes");
            return Algorithm::Quota;
        }
        What::Rate => {}
    }
    if answers.bursts == Bursts::Wait {
        because("requests wait for their turn: a leaky bucket tells each its delay");
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
            "at most the limit in each window, at most twice the limit in any"
        }
        Algorithm::SlidingLog => "never more than the limit in any window",
        Algorithm::SlidingCounter => {
            "never more than the limit in any window; a unit comes back up to a tenth of the window late"
        }
        Algorithm::TokenBucket | Algorithm::Gcra => {
            "never more than the burst at once, and the rate times the time in addition"
        }
        Algorithm::LeakyBucket => "one request at a time, at the rate; a full queue is denied",
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
            let period = match window.as_micros() / Span::HOUR.as_micros() {
                0..=12 => "hour",
                13..=84 => "day",
                85..=400 => "week",
                401..=4_000 => "month",
                _ => "year",
            };
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
pub fn advise(answers: &Answers) -> Result<Advice, ConfigError> {
    let mut reasons = Vec::new();
    let algorithm = choose(answers, &mut reasons);
    let config = config(algorithm, answers, &mut reasons);
    // The store and the ledger are not opened here.
    let offline = config.replace("${TOLLGATE_SECRET}", "a secret of an advice");
    let parsed = parse("advice", &offline, &|_| None)?;
    let bytes = parsed
        .policy
        .rules
        .first()
        .map_or(0, |rule| redis_bytes(rule, answers.limit));
    let simulation = match algorithm {
        Algorithm::Concurrency | Algorithm::Quota => None,
        _ => Some(check(&parsed, answers)),
    };
    Ok(Advice {
        algorithm: algorithm.name(),
        config,
        reasons,
        promise: promise(algorithm),
        bytes_per_subject: bytes,
        bytes: bytes.saturating_mul(answers.subjects),
        redis_micros: redis_micros(algorithm),
        simulation,
    })
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
            "costs differ: the attribute `units` says the cost, and 1 holds without it".to_owned(),
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

/// Simulates nine subjects at half of the limit and one at ten times the limit, for five windows.
fn check(config: &tollgate::Config, answers: &Answers) -> AdviceCheck {
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
    AdviceCheck {
        quiet_requests: quiet,
        quiet_denied: report.new.denied - denied,
        loud_requests: loud,
        loud_allowed: loud - denied,
        most_in_window: burst.map(|it| it.admitted),
        window_millis: burst.map(|it| it.window_millis),
    }
}
