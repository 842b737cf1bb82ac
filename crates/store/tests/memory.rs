//! Checks that the memory store passes the conformance suite, with one shard and with all shards. The
//! reference store has to pass too.

#![allow(clippy::unwrap_used)]

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

/// What only fair buckets do.
mod fair {
    use super::*;
    use tollgate_conformance::{START, hold_id, key, reservation};
    use tollgate_core::fair::{Client, Lane};
    use tollgate_core::{Charge, Limit, OnDenied, Rate, Span};
    use tollgate_store::{Ask, Settle};

    fn limit(id: u64) -> Limit {
        let rate = Rate::new(100, Span::SECOND).unwrap();
        match Limit::fair(100, rate, &[Lane::ONLY]).unwrap() {
            Limit::Fair(it) => Limit::Fair(it.for_client(Client {
                id,
                weight: 1,
                lane: 0,
            })),
            other => other,
        }
    }

    fn charge(limit: &Limit) -> Charge<'_> {
        Charge {
            on_denied: OnDenied::Note,
            ..Charge::new(key(1), limit)
        }
    }

    #[test]
    fn clients_beyond_the_memory_share_a_mark() {
        let memory = Memory::of(64);
        memory.set_time(START);
        for id in 0..2_000 {
            let limit = limit(id);
            memory.store().apply(&[charge(&limit)], Ask::Exactly(1));
        }
        // 64 keys are 4 KB, and the map of marks doubles once more.
        assert!(memory.store().usage().bytes < 64 * 1024);
    }

    #[test]
    fn commit_of_less_gives_back_the_rest_to_its_client() {
        let memory = Memory::of(1_000_000);
        memory.set_time(START);
        let (one, other) = (limit(1), limit(2));
        let held = memory.store().hold(&[charge(&one)], 60, &reservation(1));
        assert!(held.is_ok());
        memory.store().apply(&[charge(&other)], Ask::Exactly(1));
        let before = memory.store().peek(&[charge(&one)], Ask::Exactly(0));
        let commit = Settle::Commit { actual: 1 };
        memory.store().settle(hold_id(1), commit);
        let after = memory.store().peek(&[charge(&one)], Ask::Exactly(0));
        assert!(after.outcomes[0].remaining > before.outcomes[0].remaining);
    }
}
