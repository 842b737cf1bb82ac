//! The slices of one key: units that this instance has drawn and may use until they end.
//!
//! Pure: the time comes in as an argument. Times are of the instance's own monotonic clock, except where a name
//! says that they are the store's.
//!
//! # Promise
//! A unit is used at most once, and only before the end of its slice. The end is counted from before the draw
//! was sent. So a use comes at most one `slice` after its draw, whatever the network, a pause of the process or
//! the scheduler did in between. A slice whose draw is answered after its end is never used.

use tollgate_core::{Admission, Limit, Outcome, Span, Time};

/// The fewest units asked for in one slice for which a draw saves calls.
pub(super) const LEAST_DEMAND: u64 = 4;

/// A slice ends early by one of this many parts of its time (1.5%), because the clocks of the instance and the store
/// may run at different speeds.
const DRIFT_PARTS: u64 = 64;

/// A bucket rounds its times by at most this much. The refill time of used units is shortened by it, so that rounding
/// never makes this time too long.
const TICK: Span = Span::from_millis(1);

/// Units of one draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slice {
    /// The units that are left.
    pub(super) units: u64,
    /// The units that were drawn.
    drawn: u64,
    /// When the store took the units, by the store's clock.
    pub(super) drawn_at: Time,
    /// When the units can no longer be used.
    pub(super) ends_at: Time,
    /// How long a bucket takes to refill `per` units; zero for other limits, which do not refill.
    refill: Span,
    per: u64,
    /// A refund of the units leaves out what has refilled since this time, by the store's clock.
    pub(super) refund_at: Time,
}

impl Slice {
    /// Returns the slice of a draw that was sent at `sent_at` and took `units` under `limit` at `drawn_at`. `ends_in`
    /// is the time until the period of the units ends, as of `drawn_at`.
    pub(super) fn new(
        (units, drawn_at): (u64, Time),
        limit: &Limit,
        sent_at: Time,
        longest: Span,
        ends_in: Option<Span>,
    ) -> Slice {
        let longest = ends_in.map_or(longest, |ends_in| longest.min(ends_in));
        let usable = longest.as_micros() - longest.as_micros().div_ceil(DRIFT_PARTS);
        Slice {
            units,
            drawn: units,
            drawn_at,
            ends_at: sent_at + Span::from_micros(usable),
            refill: if limit.refills() {
                limit.window()
            } else {
                Span::ZERO
            },
            per: limit.capacity().max(1),
            refund_at: drawn_at,
        }
    }

    /// Returns the time in which a bucket refills the units that were used, or a little less.
    fn refill_of_used(&self) -> Span {
        let used = u128::from(self.drawn.saturating_sub(self.units));
        let refill = u128::from(self.refill.as_micros()) * used / u128::from(self.per.max(1));
        let refill = u64::try_from(refill).unwrap_or(u64::MAX);
        Span::from_micros(refill.saturating_sub(TICK.as_micros()))
    }

    fn is_usable(&self, now: Time) -> bool {
        now < self.ends_at
    }
}

/// The last answer of the store about the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoreView {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) reset_at: Time,
}

impl From<&Outcome> for StoreView {
    fn from(outcome: &Outcome) -> StoreView {
        StoreView {
            limit: outcome.limit,
            remaining: outcome.remaining,
            reset_at: outcome.reset_at,
        }
    }
}

/// How many units were recently asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Demand {
    /// When the current interval began. An interval is as long as a slice.
    began_at: Time,
    /// From this time on, nothing was asked for in two intervals.
    idle_at: Time,
    current: u64,
    previous: u64,
}

impl Demand {
    /// Counts `units` at `now`, and returns the units of the last interval.
    pub(super) fn count(&mut self, units: u64, slice: Span, now: Time) -> u64 {
        let age = now.since(self.began_at);
        if age >= slice || now < self.began_at {
            let is_recent = now < self.idle_at && now >= self.began_at;
            self.previous = if is_recent { self.current } else { 0 };
            (self.current, self.began_at) = (0, now);
            self.idle_at = now + slice + slice;
        }
        self.current = self.current.saturating_add(units);
        self.current.max(self.previous)
    }

    /// Returns whether nothing was asked for in the last two intervals.
    pub(super) fn is_idle(&self, now: Time) -> bool {
        now >= self.idle_at
    }
}

/// Units that were used, for the case that they have to be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) units: u64,
    pub(super) drawn_at: Time,
    pub(super) ends_at: Time,
    /// The fence under which the units were used.
    pub(super) fence: u64,
}

/// The slices of one key, oldest first, and what is known about the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slices {
    slices: [Slice; 2],
    pub(super) view: StoreView,
    demand: Demand,
    /// Whether a draw is on its way.
    drawing: bool,
    /// No draw is sent before this instant, because a draw has failed.
    paused_until: Time,
    /// Grows with each reset. A draw that was sent before the reset is not used.
    fence: u64,
    used: UsedDebt,
}

/// What this instance alone still owes to a bucket, for the units that it has used.
///
/// A unit that is given back late has partly refilled by itself, and must not come back twice. Only a bucket that is
/// not full refills. Used units keep a bucket from being full, whatever other callers do. Until the used units have
/// refilled, the bucket would not have been full even with the unused units in it. So a refund leaves out only what has
/// refilled after that instant. The instant depends only on what this instance has drawn and used, not on the state of
/// the store. So refunds of other instances cannot make it wrong. `docs/modes.md` has the proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct UsedDebt {
    /// When the used units of slices that are gone have refilled, by the store's clock.
    ends_at: Time,
    /// When the latest of these slices was drawn.
    counted_at: Time,
}

impl UsedDebt {
    /// Adds the used units of a slice that is gone. Returns the `refund_at` of its unused units.
    fn add(&mut self, slice: &Slice) -> Time {
        // Slices count in the order of their draws. A slice that comes out of order adds nothing.
        if slice.refill == Span::ZERO || slice.drawn_at < self.counted_at {
            return slice.drawn_at;
        }
        self.counted_at = slice.drawn_at;
        self.ends_at = self.ends_at.max(slice.drawn_at) + slice.refill_of_used();
        self.ends_at
    }
}

impl Slices {
    pub(super) fn new(view: StoreView, demand: Demand) -> Slices {
        Slices {
            slices: [Slice::default(); 2],
            view,
            demand,
            drawing: false,
            paused_until: Time::default(),
            fence: 0,
            used: UsedDebt::default(),
        }
    }

    /// Uses `units` of one slice; `None` if no slice has as many.
    #[inline]
    pub(super) fn spend(&mut self, units: u64, now: Time) -> Option<Use> {
        let covering = |slice: &&mut Slice| slice.units >= units.max(1) && slice.is_usable(now);
        let slice = self.slices.iter_mut().find(covering)?;
        slice.units -= units;
        Some(Use {
            units,
            drawn_at: slice.drawn_at,
            ends_at: slice.ends_at,
            fence: self.fence,
        })
    }

    /// Puts units back that were not used after all. Returns false if their slice has gone, so that they have to be
    /// given back to the store. A reset has forgotten the units that were used before it.
    pub(super) fn put_back(&mut self, used: &Use) -> bool {
        if used.fence != self.fence {
            return true;
        }
        let own = |it: &&mut Slice| it.drawn_at == used.drawn_at && it.ends_at == used.ends_at;
        let slice = self.slices.iter_mut().find(own);
        let found = slice.is_some();
        if let Some(slice) = slice {
            slice.units += used.units;
        }
        found
    }

    /// Returns the outcome of a use: the last answer of the store, with the units that are left here.
    #[inline]
    pub(super) fn outcome(&self, now: Time) -> Outcome {
        Outcome {
            admission: Admission::Allowed { delay: Span::ZERO },
            limit: self.view.limit,
            remaining: self.view.remaining.saturating_add(self.usable(now)),
            reset_at: self.view.reset_at,
        }
    }

    /// Returns the units that can be used at `now`.
    pub(super) fn usable(&self, now: Time) -> u64 {
        let usable = self.slices.iter().filter(|it| it.is_usable(now));
        usable.map(|it| it.units).sum()
    }

    /// Counts `units` that were asked for. Returns how many units to draw now, and the fence of that draw;
    /// `None` if no draw is due.
    ///
    /// A draw is due when the usable units do not last for another quarter of the slice's time. It tops the
    /// units up to the demand of the last `slice`. It asks for at most half of an equal share of the remaining
    /// units. Near the limit this is less than two units: then every request asks the store.
    #[inline]
    pub(super) fn due_draw(
        &mut self,
        units: u64,
        slice: Span,
        instances: u64,
        now: Time,
    ) -> Option<(u64, u64)> {
        let demand = self.demand.count(units, slice, now);
        if self.drawing || demand < LEAST_DEMAND || now < self.paused_until {
            return None;
        }
        let soon = now + Span::from_micros(slice.as_micros() / 4);
        let ready = self.usable(soon);
        if ready > demand / 4 {
            return None;
        }
        let share = self.view.remaining / instances.max(1).saturating_mul(2);
        let wanted = (demand - ready).min(share);
        // A new slice needs a free place.
        let has_place = self
            .slices
            .iter()
            .any(|it| it.units == 0 || !it.is_usable(now));
        if wanted < 2 || !has_place {
            return None;
        }
        self.drawing = true;
        Some((wanted, self.fence))
    }

    /// Takes in the slice of a draw that was sent under `fence`. Returns the units to give back to the store.
    pub(super) fn drawn(
        &mut self,
        slice: Slice,
        view: StoreView,
        fence: u64,
        now: Time,
    ) -> GiveBack {
        self.drawing = false;
        if fence != self.fence {
            return GiveBack::default();
        }
        self.view = view;
        if !slice.is_usable(now) {
            return GiveBack::from_iter([slice]);
        }
        let mut back = self.ended(now);
        if self.slices[0].units == 0 {
            self.slices.swap(0, 1);
        }
        let place = usize::from(self.slices[0].units > 0);
        back.extend(self.take(place));
        self.slices[place] = slice;
        back
    }

    /// Takes a slice out of its place, and counts what was used of it. Returns the slice if units are left.
    fn take(&mut self, place: usize) -> Option<Slice> {
        let mut slice = std::mem::take(&mut self.slices[place]);
        if slice.drawn == 0 {
            return None;
        }
        let other = &mut self.slices[1 - place];
        if other.drawn > 0 && other.units == 0 && other.drawn_at <= slice.drawn_at {
            self.used.add(other);
            *other = Slice::default();
        }
        slice.refund_at = self.used.add(&slice);
        (slice.units > 0).then_some(slice)
    }

    /// Notes that a draw has failed. The next draw waits for one `slice`.
    pub(super) fn failed(&mut self, slice: Span, now: Time) {
        self.drawing = false;
        self.paused_until = now + slice;
    }

    /// Returns the units of slices that have ended, to give back to the store.
    pub(super) fn ended(&mut self, now: Time) -> GiveBack {
        let mut back = GiveBack::default();
        for place in self.places() {
            if self.slices[place].units > 0 && !self.slices[place].is_usable(now) {
                back.extend(self.take(place));
            }
        }
        back
    }

    /// Returns the places of the slices in the order of their draws.
    fn places(&self) -> [usize; 2] {
        match self.slices[1].drawn > 0 && self.slices[1].drawn_at < self.slices[0].drawn_at {
            true => [1, 0],
            false => [0, 1],
        }
    }

    /// Forgets all slices, and those of draws on their way, because the state of the key was reset.
    pub(super) fn forget(&mut self) {
        self.fence += 1;
        self.slices = [Slice::default(); 2];
        self.used = UsedDebt::default();
    }

    /// Notes that used units may have come back to the store by a call of a client. So they no longer keep a bucket
    /// from being full.
    pub(super) fn forget_used(&mut self) {
        self.used.ends_at = Time::default();
        for slice in &mut self.slices {
            slice.drawn = slice.units;
        }
    }

    /// Notes that the draw on its way was answered, but was sent under other numbers. Returns its slice, unless a
    /// reset has forgotten it.
    pub(super) fn drawn_under_others(&mut self, slice: Slice, fence: u64) -> GiveBack {
        self.drawing = false;
        let slice = Some(slice).filter(|it| fence == self.fence && it.units > 0);
        slice.into_iter().collect()
    }

    /// Ends all slices. Returns the units that are left.
    pub(super) fn end_all(&mut self) -> GiveBack {
        let mut back = GiveBack::default();
        for place in self.places() {
            back.extend(self.take(place));
        }
        self.used = UsedDebt::default();
        back
    }

    /// Returns the fence of draws that are sent now.
    #[cfg(test)]
    pub(super) fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns whether the key has no slice, no draw on its way, and no recent demand.
    pub(super) fn is_idle(&self, now: Time) -> bool {
        !self.drawing && self.slices.iter().all(|it| it.units == 0) && self.demand.is_idle(now)
    }
}

/// Slices to give back to the store.
pub(super) type GiveBack = smallvec::SmallVec<[Slice; 2]>;

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Span = Span::from_millis(100);
    const START: Time = Time::from_micros(1_000_000_000);
    const VIEW: StoreView = StoreView {
        limit: 1000,
        remaining: 900,
        reset_at: START,
    };

    fn at(millis: u64) -> Time {
        START + Span::from_millis(millis)
    }

    fn slices() -> Slices {
        Slices::new(VIEW, Demand::default())
    }

    fn slice(units: u64, sent_at: Time) -> Slice {
        Slice::new((units, sent_at), &window(), sent_at, SLICE, None)
    }

    fn window() -> Limit {
        Limit::fixed_window(1000, Span::MINUTE).unwrap()
    }

    /// Asks for single units at `now` until a draw is due.
    fn draw(slices: &mut Slices, now: Time) -> (u64, u64) {
        (0..100)
            .find_map(|_| slices.due_draw(1, SLICE, 1, now))
            .unwrap()
    }

    #[test]
    fn a_unit_is_used_once_and_not_after_the_end_of_its_slice() {
        let mut it = slices();
        let (_, fence) = draw(&mut it, at(0));
        assert!(it.drawn(slice(2, at(0)), VIEW, fence, at(1)).is_empty());
        assert!(it.spend(1, at(1)).is_some());
        assert_eq!(it.outcome(at(1)).remaining, 901);
        assert!(it.spend(2, at(1)).is_none());
        // 98.4 ms after the draw was sent, the slice has ended.
        assert!(it.spend(1, at(98)).is_some());
        assert!(it.put_back(&Use {
            units: 1,
            drawn_at: at(0),
            ends_at: slice(1, at(0)).ends_at,
            fence: 0,
        }));
        assert!(it.spend(1, at(99)).is_none());
        assert_eq!(it.ended(at(99))[0].units, 1);
        assert!(it.ended(at(99)).is_empty());
    }

    #[test]
    fn a_draw_that_is_answered_too_late_is_given_back() {
        let mut it = slices();
        let (_, fence) = draw(&mut it, at(0));
        let back = it.drawn(slice(5, at(0)), VIEW, fence, at(200));
        assert_eq!(back[0].units, 5);
        assert!(it.spend(1, at(200)).is_none());
    }

    #[test]
    fn a_draw_from_before_a_fence_is_neither_used_nor_given_back() {
        let mut it = slices();
        let (_, fence) = draw(&mut it, at(0));
        it.forget();
        assert!(it.drawn(slice(5, at(0)), VIEW, fence, at(1)).is_empty());
        assert!(it.spend(1, at(1)).is_none());
    }

    #[test]
    fn a_slice_ends_with_its_period() {
        let it = Slice::new(
            (5, at(0)),
            &window(),
            at(0),
            SLICE,
            Some(Span::from_millis(10)),
        );
        assert!(it.is_usable(at(9)) && !it.is_usable(at(10)));
        let none = Slice::new((5, at(0)), &window(), at(0), SLICE, Some(Span::ZERO));
        assert!(!none.is_usable(at(0)));
    }

    #[test]
    fn a_draw_follows_the_demand_and_shrinks_to_nothing_near_the_limit() {
        let mut it = slices();
        for _ in 0..3 {
            assert_eq!(it.due_draw(1, SLICE, 1, at(0)), None);
        }
        assert_eq!(it.due_draw(97, SLICE, 1, at(0)), Some((100, 0)));
        // One draw at a time.
        assert_eq!(it.due_draw(1, SLICE, 1, at(0)), None);
        it.drawn(slice(100, at(0)), VIEW, 0, at(1));
        assert_eq!(it.due_draw(1, SLICE, 1, at(1)), None);
        it.spend(90, at(1)).unwrap();
        assert_eq!(it.due_draw(1, SLICE, 1, at(2)), Some((93, 0)));
        it.failed(SLICE, at(2));
        assert_eq!(it.due_draw(1, SLICE, 1, at(50)), None);
        it.view.remaining = 40;
        assert_eq!(it.due_draw(100, SLICE, 4, at(103)), Some((5, 0)));
        it.failed(SLICE, at(103));
        it.view.remaining = 15;
        assert_eq!(it.due_draw(100, SLICE, 4, at(203)), None);
    }

    /// Compares a bucket from which units were drawn and given back with one from which they were never drawn.
    #[test]
    fn units_that_are_given_back_never_make_more_than_if_they_were_not_drawn() {
        use tollgate_core::{Limiting, Rate};

        let mut random = fastrand::Rng::with_seed(7);
        let mut whole = 0;
        for _ in 0..3000 {
            let rate = Rate::new(random.u64(1..20), Span::from_millis(random.u64(1..50))).unwrap();
            let meter = tollgate_core::gcra::new(rate, random.u64(1..100)).unwrap();
            let limit = Limit::Gcra(meter.clone());
            let (mut with, mut without) = (Default::default(), Default::default());
            let mut now = START;
            let charge = |state: &mut _, units: u64, now| {
                let taken = units.min(meter.decide(state, 0, now).available);
                meter.charge(state, taken, now);
                taken
            };
            for _ in 0..random.u32(0..3) {
                now = now + Span::from_micros(random.u64(0..40_000));
                let units = random.u64(0..60);
                charge(&mut with, units, now);
                charge(&mut without, units, now);
            }
            let drawn_at = now;
            let drawn = charge(&mut with, random.u64(1..60), now);
            let unused = random.u64(0..=drawn);
            charge(&mut without, drawn - unused, now);
            for _ in 0..random.u32(0..3) {
                now = now + Span::from_micros(random.u64(0..40_000));
                // The bucket with the draw may admit less, so both take what that one admits.
                let taken = charge(&mut with, random.u64(0..60), now);
                charge(&mut without, taken, now);
            }
            now = now + Span::from_micros(random.u64(0..40_000));
            let mut slice = Slice::new((drawn, drawn_at), &limit, drawn_at, SLICE, None);
            slice.units = unused;
            meter.refund(&mut with, unused, UsedDebt::default().add(&slice), now);
            let left = |state: &_| meter.decide(state, 0, now).available;
            assert!(left(&with) <= left(&without), "{limit:?}");
            whole += u32::from(unused > 0 && left(&with) + 1 >= left(&without));
        }
        assert!(whole > 300, "{whole}");
    }

    /// Instances draw, use some units, and give the others back in any order. Others charge meanwhile.
    #[test]
    fn refunds_of_several_draws_never_leave_more_than_if_unused_units_were_not_drawn() {
        use tollgate_core::{Limiting, Rate};

        let mut random = fastrand::Rng::with_seed(9);
        let meter = tollgate_core::gcra::new(Rate::new(1, Span::from_millis(1)).unwrap(), 300);
        let meter = meter.unwrap();
        let limit = Limit::Gcra(meter.clone());
        let left = |state: &_, now| meter.decide(state, 0, now).available;
        let mut given_back = 0;
        for _ in 0..20_000 {
            let (mut with, mut without) = (Default::default(), Default::default());
            // A draw has a later partner in this list: the refund of its unused units.
            let mut used = [UsedDebt::default(); 3];
            let mut open: Vec<(usize, Slice)> = Vec::new();
            let mut now = START;
            for _ in 0..12 {
                now = now + Span::from_micros(random.u64(0..60_000));
                let charge = |state: &mut _, units: u64| meter.charge(state, units, now);
                match random.u32(0..3) {
                    0 if open.len() < 4 => {
                        let drawn = random.u64(1..100).min(left(&with, now));
                        let mut slice = Slice::new((drawn, now), &limit, now, SLICE, None);
                        slice.units = random.u64(0..=drawn);
                        charge(&mut with, drawn);
                        charge(&mut without, drawn - slice.units);
                        open.push((random.usize(0..3), slice));
                    }
                    1 if !open.is_empty() => {
                        let (node, slice) = open.remove(random.usize(0..open.len()));
                        let refund_at = used[node].add(&slice);
                        let before = left(&with, now);
                        meter.refund(&mut with, slice.units, refund_at, now);
                        given_back += left(&with, now) - before;
                    }
                    _ => {
                        // The bucket with the draws may admit less, so both take what that one admits.
                        let units = random.u64(0..200).min(left(&with, now));
                        charge(&mut with, units);
                        charge(&mut without, units);
                    }
                }
                assert!(left(&with, now) <= left(&without, now));
            }
        }
        assert!(given_back > 100_000, "{given_back}");
    }

    #[test]
    fn two_slices_overlap_and_the_older_is_used_first() {
        let mut it = slices();
        let (_, fence) = draw(&mut it, at(0));
        it.drawn(slice(2, at(0)), VIEW, fence, at(0));
        it.drawn(slice(5, at(50)), VIEW, fence, at(50));
        assert_eq!(it.spend(1, at(60)).unwrap().drawn_at, at(0));
        assert_eq!(it.spend(3, at(60)).unwrap().drawn_at, at(50));
        assert_eq!(it.usable(at(60)), 3);
        assert_eq!(it.usable(at(120)), 2);
        assert_eq!(it.ended(at(120))[0].units, 1);
        assert!(!it.is_idle(at(500)));
        assert_eq!(it.end_all()[0].units, 2);
        assert!(it.is_idle(at(500)));
    }
}
