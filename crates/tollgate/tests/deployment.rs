//! Instances with another `hash_secret` are refused, and a new secret keeps all state.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::Path;

use tollgate::{Ask, Attributes, Config, Engine, Reserve, ReserveOutcome};
use tollgate_rig::{Postgres, Redis};

const A: &str = "the first secret";
const B: &str = "the second secret";
const C: &str = "the third secret of all";

fn acme() -> Attributes<'static> {
    Attributes::from([("tenant", "acme"), ("action", "chat")])
}

/// Returns a config with these sections, this secret and these earlier secrets.
fn config(sections: &str, secret: &str, previous: &[&str]) -> Config {
    let text = format!(
        "version: 1\n{sections}\n\
         subjects: {{ hash_secret: {secret}, previous_hash_secrets: {previous:?} }}\n\
         rules:\n  \
         - {{ id: yearly, per: [tenant], algorithm: quota, limit: 5, period: year, on_store_failure: fail-closed }}\n"
    );
    tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap()
}

fn on(redis: &Redis, more: &str) -> String {
    let url = redis.url();
    format!(
        "store: {{ redis: {{ url: \"{url}\", timeout: 5s, connect_timeout: 5s, denial_cache: off{more} }} }}"
    )
}

fn in_sqlite(directory: &Path) -> String {
    let file = directory.join("ledger.db");
    format!("ledger: {{ sqlite: {} }}", file.display())
}

fn in_postgres(postgres: &Postgres, directory: &Path) -> String {
    let (url, spill) = (postgres.url(), directory.join("ledger.spill"));
    format!(
        "ledger: {{ postgres: \"{url}\", spill: {} }}",
        spill.display()
    )
}

async fn start(config: &Config) -> Engine {
    match Engine::start(config).await {
        Ok(engine) => engine,
        Err(error) => panic!("{error}"),
    }
}

async fn is_admitted(engine: &Engine) -> bool {
    engine.ask(&acme(), Ask::Exactly(1)).await.is_allowed()
}

/// Returns how many requests of `engine` are admitted, of up to ten.
async fn admitted(engine: &Engine) -> usize {
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += usize::from(is_admitted(engine).await);
    }
    admitted
}

/// Returns why the engine does not start.
async fn refused(config: &Config) -> String {
    let error = Engine::start(config).await.unwrap_err();
    assert!(!error.is_passing(), "{error}");
    let said = error.to_string();
    for secret in [A, B, C] {
        assert!(!said.contains(secret), "{said}");
    }
    said
}

#[tokio::test]
async fn redis_of_another_secret_is_refused() {
    let redis = Redis::start();
    let store = on(&redis, "");
    let one = start(&config(&store, A, &[])).await;
    assert!(is_admitted(&one).await);
    assert_eq!(
        refused(&config(&store, B, &[])).await,
        "Redis (key tg:{00000000}:deployment:default) belongs to instances with another \
         `subjects.hash_secret`\nhelp: use the same secret as the other instances; or, to keep the counts, add the old secret to \
         `subjects.previous_hash_secrets`; or stop all instances and run `tollgate adopt` with this config; state under \
         secrets that the config does not list is lost"
    );
    // The same secret, and other deployments on the same server.
    let same = start(&config(&store, A, &[])).await;
    assert_eq!(admitted(&same).await, 4);
    start(&config(&format!("namespace: other\n{store}"), B, &[])).await;
    let prefix = on(&redis, ", key_prefix: other");
    start(&config(&prefix, B, &[])).await;
}

#[tokio::test]
async fn redis_of_another_clock_is_refused() {
    let redis = Redis::start();
    start(&config(&on(&redis, ""), A, &[])).await;
    let said = refused(&config(&on(&redis, ", clock: caller"), A, &[])).await;
    let expected = "belongs to instances with another `store.redis.clock` (store there, caller here)\n\
                    help: set `clock: store`; or stop all instances";
    assert!(said.contains(expected), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_of_another_secret_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let postgres = Postgres::start();
    for ledger in [
        in_sqlite(directory.path()),
        in_postgres(&postgres, directory.path()),
    ] {
        let one = start(&config(&ledger, A, &[])).await;
        assert_eq!(admitted(&one).await, 5);
        one.close().await;
        let said = refused(&config(&ledger, B, &[])).await;
        assert!(
            said.starts_with("the ledger ")
                && said.contains("belongs to instances with another `subjects.hash_secret`"),
            "{said}"
        );
        // A refused start leaves no lock behind.
        start(&config(&ledger, A, &[])).await.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_secrets_wins_a_simultaneous_start() {
    for _ in 0..5 {
        let redis = Redis::start();
        let store = on(&redis, "");
        let (a, b) = (config(&store, A, &[]), config(&store, B, &[]));
        let (one, other) = tokio::join!(Engine::start(&a), Engine::start(&b));
        assert!(one.is_ok() ^ other.is_ok(), "{one:?} {other:?}");
    }
}

#[tokio::test]
async fn empty_redis_gets_the_fingerprint_again() {
    let redis = Redis::start();
    let store = on(&redis, "");
    let engine = start(&config(&store, A, &[])).await;
    redis.cli(&["FLUSHALL"]);
    engine.check_fingerprints().await;
    let mismatches: Vec<_> = engine.fingerprint_mismatches().collect();
    assert_eq!(mismatches, [("redis", false)]);
    refused(&config(&store, B, &[])).await;
}

#[tokio::test]
async fn running_instance_notices_another_secret() {
    let redis = Redis::start();
    let store = on(&redis, "");
    let engine = start(&config(&store, A, &[])).await;
    let now = || engine.fingerprint_mismatches().collect::<Vec<_>>();
    let adopted = Engine::adopt(&config(&store, B, &[])).await.unwrap();
    assert_eq!(adopted, ["Redis (key tg:{00000000}:deployment:default)"]);
    engine.check_fingerprints().await;
    assert_eq!(now(), [("redis", true)]);
    // The record matched at the start, so the instance still uses the store.
    assert!(is_admitted(&engine).await);
    // The adopted store starts from zero.
    assert_eq!(admitted(&start(&config(&store, B, &[])).await).await, 5);
    Engine::adopt(&config(&store, A, &[])).await.unwrap();
    engine.check_fingerprints().await;
    assert_eq!(now(), [("redis", false)]);
}

#[tokio::test]
async fn instance_that_started_without_a_check_does_not_use_the_state_of_others() {
    let redis = Redis::start();
    let store = on(&redis, "");
    start(&config(&store, A, &[])).await;
    let other = Engine::start_unchecked(&config(&store, B, &[])).unwrap();
    other.check_fingerprints().await;
    let mismatches: Vec<_> = other.fingerprint_mismatches().collect();
    assert_eq!(mismatches, [("redis", true)]);
    let decision = other.ask(&acme(), Ask::Exactly(1)).await;
    assert!(decision.fallback().is_some());
    // Once the store belongs to the instance's deployment, the instance uses it.
    Engine::adopt(&config(&store, B, &[])).await.unwrap();
    other.check_fingerprints().await;
    assert!(is_admitted(&other).await);
}

#[tokio::test]
async fn instance_that_started_without_a_check_learns_how_to_hash() {
    let redis = Redis::start();
    let store = on(&redis, "");
    let old = start(&config(&store, A, &[])).await;
    start(&config(&store, B, &[A])).await;
    assert!(is_admitted(&old).await);
    // This config does not list the first secret. It finds the keyring only through the record in the store.
    let new = Engine::start_unchecked(&config(&store, B, &[])).unwrap();
    new.check_fingerprints().await;
    let mismatches: Vec<_> = new.fingerprint_mismatches().collect();
    assert_eq!(mismatches, [("redis", false)]);
    assert_eq!(admitted(&new).await, 4);
    let request = Reserve {
        units: 1,
        ..Reserve::default()
    };
    let reserved = old.reserve(&acme(), &request).await.unwrap();
    assert!(matches!(reserved, ReserveOutcome::Denied(_)));
}

#[tokio::test]
async fn new_secret_keeps_the_counts_of_redis_while_old_instances_run() {
    let redis = Redis::start();
    let store = on(&redis, "");
    let old = start(&config(&store, A, &[])).await;
    assert!(is_admitted(&old).await);
    let new = start(&config(&store, B, &[A])).await;
    for engine in [&new, &old, &new, &old] {
        assert!(is_admitted(engine).await);
    }
    assert_eq!((admitted(&old).await, admitted(&new).await), (0, 0));
    for engine in [&old, &new] {
        engine.check_fingerprints().await;
        assert!(
            engine
                .fingerprint_mismatches()
                .all(|(_, is_other)| !is_other)
        );
    }
    // An old instance that crashes may come back. Later the old secret is not needed any more.
    for config in [
        config(&store, A, &[]),
        config(&store, B, &[]),
        config(&store, C, &[B]),
        config(&store, C, &[]),
    ] {
        assert_eq!(admitted(&start(&config).await).await, 0);
    }
    refused(&config(&store, "a secret of somebody else", &[])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_secret_keeps_the_counts_of_a_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let postgres = Postgres::start();
    for ledger in [
        in_sqlite(directory.path()),
        in_postgres(&postgres, directory.path()),
    ] {
        let engine = start(&config(&ledger, A, &[])).await;
        assert!(is_admitted(&engine).await);
        engine.close().await;
        for (config, expected) in [
            (config(&ledger, B, &[A]), true),
            (config(&ledger, B, &[]), true),
            (config(&ledger, C, &[B]), true),
            (config(&ledger, C, &[]), true),
            (config(&ledger, C, &[]), false),
        ] {
            let engine = start(&config).await;
            assert_eq!(is_admitted(&engine).await, expected);
            engine.close().await;
        }
        refused(&config(&ledger, "a secret of somebody else", &[])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_redis_gets_the_keyring_of_the_ledger() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let both = format!("{}\n{}", on(&redis, ""), in_sqlite(directory.path()));
    for (secret, previous) in [(A, &[][..]), (B, &[A])] {
        let engine = start(&config(&both, secret, previous)).await;
        assert!(is_admitted(&engine).await);
        engine.close().await;
    }
    redis.cli(&["FLUSHALL"]);
    let engine = start(&config(&both, B, &[])).await;
    assert_eq!(admitted(&engine).await, 3);
    engine.close().await;
}

#[tokio::test]
async fn reservation_ends_under_the_new_secret() {
    let redis = Redis::start();
    let store = on(&redis, "");
    let old = start(&config(&store, A, &[])).await;
    let request = Reserve {
        units: 4,
        idempotency_key: Some("call-1"),
        ..Reserve::default()
    };
    let reserve = async |engine: &Engine| match engine.reserve(&acme(), &request).await.unwrap() {
        ReserveOutcome::Held { hold, .. } => hold.id,
        ReserveOutcome::Denied(decision) => panic!("{decision:?}"),
    };
    let id = reserve(&old).await;
    let new = start(&config(&store, B, &[A])).await;
    assert_eq!(reserve(&new).await, id, "the key is known");
    new.commit(&id, 1).await.unwrap();
    assert_eq!(admitted(&new).await, 4);
}
