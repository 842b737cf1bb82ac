//! The contract of an algorithm, and what it answers.

use crate::CarryOver;
use crate::units::{Span, Time};

/// An algorithm with its validated numbers.
///
/// `decide` only looks. A caller that has looked at every limit of a request and found all of them
/// willing calls `charge` on each; if one refuses, it calls nothing, and no state has changed. That
/// split is what makes a decision over many limits all-or-nothing.
///
/// Time may go backwards between calls. An algorithm then behaves as if time stood still: it never
/// refills twice for the same span.
pub trait Limiting: Clone + PartialEq {
    /// What is kept for one subject. The default is a subject never seen.
    type State: Clone + Default + PartialEq + std::fmt::Debug;

    /// The most that can ever be admitted at once: the `limit` reported to callers.
    fn capacity(&self) -> u64;

    /// The time in which a drained allowance comes back: the window reported to callers.
    fn window(&self) -> Span;

    /// May `cost` proceed at `now`? Changes nothing; this is also how one peeks.
    fn decide(&self, state: &Self::State, cost: u64, now: Time) -> Verdict;

    /// How much is available at `now`, if `cost` may proceed without delay. The same answer as
    /// [`decide`](Self::decide) gives, for callers who most often get a yes and want it cheap.
    #[inline]
    fn admits(&self, state: &Self::State, cost: u64, now: Time) -> Option<u64> {
        let verdict = self.decide(state, cost, now);
        let at_once = Admission::Allowed { delay: Span::ZERO };
        (verdict.admission == at_once).then_some(verdict.available)
    }

    /// Takes `cost` at `now`. Only to be called after `decide` has allowed exactly that.
    fn charge(&self, state: &mut Self::State, cost: u64, now: Time);

    /// Takes `cost` although it may not fit, as far as what is left then is at most `most` below
    /// nothing, or below that already; returns by how much there is less. What has several parts counts all of
    /// `cost` as of now, in the place of as much of the oldest as had to go.
    ///
    /// With a `most` of 0, this counts what was refused (`charge_denied`): the state is pushed towards,
    /// and never beyond, a spent allowance.
    fn overdraw(&self, state: &mut Self::State, cost: u64, most: u64, now: Time) -> u64;

    /// Gives back `cost` that was taken at `charged_at`. What has come back by itself since then is
    /// not given back twice.
    fn refund(&self, state: &mut Self::State, cost: u64, charged_at: Time, now: Time);

    /// The instant from which the state equals one never seen, if nothing more is charged. A store
    /// must keep the state until then, and may forget it from then on.
    fn expires_at(&self, state: &Self::State) -> Time;

    /// The instant from which the whole allowance is there, if nothing more is charged. Most often there is
    /// then nothing left to remember.
    #[inline]
    fn resets_at(&self, state: &Self::State) -> Time {
        self.expires_at(state)
    }

    /// Re-expresses a state that was written under the numbers `from`, which are others, as `how`
    /// says. Done once, at the first check after the change.
    fn carry_over(&self, from: &Self, state: &mut Self::State, how: CarryOver, now: Time) {
        match how {
            CarryOver::Keep => self.keep_used(from, state, now),
            CarryOver::Proportional => self.keep_share(from, state, now),
            CarryOver::Reset => *state = Self::State::default(),
        }
    }

    /// [`CarryOver::Keep`]: what was used stays used as far as these numbers can hold it.
    fn keep_used(&self, from: &Self, state: &mut Self::State, now: Time);

    /// [`CarryOver::Proportional`]: the share that was used stays used, rounded up.
    fn keep_share(&self, from: &Self, state: &mut Self::State, now: Time);
}

/// What one limit says to one cost, before anything is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may proceed.
    pub admission: Admission,
    /// How much could be taken at this instant.
    pub available: u64,
}

impl Verdict {
    /// Whether it may proceed, now or after its delay.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.admission, Admission::Allowed { .. })
    }

    /// The exact instant from which the same cost would be admitted, if it was refused and that
    /// instant exists.
    #[must_use]
    pub fn retry_at(&self) -> Option<Time> {
        match self.admission {
            Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => Some(at),
            Admission::Denied(Denial::Never | Denial::Unrestored) | Admission::Allowed { .. } => {
                None
            }
        }
    }

    /// That nothing can be said before what was used is restored.
    #[must_use]
    pub fn unrestored() -> Verdict {
        Verdict::denied(Denial::Unrestored, 0)
    }

    /// Whether nothing can be said before what was used is restored.
    #[must_use]
    pub fn is_unrestored(&self) -> bool {
        self.admission == Admission::Denied(Denial::Unrestored)
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

/// Yes, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may proceed once `delay` has passed. The delay is zero except for a shaping leaky bucket.
    Allowed {
        /// How long it has to wait for its turn.
        delay: Span,
    },
    /// It may not proceed.
    Denied(Denial),
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The allowance is spent. At this instant, and not a microsecond before, it is admitted.
    Until(Time),
    /// The queue of a shaping leaky bucket is full, or the wait too long, until this instant.
    QueueFull(Time),
    /// The cost is above the capacity: no wait would help.
    Never,
    /// What was used is not known: it has to be restored first. Says nothing about the cost.
    Unrestored,
}

/// What one limit has decided, after the request's fate is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether this limit admits the request.
    pub admission: Admission,
    /// The most that can be admitted at once; [`Outcome::UNLIMITED`] if there is no bound.
    pub limit: u64,
    /// What is left now, with this request charged if it was.
    pub remaining: u64,
    /// The instant at which the whole allowance is back if nothing more is charged.
    pub reset_at: Time,
}

impl Outcome {
    /// The `limit` and `remaining` of a rule without a bound.
    pub const UNLIMITED: u64 = u64::MAX;

    /// Whether this limit admits the request.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.admission, Admission::Allowed { .. })
    }
}

/// Spends `cost` over `amounts`, front to back, and returns what was left to spend.
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
