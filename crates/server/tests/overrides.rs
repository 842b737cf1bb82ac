//! Overrides: stored, shared, put in force and expired.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Test helpers may panic.

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
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        let audit = Audit::start(data).unwrap();
        let overrides = Overrides::new(Arc::clone(&engine), data, audit);
        let overrides = overrides.by(Arc::new(clock.clone()));
        overrides.refresh().await;
        Instance { engine, overrides }
    }

    async fn limit(&self, tenant: &str) -> Option<u64> {
        let request = Attributes::from([("tenant", tenant)]);
        let decision = self.engine.peek(&request, Ask::Exactly(0)).await;
        decision.rule().unwrap().limit()
    }

    fn names(&self) -> Vec<String> {
        let live = self.engine.active();
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

/// Reads the audit trail of `data`, the oldest entry first. Returns who did what.
fn trail(data: &Path) -> Vec<(String, String)> {
    let read = audit::read(&data.join(audit::FILE), &Query::default(), u64::MAX).unwrap();
    let entries = read.entries.into_iter().rev();
    entries.map(|it| (it.who, it.what)).collect()
}

const MORE: &str =
    r#"{"tenant":"acme","rule":"api","numbers":{"limit":50},"for":"1h","reason":"launch"}"#;
const LESS: &str = r#"{"scale":"50%","for":"10m","reason":"the database is slow"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn override_of_one_instance_applies_at_the_other() {
    let redis = Redis::start();
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let one = Instance::start(&on(&redis), &data.path().join("one"), &clock).await;
    let other = Instance::start(&on(&redis), &data.path().join("other"), &clock).await;
    assert_eq!(other.limit("acme").await, Some(20));

    one.overrides.set(MORE, "ann").await.unwrap();
    assert_eq!(one.limit("acme").await, Some(50));
    other.overrides.refresh().await;
    assert_eq!(other.limit("acme").await, Some(50));
    one.overrides.set(LESS, "ann").await.unwrap();
    other.overrides.refresh().await;
    assert_eq!(other.limit("acme").await, Some(25));
    assert_eq!(other.limit("else").await, Some(2));

    other
        .overrides
        .clear("everyone/*", "bob", Some("it is well"))
        .await
        .unwrap();
    one.overrides.refresh().await;
    assert_eq!(one.limit("acme").await, Some(50));

    // An instance that starts later finds the overrides.
    let late = Instance::start(&on(&redis), &data.path().join("late"), &clock).await;
    assert_eq!(late.limit("acme").await, Some(50));

    // An expired override ends everywhere, and is removed once.
    clock.set(Time::from_micros((START + 3_600_000) * 1000));
    for instance in [&one, &other, &late] {
        instance.overrides.refresh().await;
        assert_eq!(instance.limit("acme").await, Some(20));
        assert!(instance.names().is_empty());
    }
    let keys = redis.cli(&["KEYS", "*:overrides:*"]);
    assert_eq!(redis.cli(&["HLEN", keys.trim()]).trim(), "1");
    // The audit entry of an expiry is written without waiting.
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
async fn known_overrides_stay_in_force_without_the_store() {
    let redis = Redis::start();
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let one = Instance::start(&on(&redis), data.path(), &clock).await;
    one.overrides.set(MORE, "ann").await.unwrap();
    drop(redis);
    one.overrides.refresh().await;
    assert_eq!(one.names(), ["tenant:acme/api"]);
    let refused = one.overrides.set(LESS, "ann").await;
    assert!(
        matches!(refused, Err(OverrideError::Store(_))),
        "{refused:?}"
    );
    let refused = one.overrides.clear("tenant:acme/api", "ann", None).await;
    assert!(
        matches!(refused, Err(OverrideError::Store(_))),
        "{refused:?}"
    );
    // The override expires nevertheless.
    clock.set(Time::from_micros((START + 3_600_000) * 1000));
    one.overrides.refresh().await;
    assert!(one.names().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn file_keeps_overrides_for_the_next_start() {
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
async fn bad_overrides_are_rejected_and_change_nothing() {
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
    // A file that cannot be written, and a file that cannot be read.
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

#[tokio::test(flavor = "multi_thread")]
async fn expired_override_is_removed_later_if_the_store_failed() {
    let redis = Redis::start();
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let one = Instance::start(&on(&redis), data.path(), &clock).await;
    one.overrides.set(MORE, "ann").await.unwrap();
    one.overrides.set(LESS, "ann").await.unwrap();
    // The store answers, but cannot remove anything.
    redis.cli(&["ACL", "SETUSER", "default", "-eval"]);
    clock.set(Time::from_micros((START + 3_600_000) * 1000));
    for _ in 0..2 {
        one.overrides.refresh().await;
        assert!(one.names().is_empty());
    }
    let keys = redis.cli(&["KEYS", "*:overrides:*"]);
    assert_eq!(redis.cli(&["HLEN", keys.trim()]).trim(), "3");
    redis.cli(&["ACL", "SETUSER", "default", "+eval"]);
    one.overrides.refresh().await;
    assert!(one.names().is_empty());
    assert_eq!(redis.cli(&["HLEN", keys.trim()]).trim(), "1");
    // The audit entries of expiries are written without waiting.
    one.overrides.set(MORE, "ann").await.unwrap();
    let ends = trail(data.path()).into_iter();
    assert_eq!(ends.filter(|it| it.1 == "override.expired").count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn change_starts_from_what_is_stored() {
    let redis = Redis::start();
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let one = Instance::start(&on(&redis), &data.path().join("one"), &clock).await;
    let other = Instance::start(&on(&redis), &data.path().join("other"), &clock).await;
    one.overrides.set(MORE, "ann").await.unwrap();
    // The instance `other` has not read the new override yet.
    let name = "tenant:acme/api";
    let cleared = other.overrides.clear(name, "bob", None).await.unwrap();
    assert_eq!(cleared.read.as_ref().unwrap().reason(), "launch");
    let gone = one.overrides.clear(name, "ann", None).await;
    assert!(matches!(gone, Err(OverrideError::NotFound(_))), "{gone:?}");
    assert!(one.names().is_empty());
    assert_eq!(trail(&data.path().join("one")).len(), 1);

    // Reading the same overrides again changes nothing.
    one.overrides.set(MORE, "ann").await.unwrap();
    let before = one.engine.active();
    one.overrides.refresh().await;
    assert!(Arc::ptr_eq(&before, &one.engine.active()));
    other.overrides.set(LESS, "bob").await.unwrap();
    one.overrides.refresh().await;
    let (old, new) = (before.overrides(), one.engine.active());
    assert!(Arc::ptr_eq(&old[0], &new.overrides()[1]), "read once");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_file_is_left_alone() {
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let file = data.path().join(overrides::FILE);
    std::fs::write(&file, r#"{"tenant:acme/api":{"ten"#).unwrap();
    let it = Instance::start("", data.path(), &clock).await;
    let name = "tenant:acme/api";
    let set = it.overrides.set(MORE, "ann").await.map(drop);
    let cleared = it.overrides.clear(name, "ann", None).await.map(drop);
    for refused in [set, cleared] {
        let Err(error @ OverrideError::Unreadable(..)) = refused else {
            panic!("{refused:?}");
        };
        assert!(error.to_string().starts_with("cannot read "), "{error}");
    }
    let kept = std::fs::read_to_string(&file).unwrap();
    assert_eq!(kept, r#"{"tenant:acme/api":{"ten"#);
    // A file that is too large is not read.
    let large = std::fs::File::create(&file).unwrap();
    large.set_len(64 * 1024 * 1024 + 1).unwrap();
    let error = it.overrides.set(MORE, "ann").await.unwrap_err();
    assert!(error.to_string().contains("larger than 64 MiB"), "{error}");
    // A repaired file.
    let right = r#"{"everyone/*":{"scale":"50%","reason":"x","setAtEpochMillis":0,"expiresAtEpochMillis":9000000000000}}"#;
    std::fs::write(&file, right).unwrap();
    it.overrides.set(MORE, "ann").await.unwrap();
    assert_eq!(it.names(), ["everyone/*", name]);
}

#[tokio::test(flavor = "multi_thread")]
async fn override_that_does_not_survive_storing_is_rejected_or_can_be_cleared() {
    let redis = Redis::start();
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let it = Instance::start(&on(&redis), data.path(), &clock).await;
    for odd in ["\\u007f", "\\u0085", "\\u2028", "\\ufeff", "\\uffff"] {
        let asked = MORE.replace("launch", &format!("x{odd}y"));
        match it.overrides.set(&asked, "ann").await {
            Ok(set) => assert_eq!(it.names(), [set.name()], "{odd}"),
            Err(OverrideError::Wrong(_)) => assert!(it.names().is_empty(), "{odd}"),
            Err(error) => panic!("{odd}: {error}"),
        }
        let _ = it.overrides.clear("tenant:acme/api", "ann", None).await;
        assert!(it.names().is_empty());
    }
    let refused = it
        .overrides
        .set(&MORE.replace("launch", "x\\u007fy"), "ann")
        .await;
    assert!(
        matches!(refused, Err(OverrideError::Wrong(_))),
        "{refused:?}"
    );

    it.overrides.set(MORE, "ann").await.unwrap();
    let keys = redis.cli(&["KEYS", "*:overrides:*"]);
    for (name, text) in [("a", "neither"), ("b", MORE), ("c", r#"{"reason":"c"}"#)] {
        redis.cli(&["HSET", keys.trim(), name, text]);
    }
    redis.cli(&["HINCRBY", keys.trim(), "#", "1"]);
    it.overrides.refresh().await;
    assert_eq!(it.names(), ["tenant:acme/api"]);
    let unreadable = it.overrides.unreadable();
    let names: Vec<&str> = unreadable.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for name in names {
        let cleared = it.overrides.clear(name, "ann", None).await.unwrap();
        assert!(cleared.read.is_err());
    }
    assert!(it.overrides.unreadable().is_empty());
    assert_eq!(redis.cli(&["HLEN", keys.trim()]).trim(), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_beyond_the_bound_are_not_read() {
    let redis = Redis::start();
    let (data, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    let it = Instance::start(&on(&redis), data.path(), &clock).await;
    it.overrides.set(MORE, "ann").await.unwrap();
    let keys = redis.cli(&["KEYS", "*:overrides:*"]);
    let more = "for i = 1, 11001 do redis.call('HSET', KEYS[1], i, 'x') end \
                redis.call('HINCRBY', KEYS[1], '#', 1)";
    redis.cli(&["EVAL", more, "1", keys.trim()]);
    it.overrides.refresh().await;
    assert_eq!(it.names(), ["tenant:acme/api"], "those known stay");
    let error = it.overrides.set(LESS, "ann").await.unwrap_err();
    assert!(error.to_string().contains("has 11003 fields"), "{error}");
}

#[tokio::test]
async fn file_is_private_and_a_link_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (home, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    clock.set(Time::from_micros(START * 1000));
    let data = home.path().join("data");
    let one = Instance::start("", &data, &clock).await;
    // A crash may have left this file, or another user may have put a link in its place.
    std::fs::create_dir_all(&data).unwrap();
    let victim = home.path().join("victim");
    std::fs::write(&victim, "mine").unwrap();
    symlink(&victim, data.join("overrides.json.new")).unwrap();
    one.overrides.set(MORE, "ops").await.unwrap();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
    let file = data.join("overrides.json");
    let mode = std::fs::symlink_metadata(&file)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    let target = home.path().join("target");
    std::fs::rename(&file, &target).unwrap();
    symlink(&target, &file).unwrap();
    let other = Instance::start("", &data, &clock).await;
    assert_eq!(other.names(), [""; 0]);
}
