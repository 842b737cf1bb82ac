//! What leased mode has done, for metrics.

use crate::striped::Striped;

/// A counter of leased mode.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    /// Requests decided from slices, without a call.
    Covered,
    /// Requests with a leased charge that the store decided.
    Asked,
    /// Draws sent.
    Draws,
    /// Units drawn.
    DrawnUnits,
    /// Units given back unused.
    ReturnedUnits,
    /// Units that could not be given back.
    LostUnits,
}

/// The counters of leased mode.
#[derive(Debug, Default)]
pub(super) struct Counts(Striped<6>);

impl Counts {
    #[inline]
    pub(super) fn add(&self, what: Count, count: u64) {
        self.0.add(what as usize, count);
    }

    pub(super) fn sums(&self) -> [u64; 6] {
        self.0.sums()
    }
}

/// What leased mode has done since the start, and what is outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrepaidUsage {
    /// Requests decided from slices, without a call to the store.
    pub covered: u64,
    /// Requests with a leased charge that the store decided.
    pub asked: u64,
    /// Draws sent to the store.
    pub draws: u64,
    /// Units drawn.
    pub drawn_units: u64,
    /// Units given back unused.
    pub returned_units: u64,
    /// Units that could not be given back: they count as used until they refill.
    pub lost_units: u64,
    /// Keys with usable units.
    pub keys: u64,
    /// Units that can be used now without a call.
    pub usable_units: u64,
}

impl PrepaidUsage {
    /// Returns the sum of both.
    #[cfg(feature = "redis")]
    pub(crate) fn plus(self, other: PrepaidUsage) -> PrepaidUsage {
        PrepaidUsage {
            covered: self.covered + other.covered,
            asked: self.asked + other.asked,
            draws: self.draws + other.draws,
            drawn_units: self.drawn_units + other.drawn_units,
            returned_units: self.returned_units + other.returned_units,
            lost_units: self.lost_units + other.lost_units,
            keys: self.keys + other.keys,
            usable_units: self.usable_units + other.usable_units,
        }
    }
}
