//! What async mode has done, for metrics.

use crate::striped::Striped;

/// A counter of async mode.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    /// Requests decided here, without a call.
    Decided,
    /// Requests with an async charge that the store decided.
    Asked,
    /// Reports sent.
    Reports,
    /// Units that the store has counted.
    ReportedUnits,
    /// Reported units of which the store had nothing left.
    OverdrawnUnits,
    /// Units of reports without an answer.
    UnconfirmedUnits,
}

/// The counters of async mode.
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

/// What async mode has done since the start, and what waits for a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedUsage {
    /// Requests decided here, without a call to the store.
    pub decided: u64,
    /// Requests with an async charge that the store decided.
    pub asked: u64,
    /// Reports sent to the store.
    pub reports: u64,
    /// Reported units that the store has counted.
    pub reported_units: u64,
    /// Reported units of which the store had nothing left when it counted them. This is not by how much a limit was
    /// exceeded: a report counts the use of a whole `flush` at one instant.
    pub overdrawn_units: u64,
    /// Units of reports without an answer: the store may have counted them or not.
    pub unconfirmed_units: u64,
    /// Keys that are decided here.
    pub keys: u64,
    /// Admitted units that are not reported yet.
    pub pending_units: u64,
}

impl ReportedUsage {
    /// Returns the sum of both.
    #[cfg(feature = "redis")]
    pub(crate) fn plus(self, other: ReportedUsage) -> ReportedUsage {
        ReportedUsage {
            decided: self.decided + other.decided,
            asked: self.asked + other.asked,
            reports: self.reports + other.reports,
            reported_units: self.reported_units + other.reported_units,
            overdrawn_units: self.overdrawn_units + other.overdrawn_units,
            unconfirmed_units: self.unconfirmed_units + other.unconfirmed_units,
            keys: self.keys + other.keys,
            pending_units: self.pending_units + other.pending_units,
        }
    }
}
