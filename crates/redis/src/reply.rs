//! Reads the replies of the script. `frame.lua` describes their layout.

use tollgate_core::{Admission, Balance, Charge, Denial, Limit, Outcome, Span, Time};
use tollgate_store::{AllowanceLevel, Applied, Ask};

use crate::request::{Operation, Request};
use crate::script::Family;

/// Reads a reply, request by request.
pub(crate) struct Reply<I> {
    numbers: I,
    now: Time,
    /// The charges of the last answer that shared states decided, counted from 0.
    pub(crate) shared: Vec<usize>,
}

/// The answer to one request.
#[allow(
    clippy::large_enum_variant,
    reason = "short-lived: it is taken apart as soon as it is made"
)]
pub(crate) enum Answer {
    /// A decision.
    Applied(Applied),
    /// The index of a key whose value another program has written.
    Foreign(usize),
    /// There is no room for a state, and the call did not name the shared state.
    NoRoom,
}

impl<I: Iterator<Item = i64>> Reply<I> {
    /// Starts to read a reply. Returns `None` if it is empty.
    pub(crate) fn new(mut numbers: I) -> Option<Reply<I>> {
        let now = Time::from_micros(u64::try_from(numbers.next()?).ok()?);
        Some(Reply {
            numbers,
            now,
            shared: Vec::new(),
        })
    }

    /// Reads the answers to the requests of a run. A request without an answer is answered later in the reply. Returns
    /// `None` if the reply is malformed.
    pub(crate) fn next_run(&mut self, requests: &[&Request]) -> Option<Vec<Option<Applied>>> {
        let first = requests.first()?;
        let later = usize::try_from(self.numbers.next()?).ok()?;
        let allowed = requests.len().checked_sub(later)?;
        let mut answers = Vec::with_capacity(allowed);
        for column in 0..first.charges.len() {
            for number in 0..allowed {
                let outcome = Outcome {
                    admission: Admission::Allowed { delay: Span::ZERO },
                    limit: first.charges[column].limit.capacity(),
                    remaining: self.number()?,
                    reset_at: Time::from_micros(self.number()?),
                };
                if column == 0 {
                    answers.push(self.applied(true, 0));
                }
                answers.get_mut(number)?.outcomes.push(outcome);
            }
        }
        let mut is_later = vec![false; requests.len()];
        for _ in 0..later {
            let position = usize::try_from(self.numbers.next()?).ok()?;
            *is_later.get_mut(position.checked_sub(1)?)? = true;
        }
        let mut answers = answers.into_iter().peekable();
        let answers = requests.iter().zip(is_later).map(|(request, is_later)| {
            let mut applied = answers.next_if(|_| !is_later)?;
            applied.granted = request.ask.units();
            Some(applied)
        });
        Some(answers.collect())
    }

    /// Reads the answer to a request outside the runs, or the later answer to a request in a run.
    pub(crate) fn next(&mut self, request: &Request) -> Option<Answer> {
        self.shared.clear();
        let mut first = self.numbers.next()?;
        while first == -4 {
            let charge = usize::try_from(self.number()?).ok()?.checked_sub(1)?;
            self.shared.push(charge);
            first = self.numbers.next()?;
        }
        match first {
            -1 => self.in_detail(request),
            -3 => Some(Answer::NoRoom),
            -2 => Some(Answer::Foreign(
                usize::try_from(self.number()?).ok()?.checked_sub(1)?,
            )),
            remaining => self.at_once(request, remaining),
        }
    }

    fn number(&mut self) -> Option<u64> {
        u64::try_from(self.numbers.next()?).ok()
    }

    fn applied(&self, allowed: bool, granted: u64) -> Applied {
        Applied {
            now: self.now,
            allowed,
            granted,
            ..Applied::default()
        }
    }

    fn at_once(&mut self, request: &Request, remaining: i64) -> Option<Answer> {
        let mut applied = self.applied(true, request.ask.units());
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
        if request.operation == Operation::Apply
            && let Ask::Exactly(units) = request.ask
        {
            // The plan has a request in a run as one unit with its whole cost, so the reply does not have the
            // number of units.
            granted = if allowed { units } else { 0 };
        }
        let mut applied = self.applied(allowed, granted);
        match request.operation {
            Operation::Reset | Operation::Restore => return Some(Answer::Applied(applied)),
            Operation::Adjust | Operation::Balance => {
                // A balance is passed on as an outcome: see `balance_in`.
                applied.outcomes.push(Outcome {
                    admission: Admission::Allowed { delay: Span::ZERO },
                    limit: self.number()?,
                    remaining: self.number()?,
                    reset_at: Time::from_micros(self.number()?),
                });
                return Some(Answer::Applied(applied));
            }
            Operation::Report => {
                // A level is passed on as an outcome: see `level_in`.
                let (left, excess) = (self.numbers.next()?, self.number()?);
                applied.granted = excess;
                applied.outcomes.push(Outcome {
                    admission: Admission::Allowed { delay: Span::ZERO },
                    limit: left.unsigned_abs(),
                    remaining: u64::from(left < 0),
                    reset_at: Time::from_micros(self.number()?),
                });
                return Some(Answer::Applied(applied));
            }
            _ => {}
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
                // The script does not know the calendar so far ahead.
                5 => match &item.limit {
                    Limit::Quota(quota) => Admission::Denied(Denial::Until(
                        quota.unused_until(Time::from_micros(when)),
                    )),
                    _ => return None,
                },
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

/// Returns the balance in an answer, if the quota has one.
pub(crate) fn balance_in(applied: &Applied) -> Option<Balance> {
    let outcome = applied.outcomes.first().filter(|_| applied.allowed)?;
    Some(Balance {
        ends_at: outcome.reset_at,
        used: outcome.limit,
        extra: outcome.remaining,
    })
}

/// Returns the level in an answer to a report, if the allowance has one.
pub(crate) fn level_in(applied: &Applied) -> Option<AllowanceLevel> {
    let outcome = applied.outcomes.first().filter(|_| applied.allowed)?;
    let amount = i64::try_from(outcome.limit).unwrap_or(i64::MAX);
    Some(AllowanceLevel {
        now: applied.now,
        left: if outcome.remaining > 0 {
            -amount
        } else {
            amount
        },
        excess: applied.granted,
        reset_at: outcome.reset_at,
    })
}

/// Inserts the outcomes of unlimited charges, which are not sent to the script.
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
