//! A cluster: moving a cluster slot, and a failover.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a failed helper fails its test"
)]

use tollgate_rig::{Cluster, Reply};

/// Returns the code and cluster slot of an error, such as `MOVED 42`.
fn redirection(reply: Reply) -> String {
    match reply {
        Reply::Error(text) => text.rsplit_once(' ').unwrap().0.to_owned(),
        other => panic!("no redirection: {other:?}"),
    }
}

#[test]
fn slot_moves_with_its_keys() {
    let cluster = Cluster::start(3, 0);
    assert_eq!(cluster.masters().len(), 3);
    assert_eq!(cluster.urls().len(), 3);
    let slot = cluster.slot_of("{tag}");
    let from = cluster.master_of_slot(slot);
    let to = (from + 1) % 3;
    let mut source = cluster.nodes()[from].connect();
    for number in 0..250 {
        source.command(&["SET", &format!("{{tag}}{number}"), "value"]);
    }

    let migration = cluster.begin_migration(slot, from, to);
    assert_eq!(migration.move_keys(10), 10);
    let replies: Vec<Reply> = (0..250)
        .map(|number| source.command(&["GET", &format!("{{tag}}{number}")]))
        .collect();
    let (here, moved): (Vec<Reply>, Vec<Reply>) = replies
        .into_iter()
        .partition(|it| matches!(it, Reply::Bulk(_)));
    assert_eq!(here.len(), 240);
    for reply in moved {
        assert_eq!(redirection(reply), format!("ASK {slot}"));
    }
    assert_eq!(cluster.master_of_slot(slot), from);
    assert_eq!(migration.move_keys(1000), 240);
    assert_eq!(migration.move_keys(1000), 0);
    migration.finish();

    assert_eq!(cluster.master_of_slot(slot), to);
    let reply = source.command(&["GET", "{tag}0"]);
    assert_eq!(redirection(reply), format!("MOVED {slot}"));
    assert_eq!(cluster.nodes()[to].connect().keys().len(), 250);

    cluster.migrate_slot(slot, to, from);
    assert_eq!(cluster.master_of_slot(slot), from);
    assert_eq!(source.keys().len(), 250);
}

#[test]
fn replica_takes_over_from_a_killed_master() {
    let cluster = Cluster::start(3, 1);
    let slot = cluster.slot_of("key");
    let old = cluster.master_of_slot(slot);
    let replicas = cluster.replicas_of(old);
    assert_eq!(replicas.len(), 1);

    cluster.nodes()[old].kill();
    let new = cluster.wait_for_failover(slot, old);
    assert_eq!(replicas, [new]);
    let reply = cluster.nodes()[new]
        .connect()
        .command(&["SET", "key", "value"]);
    assert_eq!(reply.text(), "OK");
    assert!(!cluster.masters().contains(&old));

    cluster.nodes()[old].restart();
    cluster.wait_until_complete();
    assert_eq!(cluster.replicas_of(new), [old]);
}
