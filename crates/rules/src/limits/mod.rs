//! Turns the numbers of a rule into a [`Limit`]. Each algorithm takes only its own numbers.

mod numbers;

use tollgate_core::{Algorithm, Limit, ParamError};

pub(crate) use numbers::{Numbers, Terms, Written};

use crate::document::{Field, Place, Problems};
use crate::mode::Modes;
use crate::raw::RawAlgorithm;
use crate::share::Carried;
use crate::waiting;

/// Returns the fields that an algorithm needs, and the fields that it may have.
fn takes(algorithm: RawAlgorithm) -> (&'static [&'static str], &'static [&'static str]) {
    match algorithm {
        RawAlgorithm::FixedWindow | RawAlgorithm::SlidingLog => {
            (&["limit", "window"], &["max_wait", "max_waiting"])
        }
        RawAlgorithm::SlidingCounter => (
            &["limit", "window"],
            &["buckets", "estimate", "max_wait", "max_waiting"],
        ),
        RawAlgorithm::TokenBucket => (
            &["capacity", "refill"],
            &["fair", "max_wait", "max_waiting"],
        ),
        RawAlgorithm::Gcra => (&["rate"], &["burst", "max_wait", "max_waiting"]),
        RawAlgorithm::LeakyBucket => (&["rate"], &["queue", "shape", "max_wait"]),
        RawAlgorithm::Quota => (
            &["limit", "period"],
            &["timezone", "anchor", "grace", "carry_over"],
        ),
        RawAlgorithm::Concurrency => (&["limit"], &["lease"]),
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
        RawAlgorithm::Quota => Algorithm::Quota,
        RawAlgorithm::Concurrency => Algorithm::Concurrency,
    }
}

/// How an allowance is counted: the algorithm, its numbers, the limit they make, and the mode.
#[derive(Clone, Debug)]
pub(crate) struct Counting {
    pub(crate) algorithm: RawAlgorithm,
    pub(crate) numbers: Numbers,
    pub(crate) limit: Limit,
    pub(crate) modes: Modes,
}

impl Written<'_> {
    /// Returns the first field that is given, whether it is broken or not.
    pub(crate) fn first_key(&self) -> Option<(&'static str, Place)> {
        let mut fields = self.fields().into_iter();
        fields.find_map(|(name, key, _)| key.map(|key| (name, key)))
    }

    /// Returns the position of a number's value. For a number that is not written, this is the position
    /// of the field that the default comes from.
    fn place_of(&self, name: &str) -> Option<Place> {
        let fields = self.fields();
        let place = |name: &str| fields.iter().find(|(known, ..)| *known == name)?.2;
        place(name).or_else(|| match name {
            "burst" | "queue" => place("rate"),
            "buckets" => place("window"),
            "anchor" => place("period"),
            // A percentage here is a share of the limit.
            "grace" | "carry_over" => place("limit"),
            _ => None,
        })
    }

    /// Reports numbers that the algorithm does not take.
    fn check_taken(&self, raw: RawAlgorithm, problems: &mut Problems<'_>) {
        let (needed, optional) = takes(raw);
        // With every algorithm, `carry_over` may say how counts carry over. Only an amount must fit the
        // algorithm.
        let amount = matches!(self.carry_over.value(), Some(Carried::Most(_)));
        for (name, key, _) in self.fields() {
            if let Some(key) = key
                && !needed.contains(&name)
                && !optional.contains(&name)
                && (name != "carry_over" || amount)
            {
                let (message, help) = stranger(name, raw);
                problems.report(key, message, help);
            }
        }
    }

    /// Reports a field that only a rule or a budget has.
    pub(crate) fn check_numbers(&self, problems: &mut Problems<'_>) {
        if let Some(at) = self.carry_over.get()
            && let Carried::Counts(word) = at.value
        {
            let message = format!("`{}` is not a number", word.name());
            let help = "write this word in the rule or the budget; here write how much a quota \
                        carries into its next period, such as 10%";
            problems.report(at.place, message, help);
        }
    }
}

/// Returns the message and the remedy for a number that the algorithm `raw` does not take.
fn stranger(name: &str, raw: RawAlgorithm) -> (String, String) {
    let (own, takes) = (raw.name(), format!("{} takes {}", raw.name(), taken(raw)));
    match (name, raw) {
        ("carry_over", _) => (
            format!("only a quota carries an amount over, and this is {own}"),
            "write keep, proportional or reset: how counts carry over when numbers change"
                .to_owned(),
        ),
        ("window", RawAlgorithm::Quota) => (
            "a quota has a `period` instead of a `window`".to_owned(),
            "write a period of the calendar, such as `period: month`; \
             `algorithm: fixed-window` counts windows"
                .to_owned(),
        ),
        ("window", RawAlgorithm::Concurrency) => (
            "`window` is not a field of concurrency".to_owned(),
            "remove it: slots are held, not counted in a window, and `lease` sets for how long"
                .to_owned(),
        ),
        ("period" | "timezone" | "anchor" | "grace", _) => (
            format!("`{name}` is for quotas, and this is {own}"),
            format!("write `algorithm: quota`, or remove `{name}`: {takes}"),
        ),
        ("fair", RawAlgorithm::Gcra) => (
            "only a token-bucket has fair shares, and this is gcra".to_owned(),
            "write `algorithm: token-bucket` with `capacity` (the burst) and `refill` (the rate), which admits \
             the same"
                .to_owned(),
        ),
        ("fair", _) => (
            format!("only a token-bucket has fair shares, and this is {own}"),
            "write `algorithm: token-bucket` with `capacity` and `refill`, or remove `fair`".to_owned(),
        ),
        ("lease", _) => (
            format!("`lease` is for concurrency, and this is {own}"),
            format!("write `algorithm: concurrency`, or remove `lease`: {takes}"),
        ),
        _ => (format!("`{name}` is not a field of {own}"), takes),
    }
}

/// Lists the numbers that an algorithm takes, in words. How long requests wait for their turn is not a number of
/// the limit: a plan or an override cannot change it.
fn taken(raw: RawAlgorithm) -> String {
    let (needed, optional) = takes(raw);
    let needed = needed.join(" and ");
    let is_number = |name: &&str| raw == RawAlgorithm::LeakyBucket || !name.starts_with("max_wait");
    let optional: Vec<&str> = optional.iter().copied().filter(is_number).collect();
    match &optional[..] {
        [] => needed,
        _ => format!("{needed}, and optionally {}", optional.join(", ")),
    }
}

/// Returns the algorithm and the numbers of `what`, a rule or a budget that starts at `place`. `None`
/// if they are wrong; the problem was reported.
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
    for (name, key, _) in written.fields() {
        if key.is_none() && needed.contains(&name) {
            complete = false;
            // A quota with a `window` was reported already, and the remedy names `period`.
            if name == "period" && written.window.key().is_some() {
                continue;
            }
            let sample = match name {
                "window" => "1m",
                "period" => "month",
                "rate" | "refill" => "10/s",
                _ => "100",
            };
            let (own, taken) = (raw.name(), taken(raw));
            let message = format!("this {own} {what} has no `{name}`");
            let help = format!("{own} takes {taken}; add `{name}: {sample}`");
            problems.report(place, message, help);
        }
    }
    complete &= consistent(written, raw, problems);
    if !complete {
        return None;
    }
    let numbers = written.numbers()?;
    match numbers.limit(raw, None)? {
        Ok(limit) => Some(Counting {
            algorithm: raw,
            numbers,
            limit,
            modes: Modes::default(),
        }),
        Err(error) => {
            report(&error, &numbers, written, algorithm.place, problems);
            None
        }
    }
}

/// Returns the numbers of a plan or a tenant that replace numbers of `base`. `None` if they are wrong;
/// the problem was reported.
pub(crate) fn patch(
    algorithm: RawAlgorithm,
    base: &Numbers,
    written: &Written<'_>,
    place: Place,
    problems: &mut Problems<'_>,
) -> Option<Numbers> {
    written.check_taken(algorithm, problems);
    written.check_numbers(problems);
    let patch = written.numbers()?;
    if let Some((field, why)) = base.idle(&patch) {
        let mut fields = written.fields().into_iter();
        let key = fields.find_map(|(known, key, _)| key.filter(|_| known == field));
        problems.report(key.unwrap_or(place), why, format!("remove `{field}`"));
        return None;
    }
    let patched = base.with(&patch);
    if let Some(Err(error)) = patched.limit(algorithm, None) {
        report(&error, &patched, written, place, problems);
        return None;
    }
    Some(patch)
}

/// Reports why `numbers` do not make a limit.
fn report(
    error: &ParamError,
    numbers: &Numbers,
    written: &Written<'_>,
    place: Place,
    problems: &mut Problems<'_>,
) {
    let at = written.place_of(error.field).unwrap_or(place);
    problems.report(at, numbers.message(error), error.help());
}

/// Reports fields that exclude each other, and fields that need another one. Returns whether there was
/// nothing to report.
fn consistent(rule: &Written<'_>, raw: RawAlgorithm, problems: &mut Problems<'_>) -> bool {
    if raw == RawAlgorithm::SlidingCounter
        && let (Some(buckets), Some(_)) = (rule.buckets.key(), rule.estimate.key())
    {
        let message = "`buckets` and `estimate` cannot be used together";
        let help = "keep `buckets` to count each part of the window, or `estimate` to estimate from this window and the one before";
        problems.report(buckets, message, help);
        return false;
    }
    let shapes = rule.shape.value().is_some_and(|shape| shape.0);
    if raw == RawAlgorithm::LeakyBucket
        && let Some(max_wait) = rule.max_wait.key()
        && !shapes
    {
        let message = "`max_wait` without `shape: true` has no effect";
        problems.report(max_wait, message, "add `shape: true`, or remove `max_wait`");
        return false;
    }
    if raw == RawAlgorithm::LeakyBucket {
        return true;
    }
    if let (Some(key), Some(_)) = (rule.max_wait.key(), rule.fair.key()) {
        let message = "`max_wait` of a rule with fair shares is a field of `fair`";
        problems.report(key, message, "write `fair: { …, max_wait: 200ms }`");
        return false;
    }
    waiting::check(rule.max_wait, rule.max_waiting, problems);
    true
}
