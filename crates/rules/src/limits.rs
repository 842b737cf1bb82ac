//! The numbers of a rule to a [`Limit`]: each algorithm takes its own, and no others.

use tollgate_core::{Algorithm, Leaky, Limit, ParamError, Rate, Span};

use crate::error::{Place, Problems};
use crate::raw::{RawAlgorithm, RawRule};
use crate::read::Field;
use crate::values::{Amount, Length, Speed, Whole};

/// How many parts a sliding-counter divides its window into, unless it says.
const DEFAULT_BUCKETS: u64 = 10;

/// The fields an algorithm needs, and those it may have.
fn takes(algorithm: RawAlgorithm) -> (&'static [&'static str], &'static [&'static str]) {
    match algorithm {
        RawAlgorithm::FixedWindow | RawAlgorithm::SlidingLog => (&["limit", "window"], &[]),
        RawAlgorithm::SlidingCounter => (&["limit", "window"], &["buckets", "estimate"]),
        RawAlgorithm::TokenBucket => (&["capacity", "refill"], &[]),
        RawAlgorithm::Gcra => (&["rate"], &["burst"]),
        RawAlgorithm::LeakyBucket => (&["rate"], &["queue", "shape", "max_wait"]),
    }
}

fn algorithm_of(raw: RawAlgorithm) -> Algorithm {
    match raw {
        RawAlgorithm::FixedWindow => Algorithm::FixedWindow,
        RawAlgorithm::SlidingLog => Algorithm::SlidingLog,
        RawAlgorithm::SlidingCounter => Algorithm::SlidingCounter,
        RawAlgorithm::TokenBucket => Algorithm::TokenBucket,
        RawAlgorithm::Gcra => Algorithm::Gcra,
        RawAlgorithm::LeakyBucket => Algorithm::LeakyBucket,
    }
}

/// The numbers of `rule`, by name: where the name and the value stand.
fn numbers(rule: &RawRule) -> [(&'static str, Option<Place>, Option<Place>); 10] {
    fn both<T>(
        name: &'static str,
        field: &Field<T>,
    ) -> (&'static str, Option<Place>, Option<Place>) {
        (name, field.key(), field.get().map(|at| at.place))
    }
    [
        both("limit", &rule.limit),
        both("window", &rule.window),
        both("buckets", &rule.buckets),
        both("estimate", &rule.estimate),
        both("capacity", &rule.capacity),
        both("refill", &rule.refill),
        both("rate", &rule.rate),
        both("burst", &rule.burst),
        both("queue", &rule.queue),
        both("shape", &rule.shape),
    ]
}

/// The limit of `rule`; `None` if something is wrong with it, which was reported.
pub(crate) fn limit_of(rule: &RawRule, place: Place, problems: &mut Problems<'_>) -> Option<Limit> {
    let algorithm = rule.algorithm.get()?;
    let raw = algorithm.value;
    let (needed, optional) = takes(raw);
    let numbers_taken = match optional {
        [] => needed.join(" and "),
        _ => format!(
            "{}, and optionally {}",
            needed.join(" and "),
            optional.join(", ")
        ),
    };
    let max_wait = ("max_wait", rule.max_wait.key(), None);
    let mut complete = true;
    for (name, key, _) in numbers(rule).into_iter().chain([max_wait]) {
        match key {
            Some(key) if !needed.contains(&name) && !optional.contains(&name) => {
                problems.report(
                    key,
                    format!("`{name}` is not a number of {}", raw.name()),
                    format!("{} takes {numbers_taken}", raw.name()),
                );
            }
            None if needed.contains(&name) => {
                complete = false;
                problems.report(
                    place,
                    format!("this {} rule has no `{name}`", raw.name()),
                    format!(
                        "{} takes {numbers_taken}; add `{name}: {}`",
                        raw.name(),
                        sample(name)
                    ),
                );
            }
            _ => {}
        }
    }
    complete &= consistent(rule, raw, problems);
    if !complete {
        return None;
    }
    match build(rule, raw)? {
        Ok(limit) => Some(limit),
        Err(error) => {
            let at = place_of(rule, error.field()).unwrap_or(algorithm.place);
            problems.report(at, error.to_string(), error.help());
            None
        }
    }
}

/// Fields that only make sense together, or apart.
fn consistent(rule: &RawRule, raw: RawAlgorithm, problems: &mut Problems<'_>) -> bool {
    if raw == RawAlgorithm::SlidingCounter
        && let (Some(buckets), Some(_)) = (rule.buckets.key(), rule.estimate.key())
    {
        problems.report(
            buckets,
            "`buckets` and `estimate` exclude each other",
            "keep `buckets` for a window in parts, or `estimate` for two weighted windows",
        );
        return false;
    }
    let shapes = rule.shape.value().is_some_and(|shape| shape.0);
    if raw == RawAlgorithm::LeakyBucket
        && let Some(max_wait) = rule.max_wait.key()
        && !shapes
    {
        problems.report(
            max_wait,
            "`max_wait` without `shape: true` has no effect",
            "add `shape: true`, or remove `max_wait`",
        );
        return false;
    }
    true
}

/// `None` if a field is broken.
fn build(rule: &RawRule, raw: RawAlgorithm) -> Option<Result<Limit, ParamError>> {
    let algorithm = algorithm_of(raw);
    let unlimited = Some(Ok(Limit::unlimited(algorithm)));
    match raw {
        RawAlgorithm::FixedWindow | RawAlgorithm::SlidingLog | RawAlgorithm::SlidingCounter => {
            let limit = amount(&rule.limit)?;
            let window = length(&rule.window)?;
            let Some(limit) = limit else {
                return unlimited;
            };
            Some(match raw {
                RawAlgorithm::FixedWindow => Limit::fixed_window(limit, window),
                RawAlgorithm::SlidingLog => Limit::sliding_log(limit, window),
                _ if !rule.estimate.is_absent() => Limit::two_window(limit, window),
                _ => {
                    let buckets = whole(&rule.buckets, DEFAULT_BUCKETS)?;
                    let buckets = u32::try_from(buckets).unwrap_or(u32::MAX);
                    Limit::sliding_counter(limit, window, buckets)
                }
            })
        }
        RawAlgorithm::TokenBucket => match (amount(&rule.capacity)?, speed(&rule.refill)?) {
            (Some(capacity), Some(refill)) => Some(Limit::token_bucket(capacity, refill)),
            _ => unlimited,
        },
        RawAlgorithm::Gcra => {
            let Some(rate) = speed(&rule.rate)? else {
                return unlimited;
            };
            let burst = whole(&rule.burst, rate.amount())?;
            Some(Limit::gcra(rate, burst))
        }
        RawAlgorithm::LeakyBucket => {
            let Some(rate) = speed(&rule.rate)? else {
                return unlimited;
            };
            let queue = whole(&rule.queue, 0)?;
            let leaky = match &rule.shape {
                Field::Broken { .. } => return None,
                Field::Given { at, .. } if at.value.0 => Leaky::Shape {
                    max_wait: match &rule.max_wait {
                        Field::Broken { .. } => return None,
                        Field::Absent => None,
                        Field::Given { at, .. } => Some(at.value.0),
                    },
                },
                Field::Absent | Field::Given { .. } => Leaky::Police,
            };
            Some(Limit::leaky_bucket(rate, queue, leaky))
        }
    }
}

fn amount(field: &Field<Amount>) -> Option<Option<u64>> {
    field.value().map(|amount| amount.0)
}

fn speed(field: &Field<Speed>) -> Option<Option<Rate>> {
    field.value().map(|speed| speed.0)
}

fn length(field: &Field<Length>) -> Option<Span> {
    field.value().map(|length| length.0)
}

fn whole(field: &Field<Whole>, default: u64) -> Option<u64> {
    match field {
        Field::Absent => Some(default),
        Field::Broken { .. } => None,
        Field::Given { at, .. } => Some(at.value.0),
    }
}

/// Where the value of a number stands. A default comes from the rate, and is shown there.
fn place_of(rule: &RawRule, name: &str) -> Option<Place> {
    if name == "max_wait" {
        return rule.max_wait.get().map(|at| at.place);
    }
    let numbers = numbers(rule);
    let place = |name: &str| numbers.iter().find(|(known, ..)| *known == name)?.2;
    place(name).or_else(|| match name {
        "burst" | "queue" => place("rate"),
        "buckets" => place("window"),
        _ => None,
    })
}

fn sample(name: &str) -> &'static str {
    match name {
        "window" => "1m",
        "rate" | "refill" => "10/s",
        _ => "100",
    }
}
