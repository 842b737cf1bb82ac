//! Leaky bucket: a steady outflow of `rate`, with room for `queue` behind the request being served.
//!
//! # Two modes
//! * **Policing** denies requests that do not fit. With a queue of 0 it is strict pacing: after each
//!   request, the interval has to pass before the next request is admitted.
//! * **Shaping** admits requests that fit, with the delay until their turn. Admitted requests leave at
//!   `rate`, never closer together. Shaping denies a request if the queue is full, or if the wait is
//!   longer than `max_wait`.
//!
//! # Promise
//! In any span `t`, at most `queue + 1 + rate × t` is admitted; error bound 0. A denial names the exact
//! microsecond at which the request would be admitted.
//!
//! When shaping, turns are whole ticks. In any span `t`, the amount that leaves is at most the sum of
//! `rate × t`, one tick of `rate`, and the cost of the last request.
//!
//! [`crate::meter`] keeps the level of the bucket. Its docs describe the lifetime of a state, and changes
//! of the numbers. A request keeps the turn it was given. If only the mode or the longest wait changes, the
//! level stays as it is, also under `reset`.
//! Proof: `tests/properties.rs`.

use crate::limiting::{Admission, Denial, Limiting, Verdict};
use crate::meter::{self, Meter};
use crate::param::{ParamProblem, check_amount, check_span};
use crate::units::{MAX_AMOUNT, Rate, Scale, Span, Time};
use crate::{CarryOver, ParamError};

/// What a leaky bucket does with a request when earlier requests are still in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaky {
    /// Admits the request at once if there is room, and denies it otherwise.
    Police,
    /// Tells the request to wait for its turn.
    Shape {
        /// The longest wait. A request that would wait longer is denied.
        max_wait: Option<Span>,
    },
}

/// The numbers of a leaky bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    meter: Meter,
    leaky: Leaky,
}

/// Returns a bucket that leaks at `rate`, with room for `queue` behind the request being served.
///
/// # Errors
/// If the numbers cannot be counted exactly, or take longer than 71 years to drain.
pub fn new(rate: Rate, queue: u64, leaky: Leaky) -> Result<LeakyBucket, ParamError> {
    if queue == MAX_AMOUNT {
        return Err(ParamProblem::TooLarge(queue, MAX_AMOUNT - 1).of("queue"));
    }
    check_amount("queue", queue)?;
    let meter = Meter::new(queue + 1, rate, "queue", "rate")?;
    LeakyBucket::of_parts(meter, leaky)
}

impl LeakyBucket {
    /// Returns a bucket that keeps its level in `meter`.
    ///
    /// # Errors
    /// If the longest wait is zero, or longer than 71 years.
    pub fn of_parts(meter: Meter, leaky: Leaky) -> Result<LeakyBucket, ParamError> {
        if let Leaky::Shape { max_wait } = leaky {
            max_wait.map_or(Ok(()), |wait| check_span("max_wait", wait))?;
        }
        Ok(LeakyBucket { meter, leaky })
    }

    pub(crate) fn scaled(&self, scale: Scale) -> LeakyBucket {
        let meter = self.meter.scaled(scale);
        LeakyBucket { meter, ..*self }
    }

    /// Returns the bucket with another capacity.
    pub(crate) fn with_capacity(&self, capacity: u64) -> LeakyBucket {
        let meter = self.meter.with_capacity(capacity);
        LeakyBucket { meter, ..*self }
    }

    /// Returns a bucket with the same queue that leaks `amount` in each `period`. With an amount of 0 the
    /// bucket has no room, not even for a request being served.
    pub(crate) fn renumbered(&self, amount: u64, period: Span) -> Result<LeakyBucket, ParamError> {
        if amount == 0 {
            let meter = Meter::new(0, Rate::new(1, period)?, "queue", "rate")?;
            return Ok(LeakyBucket { meter, ..*self });
        }
        let queue = self.capacity().saturating_sub(1);
        new(Rate::new(amount, period)?, queue, self.leaky)
    }

    /// Returns the meter that keeps the level.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Returns whether the bucket polices or shapes.
    #[must_use]
    pub fn leaky(&self) -> Leaky {
        self.leaky
    }
}

impl Limiting for LeakyBucket {
    type State = meter::State;

    fn capacity(&self) -> u64 {
        self.meter.capacity()
    }

    fn window(&self) -> Span {
        self.meter.window()
    }

    fn decide(&self, state: &meter::State, cost: u64, now: Time) -> Verdict {
        let verdict = self.meter.decide(state, cost, now);
        let Leaky::Shape { max_wait } = self.leaky else {
            return verdict;
        };
        let turn = self.meter.full_at_micros(*state);
        let soon_enough = turn.saturating_sub(max_wait.map_or(u64::MAX, Span::as_micros));
        let soon_enough = Time::from_micros(soon_enough);
        let delay = Span::from_micros(turn.saturating_sub(now.as_micros()));
        let admission = match verdict.admission {
            Admission::Denied(Denial::Until(room) | Denial::QueueFull(room)) => {
                Admission::Denied(Denial::QueueFull(room.max(soon_enough)))
            }
            Admission::Allowed { .. } if soon_enough > now => {
                Admission::Denied(Denial::QueueFull(soon_enough))
            }
            Admission::Allowed { .. } => Admission::Allowed { delay },
            denied => denied,
        };
        Verdict {
            admission,
            ..verdict
        }
    }

    fn charge(&self, state: &mut meter::State, cost: u64, now: Time) {
        self.meter.charge(state, cost, now);
    }

    fn overdraw(&self, state: &mut meter::State, cost: u64, most: u64, now: Time) -> u64 {
        self.meter.overdraw(state, cost, most, now)
    }

    fn level(&self, state: &meter::State, now: Time) -> i64 {
        self.meter.level(state, now)
    }

    fn refund(&self, state: &mut meter::State, cost: u64, charged_at: Time, now: Time) {
        self.meter.refund(state, cost, charged_at, now);
    }

    fn expires_at(&self, state: &meter::State) -> Time {
        self.meter.expires_at(state)
    }

    fn carry_over(&self, from: &LeakyBucket, state: &mut meter::State, how: CarryOver, now: Time) {
        if self.meter != from.meter {
            self.meter.carry_over(&from.meter, state, how, now);
        }
    }

    fn keep(&self, from: &LeakyBucket, state: &mut meter::State, how: CarryOver, now: Time) {
        self.meter.keep(&from.meter, state, how, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_000_000_000);

    fn bucket(queue: u64, leaky: Leaky) -> LeakyBucket {
        new(Rate::new(10, Span::SECOND).unwrap(), queue, leaky).unwrap()
    }

    /// Asks for 1 at each of these times, in milliseconds after `NOW`, and checks each answer.
    fn check<const N: usize>(bucket: &LeakyBucket, answers: [(u64, Admission); N]) {
        let mut state = meter::State::default();
        for (millis, expected) in answers {
            let now = NOW + Span::from_millis(millis);
            let verdict = bucket.decide(&state, 1, now);
            assert_eq!(verdict.admission, expected, "after {millis} ms");
            if verdict.is_allowed() {
                bucket.charge(&mut state, 1, now);
            }
        }
    }

    fn after(millis: u64) -> Admission {
        let delay = Span::from_millis(millis);
        Admission::Allowed { delay }
    }

    fn full_until(millis: u64) -> Admission {
        Admission::Denied(Denial::QueueFull(NOW + Span::from_millis(millis)))
    }

    #[test]
    fn a_policing_bucket_without_a_queue_paces_strictly() {
        let denied = Admission::Denied(Denial::Until(NOW + Span::from_millis(100)));
        let answers = [(0, after(0)), (0, denied), (100, after(0))];
        check(&bucket(0, Leaky::Police), answers);
    }

    #[test]
    fn a_shaping_bucket_assigns_turns_until_the_queue_is_full() {
        let bucket = bucket(2, Leaky::Shape { max_wait: None });
        let turns = [after(0), after(100), after(200), full_until(100)];
        check(&bucket, turns.map(|it| (0, it)));
    }

    #[test]
    fn a_wait_beyond_the_longest_is_denied_until_it_has_shrunk() {
        let max_wait = Some(Span::from_millis(150));
        let bucket = bucket(9, Leaky::Shape { max_wait });
        let answers = [
            (0, after(0)),
            (0, after(100)),
            (0, full_until(50)),
            (50, after(150)),
        ];
        check(&bucket, answers);
    }
}
