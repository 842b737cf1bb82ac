//! Short runs of some faults, with the promises that hold on a busy machine too.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::time::Duration;

use tollgate_faults::fault::ALL;
use tollgate_faults::judge::{Back, Promise, judge};
use tollgate_faults::run::{Pace, run};

/// How much longer than the timeout a decision may take while other tests use the machine.
const LEEWAY: Duration = Duration::from_millis(200);

async fn promises_are_kept(name: &str) {
    let fault = ALL.iter().find(|fault| fault.name == name).unwrap();
    let observed = run(fault, Pace::QUICK).await.unwrap();
    for row in judge(fault, &observed) {
        let policy = row.policy.name();
        assert!(row.by_store > 0 && row.by_policy > 0, "{policy}: {row:?}");
        assert!(row.open_median.is_some(), "{policy}: the breaker opens");
        assert!(
            row.worst_undelayed <= observed.timeout + LEEWAY,
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

/// The store decides nearly all requests: a busy machine can delay some answers beyond the timeout.
async fn the_store_decides(name: &str) {
    let fault = ALL.iter().find(|fault| fault.name == name).unwrap();
    let observed = run(fault, Pace::QUICK).await.unwrap();
    for row in judge(fault, &observed) {
        let policy = row.policy.name();
        assert!(row.by_store > 5 * row.by_policy, "{policy}: {row:?}");
        for promise in [Promise::WithinBound, Promise::NoError, Promise::TotalsRight] {
            assert!(
                !row.broken.contains(&promise),
                "{policy}: {promise:?}: {row:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_decides_when_the_server_is_out_of_memory() {
    the_store_decides("oom").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_decides_in_a_flood_of_subjects() {
    the_store_decides("flood").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_decides_when_its_clock_is_wrong() {
    the_store_decides("skewed-clock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_are_kept_when_the_server_is_killed() {
    promises_are_kept("killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_are_kept_when_the_server_is_paused() {
    promises_are_kept("paused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_are_kept_when_all_traffic_is_lost() {
    promises_are_kept("black-hole").await;
}
