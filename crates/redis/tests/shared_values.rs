//! Texts that instances share.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{block_on, connect};
use tollgate_core::Tag;
use tollgate_redis::{RedisStore, SharedValues};
use tollgate_rig::{Cluster, Redis};

fn names(all: &[(String, String)]) -> Vec<&str> {
    all.iter().map(|(name, _)| name.as_str()).collect()
}

/// Checks that one instance reads the texts that another has set.
fn is_shared(one: &RedisStore, other: &RedisStore) {
    block_on(async {
        let (one, other, stranger) = (
            one.shared_values("prod"),
            other.shared_values("prod"),
            one.shared_values("test"),
        );
        assert_eq!(other.edition().await.unwrap(), 0);
        assert_eq!(other.all(9).await.unwrap(), (0, Vec::new()));
        assert!(one.put("b/*", "{}", 2).await.unwrap());
        assert!(one.put("a/*", "first", 2).await.unwrap());
        assert!(one.put("a/*", "second", 2).await.unwrap());
        assert_eq!(other.edition().await.unwrap(), 3);
        let (edition, all) = other.all(9).await.unwrap();
        assert_eq!((edition, names(&all)), (3, vec!["a/*", "b/*"]));
        assert_eq!(all[0].1, "second");
        // No more texts are accepted, but existing texts can still be changed.
        assert!(!other.put("c/*", "one too many", 2).await.unwrap());
        assert!(other.put("b/*", "other", 2).await.unwrap());
        assert!(!one.remove("b/*", Some("{}")).await.unwrap());
        assert!(one.remove("b/*", Some("other")).await.unwrap());
        assert!(!one.remove("b/*", None).await.unwrap());
        assert_eq!(names(&other.all(9).await.unwrap().1), ["a/*"]);
        assert_eq!(stranger.all(9).await.unwrap(), (0, Vec::new()));
    });
}

/// Checks that instances share one list, which keeps the newest texts.
fn is_one_list(one: &RedisStore, other: &RedisStore) {
    block_on(async {
        let (one, other) = (one.shared_log("prod"), other.shared_log("prod"));
        assert!(other.read(0, 9).await.unwrap().is_empty());
        one.append(&["a".to_owned(), "b".to_owned()], 3)
            .await
            .unwrap();
        other.append(&["c".to_owned()], 3).await.unwrap();
        assert_eq!(one.read(0, 9).await.unwrap(), ["c", "b", "a"]);
        one.append(&["d".to_owned()], 3).await.unwrap();
        assert_eq!(other.read(0, 9).await.unwrap(), ["d", "c", "b"]);
        assert_eq!(other.read(1, 1).await.unwrap(), ["c"]);
        assert!(other.read(3, 9).await.unwrap().is_empty());
    });
}

#[test]
fn instances_share_a_bounded_list() {
    let redis = Redis::start();
    let store = || connect(common::options(&redis));
    is_one_list(&store(), &store());
    let cluster = Cluster::start(3, 0);
    let options = common::cluster_options(&cluster);
    is_one_list(&connect(options.clone()), &connect(options));
}

#[test]
fn instances_share_texts_on_one_server() {
    let redis = Redis::start();
    let store = || connect(common::options(&redis));
    is_shared(&store(), &store());
}

#[test]
fn instances_share_texts_on_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let options = common::cluster_options(&cluster);
    is_shared(&connect(options.clone()), &connect(options));
}

#[test]
fn a_restarted_server_is_found_again() {
    let redis = Redis::start();
    let shelf: SharedValues = connect(common::options(&redis)).shared_values("prod");
    block_on(async {
        assert!(shelf.put("a/*", "{}", 9).await.unwrap());
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let lost = shelf.edition().await;
        assert!(lost.is_err() || lost == Ok(1), "{lost:?}");
        assert_eq!(shelf.edition().await.unwrap(), 1);
        let key = redis.cli(&["KEYS", "*overrides*"]);
        redis.cli(&["SET", key.trim(), "something else"]);
        assert!(shelf.all(9).await.is_err());
    });
}

#[test]
fn too_many_texts_are_not_read() {
    let redis = Redis::start();
    let shelf = connect(common::options(&redis)).shared_values("prod");
    block_on(async {
        for name in ["a/*", "b/*"] {
            assert!(shelf.put(name, "{}", 2).await.unwrap());
        }
        assert_eq!(shelf.all(2).await.unwrap().1.len(), 2);
        let error = shelf.all(1).await.unwrap_err().to_string();
        assert!(error.contains("has 3 fields"), "{error}");
    });
}

#[test]
fn texts_are_found_while_their_slot_is_moved() {
    let cluster = Cluster::start(3, 0);
    let shelf = connect(common::cluster_options(&cluster)).shared_values("prod");
    let slot = cluster.slot_of(&format!("{{{:08x}}}", Tag::default().number()));
    let here = cluster.master_of_slot(slot);
    block_on(async {
        assert!(shelf.put("a/*", "first", 9).await.unwrap());
        let migration = cluster.begin_migration(slot, here, (here + 1) % 3);
        assert_eq!(
            shelf.edition().await.unwrap(),
            1,
            "the key has not moved yet"
        );
        while migration.move_keys(50) > 0 {}
        assert_eq!(shelf.edition().await.unwrap(), 1);
        assert!(shelf.put("b/*", "second", 9).await.unwrap());
        assert_eq!(names(&shelf.all(9).await.unwrap().1), ["a/*", "b/*"]);
        migration.finish();
        assert!(shelf.remove("a/*", None).await.unwrap());
        assert_eq!(names(&shelf.all(9).await.unwrap().1), ["b/*"]);
    });
}

/// Checks that if several instances claim the store, one of them wins, and the others see its claim.
fn is_claimed_once(stores: &[RedisStore; 2]) {
    let texts = |value: &str| vec![("key".to_owned(), value.to_owned())];
    block_on(async {
        let [one, other] = stores.each_ref().map(|store| store.deployment("prod"));
        assert_eq!(one.read().await.unwrap(), []);
        assert_eq!(one.claim(&texts("1")).await.unwrap(), texts("1"));
        assert_eq!(other.claim(&texts("2")).await.unwrap(), texts("1"));
        assert_eq!(other.read().await.unwrap(), texts("1"));
        let more = [texts("2"), vec![("sealed".to_owned(), "x".to_owned())]].concat();
        let mut all = other.add(&more).await.unwrap();
        all.sort();
        assert_eq!(all, [&texts("1")[..], &more[1..]].concat());
        assert_eq!(one.replace(&texts("3")).await.unwrap(), texts("3"));
        assert_eq!(stores[0].deployment("test").read().await.unwrap(), []);
    });
}

#[test]
fn deployment_is_claimed_once_on_one_server() {
    let redis = Redis::start();
    is_claimed_once(&[(); 2].map(|()| connect(common::options(&redis))));
}

#[test]
fn deployment_is_claimed_once_on_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let options = common::cluster_options(&cluster);
    is_claimed_once(&[connect(options.clone()), connect(options)]);
}
