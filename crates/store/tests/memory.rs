//! Checks that the memory store passes the conformance suite, with one shard and with all shards. The
//! reference store has to pass too.

use tollgate_conformance::reference::ReferenceStore;
use tollgate_conformance::{Fixture, block_on};
use tollgate_core::Time;
use tollgate_store::{ManualClock, MemoryStore};

struct Memory(MemoryStore<ManualClock>);

impl Memory {
    fn of(max_keys: usize) -> Memory {
        Memory(MemoryStore::with_clock(max_keys, ManualClock::default()))
    }
}

impl Fixture for Memory {
    type Store = MemoryStore<ManualClock>;

    fn store(&self) -> &Self::Store {
        &self.0
    }

    fn set_time(&self, now: Time) {
        self.0.clock().set(now);
    }
}

struct Reference(ReferenceStore<ManualClock>);

impl Fixture for Reference {
    type Store = ReferenceStore<ManualClock>;

    fn store(&self) -> &Self::Store {
        &self.0
    }

    fn set_time(&self, now: Time) {
        self.0.clock().set(now);
    }
}

/// Returns `steps`, or ten times as many in a long run.
fn steps(steps: usize) -> usize {
    match std::env::var("TOLLGATE_PROOF_CASES") {
        Ok(_) => steps * 10,
        Err(_) => steps,
    }
}

mod many_shards {
    use super::*;

    tollgate_conformance::conformance_suite! {
        fixture: Memory::of(1_000_000),
        block_on: block_on,
        steps: steps(50_000),
    }
}

mod one_shard {
    use super::*;

    // A store for fewer than two thousand keys has one shard. The larger cases of the suite still fit.
    tollgate_conformance::conformance_suite! {
        fixture: Memory::of(2_047),
        block_on: block_on,
        steps: steps(20_000),
    }
}

mod reference {
    use super::*;

    tollgate_conformance::conformance_suite! {
        fixture: Reference(ReferenceStore::new(ManualClock::default())),
        block_on: block_on,
        steps: tollgate_conformance::STEPS,
    }
}
