//! One allowance split over several keys: in memory, and in the cluster slots of a real cluster.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Flaky, START};
use tollgate::{
    Ask, Attributes, Charge, Engine, Key, Leaky, Limit, Limiter, ManualClock, MemoryStore,
    OnDenied, Rate, Reserve, ReserveOutcome, Sharded, Span, Store,
};
use tollgate_conformance::{Fixture, block_on};
use tollgate_rig::Cluster;

/// Two instances that share a store. Each of their calls has to be waited for.
struct Pair {
    instances: [Sharded<Flaky>; 2],
    store: Flaky,
    clock: ManualClock,
}

impl Pair {
    fn new() -> Pair {
        let clock = ManualClock::at(START);
        let store = Flaky {
            store: Arc::new(MemoryStore::with_clock(10_000, clock.clone())),
            down: Arc::default(),
            asked: Arc::default(),
        };
        Pair {
            instances: [(); 2].map(|()| Sharded::new(store.clone())),
            store,
            clock,
        }
    }

    fn admits(&self, instance: usize, charge: Charge<'_>) -> bool {
        let asked = self.store.asked.load(Ordering::Relaxed);
        let charges = [charge];
        let answer = self.instances[instance].apply(&charges, Ask::Exactly(1));
        let applied = block_on(answer.into_future()).unwrap();
        assert_eq!(applied.outcomes[0].limit, charge.limit.capacity());
        // The number of calls is bounded.
        assert!(self.store.asked.load(Ordering::Relaxed) - asked <= 4);
        applied.allowed
    }
}

fn split(limit: &Limit) -> Charge<'_> {
    Charge {
        shards: 16,
        ..Charge::new(Key::from_bits(7), limit)
    }
}

#[test]
fn parts_have_the_units_of_the_whole() {
    let limits = [
        Limit::fixed_window(1000, Span::MINUTE).unwrap(),
        Limit::sliding_log(77, Span::MINUTE).unwrap(),
        Limit::sliding_counter(300, Span::MINUTE, 10).unwrap(),
        Limit::gcra(Rate::new(600, Span::MINUTE).unwrap(), 100).unwrap(),
        Limit::token_bucket(55, Rate::new(60, Span::MINUTE).unwrap()).unwrap(),
        Limit::leaky_bucket(Rate::new(600, Span::MINUTE).unwrap(), 100, Leaky::Police).unwrap(),
    ];
    for limit in &limits {
        for wanted in [1, 2, 3, 16, 54, 1024] {
            let of = limit.parts(wanted);
            let parts = (0..of).map(|index| limit.part(index, of).capacity());
            assert_eq!(parts.sum::<u64>(), limit.capacity(), "{limit:?} in {of}");
        }
    }
}

#[test]
fn uneven_load_gets_the_limit_and_never_more() {
    for amount in [5, 100, 1000] {
        let pair = Pair::new();
        let limit = Limit::fixed_window(amount, Span::HOUR).unwrap();
        // One of the instances has nearly all requests.
        let requests = 3 * amount + 60;
        let admitted = (0..requests).filter(|request| {
            let instance = usize::from(request % 50 == 0);
            pair.admits(instance, split(&limit))
        });
        let admitted = admitted.count() as u64;
        assert!(admitted <= amount, "{admitted} of {amount}");
        assert!(admitted * 100 >= amount * 95, "{admitted} of {amount}");
    }
}

/// A rule that counts denied requests counts each request once, however many parts of another rule were tried.
#[test]
fn a_rule_beside_a_sharded_one_counts_each_request_once() {
    for amount in [3, 16, 40] {
        let pair = Pair::new();
        let limit = Limit::fixed_window(amount, Span::HOUR).unwrap();
        let counting = Limit::fixed_window(1000, Span::HOUR).unwrap();
        let beside = Charge {
            on_denied: OnDenied::Charge,
            ..Charge::new(Key::from_bits(8), &counting)
        };
        let (charges, mut admitted) = ([split(&limit), beside], 0);
        for _ in 0..100 {
            let asked = pair.store.asked.load(Ordering::Relaxed);
            let answer = pair.instances[0].apply(&charges, Ask::Exactly(1));
            admitted += u64::from(block_on(answer.into_future()).unwrap().allowed);
            assert!(pair.store.asked.load(Ordering::Relaxed) - asked <= 4);
        }
        assert_eq!(admitted, amount);
        let left = pair.store.store.peek(&[beside], Ask::Exactly(0)).outcomes[0].remaining;
        assert_eq!(left, 900, "{amount}");
    }
}

#[test]
fn rate_is_kept_over_time() {
    let limits = [
        Limit::gcra(Rate::new(100, Span::SECOND).unwrap(), 100).unwrap(),
        Limit::token_bucket(100, Rate::new(100, Span::SECOND).unwrap()).unwrap(),
        Limit::sliding_log(100, Span::SECOND).unwrap(),
        Limit::sliding_counter(100, Span::SECOND, 10).unwrap(),
    ];
    for limit in &limits {
        let pair = Pair::new();
        let mut admitted = 0;
        // Twenty seconds at three times the rate, in bursts of fifteen.
        for request in 0..6_000 {
            if request % 15 == 0 {
                pair.clock.advance(Span::from_millis(50));
            }
            admitted += u64::from(pair.admits(0, split(limit)));
        }
        let bound = match limit {
            Limit::Gcra(_) | Limit::TokenBucket(_) => 100 + 2_000,
            _ => 2_100,
        };
        assert!(admitted <= bound, "{admitted} under {limit:?}");
        // Sliding algorithms count some requests for longer than a second.
        let least = match limit {
            Limit::SlidingCounter(_) => 1_700,
            _ => 1_900,
        };
        assert!(admitted >= least, "{admitted} under {limit:?}");
    }
}

const RULES: &str = "
version: 1
rules:
  - { id: all, algorithm: fixed-window, limit: 64, window: 30d, placement: sharded(16) }
";

fn limiter() -> (Limiter<Arc<dyn Store>>, ManualClock) {
    let config = tollgate_config::parse("rules.yaml", RULES, &|_| None).unwrap();
    let clock = ManualClock::at(START);
    let store = MemoryStore::with_clock(10_000, clock.clone());
    let store: Arc<dyn Store> = Arc::new(Sharded::new(store));
    let limiter = Limiter::builder(&config, store);
    (limiter.clock(clock.clone()).build(), clock)
}

#[test]
fn peek_tells_the_sum_and_refund_and_reset_reach_the_parts() {
    let (limiter, _) = limiter();
    let nobody = Attributes::new();
    let left = || {
        let decision = block_on(limiter.peek(&nobody, Ask::Exactly(1)));
        let rule = decision.rule().unwrap();
        (rule.limit().unwrap(), rule.remaining().unwrap())
    };
    let admitted = (0..100).filter(|_| block_on(limiter.check(&nobody)).is_allowed());
    assert_eq!(admitted.count(), 64);
    assert_eq!(left(), (64, 0));
    let decision = block_on(limiter.check(&nobody));
    assert!(decision.retry_after().is_some());
    block_on(limiter.refund(&nobody, 1, decision.decided_at())).unwrap();
    assert_eq!(left(), (64, 1));
    assert!(block_on(limiter.check(&nobody)).is_allowed());
    block_on(limiter.reset(&nobody)).unwrap();
    assert_eq!(left(), (64, 64));
    // A request has to fit into one part.
    let decision = block_on(limiter.ask(&nobody, Ask::Exactly(5)));
    assert!(!decision.is_allowed());
    assert_eq!(left(), (64, 64));
}

#[test]
fn reservation_is_held_in_one_part() {
    let (limiter, _) = limiter();
    let nobody = Attributes::new();
    let reserve = Reserve {
        units: 3,
        ..Reserve::default()
    };
    let reserved = block_on(limiter.reserve(&nobody, &reserve)).unwrap();
    let ReserveOutcome::Held { hold, .. } = reserved else {
        panic!("it is denied");
    };
    let left = || {
        let decision = block_on(limiter.peek(&nobody, Ask::Exactly(1)));
        decision.rule().unwrap().remaining().unwrap()
    };
    assert_eq!(left(), 61);
    block_on(limiter.commit(&hold.id, 1)).unwrap();
    assert_eq!(left(), 63);
}

/// The keys are on all nodes, and two instances together admit at most the limit.
#[tokio::test(flavor = "multi_thread")]
async fn allowance_is_split_over_the_nodes_of_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let urls = cluster.urls();
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ mode: cluster, urls: {urls:?}, timeout: 5s, connect_timeout: 5s }} }}\n\
         rules:\n  - {{ id: all, algorithm: fixed-window, limit: 160, window: 30d, placement: sharded(16) }}\n"
    );
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    let mut instances = Vec::new();
    for _ in 0..2 {
        instances.push(Arc::new(Engine::start(&config).await.unwrap()));
    }
    let mut tasks = Vec::new();
    for instance in &instances {
        for _ in 0..8 {
            let instance = Arc::clone(instance);
            tasks.push(tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..40 {
                    let decision = instance.check(&Attributes::new()).await;
                    admitted += u64::from(decision.is_allowed());
                }
                admitted
            }));
        }
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert!((152..=160).contains(&admitted), "{admitted}");
    let names: Vec<String> = cluster
        .nodes()
        .iter()
        .map(|it| it.cli(&["keys", "tg:v1:*:all:*"]))
        .collect();
    assert!(names.iter().all(|it| it.contains(":all:")), "{names:?}");
}

struct Suite {
    store: Sharded<MemoryStore<ManualClock>>,
    clock: ManualClock,
}

impl Fixture for Suite {
    type Store = Sharded<MemoryStore<ManualClock>>;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn set_time(&self, now: tollgate::Time) {
        self.clock.set(now);
    }
}

fn suite() -> Suite {
    let clock = ManualClock::default();
    Suite {
        store: Sharded::new(MemoryStore::with_clock(100_000, clock.clone())),
        clock,
    }
}

tollgate_conformance::conformance_suite! {
    one_test: the_suite_passes_with_split_allowances,
    shared: _nothing = (),
    fixture: suite(),
    block_on: block_on,
    steps: tollgate_conformance::STEPS,
}
