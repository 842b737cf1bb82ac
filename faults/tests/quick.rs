//! Three of the faults in a short run: the promises that do not depend on how busy the machine is.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use tollgate_faults::fault::ALL;
use tollgate_faults::judge::{Back, Promise, judge};
use tollgate_faults::run::{Pace, run};

/// What a decision may take longer than the timeout where tests and compilers share the machine.
const LEEWAY: Duration = Duration::from_millis(200);

async fn promises_are_kept(name: &str) {
    let fault = ALL.iter().find(|fault| fault.name == name).unwrap();
    let seen = run(fault, Pace::QUICK).await.unwrap();
    for row in judge(fault, &seen) {
        let policy = row.policy.name();
        assert!(row.by_store > 0 && row.by_policy > 0, "{policy}: {row:?}");
        assert!(row.open_median.is_some(), "{policy}: the breaker opens");
        assert!(
            row.worst_undelayed <= seen.timeout + LEEWAY,
            "{policy}: {:?}",
            row.worst_undelayed
        );
        assert!(
            matches!(row.back, Back::After(_)),
            "{policy}: {:?}",
            row.back
        );
        for promise in [
            Promise::WithinBound,
            Promise::NoError,
            Promise::ComesBack,
            Promise::TotalsRight,
        ] {
            assert!(
                !row.broken.contains(&promise),
                "{policy}: {promise:?}: {row:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed() {
    promises_are_kept("killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_paused() {
    promises_are_kept("paused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_is_a_black_hole() {
    promises_are_kept("black-hole").await;
}
