//! Bugs that the fault runs have found, each with a test of its own.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tollgate::{Attributes, Decision, Remembered, Span, SystemClock};
use tollgate_redis::{Address, BreakerOptions, BreakerState, Options, RedisStore, Servers};
use tollgate_rig::{Cluster, Fault, Proxy, Redis, Stopwatch};

type Limiter = tollgate::Limiter<Remembered<RedisStore>>;

async fn limiter(rules: &str, options: Options) -> Arc<Limiter> {
    let shared = "version: 1\nstore: { redis: { url: \"redis://127.0.0.1\" } }\n\
                  subjects: { hash_secret: 0123456789abcdef0123456789abcdef }\nrules:\n";
    let text = [shared, rules].concat();
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    let store = RedisStore::connect(options).await.unwrap();
    let store = Remembered::new(store, Span::SECOND, Arc::new(SystemClock::new()));
    Arc::new(Limiter::builder(&config, store).build())
}

fn address(redis: &Redis) -> Address {
    Address {
        host: "127.0.0.1".to_owned(),
        port: redis.port(),
    }
}

fn of_cluster(cluster: &Cluster) -> Options {
    let nodes = cluster.nodes().iter().map(address);
    Options::new(Servers::Cluster(nodes.collect()))
}

async fn check(limiter: &Limiter, user: &str) -> Decision {
    let attributes = Attributes::from([("tenant", "acme"), ("user", user)]);
    limiter.check(&attributes).await
}

/// The breaker's first probes reconnect, no matter how many connections were lost with the server.
#[tokio::test]
async fn lost_connections_do_not_fail_a_probe() {
    const CONNECTIONS: usize = 16;
    let redis = Redis::start();
    let mut options = Options::new(Servers::Standalone(address(&redis)));
    options.max_connections = CONNECTIONS;
    options.timeout = Duration::from_secs(5);
    options.breaker = BreakerOptions {
        timeout_duration: Duration::from_millis(200),
        ..BreakerOptions::default()
    };
    let rule = "  - { id: r, per: [user], algorithm: gcra, rate: 1000/s, burst: 1000, \
                on_store_failure: fail-closed }\n";
    let limiter = limiter(rule, options).await;
    let state = || limiter.store().store().breakers()[0].1;
    // The store uses its connections in turn.
    for _ in 0..CONNECTIONS {
        assert!(check(&limiter, "ann").await.is_allowed());
    }
    redis.kill();
    while state() == BreakerState::Closed {
        assert!(!check(&limiter, "ann").await.is_allowed());
        sleep(Duration::from_millis(6)).await;
    }
    redis.restart();
    while state() == BreakerState::Open {
        sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..CONNECTIONS {
        assert!(check(&limiter, "ann").await.is_allowed());
    }
    assert_eq!(state(), BreakerState::Closed);
}

/// A connection that takes longer than the timeout of a request is still completed and used.
#[tokio::test]
async fn slow_connection_is_completed_and_used() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis.address());
    let mut options = Options::new(Servers::Standalone(Address {
        host: "127.0.0.1".to_owned(),
        port: proxy.address().rsplit_once(':').unwrap().1.parse().unwrap(),
    }));
    // Every command takes 200 ms, also the first command of a connection.
    let slow = Fault::Latency(Duration::from_millis(100));
    options.timeout = Duration::from_millis(300);
    options.connect_timeout = Duration::from_secs(5);
    const OPEN: Duration = Duration::from_secs(4);
    options.breaker.timeout_duration = OPEN;
    let rule = "  - { id: r, per: [user], algorithm: gcra, rate: 1000/s, burst: 1000, \
                on_store_failure: fail-closed }\n";
    let limiter = limiter(rule, options).await;
    let state = || limiter.store().store().breakers()[0].1;
    assert!(check(&limiter, "ann").await.is_allowed());
    proxy.set(Fault::Reset);
    while state() == BreakerState::Closed {
        check(&limiter, "ann").await;
        sleep(Duration::from_millis(6)).await;
    }
    proxy.set(slow);
    let clock = Stopwatch::start();
    while state() != BreakerState::Closed {
        check(&limiter, "ann").await;
        sleep(Duration::from_millis(6)).await;
    }
    // Recovery must not take one open period of the breaker for each connection.
    let took = clock.elapsed();
    assert!(took < OPEN * 3, "{took:?}");
}

/// A denied request is answered within the timeout, even if its charge cannot be undone in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_a_charge_does_not_exceed_the_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let cluster = spawn_blocking(|| Cluster::start(3, 0)).await.unwrap();
    let mut options = of_cluster(&cluster);
    options.timeout = TIMEOUT;
    options.max_connections = 1;
    // The store calls the rule with the smaller limit first.
    let rules = "  - { id: first, per: [tenant], algorithm: fixed-window, limit: 50, window: 1h }\n  \
                 - { id: second, per: [user], algorithm: fixed-window, limit: 90, window: 1h }\n";
    let limiter = limiter(rules, options).await;
    let holders = |rule: &str| -> Vec<usize> {
        let of_rule = format!(":{rule}:");
        let holds = |node: &Redis| {
            let keys = node.connect().keys();
            let mut names = keys.iter().map(|key| String::from_utf8_lossy(key));
            names.any(|name| name.contains(&of_rule))
        };
        (0..3)
            .filter(|node| holds(&cluster.nodes()[*node]))
            .collect()
    };
    // Find a user whose keys are on two servers.
    let mut users = (0..).map(|number| format!("user-{number}"));
    let (user, first, second) = loop {
        let user = users.next().unwrap();
        assert!(check(&limiter, &user).await.is_allowed());
        let first = holders("first")[0];
        if let Some(second) = holders("second").into_iter().find(|it| *it != first) {
            break (user, first, second);
        }
    };
    cluster.nodes()[second].pause();
    let clock = Stopwatch::start();
    let asked = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { check(&limiter, &user).await }
    });
    // The first server has answered by now. From here on its charge cannot be undone.
    sleep(TIMEOUT / 2).await;
    cluster.nodes()[first].pause();
    assert!(!asked.await.unwrap().is_allowed());
    let took = clock.elapsed();
    assert!(took < TIMEOUT + TIMEOUT / 2, "{took:?}");
    cluster.nodes()[first].resume();
    cluster.nodes()[second].resume();
}

/// Returns the cluster slot of all keys of the tenant, and its master.
fn slot(cluster: &Cluster) -> (u16, usize) {
    let masters = cluster.masters().into_iter();
    let mut keys = masters.flat_map(|master| cluster.nodes()[master].connect().keys());
    let key = keys.next().unwrap();
    let slot = cluster.slot_of(&String::from_utf8_lossy(&key));
    (slot, cluster.master_of_slot(slot))
}

/// While a cluster slot moves, the requests of one batch may need different servers. Each request is decided
/// on the server that has its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slot_splits_a_batch_without_failures() {
    let cluster = spawn_blocking(|| Cluster::start(3, 0)).await.unwrap();
    let mut options = of_cluster(&cluster);
    options.timeout = Duration::from_secs(5);
    options.max_connections = 1;
    let rule =
        "  - { id: r, per: [tenant, user], algorithm: fixed-window, limit: 100, window: 1h }\n";
    let limiter = limiter(rule, options).await;
    let users: Vec<String> = (0..8).map(|number| format!("user-{number}")).collect();
    let ask_all = async || {
        let asking = users.iter().map(|user| {
            let (limiter, user) = (Arc::clone(&limiter), user.clone());
            tokio::spawn(async move { check(&limiter, &user).await })
        });
        for asked in asking.collect::<Vec<_>>() {
            let decision = asked.await.unwrap();
            assert!(decision.is_allowed(), "{decision:?}");
        }
    };
    ask_all().await;
    let (slot, from) = slot(&cluster);
    let migration = cluster.begin_migration(slot, from, (from + 1) % 3);
    while migration.move_keys(1) > 0 {
        ask_all().await;
    }
    migration.finish();
    ask_all().await;
    // Each request was charged exactly once.
    let rounds = 2 + users.len() as u64;
    for user in &users {
        let decision = check(&limiter, user).await;
        assert_eq!(decision.rule().unwrap().remaining(), Some(100 - rounds - 1));
    }
}

/// A request whose keys are on two servers waits until they are on one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_with_separated_keys_waits_for_them() {
    let cluster = spawn_blocking(|| Cluster::start(3, 0)).await.unwrap();
    let mut options = of_cluster(&cluster);
    options.timeout = Duration::from_secs(5);
    let rules = "  - { id: a, per: [tenant], algorithm: fixed-window, limit: 9, window: 1h }\n  \
                 - { id: b, per: [tenant, user], algorithm: fixed-window, limit: 9, window: 1h }\n";
    let limiter = limiter(rules, options).await;
    assert!(check(&limiter, "ann").await.is_allowed());
    let (slot, from) = slot(&cluster);
    let migration = cluster.begin_migration(slot, from, (from + 1) % 3);
    assert_eq!(migration.move_keys(1), 1);
    let asked = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { check(&limiter, "ann").await }
    });
    sleep(Duration::from_millis(50)).await;
    assert!(!asked.is_finished());
    assert_eq!(migration.move_keys(1), 1);
    let decision = asked.await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(decision.rule().unwrap().remaining(), Some(7));
    migration.finish();
}
