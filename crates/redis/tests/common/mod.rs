//! Stores on servers of their own.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate_core::{Charge, Enforcement, Limit, Span, Tag, Time};
use tollgate_redis::{Address, ClockSource, Options, RedisStore, Servers};
use tollgate_rig::Redis;
use tollgate_store::conformance::{self, Fixture};
use tollgate_store::{Clock, ManualClock};

/// The runtime that the stores' workers run on.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
});

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

pub(crate) fn address(redis: &Redis) -> Address {
    Address {
        host: "127.0.0.1".to_owned(),
        port: redis.port(),
    }
}

/// Options for one server, patient enough for a busy machine.
pub(crate) fn options(redis: &Redis) -> Options {
    patient(Options::new(Servers::Standalone(address(redis))))
}

pub(crate) fn patient(mut options: Options) -> Options {
    options.timeout = Duration::from_secs(10);
    options.connect_timeout = Duration::from_secs(10);
    options
}

pub(crate) fn connect(options: Options) -> RedisStore {
    block_on(RedisStore::connect(options)).unwrap()
}

/// A store whose clock a test sets, on a server of its own.
pub(crate) struct OnRedis {
    pub(crate) redis: Redis,
    store: RedisStore,
    clock: ManualClock,
}

impl OnRedis {
    pub(crate) fn start() -> OnRedis {
        let redis = Redis::start();
        let clock = ManualClock::default();
        let store = connect(by_clock(options(&redis), &clock));
        OnRedis {
            redis,
            store,
            clock,
        }
    }
}

/// The same options, by a clock that a test sets. What has expired by that clock may not have by the
/// server's, so states are kept long: the suite knows that they may be.
pub(crate) fn by_clock(mut options: Options, clock: &ManualClock) -> Options {
    options.clock = ClockSource::Caller(Arc::new(clock.clone()) as Arc<dyn Clock>);
    options.margin = Span::HOUR;
    options
}

impl Fixture for OnRedis {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn set_time(&self, now: Time) {
        self.clock.set(now);
    }
}

impl Drop for OnRedis {
    /// Whatever a test has done, every key expires by itself.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            every_key_expires(&self.redis);
        }
    }
}

/// Fails if a key of the server has no time to live.
pub(crate) fn every_key_expires(redis: &Redis) {
    let mut resp = redis.connect();
    for key in resp.keys() {
        let ttl = resp.pttl(&key);
        assert_ne!(ttl, -1, "{} never expires", String::from_utf8_lossy(&key));
    }
}

/// The length of a random sequence: fifty times as long in the long run.
pub(crate) fn steps() -> usize {
    match std::env::var("TOLLGATE_PROOF_CASES") {
        Ok(_) => conformance::STEPS * 50,
        Err(_) => conformance::STEPS,
    }
}

/// A charge of one unit on subject `number`.
pub(crate) fn charge(number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        key: conformance::key(number),
        overflow: conformance::key(u64::MAX),
        rule: "rule",
        tag: Tag::default(),
        limit,
        cost: 1,
        enforcement: Enforcement::Enforce,
        charge_denied: false,
    }
}
