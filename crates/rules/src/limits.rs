//! The numbers of a rule to a [`Limit`]: each algorithm takes its own, and no others.

use tollgate_core::{Algorithm, Leaky, Limit, ParamError};

use crate::error::{Place, Problems};
use crate::raw::{RawAlgorithm, RawEstimate};
use crate::read::Field;
use crate::values::{Amount, Flag, Length, Speed, Whole};

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

/// Numbers as they are written: each may be given or not. What a plan or a tenant says is laid over
/// what the rule says, number by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) limit: Option<Amount>,
    pub(crate) window: Option<Length>,
    pub(crate) buckets: Option<Whole>,
    pub(crate) estimate: Option<RawEstimate>,
    pub(crate) capacity: Option<Amount>,
    pub(crate) refill: Option<Speed>,
    pub(crate) rate: Option<Speed>,
    pub(crate) burst: Option<Whole>,
    pub(crate) queue: Option<Whole>,
    pub(crate) shape: Option<Flag>,
    pub(crate) max_wait: Option<Length>,
}

/// The fields of numbers, wherever they are written.
pub(crate) struct Written<'f> {
    pub(crate) limit: &'f Field<Amount>,
    pub(crate) window: &'f Field<Length>,
    pub(crate) buckets: &'f Field<Whole>,
    pub(crate) estimate: &'f Field<RawEstimate>,
    pub(crate) capacity: &'f Field<Amount>,
    pub(crate) refill: &'f Field<Speed>,
    pub(crate) rate: &'f Field<Speed>,
    pub(crate) burst: &'f Field<Whole>,
    pub(crate) queue: &'f Field<Whole>,
    pub(crate) shape: &'f Field<Flag>,
    pub(crate) max_wait: &'f Field<Length>,
}

/// How an allowance is counted: the algorithm, its numbers, and the limit they make.
#[derive(Clone, Debug)]
pub(crate) struct Counting {
    pub(crate) algorithm: RawAlgorithm,
    pub(crate) numbers: Numbers,
    pub(crate) limit: Limit,
}

impl Written<'_> {
    /// The fields by name: where the name and the value stand.
    fn places(&self) -> [(&'static str, Option<Place>, Option<Place>); 11] {
        fn both<T>(
            name: &'static str,
            field: &Field<T>,
        ) -> (&'static str, Option<Place>, Option<Place>) {
            (name, field.key(), field.get().map(|at| at.place))
        }
        [
            both("limit", self.limit),
            both("window", self.window),
            both("buckets", self.buckets),
            both("estimate", self.estimate),
            both("capacity", self.capacity),
            both("refill", self.refill),
            both("rate", self.rate),
            both("burst", self.burst),
            both("queue", self.queue),
            both("shape", self.shape),
            both("max_wait", self.max_wait),
        ]
    }

    /// The first field that is given, broken or not.
    pub(crate) fn first_key(&self) -> Option<(&'static str, Place)> {
        let mut places = self.places().into_iter();
        places.find_map(|(name, key, _)| key.map(|key| (name, key)))
    }

    /// The numbers; `None` if one is broken, which was reported.
    pub(crate) fn numbers(&self) -> Option<Numbers> {
        fn number<T: Copy>(field: &Field<T>) -> Option<Option<T>> {
            match field {
                Field::Absent => Some(None),
                Field::Broken { .. } => None,
                Field::Given { at, .. } => Some(Some(at.value)),
            }
        }
        Some(Numbers {
            limit: number(self.limit)?,
            window: number(self.window)?,
            buckets: number(self.buckets)?,
            estimate: number(self.estimate)?,
            capacity: number(self.capacity)?,
            refill: number(self.refill)?,
            rate: number(self.rate)?,
            burst: number(self.burst)?,
            queue: number(self.queue)?,
            shape: number(self.shape)?,
            max_wait: number(self.max_wait)?,
        })
    }

    /// Where the value of a number stands. A default comes from the rate, and is shown there.
    fn place_of(&self, name: &str) -> Option<Place> {
        let places = self.places();
        let place = |name: &str| places.iter().find(|(known, ..)| *known == name)?.2;
        place(name).or_else(|| match name {
            "burst" | "queue" => place("rate"),
            "buckets" => place("window"),
            _ => None,
        })
    }

    fn key_of(&self, name: &str) -> Option<Place> {
        let mut places = self.places().into_iter();
        places.find(|(known, ..)| *known == name)?.1
    }

    /// Reports numbers that are not the algorithm's.
    fn check_taken(&self, raw: RawAlgorithm, problems: &mut Problems<'_>) {
        let (needed, optional) = takes(raw);
        for (name, key, _) in self.places() {
            if let Some(key) = key
                && !needed.contains(&name)
                && !optional.contains(&name)
            {
                problems.report(
                    key,
                    format!("`{name}` is not a number of {}", raw.name()),
                    format!("{} takes {}", raw.name(), taken(raw)),
                );
            }
        }
    }
}

/// The numbers that an algorithm takes, in words.
fn taken(raw: RawAlgorithm) -> String {
    let (needed, optional) = takes(raw);
    match optional {
        [] => needed.join(" and "),
        _ => format!(
            "{}, and optionally {}",
            needed.join(" and "),
            optional.join(", ")
        ),
    }
}

/// How a rule or a budget counts; `None` if something is wrong with it, which was reported. `what` it
/// is, and where it starts.
pub(crate) fn counting(
    algorithm: &Field<RawAlgorithm>,
    written: &Written<'_>,
    what: &str,
    place: Place,
    problems: &mut Problems<'_>,
) -> Option<Counting> {
    let algorithm = algorithm.get()?;
    let raw = algorithm.value;
    let (needed, _) = takes(raw);
    let mut complete = true;
    written.check_taken(raw, problems);
    for (name, key, _) in written.places() {
        if key.is_none() && needed.contains(&name) {
            complete = false;
            problems.report(
                place,
                format!("this {} {what} has no `{name}`", raw.name()),
                format!(
                    "{} takes {}; add `{name}: {}`",
                    raw.name(),
                    taken(raw),
                    sample(name)
                ),
            );
        }
    }
    complete &= consistent(written, raw, problems);
    if !complete {
        return None;
    }
    let numbers = written.numbers()?;
    match numbers.limit(raw)? {
        Ok(limit) => Some(Counting {
            algorithm: raw,
            numbers,
            limit,
        }),
        Err(error) => {
            let at = written.place_of(error.field()).unwrap_or(algorithm.place);
            problems.report(at, error.to_string(), error.help());
            None
        }
    }
}

/// What a plan or a tenant says of numbers that `base` has otherwise; `None` if something is wrong with
/// it, which was reported.
pub(crate) fn patch(
    algorithm: RawAlgorithm,
    base: &Numbers,
    written: &Written<'_>,
    place: Place,
    problems: &mut Problems<'_>,
) -> Option<Numbers> {
    written.check_taken(algorithm, problems);
    let patch = written.numbers()?;
    if let Some((field, why)) = base.idle(&patch) {
        let at = written.key_of(field).unwrap_or(place);
        problems.report(at, why, format!("leave `{field}` out"));
        return None;
    }
    match base.with(&patch).limit(algorithm)? {
        Ok(_) => Some(patch),
        Err(error) => {
            let at = written.place_of(error.field()).unwrap_or(place);
            problems.report(at, error.to_string(), error.help());
            None
        }
    }
}

impl Numbers {
    /// These, with those of `patch` that are given in their places.
    pub(crate) fn with(&self, patch: &Numbers) -> Numbers {
        Numbers {
            limit: patch.limit.or(self.limit),
            window: patch.window.or(self.window),
            buckets: patch.buckets.or(self.buckets),
            estimate: patch.estimate.or(self.estimate),
            capacity: patch.capacity.or(self.capacity),
            refill: patch.refill.or(self.refill),
            rate: patch.rate.or(self.rate),
            burst: patch.burst.or(self.burst),
            queue: patch.queue.or(self.queue),
            shape: patch.shape.or(self.shape),
            max_wait: patch.max_wait.or(self.max_wait),
        }
    }

    /// The numbers that are given, by name and as they would be written.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, String)> {
        let all = [
            ("limit", self.limit.map(|it| it.to_string())),
            ("window", self.window.map(|it| it.to_string())),
            ("buckets", self.buckets.map(|it| it.to_string())),
            ("estimate", self.estimate.map(|it| it.name().to_owned())),
            ("capacity", self.capacity.map(|it| it.to_string())),
            ("refill", self.refill.map(|it| it.to_string())),
            ("rate", self.rate.map(|it| it.to_string())),
            ("burst", self.burst.map(|it| it.to_string())),
            ("queue", self.queue.map(|it| it.to_string())),
            ("shape", self.shape.map(|it| it.0.to_string())),
            ("max_wait", self.max_wait.map(|it| it.to_string())),
        ];
        all.into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
    }

    /// A number of `patch` that would do nothing over these, and why.
    fn idle(&self, patch: &Numbers) -> Option<(&'static str, &'static str)> {
        if patch.buckets.is_some() && self.estimate.is_some() {
            return Some((
                "buckets",
                "the rule estimates from two windows, and has no buckets",
            ));
        }
        if patch.max_wait.is_some() && self.shape != Some(Flag(true)) {
            return Some(("max_wait", "the rule does not shape, and nobody waits"));
        }
        None
    }

    /// Why they cannot replace those of `counting`, if they cannot.
    pub(crate) fn misfit(&self, counting: &Counting) -> Option<String> {
        let (needed, optional) = takes(counting.algorithm);
        let mut given = self.given();
        let stranger = given.find(|(name, _)| !needed.contains(name) && !optional.contains(name));
        if let Some((name, _)) = stranger {
            let algorithm = counting.algorithm.name();
            let taken = taken(counting.algorithm);
            return Some(format!(
                "`{name}` is not a number of {algorithm}, which takes {taken}"
            ));
        }
        if let Some((_, why)) = counting.numbers.idle(self) {
            return Some(why.to_owned());
        }
        match counting.numbers.with(self).limit(counting.algorithm)? {
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    /// The limit they make; `None` if one that is needed is not given.
    pub(crate) fn limit(&self, raw: RawAlgorithm) -> Option<Result<Limit, ParamError>> {
        let algorithm = algorithm_of(raw);
        let unlimited = Some(Ok(Limit::unlimited(algorithm)));
        match raw {
            RawAlgorithm::FixedWindow | RawAlgorithm::SlidingLog | RawAlgorithm::SlidingCounter => {
                let (Amount(limit), Length(window)) = (self.limit?, self.window?);
                let Some(limit) = limit else {
                    return unlimited;
                };
                Some(match raw {
                    RawAlgorithm::FixedWindow => Limit::fixed_window(limit, window),
                    RawAlgorithm::SlidingLog => Limit::sliding_log(limit, window),
                    _ if self.estimate.is_some() => Limit::two_window(limit, window),
                    _ => {
                        let buckets = self.buckets.map_or(DEFAULT_BUCKETS, |it| it.0);
                        let buckets = u32::try_from(buckets).unwrap_or(u32::MAX);
                        Limit::sliding_counter(limit, window, buckets)
                    }
                })
            }
            RawAlgorithm::TokenBucket => match (self.capacity?.0, self.refill?.0) {
                (Some(capacity), Some(refill)) => Some(Limit::token_bucket(capacity, refill)),
                _ => unlimited,
            },
            RawAlgorithm::Gcra => {
                let Some(rate) = self.rate?.0 else {
                    return unlimited;
                };
                let burst = self.burst.map_or(rate.amount(), |it| it.0);
                Some(Limit::gcra(rate, burst))
            }
            RawAlgorithm::LeakyBucket => {
                let Some(rate) = self.rate?.0 else {
                    return unlimited;
                };
                let queue = self.queue.map_or(0, |it| it.0);
                let leaky = match self.shape {
                    Some(Flag(true)) => Leaky::Shape {
                        max_wait: self.max_wait.map(|it| it.0),
                    },
                    _ => Leaky::Police,
                };
                Some(Limit::leaky_bucket(rate, queue, leaky))
            }
        }
    }
}

/// Fields that only make sense together, or apart.
fn consistent(rule: &Written<'_>, raw: RawAlgorithm, problems: &mut Problems<'_>) -> bool {
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

fn sample(name: &str) -> &'static str {
    match name {
        "window" => "1m",
        "rate" | "refill" => "10/s",
        _ => "100",
    }
}
