//! The fields of `store`. Doc comments here are also the descriptions in the JSON schema.

use crate::store::ClockSource;
use tollgate_rules::document::{
    Duration, DurationOrOff, Factor, Field, Flag, List, Node, Place, Problems, Read, Text, Value,
    Whole, schema, section, suggestion, wanted, words,
};

/// The store: a word, or a map that names it.
#[derive(Debug)]
pub(crate) enum RawStore {
    Memory,
    Redis {
        /// The position of the field's name.
        key: Place,
        redis: Box<RawRedis>,
    },
}

impl Read for RawStore {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<RawStore> {
        let help = "write `store: memory` or `store: { redis: { url: redis://localhost:6379 } }`";
        match &node.value {
            Value::Scalar { text, .. } => match &**text {
                "memory" => return Some(RawStore::Memory),
                "redis" => problems.report(node.place, "`redis` needs an address", help),
                url if url.contains("://") => {
                    problems.report(node.place, "a URL alone is not a store", help);
                }
                word => {
                    let help = suggestion(word, ["memory", "redis"], help);
                    wanted("a store", &help, node, problems);
                }
            },
            Value::Map(entries) if !entries.is_empty() => {
                // A map without `redis` has an unknown field, which was reported already.
                if let Field::Given { key, at } = RawSharedStore::read(node, problems)?.redis {
                    let redis = Box::new(at.value);
                    return Some(RawStore::Redis { key, redis });
                }
            }
            Value::Map(_) => problems.report(node.place, "`store` is empty", help),
            Value::List(_) | Value::Broken => wanted("a store", help, node, problems),
        }
        None
    }
}

schema!(RawStore, "Store", generator => { "anyOf": [{ "enum": ["memory"] }, generator.subschema_for::<RawSharedStore>()] });

section! {
    /// A store that several instances share.
    pub(crate) struct RawSharedStore is "`store`" {
        /// In a Redis.
        redis (required): RawRedis = "redis",
    }
}

section! {
    /// A Redis that keeps state. `${VAR}` in its texts reads the environment.
    pub(crate) struct RawRedis is "`redis`" {
        /// What the URLs lead to (default standalone).
        mode: RawRedisMode = "mode",
        /// The only address: redis://user:password@host:6379/0, or rediss:// for TLS. Special characters of the user and the password are percent-encoded.
        url: Text = "url",
        /// The addresses, 1 to 32: of some nodes of a cluster, or of Sentinels.
        urls: List<Text> = "urls",
        /// The name of the Redis at the Sentinels; only with mode sentinel.
        sentinel_master: Text = "sentinel_master",
        /// The user; takes precedence over the URL.
        username: Text = "username",
        /// The password; takes precedence over the URL.
        password: Text = "password",
        /// A file that holds the password, read at the start; takes precedence over the URL.
        password_file: Text = "password_file",
        /// The user for the Sentinels; only with mode sentinel.
        sentinel_username: Text = "sentinel_username",
        /// The password for the Sentinels; only with mode sentinel.
        sentinel_password: Text = "sentinel_password",
        /// A file that holds the password for the Sentinels; only with mode sentinel.
        sentinel_password_file: Text = "sentinel_password_file",
        /// A file of certificate authorities (PEM) to trust; only with rediss:// URLs.
        tls_ca: Text = "tls_ca",
        /// How long a decision waits for the store in total, 1ms to 10s (default 50ms).
        timeout: Duration = "timeout",
        /// How long a connection may take to open, 1ms to 30s (default 200ms).
        connect_timeout: Duration = "connect_timeout",
        /// How long a server that starts tries to reach the store, 1ms to 10m (default 10s).
        connect_patience: Duration = "connect_patience",
        /// How long a connection may be idle before it is closed, 1s to 1h (default 30s).
        idle_timeout: Duration = "idle_timeout",
        /// The most connections to a server, 1 to 1024 (default 4).
        max_connections: Whole = "max_connections",
        /// The most requests that wait for the store, 1 to 1000000 (default 10000).
        max_in_flight: Whole = "max_in_flight",
        /// The most requests that one call of a script decides, 1 to 256 (default 64).
        batch: Whole = "batch",
        /// The clock that decides (default store).
        clock: ClockSource = "clock",
        /// The prefix of every key (default tg).
        key_prefix: Text = "key_prefix",
        /// When to stop calling a failing store for a while.
        circuit_breaker: RawCircuitBreaker = "circuit_breaker",
        /// How many instances of Tollgate share the store, 1 to 10000 (default 1). Under local-fallback each instance allows its share of a limit.
        replicas: Whole = "replicas",
        /// How much of its share of a limit an instance allows under local-fallback, up to 1000% (default 100%).
        fallback_factor: Factor = "fallback_factor",
        /// How long a denial is remembered in this process at most, up to 1m, or off (default 1s).
        denial_cache: DurationOrOff = "denial_cache",
        /// Whether a request is denied locally if one of its rules is known to have nothing left. The answer then leaves out its other rules (default false: only if all of its rules deny).
        prefilter: Flag = "prefilter",
    }
}

words! {
    /// What the URLs of a Redis lead to.
    pub(crate) enum RawRedisMode is "a mode of Redis" {
        /// The Redis itself.
        Standalone = "standalone",
        /// Sentinels, which know where the Redis is.
        Sentinel = "sentinel",
        /// Some nodes of a cluster.
        Cluster = "cluster",
    }
}

section! {
    /// When to stop calling a failing store for a while.
    pub(crate) struct RawCircuitBreaker is "`circuit_breaker`" {
        /// How many failures in a row stop all calls to the store, 1 to 1000 (default 5).
        consecutive_failures: Whole = "consecutive_failures",
        /// How long the calls to a failing store stop, 1ms to 1h (default 30s).
        timeout_duration: Duration = "timeout_duration",
        /// How many requests may try the store at the same time after the pause, 1 to 100 (default 3).
        half_open_max_requests: Whole = "half_open_max_requests",
    }
}
