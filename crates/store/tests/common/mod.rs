//! Helpers that several tests use.

#![allow(dead_code)] // Each test uses some of them.

use tollgate_conformance::key;
use tollgate_core::{Charge, Limit, Time};
use tollgate_store::{ManualClock, MemoryStore};

/// The start of an hour.
pub(crate) const START: Time = Time::from_micros(1_699_999_200_000_000);

pub(crate) fn store(max_keys: u64) -> MemoryStore<ManualClock> {
    let max_keys = usize::try_from(max_keys).unwrap_or(usize::MAX);
    MemoryStore::with_clock(max_keys, ManualClock::at(START))
}

/// Returns an enforcing charge of cost 1 for subject `number` under `limit`.
pub(crate) fn charge(number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        overflow: key(u64::MAX),
        rule: "rule",
        ..Charge::new(key(number), limit)
    }
}
