//! The order in which waiting requests ask the store again: one queue for each bucket and lane.
//!
//! A pure data structure: every method is told the time. `room.rs` locks it and wakes requests.
//!
//! # Order
//! * The requests of one client have one *line*, in the order of arrival.
//! * The first request of each line has the instant at which the store expects to admit it. When the instant
//!   has come, the line is *due*.
//! * Of all due lines, the one with the lowest virtual finish tag asks first. A line gets on by the units of an
//!   admitted request, divided by the weight of the client. So clients get turns by weight.
//!
//! # Invariant
//! At most one request has the *turn*: only this request may ask the store. If a request waits, one has the
//! turn. After [`MAX_DENIED`] denials in a row the queue rests until a unit has refilled. So there are at most
//! `MAX_DENIED` denied questions for each unit, however many clients wait.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// The most denied questions in a row before a queue rests.
pub(super) const MAX_DENIED: u32 = 4;
/// One unit of a client of weight 1, in virtual time.
const SCALE_BITS: u32 = 20;
/// The most units of a request that virtual time counts, so that it stays far below 2^63.
const MOST_UNITS: u64 = 1 << 32;

/// A request that waits: its client, and its number in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) client: u64,
    pub(super) arrival: u64,
}

/// Whether a request may ask the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// The request may ask now. It has to report the answer.
    Ask,
    /// The request may ask at this instant, unless another request gets the turn before.
    At(Instant),
    /// Another request has the turn.
    #[default]
    Other,
}

/// The queue of a bucket, or of one of its lanes. `W` wakes a request.
#[derive(Debug)]
pub(super) struct Queue<W> {
    lines: HashMap<u64, Line<W>>,
    /// Lines whose instant has come, by finish tag.
    due: BTreeSet<(u64, u64)>,
    /// The other lines, by instant.
    later: BTreeSet<(Instant, u64)>,
    turn: Option<Holder>,
    virtual_time: u64,
    waiting: usize,
    denied: u32,
    rests_until: Option<Instant>,
}

/// The request that has the turn.
#[derive(Clone, Copy, Debug)]
struct Holder {
    waiter: Waiter,
    is_asking: bool,
}

/// The requests of one client.
#[derive(Debug)]
struct Line<W> {
    /// In the order of arrival.
    waiting: VecDeque<Place<W>>,
    /// The units of all requests in the line.
    units: u64,
    weight: u32,
    /// The virtual start tag of the first request.
    start: u64,
    /// When the store expects to admit the first request.
    next: Instant,
}

#[derive(Debug)]
struct Place<W> {
    arrival: u64,
    units: u64,
    wake: W,
}

impl<W> Line<W> {
    fn head(&self) -> Option<&Place<W>> {
        self.waiting.front()
    }

    /// Returns the index of the request that came at `arrival`, or the index at which it belongs.
    fn find(&self, arrival: u64) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&arrival, |it| it.arrival)
    }

    /// Returns the virtual finish tag of the first request.
    fn finish(&self) -> u64 {
        let units = self.head().map_or(0, |place| place.units);
        let length = (units.clamp(1, MOST_UNITS) << SCALE_BITS) / u64::from(self.weight.max(1));
        self.start.saturating_add(length)
    }
}

impl<W> Default for Queue<W> {
    fn default() -> Queue<W> {
        Queue {
            lines: HashMap::new(),
            due: BTreeSet::new(),
            later: BTreeSet::new(),
            turn: None,
            virtual_time: 0,
            waiting: 0,
            denied: 0,
            rests_until: None,
        }
    }
}

impl<W: Clone> Queue<W> {
    /// Returns how many requests wait.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns when the first request of a client may be admitted, and the units of its requests behind that
    /// one; `None` if none waits.
    pub(super) fn ahead(&self, client: u64) -> Option<(Instant, u64)> {
        let line = self.lines.get(&client)?;
        let first = line.head().map_or(0, |place| place.units);
        Some((line.next, line.units.saturating_sub(first)))
    }

    /// Like [`ahead`](Self::ahead), of the requests that came before `waiter`.
    pub(super) fn ahead_of(&self, waiter: Waiter) -> Option<(Instant, u64)> {
        let line = self.lines.get(&waiter.client)?;
        if line.waiting.back()?.arrival < waiter.arrival {
            return self.ahead(waiter.client);
        }
        let earlier = line.find(waiter.arrival).unwrap_or_else(|at| at);
        let mut before = line.waiting.range(..earlier);
        before.next()?;
        let units = before.fold(0_u64, |sum, place| sum.saturating_add(place.units));
        Some((line.next, units))
    }

    /// Returns the first instant at which the store expects to admit a request of the queue; `None` if the queue is
    /// empty.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let first = match self.due.is_empty() {
            true => self.later.first().map(|(at, _)| *at)?,
            false => now,
        };
        Some(first.max(self.rests_until.unwrap_or(now)).max(now))
    }

    /// Adds a request. `next` is when the store expects to admit it; it counts if the request is the first of
    /// its client. Returns the request to wake, if another one gets the turn.
    pub(super) fn join(
        &mut self,
        waiter: Waiter,
        (units, weight): (u64, u32),
        next: Instant,
        wake: W,
        now: Instant,
    ) -> Option<W> {
        let client = waiter.client;
        self.detach(client);
        let line = self.lines.entry(client).or_insert_with(|| Line {
            waiting: VecDeque::new(),
            units: 0,
            weight,
            start: self.virtual_time,
            next,
        });
        // The plan of a client may change while it waits.
        line.weight = weight;
        line.units = line.units.saturating_add(units);
        let arrival = waiter.arrival;
        // Nearly all requests join in the order of arrival.
        let at = line.find(arrival).unwrap_or_else(|at| at);
        let place = Place {
            arrival,
            units,
            wake,
        };
        line.waiting.insert(at, place);
        self.waiting += 1;
        self.attach(client);
        self.give_turn(now)
    }

    /// Returns whether a request may ask the store now.
    pub(super) fn turn(&mut self, waiter: Waiter, now: Instant) -> (Turn, Option<W>) {
        let woken = self.give_turn(now);
        let Some(holder) = &mut self.turn else {
            return (Turn::Other, woken);
        };
        if holder.waiter != waiter {
            return (Turn::Other, woken);
        }
        if holder.is_asking {
            return (Turn::Ask, None);
        }
        let at = self.lines.get(&waiter.client).map_or(now, |it| it.next);
        let at = self.rests_until.map_or(at, |rests| at.max(rests));
        if at > now {
            return (Turn::At(at), None);
        }
        holder.is_asking = true;
        (Turn::Ask, None)
    }

    /// Ends the turn of a request that the store has denied. It stays in the queue, and expects to be admitted
    /// at `next`. `rest` is how long a unit takes to refill.
    pub(super) fn denied(
        &mut self,
        waiter: Waiter,
        next: Instant,
        rest: Duration,
        now: Instant,
    ) -> Option<W> {
        self.expect(waiter.client, next);
        self.denied += 1;
        if self.denied >= MAX_DENIED && self.lines.len() > 1 {
            self.denied = 0;
            self.rests_until = Some(now + rest);
        }
        self.end_turn(waiter);
        self.give_turn(now)
    }

    /// Removes a request that was admitted. `next` returns when the next request of its client expects to be
    /// admitted, from its units.
    pub(super) fn admitted(
        &mut self,
        waiter: Waiter,
        next: impl FnOnce(u64) -> Instant,
        now: Instant,
    ) -> Option<W> {
        self.denied = 0;
        self.rests_until = None;
        self.detach(waiter.client);
        if let Some(line) = self.lines.get_mut(&waiter.client) {
            self.virtual_time = self.virtual_time.max(line.start);
            line.start = line.finish();
        }
        self.remove(waiter);
        if let Some(line) = self.lines.get_mut(&waiter.client)
            && let Some(place) = line.head()
        {
            line.next = next(place.units);
        }
        self.attach(waiter.client);
        self.end_turn(waiter);
        self.give_turn(now)
    }

    /// Removes a request that gives up, or that the store has denied for good. `next` is when the store would
    /// admit the next request of its client, if the store has told it.
    pub(super) fn leave(
        &mut self,
        waiter: Waiter,
        next: Option<Instant>,
        now: Instant,
    ) -> Option<W> {
        self.detach(waiter.client);
        self.remove(waiter);
        self.attach(waiter.client);
        if let Some(next) = next {
            self.expect(waiter.client, next);
        }
        self.end_turn(waiter);
        self.give_turn(now)
    }

    /// Removes a request from its line, which is detached.
    fn remove(&mut self, waiter: Waiter) {
        let Some(line) = self.lines.get_mut(&waiter.client) else {
            return;
        };
        let found = line.find(waiter.arrival).ok();
        if let Some(place) = found.and_then(|at| line.waiting.remove(at)) {
            self.waiting -= 1;
            line.units = line.units.saturating_sub(place.units);
        }
        if line.waiting.is_empty() {
            self.lines.remove(&waiter.client);
        }
    }

    /// Sets when the first request of a client expects to be admitted.
    fn expect(&mut self, client: u64, next: Instant) {
        self.detach(client);
        if let Some(line) = self.lines.get_mut(&client) {
            line.next = next;
        }
        self.attach(client);
    }

    /// Takes a line out of the order, before it changes.
    fn detach(&mut self, client: u64) {
        if let Some(line) = self.lines.get(&client) {
            self.due.remove(&(line.finish(), client));
            self.later.remove(&(line.next, client));
        }
    }

    fn attach(&mut self, client: u64) {
        if let Some(line) = self.lines.get(&client) {
            self.later.insert((line.next, client));
        }
    }

    fn end_turn(&mut self, waiter: Waiter) {
        self.turn.take_if(|holder| holder.waiter == waiter);
    }

    /// Gives the turn to the request that is to ask next, unless a request asks now. Returns that request, if
    /// it did not have the turn.
    fn give_turn(&mut self, now: Instant) -> Option<W> {
        if self.turn.is_some_and(|holder| holder.is_asking) {
            return None;
        }
        self.rests_until.take_if(|rests| *rests <= now);
        while let Some((_, client)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.pop_first();
            if let Some(line) = self.lines.get(&client) {
                self.due.insert((line.finish(), client));
            }
        }
        let due = self.due.first().map(|(_, client)| *client);
        let client = due.or_else(|| self.later.first().map(|(_, client)| *client))?;
        let place = self.lines.get(&client)?.head()?;
        let arrival = place.arrival;
        let waiter = Waiter { client, arrival };
        if self.turn.is_some_and(|holder| holder.waiter == waiter) {
            return None;
        }
        self.turn = Some(Holder {
            waiter,
            is_asking: false,
        });
        Some(place.wake.clone())
    }
}

#[cfg(test)]
mod tests;
