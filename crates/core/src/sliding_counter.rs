//! Sliding counter: at most `limit` in any span of one window, counted in sub-buckets.
//!
//! The window is cut into N sub-buckets. A decision counts the current sub-bucket and the N sub-buckets
//! before it. So a sub-bucket that lies partly in the window is counted whole.
//!
//! # Promise
//! In any span of length `window`, at most `limit` is admitted: the counter never admits too much. The
//! price: a cost counts for at least `window` and at most `window × (1 + 1/N)`. With the default of 10
//! sub-buckets, a cost counts at most 10% longer than in the exact log. A state has a fixed size of N + 1
//! counts. A denial names the exact instant at which enough sub-buckets will have left the window. If time
//! goes backwards, costs are counted in the latest sub-bucket seen.
//!
//! A sub-bucket is a whole number of microseconds. If the window does not divide by N, it is lengthened
//! until it does.
//!
//! # When the numbers change
//! Each sub-bucket in the window moves, whole, into the new sub-bucket that contains its last instant.
//! So a cost counts up to one old sub-bucket longer, and never shorter. Under `proportional` each
//! sub-bucket keeps its share. The sum is the right share, rounded up once, also after the oldest
//! sub-buckets have left the window.
//! Proof: `tests/properties.rs`.

use crate::ParamError;
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict, difference, drain_amounts};
use crate::param::{ParamProblem, check_window};
use crate::units::{MAX_AMOUNT, Scale, Span, Time};

/// The default number of sub-buckets in a window.
pub const DEFAULT_BUCKETS: u32 = 10;
/// The most sub-buckets in a window.
pub const MAX_BUCKETS: u32 = 60;

/// The numbers of a sliding counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlidingCounter {
    limit: u64,
    buckets: u64,
    /// Microseconds in a sub-bucket.
    length: u64,
}

/// The counts of the newest sub-bucket and of the sub-buckets before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The number of the newest sub-bucket, counted from the epoch.
    newest: u64,
    /// The count of sub-bucket `n` is at `n % len`. Empty for a subject never seen.
    counts: Box<[u64]>,
}

impl State {
    /// Returns the bytes that the state holds on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.counts.len() * size_of::<u64>()
    }

    /// Returns the number and the count of each sub-bucket that is not empty. Numbers are counted from the
    /// epoch.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let len = self.counts.len() as u64;
        (self.newest.saturating_sub(len.saturating_sub(1))..=self.newest)
            .filter(move |_| len > 0)
            .map(|number| (number, self.counts[self.index(number)]))
            .filter(|(_, count)| *count > 0)
    }

    #[allow(clippy::cast_possible_truncation)] // Below the length of a slice.
    fn index(&self, number: u64) -> usize {
        (number % self.counts.len() as u64) as usize
    }

    fn count_mut(&mut self, number: u64) -> &mut u64 {
        let index = self.index(number);
        &mut self.counts[index]
    }
}

/// Returns a limit of `limit` in any span of `window`, counted in `buckets` sub-buckets. A limit of 0
/// admits nothing.
///
/// # Errors
/// If a number is out of range, or the window is shorter than a microsecond per sub-bucket.
pub fn new(limit: u64, window: Span, buckets: u32) -> Result<SlidingCounter, ParamError> {
    let (window, buckets) = (check_window(limit, window)?, u64::from(buckets));
    let range = 2..=window.clamp(2, MAX_BUCKETS.into());
    if !range.contains(&buckets) || buckets > window {
        return Err(ParamProblem::OutOfRange(buckets, range).of("buckets"));
    }
    Ok(SlidingCounter {
        limit,
        buckets,
        length: window.div_ceil(buckets),
    })
}

impl SlidingCounter {
    pub(crate) fn scaled(&self, scale: Scale) -> SlidingCounter {
        let limit = scale.amount(self.limit);
        SlidingCounter { limit, ..*self }
    }

    /// Returns the limit, the number of sub-buckets, and the microseconds in a sub-bucket.
    #[must_use]
    pub fn parts(&self) -> (u64, u64, u64) {
        (self.limit, self.buckets, self.length)
    }

    fn number(&self, now: Time) -> u64 {
        now.as_micros() / self.length
    }

    /// Returns the number of the current sub-bucket. It is never before the newest sub-bucket of the state.
    fn running(&self, state: &State, now: Time) -> u64 {
        self.number(now).max(state.newest)
    }

    fn leaves_at(&self, number: u64) -> u64 {
        (number + self.buckets + 1) * self.length
    }

    /// Returns the sub-buckets that count during sub-bucket `running`, oldest first, and their counts.
    fn live<'a>(&self, state: &'a State, running: u64) -> impl Iterator<Item = (u64, u64)> + 'a {
        let oldest = running.saturating_sub(self.buckets);
        let counts = state.counts();
        counts.skip_while(move |(number, _)| *number < oldest)
    }

    /// Makes `running` the newest sub-bucket, and forgets the sub-buckets that have left the window.
    fn advance(&self, state: &mut State, running: u64) {
        if state.counts.is_empty() {
            #[allow(clippy::cast_possible_truncation)] // At most MAX_BUCKETS.
            let len = self.buckets as usize + 1;
            state.counts = vec![0; len].into_boxed_slice();
        }
        let steps = (running - state.newest).min(self.buckets + 1);
        for step in 0..steps {
            *state.count_mut(running - step) = 0;
        }
        state.newest = running;
    }

    /// Returns `state`, which was written under `from`, converted to these sub-buckets.
    fn moved(&self, from: &SlidingCounter, state: &State, now: Time) -> State {
        let end_of = |number: u64| (number + 1) * from.length - 1;
        // If the clock is before the newest sub-bucket, act as if it stood at the end of that sub-bucket.
        let seen = match state.newest > from.number(now) {
            true => end_of(state.newest),
            false => now.as_micros(),
        };
        let running = seen / self.length;
        let mut moved = State::default();
        self.advance(&mut moved, running);
        for (number, count) in from.live(state, from.running(state, now)) {
            let place = (end_of(number) / self.length).min(running);
            if place + self.buckets >= running {
                *moved.count_mut(place) += count;
            }
        }
        moved
    }
}

impl Limiting for SlidingCounter {
    type State = State;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Span {
        Span::from_micros(self.length * self.buckets)
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        let running = self.running(state, now);
        let mut used: u64 = self.live(state, running).map(|(_, count)| count).sum();
        let available = self.limit.saturating_sub(used);
        if cost > self.limit {
            return Verdict::denied(Denial::Never, available);
        }
        if used + cost <= self.limit {
            return Verdict::allowed(available);
        }
        let mut free_at = now;
        for (number, count) in self.live(state, running) {
            used -= count;
            free_at = Time::from_micros(self.leaves_at(number));
            if used + cost <= self.limit {
                break;
            }
        }
        Verdict::denied(Denial::Until(free_at), available)
    }

    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        let running = self.running(state, now);
        self.advance(state, running);
        *state.count_mut(running) += cost;
    }

    fn overdraw(&self, state: &mut State, cost: u64, most: u64, now: Time) -> u64 {
        let running = self.running(state, now);
        self.advance(state, running);
        let deepest = self.limit + most.min(MAX_AMOUNT);
        let used: u64 = state.counts.iter().sum();
        let cost = cost.min(deepest);
        let excess = (used + cost).saturating_sub(deepest.max(used));
        let mut left = excess;
        for number in running.saturating_sub(self.buckets)..=running {
            left = drain_amounts(std::iter::once(state.count_mut(number)), left);
        }
        *state.count_mut(running) += cost;
        cost - excess
    }

    fn level(&self, state: &State, now: Time) -> i64 {
        let live = self.live(state, self.running(state, now));
        difference(self.limit, live.map(|(_, count)| count).sum())
    }

    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, now: Time) {
        if state.counts.is_empty() {
            return;
        }
        let running = self.running(state, now);
        let oldest = running.saturating_sub(self.buckets);
        let mut left = cost;
        for number in (oldest..=self.number(charged_at).min(state.newest)).rev() {
            left = drain_amounts(std::iter::once(state.count_mut(number)), left);
        }
    }

    fn expires_at(&self, state: &State) -> Time {
        let last = state.counts().last();
        Time::from_micros(last.map_or(0, |(number, _)| self.leaves_at(number)))
    }

    fn keep(&self, from: &SlidingCounter, state: &mut State, how: CarryOver, now: Time) {
        if (self.buckets, self.length) != (from.buckets, from.length) {
            *state = self.moved(from, state, now);
        }
        if let Some(change) = how.change(from.limit, self.limit)
            && !state.counts.is_empty()
        {
            // The counts are a ring buffer. Older counts stand before the newest count, and continue at the
            // end of the slice.
            let newest = state.index(state.newest);
            let (to_newest, oldest) = state.counts.split_at_mut(newest + 1);
            change.scale(to_newest.iter_mut().rev().chain(oldest.iter_mut().rev()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_micros(micros)
    }

    #[test]
    fn cost_is_held_for_a_window_and_at_most_a_sub_bucket_more() {
        let counter = new(1, Span::from_micros(100), 10).unwrap();
        for charged in 1000..1010 {
            let mut state = State::default();
            counter.charge(&mut state, 1, at(charged));
            let free = counter.decide(&state, 1, at(charged)).retry_at().unwrap();
            let held = free.since(at(charged)).as_micros();
            assert!((101..=110).contains(&held), "held {held}");
        }
    }

    #[test]
    fn a_long_idle_forgets_every_sub_bucket() {
        let counter = new(5, Span::from_micros(100), 10).unwrap();
        let mut state = State::default();
        counter.charge(&mut state, 5, at(1000));
        counter.charge(&mut state, 5, at(1_000_000));
        assert_eq!(counter.decide(&state, 0, at(1_000_000)).available, 0);
        assert_eq!(state.counts().count(), 1);
    }

    #[test]
    fn a_changed_window_keeps_what_was_used() {
        let old = new(10, Span::from_micros(100), 10).unwrap();
        let new_ = new(10, Span::from_micros(300), 6).unwrap();
        let mut state = State::default();
        old.charge(&mut state, 4, at(1000));
        old.charge(&mut state, 3, at(1050));
        new_.carry_over(&old, &mut state, CarryOver::Keep, at(1060));
        assert_eq!(new_.decide(&state, 0, at(1060)).available, 3);
    }

    #[test]
    fn too_many_sub_buckets_are_rejected() {
        for (window, buckets) in [(Span::SECOND, 61), (Span::from_micros(5), 10)] {
            assert_eq!(new(1, window, buckets).unwrap_err().field, "buckets");
        }
    }
}
