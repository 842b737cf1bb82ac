//! Runs imported configs.

#![allow(dead_code)] // Each test file uses only a part.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use tollgate::{Attributes, Demand, Limiter, ManualClock, MemoryStore, Time, Traced};
use tollgate_import::{Imported, Kind};

/// A limiter with an imported config, at a time when windows of all lengths start.
pub(crate) struct Works(Limiter<Traced<MemoryStore<ManualClock>>>);

pub(crate) fn works(imported: &Imported) -> Works {
    let config = tollgate_config::parse("imported.yaml", &imported.yaml, &|_| None).unwrap();
    let clock = ManualClock::at(Time::from_micros(0));
    Works(Limiter::with_clock(&config, clock).unwrap())
}

impl Works {
    /// Returns how many of 20 requests with this descriptor are admitted.
    pub(crate) fn passed(&self, domain: &str, entries: &[(&str, &str)]) -> usize {
        let once = |_: &usize| {
            let mut attributes = Attributes::from([("domain", domain)]);
            attributes.extend(entries.iter().copied());
            let demands = [Demand::take(attributes, 1)];
            self.0.ask_all_now(&demands).unwrap().is_allowed()
        };
        (0..20).filter(once).count()
    }
}

/// Returns the notes of a kind, as printed.
pub(crate) fn notes(imported: &Imported, kind: Kind) -> Vec<String> {
    let of_kind = imported.notes.iter().filter(|note| note.kind == kind);
    of_kind.map(ToString::to_string).collect()
}
