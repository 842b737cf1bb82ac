//! A primary and a replica under Sentinels, and the primary's death.

use tollgate_rig::{Reply, Sentinels};

#[test]
fn the_replica_takes_over_from_a_dead_primary() {
    let sentinels = Sentinels::start();
    assert_eq!(sentinels.urls().len(), 3);
    let primary = sentinels.primary().address();
    assert_eq!(sentinels.current_master_address(), primary);
    let write = || {
        sentinels
            .replica()
            .connect()
            .command(&["SET", "key", "value"])
    };
    assert!(matches!(write(), Reply::Error(text) if text.starts_with("READONLY")));

    sentinels.kill_primary();
    sentinels.wait_for_failover();
    assert_ne!(sentinels.current_master_address(), primary);
    assert_eq!(write().text(), "OK");
}
