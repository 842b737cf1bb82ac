//! The workload of the engine benchmarks: keys, limits, and governor with its defaults.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate_core::{Charge, Key, Keyring, Limit, ParamError, Rate, Span};

/// A burst that no run uses up. It refills so slowly that every state stays live: each check must find, read
/// and write the state.
pub const BURST: u32 = 1_000_000_000;

/// Returns random keys of sixteen characters, as clients would send them.
#[must_use]
pub fn api_keys(count: usize) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(0x746f_6c6c);
    (0..count)
        .map(|_| format!("{:016x}", rng.u64(..)))
        .collect()
}

/// Returns the hashed keys of `api_keys`.
#[must_use]
pub fn hashed(api_keys: &[String]) -> Vec<Key> {
    let keyring = Keyring::new(b"the secret of a benchmark", "bench");
    let (rule, kind) = (keyring.rule("per-key"), keyring.kind(["api_key"]));
    api_keys
        .iter()
        .map(|key| Key::new(rule, kind.subject([key.as_str()])))
        .collect()
}

/// Returns a charge of one on `key`.
#[inline]
#[must_use]
pub fn charge(key: Key, limit: &Limit) -> Charge<'_> {
    Charge {
        rule: "bench",
        ..Charge::new(key, limit)
    }
}

/// Returns a limit of one request a second, and [`BURST`] at once.
///
/// # Errors
/// Never: the numbers fit.
pub fn gcra() -> Result<Limit, ParamError> {
    Limit::gcra(Rate::new(1, Span::SECOND)?, u64::from(BURST))
}

/// Returns governor's keyed limiter with the same limit and its defaults: DashMap, the standard hasher, its
/// clock.
#[must_use]
pub fn governor() -> Option<DefaultKeyedRateLimiter<String>> {
    let quota = Quota::with_period(Duration::from_secs(1))?.allow_burst(NonZeroU32::new(BURST)?);
    Some(RateLimiter::keyed(quota))
}
