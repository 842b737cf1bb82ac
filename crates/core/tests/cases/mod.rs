//! Sets how many random cases a property test runs, and where its failures are kept.

use proptest::test_runner::{Config, FileFailurePersistence};

/// Returns the config of a property test with `base` cases, times the number in `TOLLGATE_PROOF_CASES`, but at
/// most times `most`: slow properties would take hours with a large number. The file `kept` keeps failures, and the
/// next run tries them first. The path is relative to the crate, because Cargo runs the tests there.
#[allow(clippy::expect_used, reason = "a wrong number fails the test")]
pub(crate) fn cases(base: u32, most: u32, kept: &'static str) -> Config {
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    let times = times.map_or(1, |it| it.parse::<u32>().expect("a whole number"));
    Config {
        cases: base * times.min(most),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(kept))),
        max_local_rejects: u32::MAX,
        ..Config::default()
    }
}
