//! Memory, Redis with known denials, and Redis without them give the same answers: to the same microsecond,
//! for all charges of a request, even if two instances share the Redis.
//!
//! There is one exception, which the test leaves out: if an instance refunds or resets, other instances may repeat a
//! known denial for `denial_cache`. After these calls, the test lets that time pass.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::{
    Admission, Ask, Clock, Denial, Limit, ManualClock, MemoryStore, Outcome, Rate, Remembered,
    Span, Store, Time,
};
use tollgate_conformance::seed;
use tollgate_core::{Charge, Key};
use tollgate_redis::{Address, ClockSource, Options, RedisStore, Servers};
use tollgate_rig::Redis;
use tollgate_store::Applied;

const START: Time = Time::from_micros(1_700_000_000_000_000);
const DENIAL_CACHE: Span = Span::SECOND;

/// One step of a sequence.
#[derive(Clone, Debug)]
enum Step {
    /// A request: for each charge its rule, its subject and its cost.
    Check(usize, Vec<(usize, u64, u64)>),
    /// Gives back the last admitted request.
    Refund(usize),
    /// Forgets the states of the last request.
    Reset(usize),
    Advance(Span),
    /// Goes on to the retry time of the last denial.
    Retry,
}

fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![4 => Just(1_u64), 1 => 2..8_u64];
    let charges = prop::collection::vec((0..RULES, 0..2_u64, cost), 1..4);
    let span = prop_oneof![
        Just(Span::from_micros(1)),
        Just(Span::from_millis(300)),
        Just(Span::SECOND),
        (1..20_u64).prop_map(Span::from_secs),
    ];
    prop_oneof![
        12 => (0..2_usize, charges).prop_map(|(by, charges)| Step::Check(by, charges)),
        1 => (0..2_usize).prop_map(Step::Refund),
        1 => (0..2_usize).prop_map(Step::Reset),
        2 => span.prop_map(Step::Advance),
        1 => Just(Step::Retry),
    ]
}

const RULES: usize = 5;

fn limits() -> [Limit; RULES] {
    let minute = Rate::new(1, Span::MINUTE).unwrap();
    [
        Limit::token_bucket(10, minute).unwrap(),
        Limit::gcra(Rate::new(2, Span::SECOND).unwrap(), 3).unwrap(),
        Limit::fixed_window(4, Span::from_secs(10)).unwrap(),
        Limit::sliding_log(3, Span::from_secs(7)).unwrap(),
        Limit::two_window(5, Span::from_secs(5)).unwrap(),
    ]
}

const NAMES: [&str; RULES] = ["bucket", "gcra", "window", "log", "estimate"];

struct Stores {
    _redis: Redis,
    runtime: Runtime,
    clock: ManualClock,
    memory: MemoryStore<ManualClock>,
    /// Two instances that share one Redis and remember denials.
    instances: [Remembered<RedisStore>; 2],
    /// A store with other keys on this Redis, without known denials.
    plain: RedisStore,
}

impl Stores {
    fn start() -> Stores {
        let (redis, clock) = (Redis::start(), ManualClock::at(START));
        let runtime = Runtime::new().unwrap();
        let (host, port) = ("127.0.0.1".to_owned(), redis.port());
        let connect = |prefix: &str| {
            let address = Address {
                host: host.clone(),
                port,
            };
            let mut options = Options::new(Servers::Standalone(address));
            options.clock = ClockSource::Caller(Arc::new(clock.clone()));
            options.key_prefix = prefix.to_owned();
            // Redis expires keys by its own clock.
            options.margin = Span::HOUR;
            options.timeout = std::time::Duration::from_secs(10);
            options.connect_timeout = std::time::Duration::from_secs(10);
            runtime.block_on(RedisStore::connect(options)).unwrap()
        };
        let instance = || {
            let clock = Arc::new(clock.clone());
            Remembered::new(connect("known"), DENIAL_CACHE, clock)
        };
        Stores {
            instances: [instance(), instance()],
            plain: connect("plain"),
            memory: MemoryStore::with_clock(100_000, clock.clone()),
            clock,
            runtime,
            _redis: redis,
        }
    }

    /// Applies a request everywhere, and returns the answer, which must be the same.
    fn check(&self, by: usize, charges: &[Charge<'_>]) -> Applied {
        let one = Ask::Exactly(1);
        let expected = self.memory.apply(charges, one);
        let told = |store: &dyn Store| {
            self.runtime
                .block_on(async { store.apply(charges, one).await })
                .unwrap()
        };
        assert_eq!(told(&self.plain), expected, "Redis");
        assert_eq!(
            told(&self.instances[by]),
            expected,
            "Redis with known denials"
        );
        expected
    }
}

fn retry_at(outcome: &Outcome) -> Option<Time> {
    match outcome.admission {
        Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => Some(at),
        _ => None,
    }
}

/// Plays a sequence. `case` keeps the subjects of sequences apart.
fn play(stores: &Stores, case: u64, steps: &[Step]) {
    let limits = limits();
    let mut asked: Vec<Charge<'_>> = Vec::new();
    let mut last: Option<Applied> = None;
    for step in steps {
        match step {
            Step::Check(by, charges) => {
                let charges = charges.iter().map(|(rule, subject, cost)| {
                    let bits = u128::from(case) << 64 | (*rule as u128) << 8 | u128::from(*subject);
                    // Spread the bits, as hashes do.
                    let bits = (bits + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
                    Charge {
                        rule: NAMES[*rule],
                        cost: *cost,
                        ..Charge::new(Key::from_bits(bits), &limits[*rule])
                    }
                });
                asked = charges.collect();
                last = Some(stores.check(*by, &asked));
            }
            Step::Refund(by) => {
                if let Some(applied) = last.take_if(|it| it.allowed) {
                    let at = applied.now;
                    let expected = stores.memory.refund(&asked, 1, at);
                    let told = |store: &dyn Store| {
                        stores
                            .runtime
                            .block_on(async { store.refund(&asked, 1, at).await })
                            .unwrap()
                    };
                    assert_eq!(told(&stores.plain), expected);
                    assert_eq!(told(&stores.instances[*by]), expected);
                    stores.clock.advance(DENIAL_CACHE);
                }
            }
            Step::Reset(by) => {
                stores.memory.reset(&asked);
                let reset = |store: &dyn Store| {
                    stores.runtime.block_on(async { store.reset(&asked).await })
                };
                reset(&stores.plain).unwrap();
                reset(&stores.instances[*by]).unwrap();
                stores.clock.advance(DENIAL_CACHE);
            }
            Step::Advance(span) => stores.clock.advance(*span),
            Step::Retry => {
                let denials = last.iter().flat_map(|it| &it.outcomes);
                if let Some(at) = denials.filter_map(retry_at).min() {
                    stores.clock.set(at.max(stores.clock.now()));
                }
            }
        }
    }
}

#[test]
fn known_denials_answer_as_the_store_would() {
    let stores = Stores::start();
    let case = AtomicU64::new(0);
    let steps = prop::collection::vec(step(), 1..60);
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    let times: u32 = times.and_then(|it| it.parse().ok()).unwrap_or(1);
    let config = ProptestConfig::with_cases(100 * times.min(20));
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&steps, |steps| {
            play(&stores, case.fetch_add(1, Ordering::Relaxed), &steps);
            Ok(())
        })
        .unwrap();
    let answered = stores.instances.iter().map(Remembered::answered);
    let answered: u64 = answered.map(|it| it.load(Ordering::Relaxed)).sum();
    assert!(answered > 0, "no denial was repeated");
}

/// A token bucket of 10 that gets 1 a minute, and costs of 7, 5, 3 and 5.
#[test]
fn a_denial_of_a_larger_cost_is_not_repeated_after_a_smaller_one_was_admitted() {
    let stores = Stores::start();
    let limits = limits();
    let mut told = Vec::new();
    for cost in [7, 5, 3, 5] {
        let charge = |number: u128, limit| Charge {
            cost,
            ..Charge::new(Key::from_bits(number << 64 | number), limit)
        };
        let applied = stores.check(0, &[charge(1, &limits[0])]);
        let outcome = applied.outcomes[0];
        let retry = retry_at(&outcome).map(|at| at.since(applied.now).as_micros() / 1_000_000);
        told.push((applied.allowed, outcome.remaining, retry));
    }
    assert_eq!(
        told,
        [
            (true, 3, None),
            (false, 3, Some(120)),
            (true, 0, None),
            (false, 0, Some(300)),
        ]
    );
}

/// A prefilter denies here whenever a charge has nothing left, and only then.
#[test]
fn prefilter_never_denies_what_the_store_would_admit() {
    let clock = ManualClock::at(START);
    let store = Arc::new(MemoryStore::with_clock(10_000, clock.clone()));
    let remembered = Remembered::new(
        Arc::clone(&store) as Arc<dyn Store>,
        Span::MINUTE,
        Arc::new(clock.clone()),
    );
    let (filtered, limits) = (remembered.prefilter(), limits());
    let (mut state, mut differs) = (seed(7), 0);
    let mut random = |most: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % most
    };
    for _ in 0..20_000 {
        // Up to three charges: of the subject, of its group, and of all.
        let subject = random(4);
        let keys = [subject, 10 + subject % 2, 20];
        let of_subject = [0, 2, 3, 2][usize::try_from(subject).unwrap()];
        let charges = keys.into_iter().zip([of_subject, 4, 1]);
        let charges = charges.map(|(key, limit)| {
            let key = Key::from_bits(u128::from(key) << 64 | u128::from(key));
            Charge::new(key, &limits[limit])
        });
        let some = usize::try_from(1 + random(3)).unwrap();
        let charges: Vec<Charge<'_>> = charges.take(some).collect();
        let expected = store.peek(&charges, Ask::Exactly(1));
        let answered = filtered.answered().load(Ordering::Relaxed);
        let applied =
            tollgate_conformance::block_on(filtered.apply(&charges, Ask::Exactly(1)).into_future())
                .unwrap();
        assert_eq!(applied.allowed, expected.allowed);
        if filtered.answered().load(Ordering::Relaxed) > answered {
            for (outcome, expected) in applied.outcomes.iter().zip(&expected.outcomes) {
                differs += u64::from(!outcome.is_decided());
                assert!(!outcome.is_decided() || outcome == expected);
            }
        }
        if random(3) == 0 {
            clock.advance(Span::from_millis(random(20_000)));
        }
    }
    assert!(differs > 0, "no denial by some charges was repeated");
}
