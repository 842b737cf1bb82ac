//! Overrides: kept, shared, put in force and ended.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail as tests do.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tollgate::{Ask, Attributes, Engine, ManualClock, Time};
use tollgate_rig::Redis;
use tollgate_server::audit::{self, Audit, Query};
use tollgate_server::overrides::{self, OverrideError, Overrides};

const RULES: &str = "
plans: { pro: { api: { limit: 20 } } }
tenants: { acme: { plan: pro } }
rules:
  - { id: api, per: [tenant], algorithm: fixed-window, limit: 5, window: 30d }
";

/// A day of 2026, in milliseconds.
const START: u64 = 1_790_000_000_000;

struct Instance {
    engine: Arc<Engine>,
    overrides: Overrides,
}

impl Instance {
    async fn start(store: &str, data: &Path, clock: &ManualClock) -> Instance {
        let yaml = format!("version: 1\n{store}\n{RULES}");
        let config = tollgate_rules::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        let audit = Audit::start(data).unwrap();
        let overrides = Overrides::new(Arc::clone(&engine), data, audit);
        let overrides = overrides.by(Arc::new(clock.clone()));
        overrides.tend().await;
        Instance { engine, overrides }
    }

    async fn limit(&self, tenant: &str) -> Option<u64> {
        let request = Attributes::from([("tenant", tenant)]);
        let decision = self.engine.peek(&request, Ask::Exactly(0)).await;
        decision.rule().unwrap().limit()
    }

    fn names(&self) -> Vec<String> {
        let live = self.engine.live();
        live.overrides().iter().map(|it| it.name()).collect()
    }
}

fn on(redis: &Redis) -> String {
    let address = redis.address();
    format!(
        "subjects: {{ hash_secret: a secret of 16 bytes }}\n\
         store: {{ redis: {{ url: \"redis://{address}\", timeout: 10s, connect_timeout: 10s }} }}"
    )
}

/// What the trail of `data` has, the oldest first: who did what.
fn trail(data: &Path) -> Vec<(String, String)> {
    let read = audit::read(&data.join(audit::FILE), &Query::default(), u64::MAX).unwrap();
    let entries = read.entries.into_iter().rev();
    entries.map(|it| (it.who, it.what)).collect()
}

const MORE: &str =
    r#"{"tenant":"acme","rule":"api","numbers":{"limit":50},"for":"1h","reason":"launch"}"#;
const LESS: &str = r#"{"scale":"50%","for":"10m","reason":"the database is slow"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn one_instance_sets_and_the_other_acts() {
    let redis = Redis::start();
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let one = Instance::start(&on(&redis), &data.path().join("one"), &clock).await;
    let other = Instance::start(&on(&redis), &data.path().join("other"), &clock).await;
    assert_eq!(other.limit("acme").await, Some(20));

    one.overrides.set(MORE, "ann").await.unwrap();
    assert_eq!(one.limit("acme").await, Some(50));
    other.overrides.tend().await;
    assert_eq!(other.limit("acme").await, Some(50));
    one.overrides.set(LESS, "ann").await.unwrap();
    other.overrides.tend().await;
    assert_eq!(other.limit("acme").await, Some(25));
    assert_eq!(other.limit("else").await, Some(2));

    other
        .overrides
        .clear("everyone/*", "bob", Some("it is well"))
        .await
        .unwrap();
    one.overrides.tend().await;
    assert_eq!(one.limit("acme").await, Some(50));

    // One that starts later finds them.
    let late = Instance::start(&on(&redis), &data.path().join("late"), &clock).await;
    assert_eq!(late.limit("acme").await, Some(50));

    // What is over is over everywhere, and ended once.
    clock.set(Time::from_micros((START + 3_600_000) * 1000));
    for instance in [&one, &other, &late] {
        instance.overrides.tend().await;
        assert_eq!(instance.limit("acme").await, Some(20));
        assert!(instance.names().is_empty());
    }
    let keys = redis.cli(&["KEYS", "*:overrides:*"]);
    assert_eq!(redis.cli(&["HLEN", keys.trim()]).trim(), "1");
    // The entry of an end is not waited for.
    one.overrides.set(MORE, "ann").await.unwrap();
    let of_one: Vec<String> = trail(&data.path().join("one"))
        .into_iter()
        .map(|it| it.1)
        .collect();
    assert_eq!(
        of_one,
        [
            "override.set",
            "override.set",
            "override.expired",
            "override.set"
        ]
    );
    let of_other = trail(&data.path().join("other"));
    assert_eq!(of_other, [("bob".to_owned(), "override.clear".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_leaves_in_force_what_was() {
    let redis = Redis::start();
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let one = Instance::start(&on(&redis), data.path(), &clock).await;
    one.overrides.set(MORE, "ann").await.unwrap();
    drop(redis);
    one.overrides.tend().await;
    assert_eq!(one.names(), ["tenant:acme/api"]);
    let refused = one.overrides.set(LESS, "ann").await;
    assert!(
        matches!(refused, Err(OverrideError::Store(_))),
        "{refused:?}"
    );
    // Its time is over all the same.
    clock.set(Time::from_micros((START + 3_600_000) * 1000));
    one.overrides.tend().await;
    assert!(one.names().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_keeps_them_for_the_next_start() {
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let first = Instance::start("", data.path(), &clock).await;
    first.overrides.set(MORE, "ann").await.unwrap();
    first.overrides.set(LESS, "ann").await.unwrap();
    let file = std::fs::read_to_string(data.path().join(overrides::FILE)).unwrap();
    let kept: Value = serde_json::from_str(&file).unwrap();
    assert_eq!(kept["everyone/*"]["scale"], "50%");
    assert_eq!(kept["tenant:acme/api"]["author"], "ann");
    drop(first);

    clock.set(Time::from_micros((START + 600_000) * 1000));
    let second = Instance::start("", data.path(), &clock).await;
    assert_eq!(second.names(), ["tenant:acme/api"]);
    assert_eq!(second.limit("acme").await, Some(50));
    second
        .overrides
        .clear("tenant:acme/api", "bob", None)
        .await
        .unwrap();
    assert_eq!(second.limit("acme").await, Some(20));
    let nothing = std::fs::read_to_string(data.path().join(overrides::FILE)).unwrap();
    assert_eq!(nothing.trim(), "{}");
    assert_eq!(
        trail(data.path())
            .into_iter()
            .map(|it| it.1)
            .collect::<Vec<_>>(),
        [
            "override.set",
            "override.set",
            "override.expired",
            "override.clear"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_and_changes_nothing() {
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    let it = Instance::start("", data.path(), &clock).await;
    let wrong = it.overrides.set("{}", "ann").await;
    assert!(matches!(wrong, Err(OverrideError::Wrong(_))), "{wrong:?}");
    let misfit = it.overrides.set(&MORE.replace("api", "gone"), "ann").await;
    assert!(
        matches!(misfit, Err(OverrideError::Misfit(_))),
        "{misfit:?}"
    );
    let unknown = it.overrides.clear("tenant:acme/api", "ann", None).await;
    assert!(
        matches!(unknown, Err(OverrideError::NotFound(_))),
        "{unknown:?}"
    );
    let scale = |number| format!(r#"{{"tenant":"t{number}","scale":"50%","reason":"x"}}"#);
    for number in 0..overrides::MAX_OVERRIDES {
        it.overrides.set(&scale(number), "ann").await.unwrap();
    }
    let one_more = it.overrides.set(MORE, "ann").await;
    assert!(
        matches!(one_more, Err(OverrideError::TooMany)),
        "{one_more:?}"
    );
    it.overrides.set(&scale(0), "ann").await.unwrap();
    it.overrides
        .clear("tenant:t0/*", "ann", None)
        .await
        .unwrap();
    // A file that cannot be written, and one that cannot be read.
    let file = data.path().join(overrides::FILE);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let unwritten = it.overrides.set(MORE, "ann").await;
    assert!(
        matches!(unwritten, Err(OverrideError::File(..))),
        "{unwritten:?}"
    );
    assert_eq!(it.limit("acme").await, Some(20));
    let other = Instance::start("", data.path(), &clock).await;
    assert!(other.names().is_empty());
}
