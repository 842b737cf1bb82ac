//! The memory of requests that wait for their turn. `cargo xtask bench waiting` measures an optimised build.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use tokio::task::JoinSet;
use tollgate::{Ask, Attributes, HasLimiter, LONGEST_MAX_WAIT, Limiter};

/// Futures are larger in a build that is not optimised.
const MOST: i64 = 4 * 1024;
const COUNT: usize = 10_000;

#[test]
fn waiting_request_is_small() {
    let rules = "version: 1\nrules: [{ id: all, algorithm: token-bucket, capacity: 1, refill: 500/s, \
                 fair: { per: [tenant], max_wait: 30s, max_waiting: 20000 } }]";
    let limiter = Arc::new(Limiter::from_yaml("rules.yaml", rules).unwrap());
    // Allocations are counted by thread.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut requests = JoinSet::new();
    let seen = allocation_counter::measure(|| {
        for number in 0..COUNT {
            let limiter = Arc::clone(&limiter);
            let tenant = format!("tenant-{:09}", number % 10);
            let asking = async move {
                let attributes = Attributes::from([("tenant", tenant.as_str())]);
                let asking = limiter.ask_or_wait(&attributes, Ask::Exactly(1), LONGEST_MAX_WAIT);
                asking.await.is_allowed()
            };
            requests.spawn_on(asking, runtime.handle());
        }
        runtime.block_on(async {
            while limiter.waiting_room().waiting() < COUNT * 9 / 10 {
                tokio::task::yield_now().await;
            }
        });
    });
    let waiting = limiter.waiting_room().waiting();
    let each = seen.bytes_current / i64::try_from(waiting).unwrap();
    assert!(each <= MOST, "{each} bytes");
    runtime.block_on(requests.shutdown());
    assert_eq!(limiter.waiting_room().waiting(), 0);
}
