//! How the script's replies are read. Their layout is described in `frame.lua`.

use smallvec::SmallVec;
use tollgate_core::{Admission, Balance, Charge, Denial, Outcome, Span, Time};
use tollgate_store::{Applied, Guarantee};

use crate::script::Family;
use crate::wire::{Operation, Request};

/// Reads a reply, request by request.
pub(crate) struct Reply<I> {
    numbers: I,
    now: Time,
}

/// What is said to a request.
#[allow(
    clippy::large_enum_variant,
    reason = "made, looked at, and taken apart at once"
)]
pub(crate) enum Answer {
    /// A decision.
    Applied(Applied),
    /// The place of a key that holds something that is not ours.
    Foreign(usize),
    /// The answer comes later.
    Later,
}

impl<I: Iterator<Item = i64>> Reply<I> {
    /// A reply of these numbers. None if there are none.
    pub(crate) fn new(mut numbers: I) -> Option<Reply<I>> {
        let now = Time::from_micros(u64::try_from(numbers.next()?).ok()?);
        Some(Reply { numbers, now })
    }

    /// What is said to a request in a run. None if the reply is not what a script of ours replies.
    pub(crate) fn next_in_run(&mut self, request: &Request) -> Option<Answer> {
        match self.numbers.next()? {
            -1 => Some(Answer::Later),
            remaining => self.at_once(request, remaining),
        }
    }

    /// What is said to another request, or later.
    pub(crate) fn next(&mut self, request: &Request) -> Option<Answer> {
        match self.numbers.next()? {
            -1 => self.in_detail(request),
            -2 => Some(Answer::Foreign(
                usize::try_from(self.number()?).ok()?.checked_sub(1)?,
            )),
            remaining => self.at_once(request, remaining),
        }
    }

    /// A balance travels as an outcome: see [`balance_in`].
    fn balance(&mut self) -> Option<Outcome> {
        Some(Outcome {
            admission: Admission::Allowed { delay: Span::ZERO },
            limit: self.number()?,
            remaining: self.number()?,
            reset_at: Time::from_micros(self.number()?),
        })
    }

    fn number(&mut self) -> Option<u64> {
        u64::try_from(self.numbers.next()?).ok()
    }

    fn applied(&self, allowed: bool, granted: u64) -> Applied {
        Applied {
            now: self.now,
            allowed,
            granted,
            outcomes: SmallVec::new(),
            guarantee: Guarantee::Atomic,
        }
    }

    fn at_once(&mut self, request: &Request, remaining: i64) -> Option<Answer> {
        let mut applied = self.applied(true, request.units);
        let mut first = Some(u64::try_from(remaining).ok()?);
        for item in &request.charges {
            let remaining = match first.take() {
                Some(remaining) => remaining,
                None => self.number()?,
            };
            applied.outcomes.push(Outcome {
                admission: Admission::Allowed { delay: Span::ZERO },
                limit: item.limit.capacity(),
                remaining,
                reset_at: Time::from_micros(self.number()?),
            });
        }
        Some(Answer::Applied(applied))
    }

    fn in_detail(&mut self, request: &Request) -> Option<Answer> {
        let allowed = self.number()? == 1;
        let mut granted = self.number()?;
        if request.operation == Operation::Apply && !request.up_to {
            // In a run, all units are one.
            granted = if allowed { request.units } else { 0 };
        }
        let mut applied = self.applied(allowed, granted);
        match request.operation {
            Operation::Reset | Operation::Restore => return Some(Answer::Applied(applied)),
            Operation::Adjust | Operation::Balance => {
                applied.outcomes.push(self.balance()?);
                return Some(Answer::Applied(applied));
            }
            Operation::Apply
            | Operation::Peek
            | Operation::Refund
            | Operation::Hold
            | Operation::Settle
            | Operation::Extend => {}
        }
        for item in &request.charges {
            let (verdict, when) = (self.number()?, self.number()?);
            let admission = match verdict {
                0 => Admission::Allowed {
                    delay: Span::from_micros(when),
                },
                1 => Admission::Denied(Denial::Until(Time::from_micros(when))),
                2 => Admission::Denied(Denial::QueueFull(Time::from_micros(when))),
                3 => Admission::Denied(Denial::Never),
                4 => Admission::Denied(Denial::Unrestored),
                _ => return None,
            };
            applied.outcomes.push(Outcome {
                admission,
                limit: item.limit.capacity(),
                remaining: self.number()?,
                reset_at: Time::from_micros(self.number()?),
            });
        }
        Some(Answer::Applied(applied))
    }
}

/// The balance that an answer carries, if the quota has one.
pub(crate) fn balance_in(applied: &Applied) -> Option<Balance> {
    let told = applied.outcomes.first().filter(|_| applied.allowed)?;
    Some(Balance {
        ends_at: told.reset_at,
        used: told.limit,
        extra: told.remaining,
    })
}

/// Puts the outcomes of charges without a bound, which the script never sees, where they belong.
pub(crate) fn fill(applied: &mut Applied, charges: &[Charge<'_>]) {
    for (index, charge) in charges.iter().enumerate() {
        if Family::of(charge.limit).is_none() {
            let outcome = Outcome {
                admission: Admission::Allowed { delay: Span::ZERO },
                limit: Outcome::UNLIMITED,
                remaining: Outcome::UNLIMITED,
                reset_at: applied.now,
            };
            applied.outcomes.insert(index, outcome);
        }
    }
}
