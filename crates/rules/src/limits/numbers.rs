//! Numbers as they are written, and the limit they make.

use std::fmt;

use tollgate_core::{
    Anchor, Calendar, Leaky, Limit, MAX_AMOUNT, ParamError, ParamProblem, Span, Zone,
};

use super::{Counting, algorithm_of, taken, takes};
use crate::document::{Amount, Duration, Field, Flag, Lease, Place, RateOrUnlimited, Whole};
use crate::fairness::Fairness;
use crate::period::{Every, Start};
use crate::raw::{RawAlgorithm, RawAllowance, RawEstimate};
use crate::share::{Carried, Grace, Share};
use crate::zone::ZoneFrom;

/// The default number of parts of a sliding-counter's window.
const DEFAULT_BUCKETS: u64 = 10;
/// The default time that a slot is held unless it is renewed.
const DEFAULT_LEASE: Span = Span::from_secs(30);

/// The name of a field, and the places of its name and its value.
pub(super) type Places = (&'static str, Option<Place>, Option<Place>);

/// Declares all numbers once: as validated values, and as fields of a file.
macro_rules! numbers {
    ($( $name:ident: $ty:ty, )+) => {
        /// Numbers as the text gives them, each optional. A plan or a tenant replaces the numbers of the
        /// rule one by one.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Numbers {
            $( pub(crate) $name: Option<$ty>, )+
        }

        /// The fields that hold the numbers in one section of a file. The section is a rule, a budget, or the
        /// numbers that a plan, a tenant or an override sets.
        pub(crate) struct Written<'f> {
            $( pub(crate) $name: &'f Field<$ty>, )+
        }

        const COUNT: usize = [$( stringify!($name) ),+].len();

        impl RawAllowance {
            /// The numbers of a rule or a budget, as they are written.
            pub(crate) fn written(&self) -> Written<'_> {
                Written { $( $name: &self.$name, )+ }
            }
        }

        impl Written<'_> {
            /// The fields by name.
            pub(super) fn fields(&self) -> [Places; COUNT] {
                [$( (
                    stringify!($name),
                    self.$name.key(),
                    self.$name.get().map(|at| at.place),
                ) ),+]
            }

            /// Returns the given numbers. `None` if one is broken; the problem was reported.
            fn given(&self) -> Option<Numbers> {
                Some(Numbers { $( $name: given(self.$name)?, )+ })
            }
        }

        impl Numbers {
            /// Returns these numbers, with the numbers that `patch` gives in their place.
            pub(crate) fn with(&self, patch: &Numbers) -> Numbers {
                Numbers {
                    $( $name: patch.$name.clone().or_else(|| self.$name.clone()), )+
                }
            }

            /// The given numbers, by name and as text.
            pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, String)> {
                let all = [$( (
                    stringify!($name),
                    self.$name.as_ref().map(ToString::to_string),
                ) ),+];
                all.into_iter()
                    .filter_map(|(name, value)| value.map(|value| (name, value)))
            }
        }
    };
}

numbers! {
    limit: Amount,
    window: Duration,
    period: Every,
    timezone: ZoneFrom,
    anchor: Start,
    grace: Grace,
    carry_over: Carried,
    lease: Lease,
    buckets: Whole,
    estimate: RawEstimate,
    capacity: Amount,
    refill: RateOrUnlimited,
    rate: RateOrUnlimited,
    burst: Whole,
    queue: Whole,
    shape: Flag,
    max_wait: Duration,
    max_waiting: Whole,
    fair: Fairness,
}

#[allow(clippy::option_option)] // The outer `None` means broken.
fn given<T: Clone>(field: &Field<T>) -> Option<Option<T>> {
    match field {
        Field::Absent => Some(None),
        Field::Broken { .. } => None,
        Field::Given { at, .. } => Some(Some(at.value.clone())),
    }
}

/// Shows the given numbers: `rate 10/s, burst 20`.
impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self.given();
        let given: Vec<String> = given
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        f.write_str(&given.join(", "))
    }
}

impl fmt::Display for RawEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Written<'_> {
    /// Returns the given numbers. `None` if one is broken; the problem was reported. A `carry_over` of
    /// counts is not a number.
    pub(crate) fn numbers(&self) -> Option<Numbers> {
        let mut numbers = self.given()?;
        if let Some(Carried::Counts(_)) = numbers.carry_over {
            numbers.carry_over = None;
        }
        Some(numbers)
    }
}

/// Everything about a quota or a concurrency limit except its amount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Terms {
    Quota {
        calendar: Calendar,
        grace: Share,
        rollover: Share,
    },
    Slots {
        lease: Span,
    },
}

impl Terms {
    /// Makes a limit of this amount.
    pub(crate) fn limit(&self, amount: u64) -> Result<Limit, ParamError> {
        match self {
            Terms::Quota {
                calendar,
                grace,
                rollover,
            } => {
                // `Limit::quota` rejects an amount that is too large as `limit`, so the shares must be
                // valid here.
                let whole = amount.min(MAX_AMOUNT);
                let (grace, rollover) = (grace.of(whole), rollover.of(whole));
                Limit::quota(amount, grace, rollover, calendar.clone())
            }
            Terms::Slots { lease } => Limit::concurrency(amount, *lease),
        }
    }

    /// Makes a limit that admits nothing.
    pub(crate) fn closed(&self) -> Result<Limit, ParamError> {
        match self {
            Terms::Quota { calendar, .. } => Limit::quota(0, 0, 0, calendar.clone()),
            Terms::Slots { .. } => self.limit(0),
        }
    }
}

impl Numbers {
    /// Finds a number of `patch` that would have no effect on these numbers, and says why.
    pub(super) fn idle(&self, patch: &Numbers) -> Option<(&'static str, &'static str)> {
        if patch.buckets.is_some() && self.estimate.is_some() {
            let why = "the rule estimates from two windows and has no buckets";
            return Some(("buckets", why));
        }
        let why = match (&self.max_wait, &self.fair) {
            (None, None) => "the rule does not shape requests, so none of them waits",
            _ => {
                "requests wait as long as the rule says: only a rule that shapes has this number here"
            }
        };
        let waits = patch.max_wait.is_some() && self.shape != Some(Flag(true));
        waits.then_some(("max_wait", why))
    }

    /// Why these numbers cannot replace the numbers of `counting`, if they cannot.
    pub(crate) fn misfit(&self, counting: &Counting) -> Option<String> {
        let (needed, optional) = takes(counting.algorithm);
        let mut given = self.given();
        let stranger = given.find(|(name, _)| !needed.contains(name) && !optional.contains(name));
        let algorithm = counting.algorithm;
        if let Some((name, _)) = stranger {
            let (algorithm, taken) = (algorithm.name(), taken(algorithm));
            return Some(format!(
                "`{name}` is not a field of {algorithm}, which takes {taken}"
            ));
        }
        if let Some((_, why)) = counting.numbers.idle(self) {
            return Some(why.to_owned());
        }
        let numbers = counting.numbers.with(self);
        let error = numbers.limit(algorithm, None)?.err()?;
        let (field, message, help) = (error.field, numbers.message(&error), error.help());
        Some(format!("`{field}`: {message}; {help}"))
    }

    /// Returns why these numbers do not make a limit. The message names the anchor if the anchor is wrong.
    pub(super) fn message(&self, error: &ParamError) -> String {
        match (&error.problem, self.anchor) {
            (ParamProblem::ImpossibleAnchor(unit @ ("hour" | "day")), _) => {
                format!("an `anchor` has no effect on {unit}s")
            }
            (ParamProblem::ImpossibleAnchor(unit), Some(day)) => {
                format!("no {unit} begins on `{day}`")
            }
            _ => error.to_string(),
        }
    }

    /// Returns the terms for a tenant in the zone `tenant`. `None` if the algorithm has no terms, or if
    /// a required number is missing.
    pub(crate) fn terms(
        &self,
        raw: RawAlgorithm,
        tenant: Option<&Zone>,
    ) -> Option<Result<Terms, ParamError>> {
        match raw {
            RawAlgorithm::Quota => {
                let Every { count, unit } = self.period?;
                let anchor = self.anchor.map_or(Anchor::First, |it| it.0);
                let grace = self.grace.map_or(Share::NOTHING, |it| it.0);
                let rollover = match self.carry_over {
                    Some(Carried::Most(share)) => share,
                    _ => Share::NOTHING,
                };
                let zone = match (&self.timezone, tenant) {
                    (Some(ZoneFrom::Named(zone)), _) | (_, Some(zone)) => zone.clone(),
                    (None | Some(ZoneFrom::Tenant), None) => Zone::utc(),
                };
                let calendar = Calendar::new(count, unit, anchor, zone);
                Some(calendar.map(|calendar| Terms::Quota {
                    calendar,
                    grace,
                    rollover,
                }))
            }
            RawAlgorithm::Concurrency => {
                let lease = self.lease.map_or(DEFAULT_LEASE, |it| it.0);
                Some(Ok(Terms::Slots { lease }))
            }
            _ => None,
        }
    }

    /// Makes the limit for a tenant in the zone `tenant`; `None` if a required number is missing.
    pub(crate) fn limit(
        &self,
        raw: RawAlgorithm,
        tenant: Option<&Zone>,
    ) -> Option<Result<Limit, ParamError>> {
        let algorithm = algorithm_of(raw);
        let unlimited = Some(Ok(Limit::unlimited(algorithm)));
        match raw {
            RawAlgorithm::FixedWindow | RawAlgorithm::SlidingLog | RawAlgorithm::SlidingCounter => {
                let (Amount(limit), Duration(window)) = (self.limit?, self.window?);
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
                (Some(capacity), Some(refill)) => Some(match &self.fair {
                    Some(fair) => Limit::fair(capacity, refill, &fair.lanes()),
                    None => Limit::token_bucket(capacity, refill),
                }),
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
            RawAlgorithm::Quota | RawAlgorithm::Concurrency => {
                let Amount(limit) = self.limit?;
                Some(match (self.terms(raw, tenant)?, limit) {
                    (Ok(terms), Some(limit)) => terms.limit(limit),
                    (Ok(_), None) => return unlimited,
                    (Err(error), _) => Err(error),
                })
            }
        }
    }
}
