//! The numbers of a fair bucket: capacity, refill, lanes, and the client that asks.
//!
//! Products stay below 2^53, so that a script with doubles computes the same numbers: see [`of_meter`].

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::{MAX_LANES, MAX_WEIGHT, MEMORY, WHOLE};
use crate::divisor::Divisor;
use crate::limiting::Limiting as _;
use crate::meter::{Meter, gcd};
use crate::param::ParamProblem;
use crate::units::{EXACT, Scale, Span, Tick, Time};
use crate::{Inexact, ParamError, Rate};

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

impl Lane {
    /// The only lane of a bucket without lanes.
    pub const ONLY: Lane = Lane {
        share: WHOLE,
        strict: false,
    };
}

/// The client of a request, as a fair bucket sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// A keyed hash of the client.
    pub id: u64,
    /// From 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// The index of the lane.
    pub lane: u8,
}

/// The numbers of a bucket. All follow from the meter and the lanes. They are stored, because every answer needs
/// them, and divisions are slow.
#[derive(Debug)]
pub(super) struct Numbers {
    meter: Meter,
    lanes: Vec<Lane>,
    /// The shares of the lanes in lowest terms, and their sum.
    shares: Vec<u64>,
    pub(super) whole: u64,
    /// The levels of each lane.
    levels: Vec<Levels>,
    /// The most units of the bucket, or of its debt.
    most: u64,
    /// How many parts a token has in marks and virtual times: a power of two.
    pub(super) scale: u64,
    /// What the bucket refills within [`MEMORY`], as virtual time of weight 1.
    pub(super) earned: u64,
    /// The microseconds in a contention epoch.
    epoch: u64,
    /// A client that was not denied in so many epochs, the current one included, is calm.
    epochs_of_memory: u64,
    by_epoch: Divisor,
    /// Divides units by those that the bucket refills in a tick.
    by_rate: Divisor,
}

/// The levels of a lane, in units if nothing else is said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Levels {
    /// The capacity.
    pub(super) full: u64,
    pub(super) reserve: u64,
    /// There is a surplus above this level.
    pub(super) half: u64,
    /// Requests may use the reserve from this level on.
    pub(super) nearly_full: u64,
    /// The capacity in tokens.
    capacity: u64,
    /// The capacity, the reserve by half, and `half`, as virtual time of weight 1.
    pub(super) full_time: u64,
    pub(super) calm_time: u64,
    pub(super) half_time: u64,
}

impl PartialEq for Numbers {
    fn eq(&self, other: &Numbers) -> bool {
        self.meter == other.meter && self.lanes == other.lanes
    }
}

impl Hash for Numbers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.meter, &self.lanes).hash(state);
    }
}

/// The numbers of a fair bucket, and the client that asks.
#[derive(Clone, Debug)]
pub struct Fair {
    pub(super) numbers: Arc<Numbers>,
    client: Client,
}

/// The numbers alone decide: limits of several clients are the same limit.
impl PartialEq for Fair {
    #[inline]
    fn eq(&self, other: &Fair) -> bool {
        Arc::ptr_eq(&self.numbers, &other.numbers) || self.numbers == other.numbers
    }
}

impl Eq for Fair {}

impl Hash for Fair {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers.hash(state);
    }
}

/// Returns a bucket of `capacity` tokens, refilled at `refill`, with one lane for everything.
///
/// # Errors
/// If the numbers cannot be counted exactly, or take longer than 71 years to refill.
pub fn new(capacity: u64, refill: Rate) -> Result<Fair, ParamError> {
    with_lanes(capacity, refill, &[Lane::ONLY])
}

/// Returns a bucket with these lanes. Their shares must add up to [`WHOLE`].
///
/// # Errors
/// As for [`new`], or if the shares are wrong.
pub fn with_lanes(capacity: u64, refill: Rate, lanes: &[Lane]) -> Result<Fair, ParamError> {
    let meter = Meter::new(capacity, refill, "capacity", "refill")?;
    check_lanes(lanes)?;
    let in_millis = || of_meter(Meter::reduced(capacity, refill, Tick::Milli)?, lanes);
    let inexact =
        || ParamProblem::NotExact(format!("{capacity} at a rate of {refill}"), Inexact::Fair);
    let fair = of_meter(meter, lanes).or_else(in_millis);
    fair.ok_or_else(|| inexact().of("capacity"))
}

/// Returns the bucket of these [parts of a meter](Meter::parts), with these lanes.
///
/// # Errors
/// As for [`with_lanes`].
pub fn of_parts(meter: Meter, lanes: &[Lane]) -> Result<Fair, ParamError> {
    check_lanes(lanes)?;
    let inexact = ParamProblem::NotExact("this bucket".to_owned(), Inexact::Fair);
    of_meter(meter, lanes).ok_or_else(|| inexact.of("capacity"))
}

/// Fails unless there are one to [`MAX_LANES`] lanes, and their shares add up to [`WHOLE`].
fn check_lanes(lanes: &[Lane]) -> Result<(), ParamError> {
    let (sum, whole): (u64, _) = (
        lanes.iter().map(|it| u64::from(it.share)).sum(),
        u64::from(WHOLE),
    );
    match sum == whole && lanes.len() <= MAX_LANES && lanes.iter().all(|it| it.share > 0) {
        true => Ok(()),
        false => Err(ParamProblem::OutOfRange(sum, whole..=whole).of("shares")),
    }
}

/// Returns the bucket, or `None` if it cannot be counted exactly. The lanes must be valid.
///
/// With `full` units in a full bucket, and `whole` as the sum of the shares in lowest terms, these stay
/// below 2^53: `(full + whole) × whole`, for the parts of lanes; `full × scale`, for shares as virtual time;
/// and `scale` times the tokens of two spans of memory, for virtual times.
fn of_meter(meter: Meter, lanes: &[Lane]) -> Option<Fair> {
    let (capacity, per_tick, token, tick) = meter.parts();
    let divisor = lanes
        .iter()
        .fold(0, |sum, it| gcd(u64::from(it.share), sum));
    let shares: Vec<u64> = lanes
        .iter()
        .map(|it| u64::from(it.share) / divisor)
        .collect();
    let whole: u64 = shares.iter().sum();
    let full = capacity * token;
    if full > most_units(whole) {
        return None;
    }
    let ticks = MEMORY.as_micros() / tick.micros();
    let refilled = ticks.saturating_mul(u64::from(per_tick)) / token;
    let most = (2 * refilled).max(capacity) + 1;
    let fits = |scale: u64, margin: u64| {
        full.saturating_mul(scale) < EXACT / 2 && most.saturating_mul(scale) < EXACT / margin
    };
    let mut scale = FINEST;
    // A client can be ahead by twice the capacity, so there is room for a multiple of it where scale allows.
    while scale > 1 && !fits(scale, 16) {
        scale /= 2;
    }
    if !fits(scale, 4) {
        return None;
    }
    let levels = |share: &u64| Levels::new(full * share / whole, token, scale);
    let epoch = meter.window().clamp(Span::SECOND, MEMORY).as_micros();
    let numbers = Numbers {
        lanes: lanes.to_vec(),
        levels: shares.iter().map(levels).collect(),
        shares,
        whole,
        most: most_units(whole),
        scale,
        earned: refilled * scale,
        epoch,
        epochs_of_memory: 1 + MEMORY.as_micros() / epoch,
        by_epoch: Divisor::new(epoch),
        by_rate: Divisor::new(per_tick.into()),
        meter,
    };
    Some(Fair {
        numbers: Arc::new(numbers),
        client: Client {
            id: 0,
            weight: 1,
            lane: 0,
        },
    })
}

impl Levels {
    /// Returns the levels of a lane that holds `full` units.
    fn new(full: u64, token: u64, scale: u64) -> Levels {
        let reserve = (full / 4).max(token.min(full.saturating_sub(token)));
        let half = (full / 2).max(reserve);
        let time = |units: u64| units * scale / token;
        Levels {
            full,
            reserve,
            half,
            nearly_full: full - reserve / 4,
            capacity: full / token,
            full_time: time(full),
            calm_time: time(reserve / 2),
            half_time: time(half),
        }
    }
}

/// Returns the most units of a bucket, or of its debt, with this sum of shares.
fn most_units(whole: u64) -> u64 {
    (EXACT - 1) / whole - whole - 2
}

/// The parts of a [`Fair`] that a script needs, beside those of its meter.
#[derive(Clone, Copy, Debug)]
pub struct FairParts<'f> {
    /// The parts of a token in marks and virtual times.
    pub scale: u64,
    /// What the bucket refills within [`MEMORY`], as virtual time of weight 1.
    pub earned: u64,
    /// The microseconds in a contention epoch.
    pub epoch: u64,
    /// The shares of the lanes in lowest terms.
    pub shares: &'f [u64],
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

    /// Scales capacity and refill, as far as the result can be counted exactly.
    pub(crate) fn scaled(&self, scale: Scale) -> Fair {
        let meter = self.numbers.meter.scaled(scale);
        let (capacity, _, token, _) = meter.parts();
        let most = most_units(self.numbers.whole) / token;
        let fair = of_meter(meter.with_capacity(capacity.min(most)), self.lanes());
        fair.map_or_else(|| self.clone(), |it| it.for_client(self.client))
    }

    /// Returns a bucket of other numbers, with the same lanes and client.
    pub(crate) fn renumbered(&self, capacity: u64, refill: Rate) -> Result<Fair, ParamError> {
        with_lanes(capacity, refill, self.lanes()).map(|it| it.for_client(self.client))
    }

    /// Returns the client of the request.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client
    }

    /// Returns the id under which the bucket knows the client. A client has a mark in each lane.
    #[must_use]
    pub fn mark_id(&self) -> u64 {
        self.client.id ^ u64::from(self.client.lane).wrapping_mul(0x9E37_79B9_7F4A_7C15)
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

    /// Returns the other numbers.
    #[must_use]
    pub fn parts(&self) -> FairParts<'_> {
        FairParts {
            scale: self.numbers.scale,
            earned: self.numbers.earned,
            epoch: self.epoch(),
            shares: &self.numbers.shares,
        }
    }

    pub(super) fn lane(&self) -> usize {
        usize::from(self.client.lane)
    }

    pub(super) fn weight(&self) -> u64 {
        u64::from(self.client.weight)
    }

    pub(super) fn token(&self) -> u64 {
        self.numbers.meter.parts().2
    }

    pub(super) fn tick(&self) -> Tick {
        self.numbers.meter.parts().3
    }

    /// Returns the share of a lane, in lowest terms.
    pub(super) fn share(&self, lane: usize) -> u64 {
        self.numbers.shares[lane]
    }

    /// Returns the capacity of a lane in units.
    pub(super) fn full(&self, lane: usize) -> u64 {
        self.numbers.levels[lane].full
    }

    /// Returns the capacity of the client's lane in tokens.
    pub(super) fn lane_capacity(&self) -> u64 {
        self.levels().capacity
    }

    /// Returns the most units that may be missing in a lane if up to `most` tokens may be overdrawn.
    pub(super) fn deepest(&self, lane: usize, most: u64) -> u64 {
        let overdrawn = most.saturating_mul(self.token());
        let deepest = self.full(lane).saturating_add(overdrawn);
        let whole = self.numbers.whole;
        deepest
            .min(self.numbers.most / whole * self.share(lane))
            .max(self.full(lane))
    }

    /// Returns the length of a contention epoch in microseconds: the time in which the bucket refills, from
    /// one second to [`MEMORY`].
    pub(super) fn epoch(&self) -> u64 {
        self.numbers.epoch
    }

    /// Returns in how many epochs, the current one included, a client was not denied if it is calm.
    pub(super) fn epochs_of_memory(&self) -> u64 {
        self.numbers.epochs_of_memory
    }

    /// Returns the number of the contention epoch that contains `now`.
    pub(super) fn epoch_at(&self, now: Time) -> u64 {
        self.numbers.by_epoch.divide(now.as_micros())
    }

    /// Returns the levels of the client's lane.
    #[inline]
    pub(super) fn levels(&self) -> &Levels {
        &self.numbers.levels[self.lane()]
    }

    /// Returns the levels of a lane, if it exists.
    #[inline]
    pub(super) fn levels_of(&self, lane: usize) -> Option<&Levels> {
        self.numbers.levels.get(lane)
    }

    /// Returns how many whole tokens `units` are.
    #[inline]
    pub(super) fn tokens(&self, units: u64) -> u64 {
        self.numbers.meter.tokens(units)
    }

    /// Returns `units` of a lane, at most its capacity, as virtual time of a client with this weight, rounded down.
    #[inline]
    pub(super) fn virtual_time(&self, units: u64, weight: u64) -> u64 {
        divided(self.tokens(units * self.numbers.scale), weight)
    }

    /// Returns the units that virtual time takes with this weight, rounded up, but at most a huge number.
    #[inline]
    pub(super) fn units(&self, virtual_time: u64, weight: u64) -> u64 {
        let products = virtual_time
            .saturating_mul(weight)
            .saturating_mul(self.token());
        self.whole_parts(products) + u64::from(products & (self.numbers.scale - 1) > 0)
    }

    /// Returns `parts` divided by the scale, rounded down. The scale is a power of two.
    #[inline]
    pub(super) fn whole_parts(&self, parts: u64) -> u64 {
        parts >> self.numbers.scale.trailing_zeros()
    }

    /// Returns the virtual time that `cost` tokens take, rounded up.
    #[inline]
    pub(super) fn virtual_cost(&self, cost: u64) -> u64 {
        let parts = cost * self.numbers.scale;
        match self.weight() {
            1 => parts,
            weight => parts.div_ceil(weight),
        }
    }

    /// Returns the ticks in which the whole bucket refills `units`.
    #[inline]
    pub(super) fn ticks_of(&self, units: u64) -> u64 {
        let ticks = self.numbers.by_rate.divide(units);
        let per_tick = u64::from(self.numbers.meter.parts().1);
        ticks + u64::from(ticks * per_tick < units)
    }

    /// Returns the largest distance between a virtual time and a mark.
    pub(super) fn horizon(&self) -> u64 {
        self.numbers.meter.parts().0 * self.numbers.scale
    }

    /// Returns the units that the whole bucket refills in `ticks`, but not more than can be missing.
    pub(super) fn refill(&self, ticks: u64) -> u64 {
        let (_, per_tick, _, _) = self.numbers.meter.parts();
        let units = ticks.saturating_mul(u64::from(per_tick));
        units.min(self.numbers.most)
    }

    /// Returns the part of a lane of the `units` that the bucket refills from `tick` on. The parts of all lanes
    /// add up to the whole over time, because what a part is short of is in the next one.
    pub(super) fn refilled(&self, lane: usize, tick: u64, units: u64) -> u64 {
        let (share, whole) = (self.share(lane), self.numbers.whole);
        let per_tick = u64::from(self.numbers.meter.parts().1);
        let remainder = tick % whole * (per_tick % whole) % whole;
        (remainder + units) * share / whole - remainder * share / whole
    }
}

/// Divides by a weight. Most weights are 1, and a division is slow.
#[inline]
pub(super) fn divided(amount: u64, weight: u64) -> u64 {
    match weight {
        1 => amount,
        weight => amount / weight,
    }
}
