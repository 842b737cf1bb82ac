//! Stores that are accepted, and their values.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use tollgate_config::{ClockSource, Config, Login, Mode, Password, Placement, Redis, Store, parse};
use tollgate_core::Span;

/// Every field, and a value that is not its default.
const FULL: &str = r#"
mode: sentinel
urls: ["redis${S}://a", "rediss://[::1]:7"]
sentinel_master: ${MASTER}
username: app
password: "${REDIS_PASSWORD}"
sentinel_username: watcher
sentinel_password_file: /run/secrets/${MASTER}
tls_ca: /etc/ssl/redis-ca.pem
timeout: 10s
connect_timeout: 1ms
connect_patience: 1m
idle_timeout: 1h
max_connections: 64
max_in_flight: 1_000_000
batch: 256
clock: caller
key_prefix: Prod_1.eu-west
circuit_breaker: { consecutive_failures: 1000, timeout_duration: 1ms, half_open_max_requests: 100 }
replicas: 10_000
fallback_factor: 1000%
denial_cache: 1m
"#;

fn config(redis: &str) -> Config {
    let redis: String = redis.lines().map(|line| format!("    {line}\n")).collect();
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\nstore:\n  redis:\n{redis}rules: []\n"
    );
    let env = |name: &str| match name {
        "S" => Some("s".to_owned()),
        "MASTER" => Some("mymaster".to_owned()),
        "REDIS_PASSWORD" => Some("hunter2".to_owned()),
        _ => None,
    };
    parse("redis.yaml", &text, &env).unwrap_or_else(|error| panic!("{error}"))
}

fn redis_of(store: Store) -> Redis {
    match store {
        Store::Redis(redis) => *redis,
        other => panic!("{other:?}"),
    }
}

fn redis(text: &str) -> Redis {
    redis_of(config(text).store)
}

fn secret(password: Option<&Password>) -> Option<Vec<u8>> {
    password.map(|it| it.read().unwrap().expose().to_vec())
}

#[test]
fn every_field_is_read() {
    let redis = redis(FULL);
    let master = "mymaster".to_owned();
    assert_eq!(redis.mode, Mode::Sentinel { master });
    let urls: Vec<String> = redis.urls.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["rediss://a:26379/0", "rediss://[::1]:7/0"]);
    assert!(redis.tls());
    assert_eq!(redis.login.username.as_deref(), Some("app"));
    let password = secret(redis.login.password.as_ref());
    assert_eq!(password.as_deref(), Some(&b"hunter2"[..]));
    let sentinel = &redis.sentinel_login;
    assert_eq!(sentinel.username.as_deref(), Some("watcher"));
    let file = PathBuf::from("/run/secrets/mymaster");
    assert_eq!(sentinel.password, Some(Password::File(file)));
    let authority = PathBuf::from("/etc/ssl/redis-ca.pem");
    assert_eq!(redis.tls_ca, Some(authority));
    assert_eq!(redis.timeout, Span::from_secs(10));
    assert_eq!(redis.connect_timeout, Span::from_millis(1));
    assert_eq!(redis.connect_patience, Span::MINUTE);
    assert_eq!(redis.idle_timeout, Span::HOUR);
    assert_eq!(redis.max_connections, 64);
    assert_eq!(redis.max_in_flight, 1_000_000);
    assert_eq!(redis.batch, 256);
    assert_eq!(redis.clock, ClockSource::Caller);
    assert_eq!(redis.key_prefix, "Prod_1.eu-west");
    let breaker = redis.circuit_breaker;
    assert_eq!(breaker.consecutive_failures, 1000);
    assert_eq!(breaker.timeout_duration, Span::from_millis(1));
    assert_eq!(breaker.half_open_max_requests, 100);
    assert_eq!(redis.replicas, 10_000);
    assert_eq!(redis.fallback_factor, 100_000);
    assert_eq!(redis.denial_cache, Some(Span::MINUTE));
}

#[test]
fn the_smallest_redis_has_defaults() {
    let redis = redis("url: redis://localhost");
    assert_eq!(redis.mode, Mode::Standalone);
    assert_eq!(redis.urls[0].to_string(), "redis://localhost:6379/0");
    assert!(!redis.tls());
    let nobody = Login::default();
    assert_eq!((&redis.login, &redis.sentinel_login), (&nobody, &nobody));
    assert_eq!(redis.tls_ca, None);
    assert_eq!(redis.timeout, Span::from_millis(50));
    assert_eq!(redis.connect_timeout, Span::from_millis(200));
    assert_eq!(redis.connect_patience, Span::from_secs(10));
    assert_eq!(redis.idle_timeout, Span::from_secs(30));
    assert_eq!(redis.max_connections, 4);
    assert_eq!(redis.max_in_flight, 10_000);
    assert_eq!(redis.batch, 64);
    assert_eq!(redis.clock, ClockSource::Store);
    assert_eq!(redis.key_prefix, "tg");
    let breaker = redis.circuit_breaker;
    assert_eq!(breaker.consecutive_failures, 5);
    assert_eq!(breaker.timeout_duration, Span::from_secs(30));
    assert_eq!(breaker.half_open_max_requests, 3);
    assert_eq!(redis.replicas, 1);
    assert_eq!(redis.fallback_factor, 10_000);
    assert_eq!(redis.denial_cache, Some(Span::SECOND));
}

#[test]
fn the_flag_and_the_file_have_the_same_defaults() {
    let flag = redis_of(Store::from_flag("redis://localhost").unwrap());
    assert_eq!(flag, redis("urls: [redis://localhost]"));
}

#[test]
fn a_cluster_has_several_addresses() {
    let redis = redis("mode: cluster\nurls: [redis://a, redis://b/0, redis://a:7000]");
    assert_eq!(redis.mode, Mode::Cluster);
    assert_eq!(redis.urls.len(), 3);
}

#[test]
fn denials_need_not_be_remembered() {
    for off in ["off", "0s", "0ms"] {
        let redis = redis(&format!("url: redis://h\ndenial_cache: {off}"));
        assert_eq!(redis.denial_cache, None, "{off}");
    }
}

#[test]
fn fields_take_precedence_over_the_url() {
    let table = [
        ("", "urls", "in-url"),
        ("username: field", "field", "in-url"),
        ("password: in-field", "urls", "in-field"),
        ("username: field\npassword: in-field", "field", "in-field"),
    ];
    for (fields, username, password) in table {
        let redis = redis(&format!("url: redis://urls:in-url@h\n{fields}"));
        let login = redis.login_at(&redis.urls[0]);
        assert_eq!(login.username.as_deref(), Some(username), "{fields}");
        let found = secret(login.password.as_ref());
        assert_eq!(found.as_deref(), Some(password.as_bytes()), "{fields}");
    }
}

#[test]
fn a_password_is_not_printed() {
    let config = config("url: redis://app:hunter2@h\npassword: hunter2");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn a_password_file_is_read_when_it_is_asked_for() {
    let folder = std::env::temp_dir().join(format!("tollgate-password-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("password");
    let redis = redis(&format!(
        "url: redis://h\npassword_file: {}",
        path.display()
    ));
    let password = redis.login_at(&redis.urls[0]).password.unwrap();
    assert!(password.read().is_err(), "there is no file yet");
    for (content, expected) in [
        ("hunter2", Some("hunter2")),
        ("hunter2\n", Some("hunter2")),
        ("hunter2\r\n", Some("hunter2")),
        (" a b \n", Some(" a b ")),
        ("", None),
        ("\n", None),
    ] {
        std::fs::write(&path, content).unwrap();
        let found = password.read().ok().map(|secret| secret.expose().to_vec());
        assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{content:?}");
    }
    std::fs::write(&path, vec![b'x'; 100_000]).unwrap();
    assert!(password.read().is_err(), "too long for a password");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_flag_replaces_where_the_store_is_and_nothing_else() {
    let mut store = Store::Redis(Box::new(redis(FULL)));
    store.override_by(Store::from_flag("rediss-cluster://x,y").unwrap());
    let moved = redis_of(store);
    let file = redis(FULL);
    assert_eq!(moved.mode, Mode::Cluster);
    let urls: Vec<String> = moved.urls.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["rediss://x:6379/0", "rediss://y:6379/0"]);
    let mut expected = file.clone();
    expected.mode = moved.mode.clone();
    expected.urls = moved.urls.clone();
    expected.sentinel_login = Login::default();
    assert_eq!(moved, expected);

    let mut store = Store::Redis(Box::new(file));
    store.override_by(Store::from_flag("redis-sentinel://x/other").unwrap());
    let moved = redis_of(store);
    let master = "other".to_owned();
    assert_eq!(moved.mode, Mode::Sentinel { master });
    assert!(moved.sentinel_login.password.is_some());
    assert_eq!(moved.tls_ca, None, "there is no TLS any more");
}

#[test]
fn a_login_of_the_flag_replaces_that_of_the_file() {
    let table = [
        ("redis://h", "app", "old"),
        ("redis://me@h", "me", "old"),
        ("redis://:new@h", "app", "new"),
        ("redis://me:new@h", "me", "new"),
    ];
    for (flag, username, password) in table {
        let mut config = config("url: redis://h\nusername: app\npassword: old");
        config.store.override_by(Store::from_flag(flag).unwrap());
        assert_eq!(config.check_store(), Ok(()), "{flag}");
        let redis = redis_of(config.store);
        let login = redis.login_at(&redis.urls[0]);
        assert_eq!(login.username.as_deref(), Some(username), "{flag}");
        let found = secret(login.password.as_ref());
        assert_eq!(found.as_deref(), Some(password.as_bytes()), "{flag}");
    }
}

#[test]
fn a_flag_may_change_the_kind_of_store() {
    let mut config = config(FULL);
    config.store.override_by(Store::Memory);
    assert_eq!(config.store, Store::Memory);
    config
        .store
        .override_by(Store::from_flag("redis://h").unwrap());
    assert_eq!(redis_of(config.store), redis("url: redis://h"));
}

#[test]
fn a_store_is_checked_after_a_flag() {
    let mut config = parse("x", "version: 1\nrules: []\n", &|_| None).unwrap();
    assert_eq!(config.check_store(), Ok(()));
    config
        .store
        .override_by(Store::from_flag("redis://h").unwrap());
    let error = config.check_store().unwrap_err();
    assert!(error.contains("hash_secret"), "{error}");

    let mut config = self::config("url: redis://h");
    config
        .store
        .override_by(Store::from_flag("redis://app@h").unwrap());
    let error = config.check_store().unwrap_err();
    assert!(error.contains("a user without a password"), "{error}");
}

#[test]
fn keys_are_placed_by_tenant_by_default() {
    let placement = |line: &str| {
        let text = format!("version: 1\nrules: [{{ id: r, algorithm: gcra, rate: 1/s{line} }}]\n");
        parse("x", &text, &|_| None).unwrap().policy.rules[0].placement()
    };
    let sharded = |shards: u16| Placement::Sharded(shards.try_into().unwrap());
    assert_eq!(placement(""), Placement::Tenant);
    assert_eq!(placement(", placement: tenant"), Placement::Tenant);
    assert_eq!(placement(", placement: subject"), Placement::Subject);
    assert_eq!(placement(", placement: rule"), Placement::Rule);
    assert_eq!(placement(", placement: sharded(1)"), sharded(1));
    assert_eq!(placement(", placement: sharded(1024)"), sharded(1024));
}

#[test]
#[cfg(feature = "schema")]
fn the_schema_knows_every_field() {
    let schema = tollgate_config::json_schema();
    let store = schema["properties"]["store"]["anyOf"].as_array().unwrap();
    assert_eq!(store[0]["enum"], serde_json::json!(["memory"]));
    let redis = &schema["$defs"]["Redis"];
    assert_eq!(redis["additionalProperties"], false);
    for line in FULL.lines().filter(|line| !line.is_empty()) {
        let field = line.split(':').next().unwrap();
        let property = &redis["properties"][field];
        assert!(property["description"].is_string(), "{field}");
    }
    for field in ["url", "password_file", "sentinel_password"] {
        assert!(redis["properties"][field].is_object(), "{field}");
    }
}
