//! Sliding log: at most `limit` in any span of one window, exactly.
//!
//! Every admitted cost is kept with its instant until it leaves the window. A cost of 500 is one entry
//! of 500, and costs of the same microsecond share an entry.
//!
//! # Promise
//! In any span of length `window`, at most `limit` is admitted; error bound 0. A denial names the
//! exact instant at which enough of the oldest entries will have left the window. If time goes backwards,
//! entries are written at the latest instant seen. So they may leave late, but never early.
//!
//! A subject has at most [`MAX_ENTRIES`] entries. With more distinct instants in a window, the newest two
//! entries are merged at the later instant. The log still never admits more than `limit`, but merged
//! entries leave the window together.
//!
//! # When the numbers change
//! Entries in the old window stay, with their instants. A raised limit acts at once. A lowered limit
//! denies until enough entries have left the window. Under `proportional` each entry keeps its instant and
//! its share. At any later instant, the sum is the right share, rounded up once.
//! Proof: `tests/properties.rs`.

use std::collections::VecDeque;

use crate::ParamError;
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict, difference, drain_amounts};
use crate::param::check_window;
use crate::units::{MAX_AMOUNT, Scale, Span, Time};

/// The most entries of one subject. They take up to 256 KiB, because the list grows by doubling.
pub const MAX_ENTRIES: usize = 10_000;

/// The numbers of a sliding log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    limit: u64,
    window: u64,
}

/// The admitted costs, oldest first. Instants never decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    entries: VecDeque<Entry>,
    /// The sum of all entries, including entries that have left the window.
    total: u64,
    /// The latest instant at which the state was changed. New entries get this instant or a later one.
    seen: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    cost: u64,
}

impl Entry {
    fn merge(&mut self, newer: Entry) {
        self.at = newer.at;
        self.cost += newer.cost;
    }
}

impl State {
    /// Returns the bytes that the state holds on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Returns the instant, in microseconds since the epoch, and the cost of each entry, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.entries.iter().map(|entry| (entry.at, entry.cost))
    }

    /// Merges the newest two entries at the later instant. So a store that is short of memory can add an
    /// entry without growing the list. The log never admits more because of this, but merged entries leave
    /// the window together.
    pub fn coarsen(&mut self) {
        if let Some(newest) = self.entries.pop_back() {
            match self.entries.back_mut() {
                Some(last) => last.merge(newest),
                None => self.entries.push_back(newest),
            }
        }
    }

    /// Returns whether one more entry would grow the list.
    #[must_use]
    pub fn is_at_capacity(&self) -> bool {
        self.entries.len() == self.entries.capacity()
    }

    fn push(&mut self, cost: u64, now: Time) {
        if cost == 0 {
            return;
        }
        self.total += cost;
        let at = now.as_micros().max(self.seen);
        let entry = Entry { at, cost };
        let full = self.entries.len() >= MAX_ENTRIES;
        match self.entries.back_mut() {
            Some(last) if last.at == at || full => last.merge(entry),
            _ => self.entries.push_back(entry),
        }
    }

    fn drop_spent(&mut self) {
        self.entries.retain(|entry| entry.cost > 0);
    }
}

/// Returns a limit of `limit` in any span of `window`. A limit of 0 admits nothing.
///
/// # Errors
/// If a number is out of range.
pub fn new(limit: u64, window: Span) -> Result<SlidingLog, ParamError> {
    let window = check_window(limit, window)?;
    Ok(SlidingLog { limit, window })
}

impl SlidingLog {
    pub(crate) fn scaled(&self, scale: Scale) -> SlidingLog {
        let limit = scale.amount(self.limit);
        SlidingLog { limit, ..*self }
    }

    fn leaves_at(&self, entry: Entry) -> u64 {
        entry.at + self.window
    }

    /// Returns the sum of the entries in the window at `now`, and the entries, oldest first.
    fn live<'a>(&self, state: &'a State, now: Time) -> (u64, impl Iterator<Item = Entry> + 'a) {
        let mut used = state.total;
        let mut gone = 0;
        for entry in &state.entries {
            if self.leaves_at(*entry) > now.as_micros() {
                break;
            }
            used -= entry.cost;
            gone += 1;
        }
        (used, state.entries.range(gone..).copied())
    }

    fn trim(&self, state: &mut State, now: Time) {
        state.seen = state.seen.max(now.as_micros());
        while let Some(oldest) = state.entries.front()
            && self.leaves_at(*oldest) <= now.as_micros()
        {
            state.total -= oldest.cost;
            state.entries.pop_front();
        }
    }
}

impl Limiting for SlidingLog {
    type State = State;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Span {
        Span::from_micros(self.window)
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        let (mut used, entries) = self.live(state, now);
        let available = self.limit.saturating_sub(used);
        if cost > self.limit {
            return Verdict::denied(Denial::Never, available);
        }
        let mut free_at = now;
        for entry in entries {
            if used + cost <= self.limit {
                break;
            }
            used -= entry.cost;
            free_at = Time::from_micros(self.leaves_at(entry));
        }
        if free_at > now {
            Verdict::denied(Denial::Until(free_at), available)
        } else {
            Verdict::allowed(available)
        }
    }

    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        self.trim(state, now);
        state.push(cost, now);
    }

    fn overdraw(&self, state: &mut State, cost: u64, most: u64, now: Time) -> u64 {
        self.trim(state, now);
        let deepest = self.limit + most.min(MAX_AMOUNT);
        let cost = cost.min(deepest);
        let excess = (state.total + cost).saturating_sub(deepest.max(state.total));
        let oldest_first = state.entries.iter_mut();
        drain_amounts(oldest_first.map(|entry| &mut entry.cost), excess);
        state.total -= excess;
        state.drop_spent();
        state.push(cost, now);
        cost - excess
    }

    fn level(&self, state: &State, now: Time) -> i64 {
        difference(self.limit, self.live(state, now).0)
    }

    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, now: Time) {
        self.trim(state, now);
        let newest_first = state.entries.iter_mut().rev();
        let not_newer = newest_first.filter(|entry| entry.at <= charged_at.as_micros());
        let kept = drain_amounts(not_newer.map(|entry| &mut entry.cost), cost);
        state.total -= cost - kept;
        state.drop_spent();
    }

    fn expires_at(&self, state: &State) -> Time {
        let last = state.entries.back();
        Time::from_micros(last.map_or(0, |entry| self.leaves_at(*entry)))
    }

    fn keep(&self, from: &SlidingLog, state: &mut State, how: CarryOver, now: Time) {
        let change = how.change(from.limit, self.limit);
        if change.is_some() || self.window != from.window {
            from.trim(state, now);
        }
        if let Some(change) = change {
            change.scale(state.entries.iter_mut().rev().map(|entry| &mut entry.cost));
            state.total = state.entries.iter().map(|entry| entry.cost).sum();
            state.drop_spent();
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
    fn a_denial_names_the_instant_at_which_enough_has_left() {
        let log = new(10, Span::from_micros(100)).unwrap();
        let mut state = State::default();
        for (now, cost) in [(1000, 3), (1010, 3), (1020, 4)] {
            log.charge(&mut state, cost, at(now));
        }
        assert_eq!(log.decide(&state, 3, at(1030)).retry_at(), Some(at(1100)));
        assert_eq!(log.decide(&state, 4, at(1030)).retry_at(), Some(at(1110)));
        assert_eq!(log.decide(&state, 10, at(1030)).retry_at(), Some(at(1120)));
        assert!(!log.decide(&state, 3, at(1099)).is_allowed());
        assert!(log.decide(&state, 3, at(1100)).is_allowed());
    }

    #[test]
    fn costs_of_one_microsecond_share_an_entry() {
        let log = new(1_000_000, Span::SECOND).unwrap();
        let mut state = State::default();
        log.charge(&mut state, 500, at(1000));
        log.charge(&mut state, 500, at(1000));
        assert_eq!(state.entries().collect::<Vec<_>>(), [(1000, 1000)]);
    }

    #[test]
    fn merged_entries_leave_late_and_never_early() {
        let log = new(1 << 40, Span::HOUR).unwrap();
        let mut state = State::default();
        for i in 0..=MAX_ENTRIES as u64 {
            log.charge(&mut state, 1, at(1000 + i));
        }
        assert_eq!(state.entries.len(), MAX_ENTRIES);
        assert_eq!(state.entries.back().unwrap().at, 1000 + MAX_ENTRIES as u64);
    }

    #[test]
    fn a_refund_removes_its_own_charge_and_nothing_newer() {
        let log = new(10, Span::from_micros(100)).unwrap();
        let mut state = State::default();
        for (now, cost) in [(1000, 5), (1050, 5)] {
            log.charge(&mut state, cost, at(now));
        }
        log.refund(&mut state, 5, at(1000), at(1060));
        assert_eq!(state.entries().collect::<Vec<_>>(), [(1050, 5)]);
        log.refund(&mut state, 5, at(1000), at(1101));
        assert_eq!(state.entries().collect::<Vec<_>>(), [(1050, 5)]);
    }
}
