//! Fair shares: a token bucket that many clients share, and that no client can take from the others.
//!
//! A plain bucket admits whoever comes first: a client in a loop takes all of it. A fair bucket admits the
//! same amount in total, and divides it by weight while clients compete.
//!
//! # Promise
//! * **Total**: in any span `t`, at most `capacity + refill × t` is taken, as from a
//!   [token bucket](crate::token_bucket); error bound 0.
//! * **Shares**: while clients compete, each gets its weighted share. Two clients that always ask differ in
//!   what they get, divided by their weights, by at most one request each.
//! * **Quiet clients**: a client that stays below its share is not denied, while the tokens that such
//!   clients have saved up are fewer than the reserve: a quarter of the capacity, at least one token. A
//!   client saves up its share of [`MEMORY`], but at most half of the capacity or its share of the capacity.
//! * **No waste**: what a client does not use, others get. A single client gets everything.
//! * **Lanes**: a lane always gets its share of capacity and refill. What it does not use, other lanes
//!   borrow, unless they are strict.
//!
//! # How it works
//! The bucket has a *virtual time*: what a client of weight 1 should have got so far. Each client has a
//! *mark*: what it did get, divided by its weight. A client whose mark is at or below the virtual time may
//! take tokens. A client that is ahead waits. The virtual time moves with the refill, divided by the weights
//! of all known clients: that is the share that each of them is guaranteed. If a client is ahead and the
//! bucket holds more than half, others leave a part of their shares: the virtual time moves on by the
//! surplus, divided by the weights of the clients that were ahead or denied lately. So it moves at the speed
//! at which those clients can be served.
//!
//! The lowest quarter of the bucket is a reserve. Clients that were denied lately do not touch it, unless
//! they are behind by a whole request. So a quiet client finds tokens at any time. The reserve costs nothing
//! in the long run: what refills a bucket that is a quarter full is taken, like what refills an empty one.
//!
//! A client that is not seen for one to two [`MEMORY`] spans is forgotten, with what it has saved up.
//!
//! # When time goes backwards
//! Nothing refills until the clock reaches the latest instant seen.
//!
//! # When the numbers change
//! Missing tokens are kept up to the new capacity of each lane; clients keep their marks.
//! Proof: `tests/fair.rs`.

mod clients;
mod numbers;

pub use self::numbers::{Client, Fair, FairParts, Lane, new, of_parts, with_lanes};

use self::clients::{Clients, Seen};
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict, difference};
use crate::units::{Span, Time};

/// The most lanes of a bucket.
pub const MAX_LANES: usize = 8;
/// The largest weight of a client.
pub const MAX_WEIGHT: u32 = 1000;
/// The most clients that a bucket knows by name. Further clients share one mark.
pub const MAX_CLIENTS: usize = 100_000;
/// How long a client can be silent before it may be forgotten.
pub const MEMORY: Span = Span::from_secs(30);

/// The shares of all lanes add up to this.
pub const WHOLE: u32 = 10_000;

/// The bucket and its clients. Boxed, because a table of states is mostly empty places.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State(Box<Inner>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Inner {
    pool: Pool,
    clients: Clients,
}

/// The part of the state that does not depend on the number of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pool {
    /// The latest tick seen.
    tick: u64,
    lanes: [LaneState; MAX_LANES],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LaneState {
    /// The missing units.
    missing: u64,
    virtual_time: u64,
    /// Refilled units that have not moved the virtual time yet.
    unmoved: u64,
}

/// A decision about a client, before it is written.
struct Look {
    /// Units of the lane that have to be there for the request to pass.
    needed: u64,
    /// Tokens that the client may take now.
    available: u64,
    passes: bool,
}

impl Fair {
    /// Refills all lanes up to `now`. Returns how far the virtual time of each lane was moved back, if a new
    /// generation of clients begins: so that they do not grow without end.
    fn advance(&self, pool: &mut Pool, clients: &Clients, now: Time) -> [u64; MAX_LANES] {
        let generations = clients.generations_until(now);
        let tick = self.tick().of(now);
        let units = self.refill(tick.saturating_sub(pool.tick));
        for lane in 0..self.lanes().len() {
            let refilled = self.refilled(lane, pool.tick, units);
            let it = &mut pool.lanes[lane];
            it.missing = it.missing.saturating_sub(refilled);
            let known = clients.known_in(lane, generations);
            if known > 0 {
                it.unmoved = (it.unmoved + refilled).min(self.full(lane));
                let moved = self.virtual_time(it.unmoved, known);
                it.virtual_time += moved;
                let used = (moved * known * self.token()).div_ceil(self.numbers.scale);
                it.unmoved = it.unmoved.saturating_sub(used);
            }
        }
        pool.tick = pool.tick.max(tick);
        let mut shifts = [0; MAX_LANES];
        match generations {
            0 => {}
            1 => {
                for (shift, lane) in shifts.iter_mut().zip(&mut pool.lanes) {
                    *shift = lane.virtual_time.saturating_sub(self.horizon());
                    lane.virtual_time -= *shift;
                }
            }
            // All clients are forgotten, so the bucket begins anew.
            _ => {
                for lane in &mut pool.lanes {
                    (lane.virtual_time, lane.unmoved) = (self.horizon(), 0);
                }
            }
        }
        shifts
    }

    /// Takes surplus units of other lanes, so that this lane has up to `wanted` units. Returns how many more
    /// could be taken.
    fn borrow(&self, pool: &mut Pool, clients: &Clients, epochs: u64, wanted: u64) -> u64 {
        let own = self.lane();
        let (full, _, _) = self.levels(own);
        if self.lanes()[own].strict {
            return 0;
        }
        let mut more = 0;
        for other in (0..self.lanes().len()).filter(|it| *it != own) {
            if clients.contending_in(other, epochs) > 0 {
                continue;
            }
            let (lender_full, _, surplus_from) = self.levels(other);
            let lender = lender_full.saturating_sub(pool.lanes[other].missing);
            let level = full.saturating_sub(pool.lanes[own].missing);
            let wanted = wanted.min(full).saturating_sub(level);
            let surplus = lender.saturating_sub(surplus_from);
            let lent = surplus.min(wanted);
            pool.lanes[other].missing += lent;
            pool.lanes[own].missing -= lent;
            more += surplus - lent;
        }
        more
    }

    /// Decides `cost` for the client. Moves the virtual time on, and notes whether the client contends. A
    /// larger cost could borrow `lendable` more units.
    fn ask(&self, lane: &mut LaneState, seen: &mut Seen, cost: u64, lendable: u64) -> Look {
        let (full, reserve, surplus_from) = self.levels(self.lane());
        let (token, scale) = (self.token(), self.numbers.scale);
        // The level that the lane can have, with what it may borrow.
        let level = full.saturating_sub(lane.missing);
        let level = level.saturating_add(lendable).min(full);
        let needs = cost * token;
        self.clamp(lane, seen);

        let mut needed = needs;
        let is_alone = seen.weights.known() == self.weight();
        if is_alone && !seen.is_contending() {
            lane.virtual_time = lane.virtual_time.max(seen.mark.got);
        }
        let tolerated = match seen.is_new || seen.is_contending() {
            true => 0,
            false => scale / self.weight(),
        };
        if seen.mark.got > lane.virtual_time + tolerated {
            seen.contend();
            let contending = seen.weights.contending();
            let ahead = seen.mark.got - lane.virtual_time;
            let surplus = ahead.saturating_mul(contending).saturating_mul(token);
            needed = surplus_from
                .saturating_add(surplus.div_ceil(scale))
                .min(full);
            if level >= needed {
                lane.virtual_time = seen.mark.got;
            } else if level > surplus_from {
                let moved = self.virtual_time(level - surplus_from, contending);
                lane.virtual_time += moved.min(ahead);
            }
        }
        let is_ahead = match seen.is_contending() || seen.is_new {
            true => seen.mark.got > lane.virtual_time,
            false => seen.mark.got > lane.virtual_time + tolerated,
        };
        let floor = match (seen.is_new, seen.is_contending()) {
            (_, true) => reserve,
            (true, _) if !is_alone => reserve / 2,
            _ => 0,
        };
        let behind = lane.virtual_time.saturating_sub(seen.mark.got);
        // Behind by this many tokens, the client may use the reserve.
        let owed = (behind.saturating_mul(self.weight()) / scale).min(level / token);
        let available = match is_ahead {
            true => 0,
            false if level == full => full / token,
            false => owed.max(level.saturating_sub(floor) / token),
        };
        let passes = !is_ahead && cost <= available;
        needed = needed.max(floor + needs).min(full);
        if !passes {
            seen.contend();
        }
        Look {
            needed,
            available,
            passes,
        }
    }

    /// Limits what the client has saved up.
    fn clamp(&self, lane: &LaneState, seen: &mut Seen) {
        let (full, _, surplus_from) = self.levels(self.lane());
        let known = seen.weights.known().max(self.weight());
        let share = self.virtual_time(full, known);
        let most = self.virtual_time(surplus_from, self.weight());
        let earned = (self.numbers.earned / known).min(most);
        // The whole and the rest apart, so that the products stay small.
        let (whole, part) = (self.numbers.whole, self.share(self.lane()));
        let earned = earned / whole * part + earned % whole * part / whole;
        let saved = share.max(earned);
        let least = lane.virtual_time.saturating_sub(saved);
        seen.mark.got = match seen.is_new {
            true => lane.virtual_time,
            false => seen.mark.got.max(least),
        };
    }

    /// Reads the client at `now`, and decides `cost`, on a copy of everything but the clients.
    fn look(&self, state: &State, cost: u64, now: Time) -> (Pool, Seen, [u64; MAX_LANES], Look) {
        let (mut pool, clients) = (state.0.pool, &state.0.clients);
        let shifts = self.advance(&mut pool, clients, now);
        let mut seen = clients.read(self, shifts[self.lane()], now);
        let (full, _, surplus_from) = self.levels(self.lane());
        let cost = cost.min(full / self.token());
        let wanted = surplus_from.saturating_add(cost * self.token());
        let lendable = self.borrow(&mut pool, clients, seen.epochs(), wanted);
        let look = self.ask(&mut pool.lanes[self.lane()], &mut seen, cost, lendable);
        (pool, seen, shifts, look)
    }

    /// Writes what [`look`](Self::look) has read and changed.
    fn write(state: &mut State, pool: Pool, seen: &Seen, shifts: &[u64; MAX_LANES]) {
        state.0.pool = pool;
        state.0.clients.write(seen, shifts);
    }

    /// Returns the first instant at which a lane has `needed` units by its own refill, at the latest.
    fn when(&self, pool: &Pool, needed: u64) -> Time {
        let lane = self.lane();
        let (_, per_tick, _, tick) = self.meter().parts();
        let (full, missing) = (self.full(lane), pool.lanes[lane].missing);
        let lacks = (needed + missing).saturating_sub(full);
        let ticks = match (self.share(lane), self.numbers.whole) {
            (1, 1) => lacks.div_ceil(u64::from(per_tick)),
            // One unit more, because the parts of lanes are rounded.
            (share, whole) => ((lacks + 1) * whole).div_ceil(u64::from(per_tick) * share),
        };
        tick.start(pool.tick + ticks)
    }
}

impl Limiting for Fair {
    type State = State;

    fn capacity(&self) -> u64 {
        self.full(self.lane()) / self.token()
    }

    fn window(&self) -> Span {
        self.meter().window()
    }

    fn decide(&self, state: &State, cost: u64, now: Time) -> Verdict {
        let (pool, _, _, look) = self.look(state, cost, now);
        if cost == 0 || (look.passes && cost <= self.capacity()) {
            return Verdict::allowed(look.available.max(cost));
        }
        if cost > self.capacity() {
            return Verdict::denied(Denial::Never, look.available);
        }
        let at = self.when(&pool, look.needed);
        Verdict::denied(
            Denial::Until(at.max(now + Span::from_micros(1))),
            look.available.min(cost - 1),
        )
    }

    fn charge(&self, state: &mut State, cost: u64, now: Time) {
        let (mut pool, mut seen, shifts, _) = self.look(state, cost, now);
        pool.lanes[self.lane()].missing += cost * self.token();
        seen.mark.got += self.virtual_cost(cost);
        Fair::write(state, pool, &seen, &shifts);
    }

    fn overdraw(&self, state: &mut State, cost: u64, most: u64, now: Time) -> u64 {
        let (mut pool, mut seen, shifts, _) = self.look(state, 0, now);
        let lane = &mut pool.lanes[self.lane()];
        let deepest = self.deepest(self.lane(), most);
        let room = deepest.saturating_sub(lane.missing) / self.token();
        let taken = cost.min(room);
        lane.missing += taken * self.token();
        // What exceeds the capacity does not move the mark beyond the horizon.
        let moved = self.virtual_cost(taken.min(self.meter().parts().0));
        seen.mark.got += moved;
        Fair::write(state, pool, &seen, &shifts);
        taken
    }

    /// The level of the lane. The share of the subject may be less.
    fn level(&self, state: &State, now: Time) -> i64 {
        let (pool, _, _, _) = self.look(state, 0, now);
        let token = i64::try_from(self.token()).unwrap_or(i64::MAX);
        let lane = self.lane();
        difference(self.full(lane), pool.lanes[lane].missing).div_euclid(token)
    }

    fn refund(&self, state: &mut State, cost: u64, charged_at: Time, now: Time) {
        let (mut pool, mut seen, shifts, _) = self.look(state, 0, now);
        let cost = cost.min(self.capacity());
        let ticks = self
            .tick()
            .of(now)
            .saturating_sub(self.tick().of(charged_at));
        let back = self.refilled(self.lane(), 0, self.refill(ticks));
        let units = (cost * self.token()).saturating_sub(back);
        if seen.is_new {
            // A forgotten client has no mark, and does not get one: it asks for nothing.
            let lane = &mut state.0.pool.lanes[self.lane()];
            lane.missing = lane.missing.saturating_sub(units);
            return;
        }
        let lane = &mut pool.lanes[self.lane()];
        lane.missing = lane.missing.saturating_sub(units);
        let moved = units * self.numbers.scale / self.token() / self.weight();
        seen.mark.got = seen.mark.got.saturating_sub(moved);
        Fair::write(state, pool, &seen, &shifts);
    }

    fn expires_at(&self, state: &State) -> Time {
        self.resets_at(state).max(state.0.clients.until())
    }

    fn resets_at(&self, state: &State) -> Time {
        let (_, per_tick, _, tick) = self.meter().parts();
        let pool = &state.0.pool;
        let mut last = 0;
        for lane in 0..self.lanes().len() {
            let missing = pool.lanes[lane].missing;
            let ticks = match (self.share(lane), self.numbers.whole) {
                _ if missing == 0 => 0,
                (1, 1) => missing.div_ceil(u64::from(per_tick)),
                (share, whole) => ((missing + 1) * whole).div_ceil(u64::from(per_tick) * share),
            };
            last = ticks.max(last);
        }
        tick.start(pool.tick + last)
    }

    fn asked_by(&self, asks: &Fair) -> Fair {
        self.for_client(asks.client())
    }

    fn left(&self, state: &State, available: u64, taken: u64, now: Time) -> u64 {
        match taken {
            0 => available,
            // The client may be ahead now, or leave the reserve alone from now on.
            _ => self.decide(state, 0, now).available,
        }
    }

    fn note_denied(&self, state: &mut State, cost: u64, now: Time) {
        let (pool, seen, shifts, _) = self.look(state, cost, now);
        Fair::write(state, pool, &seen, &shifts);
    }

    fn keep(&self, from: &Fair, state: &mut State, how: CarryOver, now: Time) {
        let Inner { pool, clients } = &mut *state.0;
        let tick = from.tick().of(now).max(pool.tick);
        let units = from.refill(tick - pool.tick);
        for lane in 0..MAX_LANES {
            if lane >= from.lanes().len().min(self.lanes().len()) {
                pool.lanes[lane] = LaneState::default();
                continue;
            }
            let (before, after) = (from.full(lane), self.full(lane));
            let refilled = from.refilled(lane, pool.tick, units);
            let missing = pool.lanes[lane].missing.saturating_sub(refilled);
            pool.lanes[lane].unmoved = 0;
            pool.lanes[lane].missing = match how.change(before, after) {
                Some(change) => change.share(missing.min(before)),
                None => {
                    let tokens = missing.div_ceil(from.token()).min(after / self.token());
                    tokens * self.token()
                }
            };
        }
        let seen = from.tick().start(tick).max(now);
        pool.tick = self.tick().of(seen);
        let is_same_scale = from.numbers.scale == self.numbers.scale;
        if !is_same_scale || from.epoch() != self.epoch() || from.lanes() != self.lanes() {
            clients.clear();
            for lane in &mut pool.lanes {
                lane.virtual_time = self.horizon();
            }
        }
    }
}

impl State {
    /// Returns the bytes that the state holds on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        size_of::<Inner>() + self.0.clients.heap_bytes()
    }

    /// Gives clients that are not known yet one mark together, until a new generation begins: there is no
    /// room for more marks.
    pub fn close(&mut self) {
        self.0.clients.close();
    }

    /// Returns how many clients the bucket knows.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.0.clients.len()
    }
}
