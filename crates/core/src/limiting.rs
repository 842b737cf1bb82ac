//! The contract of an algorithm, and the types of its answers.

use crate::CarryOver;
use crate::units::{Span, Time};

/// An algorithm with its validated numbers.
///
/// `decide` changes nothing. A caller first calls `decide` on every limit of a request. If all limits
/// allow the request, the caller calls `charge` on each of them. If one limit denies, the caller charges
/// none, and no state has changed. So a decision over several limits is all-or-nothing.
///
/// Time may go backwards between calls. In this case an algorithm acts as if time stood still: it never
/// refills the same span twice.
pub trait Limiting: Clone + PartialEq {
    /// The state of one subject. The default is the state of a subject never seen.
    type State: Clone + Default + PartialEq + std::fmt::Debug;

    /// Returns the most that can be admitted at once: the `limit` that callers see.
    fn capacity(&self) -> u64;

    /// Returns the time in which a spent allowance comes back: the window that callers see.
    fn window(&self) -> Span;

    /// Decides whether `cost` may proceed at `now`. Changes nothing.
    fn decide(&self, state: &Self::State, cost: u64, now: Time) -> Verdict;

    /// Returns the available amount at `now` if `cost` may proceed without delay, and `None` otherwise. The
    /// answer agrees with [`decide`](Self::decide), and is faster in the common case.
    #[inline]
    fn admits(&self, state: &Self::State, cost: u64, now: Time) -> Option<u64> {
        let verdict = self.decide(state, cost, now);
        let at_once = Admission::Allowed { delay: Span::ZERO };
        (verdict.admission == at_once).then_some(verdict.available)
    }

    /// Takes `cost` at `now`. Call it only after `decide` has allowed this cost at this instant.
    fn charge(&self, state: &mut Self::State, cost: u64, now: Time);

    /// Takes `cost`, but does not take the allowance more than `most` below zero. Returns the amount
    /// taken. An allowance that is already lower stays as it is. A sliding log or a counter with sub-buckets
    /// records the whole `cost` now, and drops the excess from its oldest entries.
    ///
    /// A `most` of 0 is for denied requests that are charged (`charge_denied`): the allowance can become
    /// spent, but not overdrawn.
    fn overdraw(&self, state: &mut Self::State, cost: u64, most: u64, now: Time) -> u64;

    /// Returns the amount left at `now`: below zero if the allowance is overdrawn, rounded down.
    fn level(&self, state: &Self::State, now: Time) -> i64;

    /// Notes that this limit has denied a request. Most limits take no notice: see
    /// [`OnDenied::Note`](crate::OnDenied::Note).
    fn note_denied(&self, _state: &mut Self::State, _cost: u64, _now: Time) {}

    /// Returns these numbers for the request of `asks`. Only the numbers of a [`crate::fair`] bucket know who
    /// asks.
    #[must_use]
    fn asked_by(&self, _asks: &Self) -> Self {
        self.clone()
    }

    /// Returns what is left of an `available` amount after `taken` was taken at `now`.
    #[inline]
    fn left(&self, _state: &Self::State, available: u64, taken: u64, _now: Time) -> u64 {
        available.saturating_sub(taken)
    }

    /// Gives back a `cost` that was taken at `charged_at`. Does not give back the part that has already
    /// refilled since then.
    fn refund(&self, state: &mut Self::State, cost: u64, charged_at: Time, now: Time);

    /// Returns the instant at which the state equals that of a subject never seen, if nothing more is
    /// charged. A store must keep the state until this instant, and may forget the state afterwards.
    fn expires_at(&self, state: &Self::State) -> Time;

    /// Returns the instant from which a state of this limit counts as missing, if the caller has the limit `_asks`.
    fn expires_for(&self, state: &Self::State, _asks: &Self) -> Time {
        self.expires_at(state)
    }

    /// Returns the instant at which the whole allowance is back, if nothing more is charged. For most
    /// algorithms, the state expires at this instant.
    #[inline]
    fn resets_at(&self, state: &Self::State) -> Time {
        self.expires_at(state)
    }

    /// Converts a state that was written under the numbers `from`, as `how` says. A store calls this once,
    /// at the first check after the change.
    fn carry_over(&self, from: &Self, state: &mut Self::State, how: CarryOver, now: Time) {
        match how {
            CarryOver::Reset => *state = Self::State::default(),
            CarryOver::Keep | CarryOver::Proportional => self.keep(from, state, how, now),
        }
    }

    /// Carries over the used amount or the used share. [`carry_over`](Self::carry_over) does not call this
    /// under [`CarryOver::Reset`].
    fn keep(&self, from: &Self, state: &mut Self::State, how: CarryOver, now: Time);
}

/// The answer of one limit to one cost, before anything is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the cost may proceed.
    pub admission: Admission,
    /// The amount that could be taken at this instant.
    pub available: u64,
}

impl Verdict {
    /// Returns whether the cost may proceed, at once or after a delay.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.admission, Admission::Allowed { .. })
    }

    /// Returns the exact instant at which the same cost would be admitted. Returns `None` if the cost is
    /// allowed, or if waiting does not help.
    #[must_use]
    pub fn retry_at(&self) -> Option<Time> {
        match self.admission {
            Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => Some(at),
            Admission::Denied(Denial::Never | Denial::Unrestored | Denial::Undecided)
            | Admission::Allowed { .. } => None,
        }
    }

    /// Returns the answer of a limit with unknown usage.
    #[must_use]
    pub fn unrestored() -> Verdict {
        Verdict::denied(Denial::Unrestored, 0)
    }

    /// Returns whether the usage is unknown, and has to be restored first.
    #[must_use]
    pub fn is_unrestored(&self) -> bool {
        self.admission == Admission::Denied(Denial::Unrestored)
    }

    /// Returns this verdict for a request that was denied and whose denial was noted since. The note can make
    /// room at once: the request stays denied, and may try again in the next instant.
    #[must_use]
    pub fn after_denial(self, now: Time) -> Verdict {
        match self.is_allowed() {
            true => Verdict::denied(Denial::Until(now + Span::from_micros(1)), self.available),
            false => self,
        }
    }

    pub(crate) fn allowed(available: u64) -> Verdict {
        Verdict {
            admission: Admission::Allowed { delay: Span::ZERO },
            available,
        }
    }

    pub(crate) fn denied(denial: Denial, available: u64) -> Verdict {
        Verdict {
            admission: Admission::Denied(denial),
            available,
        }
    }
}

/// Whether a request may proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The request may proceed after `delay`, which is zero except for a shaping leaky bucket.
    Allowed {
        /// How long the request waits for its turn.
        delay: Span,
    },
    /// The request may not proceed.
    Denied(Denial),
}

/// Why a request may not proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The allowance is spent. The request is admitted at this instant, and not a microsecond before. A fair
    /// bucket names the instant at which the request is admitted at the latest.
    Until(Time),
    /// The queue of a shaping leaky bucket is full, or the wait is too long. The request is admitted at this
    /// instant.
    QueueFull(Time),
    /// The cost is above the capacity: waiting does not help.
    Never,
    /// The usage is unknown, and has to be restored first. It is not known whether the cost fits.
    Unrestored,
    /// The store of this limit has not decided: it was not asked, because another store had denied the
    /// request, or it did not answer.
    Undecided,
}

/// The answer of one limit to a request, after the whole request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the limit admits the request.
    pub admission: Admission,
    /// The most that can be admitted at once; [`Outcome::UNLIMITED`] without a limit.
    pub limit: u64,
    /// The amount left. If this request was charged, its cost is already subtracted.
    pub remaining: u64,
    /// The instant at which the whole allowance is back, if nothing more is charged.
    pub reset_at: Time,
}

impl Outcome {
    /// The `limit` and `remaining` of a rule without a limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// The outcome of a charge that no store has decided: see [`Denial::Undecided`]. It has no figures.
    pub const UNDECIDED: Outcome = Outcome {
        admission: Admission::Denied(Denial::Undecided),
        limit: 0,
        remaining: 0,
        reset_at: Time::from_micros(0),
    };

    /// Returns whether a store has decided.
    #[must_use]
    #[inline]
    pub fn is_decided(&self) -> bool {
        !matches!(self.admission, Admission::Denied(Denial::Undecided))
    }

    /// Returns whether the limit admits the request.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.admission, Admission::Allowed { .. })
    }
}

/// Returns `limit - used`, which may be below zero.
pub(crate) fn difference(limit: u64, used: u64) -> i64 {
    let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    signed(limit) - signed(used)
}

/// Subtracts `cost` from `amounts`, front to back. Returns the part of `cost` that exceeds their sum.
pub(crate) fn drain_amounts<'a>(amounts: impl Iterator<Item = &'a mut u64>, mut cost: u64) -> u64 {
    for amount in amounts {
        let taken = cost.min(*amount);
        *amount -= taken;
        cost -= taken;
        if cost == 0 {
            break;
        }
    }
    cost
}
