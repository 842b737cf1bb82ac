//! Leaky bucket: a steady outflow of `rate`, with room for `queue` behind the request being served.
//!
//! # Two modes
//! * **Policing** denies requests that do not fit. With a queue of 0 it is strict pacing: one request,
//!   then none until the interval has passed.
//! * **Shaping** admits requests that fit, with the delay until their turn. Admitted requests leave at
//!   `rate`, never closer together. It denies a request if the queue is full, or the wait is longer
//!   than `max_wait`.
//!
//! # Promise
//! In any span `t`, at most `queue + 1 + rate × t` is admitted; error bound 0. When shaping, turns
//! are whole ticks: at most `rate × t`, one tick of `rate`, and the cost of the last request leave in
//! any span `t`. A denial names the exact microsecond at which the request would be admitted.
//!
//! [`crate::meter`] keeps the level of the bucket. It says how long a state lives, and what a change of
//! numbers does to it. A request keeps the turn it was given. A change of only the mode or the longest
//! wait leaves the level alone, also under `reset`.
//! Proof: `tests/properties.rs`.

use crate::CarryOver;
use crate::ParamError;
use crate::limiting::{Admission, Denial, Limiting, Verdict};
use crate::meter::{self, Meter};
use crate::param::{ParamProblem, check_amount, check_span};
use crate::units::{MAX_AMOUNT, Rate, Scale, Span, Time};

/// What a leaky bucket does with a request that finds others before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaky {
    /// Admits it at once if there is room, and denies it otherwise.
    Police,
    /// Tells it to wait for its turn.
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
    /// Returns the bucket whose level is kept in `meter`.
    ///
    /// # Errors
    /// If the longest wait is zero, or longer than 71 years.
    pub fn of_parts(meter: Meter, leaky: Leaky) -> Result<LeakyBucket, ParamError> {
        if let Leaky::Shape {
            max_wait: Some(wait),
        } = leaky
        {
            check_span("max_wait", wait)?;
        }
        Ok(LeakyBucket { meter, leaky })
    }

    pub(crate) fn scaled(&self, scale: Scale) -> LeakyBucket {
        LeakyBucket {
            meter: self.meter.scaled(scale),
            ..*self
        }
    }

    /// Returns a bucket with the same queue that leaks at `rate`.
    pub(crate) fn at_rate(&self, rate: Rate) -> Result<LeakyBucket, ParamError> {
        new(rate, self.capacity().saturating_sub(1), self.leaky)
    }

    /// Returns a bucket without room, not even for a request being served.
    pub(crate) fn closed(&self, rate: Rate) -> Result<LeakyBucket, ParamError> {
        let meter = Meter::new(0, rate, "queue", "rate")?;
        Ok(LeakyBucket { meter, ..*self })
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
        let soon_enough = max_wait.map(|wait| self.meter.full_within(*state, wait));
        let admission = match (verdict.admission, soon_enough) {
            (Admission::Denied(denial @ (Denial::Never | Denial::Unrestored)), _) => {
                Admission::Denied(denial)
            }
            (Admission::Denied(Denial::Until(room) | Denial::QueueFull(room)), soon) => {
                Admission::Denied(Denial::QueueFull(soon.map_or(room, |soon| soon.max(room))))
            }
            (Admission::Allowed { .. }, Some(soon)) if soon > now => {
                Admission::Denied(Denial::QueueFull(soon))
            }
            (Admission::Allowed { .. }, _) => Admission::Allowed {
                delay: self.meter.until_full(*state, now),
            },
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

    fn keep_used(&self, from: &LeakyBucket, state: &mut meter::State, now: Time) {
        self.carry_over(from, state, CarryOver::Keep, now);
    }

    fn keep_share(&self, from: &LeakyBucket, state: &mut meter::State, now: Time) {
        self.carry_over(from, state, CarryOver::Proportional, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_000_000_000);

    fn bucket(queue: u64, leaky: Leaky) -> LeakyBucket {
        new(Rate::new(10, Span::SECOND).unwrap(), queue, leaky).unwrap()
    }

    fn admit(bucket: &LeakyBucket, state: &mut meter::State, now: Time) -> Admission {
        let verdict = bucket.decide(state, 1, now);
        if verdict.is_allowed() {
            bucket.charge(state, 1, now);
        }
        verdict.admission
    }

    #[test]
    fn a_policing_bucket_without_a_queue_paces_strictly() {
        let bucket = bucket(0, Leaky::Police);
        let mut state = meter::State::default();
        assert!(matches!(
            admit(&bucket, &mut state, NOW),
            Admission::Allowed { .. }
        ));
        let next = NOW + Span::from_millis(100);
        assert_eq!(
            admit(&bucket, &mut state, NOW),
            Admission::Denied(Denial::Until(next))
        );
        assert!(matches!(
            admit(&bucket, &mut state, next),
            Admission::Allowed { .. }
        ));
    }

    #[test]
    fn a_shaping_bucket_assigns_turns_until_the_queue_is_full() {
        let bucket = bucket(2, Leaky::Shape { max_wait: None });
        let mut state = meter::State::default();
        for turn in 0..3 {
            let delay = Span::from_millis(100 * turn);
            assert_eq!(
                admit(&bucket, &mut state, NOW),
                Admission::Allowed { delay }
            );
        }
        let room = NOW + Span::from_millis(100);
        assert_eq!(
            admit(&bucket, &mut state, NOW),
            Admission::Denied(Denial::QueueFull(room))
        );
    }

    #[test]
    fn a_wait_beyond_the_longest_is_denied_until_it_has_shrunk() {
        let wait = Span::from_millis(150);
        let bucket = bucket(
            9,
            Leaky::Shape {
                max_wait: Some(wait),
            },
        );
        let mut state = meter::State::default();
        admit(&bucket, &mut state, NOW);
        admit(&bucket, &mut state, NOW);
        let soon = NOW + Span::from_millis(50);
        assert_eq!(
            admit(&bucket, &mut state, NOW),
            Admission::Denied(Denial::QueueFull(soon))
        );
        assert_eq!(
            admit(&bucket, &mut state, soon),
            Admission::Allowed { delay: wait }
        );
    }
}
