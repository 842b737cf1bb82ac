//! Faults that need requests in addition to the load: a flood of subjects, and a quota while the
//! clocks differ.
//!
//! These requests come from another instance, which has its own store on the same server. A wrong
//! answer ends the run.

use std::thread::sleep;
use std::time::Duration;

use tokio::runtime::Builder;
use tollgate::{Anchor, Ask, Calendar, Charge, Key, Limit, Span, Store, Unit, Zone};
use tollgate_redis::{BreakerState, Options, RedisStore};
use tollgate_rig::{Redis, Reply, Stopwatch};

use super::Stage;
use super::server::{RECOUNT, standalone};

/// How many addresses send a request.
const ADDRESSES: u64 = 20_000;
/// How many of them send at the same time.
const AT_ONCE: u64 = 200;
const LIMIT: u64 = 5;
const RULE: &str = "by-address";

struct Flooded(Redis);

pub(super) fn flood(_: Duration) -> Box<dyn Stage> {
    let small = ["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"];
    Box::new(Flooded(Redis::with().args(small).start()))
}

impl Stage for Flooded {
    fn options(&self) -> Options {
        standalone(&self.0.address())
    }

    fn strike(&self, length: Duration) -> u64 {
        let clock = Stopwatch::start();
        let limit = hourly();
        on_another_instance(self.options(), async |store| {
            let denied = address(0, &limit);
            for _ in 0..LIMIT {
                assert!(take(&store, denied).await, "an address gets its limit");
            }
            let mut first = 1;
            while first < ADDRESSES {
                let flood = (first..first + AT_ONCE).map(|number| {
                    let (store, limit) = (store.clone(), limit.clone());
                    tokio::spawn(async move { take(&store, address(number, &limit)).await })
                });
                for asked in flood.collect::<Vec<_>>() {
                    asked
                        .await
                        .unwrap_or_else(|error| panic!("a request failed: {error}"));
                }
                assert!(!take(&store, denied).await, "a denied address is forgiven");
                first += AT_ONCE;
            }
            fill(&self.0);
            while clock.elapsed() < length {
                assert!(!take(&store, denied).await, "a denied address is forgiven");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        self.make_room();
        sleep(RECOUNT);
        0
    }
}

impl Flooded {
    /// Deletes the keys of the flood.
    fn make_room(&self) {
        let mut resp = self.0.connect();
        let of_rule = format!(":{RULE}:");
        for key in resp.keys() {
            let name = String::from_utf8_lossy(&key);
            if name.starts_with("filler:") || name.contains(&of_rule) {
                resp.command(&["DEL", &name]);
            }
        }
    }
}

/// Writes keys until the server is out of memory.
fn fill(redis: &Redis) {
    let mut resp = redis.connect();
    for size in [10_000, 100, 1] {
        let text = "x".repeat(size);
        for number in 0.. {
            let key = format!("filler:{size}:{number}");
            if let Reply::Error(_) = resp.command(&["SET", &key, &text]) {
                break;
            }
        }
    }
}

struct Skewed(Redis);

pub(super) fn skewed_clock(_: Duration) -> Box<dyn Stage> {
    let two_days = 2 * 86_400;
    Box::new(Skewed(Redis::with().clock_ahead(two_days).start()))
}

impl Stage for Skewed {
    fn options(&self) -> Options {
        standalone(&self.0.address())
    }

    fn strike(&self, length: Duration) -> u64 {
        let clock = Stopwatch::start();
        let limit = daily();
        on_another_instance(self.options(), async |store| {
            let mut admitted = 0;
            for _ in 0..3 * LIMIT {
                admitted += u64::from(take(&store, address(0, &limit)).await);
            }
            assert_eq!(admitted, LIMIT, "requests admitted by a quota of {LIMIT}");
        });
        sleep(length.saturating_sub(clock.elapsed()));
        0
    }
}

/// Runs `work` with a separate store, and checks that the breaker of this store stays closed.
fn on_another_instance(mut options: Options, work: impl AsyncFnOnce(RedisStore)) {
    // Waits longer than the instance under load, because the machine is busy.
    options.timeout = Duration::from_secs(5);
    options.connect_timeout = Duration::from_secs(5);
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    runtime.block_on(async {
        let store = RedisStore::connect(options).await;
        let store = store.unwrap_or_else(|error| panic!("no store: {error}"));
        work(store.clone()).await;
        for (server, state) in store.breakers() {
            assert_eq!(state, BreakerState::Closed, "the breaker of {server}");
        }
    });
}

async fn take(store: &RedisStore, charge: Charge<'_>) -> bool {
    let applied = store.apply(&[charge], Ask::Exactly(1)).await;
    let applied = applied.unwrap_or_else(|error| panic!("the store failed: {error}"));
    applied.allowed
}

/// Returns a charge of an anonymous subject.
fn address(number: u64, limit: &Limit) -> Charge<'_> {
    // Spread the bits, as hashes do.
    let bits = u128::from(number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    Charge {
        rule: RULE,
        anonymous: true,
        ..Charge::new(Key::from_bits(bits), limit)
    }
}

fn hourly() -> Limit {
    let limit = Limit::fixed_window(LIMIT, Span::HOUR);
    limit.unwrap_or_else(|error| panic!("a limit is invalid: {error}"))
}

fn daily() -> Limit {
    let zone = Zone::named("UTC");
    let calendar = zone.and_then(|zone| Calendar::new(1, Unit::Day, Anchor::First, zone));
    let limit = calendar.and_then(|calendar| Limit::quota(LIMIT, 0, 0, calendar));
    limit.unwrap_or_else(|error| panic!("a limit is invalid: {error}"))
}
