//! Fair shares: a token bucket that many clients share, and that no client can take from the others.
//!
//! A plain bucket admits whoever comes first: a client in a loop takes all of it. A fair bucket admits the
//! same amount in total, and divides it by weight while clients compete.
//!
//! # Promise
//! * **Total**: in any span `t`, at most `capacity + refill × t` is taken, as from a
//!   [token bucket](crate::token_bucket); error bound 0.
//! * **Shares**: a fluid scheduler that divides each refill of the bucket by weight is the ideal. No client
//!   falls behind it by more than the capacity and one request.
//! * **Quiet clients**: a client that stays below its share is not denied, while the tokens that such
//!   clients have saved up are fewer than the reserve: a quarter of the capacity, at least one token. A
//!   client saves up its share of [`MEMORY`], but at most half of the capacity or its share of the capacity.
//!   A new client may take as much in advance, up to an eighth of the capacity.
//! * **No waste**: what a client does not use, others get. A single client gets everything, and a burst
//!   passes while nobody is denied, if it leaves an eighth of the capacity.
//! * **Large requests**: a client that asks again and again gets its share, whatever its requests cost, up to
//!   15/16 of the capacity.
//! * **Lanes**: a lane always gets its share of capacity and refill. A full lane passes its
//!   refill on to the lanes that are not strict, by their shares.
//!
//! # How it works
//! The bucket has a *virtual time*: what a client of weight 1 should have got so far. Each client has a
//! *mark*: what it did get, divided by its weight. A client whose mark is at or below the virtual time may
//! take tokens. A client that is ahead waits. The virtual time moves with the refill, divided by the weights
//! of all known clients: that is the share that each of them is guaranteed.
//!
//! If a client is ahead and the bucket holds more than half, others leave a part of their shares. Then the
//! virtual time moves on by the surplus, divided by the weights of the clients that were denied lately. So it
//! moves at the speed at which those clients can be served. A client that is not ahead may need more than half of
//! the bucket. If it was denied in this or the previous epoch, the level that it needs takes the place of the half.
//! Otherwise clients with small requests would keep the bucket half full, and it would never reach that level.
//!
//! A client is *calm* if it was not denied within [`MEMORY`]. A calm client may be ahead: by what it earns
//! within [`MEMORY`], up to an eighth of the capacity; by the whole capacity while nobody else was denied
//! lately. So a client that is new, or asks in bursts, finds its share at once, and waits afterwards.
//!
//! The lowest quarter of the bucket is a reserve. Clients that are not calm do not touch it, unless they are
//! behind by a whole request, or the bucket is full but for a quarter of the reserve. Calm clients leave half of
//! the reserve. So a quiet client finds tokens at any time. The reserve costs nothing in the long run: clients take
//! the refill of a bucket that is a quarter full, as they take the refill of an empty one.
//!
//! A client that is not seen for one to two [`MEMORY`] spans is forgotten, with what it has saved up.
//!
//! # When time goes backwards
//! Nothing refills until the clock reaches the latest instant seen.
//!
//! # When the numbers change
//! Missing tokens are kept up to the new capacity of each lane; clients keep their marks.
//! Proof: `tests/fair.rs`, and `tests/gps.rs` beside the fluid scheduler.

mod clients;
mod numbers;

pub use self::numbers::{Client, Fair, FairParts, Lane, new, of_parts, with_lanes};

use self::clients::{Clients, Seen};
use self::numbers::divided;
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

/// A client as a decision sees it, and the sums of weights of its lane.
#[derive(Clone, Copy)]
struct Asker {
    /// The mark of the client.
    got: u64,
    is_new: bool,
    /// Whether the client was denied in this contention epoch or the one before it.
    is_contending: bool,
    /// Whether the client was denied within [`MEMORY`].
    was_denied: bool,
    known: u64,
    contending: u64,
    wanted: u64,
}

/// A decision about a client, before it is written.
struct Look {
    /// Units of the lane that have to be there for the request to pass, if it is denied.
    needed: u64,
    /// The level that the client waits for, if it is denied and not ahead.
    wants: Option<u64>,
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
        let known = |lane| clients.known_in(lane, generations);
        self.refill_lanes(&mut pool.lanes, pool.tick, tick, known);
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

    /// Refills the lanes of the bucket from one tick to another, and moves their virtual times. `known` returns the
    /// weights of the clients of a lane.
    #[inline(always)]
    fn refill_lanes<const N: usize>(
        &self,
        lanes: &mut [LaneState; N],
        before: u64,
        tick: u64,
        known: impl Fn(usize) -> u64,
    ) {
        let units = self.refill(tick.saturating_sub(before));
        let inflows = match self.lanes() {
            [_] => [units; N],
            _ => self.inflows(lanes, before, units),
        };
        for (lane, (it, inflow)) in lanes.iter_mut().zip(inflows).enumerate() {
            let Some(levels) = self.levels_of(lane) else {
                break;
            };
            it.missing = it.missing.saturating_sub(inflow);
            let known = known(lane);
            if known > 0 {
                it.unmoved = (it.unmoved + inflow).min(levels.full);
                let moved = self.virtual_time(it.unmoved, known);
                it.virtual_time += moved;
                it.unmoved = it.unmoved.saturating_sub(self.units(moved, known));
            }
        }
    }

    /// Returns what each lane gets of the `units` that the bucket refills. What full lanes would lose goes to
    /// the other lanes that are not strict: by their shares, and what is left in the order of the lanes.
    fn inflows<const N: usize>(&self, states: &[LaneState; N], tick: u64, units: u64) -> [u64; N] {
        let (mut inflows, lanes) = ([0; N], self.lanes());
        let (mut left, mut lacking, mut shares) = (0, 0, 0);
        for (lane, numbers) in lanes.iter().enumerate() {
            let (own, missing) = (self.refilled(lane, tick, units), states[lane].missing);
            inflows[lane] = own;
            left += own.saturating_sub(missing);
            if missing > own && !numbers.strict {
                lacking += missing - own;
                shares += self.share(lane);
            }
        }
        left = left.min(lacking);
        let to_divide = left;
        for is_by_share in [true, false] {
            for (lane, numbers) in lanes.iter().enumerate() {
                let lacks = states[lane].missing.saturating_sub(inflows[lane]);
                if left == 0 || lacks == 0 || numbers.strict {
                    continue;
                }
                let part = match is_by_share {
                    true => (to_divide * self.share(lane) / shares).min(lacks),
                    false => left.min(lacks),
                };
                inflows[lane] += part;
                left -= part;
            }
        }
        inflows
    }

    /// Decides `cost` for the client, after [`clamp`](Self::clamp). Moves the virtual time on.
    #[inline(always)]
    fn ask(&self, lane: &mut LaneState, it: &Asker, cost: u64) -> Look {
        let levels = self.levels();
        let (full, reserve, weight) = (levels.full, levels.reserve, self.weight());
        let surplus_from = levels.half.max(it.wanted);
        let level = full.saturating_sub(lane.missing);
        // Most clients are not ahead, and most buckets are nearly full.
        if it.got <= lane.virtual_time && level >= levels.nearly_full {
            let available = self.tokens(level);
            if cost <= available {
                return Look {
                    needed: 0,
                    wants: None,
                    available,
                    passes: true,
                };
            }
        }
        let is_alone = it.known == weight;
        let is_calm = match is_alone {
            true => !it.is_contending,
            false => !it.was_denied,
        };
        if is_alone && is_calm {
            lane.virtual_time = lane.virtual_time.max(it.got);
        }
        let others = match it.is_contending {
            true => it.contending.saturating_sub(weight),
            false => it.contending,
        };
        let needs = cost * self.token();
        let mut needed = needs;
        let ahead = it.got.saturating_sub(lane.virtual_time);
        if ahead > 0 {
            let surplus = self.units(ahead, others + weight);
            let with_surplus = surplus_from.saturating_add(surplus).min(full);
            if level >= with_surplus {
                lane.virtual_time = it.got;
            } else if level > surplus_from {
                let moved = self.virtual_time(level - surplus_from, others + weight);
                lane.virtual_time += moved.min(ahead);
            }
            // The refill alone moves the virtual time on too.
            let refill = self.units(ahead, it.known).min(full);
            needed = with_surplus.min((full + refill).saturating_sub(lane.missing));
        }
        let is_ahead = it.got > lane.virtual_time
            && it.got - lane.virtual_time > self.tolerated(is_calm, it.known, others);
        let floor = match (is_calm, is_alone) {
            (false, _) => reserve,
            (true, false) => reserve / 2,
            (true, true) => 0,
        };
        let nearly_full = levels.nearly_full;
        let available = match is_ahead {
            true => 0,
            false if level >= nearly_full => self.tokens(level),
            false => {
                // Behind by this many tokens, the client may use the reserve.
                let behind = lane.virtual_time.saturating_sub(it.got);
                let owed = self.whole_parts(behind.saturating_mul(weight));
                let above = self.tokens(level.saturating_sub(floor));
                owed.min(self.tokens(level)).max(above)
            }
        };
        let passes = !is_ahead && cost <= available;
        // The client is not calm from now on.
        let wanted = (reserve + needs).min(nearly_full.max(needs)).min(full);
        Look {
            needed: needed.max(wanted).min(full),
            wants: (!passes && it.got <= lane.virtual_time).then_some(wanted),
            available,
            passes,
        }
    }

    /// Returns how far a client may be ahead.
    #[inline]
    fn tolerated(&self, is_calm: bool, known: u64, others: u64) -> u64 {
        let (levels, weight) = (self.levels(), self.weight());
        match (is_calm, others) {
            (false, _) => 0,
            (true, 0) => divided(levels.full_time, weight),
            (true, _) => {
                let most = divided(levels.calm_time, weight);
                let least = divided(self.numbers.scale, weight);
                self.earned(known).min(most).max(least)
            }
        }
    }

    /// Limits what the client has saved up.
    #[inline]
    fn clamp(&self, lane: &LaneState, it: &mut Asker) {
        if it.is_new {
            it.got = lane.virtual_time;
        }
        let behind = lane.virtual_time.saturating_sub(it.got);
        let (full, known) = (self.levels().full_time, it.known.max(self.weight()));
        // Most clients are behind by less than their share of the capacity. This is found without a division.
        if behind.saturating_mul(known) > full {
            let most = (full / known).max(self.earned(it.known));
            it.got = lane.virtual_time - behind.min(most);
        }
    }

    /// Returns what the client earns within [`MEMORY`], as virtual time.
    #[inline]
    fn earned(&self, known: u64) -> u64 {
        let most = divided(self.levels().half_time, self.weight());
        let earned = (self.numbers.earned / known.max(self.weight())).min(most);
        match self.numbers.whole {
            1 => earned,
            // The whole and the rest apart, so that the products stay small.
            whole => {
                let part = self.share(self.lane());
                earned / whole * part + earned % whole * part / whole
            }
        }
    }

    /// Returns the client as a decision sees it.
    fn asker(&self, seen: &Seen) -> Asker {
        Asker {
            got: seen.mark.got,
            is_new: seen.is_new,
            is_contending: seen.is_contending(),
            was_denied: seen.was_denied(self),
            known: seen.weights.known(),
            contending: seen.weights.contending(),
            wanted: seen.weights.wanted(),
        }
    }

    /// Reads the client at `now`, and decides `cost`, on a copy of everything but the clients.
    fn look(&self, state: &State, cost: u64, now: Time) -> (Pool, Seen, [u64; MAX_LANES], Look) {
        let (mut pool, clients) = (state.0.pool, &state.0.clients);
        let shifts = self.advance(&mut pool, clients, now);
        let mut seen = clients.read(self, shifts[self.lane()], now);
        let cost = cost.min(self.capacity());
        let mut asker = self.asker(&seen);
        let lane = &mut pool.lanes[self.lane()];
        self.clamp(lane, &mut asker);
        let look = self.ask(lane, &asker, cost);
        seen.mark.got = asker.got;
        if !look.passes {
            seen.contend();
        }
        if let Some(level) = look.wants {
            seen.weights.want(level);
        }
        (pool, seen, shifts, look)
    }

    /// Writes what [`look`](Self::look) has read and changed.
    fn write(state: &mut State, pool: Pool, seen: &Seen, shifts: &[u64; MAX_LANES]) {
        state.0.pool = pool;
        state.0.clients.write(seen, shifts);
    }

    /// Decides `cost` for a client that the bucket knows, and takes it in place. Returns what is left for the client.
    /// This is the most common request, and needs only one lookup. Returns `None`, and changes nothing, if the
    /// request is denied, or if more changes than the lanes and the mark of the client. The answer and the state
    /// agree with [`decide`](Limiting::decide), [`charge`](Limiting::charge) and [`left`](Limiting::left).
    #[inline]
    pub fn take_as_known(&self, state: &mut State, cost: u64, now: Time) -> Option<u64> {
        match self.lanes() {
            [_] => self.take_in_lanes::<1>(state, cost, now),
            _ => self.take_in_lanes::<MAX_LANES>(state, cost, now),
        }
    }

    /// Does what [`take_as_known`](Self::take_as_known) says, in the first `N` lanes, which are all.
    #[inline(always)]
    fn take_in_lanes<const N: usize>(
        &self,
        state: &mut State,
        cost: u64,
        now: Time,
    ) -> Option<u64> {
        let Inner { pool, clients } = &mut *state.0;
        if !(1..=self.capacity()).contains(&cost) || !clients.are_current(self, now) {
            return None;
        }
        let mut lanes: [LaneState; N] = *pool.lanes.first_chunk()?;
        let tick = self.tick().of(now);
        self.refill_lanes(&mut lanes, pool.tick, tick, |it| clients.known_in(it, 0));
        let (mark, mut asker) = clients.known(self)?;
        let lane = lanes.get_mut(self.lane())?;
        self.clamp(lane, &mut asker);
        if !self.ask(lane, &asker, cost).passes {
            return None;
        }
        lane.missing += cost * self.token();
        asker.got += self.virtual_cost(cost);
        let mut after = *lane;
        *pool.lanes.first_chunk_mut()? = lanes;
        pool.tick = pool.tick.max(tick);
        mark.got = asker.got;
        // Less is saved up than before, so there is nothing to limit.
        Some(self.ask(&mut after, &asker, 0).available)
    }

    /// Returns the first instant at which a lane has `needed` units by its own refill, at the latest.
    fn when(&self, pool: &Pool, needed: u64) -> Time {
        let lane = self.lane();
        let (_, per_tick, _, tick) = self.meter().parts();
        let (full, missing) = (self.full(lane), pool.lanes[lane].missing);
        let lacks = (needed + missing).saturating_sub(full);
        let ticks = match (self.share(lane), self.numbers.whole) {
            (1, 1) => self.ticks_of(lacks),
            // One unit more, because the parts of lanes are rounded.
            (share, whole) => ((lacks + 1) * whole).div_ceil(u64::from(per_tick) * share),
        };
        tick.start(pool.tick + ticks)
    }
}

impl Limiting for Fair {
    type State = State;

    fn capacity(&self) -> u64 {
        self.lane_capacity()
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
        if cost == 0 {
            return;
        }
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
        // Others could not use what has refilled since then. So it stays a part of the client's share.
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
                (1, 1) => self.ticks_of(missing),
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
        clients.forget_wanted();
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
