//! The memory for each subject, by kind of rule: of Redis, as `cargo xtask bench sizes` measures it, and of a process with
//! state in memory. `tests/memory.rs` compares them with a real Redis, and `tests/memory_of_a_process.rs` with a real process.

use tollgate::algorithms::{
    backoff, concurrency, fair, fixed_window, meter, quota, sliding_counter, sliding_log,
    two_window,
};
use tollgate::{Limit, Rule};

/// The bytes of a key's name besides the id of its rule, and of the string that holds it.
const NAME: u64 = 52 + 4;
/// Sliding logs: the bytes of an empty one and of an entry, and how many entries are written as a whole. A longer log is
/// changed in place, and Redis then doubles its room whenever it is full.
const LOG_HEAD: u64 = 37;
const LOG_ENTRY: u64 = 14;
const LOG_WHOLE: u64 = 33;
/// The most entries of a log.
const LOG_MOST: u64 = 10_000;

/// Returns the bytes of Redis for one subject of a rule. `entries` is how many requests of a subject are in
/// the window of a sliding log; at most its limit are kept.
///
/// ```
/// # let config = tollgate::parse("rules.yaml", "
/// # version: 1
/// # rules: [{ id: tenant-rate, per: [tenant], algorithm: gcra, rate: 10/s }]
/// # ", &|_| None)?;
/// let rule = &config.policy.rules[0];
/// assert_eq!(tollgate_simulate::redis_bytes(rule, 1), 197);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[must_use]
pub fn redis_bytes(rule: &Rule, entries: u64) -> u64 {
    // Measured, less the name of the key.
    let bytes = match rule.limit() {
        Limit::Unlimited(_) => return 0,
        // The bucket alone. Each active client adds 231 bytes.
        Limit::Fair(_) => 232,
        Limit::Gcra(_)
        | Limit::TokenBucket(_)
        | Limit::LeakyBucket(_)
        | Limit::Backoff(_)
        | Limit::FixedWindow(_) => 117,
        Limit::TwoWindow(_) => 149,
        // 181 bytes with 10 parts, 421 with 60.
        Limit::SlidingCounter(counter) => 133 + counter.parts().1 * 48 / 10,
        Limit::SlidingLog(_) => 101 + log_bytes(entries.min(rule.limit().capacity())),
        Limit::Quota(_) => 165,
        Limit::Concurrency(_) => 1_172,
    };
    bytes + allocated(NAME + rule.id().len() as u64)
}

/// The shards of the memory store. Each has a table for the states of an algorithm.
const SHARDS: u64 = 64;
/// The bytes of an entry of a table besides its state: the key, and the place of its numbers. A byte of the table's index
/// comes in addition.
const ENTRY: usize = 16;
/// The bytes of a holder of a slot outside the table, as measured: a node of a map, and the record of the lease.
const HOLDER: u64 = 1_500;
/// The bytes of a fair bucket outside the table, with a few active clients.
const FAIR: u64 = 1_000;

/// Returns the bytes of a process with state in memory for `subjects` subjects of a rule. `entries` is how many requests of
/// a subject are in the window of a sliding log, or how many slots a subject holds.
///
/// Tables grow in powers of two, so that the bytes for each subject depend on their number.
///
/// ```
/// # let config = tollgate::parse("rules.yaml", "
/// # version: 1
/// # rules: [{ id: tenant-rate, per: [tenant], algorithm: gcra, rate: 10/s }]
/// # ", &|_| None)?;
/// let rule = &config.policy.rules[0];
/// assert_eq!(tollgate_simulate::memory_bytes(rule, 1_000_000, 1) / 1_000_000, 63);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[must_use]
pub fn memory_bytes(rule: &Rule, subjects: u64, entries: u64) -> u64 {
    let entries = entries.min(rule.limit().capacity()).max(1);
    let (state, outside) = match rule.limit() {
        Limit::Unlimited(_) => return 0,
        Limit::Gcra(_) | Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
            (size_of::<meter::State>(), 0)
        }
        Limit::Backoff(_) => (size_of::<backoff::State>(), 0),
        Limit::FixedWindow(_) => (size_of::<fixed_window::State>(), 0),
        Limit::TwoWindow(_) => (size_of::<two_window::State>(), 0),
        Limit::SlidingCounter(counter) => {
            let counts = allocated((counter.parts().1 + 1) * 8);
            (size_of::<sliding_counter::State>(), counts)
        }
        // A list grows in powers of two, from four entries of 16 bytes.
        Limit::SlidingLog(_) => {
            let room = entries.clamp(4, LOG_MOST).next_power_of_two();
            (size_of::<sliding_log::State>(), room * 16)
        }
        Limit::Quota(_) => (size_of::<quota::State>(), 0),
        Limit::Concurrency(_) => (size_of::<concurrency::State>(), entries * HOLDER),
        Limit::Fair(_) => (size_of::<fair::State>(), FAIR),
    };
    let entry = (ENTRY + state).next_multiple_of(4) as u64 + 1;
    let in_shard = subjects.div_ceil(SHARDS);
    // A table is at most seven eighths full.
    let places = (in_shard * 8).div_ceil(7).next_power_of_two().max(4);
    // The allocator gives a larger block. Its end is resident if it was in use before: half of it is counted.
    let block = places * entry + 16;
    let block = block.midpoint(allocated(block));
    (SHARDS * block).saturating_add(subjects.saturating_mul(outside))
}

/// Returns the bytes that the allocators of Redis and of the server take for a block. The sizes are 8, 16 and so on
/// up to 64, and then four for each power of two.
fn allocated(bytes: u64) -> u64 {
    let step = match bytes {
        0..=64 => 8,
        65..=128 => 16,
        _ => bytes.next_power_of_two() / 8,
    };
    bytes.next_multiple_of(step)
}

/// Returns the bytes of the string of a sliding log.
fn log_bytes(entries: u64) -> u64 {
    let length = |entries: u64| LOG_HEAD + LOG_ENTRY * entries;
    let entries = entries.clamp(1, LOG_MOST);
    // The header of a string, and the zero at its end.
    let around = |length: u64| if length < 256 { 4 } else { 6 };
    if entries <= LOG_WHOLE {
        return allocated(length(entries) + around(length(entries))).max(64);
    }
    let mut room = allocated(2 * length(LOG_WHOLE + 1) + 6);
    while length(entries) + 6 > room {
        let fits = (room - 6 - LOG_HEAD) / LOG_ENTRY;
        room = allocated(2 * length(fits + 1) + 6);
    }
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `MEMORY USAGE` told while a log grew, less the 120 bytes that are not the string.
    #[test]
    fn logs_take_the_blocks_that_redis_gives_them() {
        let told = [
            (1, 184),
            (2, 200),
            (3, 216),
            (5, 232),
            (6, 248),
            (8, 280),
            (10, 312),
            (13, 344),
            (15, 376),
            (19, 440),
            (24, 504),
            (28, 568),
            (33, 632),
            (34, 1400),
            (88, 1400),
            (89, 3192),
            (216, 3192),
            (217, 7288),
            (508, 7288),
            (509, 14456),
            (1020, 14456),
            (1021, 28792),
        ];
        for (entries, bytes) in told {
            assert_eq!(log_bytes(entries) + 120, bytes, "{entries} entries");
        }
        assert_eq!(log_bytes(1_000_000), log_bytes(10_000));
    }
}
