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

/// How many parts of a slice's time are left unused, so that the clocks of the instance and the store may run at
/// different speeds: 1/64, or 1.5%.
const DRIFT_PARTS: u64 = 64;

/// Units of one draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slice {
    /// The units that are left.
    pub(super) units: u64,
    /// When the store took the units, by the store's clock.
    pub(super) drawn_at: Time,
    /// When the whole allowance is back after the draw, by the store's clock.
    pub(super) full_at: Time,
    /// When the units can no longer be used.
    pub(super) ends_at: Time,
}

impl Slice {
    /// Returns the slice of a draw that was sent at `sent_at` and took `units` at `drawn_at`. The store's answer
    /// tells when the allowance is full again: `full_at`. `ends_in` is the time until the period of the units ends,
    /// as of `drawn_at`.
    pub(super) fn new(
        (units, drawn_at, full_at): (u64, Time, Time),
        sent_at: Time,
        longest: Span,
        ends_in: Option<Span>,
    ) -> Slice {
        let longest = ends_in.map_or(longest, |ends_in| longest.min(ends_in));
        let usable = longest.as_micros() - longest.as_micros().div_ceil(DRIFT_PARTS);
        Slice {
            units,
            drawn_at,
            full_at,
            ends_at: sent_at + Span::from_micros(usable),
        }
    }

    /// Returns the instant from which a refund of the units counts what has come back by itself.
    ///
    /// A bucket refills all the time. A unit that was not drawn would make a difference until the bucket is full
    /// without it. So a refund gives back whole units before that instant, and after it loses what has refilled
    /// since. Without these units, the bucket is full earlier than `full_at` by their refill, or later if more was
    /// charged meanwhile. For other limits the instant is that of the draw.
    pub(super) fn refund_at(&self, limit: &Limit) -> Time {
        let is_bucket = matches!(
            limit,
            Limit::TokenBucket(_) | Limit::Gcra(_) | Limit::LeakyBucket(_)
        );
        if !is_bucket {
            return self.drawn_at;
        }
        let (window, capacity) = (limit.window().as_micros(), limit.capacity().max(1));
        let refill = (u128::from(window) * u128::from(self.units)).div_ceil(u128::from(capacity));
        let refill = u64::try_from(refill).unwrap_or(u64::MAX);
        // Instants of a bucket are whole ticks, of a millisecond at most.
        let refill = Span::from_micros(refill.saturating_add(1000));
        (self.full_at - refill).max(self.drawn_at)
    }

    fn is_usable(&self, now: Time) -> bool {
        now < self.ends_at
    }

    /// Returns what is left of a slice that has ended, and empties it.
    fn take_ended(&mut self, now: Time) -> Option<Slice> {
        (self.units > 0 && !self.is_usable(now)).then(|| std::mem::take(self))
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

/// How many units were asked for lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Demand {
    /// When the current interval began. An interval is as long as a slice.
    began_at: Time,
    /// When nothing was asked for in two intervals.
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
}

/// The slices of one key, oldest first, and what is known about the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slices {
    slices: [Slice; 2],
    pub(super) view: StoreView,
    demand: Demand,
    /// Whether a draw is on its way. It is counted in `fence`.
    drawing: bool,
    /// No draw is sent before this instant, because a draw has failed.
    paused_until: Time,
    /// Grows with each event that ends outstanding slices. A draw that was sent before the event is not used.
    fence: u64,
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
        })
    }

    /// Puts units back that were not used after all. Returns false if their slice has gone.
    pub(super) fn put_back(&mut self, used: &Use) -> bool {
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
    pub(super) fn ask(
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
        let mut back = GiveBack::default();
        if fence != self.fence {
            return back;
        }
        self.view = view;
        if !slice.is_usable(now) {
            back.push(slice);
            return back;
        }
        for it in &mut self.slices {
            back.extend(it.take_ended(now));
        }
        if self.slices[0].units == 0 {
            self.slices.swap(0, 1);
        }
        match self.slices[0].units {
            0 => self.slices[0] = slice,
            _ => back.extend(Some(std::mem::replace(&mut self.slices[1], slice))),
        }
        back.retain(|it| it.units > 0);
        back
    }

    /// Notes that a draw has failed. The next draw waits for one `slice`.
    pub(super) fn failed(&mut self, slice: Span, now: Time) {
        self.drawing = false;
        self.paused_until = now + slice;
    }

    /// Returns the units of slices that have ended, to give back to the store.
    pub(super) fn ended(&mut self, now: Time) -> GiveBack {
        self.slices
            .iter_mut()
            .filter_map(|it| it.take_ended(now))
            .collect()
    }

    /// Ends all slices, and those of draws on their way. Returns the units that are left.
    pub(super) fn end_all(&mut self) -> GiveBack {
        self.fence += 1;
        let slices = self.slices.iter_mut().map(std::mem::take);
        slices.filter(|it| it.units > 0).collect()
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
        Slice::new((units, sent_at, sent_at), sent_at, SLICE, None)
    }

    /// Asks for single units at `now` until a draw is due.
    fn draw(slices: &mut Slices, now: Time) -> (u64, u64) {
        (0..100).find_map(|_| slices.ask(1, SLICE, 1, now)).unwrap()
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
            ends_at: slice(1, at(0)).ends_at
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
        it.end_all();
        assert!(it.drawn(slice(5, at(0)), VIEW, fence, at(1)).is_empty());
        assert!(it.spend(1, at(1)).is_none());
    }

    #[test]
    fn a_slice_ends_with_its_period() {
        let it = Slice::new((5, at(0), at(0)), at(0), SLICE, Some(Span::from_millis(10)));
        assert!(it.is_usable(at(9)) && !it.is_usable(at(10)));
        let none = Slice::new((5, at(0), at(0)), at(0), SLICE, Some(Span::ZERO));
        assert!(!none.is_usable(at(0)));
    }

    #[test]
    fn a_draw_follows_the_demand_and_shrinks_to_nothing_near_the_limit() {
        let mut it = slices();
        for _ in 0..3 {
            assert_eq!(it.ask(1, SLICE, 1, at(0)), None);
        }
        assert_eq!(it.ask(97, SLICE, 1, at(0)), Some((100, 0)));
        // One draw at a time.
        assert_eq!(it.ask(1, SLICE, 1, at(0)), None);
        it.drawn(slice(100, at(0)), VIEW, 0, at(1));
        assert_eq!(it.ask(1, SLICE, 1, at(1)), None);
        it.spend(90, at(1)).unwrap();
        assert_eq!(it.ask(1, SLICE, 1, at(2)), Some((93, 0)));
        it.failed(SLICE, at(2));
        assert_eq!(it.ask(1, SLICE, 1, at(50)), None);
        it.view.remaining = 40;
        assert_eq!(it.ask(100, SLICE, 4, at(103)), Some((5, 0)));
        it.failed(SLICE, at(103));
        it.view.remaining = 15;
        assert_eq!(it.ask(100, SLICE, 4, at(203)), None);
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
            let full_at = meter.resets_at(&with).max(now);
            for _ in 0..random.u32(0..3) {
                now = now + Span::from_micros(random.u64(0..40_000));
                // The bucket with the draw may admit less, so both take what that one admits.
                let taken = charge(&mut with, random.u64(0..60), now);
                charge(&mut without, taken, now);
            }
            now = now + Span::from_micros(random.u64(0..40_000));
            let slice = Slice {
                units: unused,
                drawn_at,
                full_at,
                ends_at: now,
            };
            meter.refund(&mut with, unused, slice.refund_at(&limit), now);
            let left = |state: &_| meter.decide(state, 0, now).available;
            assert!(left(&with) <= left(&without), "{limit:?}");
            whole += u32::from(unused > 0 && left(&with) + 1 >= left(&without));
        }
        assert!(whole > 1500, "{whole}");
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
