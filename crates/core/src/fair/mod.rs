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

use std::sync::Arc;

use self::clients::{Clients, Seen};
use crate::carry_over::CarryOver;
use crate::limiting::{Denial, Limiting, Verdict, difference};
use crate::meter::Meter;
use crate::param::ParamProblem;
use crate::units::{EXACT, Span, Tick, Time};
use crate::{Inexact, ParamError, Rate};

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
/// The finest fraction of a token that marks and virtual times are counted in.
const FINEST: u64 = 1 << 16;

/// A lane: a class of requests with a guaranteed part of the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The guaranteed part, in hundredths of a percent.
    pub share: u32,
    /// Whether the lane never gets more than its part.
    pub strict: bool,
}

/// The client of a request, as a fair bucket sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// A keyed hash of the client.
    pub id: u64,
    /// From 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// The index of the lane.
    pub lane: u8,
}

/// The numbers of a bucket.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Numbers {
    meter: Meter,
    lanes: Vec<Lane>,
    /// The capacity of each lane, in units of the meter.
    full: Vec<u64>,
    /// How many parts a token has in marks and virtual times.
    scale: u64,
}

/// The numbers of a fair bucket, and the client that asks.
#[derive(Clone, Debug)]
pub struct Fair {
    numbers: Arc<Numbers>,
    client: Client,
}

/// The numbers alone decide: limits of several clients are the same limit.
impl PartialEq for Fair {
    fn eq(&self, other: &Fair) -> bool {
        self.numbers == other.numbers
    }
}

impl Eq for Fair {}

impl std::hash::Hash for Fair {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.numbers.hash(state);
    }
}

/// The bucket and its clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pool: Pool,
    clients: Clients,
}

/// The part of the state that does not depend on the number of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pool {
    /// The latest tick seen.
    tick: u64,
    /// The units refilled so far, modulo [`WHOLE`]: keeps the parts of the lanes exact.
    remainder: u64,
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

/// Returns a bucket of `capacity` tokens, refilled at `refill`, with one lane for everything.
///
/// # Errors
/// If the numbers cannot be counted exactly, or take longer than 71 years to refill.
pub fn new(capacity: u64, refill: Rate) -> Result<Fair, ParamError> {
    let whole = Lane {
        share: WHOLE,
        strict: false,
    };
    with_lanes(capacity, refill, &[whole])
}

/// Returns a bucket with these lanes. Their shares must add up to [`WHOLE`].
///
/// # Errors
/// As for [`new`], or if the shares are wrong.
pub fn with_lanes(capacity: u64, refill: Rate, lanes: &[Lane]) -> Result<Fair, ParamError> {
    let meter = Meter::new(capacity, refill, "capacity", "refill")?;
    let inexact =
        || ParamProblem::NotExact(format!("{capacity} at a rate of {refill}"), Inexact::Refill);
    of_meter(meter, lanes).ok_or_else(|| inexact().of("capacity"))?
}

/// Returns the bucket, or `None` if it cannot be counted exactly.
fn of_meter(meter: Meter, lanes: &[Lane]) -> Option<Result<Fair, ParamError>> {
    let sum: u64 = lanes.iter().map(|it| u64::from(it.share)).sum();
    if sum != u64::from(WHOLE) || lanes.len() > MAX_LANES {
        let whole = u64::from(WHOLE);
        return Some(Err(
            ParamProblem::OutOfRange(sum, whole..=whole).of("shares")
        ));
    }
    let (capacity, per_tick, token, tick) = meter.parts();
    let full = capacity * token;
    // Parts of lanes, and virtual times over two spans of memory, stay below 2^53.
    let ticks = 2 * MEMORY.as_micros() / tick.micros();
    let most = (ticks.saturating_mul(u64::from(per_tick)) / token).max(capacity) + 1;
    if full.checked_mul(u64::from(WHOLE))? >= EXACT {
        return None;
    }
    let mut scale = FINEST;
    while scale > 1
        && (full.saturating_mul(scale) >= EXACT / 2 || most.saturating_mul(scale) >= EXACT / 4)
    {
        scale /= 2;
    }
    if most.saturating_mul(scale) >= EXACT / 4 {
        return None;
    }
    let part = |lane: &Lane| full * u64::from(lane.share) / u64::from(WHOLE);
    let full = lanes.iter().map(part).collect();
    let numbers = Numbers {
        meter,
        lanes: lanes.to_vec(),
        full,
        scale,
    };
    Some(Ok(Fair {
        numbers: Arc::new(numbers),
        client: Client {
            id: 0,
            weight: 1,
            lane: 0,
        },
    }))
}

impl Fair {
    /// Returns the same limit for a request of `client`. A weight of 0 counts as 1, and a lane that does not
    /// exist as the last one.
    #[must_use]
    pub fn for_client(&self, client: Client) -> Fair {
        let last = self.numbers.lanes.len() - 1;
        let lane = usize::from(client.lane).min(last);
        Fair {
            numbers: Arc::clone(&self.numbers),
            client: Client {
                id: client.id,
                weight: client.weight.clamp(1, MAX_WEIGHT),
                #[allow(clippy::cast_possible_truncation)] // There are at most eight lanes.
                lane: lane as u8,
            },
        }
    }

    /// Returns the client of the request.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client
    }

    /// Returns the bucket as a whole.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.numbers.meter
    }

    /// Returns the lanes.
    #[must_use]
    pub fn lanes(&self) -> &[Lane] {
        &self.numbers.lanes
    }

    fn lane(&self) -> usize {
        usize::from(self.client.lane)
    }

    fn weight(&self) -> u64 {
        u64::from(self.client.weight)
    }

    fn token(&self) -> u64 {
        self.numbers.meter.parts().2
    }

    fn tick(&self) -> Tick {
        self.numbers.meter.parts().3
    }

    /// Returns the length of a contention epoch in microseconds: the time in which the bucket refills, from
    /// one second to [`MEMORY`].
    fn epoch(&self) -> u64 {
        let refill = self.numbers.meter.window();
        refill.clamp(Span::SECOND, MEMORY).as_micros()
    }

    /// Returns the capacity of a lane in units, its reserve, and the level above which there is a surplus.
    fn levels(&self, lane: usize) -> (u64, u64, u64) {
        let full = self.numbers.full[lane];
        let reserve = (full / 4).max(self.token().min(full.saturating_sub(self.token())));
        (full, reserve, (full / 2).max(reserve))
    }

    /// Returns `units` of a lane as virtual time of a client with this weight, rounded down.
    fn virtual_time(&self, units: u64, weight: u64) -> u64 {
        units * self.numbers.scale / weight / self.token()
    }

    /// Returns the virtual time that `cost` tokens take, rounded up.
    fn virtual_cost(&self, cost: u64) -> u64 {
        (cost * self.numbers.scale).div_ceil(self.weight())
    }

    /// Returns the largest distance between a virtual time and a mark.
    fn horizon(&self) -> u64 {
        self.numbers.meter.parts().0 * self.numbers.scale
    }

    /// Returns the units that have refilled in a lane between two sums of refilled units.
    fn refilled(&self, lane: usize, remainder: u64, units: u64) -> u64 {
        let (share, whole) = (u64::from(self.numbers.lanes[lane].share), u64::from(WHOLE));
        (remainder + units) * share / whole - remainder * share / whole
    }

    /// Returns the units that the whole bucket refills in `ticks`, but not more than it holds.
    fn refill(&self, ticks: u64) -> u64 {
        let (capacity, per_tick, token, _) = self.numbers.meter.parts();
        ticks
            .saturating_mul(u64::from(per_tick))
            .min(capacity * token)
    }

    /// Refills all lanes up to `now`. Returns how far the virtual time of each lane was moved back, if a new
    /// generation of clients begins: so that they do not grow without end.
    fn advance(&self, pool: &mut Pool, clients: &Clients, now: Time) -> [u64; MAX_LANES] {
        let generations = clients.generations_until(now);
        let tick = self.tick().of(now);
        let units = self.refill(tick.saturating_sub(pool.tick));
        for lane in 0..self.numbers.lanes.len() {
            let refilled = self.refilled(lane, pool.remainder, units);
            let it = &mut pool.lanes[lane];
            it.missing = it.missing.saturating_sub(refilled);
            let known = clients.known_in(lane, generations);
            if known > 0 {
                it.unmoved = (it.unmoved + refilled).min(self.numbers.full[lane]);
                let moved = self.virtual_time(it.unmoved, known);
                it.virtual_time += moved;
                let used = (moved * known * self.token()).div_ceil(self.numbers.scale);
                it.unmoved = it.unmoved.saturating_sub(used);
            }
        }
        pool.remainder = (pool.remainder + units) % u64::from(WHOLE);
        pool.tick = pool.tick.max(tick);
        let mut shifts = [0; MAX_LANES];
        if generations > 0 {
            for (shift, lane) in shifts.iter_mut().zip(&mut pool.lanes) {
                *shift = lane.virtual_time.saturating_sub(self.horizon());
                lane.virtual_time -= *shift;
            }
        }
        shifts
    }

    /// Takes surplus units of other lanes, so that this lane has up to `wanted` units.
    fn borrow(&self, pool: &mut Pool, state: &State, wanted: u64) {
        let own = self.lane();
        let (full, _, _) = self.levels(own);
        if self.numbers.lanes[own].strict {
            return;
        }
        for other in (0..self.numbers.lanes.len()).filter(|it| *it != own) {
            let level = full.saturating_sub(pool.lanes[own].missing);
            let wanted = wanted.min(full).saturating_sub(level);
            if wanted == 0 {
                return;
            }
            if state.clients.contending_in(other) > 0 {
                continue;
            }
            let (lender_full, _, surplus_from) = self.levels(other);
            let lender = lender_full.saturating_sub(pool.lanes[other].missing);
            let lent = lender.saturating_sub(surplus_from).min(wanted);
            pool.lanes[other].missing += lent;
            pool.lanes[own].missing -= lent;
        }
    }

    /// Decides `cost` for the client. Moves the virtual time on, and notes whether the client contends.
    fn ask(&self, lane: &mut LaneState, seen: &mut Seen, cost: u64) -> Look {
        let (full, reserve, surplus_from) = self.levels(self.lane());
        let (token, scale) = (self.token(), self.numbers.scale);
        let level = full.saturating_sub(lane.missing);
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
            false => owed.max(level.saturating_sub(floor) / token),
        };
        let floor = floor.min(full - needs.min(full));
        let passes = !is_ahead && (cost <= available || level >= floor + needs);
        needed = needed.max(floor.saturating_add(needs)).min(full);
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
        let (_, per_tick, token, tick) = self.numbers.meter.parts();
        let lane_share = u64::from(self.numbers.lanes[self.lane()].share);
        let ticks = MEMORY.as_micros() / tick.micros();
        let refilled = ticks.saturating_mul(u64::from(per_tick)) / token;
        let share = self.virtual_time(full, known);
        let most = self.virtual_time(surplus_from, self.weight());
        let earned = (refilled * self.numbers.scale / known).min(most);
        // The whole and the rest apart, so that the products stay small.
        let whole = u64::from(WHOLE);
        let earned = earned / whole * lane_share + earned % whole * lane_share / whole;
        let saved = share.max(earned);
        let least = lane.virtual_time.saturating_sub(saved);
        seen.mark.got = match seen.is_new {
            true => lane.virtual_time,
            false => seen.mark.got.max(least),
        };
    }

    /// Reads the client at `now`, and decides `cost`, on a copy of everything but the clients.
    fn look(&self, state: &State, cost: u64, now: Time) -> (Pool, Seen, [u64; MAX_LANES], Look) {
        let mut pool = state.pool;
        let shifts = self.advance(&mut pool, &state.clients, now);
        let shift = shifts[self.lane()];
        let mut seen = state.clients.read(self.client, shift, self.epoch(), now);
        let (full, _, surplus_from) = self.levels(self.lane());
        let needs = cost.min(full / self.token()) * self.token();
        self.borrow(&mut pool, state, surplus_from.saturating_add(needs));
        let look = self.ask(
            &mut pool.lanes[self.lane()],
            &mut seen,
            needs / self.token(),
        );
        (pool, seen, shifts, look)
    }

    /// Writes what [`look`](Self::look) has read and changed.
    fn write(state: &mut State, pool: Pool, seen: &Seen, shifts: &[u64; MAX_LANES]) {
        state.pool = pool;
        state.clients.write(seen, shifts);
    }

    /// Notes that the client was denied by this limit, so that others get the tokens it leaves.
    pub fn note_denied(&self, state: &mut State, cost: u64, now: Time) {
        let (pool, seen, shifts, _) = self.look(state, cost, now);
        Fair::write(state, pool, &seen, &shifts);
    }

    /// Returns the first instant at which a lane has `needed` units by its own refill, at the latest.
    fn when(&self, pool: &Pool, needed: u64) -> Time {
        let lane = self.lane();
        let (_, per_tick, _, tick) = self.numbers.meter.parts();
        let level = self.numbers.full[lane].saturating_sub(pool.lanes[lane].missing);
        let debt = pool.lanes[lane]
            .missing
            .saturating_sub(self.numbers.full[lane]);
        let lacks = needed.saturating_sub(level).saturating_add(debt);
        let share = u64::from(self.numbers.lanes[lane].share);
        let ticks = if share == u64::from(WHOLE) {
            lacks.div_ceil(u64::from(per_tick))
        } else {
            // One unit more, because the parts of lanes are rounded.
            let whole = (lacks + 1).saturating_mul(u64::from(WHOLE));
            whole.div_ceil(u64::from(per_tick).saturating_mul(share.max(1)))
        };
        tick.start(pool.tick + ticks)
    }
}

impl Limiting for Fair {
    type State = State;

    fn capacity(&self) -> u64 {
        self.numbers.full[self.lane()] / self.token()
    }

    fn window(&self) -> Span {
        self.numbers.meter.window()
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
        let full = self.numbers.full[self.lane()];
        let deepest = full
            .saturating_add(most.saturating_mul(self.token()))
            .min(EXACT / 2);
        let room = deepest.saturating_sub(lane.missing) / self.token();
        let taken = cost.min(room);
        lane.missing += taken * self.token();
        // What exceeds the capacity does not move the mark beyond the horizon.
        let moved = self.virtual_cost(taken.min(self.numbers.meter.parts().0));
        seen.mark.got += moved;
        Fair::write(state, pool, &seen, &shifts);
        taken
    }

    /// The level of the lane. The share of the subject may be less.
    fn level(&self, state: &State, now: Time) -> i64 {
        let (pool, _, _, _) = self.look(state, 0, now);
        let token = i64::try_from(self.token()).unwrap_or(i64::MAX);
        let lane = self.lane();
        difference(self.numbers.full[lane], pool.lanes[lane].missing).div_euclid(token)
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
        let lane = &mut pool.lanes[self.lane()];
        lane.missing = lane.missing.saturating_sub(units);
        let moved = units * self.numbers.scale / self.token() / self.weight();
        seen.mark.got = seen.mark.got.saturating_sub(moved);
        Fair::write(state, pool, &seen, &shifts);
    }

    fn expires_at(&self, state: &State) -> Time {
        self.resets_at(state).max(state.clients.until())
    }

    fn resets_at(&self, state: &State) -> Time {
        let (_, per_tick, _, tick) = self.numbers.meter.parts();
        let lanes = self.numbers.lanes.iter().zip(&state.pool.lanes);
        let ticks = lanes.map(|(lane, it)| match it.missing {
            0 => 0,
            missing => {
                let share = u64::from(per_tick).saturating_mul(u64::from(lane.share.max(1)));
                (missing + 1)
                    .saturating_mul(u64::from(WHOLE))
                    .div_ceil(share)
            }
        });
        tick.start(state.pool.tick + ticks.max().unwrap_or(0))
    }

    fn keep(&self, from: &Fair, state: &mut State, how: CarryOver, now: Time) {
        let mut pool = state.pool;
        from.advance(&mut pool, &Clients::default(), now);
        for lane in 0..MAX_LANES {
            let missing = pool.lanes[lane].missing;
            let (Some(before), Some(after)) =
                (from.numbers.full.get(lane), self.numbers.full.get(lane))
            else {
                pool.lanes[lane] = LaneState::default();
                continue;
            };
            pool.lanes[lane].missing = match how.change(*before, *after) {
                Some(change) => change.share(missing.min(*before)),
                None => (missing.div_ceil(from.token()) * self.token()).min(*after),
            };
        }
        pool.tick = self.tick().of(now);
        pool.remainder = 0;
        if from.numbers.scale != self.numbers.scale || from.numbers.lanes != self.numbers.lanes {
            state.clients.clear();
            for lane in &mut pool.lanes {
                lane.virtual_time = 0;
            }
        }
        state.pool = pool;
    }
}

impl State {
    /// Returns the bytes that the state holds on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.clients.heap_bytes()
    }

    /// Returns how many clients the bucket knows.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }
}
