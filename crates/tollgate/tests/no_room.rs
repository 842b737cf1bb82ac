//! A Redis without room for new subjects: a limit that is used up denies them, also if the usage of another rule cannot
//! be restored from the ledger.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/with_ledger.rs"]
mod with_ledger;

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Ask, Attributes, FailurePolicy, Reserve, ReserveOutcome, SystemClock};
use tollgate_ledger::{Database, Ledger, Options};
use tollgate_redis::{Address, RedisStore, Servers};
use tollgate_rig::{Redis, wait};
use with_ledger::WithLedger;

const RULES: &str = "
version: 1
ledger: { sqlite: ./not-this-one.db }
subjects: { hash_secret: a secret of sixteen bytes }
rules:
  - { id: all, algorithm: fixed-window, limit: 2, window: 30d, on_store_failure: fail-open }
  - id: monthly
    match: { action: chat }
    per: [tenant]
    algorithm: quota
    limit: 1000
    period: month
    on_store_failure: fail-open
";

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_limit_denies_tenants_whose_usage_cannot_be_restored() {
    let (redis, directory) = (Redis::start(), tempfile::tempdir().unwrap());
    let config = tollgate_config::parse("rules.yaml", RULES, &|_| None).unwrap();
    let address = Address {
        host: "127.0.0.1".to_owned(),
        port: redis.port(),
    };
    let mut options = tollgate_redis::Options::new(Servers::Standalone(address));
    (options.timeout, options.max_keys) = (Duration::from_secs(10), 1);
    let store = RedisStore::connect(options).await.unwrap();
    let database = Database::Sqlite(directory.path().join("ledger.db"));
    let ledger = Ledger::open(Options::new(database)).await.unwrap();
    let limiter = WithLedger::new(&config, store, ledger, Arc::new(SystemClock::new()));
    wait::until("a count of the keys", Duration::from_secs(20), || {
        !limiter.inner().census().servers.is_empty()
    });
    let chat = |tenant| Attributes::from([("tenant", tenant), ("action", "chat")]);
    let ping = Attributes::from([("action", "ping")]);
    let (one, reserve) = (Ask::Exactly(1), Reserve::default());

    // The state of `all` takes the only key.
    assert!(limiter.ask(&ping, one).await.is_allowed());
    let answer = limiter.ask(&chat("a"), one).await;
    assert!(answer.is_allowed(), "{answer:?}");
    assert_eq!(answer.fallback(), Some(FailurePolicy::FailOpen));

    assert!(limiter.ask(&ping, one).await.is_allowed());
    for tenant in ["a", "b"] {
        for answer in [
            limiter.ask(&chat(tenant), one).await,
            limiter.peek(&chat(tenant), one).await,
        ] {
            assert!(!answer.is_allowed(), "{answer:?}");
            assert_eq!(answer.rule().unwrap().rule().id(), "all");
        }
        let answer = limiter.reserve(&chat(tenant), &reserve).await.unwrap();
        let ReserveOutcome::Denied(answer) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(answer.rule().unwrap().rule().id(), "all");
    }
    assert_eq!(redis.connect().keys().len(), 1);
}
