//! The mode of an allowance: where its requests are decided, and under which numbers.
//!
//! `exact` asks the store for every request. `leased` draws units in advance, under numbers that leave room
//! for the time in which the units may be used. `async` decides from counts of its own, and reports them later.
//! `docs/modes.md` has the promises and their proofs.
//!
//! An allowance that the config calls `leased` keeps its numbers while an override sets another mode. So an
//! override can switch the mode without a change of numbers.

use std::hash::{Hash, Hasher};

use tollgate_core::{Algorithm, Leaky, Limit, Mode, Span};

use crate::document::{At, Duration, Field, Problems, words};
use crate::raw::RawAllowance;

/// The `slice` of a rule that does not set one.
pub(crate) const DEFAULT_SLICE: Span = Span::from_millis(100);
/// The `flush` of a rule that does not set one.
pub(crate) const DEFAULT_FLUSH: Span = Span::from_millis(500);
const SHORTEST: Span = Span::from_millis(10);
const SHORTEST_FLUSH: Span = Span::from_millis(50);
const LONGEST: Span = Span::MINUTE;

words! {
    /// Where the requests of an allowance are decided.
    pub enum ModeName is "a mode" {
        /// The store decides every request.
        Exact = "exact",
        /// Each instance decides from units that it has drawn before: never more than the limit.
        Leased = "leased",
        /// Each instance decides from its own counts, and reports them later: all together may exceed the limit.
        Async = "async",
    }
}

impl Hash for ModeName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

/// The mode of an allowance, with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Modes {
    pub(crate) name: ModeName,
    /// Whether the numbers leave room for slices.
    prepaid: bool,
    slice: Span,
    flush: Span,
}

impl Modes {
    /// Returns the mode with the name `name`. If the numbers of the allowance leave room for slices, they still do.
    pub(crate) fn named(self, name: ModeName) -> Modes {
        Modes {
            name,
            prepaid: self.prepaid || name == ModeName::Leased,
            ..self
        }
    }

    /// Returns the mode of a charge under `limit`, and the numbers that leave room for slices, if the limit
    /// is charged under such numbers.
    pub(crate) fn of(self, limit: &Limit) -> (Mode, Option<Limit>) {
        let prepaid = self.prepaid.then(|| limit.prepaid(self.slice)).flatten();
        let mode = match (self.name, &prepaid) {
            (ModeName::Leased, Some((_, slice))) => Mode::Leased { slice: *slice },
            (ModeName::Async, _) if limit.can_be_async() => Mode::Async { flush: self.flush },
            _ => Mode::Exact,
        };
        (mode, prepaid.map(|(limit, _)| limit))
    }

    /// Returns in words that slices of `limit` are shorter than configured, or that there are none; `None` if they
    /// are as configured.
    pub(crate) fn shortened(self, limit: &Limit) -> Option<String> {
        match self.of(limit).0 {
            Mode::Async { .. } => None,
            Mode::Leased { slice } if slice == self.slice => None,
            Mode::Leased { slice } => Some(format!(
                "its numbers leave room for slices of {slice} instead of {}",
                self.slice
            )),
            Mode::Exact => {
                Some("its numbers leave no room for slices, so the rule is exact".to_owned())
            }
        }
    }

    /// Returns the settings in words, as `explain` and differences show them.
    pub(crate) fn settings(self) -> String {
        match self.name {
            ModeName::Exact => self.name.name().to_owned(),
            ModeName::Leased => format!("leased with a slice of {}", self.slice),
            ModeName::Async => format!("async with a flush every {}", self.flush),
        }
    }

    /// Returns the mode in force under `limit` and its times, as names and values for `explain`.
    pub(crate) fn explained(self, limit: &Limit) -> Vec<(&'static str, String)> {
        match (self.name, self.of(limit).0) {
            (ModeName::Exact, _) if self.prepaid => {
                let kept = "exact, under the numbers of mode leased".to_owned();
                vec![("mode", kept)]
            }
            (ModeName::Exact, _) => Vec::new(),
            (_, Mode::Async { flush }) => {
                let mode = match self.prepaid {
                    true => "async, under the numbers of mode leased",
                    false => "async",
                };
                vec![("mode", mode.to_owned()), ("flush", flush.to_string())]
            }
            (_, Mode::Leased { slice }) => {
                let slice = match slice == self.slice {
                    true => slice.to_string(),
                    false => format!(
                        "{slice} instead of {}: the numbers leave no more room",
                        self.slice
                    ),
                };
                vec![("mode", "leased".to_owned()), ("slice", slice)]
            }
            (ModeName::Leased, Mode::Exact) if always_exact(limit).is_none() => {
                let why = "exact: the numbers leave no room for a slice".to_owned();
                vec![("mode", why)]
            }
            (_, Mode::Exact) => vec![("mode", "exact".to_owned())],
        }
    }
}

impl Default for Modes {
    fn default() -> Modes {
        Modes {
            name: ModeName::Exact,
            prepaid: false,
            slice: DEFAULT_SLICE,
            flush: DEFAULT_FLUSH,
        }
    }
}

/// Returns why a limit is exact in every mode; `None` if it can be leased or async.
pub(crate) fn always_exact(limit: &Limit) -> Option<&'static str> {
    match limit {
        Limit::Concurrency(_) | Limit::Unlimited(Algorithm::Concurrency) => {
            Some("all instances share the slots at every instant")
        }
        Limit::LeakyBucket(it) if it.leaky() != Leaky::Police => {
            Some("requests in a queue wait for their turn among all instances")
        }
        Limit::Fair(_) => Some("only the store knows what each client got"),
        Limit::Backoff(_) | Limit::Unlimited(_) => Some("it has no amount to draw"),
        _ => None,
    }
}

impl RawAllowance {
    /// Returns the mode. Reports a mode that does not fit the limit, and times that do not fit the mode.
    pub(crate) fn modes(&self, limit: &Limit, problems: &mut Problems<'_>) -> Modes {
        let name = self.mode.value().copied().unwrap_or(ModeName::Exact);
        let is_unlimited = matches!(limit, Limit::Unlimited(it) if *it != Algorithm::Concurrency);
        if let Some(at) = self.mode.get()
            && name != ModeName::Exact
            && !is_unlimited
            && let Some(why) = always_exact(limit)
        {
            let message = format!("this limit cannot be `{}`: {why}", name.name());
            problems.report(
                at.place,
                message,
                "remove `mode`: the limit is always exact",
            );
        }
        for (field, key, needed) in [
            ("slice", self.slice.key(), ModeName::Leased),
            ("flush", self.flush.key(), ModeName::Async),
        ] {
            if let Some(key) = key
                && name != needed
                && !matches!(self.mode, Field::Broken { .. })
            {
                let mode = needed.name();
                let message = format!("`{field}` without `mode: {mode}` has no effect");
                let help = format!("add `mode: {mode}`, or remove `{field}`");
                problems.report(key, message, help);
            }
        }
        let help = "write a time such as 100ms: how long drawn units may be used";
        let slice = time(self.slice.get(), SHORTEST, help, problems);
        let help = "write a time such as 500ms: how long admitted units may wait for their report";
        let flush = time(self.flush.get(), SHORTEST_FLUSH, help, problems);
        Modes {
            slice: slice.unwrap_or(DEFAULT_SLICE),
            flush: flush.unwrap_or(DEFAULT_FLUSH),
            ..Modes::default().named(name)
        }
    }
}

/// Returns the time of a mode. Reports a time that is too short or too long.
fn time(
    at: Option<&At<Duration>>,
    shortest: Span,
    help: &str,
    problems: &mut Problems<'_>,
) -> Option<Span> {
    let at = at?;
    let time = at.value.0;
    if !(shortest..=LONGEST).contains(&time) {
        let message = format!("{time} is not between {shortest} and {LONGEST}");
        problems.report(at.place, message, help);
    }
    Some(time)
}
