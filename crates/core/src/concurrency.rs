//! Concurrency: so many at once.
//!
//! # Promise
//! At most `limit` slots are held at any instant. A slot is held until its holder gives it back, or until
//! its lease ends without having been renewed, and not a microsecond less.
//!
//! A hold takes one slot, whatever it costs otherwise. A request that holds nothing takes none: it is
//! refused while no slot is free, and passes else. Who waits has a place in a queue, and nobody who came
//! later gets a slot before: neither others who wait nor those who do not.
//!
//! A refusal says when the first lease, or the first place in the queue, ends by itself. A slot may be
//! given back sooner, so unlike that of other limits it is an instant to ask again at the latest.
//!
//! Every slot that is taken has a **fence**: a number above those of all slots taken before. It is the time
//! in microseconds, or the last one and 1, so that it grows even where the state was lost, unless the clock
//! went back meanwhile.
//!
//! # When time goes backwards
//! What has been held is held longer.
//!
//! # When numbers change
//! Holders stay, and keep their leases. Under a lower limit nobody gets a slot until enough have gone.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::ParamError;
use crate::limiting::{Denial, Limiting, Verdict};
use crate::param::check_span;
use crate::units::{Scale, Span, Time};

/// The most slots that one subject may have.
pub const MAX_SLOTS: u64 = 100_000;
/// The most that wait for the slots of one subject. Who comes then is refused.
pub const MAX_WAITERS: usize = 1024;

/// The numbers of a concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: u64,
    lease: u64,
}

/// Who holds a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The bits of the hold's id.
    pub hold: u128,
    /// Who that is, in its own words.
    pub owner: Arc<str>,
    /// The slot's number: larger than that of every slot taken before.
    pub fence: u64,
    /// When the slot is free if it is not renewed.
    pub expires_at: Time,
}

/// The holders of one subject's slots, and who waits for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// By the end of the lease, in microseconds since the epoch, and the hold.
    holders: BTreeMap<(u64, u128), (u64, Arc<str>)>,
    /// The least fence that the next slot may have.
    next_fence: u64,
    /// In the order in which they came: who waits, and until when without asking again.
    waiters: Vec<(u128, u64)>,
}

impl State {
    /// Bytes held outside of it.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        // Nodes of the map are at least half full.
        self.holders.len() * 2 * size_of::<((u64, u128), (u64, Arc<str>))>()
            + self.waiters.capacity() * size_of::<(u128, u64)>()
    }

    /// How many slots are held.
    fn held(&self, now: Time) -> u64 {
        let ended = self.holders.range(..=(now.as_micros(), u128::MAX)).count();
        (self.holders.len() - ended) as u64
    }

    /// How many who still wait came before `ticket`, or have come at all if it does not wait.
    fn ahead(&self, ticket: Option<u128>, now: Time) -> u64 {
        let waits = |deadline: u64| deadline > now.as_micros();
        let live = self.waiters.iter().filter(|(_, it)| waits(*it));
        live.take_while(|(other, _)| Some(*other) != ticket).count() as u64
    }

    /// The least fence that a slot taken now may have.
    #[must_use]
    pub fn fence(&self, now: Time) -> u64 {
        self.next_fence.max(now.as_micros())
    }

    /// Takes a slot for `holder`, whose fence is at least [`State::fence`].
    pub fn take(&mut self, holder: Holder) {
        self.next_fence = self.next_fence.max(holder.fence + 1);
        let place = (holder.expires_at.as_micros(), holder.hold);
        self.holders.insert(place, (holder.fence, holder.owner));
    }

    /// Frees the slot of `hold`, whose lease ends at `expires_at`.
    pub fn free(&mut self, hold: u128, expires_at: Time) {
        self.holders.remove(&(expires_at.as_micros(), hold));
    }

    /// Whether `hold` has a slot whose lease ends at `expires_at`.
    #[must_use]
    pub fn has(&self, hold: u128, expires_at: Time) -> bool {
        self.holders.contains_key(&(expires_at.as_micros(), hold))
    }

    /// The lease of `hold` ends at `to` instead of `from`, if it [has](State::has) one.
    pub fn renew(&mut self, hold: u128, from: Time, to: Time) {
        if let Some(holder) = self.holders.remove(&(from.as_micros(), hold)) {
            self.holders.insert((to.as_micros(), hold), holder);
        }
    }

    /// Gives `ticket` a place in the queue until `deadline`, or lets it keep the one it has, and says how
    /// many are before it. None if there is no place.
    pub fn wait(&mut self, ticket: u128, deadline: Time, now: Time) -> Option<u64> {
        let live = |deadline: u64| deadline > now.as_micros();
        self.waiters.retain(|(_, deadline)| live(*deadline));
        let known = self.waiters.iter().position(|(it, _)| *it == ticket);
        let place = match known {
            Some(place) => place,
            None if self.waiters.len() < MAX_WAITERS => {
                self.waiters.push((ticket, 0));
                self.waiters.len() - 1
            }
            None => return None,
        };
        self.waiters[place].1 = deadline.as_micros();
        Some(place as u64)
    }

    /// `ticket` no longer waits.
    pub fn leave(&mut self, ticket: u128) {
        self.waiters.retain(|(other, _)| *other != ticket);
    }

    /// Forgets leases and places that ended up to `until`.
    pub fn forget(&mut self, until: Time) {
        let until = until.as_micros();
        while let Some(first) = self.holders.first_entry()
            && first.key().0 <= until
        {
            first.remove();
        }
        self.waiters.retain(|(_, deadline)| *deadline > until);
    }

    /// Up to `most` of those who hold a slot, the one whose lease ends first in front.
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

/// `limit` slots, each held for `lease` unless renewed. A limit of 0 admits nobody.
///
/// # Errors
/// If a number is out of range.
pub fn new(limit: u64, lease: Span) -> Result<Concurrency, ParamError> {
    if limit > MAX_SLOTS {
        return Err(ParamError::too_large("limit", limit, MAX_SLOTS));
    }
    check_span("lease", lease)?;
    Ok(Concurrency {
        limit,
        lease: lease.as_micros(),
    })
}

impl Concurrency {
    pub(crate) fn scaled(&self, scale: Scale) -> Concurrency {
        Concurrency {
            limit: scale.amount(self.limit).min(MAX_SLOTS),
            ..*self
        }
    }

    /// The same with another limit.
    pub(crate) fn with_limit(&self, limit: u64) -> Result<Concurrency, ParamError> {
        new(limit, self.lease())
    }

    /// How many may hold a slot at once.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a slot is held unless it is renewed.
    #[must_use]
    pub fn lease(&self) -> Span {
        Span::from_micros(self.lease)
    }

    /// Whether there is a slot at `now` for who has this place in the queue, or none. What costs nothing
    /// needs none.
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
        // Something is held or waited for, or there would be a slot.
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

    /// Only a hold takes a slot: [`State::take`].
    fn charge(&self, _state: &mut State, _cost: u64, _now: Time) {}

    fn overdraw(&self, _state: &mut State, _cost: u64, _most: u64, _now: Time) -> u64 {
        0
    }

    /// A slot comes back by [`State::free`].
    fn refund(&self, _state: &mut State, _cost: u64, _charged_at: Time, _now: Time) {}

    fn expires_at(&self, state: &State) -> Time {
        let last_lease = state
            .holders
            .keys()
            .next_back()
            .map(|(ends_at, _)| *ends_at);
        let last_place = state.waiters.iter().map(|(_, deadline)| *deadline).max();
        let last = last_lease.into_iter().chain(last_place).max();
        Time::from_micros(last.unwrap_or(0).max(state.next_fence))
    }

    fn keep_used(&self, _from: &Concurrency, _state: &mut State, _now: Time) {}

    fn keep_share(&self, _from: &Concurrency, _state: &mut State, _now: Time) {}

    /// Holders hold, whatever the numbers.
    fn carry_over(&self, _: &Concurrency, _: &mut State, _: crate::CarryOver, _: Time) {}
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
        let refused = one.decide(&state, 1, Time::from_micros(end.as_micros() - 1));
        assert_eq!(refused.retry_at(), Some(end));
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
    fn nobody_overtakes_who_waits() {
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
        // Who does not ask again loses the place.
        assert!(one.decide(&state, 1, patience).is_allowed());
    }

    #[test]
    fn the_queue_has_an_end() {
        let mut state = State::default();
        let patience = NOW + Span::SECOND;
        for ticket in 0..MAX_WAITERS as u128 {
            assert!(state.wait(ticket, patience, NOW).is_some());
        }
        assert_eq!(state.wait(u128::MAX, patience, NOW), None);
        assert_eq!(
            state.wait(u128::MAX, patience + Span::SECOND, patience),
            Some(0)
        );
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
