//! Sentinels: the store uses the server that they name as master, and follows a change of the
//! master.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tollgate_conformance::Kind;
use tollgate_core::Limit;
use tollgate_redis::{Address, BreakerState, Login, Options, RedisStore, Servers};
use tollgate_rig::{Redis, Sentinels, Version, versions, wait};
use tollgate_store::StoreError;

use common::{LIMIT, LONG, block_on, left, take};

/// How soon the store recovers after its servers.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_new_master_is_found() {
    let sentinels = Sentinels::start();
    let (first, second) = (sentinels.primary(), sentinels.replica());
    // The default settings: after five failures the breaker is open for 30 seconds.
    let store = common::connect(by_sentinels(common::addresses(sentinels.sentinels())));
    let limit = Kind::Gcra.limit(1_000_000, LONG);
    wait_until_it_decides(&store, &limit);
    assert_eq!(first.connect().keys().len(), 1);

    sentinels.kill_primary();
    wait::until("an open breaker", LIMIT, || {
        block_on(take(&store, 1, &limit)) == Err(StoreError::BreakerOpen)
    });
    sentinels.wait_for_failover();
    wait_until_it_decides(&store, &limit);

    // The old master comes back empty, and becomes a replica.
    first.restart();
    decides_on(second, first, &store, &limit);
    let port = second.port().to_string();
    first.connect().command(&["REPLICAOF", "127.0.0.1", &port]);
    wait::until("a replica", LIMIT, || is_linked(first));
    decides_on(second, first, &store, &limit);
}

#[test]
fn a_demoted_master_is_left_at_once() {
    for version in [Version::Redis6_2, Version::Redis7_0] {
        let start = || Redis::with().binary(versions::fetch(version)).start();
        let (first, second) = (start(), start());
        let master = Arc::new(AtomicU16::new(first.port()));
        let says = Arc::clone(&master);
        let sentinel = common::fake_server(move |command| {
            let port = says.load(Ordering::Relaxed).to_string();
            Some(match command.starts_with("SENTINEL") {
                true => format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()),
                false => "+PONG\r\n".to_owned(),
            })
        });
        let store = common::connect(common::patient(by_sentinels(vec![common::parse(
            &sentinel,
        )])));
        let limit = Kind::Gcra.limit(1_000, LONG);
        for _ in 0..10 {
            block_on(take(&store, 1, &limit)).unwrap();
        }
        master.store(second.port(), Ordering::Relaxed);
        let port = second.port().to_string();
        first.connect().command(&["REPLICAOF", "127.0.0.1", &port]);
        let answers = (0..10).map(|_| block_on(take(&store, 1, &limit)));
        let failed: Vec<_> = answers.filter_map(Result::err).collect();
        assert!(
            matches!(&failed[..], [StoreError::Unavailable(_)]),
            "{version}: {failed:?}"
        );
        assert_eq!(block_on(left(&store, 1, &limit)), 1_000 - 9);
    }
}

fn by_sentinels(sentinels: Vec<Address>) -> Options {
    Options::new(Servers::Sentinel {
        sentinels,
        master: Sentinels::MASTER.to_owned(),
        login: Login::default(),
    })
}

/// Waits until requests are answered and the breaker is closed.
fn wait_until_it_decides(store: &RedisStore, limit: &Limit) {
    wait::until("a store that decides", SOON, || {
        block_on(take(store, 1, limit)).is_ok() && store.breakers()[0].1 == BreakerState::Closed
    });
}

/// Panics unless all requests are decided on `master`, and none on `other`.
fn decides_on(master: &Redis, other: &Redis, store: &RedisStore, limit: &Limit) {
    let writes = |redis: &Redis| common::changes(redis);
    let (here, there) = (writes(master), writes(other));
    let answered = (0..100).filter(|_| block_on(take(store, 1, limit)).is_ok());
    let answered = answered.count() as u64;
    assert!(answered >= 90, "{answered} of 100 were answered");
    assert!(writes(master) >= here + answered);
    if other.info("replication")["role"] == "master" {
        assert_eq!(writes(other), there);
    }
}

fn is_linked(redis: &Redis) -> bool {
    let link = redis.info("replication").remove("master_link_status");
    link.is_some_and(|status| status == "up")
}
