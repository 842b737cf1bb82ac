//! Concurrency: at most `limit` holders at once.
//!
//! # Promise
//! At most `limit` slots are held at any instant. A slot is held until its holder gives it back, or until
//! its lease ends without a renewal. No slot becomes free a microsecond earlier.
//!
//! A hold takes one slot, whatever its cost. A request without a hold takes no slot: it passes if a slot
//! is free, and is denied otherwise. A waiting client has a place in a queue. Clients that come later get
//! a slot only after the waiting client, even if they do not wait.
//!
//! A denial names the instant at which the first lease, or the first place in the queue, ends by itself.
//! A slot may become free sooner, so a client may ask again earlier.
//!
//! Every slot has a **fence**: a number above the fences of all slots taken before. A fence is the time in
//! microseconds, or the last fence plus 1 if that is larger. So fences grow even if the state is lost,
//! unless the clock has also gone back.
//!
//! # When time goes backwards
//! Slots are held until the clock reaches the end of their lease, so they are held longer.
//!
//! # When the numbers change
//! Holders keep their slots and leases. Under a lower limit, no slot is taken until enough are given back.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::ParamError;
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict};
use crate::param::{ParamProblem, check_span};
use crate::units::{Scale, Span, Time};

/// The most slots that one subject may have.
pub const MAX_SLOTS: u64 = 100_000;
/// The most clients that wait for the slots of one subject. Further clients get no place in the queue.
pub const MAX_WAITERS: usize = 1024;

/// The numbers of a concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: u64,
    lease: u64,
}

/// The holder of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The bits of the hold's id.
    pub hold: u128,
    /// The name that the client gave itself.
    pub owner: Arc<str>,
    /// The fence: larger than the fence of every slot taken before.
    pub fence: u64,
    /// The end of the lease, unless it is renewed.
    pub expires_at: Time,
}

/// The holders of one subject's slots, and the clients that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The slots. The key is the end of the lease in microseconds since the epoch, and the bits of the hold's
    /// id. The value is the fence and the owner.
    holders: BTreeMap<(u64, u128), (u64, Arc<str>)>,
    /// The smallest fence that the next slot may have.
    next_fence: u64,
    /// The waiting clients in order of arrival: the ticket, and the time by which the client has to ask
    /// again.
    waiters: Vec<(u128, u64)>,
}

impl State {
    /// Returns the bytes that the state holds on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        // The nodes of the map are at least half full.
        self.holders.len() * 2 * size_of::<((u64, u128), (u64, Arc<str>))>()
            + self.waiters.capacity() * size_of::<(u128, u64)>()
    }

    /// Returns how many slots are held.
    fn held(&self, now: Time) -> u64 {
        let ended = self.holders.range(..=(now.as_micros(), u128::MAX)).count();
        (self.holders.len() - ended) as u64
    }

    /// Returns how many clients wait before `ticket`. If `ticket` is not in the queue, counts all waiting
    /// clients.
    fn ahead(&self, ticket: Option<u128>, now: Time) -> u64 {
        let live = self.waiters.iter();
        let live = live.filter(|(_, deadline)| *deadline > now.as_micros());
        live.take_while(|(other, _)| Some(*other) != ticket).count() as u64
    }

    /// Returns the smallest fence that a slot taken now may have.
    #[must_use]
    pub fn fence(&self, now: Time) -> u64 {
        self.next_fence.max(now.as_micros())
    }

    /// Takes a slot for `holder`. The fence of `holder` must be at least [`State::fence`].
    pub fn take(&mut self, holder: Holder) {
        self.next_fence = self.next_fence.max(holder.fence + 1);
        let place = (holder.expires_at.as_micros(), holder.hold);
        self.holders.insert(place, (holder.fence, holder.owner));
    }

    /// Frees the slot of `hold` with a lease that ends at `expires_at`.
    pub fn free(&mut self, hold: u128, expires_at: Time) {
        self.holders.remove(&(expires_at.as_micros(), hold));
    }

    /// Returns whether `hold` has a slot with a lease that ends at `expires_at`.
    #[must_use]
    pub fn has(&self, hold: u128, expires_at: Time) -> bool {
        self.holders.contains_key(&(expires_at.as_micros(), hold))
    }

    /// Moves the end of the lease of `hold` from `from` to `to`. Does nothing if `hold` [has](State::has)
    /// no such slot.
    pub fn renew(&mut self, hold: u128, from: Time, to: Time) {
        if let Some(holder) = self.holders.remove(&(from.as_micros(), hold)) {
            self.holders.insert((to.as_micros(), hold), holder);
        }
    }

    /// Gives `ticket` a place in the queue until `deadline`, or extends its place until then. Returns how
    /// many clients are before `ticket`, or `None` if the queue is full.
    pub fn wait(&mut self, ticket: u128, deadline: Time, now: Time) -> Option<u64> {
        let (deadline, now) = (deadline.as_micros(), now.as_micros());
        self.waiters.retain(|(_, deadline)| *deadline > now);
        let place = self.waiters.iter().position(|(it, _)| *it == ticket);
        let place = place.unwrap_or(self.waiters.len());
        match self.waiters.get_mut(place) {
            Some(known) => known.1 = deadline,
            None if place >= MAX_WAITERS => return None,
            None => self.waiters.push((ticket, deadline)),
        }
        Some(place as u64)
    }

    /// Removes `ticket` from the queue.
    pub fn leave(&mut self, ticket: u128) {
        self.waiters.retain(|(other, _)| *other != ticket);
    }

    /// Removes the leases and the places in the queue that have ended by `until`.
    pub fn forget(&mut self, until: Time) {
        let until = until.as_micros();
        while let Some(first) = self.holders.first_entry()
            && first.key().0 <= until
        {
            first.remove();
        }
        self.waiters.retain(|(_, deadline)| *deadline > until);
    }

    /// Returns up to `most` holders, ordered by the end of their leases.
    pub fn holders(&self, now: Time, most: usize) -> impl Iterator<Item = Holder> + '_ {
        let after = Bound::Excluded((now.as_micros(), u128::MAX));
        let live = self.holders.range((after, Bound::Unbounded)).take(most);
        live.map(|((expires_at, hold), (fence, owner))| Holder {
            hold: *hold,
            owner: Arc::clone(owner),
            fence: *fence,
            expires_at: Time::from_micros(*expires_at),
        })
    }
}

/// Returns a limit of `limit` slots, each held for `lease` unless renewed. A limit of 0 admits nothing.
///
/// # Errors
/// If a number is out of range.
pub fn new(limit: u64, lease: Span) -> Result<Concurrency, ParamError> {
    if limit > MAX_SLOTS {
        return Err(ParamProblem::TooLarge(limit, MAX_SLOTS).of("limit"));
    }
    check_span("lease", lease)?;
    let lease = lease.as_micros();
    Ok(Concurrency { limit, lease })
}

impl Concurrency {
    pub(crate) fn scaled(&self, scale: Scale) -> Concurrency {
        let limit = scale.amount(self.limit).min(MAX_SLOTS);
        Concurrency { limit, ..*self }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how long a slot is held unless it is renewed.
    #[must_use]
    pub fn lease(&self) -> Span {
        Span::from_micros(self.lease)
    }

    /// Decides whether a slot is free at `now` for the client with this ticket. A client without a ticket
    /// comes after all waiting clients. A cost of 0 needs no slot.
    #[must_use]
    pub fn decide_for(&self, state: &State, ticket: Option<u128>, cost: u64, now: Time) -> Verdict {
        let taken = state.held(now) + state.ahead(ticket, now);
        let available = self.limit.saturating_sub(taken);
        if cost == 0 || available > 0 {
            return Verdict::allowed(available);
        }
        if self.limit == 0 {
            return Verdict::denied(Denial::Never, 0);
        }
        let mut leases = state.holders.keys().map(|(ends_at, _)| *ends_at);
        let first_lease = leases.find(|it| *it > now.as_micros());
        let places = state.waiters.iter().map(|(_, deadline)| *deadline);
        let first_place = places.filter(|it| *it > now.as_micros()).min();
        // There is a holder or a waiting client, because otherwise a slot would be free.
        let ends = first_lease.into_iter().chain(first_place).min();
        let until = ends.map_or(now, Time::from_micros);
        Verdict::denied(Denial::Until(until), 0)
    }
}

impl Limiting for Concurrency {
    type State = State;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Span {
        self.lease()
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        self.decide_for(state, None, cost, now)
    }

    /// Does nothing: only a hold takes a slot, by [`State::take`].
    fn charge(&self, _state: &mut State, _cost: u64, _now: Time) {}

    fn overdraw(&self, _state: &mut State, _cost: u64, _most: u64, _now: Time) -> u64 {
        0
    }

    /// Slots are not an amount.
    fn level(&self, _state: &State, _now: Time) -> i64 {
        0
    }

    /// Does nothing: a slot is given back by [`State::free`].
    fn refund(&self, _state: &mut State, _cost: u64, _charged_at: Time, _now: Time) {}

    fn expires_at(&self, state: &State) -> Time {
        let last_lease = state.holders.keys().next_back().map_or(0, |it| it.0);
        let places = state.waiters.iter().map(|(_, deadline)| *deadline);
        Time::from_micros(places.fold(last_lease.max(state.next_fence), u64::max))
    }

    /// Does nothing: when the numbers of the limit change, holders keep their slots, even with [`CarryOver::Reset`].
    fn carry_over(&self, _: &Concurrency, _: &mut State, _: CarryOver, _: Time) {}

    fn keep(&self, _: &Concurrency, _: &mut State, _: CarryOver, _: Time) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_700_000_000_000_000);

    fn holder(hold: u128, expires_at: Time, state: &State) -> Holder {
        Holder {
            hold,
            owner: "me".into(),
            fence: state.fence(NOW),
            expires_at,
        }
    }

    #[test]
    fn a_slot_is_free_at_the_end_of_its_lease_and_not_before() {
        let one = new(1, Span::SECOND).unwrap();
        let mut state = State::default();
        let end = NOW + Span::SECOND;
        state.take(holder(1, end, &state));
        let denied = one.decide(&state, 1, end - Span::from_micros(1));
        assert_eq!(denied.retry_at(), Some(end));
        assert!(one.decide(&state, 1, end).is_allowed());
        assert!(one.decide(&state, 0, NOW).is_allowed());
    }

    #[test]
    fn fences_grow_even_where_time_does_not() {
        let mut state = State::default();
        let mut last = 0;
        for hold in 0..3 {
            let holder = holder(hold, NOW, &state);
            assert!(holder.fence > last);
            last = holder.fence;
            state.take(holder);
            state.forget(NOW);
        }
        assert!(State::default().fence(NOW + Span::SECOND) > last);
    }

    #[test]
    fn a_waiting_client_is_not_overtaken() {
        let one = new(1, Span::SECOND).unwrap();
        let mut state = State::default();
        state.take(holder(1, NOW + Span::SECOND, &state));
        let patience = NOW + Span::MINUTE;
        assert_eq!(state.wait(7, patience, NOW), Some(0));
        assert_eq!(state.wait(8, patience, NOW), Some(1));
        assert_eq!(state.wait(7, patience, NOW), Some(0));
        state.free(1, NOW + Span::SECOND);
        assert!(!one.decide(&state, 1, NOW).is_allowed());
        assert!(!one.decide_for(&state, Some(8), 1, NOW).is_allowed());
        assert!(one.decide_for(&state, Some(7), 1, NOW).is_allowed());
        state.leave(7);
        assert!(one.decide_for(&state, Some(8), 1, NOW).is_allowed());
        // A client that does not ask again loses its place.
        assert!(one.decide(&state, 1, patience).is_allowed());
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut state = State::default();
        let patience = NOW + Span::SECOND;
        for ticket in 0..MAX_WAITERS as u128 {
            assert!(state.wait(ticket, patience, NOW).is_some());
        }
        assert_eq!(state.wait(u128::MAX, patience, NOW), None);
        let later = patience + Span::SECOND;
        assert_eq!(state.wait(u128::MAX, later, patience), Some(0));
    }

    #[test]
    fn a_lower_limit_lets_holders_finish() {
        let mut state = State::default();
        for hold in 0..3 {
            state.take(holder(hold, NOW + Span::SECOND, &state));
        }
        let two = new(2, Span::SECOND).unwrap();
        assert_eq!(two.decide(&state, 1, NOW).available, 0);
        state.free(0, NOW + Span::SECOND);
        assert!(!two.decide(&state, 1, NOW).is_allowed());
        state.free(1, NOW + Span::SECOND);
        assert!(two.decide(&state, 1, NOW).is_allowed());
        assert_eq!(state.holders(NOW, 9).count(), 1);
    }
}
