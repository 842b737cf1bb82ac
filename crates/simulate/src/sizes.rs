//! The memory of Redis for each subject, by kind of rule, as `cargo xtask bench sizes` measures it.

use tollgate::{Limit, Rule};

/// The length of a rule's id in the measurement. A longer id costs its bytes in each name.
const ID: u64 = 11;
/// Sliding logs: the entries of a subject, and its bytes.
const LOG: [(u64, u64); 4] = [(1, 245), (10, 388), (100, 3_351), (1_000, 14_939)];

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
    let bytes = match rule.limit() {
        // Fair shares are kept in memory.
        Limit::Unlimited(_) | Limit::Fair(_) => return 0,
        Limit::Gcra(_) | Limit::TokenBucket(_) | Limit::LeakyBucket(_) | Limit::Backoff(_) => 197,
        Limit::FixedWindow(_) | Limit::TwoWindow(_) => 229,
        // 261 bytes with 10 parts, 501 with 60.
        Limit::SlidingCounter(counter) => 213 + counter.parts().1 * 48 / 10,
        Limit::SlidingLog(_) => log_bytes(entries.min(rule.limit().capacity())),
        Limit::Quota(_) => 245,
        Limit::Concurrency(_) => 1_252,
    };
    let id = rule.id().len() as u64;
    (bytes + id).saturating_sub(ID)
}

/// Interpolates the bytes of a sliding log between measured sizes.
fn log_bytes(entries: u64) -> u64 {
    let entries = entries.max(1);
    for pair in LOG.windows(2) {
        let [(from, low), (to, high)] = [pair[0], pair[1]];
        if entries <= to {
            return low + (high - low) * (entries - from) / (to - from);
        }
    }
    let [_, _, _, (most, bytes)] = LOG;
    bytes.saturating_mul(entries) / most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_interpolated_between_measured_sizes() {
        assert_eq!(
            [1, 10, 100, 1_000].map(log_bytes),
            [245, 388, 3_351, 14_939]
        );
        assert_eq!([0, 55, 10_000].map(log_bytes), [245, 1_869, 149_390]);
    }
}
