//! A failover by Sentinels.

use tollgate_rig::{Reply, Sentinels};

#[test]
fn replica_takes_over_from_a_killed_primary() {
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
